//! The engine's thread. It alone owns the slab, the prefix cache and the scheduler, and takes one step of the model after
//! another while there is a sequence to generate.
//!
//! ```text
//!   before a step    accept the requests that arrived; cancel the sequences whose clients have gone
//!                    (a request whose pages lie in a file is accepted once they have been read)
//!   the step         the loop of chapter 12: plan, compute, sample, settle
//!   after it         send each new token to its client; count; send views of the pages
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::detokenizer::Detokenizer;
use super::messages::{Command, Event, Finished, NewPrompt, NewRequest, Output, Piece, Token};
use super::metrics::{Metrics, raise};
use super::refusal::Refusal;
use super::views::ViewPublisher;
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::decode::sampler::Sampler;
use page_by_page::decode::scoring::{TokenLogprobs, token_logprobs};
use page_by_page::disk::tier::{Counters, DiskTier, DiskTierError};
use page_by_page::model::StepError;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{
    FinishReason, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceCounters, SequenceId,
};
use page_by_page::serving::view::{self, EndedView, View, Words};
use page_by_page::serving::{SequenceOutput, Serving, ServingError, Step};

/// Generates the sequences of all requests.
pub struct Engine<'m> {
    serving: Serving<'m>,
    slab: SharedSlab,
    tokenizer: &'m Tokenizer,
    metrics: &'m Metrics,
    /// Sequences that can wait or run at the same time.
    most_sequences: usize,
    tier: Option<DiskTier>,
    /// Requests whose pages are being read, in order of arrival, each with the ticket of the last pages asked for.
    held: VecDeque<(u64, NewRequest)>,
    open: HashMap<SequenceId, ClientSequence<'m>>,
    /// Set once no more requests are accepted.
    stop: Option<Instant>,
    chunks: Vec<ScheduledChunk>,
    stage: ViewPublisher,
}

/// A sequence with a client.
struct ClientSequence<'m> {
    /// Its place in its request.
    index: usize,
    events: UnboundedSender<Event>,
    arrived: Instant,
    until: Instant,
    detokenizer: Detokenizer<'m>,
    logprobs: Option<usize>,
    is_scored: bool,
    /// The scores, once they are complete and until the next piece is sent.
    scores: Option<Vec<TokenLogprobs>>,
    /// The end-of-text token of a sequence whose prompt is scored.
    end: Option<(u32, TokenLogprobs)>,
    /// When its newest token was generated.
    newest: Option<Instant>,
    /// Tokens of its prompt, but for those that it shares with the sample that it was forked from.
    n_prompt: usize,
    /// How its prompt begins, for views.
    begins: String,
    /// Cached tokens of its prompt, once it has run.
    cached: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Pages(#[from] DiskTierError),
}

impl<'m> Engine<'m> {
    /// An engine without sequences. `slab`: that of `serving`. `tier`: the page file under its prefix cache, if there is one.
    /// `most_sequences`: that can wait or run at the same time.
    pub fn new(
        serving: Serving<'m>,
        slab: &SharedSlab,
        tier: Option<DiskTier>,
        tokenizer: &'m Tokenizer,
        metrics: &'m Metrics,
        most_sequences: usize,
        stage: ViewPublisher,
    ) -> Self {
        let (slab, held, open, chunks) = (slab.clone(), VecDeque::new(), HashMap::new(), Vec::new());
        Engine { serving, slab, tokenizer, metrics, most_sequences, tier, held, open, stop: None, chunks, stage }
    }

