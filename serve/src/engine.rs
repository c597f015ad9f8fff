//! The engine's thread: it alone has the slab, the prefix cache and the scheduler, and takes one step of the model after the
//! other as long as there is a text.
//!
//! ```text
//!   before a step    take in what was sent meanwhile; end the texts that nobody waits for any more
//!                    (a request whose pages lie in a file is taken in when they have been read)
//!   the step         the loop of chapter 12: plan, compute, pick, settle
//!   after it         tell each new token to whoever waits for it; note what it cost; show the pages to whoever looks
//! ```

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::metrics::{Metrics, PagesNow, raise};
use super::refusal::Refusal;
use super::talk::{Asked, Command, Ended, Event, Piece, Submission, Token};
use super::voice::{Heard, Voice};
use super::watching::Stage;
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::decode::sampler::Sampler;
use page_by_page::decode::scoring::{Likely, likely};
use page_by_page::disk::tier::{Counters, Tier, TierError};
use page_by_page::model::StepError;
use page_by_page::model::tokenizer::{Tokenizer, TokenizerError};
use page_by_page::serving::schedule::{FinishReason, NextToken, ScheduleError, ScheduledChunk, SequenceId};
use page_by_page::serving::view::{self, EndedView, View, Words};
use page_by_page::serving::{Generated, Serving, ServingError, Step};

/// Writes the texts of all requests.
pub struct Engine<'m> {
    serving: Serving<'m>,
    slab: SharedSlab,
    tokenizer: &'m Tokenizer,
    metrics: &'m Metrics,
    /// Texts that may wait or run.
    most_texts: usize,
    /// Pages beyond those of memory.
    tier: Option<Tier>,
    /// Requests whose pages are being read, in the order in which they came.
    held: VecDeque<Held>,
    open: HashMap<SequenceId, Open<'m>>,
    /// Set when no more texts are taken in.
    stop: Option<Instant>,
    /// The turns of the last step.
    turns: Vec<ScheduledChunk>,
    /// What those see who watch the pages.
    stage: Stage,
}

/// A request whose pages are being read.
struct Held {
    /// What the last of them come with.
    ticket: u64,
    submission: Submission,
}

/// A text that somebody waits for.
struct Open<'m> {
    /// Its place in its request.
    text: usize,
    events: UnboundedSender<Event>,
    until: Instant,
    voice: Voice<'m>,
    logprobs: Option<usize>,
    /// Whether its prompt is scored.
    is_scored: bool,
    /// The scores, from when they are complete to the next piece.
    scores: Option<Vec<Likely>>,
    /// What has ended a text whose prompt is scored.
    end: Option<(u32, Likely)>,
    came: Instant,
    /// When it got its newest token.
    newest: Option<Instant>,
    n_prompt: usize,
    /// The first tokens of its prompt, and what they say, once somebody has looked.
    first: Box<[u32]>,
    begins: OnceCell<String>,
    /// Tokens of its prompt that the prefix cache held, once it has begun.
    cached: Option<usize>,
}

/// Why the engine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The scheduler's plans cannot be carried out.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The scheduler does not know a text of its own.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Pages cannot come from their file, nor go to it.
    #[error(transparent)]
    Pages(#[from] TierError),
}

impl<'m> Engine<'m> {
    /// An engine without texts. `slab`: the one of `serving`. `tier`: what is behind its prefix cache, if anything is.
    /// `most_texts`: that may wait or run at the same time.
    pub fn new(
        serving: Serving<'m>,
        slab: &SharedSlab,
        tier: Option<Tier>,
        tokenizer: &'m Tokenizer,
        metrics: &'m Metrics,
        most_texts: usize,
        stage: Stage,
    ) -> Self {
        let (slab, held, open, turns) = (slab.clone(), VecDeque::new(), HashMap::new(), Vec::new());
        Engine { serving, slab, tokenizer, metrics, most_texts, tier, held, open, stop: None, turns, stage }
    }

