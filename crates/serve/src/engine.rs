//! The engine's thread. It alone owns the slab, the prefix cache and the scheduler, and takes one step of the model
//! after another while there is a sequence to generate.
//!
//! ```text
//!   before a step    accept the requests that arrived; cancel the sequences whose clients have gone
//!                    (a request whose pages lie in a file is accepted once they have been read)
//!                    hand sequences to `serving::Engine`: of each request as many as can run, and more when some have ended
//!   the step         `Engine::step`: plan, compute, sample, settle
//!   after it         count; send the new output to the clients; send views of the pages
//! ```

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use page_by_page::serving::disk_tier::DiskTier;
use page_by_page::serving::schedule::{FinishReason, NextToken, ScheduledChunk, SequenceId};
use page_by_page::serving::view::{FinishedView, PoolView};
use page_by_page::serving::{Engine, FinishedSequence, GenerationRequest, OutputDelta, StepOutput, TierQueue};

use crate::api_error::ApiError;
use crate::messages::{Command, Output, OutputEnd, Refusal, Requester, Submission};
use crate::metrics::Metrics;
use crate::pace::{Pace, PaceRequest};
use crate::views::ViewPublisher;

/// While a step waits for the pace, clients that have gone or run out of time are looked for this often.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Generates the sequences of all requests.
pub struct EngineThread<'m> {
    engine: Engine<'m>,
    metrics: &'m Metrics,
    /// Sequences that can wait or run at the same time.
    max_open: usize,
    /// Requests whose pages are being read.
    tier_queue: TierQueue<Submission>,
    open: HashMap<SequenceId, OpenSequence>,
    /// In the order of arrival.
    backlogs: Vec<Backlog>,
    /// Set once no more requests are accepted.
    stop: Option<Instant>,
    /// The plan of the last step.
    chunks: Vec<ScheduledChunk>,
    views: ViewPublisher,
    pace: Pace,
}

/// A sequence that has not finished, and who gets its output.
struct OpenSequence {
    index: usize,
    requester: Rc<Requester>,
    newest_token: Option<Instant>,
}

/// Sequences of a request that the engine does not have yet, so that those of others do not wait for all of them.
struct Backlog {
    requester: Rc<Requester>,
    requests: VecDeque<GenerationRequest>,
    /// The index of the first sequence in its request.
    index: usize,
}

/// What has stopped the engine: a fault of the loop, of the scheduler or of the page file.
pub type EngineFailure = Box<dyn Error + Send + Sync>;

impl<'m> EngineThread<'m> {
    /// For an engine without sequences. `tier`: the page file under its prefix cache, if there is one. `max_open`:
    /// sequences that can wait or run at the same time.
    pub fn new(engine: Engine<'m>, tier: Option<DiskTier>, metrics: &'m Metrics, max_open: usize) -> Self {
        EngineThread {
            engine,
            metrics,
            max_open,
            tier_queue: TierQueue::new(tier),
            open: HashMap::new(),
            backlogs: Vec::new(),
            stop: None,
            chunks: Vec::new(),
            views: ViewPublisher::new(),
            pace: Pace::default(),
        }
    }

