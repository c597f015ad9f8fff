//! Sequences that share a pool, a step at a time: what a page of the book shows while they grow.

use std::rc::Rc;

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::{ScheduledChunk, Sequence, SequenceId, StepLimits};
use page_by_page::serving::view::{FinishedView, PoolView};
use page_by_page::serving::{Engine, GenerationRequest};
use serde_json::Value;

use crate::session::{Settings, Start};
use crate::side_by_side::SideBySide;

pub struct SharedPool {
    model: &'static Model,
    tokenizer: &'static Tokenizer,
    engine: Engine<'static>,
    chunks: Vec<ScheduledChunk>,
    /// The sequences that have finished since the last view.
    finished: Vec<FinishedView>,
    version: u64,
    /// The sequence that takes tokens back, once it has so many new ones, and how many.
    rewind: Option<(SequenceId, (usize, usize))>,
    /// The mistake that is switched on, and how many of its sequences have started.
    side_by_side: Option<(SideBySide, usize)>,
}

impl SharedPool {
    pub fn new(model: &'static Model, tokenizer: &'static Tokenizer, settings: &Settings) -> Result<Self, String> {
        let mistake = settings.mistake.as_deref().map(SideBySide::find).transpose()?;
        let page_size = mistake.as_ref().map_or(settings.page_size, |(scenario, _)| scenario.page_size);
        let open = || {
            let Settings { pages, token_budget, max_running, prefix_cache, .. } = *settings;
            let slab = PageSlab::new(model.cache_layout(), page_size, pages).map_err(text_of)?;
            let kind = if prefix_cache { PrefixCacheKind::Trie } else { PrefixCacheKind::None };
            let prefix_cache = kind.new_cache(page_size).map_err(text_of)?;
            let limits = StepLimits { token_budget, max_running };
            let engine =
                Engine::new(model, &slab, prefix_cache, limits, &model.config().eos_token_ids).map_err(text_of)?;
            Ok::<_, String>(engine.with_tokenizer(tokenizer))
        };
        let mut engine = open()?;
        let rewind = mistake.as_ref().and_then(|(scenario, _)| scenario.rewind).map(|rewind| (SequenceId(0), rewind));
        let side_by_side = match mistake {
            None => None,
            Some((scenario, checker)) => {
                let checker = Rc::new(checker);
                engine = engine.with_read_checker(&checker);
                Some((SideBySide::new(scenario, checker, open()?), 0))
            }
        };
        Ok(SharedPool {
            model,
            tokenizer,
            engine,
            chunks: Vec::new(),
            finished: Vec::new(),
            version: 0,
            rewind,
            side_by_side,
        })
    }

    /// Starts the sequences of the mistake that is switched on.
    pub fn start_scenario(&mut self) -> Result<(), String> {
        if let Some((pair, started)) = &mut self.side_by_side {
            *started = pair.start(&mut self.engine, self.tokenizer, *started)?;
        }
        Ok(())
    }

    /// Takes sequences in: all of them, or none.
    pub fn start(&mut self, start: Start) -> Result<(), String> {
        let prompt = self.tokenizer.encode(&start.prompt).map_err(text_of)?;
        let samplers: Vec<_> = start.samplers(self.model.config().sampling).collect();
        // Samples of one request share their prompt. Apart, each computes it.
        let requests = if start.fork { vec![samplers] } else { samplers.into_iter().map(|one| vec![one]).collect() };
        for samplers in requests {
            let request = GenerationRequest::new(prompt.clone(), start.max_new_tokens, samplers);
            let ids = self.engine.submit_request(request).map_err(text_of)?;
            self.rewind = start.rewind.map(|rewind| (ids[0], rewind)).or(self.rewind);
        }
        Ok(())
    }

    pub fn cancel(&mut self, id: u64) -> Result<(), String> {
        let finished = self.engine.cancel(SequenceId(id)).map_err(text_of)?;
        self.finished.push(FinishedView::new(&finished));
        Ok(())
    }

    pub fn step(&mut self) -> Result<(), String> {
        self.rewind_if_due()?;
        let step = self.engine.step().map_err(text_of)?;
        self.chunks = step.chunks;
        self.finished.extend(step.finished.iter().map(FinishedView::new));
        if let Some((pair, _)) = &mut self.side_by_side {
            pair.step(&self.engine, self.tokenizer)?;
        }
        self.start_scenario()
    }

    /// Before its next step, so that the view before shows what it takes back.
    fn rewind_if_due(&mut self) -> Result<(), String> {
        let Some((id, (at, n))) = self.rewind else { return Ok(()) };
        let is_due = |sequence: &Sequence| sequence.id == id && sequence.new_tokens().len() == at;
        if self.engine.scheduler().running().any(|(sequence, _)| is_due(sequence)) {
            for engine in [Some(&mut self.engine), self.side_by_side.as_mut().map(|(pair, _)| &mut pair.right)] {
                engine.map_or(Ok(()), |engine| engine.rewind(id, n)).map_err(text_of)?;
            }
            self.rewind = None;
        }
        Ok(())
    }

    /// The state now, with the sequences that have finished since the view before.
    pub fn view(&mut self) -> Value {
        self.version += 1;
        let finished = std::mem::take(&mut self.finished);
        let view = PoolView { version: self.version, finished, ..PoolView::new(&self.engine, &self.chunks) };
        let mut json = serde_json::to_value(&view).expect("a view is JSON");
        if let Some((pair, _)) = &self.side_by_side {
            json["wrong_reads"] = pair.view(&view);
        }
        json
    }
}

/// An error for the reader of the page.
pub(crate) fn text_of(error: impl std::fmt::Display) -> String {
    error.to_string()
}