    /// Does what it is told, until it is told to stop and the last text has ended, or nobody is left to tell it anything.
    ///
    /// # Errors
    /// [`EngineError`]. The texts that were open have no end then.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), EngineError> {
        self.note_state();
        loop {
            if self.is_idle() {
                if self.stop.is_some() {
                    return Ok(());
                }
                match commands.recv() {
                    Ok(command) => self.obey(command)?,
                    Err(RecvError) => return Ok(()),
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command)?;
            }
            self.begin_arrived()?;
            self.end_the_unwanted()?;
            if !self.is_idle() {
                let step = self.serving.step()?;
                if let Some(tier) = &mut self.tier {
                    tier.keep(self.serving.scheduler(), &step.generated)?;
                }
                self.tell(step)?;
            }
            self.note_state();
            self.show();
        }
    }

    fn is_idle(&self) -> bool {
        self.serving.is_done() && self.open.is_empty() && self.held.is_empty()
    }

    fn obey(&mut self, command: Command) -> Result<(), EngineError> {
        match command {
            Command::Look(look) => self.stage.ask(look),
            Command::End { text, is_known } => drop(is_known.send(self.end_for_all(text)?)),
            Command::Stop { until } => self.stop = Some(until),
            Command::Submit(submission) => {
                if let Some(refusal) = self.refusal(submission.texts.len()) {
                    let _ = submission.accepted.send(Err(refusal));
                } else if let Some(ticket) = self.ask_for_pages(&submission.texts)? {
                    self.held.push_back(Held { ticket, submission });
                } else {
                    self.begin(submission)?;
                }
            }
        }
        Ok(())
    }

    /// Asks for what a file has of these texts and memory has not; what the last pages come with, if there are any.
    fn ask_for_pages(&mut self, texts: &[Asked]) -> Result<Option<u64>, EngineError> {
        let Some(tier) = &mut self.tier else { return Ok(None) };
        let mut last = None;
        // A prompt that is scored is computed, whatever there is of it.
        for asked in texts.iter().filter(|asked| !asked.is_scored) {
            last = tier.ask(&asked.prompt)?.or(last);
        }
        Ok(last)
    }

    /// Takes in the requests whose pages have been read. Where there is nothing else to do, the next pages are waited for.
    fn begin_arrived(&mut self) -> Result<(), EngineError> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        for ticket in tier.arrived(self.serving.is_done() && !self.held.is_empty())? {
            if self.held.front().is_some_and(|held| held.ticket == ticket)
                && let Some(held) = self.held.pop_front()
            {
                self.begin(held.submission)?;
            }
        }
        Ok(())
    }

    /// Takes a request in, or says why not.
    fn begin(&mut self, submission: Submission) -> Result<(), EngineError> {
        let Submission { texts, events, accepted, came, until } = submission;
        let taken = self.submit(texts, &events, came, until)?;
        // Nobody may be there to hear it: then nobody is there for the texts either.
        let _ = accepted.send(taken);
        Ok(())
    }

    /// Texts of the requests whose pages are being read.
    fn n_held(&self) -> usize {
        self.held.iter().map(|held| held.submission.texts.len()).sum()
    }

    /// Why so many texts cannot be taken in, if they cannot.
    fn refusal(&self, texts: usize) -> Option<Refusal> {
        if self.stop.is_some() {
            return Some(Refusal::stopping());
        }
        let (open, most) = (self.open.len() + self.n_held(), self.most_texts);
        if open + texts > most {
            self.metrics.refused.inc();
            let message = format!("{open} of {most} places are taken, and {texts} are needed; ask again in a second");
            return Some(Refusal::full(message, 1));
        }
        None
    }

    /// Takes all of these texts in, or none.
    fn submit(
        &mut self,
        texts: Vec<Asked>,
        events: &UnboundedSender<Event>,
        came: Instant,
        until: Instant,
    ) -> Result<Result<(), Refusal>, EngineError> {
        let mut ids = Vec::new();
        for (text, asked) in texts.into_iter().enumerate() {
            let Asked { prompt, max_new_tokens, sampling, stops, logprobs, is_scored } = asked;
            let (n_prompt, first) = (prompt.len(), view::first(&prompt).into());
            let (sampler, top) = (Sampler::new(sampling), logprobs.unwrap_or(0));
            let taken = match is_scored {
                true => self.serving.submit_scored(prompt, max_new_tokens, sampler, top),
                false => self.serving.submit(prompt, max_new_tokens, sampler),
            };
            let id = match taken {
                Ok(id) => id,
                Err(error) => {
                    ids.into_iter().try_for_each(|id| self.forget(id))?;
                    return Ok(Err(refusal_of(&error)));
                }
            };
            if logprobs.is_some() {
                self.serving.keep_logits(id);
            }
            let (events, voice) = (events.clone(), Voice::new(self.tokenizer, stops));
            let open = Open {
                text,
                events,
                until,
                voice,
                logprobs,
                is_scored,
                scores: None,
                end: None,
                came,
                newest: None,
                n_prompt,
                first,
                begins: OnceCell::new(),
                cached: None,
            };
            self.open.insert(id, open);
            ids.push(id);
        }
        self.stage.note_change();
        Ok(Ok(()))
    }

    /// Ends a text that nobody is to hear of any more. Its pages are free when this returns.
    fn forget(&mut self, id: SequenceId) -> Result<(), EngineError> {
        self.open.remove(&id);
        match self.serving.cancel(id) {
            // It has ended in the step before, and is reported with the next one.
            Ok(()) | Err(ScheduleError::UnknownSequence(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the texts whose clients have gone, and those whose time is over.
    fn end_the_unwanted(&mut self) -> Result<(), EngineError> {
        let now = Instant::now();
        let stopped = self.stop.is_some_and(|until| until <= now);
        let unwanted = |open: &Open<'_>| open.events.is_closed() || stopped || open.until <= now;
        let ids: Vec<SequenceId> = self.open.iter().filter(|(_, open)| unwanted(open)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(open) = self.open.get(&id) {
                let refusal = if stopped { Refusal::stopping() } else { Refusal::too_slow() };
                // Whoever has gone does not hear it.
                let _ = open.events.send(Event::Failed(refusal));
                self.metrics.end("abort", open.came.elapsed());
                self.stage.note_end(|| open.last_seen(id, "abort", self.tokenizer));
            }
            self.forget(id)?;
        }
        Ok(())
    }

    /// Ends a text for whoever waits for it: they get what there is of it. Whether there is such a text.
    fn end_for_all(&mut self, id: SequenceId) -> Result<bool, EngineError> {
        let Some(mut open) = self.open.remove(&id) else { return Ok(false) };
        match open.voice.finish() {
            Ok((mut piece, _)) => {
                piece.scores = open.scores.take();
                self.note_end(id, &open, piece, "abort");
            }
            Err(error) => drop(open.events.send(Event::Failed(Refusal::failed(error.to_string())))),
        }
        self.forget(id)?;
        Ok(true)
    }

    /// Tells and counts the end of a text.
    fn note_end(&mut self, id: SequenceId, open: &Open<'_>, piece: Piece, reason: &'static str) {
        let _ = open.events.send(Event::End { text: open.text, piece, end: open.ended(reason) });
        self.metrics.end(reason, open.came.elapsed());
        self.stage.note_end(|| open.last_seen(id, reason, self.tokenizer));
    }

    /// Tells what came of a step.
    fn tell(&mut self, step: Step) -> Result<(), EngineError> {
        let Step { chunks: turns, new_tokens, ends, scores, generated, mut logits, .. } = step;
        self.turns = turns;
        self.stage.note_change();
        for (text, _) in self.serving.scheduler().running() {
            note_begin(&mut self.open, self.metrics, text.id, text.counters.cached);
        }
        for ended in &generated {
            if ended.sequence.counters.computed > 0 {
                note_begin(&mut self.open, self.metrics, ended.sequence.id, ended.sequence.counters.cached);
            }
        }
        for (id, scores) in scores {
            if let Some(open) = self.open.get_mut(&id) {
                open.scores = Some(scores);
            }
        }
        for NextToken { sequence: id, token } in ends {
            let Some(open) = self.open.get_mut(&id).filter(|open| open.is_scored) else { continue };
            let top = open.logprobs.unwrap_or(0);
            open.end = logits.remove(&id).map(|logits| (token, likely(&logits, token, top)));
        }
        let now = Instant::now();
        for NextToken { sequence: id, token } in new_tokens {
            let logits = logits.remove(&id);
            let Some(open) = self.open.get_mut(&id) else { continue };
            open.note_token(self.metrics, now);
            let likely = logits.map(|logits| likely(&logits, token, open.logprobs.unwrap_or(0)));
            match open.voice.push(token, likely) {
                Ok(Heard::Piece(mut piece)) => {
                    piece.scores = open.scores.take();
                    if !piece.is_empty() {
                        drop(open.events.send(Event::Piece { text: open.text, piece }));
                    }
                }
                Ok(Heard::Stopped(mut piece)) => {
                    if let Some(mut open) = self.open.remove(&id) {
                        piece.scores = open.scores.take();
                        self.note_end(id, &open, piece, "stop");
                    }
                    self.forget(id)?;
                }
                Err(error) => self.fail(id, &error)?,
            }
        }
        generated.into_iter().try_for_each(|generated| self.end(generated))
    }

    /// A text has ended by itself.
    fn end(&mut self, generated: Generated) -> Result<(), EngineError> {
        let Generated { sequence: text, end, .. } = generated;
        let Some(mut open) = self.open.remove(&text.id) else { return Ok(()) };
        let reason = match end {
            Ok(FinishReason::EndOfText) => "stop",
            Ok(FinishReason::Limit) => "length",
            Ok(FinishReason::Cancelled) => return Ok(()),
            Err(error) => {
                let _ = open.events.send(Event::Failed(Refusal::failed(error.to_string())));
                self.metrics.end("error", open.came.elapsed());
                self.stage.note_end(|| open.last_seen(text.id, "error", self.tokenizer));
                return Ok(());
            }
        };
        if open.newest.is_none() && text.counters.computed > 0 {
            // It has read its prompt, for the scores or for an end of text.
            self.metrics.prompt_tokens.inc_by(open.n_prompt as u64);
        }
        match open.voice.finish() {
            Ok((mut piece, is_stopped)) => {
                piece.scores = open.scores.take();
                let end = open.end.take().filter(|_| !is_stopped);
                piece.end = end.map(|(id, likely)| Token { id, offset: open.voice.told_chars(), likely: Some(likely) });
                self.note_end(text.id, &open, piece, if is_stopped { "stop" } else { reason });
                Ok(())
            }
            Err(error) => {
                let id = text.id;
                self.open.insert(id, open);
                self.fail(id, &error)
            }
        }
    }

    /// The tokenizer does not know what a text says.
    fn fail(&mut self, id: SequenceId, error: &TokenizerError) -> Result<(), EngineError> {
        if let Some(open) = self.open.get(&id) {
            let _ = open.events.send(Event::Failed(Refusal::failed(error.to_string())));
            self.metrics.end("error", open.came.elapsed());
            self.stage.note_end(|| open.last_seen(id, "error", self.tokenizer));
        }
        self.forget(id)
    }

    /// Shows the pages to those who look.
    fn show(&mut self) {
        let Engine { serving, slab, tokenizer, open, turns, stage, .. } = self;
        stage.show(|page_size| {
            View::of(serving, slab.borrow().pool(), page_size, turns, |text| {
                open.get(&text.id).map_or_else(Words::default, |open| open.words(tokenizer))
            })
        });
    }

    /// Notes what there is now.
    fn note_state(&self) {
        let scheduler = self.serving.scheduler();
        let pages = {
            let slab = self.slab.borrow();
            let (pool, cached) = (slab.pool(), scheduler.prefixes().n_evictable(slab.pool()));
            let free = pool.n_free();
            PagesNow { free, cached, used: pool.n_pages().saturating_sub(free + cached) }
        };
        let totals = self.serving.totals();
        let open: u64 = scheduler
            .running()
            .map(|(text, _)| text)
            .chain(scheduler.waiting())
            .map(|text| text.counters.preemptions)
            .sum();
        let metrics = self.metrics;
        metrics.running.set(scheduler.running().count() as i64);
        metrics.waiting.set((scheduler.waiting().count() + self.n_held()) as i64);
        metrics.set_pages(pages);
        raise(&metrics.steps, totals.steps);
        raise(&metrics.rows_projected, totals.rows_projected);
        raise(&metrics.recomputed, totals.recomputed);
        raise(&metrics.preemptions, totals.preemptions + open);
        if let Some(tier) = &self.tier {
            let Counters { written, read, brought_back } = tier.counters();
            let pages = [("written", written), ("read", read), ("restored", brought_back)];
            metrics.set_page_file(pages, tier.failed().is_some());
        }
    }
}

/// Notes that a text has begun, if it has just done so.
fn note_begin(open: &mut HashMap<SequenceId, Open<'_>>, metrics: &Metrics, id: SequenceId, found: usize) {
    if let Some(open) = open.get_mut(&id).filter(|open| open.cached.is_none()) {
        open.cached = Some(found);
        if open.is_scored {
            // It was not looked up.
            return;
        }
        metrics.prefix_queries.inc_by(open.n_prompt as u64);
        metrics.prefix_hits.inc_by(found as u64);
    }
}

impl Open<'_> {
    fn note_token(&mut self, metrics: &Metrics, now: Instant) {
        metrics.generation_tokens.inc();
        match self.newest.replace(now) {
            Some(before) => metrics.next_token(now - before),
            None => {
                metrics.prompt_tokens.inc_by(self.n_prompt as u64);
                metrics.first_token(now - self.came);
            }
        }
    }

    /// What it says, as far as it was told.
    fn words(&self, tokenizer: &Tokenizer) -> Words {
        let says = || view::beginning(&tokenizer.decode(&self.first).unwrap_or_default(), self.n_prompt);
        Words { prompt: self.begins.get_or_init(says).clone(), text: view::newest(self.voice.told()) }
    }

    /// What those see of it who watch the pages, when it has ended.
    fn last_seen(&self, id: SequenceId, reason: &'static str, tokenizer: &Tokenizer) -> EndedView {
        let Words { prompt, text } = self.words(tokenizer);
        EndedView { id: id.0, at: 0, prompt, text, new_tokens: self.voice.n_tokens(), reason }
    }

    fn ended(&self, reason: &'static str) -> Ended {
        Ended { reason, new_tokens: self.voice.n_tokens(), cached: self.cached.unwrap_or(0) }
    }
}

/// What is wrong with a text that was not taken in.
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
