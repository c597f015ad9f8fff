//! One sequence with drafts, a step at a time: what was drafted, what was accepted, and the pages that the target's
//! cache has.

use page_by_page::cache::KvCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation};
use page_by_page::experiments::StubbornDrafter;
use page_by_page::generation::drafting::{AcceptRule, DraftCounters};
use page_by_page::generation::sampler::Sampler;
use page_by_page::generation::{CachedModel, Draft, Drafter};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::serving::schedule::{FinishReason, Sequence, SequenceId};
use page_by_page::serving::view::{self, FinishedView, PoolView, SequenceView};
use serde_json::{Value, json};

use crate::session::{Settings, Start};
use crate::shared_pool::text_of;

/// A sequence, the caches of both models, and what its steps have done.
pub struct Speculating {
    models: [&'static Model; 2],
    tokenizer: &'static Tokenizer,
    drafts: usize,
    page_size: usize,
    slab: SharedSlab,
    /// The target's cache, then the draft model's, which has a slab of its own.
    caches: [PagedCache; 2],
    sequence: Option<Speculated>,
    started: u64,
    /// Whether the mistake is on that the draft model's cache keeps rejected tokens.
    keeps_rejected: bool,
}

struct Speculated {
    sequence: Sequence,
    prompt: String,
    end_of_text: &'static [u32],
    sampler: Sampler,
    output: TextStream<'static>,
    counters: DraftCounters,
    /// The draft model's tokens, where it keeps those that were rejected.
    drafted: Vec<u32>,
    /// What the newest step drafted, and its new tokens: the accepted ones, then the target's own.
    newest: Value,
    reason: Option<FinishReason>,
}

impl Speculating {
    /// An empty cache for each model.
    pub fn new(
        target: &'static Model,
        draft: &'static Model,
        tokenizer: &'static Tokenizer,
        settings: &Settings,
    ) -> Result<Self, String> {
        let Settings { pages, page_size, drafts, .. } = *settings;
        let keeps_rejected = match settings.mistake.as_deref() {
            None => false,
            Some("draft-remembers") => true,
            Some(name) => return Err(format!("{name} is no mistake that drafts can show")),
        };
        // All that is drafted stays in one cache: in each step, a token more than the drafts.
        let n_draft_pages = if keeps_rejected { pages * (drafts + 1) } else { pages };
        let slab = |model: &Model, n_pages| PageSlab::new(model.cache_layout(), page_size, n_pages).map_err(text_of);
        let (slab, of_draft) = (slab(target, pages)?, slab(draft, n_draft_pages)?);
        let caches = [PagedCache::new(&slab).map_err(text_of)?, PagedCache::new(&of_draft).map_err(text_of)?];
        let models = [target, draft];
        Ok(Speculating {
            models,
            tokenizer,
            drafts,
            page_size,
            slab,
            caches,
            sequence: None,
            started: 0,
            keeps_rejected,
        })
    }

    /// Begins a sequence, in place of the one before.
    pub fn start(&mut self, start: Start) -> Result<(), String> {
        let [target, _] = self.models;
        let tokens = self.tokenizer.encode(&start.prompt).map_err(text_of)?;
        target.validate(&tokens, start.max_new_tokens).map_err(text_of)?;
        self.caches.iter_mut().for_each(PagedCache::release);
        self.sequence = Some(Speculated {
            sequence: Sequence::new(SequenceId(self.started), tokens, start.max_new_tokens).map_err(text_of)?,
            end_of_text: &target.config().eos_token_ids,
            sampler: start.samplers(target.config().sampling).next().expect("at least one sequence"),
            prompt: start.prompt,
            output: self.tokenizer.stream(),
            counters: DraftCounters::default(),
            drafted: Vec::new(),
            newest: Value::Null,
            reason: (start.max_new_tokens == 0).then_some(FinishReason::Length),
        });
        self.started += 1;
        Ok(())
    }

    pub fn cancel(&mut self) {
        self.caches.iter_mut().for_each(PagedCache::release);
        if let Some(sequence) = &mut self.sequence {
            sequence.reason.get_or_insert(FinishReason::Abort);
        }
    }