    /// Runs until it has been stopped and the last sequence is finished, or until no sender of commands is left.
    ///
    /// # Errors
    /// [`EngineError`]. The sequences that were open get no end.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), EngineError> {
        self.update_metrics();
        loop {
            if self.is_idle() {
                if self.stop.is_some() {
                    return Ok(());
                }
                match commands.recv() {
                    Ok(command) => self.handle(command)?,
                    Err(RecvError) => return Ok(()),
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command)?;
            }
            self.begin_arrived()?;
            self.cancel_unwanted()?;
            if !self.is_idle() {
                let step = self.serving.step()?;
                if let Some(tier) = &mut self.tier {
                    tier.store(self.serving.scheduler(), &step.generated)?;
                }
                self.send(step)?;
            }
            self.update_metrics();
            self.show();
        }
    }

    fn is_idle(&self) -> bool {
        self.serving.is_done() && self.open.is_empty() && self.held.is_empty()
    }

    fn handle(&mut self, command: Command) -> Result<(), EngineError> {
        match command {
            Command::ViewRequest(look) => self.stage.ask(look),
            Command::Cancel { sequence, is_known } => drop(is_known.send(self.cancel(sequence)?)),
            Command::Stop { until } => self.stop = Some(until),
            Command::Submit(request) => {
                if let Some(refusal) = self.refusal(request.n_sequences()) {
                    let _ = request.accepted.send(Err(refusal));
                } else if let Some(ticket) = self.ask_for_pages(&request.prompts)? {
                    self.held.push_back((ticket, request));
                } else {
                    self.begin(request)?;
                }
            }
        }
        Ok(())
    }

    /// Asks the page file for the pages of these prompts that memory lacks. Returns the ticket of the last ones, if any.
    fn ask_for_pages(&mut self, prompts: &[NewPrompt]) -> Result<Option<u64>, EngineError> {
        let Some(tier) = &mut self.tier else { return Ok(None) };
        let mut last = None;
        // A scored prompt is computed even where its rows are cached.
        for new in prompts.iter().filter(|new| !new.is_scored) {
            last = tier.prefetch(&new.tokens)?.or(last);
        }
        Ok(last)
    }

    /// Accepts the requests whose pages have been read. With nothing else to do, it waits for the next pages.
    fn begin_arrived(&mut self) -> Result<(), EngineError> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        for ticket in tier.take_loaded(self.serving.is_done() && !self.held.is_empty())? {
            if self.held.front().is_some_and(|held| held.0 == ticket)
                && let Some((_, request)) = self.held.pop_front()
            {
                self.begin(request)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, request: NewRequest) -> Result<(), EngineError> {
        let NewRequest { prompts, events, accepted, arrived, until } = request;
        let (mut ids, mut outcome) = (Vec::new(), Ok(()));
        for new in prompts {
            let open = |index| ClientSequence {
                index,
                events: events.clone(),
                arrived,
                until,
                detokenizer: Detokenizer::new(self.tokenizer, new.stops.clone(), new.stop_rules.min_tokens),
                logprobs: new.logprobs,
                is_scored: new.is_scored,
                scores: None,
                end: None,
                newest: None,
                n_prompt: new.tokens.len(),
                begins: self.beginning(&new.tokens),
                cached: None,
            };
            let opened: Vec<ClientSequence<'_>> = (ids.len()..ids.len() + new.samples.len()).map(open).collect();
            let submitted = match submit(&mut self.serving, new) {
                Ok(submitted) => submitted,
                Err(error) => {
                    // All of them are accepted, or none.
                    std::mem::take(&mut ids).into_iter().try_for_each(|id| self.release(id))?;
                    outcome = Err(refusal_of(&error));
                    break;
                }
            };
            self.open.extend(submitted.iter().copied().zip(opened));
            ids.extend(submitted);
        }
        if outcome.is_ok() {
            self.stage.note_change();
        }
        // A client that has gone does not receive it, and its sequences are cancelled before the next step.
        let _ = accepted.send(outcome);
        Ok(())
    }

    fn beginning(&self, prompt: &[u32]) -> String {
        view::beginning(&self.tokenizer.decode(view::first(prompt)).unwrap_or_default(), prompt.len())
    }

    /// Sequences of the requests whose pages are being read.
    fn n_held(&self) -> usize {
        self.held.iter().map(|(_, request)| request.n_sequences()).sum()
    }

    /// Why this many sequences cannot be accepted, if they cannot.
    fn refusal(&self, n_sequences: usize) -> Option<Refusal> {
        if self.stop.is_some() {
            return Some(Refusal::stopping());
        }
        let (open, most) = (self.open.len() + self.n_held(), self.most_sequences);
        if open + n_sequences > most {
            self.metrics.refused.inc();
            let message =
                format!("{open} of {most} places are taken, and {n_sequences} are needed; ask again in a second");
            return Some(Refusal::full(message, 1));
        }
        None
    }

    /// Cancels a sequence without a word to its client. Its pages have been released when this returns.
    fn release(&mut self, id: SequenceId) -> Result<(), EngineError> {
        self.open.remove(&id);
        match self.serving.cancel(id) {
            // It finished in the last step, and is reported with the next one.
            Ok(()) | Err(ScheduleError::UnknownSequence(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancels the sequences whose clients have gone and those that have run out of time.
    fn cancel_unwanted(&mut self) -> Result<(), EngineError> {
        let now = Instant::now();
        let stopped = self.stop.is_some_and(|until| until <= now);
        let unwanted = |open: &ClientSequence<'_>| open.events.is_closed() || stopped || open.until <= now;
        let ids: Vec<SequenceId> = self.open.iter().filter(|(_, open)| unwanted(open)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(open) = self.open.remove(&id) {
                let refusal = if stopped { Refusal::stopping() } else { Refusal::too_slow() };
                self.close(id, &open, Err(refusal), FinishReason::Cancelled);
            }
            self.release(id)?;
        }
        Ok(())
    }

    /// Cancels a sequence and sends its client the output so far. Returns whether there is such a sequence.
    fn cancel(&mut self, id: SequenceId) -> Result<bool, EngineError> {
        let Some(mut open) = self.open.remove(&id) else { return Ok(false) };
        let (outcome, reason) = open.finish(FinishReason::Cancelled);
        self.close(id, &open, outcome, reason);
        self.release(id)?;
        Ok(true)
    }

    /// Counts the end of a sequence, and sends it to its client, or why the sequence has failed.
    fn close(
        &mut self,
        id: SequenceId,
        open: &ClientSequence<'_>,
        outcome: Result<Piece, Refusal>,
        reason: FinishReason,
    ) {
        let (new_tokens, cached) = (open.detokenizer.n_tokens(), open.cached.unwrap_or(0));
        let end = Some(Finished { reason, new_tokens, cached });
        // Counted first, so that a client that has its answer also finds it in the counters.
        self.metrics.end(reason, open.arrived.elapsed());
        // A client that has gone does not receive it.
        let _ = open.events.send(outcome.map(|piece| Output { index: open.index, piece, end }));
        self.stage.note_end(|| open.ended_view(id, reason));
    }

    fn send(&mut self, step: Step) -> Result<(), EngineError> {
        let Step { chunks, new_tokens, ends, scores, generated, mut logits, .. } = step;
        self.chunks = chunks;
        self.stage.note_change();
        let running = self.serving.scheduler().running().map(|(sequence, _)| sequence);
        for sequence in running.chain(generated.iter().map(|ended| &ended.sequence)) {
            note_begin(&mut self.open, self.metrics, sequence);
        }
        for (id, scores) in scores {
            if let Some(open) = self.open.get_mut(&id) {
                open.scores = Some(scores);
            }
        }
        for NextToken { sequence: id, token } in ends {
            let Some(open) = self.open.get_mut(&id).filter(|open| open.is_scored) else { continue };
            let top = open.logprobs.unwrap_or(0);
            open.end = logits.remove(&id).map(|logits| (token, token_logprobs(&logits, token, top)));
        }
        let now = Instant::now();
        for NextToken { sequence: id, token } in new_tokens {
            let logits = logits.remove(&id);
            let Some(open) = self.open.get_mut(&id) else { continue };
            open.note_token(self.metrics, now);
            let likely = logits.map(|logits| token_logprobs(&logits, token, open.logprobs.unwrap_or(0)));
            let (outcome, reason) = match open.detokenizer.push(token, likely) {
                Ok((piece, false)) => {
                    open.send(piece);
                    continue;
                }
                Ok((piece, true)) => (Ok(open.with_scores(piece)), FinishReason::EndOfText),
                Err(error) => (Err(Refusal::failed(error.to_string())), FinishReason::Failed),
            };
            if let Some(open) = self.open.remove(&id) {
                self.close(id, &open, outcome, reason);
            }
            self.release(id)?;
        }
        generated.into_iter().for_each(|generated| self.end(generated));
        Ok(())
    }

    fn end(&mut self, generated: SequenceOutput) {
        let SequenceOutput { sequence, end, .. } = generated;
        let Some(mut open) = self.open.remove(&sequence.id) else { return };
        let (outcome, reason) = match end {
            // Its client has had the end already.
            Ok(FinishReason::Cancelled) => return,
            Ok(reason) => open.finish(reason),
            Err(error) => (Err(Refusal::failed(error.to_string())), FinishReason::Failed),
        };
        if outcome.is_ok() && open.newest.is_none() && sequence.counters.computed > 0 {
            // Its prompt was computed, but it has no token: it was scored, or ended at once.
            self.metrics.prompt_tokens.inc_by(open.n_prompt as u64);
        }
        self.close(sequence.id, &open, outcome, reason);
    }

    /// Sends a view of the pages to those who asked for one.
    fn show(&mut self) {
        let Engine { serving, slab, open, chunks, stage, .. } = self;
        stage.show(|page_size| {
            View::of(serving, slab.borrow().pool(), page_size, chunks, |sequence| {
                open.get(&sequence.id).map_or_else(Words::default, ClientSequence::words)
            })
        });
    }

    fn update_metrics(&self) {
        let (scheduler, totals, metrics) = (self.serving.scheduler(), self.serving.totals(), self.metrics);
        {
            let slab = self.slab.borrow();
            let (pool, cached) = (slab.pool(), scheduler.prefixes().n_evictable(slab.pool()));
            let free = pool.n_free();
            metrics.set_pages([free, cached, pool.n_pages().saturating_sub(free + cached)]);
        }
        let unfinished = scheduler.running().map(|(sequence, _)| sequence).chain(scheduler.waiting());
        let preemptions: u64 = unfinished.map(|sequence| sequence.counters.preemptions).sum();
        metrics.running.set(scheduler.running().count() as i64);
        metrics.waiting.set((self.serving.waiting().count() + self.n_held()) as i64);
        raise(&metrics.steps, totals.steps);
        raise(&metrics.rows_projected, totals.rows_projected);
        raise(&metrics.recomputed, totals.recomputed);
        raise(&metrics.preemptions, totals.preemptions + preemptions);
        if let Some(tier) = &self.tier {
            let Counters { written, read, restored } = tier.counters();
            let pages = [("written", written), ("read", read), ("restored", restored)];
            metrics.set_page_file(pages, tier.failed().is_some());
        }
    }
}

/// Notes how much of its prompt was cached, or shared by a fork, when a sequence first runs.
fn note_begin(open: &mut HashMap<SequenceId, ClientSequence<'_>>, metrics: &Metrics, sequence: &Sequence) {
    let SequenceCounters { computed, cached, forked, .. } = sequence.counters;
    let is_first = |open: &&mut ClientSequence<'_>| open.cached.is_none() && computed as usize + forked > 0;
    let Some(open) = open.get_mut(&sequence.id).filter(is_first) else { return };
    open.cached = Some(cached);
    open.n_prompt -= forked;
    // A scored prompt was not looked up.
    if !open.is_scored {
        metrics.prefix_queries.inc_by(open.n_prompt as u64);
        metrics.prefix_hits.inc_by(cached as u64);
    }
}

impl ClientSequence<'_> {
    fn note_token(&mut self, metrics: &Metrics, now: Instant) {
        metrics.generation_tokens.inc();
        match self.newest.replace(now) {
            Some(before) => metrics.inter_token.observe((now - before).as_secs_f64()),
            None => {
                metrics.prompt_tokens.inc_by(self.n_prompt as u64);
                metrics.first_token.observe((now - self.arrived).as_secs_f64());
            }
        }
    }

    /// Sends new output, if there is any.
    fn send(&mut self, piece: Piece) {
        let piece = self.with_scores(piece);
        if !piece.is_empty() {
            let _ = self.events.send(Ok(Output { index: self.index, piece, end: None }));
        }
    }

    /// The scores of the prompt go with the first piece after they are complete.
    fn with_scores(&mut self, piece: Piece) -> Piece {
        Piece { scores: self.scores.take(), ..piece }
    }

    /// The last of its output, and why it has ended: `reason`, unless a stop string was held back or the tokenizer fails.
    fn finish(&mut self, reason: FinishReason) -> (Result<Piece, Refusal>, FinishReason) {
        let (piece, is_stopped) = match self.detokenizer.finish() {
            Ok(finished) => finished,
            Err(error) => return (Err(Refusal::failed(error.to_string())), FinishReason::Failed),
        };
        let mut piece = self.with_scores(piece);
        if is_stopped {
            return (Ok(piece), FinishReason::EndOfText);
        }
        let offset = self.detokenizer.sent_chars();
        piece.end = self.end.take().map(|(id, likely)| Token { id, offset, likely: Some(likely) });
        (Ok(piece), reason)
    }

    /// Its characters, as far as they were sent.
    fn words(&self) -> Words {
        Words { prompt: self.begins.clone(), text: view::newest(self.detokenizer.sent()) }
    }

    /// What the page view shows of it after its end.
    fn ended_view(&self, id: SequenceId, reason: FinishReason) -> EndedView {
        let Words { prompt, text } = self.words();
        EndedView { id: id.0, at: 0, prompt, text, new_tokens: self.detokenizer.n_tokens(), reason: reason.as_str() }
    }
}

/// Submits the sequences of a prompt. On an error, none of them is left.
fn submit(serving: &mut Serving<'_>, new: NewPrompt) -> Result<Vec<SequenceId>, ServingError> {
    let NewPrompt { tokens, samples, max_new_tokens, stop_rules, logprobs, is_scored, .. } = new;
    let samplers = samples.into_iter().map(Sampler::new);
    let ids = if is_scored {
        // Each has scores of its own, so each computes the prompt. If one of them is accepted, all are.
        let top = logprobs.unwrap_or(0);
        samplers
            .map(|sampler| serving.submit_scored(tokens.clone(), max_new_tokens, sampler, top))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        serving.submit_samples(tokens, max_new_tokens, samplers.collect())?
    };
    for id in &ids {
        serving.set_stop_rules(*id, stop_rules.clone());
        if logprobs.is_some() {
            serving.keep_logits(*id);
        }
    }
    Ok(ids)
}

/// Why a sequence was not accepted.
fn refusal_of(error: &ServingError) -> Refusal {
    let message = error.to_string();
    match error {
        ServingError::Model(StepError::UnknownToken { .. } | StepError::NoTokens) => {
            Refusal::of_field("prompt", message)
        }
        ServingError::Schedule(ScheduleError::NoPrompt) => Refusal::of_field("prompt", message),
        ServingError::Model(StepError::TooLong { .. }) | ServingError::Schedule(ScheduleError::NeverFits { .. }) => {
            Refusal::too_long("max_tokens", message)
        }
        _ => Refusal::failed(message),
    }
}