    /// Runs until it has been stopped and the last sequence is finished, or until no sender of commands is left.
    ///
    /// # Errors
    /// [`EngineFailure`]. The sequences that were open get no end.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), EngineFailure> {
        self.update_metrics();
        loop {
            if self.is_idle() {
                if self.stop.is_some() {
                    return Ok(());
                }
                let Ok(command) = commands.recv() else { return Ok(()) };
                self.handle(command)?;
            } else if let Ok(command) = commands.recv_timeout(self.wait().min(LOOK_AGAIN)) {
                self.handle(command)?;
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command)?;
            }
            self.submit_backlog()?;
            // With nothing else to do, it waits for the next pages.
            for request in self.tier_queue.take_ready(&mut self.engine)? {
                self.begin(request)?;
            }
            self.cancel_unwanted()?;
            let is_due = !self.is_idle() && self.wait().is_zero();
            let step = if is_due { Some(self.step()?) } else { None };
            // Before the output is sent: a client that has its answer also finds it in the counters.
            self.update_metrics();
            step.into_iter().for_each(|step| self.send(step));
            self.views.show(self.pace.set, || PoolView::new(&self.engine, &self.chunks));
        }
    }

    /// How long the next step has to wait for the pace. A server that is to stop heeds none.
    fn wait(&self) -> Duration {
        if self.stop.is_some() { Duration::ZERO } else { self.pace.wait() }
    }

    fn is_idle(&self) -> bool {
        self.engine.is_done() && self.open.is_empty() && self.n_not_submitted() == 0
    }

    fn handle(&mut self, command: Command) -> Result<(), EngineFailure> {
        match command {
            Command::ViewRequest(request) => self.views.ask(request),
            Command::SetPace(pace, is_known) => {
                let is_viewing = self.views.present.contains(&pace.viewer);
                if is_viewing {
                    // A step that nobody needs now is not kept for later.
                    let steps = if self.is_idle() { 0 } else { pace.steps };
                    self.pace.set = pace.steps_per_second.map(|_| PaceRequest { steps, ..pace });
                    self.views.note_change();
                }
                let _ = is_known.send(is_viewing);
            }
            Command::ViewerLeft(viewer) => {
                self.views.present.remove(&viewer);
                if self.pace.set.take_if(|set| set.viewer == viewer).is_some() {
                    self.views.note_change();
                }
            }
            Command::Cancel(sequence, is_known) => {
                let is_open = self.open.contains_key(&sequence);
                if is_open {
                    let finished = self.cancel(sequence)?;
                    self.end(finished, None);
                }
                // The client that asks may have gone.
                let _ = is_known.send(is_open);
            }
            Command::Stop(until) => self.stop = Some(until),
            Command::Submit(request) => {
                if let Some(refusal) = self.refusal(n_sequences(&request.requests)) {
                    let _ = request.accepted.send(Err(Refusal::Now(refusal)));
                    return Ok(());
                }
                // A scored prompt is computed even where its rows are cached.
                let looked_up = request.requests.iter().filter(|request| !request.prompt_logprobs);
                match self.tier_queue.prefetch(&mut self.engine, looked_up.map(|request| &request.prompt[..]))? {
                    Some(ticket) => self.tier_queue.park(ticket, request),
                    None => self.begin(request)?,
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, request: Submission) -> Result<(), EngineFailure> {
        let Submission { requests, requester, accepted } = request;
        // All of them are accepted, or none.
        if let Some(error) = requests.iter().find_map(|request| self.engine.validate(request).err()) {
            let _ = accepted.send(Err(Refusal::Ever(error)));
            return Ok(());
        }
        self.backlogs.push(Backlog { requester: Rc::new(requester), requests: requests.into(), index: 0 });
        self.submit_backlog()?;
        self.views.note_change();
        // A client that has gone does not receive it, and its sequences are cancelled before the next step.
        let _ = accepted.send(Ok(()));
        Ok(())
    }

    /// Hands sequences to the loop, until each request has as many there as can run.
    fn submit_backlog(&mut self) -> Result<(), EngineFailure> {
        for Backlog { requester, requests, index } in &mut self.backlogs {
            // Each sequence of this requester holds it once, and so does this backlog.
            let mut room = (self.engine.limits().max_running + 1).saturating_sub(Rc::strong_count(requester));
            while room > 0
                && let Some(first) = requests.front_mut()
            {
                let samplers = first.samplers.drain(..room.min(first.samplers.len())).collect();
                let (prompt, stop_params) = (first.prompt.clone(), first.stop_params.clone());
                let turn = GenerationRequest { prompt, samplers, stop_params, ..*first };
                if first.samplers.is_empty() {
                    requests.pop_front();
                }
                for id in self.engine.submit_request(turn)? {
                    self.open
                        .insert(id, OpenSequence { index: *index, requester: requester.clone(), newest_token: None });
                    (*index, room) = (*index + 1, room - 1);
                }
            }
        }
        self.backlogs.retain(|backlog| !backlog.requests.is_empty());
        Ok(())
    }

    /// Sequences that were accepted, or are about to be, and are not in the loop.
    fn n_not_submitted(&self) -> usize {
        let prefetching = self.tier_queue.waiting().flat_map(|request| &request.requests);
        n_sequences(prefetching.chain(self.backlogs.iter().flat_map(|backlog| &backlog.requests)))
    }

    /// Why this many sequences cannot be accepted, if they cannot.
    fn refusal(&self, n_sequences: usize) -> Option<ApiError> {
        if self.stop.is_some() {
            return Some(ApiError::stopping());
        }
        let (open, most) = (self.open.len() + self.n_not_submitted(), self.max_open);
        if open + n_sequences > most {
            self.metrics.refused.inc();
            let message =
                format!("{open} of {most} places are taken, and {n_sequences} are needed; ask again in a second");
            return Some(ApiError::too_many_requests(message, 1));
        }
        None
    }

    /// Cancels a sequence without a word to its client. Its pages have been released when this returns.
    fn cancel(&mut self, id: SequenceId) -> Result<FinishedSequence, EngineFailure> {
        let finished = self.engine.cancel(id)?;
        self.tier_queue.store(&mut self.engine, std::slice::from_ref(&finished))?;
        Ok(finished)
    }

    /// Cancels the sequences whose clients have gone and those that have run out of time.
    fn cancel_unwanted(&mut self) -> Result<(), EngineFailure> {
        let now = Instant::now();
        let stopped = self.stop.is_some_and(|until| until <= now);
        let unwanted = |requester: &Requester| requester.events.is_closed() || stopped || requester.until <= now;
        for backlog in self.backlogs.extract_if(.., |backlog| unwanted(&backlog.requester)) {
            for _ in 0..n_sequences(&backlog.requests) {
                self.metrics.end(FinishReason::Abort, backlog.requester.arrived.elapsed());
            }
        }
        let ids: Vec<_> = self.open.iter().filter(|(_, open)| unwanted(&open.requester)).map(|(id, _)| *id).collect();
        for id in ids {
            let finished = self.cancel(id)?;
            self.end(finished, Some(if stopped { ApiError::stopping() } else { ApiError::timed_out() }));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<StepOutput, EngineFailure> {
        self.pace.note_step();
        let step = self.engine.step()?;
        self.tier_queue.store(&mut self.engine, &step.finished)?;
        Ok(step)
    }

    fn send(&mut self, step: StepOutput) {
        self.chunks = step.chunks;
        self.views.note_change();
        let now = Instant::now();
        for NextToken { sequence_id: sequence, .. } in step.new_tokens {
            if let Some(open) = self.open.get_mut(&sequence) {
                match open.newest_token.replace(now) {
                    Some(before) => self.metrics.inter_token.observe((now - before).as_secs_f64()),
                    None => self.metrics.first_token.observe((now - open.requester.arrived).as_secs_f64()),
                }
            }
        }
        for (id, delta) in step.deltas {
            if let Some(open) = self.open.get(&id) {
                open.send(delta, None);
            }
        }
        step.finished.into_iter().for_each(|finished| self.end(finished, None));
    }

    /// Counts a sequence's end, and sends it with the rest of the output, or why there is none: `refusal` or a failure.
    fn end(&mut self, finished: FinishedSequence, refusal: Option<ApiError>) {
        let (sequence, reason) = (&finished.sequence, finished.reason());
        let Some(open) = self.open.remove(&sequence.id) else { return };
        // Counted first, so that a client that has its answer also finds it in the counters.
        self.metrics.end(reason, open.requester.arrived.elapsed());
        self.views.note_end(|| FinishedView::new(&finished));
        let end =
            OutputEnd { reason, new_tokens: sequence.new_tokens().len(), cached: sequence.counters.cached_tokens };
        let failure = finished.outcome.err().map(|error| ApiError::failed(error.to_string()));
        match refusal.or(failure) {
            None => open.send(finished.delta, Some(end)),
            // A client that has gone does not receive it.
            Some(refusal) => drop(open.requester.events.send(Err(refusal))),
        }
    }

    fn update_metrics(&self) {
        let (scheduler, metrics) = (self.engine.scheduler(), self.metrics);
        metrics.set_pages(self.engine.pages());
        metrics.running.set(scheduler.running().count() as i64);
        metrics.waiting.set((self.engine.waiting().count() + self.n_not_submitted()) as i64);
        metrics.set_totals(self.engine.totals());
        if let Some(tier) = self.tier_queue.tier() {
            metrics.set_page_file(tier.counters(), tier.failed().is_some());
        }
    }
}

fn n_sequences<'r>(requests: impl IntoIterator<Item = &'r GenerationRequest>) -> usize {
    requests.into_iter().map(|request| request.samplers.len()).sum()
}

impl OpenSequence {
    /// Sends new output. A client that has gone does not receive it.
    fn send(&self, delta: OutputDelta, end: Option<OutputEnd>) {
        let _ = self.requester.events.send(Ok(Output { index: self.index, delta, end }));
    }
}