    /// Drafts, verifies and accepts, once.
    pub fn step(&mut self) -> Result<(), String> {
        let Some(speculated) = self.sequence.as_mut().filter(|it| it.reason.is_none()) else { return Ok(()) };
        let ([target, draft], [target_cache, draft_cache]) = (self.models, &mut self.caches);
        let (mut target, mut draft) = (CachedModel::new(target, target_cache), CachedModel::new(draft, draft_cache));
        let (mut drafted, sampler) = (Draft::default(), &mut speculated.sampler);
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            drafted = draft.clone();
            AcceptRule::Match.accept(draft, rows, sampler)
        };
        let mut drafter: Box<dyn Drafter + '_> = match self.keeps_rejected {
            true => Box::new(StubbornDrafter { model: &mut draft, tokens: &mut speculated.drafted }),
            false => Box::new(DraftModel::new(&mut draft)),
        };
        let mut speculation = Speculation { target: &mut target, drafter: &mut *drafter, accept: &mut accept };
        // A step can add one token more than it drafts.
        let sequence = &speculated.sequence;
        let drafts = self.drafts.min(sequence.max_new_tokens - sequence.new_tokens().len() - 1);
        let new_tokens = speculation.step(&sequence.tokens, drafts, speculated.end_of_text).map_err(text_of)?;
        drop(drafter);
        speculated.note(&drafted, &new_tokens, self.tokenizer)?;
        if speculated.reason.is_some() {
            // Bytes that never became a character show as `�`.
            let _ = speculated.output.finish();
            self.caches.iter_mut().for_each(PagedCache::release);
        }
        Ok(())
    }

    /// The state now, with the newest step's `draft` and the `counters` of all.
    pub fn view(&self) -> Value {
        let mut view = PoolView {
            page_size: self.page_size,
            owners: view::owners(self.slab.borrow().pool()),
            token_budget: self.drafts + 1,
            max_running: 1,
            ..PoolView::default()
        };
        let Some(sequence) = &self.sequence else { return json!(view) };
        view.steps = sequence.counters.target_passes;
        match sequence.reason {
            None => view.sequences.push(sequence.running(&self.caches[0])),
            Some(reason) => view.finished.push(sequence.ended(reason)),
        }
        let mut view = json!(view);
        view["counters"] = json!(sequence.counters);
        view["draft"] = sequence.newest.clone();
        view
    }
}

impl Speculated {
    /// Adds the tokens of a step, and notes how they came about.
    fn note(&mut self, drafted: &Draft, new_tokens: &[u32], tokenizer: &Tokenizer) -> Result<(), String> {
        self.counters.count(drafted, new_tokens.len());
        let pieces = |tokens: &[u32]| {
            tokens.iter().map(|token| tokenizer.token(*token).map_err(text_of)).collect::<Result<Vec<_>, _>>()
        };
        self.newest = json!({ "drafted": pieces(&drafted.tokens)?, "new": pieces(new_tokens)? });
        for token in new_tokens {
            if self.end_of_text.contains(token) {
                self.reason = Some(FinishReason::Stop);
                return Ok(());
            }
            self.output.push(*token).map_err(text_of)?;
            self.sequence.tokens.push(*token);
        }
        if self.sequence.new_tokens().len() == self.sequence.max_new_tokens {
            self.reason = Some(FinishReason::Length);
        }
        Ok(())
    }

    fn running(&self, cache: &PagedCache) -> SequenceView {
        SequenceView {
            id: self.sequence.id.0,
            prompt: self.prompt.clone(),
            text: view::output_preview(self.output.text()),
            prompt_tokens: self.sequence.n_prompt,
            new_tokens: self.sequence.new_tokens().len(),
            max_new_tokens: self.sequence.max_new_tokens,
            held_tokens: cache.len(),
            pages: cache.table().pages().iter().map(|page| page.0).collect(),
            ..SequenceView::default()
        }
    }

    fn ended(&self, reason: FinishReason) -> FinishedView {
        let (prompt, text) = (self.prompt.clone(), view::output_preview(self.output.text()));
        let (id, new_tokens) = (self.sequence.id.0, self.sequence.new_tokens().len());
        FinishedView { id, version: 0, prompt, text, new_tokens, reason: reason.as_str() }
    }
}
