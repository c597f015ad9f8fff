//! `--draft`: what drafts tokens ahead, and which of them are accepted.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::generation::drafting::{AcceptRule, DraftCounters, DraftSource};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

use crate::memory;
use crate::model_dir;
use crate::options::{Weights, named};
use crate::output::{percent, plural, thousands};

/// Speculative decoding: what drafts, and how.
#[derive(Args)]
pub struct DraftOptions {
    /// Let a smaller model draft tokens for the model to check: a folder, storyteller-draft, or prompt-lookup, which
    /// copies what followed the newest tokens before
    #[arg(long = "draft", value_name = "DIR")]
    pub drafter: Option<PathBuf>,
    /// Tokens of a draft, at most
    #[arg(long, value_name = "K", default_value_t = 4, requires = "drafter")]
    pub draft_len: usize,
    /// Which draft tokens are accepted: those that match the model's own choice, so that the output is the same as without
    /// drafts; or a sample, with probability min(1, p/q): more are accepted, and each output is as likely as without
    #[arg(long, value_name = "RULE", value_parser = named(ACCEPT_RULES), default_value = "match", requires = "drafter")]
    pub accept: AcceptRule,
}

impl DraftOptions {
    pub fn chapters(&self) -> &'static [usize] {
        if self.drafter.is_some() { self.accept.chapters() } else { &[] }
    }

    /// Opens the drafter, if there is one, with room for `tokens`; refuses one that cannot draft for this target.
    pub fn open(
        &self,
        target: &Model,
        tokenizer: &Tokenizer,
        weights: Weights,
        kv: CacheKind,
        tokens: usize,
        page_size: usize,
    ) -> Result<Option<DraftSource>> {
        let Some(name) = &self.drafter else {
            return Ok(None);
        };
        let vocab_size = target.config().vocab_size;
        // The target's rows and the draft's, and what is made of both on the way.
        let drafted = self.draft_len.min(tokens);
        let row_bytes = vocab_size * size_of::<f32>();
        let what = format!("drafting {} ahead", plural(drafted, "token"));
        memory::ensure(&what, (drafted + 1).saturating_mul(4 * row_bytes), "give a shorter --draft-len")?;
        if name.as_os_str() == "prompt-lookup" {
            return Ok(Some(DraftSource::lookup(vocab_size)));
        }
        let dir = model_dir(name);
        let model = weights.open(&dir)?;
        let config = model.config();
        if config.vocab_size != vocab_size {
            bail!(
                "the draft model {} has a vocabulary of {}, the model one of {}: both must have the same; draft \
                 with a smaller model of the same family",
                name.display(),
                plural(config.vocab_size, "token"),
                thousands(vocab_size)
            );
        }
        if let Some(token) = tokenizer.first_difference(&Tokenizer::open(&dir)?) {
            bail!(
                "the draft model {}'s vocabulary differs from the model's: token id {token} is not the same in both; \
                 draft with a smaller model of the same family",
                name.display()
            );
        }
        ensure!(
            tokens <= config.max_positions,
            "prompt and output are {}, more than the draft model's {}; ask for fewer tokens, or draft with \
             a different model",
            plural(tokens, "token"),
            plural(config.max_positions, "position")
        );
        let size = CacheSize::for_tokens(tokens, page_size)?;
        memory::ensure_cache(kv, model.cache_layout(), size)?;
        Ok(Some(DraftSource::model(model, target, kv, size)?))
    }
}

pub fn describe(counters: DraftCounters) -> String {
    let DraftCounters { target_passes, drafted, accepted, new_tokens } = counters;
    let (accepted, drafted) = (thousands(accepted), plural(drafted, "draft token"));
    let (passes, new_tokens) = (plural(target_passes, "pass"), plural(new_tokens, "token"));
    let (share, each) = (percent(counters.acceptance_rate()), counters.target_passes_per_token());
    format!("{accepted} of {drafted} accepted, {share}; {passes} of the target for {new_tokens}, {each:.2} each")
}

pub const ACCEPT_RULES: [(&str, AcceptRule); 2] = [("match", AcceptRule::Match), ("sample", AcceptRule::Sample)];
