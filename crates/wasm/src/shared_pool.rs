//! Sequences that share a pool, a step at a time: what a page of the book shows while they grow.

use std::collections::BTreeMap;

use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::prefixes;
use page_by_page::serving::schedule::{FinishReason, NextToken, ScheduledChunk, SequenceId, StepLimits};
use page_by_page::serving::view::{self, EndedView, View, Words};
use page_by_page::serving::{SequenceOutput, Serving};
use serde_json::Value;

use crate::session::{Settings, Start};

/// A pool, and the sequences in it.
pub struct SharedPool {
    model: &'static Model,
    tokenizer: &'static Tokenizer,
    serving: Serving<'static>,
    slab: SharedSlab,
    page_size: usize,
    /// The sequences that have not finished.
    open: BTreeMap<SequenceId, Open>,
    /// The plan of the last step.
    chunks: Vec<ScheduledChunk>,
    /// Those that have finished since the last view.
    ended: Vec<EndedView>,
    version: u64,
}

/// A sequence in characters.
struct Open {
    prompt: String,
    output: TextStream<'static>,
    new_tokens: usize,
}

impl Open {
    fn words(&self) -> Words {
        Words { prompt: self.prompt.clone(), text: view::newest(self.output.text()) }
    }
}

impl SharedPool {
    /// An empty pool.
    pub fn new(model: &'static Model, tokenizer: &'static Tokenizer, settings: &Settings) -> Result<Self, String> {
        let Settings { pages, page_size, budget, running, prefix_cache, .. } = *settings;
        let slab = PageSlab::new(model.kv_layout(), page_size, pages).map_err(words)?;
        let prefixes = prefixes::prefix_cache(page_size, prefix_cache).map_err(words)?;
        let limits = StepLimits { tokens: budget, sequences: running };
        let serving = Serving::new(model, &slab, prefixes, limits, &model.config().eos_token_ids).map_err(words)?;
        let (open, chunks, ended) = Default::default();
        Ok(SharedPool { model, tokenizer, serving, slab, page_size, open, chunks, ended, version: 0 })
    }

    /// Takes sequences in: all of them, or none.
    pub fn start(&mut self, start: Start) -> Result<(), String> {
        let prompt = self.tokenizer.encode(&start.prompt).map_err(words)?;
        let mut samplers = start.samplers(self.model.config().sampling);
        if start.fork {
            let ids = self.serving.submit_samples(prompt, start.max_new_tokens, samplers.collect()).map_err(words)?;
            ids.into_iter().for_each(|id| self.note(id, start.prompt.clone()));
            return Ok(());
        }
        samplers.try_for_each(|sampler| {
            let id = self.serving.submit(prompt.clone(), start.max_new_tokens, sampler).map_err(words)?;
            self.note(id, start.prompt.clone());
            Ok(())
        })
    }

    fn note(&mut self, id: SequenceId, prompt: String) {
        self.open.insert(id, Open { prompt, output: self.tokenizer.stream(), new_tokens: 0 });
    }

    /// Ends a sequence.
    pub fn cancel(&mut self, id: u64) -> Result<(), String> {
        self.serving.cancel(SequenceId(id)).map_err(words)?;
        self.end(SequenceId(id), FinishReason::Cancelled.as_str());
        Ok(())
    }

    /// One pass of the model.
    pub fn step(&mut self) -> Result<(), String> {
        let step = self.serving.step().map_err(words)?;
        self.chunks = step.chunks;
        for NextToken { sequence, token } in step.new_tokens {
            if let Some(open) = self.open.get_mut(&sequence) {
                open.output.push(token).map_err(words)?;
                open.new_tokens += 1;
            }
        }
        for SequenceOutput { sequence, end, .. } in step.generated {
            self.end(sequence.id, end.unwrap_or(FinishReason::Failed).as_str());
        }
        Ok(())
    }

    /// Notes the end of a sequence, once.
    fn end(&mut self, id: SequenceId, reason: &'static str) {
        if let Some(mut open) = self.open.remove(&id) {
            // Bytes that never became a character show as `�`.
            let _ = open.output.finish();
            let Words { prompt, text } = open.words();
            self.ended.push(EndedView { id: id.0, at: 0, prompt, text, new_tokens: open.new_tokens, reason });
        }
    }

    /// The state now, with the sequences that have finished since the view before.
    pub fn view(&mut self) -> Value {
        self.version += 1;
        let view = View::of(&self.serving, self.slab.borrow().pool(), self.page_size, &self.chunks, |sequence| {
            self.open.get(&sequence.id).map_or_else(Words::default, Open::words)
        });
        let view = View { version: self.version, ended: std::mem::take(&mut self.ended), ..view };
        serde_json::to_value(view).expect("a view is JSON")
    }
}

pub(crate) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
