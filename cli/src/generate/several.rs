//! Several prompts, or several samples of one, generated together.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use page_by_page::cache::KvLayout;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::ScheduleError;

use super::costs::Costs;
use super::growing::{Growing, Story};
use super::live::Live;
use super::{Generate, MOST_TEXTS};
use crate::output::{Progress, count, print, print_json, say, say_report};
use crate::require;

/// Tokens that a step computes, at most.
pub const MOST_TOKENS: usize = 4096;

/// An output that was asked for.
#[derive(Clone)]
pub struct Asked<'a> {
    pub beginning: &'a str,
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub seed: u64,
}

impl Asked<'_> {
    /// Tokens of prompt and output, at most.
    pub fn most(&self) -> usize {
        self.prompt.len() + self.max_new_tokens
    }
}

/// The pages that all sequences share.
pub struct Pages {
    pub slab: SharedSlab,
    pub layout: KvLayout,
    pub page_size: usize,
    pub n_pages: usize,
}

impl Generate {
    /// Generates an output for each of the prompts, all together.
    pub(super) fn run_several(&self, beginnings: &[String]) -> Result<()> {
        ensure!(
            !self.several.prefix_cache || self.kv() == CacheKind::Paged,
            "--prefix-cache keeps pages, and --kv {} has none; leave out --kv, or give --kv paged",
            self.kv()
        );
        self.refuse_what_is_for_one("several were asked for; give one prompt")?;
        let (model, tokenizer) = self.open()?;
        let sampling = self.sampling.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        require::chapters(&chapters)?;
        let mut asked = Vec::new();
        for (beginning, number) in beginnings.iter().zip(1..) {
            ensure!(!beginning.is_empty(), "text {number}: the prompt is empty; give the text a beginning");
            asked.push(self.asked(&format!("text {number}: "), beginning, &model, &tokenizer)?);
        }
        self.run_together(&asked, Inputs { model, tokenizer, sampling, chapters, are_samples: false })
    }

    /// Generates several outputs of one prompt, each with a seed of its own. In pages, they share those of the prompt.
    pub(super) fn run_samples(&self, n_samples: usize) -> Result<()> {
        ensure!(
            !self.several.prefix_cache,
            "--prefix-cache is for several prompts, --samples for one: use one or the other"
        );
        self.refuse_what_is_for_one("--samples asks for several: use one or the other")?;
        let beginning = self.only_prompt("--samples")?;
        let (model, tokenizer) = self.open()?;
        let sampling = self.sampling.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        require::chapters(&chapters)?;
        if sampling.temperature == 0.0 && n_samples > 1 {
            say("note: at temperature 0 nothing is drawn: all samples are the same");
        }
        let first = self.asked("", beginning, &model, &tokenizer)?;
        let seeds = (0..n_samples as u64).map(|sample| self.sampling.seed.wrapping_add(sample));
        let asked: Vec<Asked<'_>> = seeds.map(|seed| Asked { seed, ..first.clone() }).collect();
        self.run_together(&asked, Inputs { model, tokenizer, sampling, chapters, are_samples: true })
    }

    fn open(&self) -> Result<(Model, Tokenizer)> {
        self.model.open(self.rows, self.kv())
    }

    fn run_together(&self, asked: &[Asked<'_>], texts: Inputs) -> Result<()> {
        let Inputs { model, tokenizer, sampling, chapters, are_samples } = texts;
        let are_forks = are_samples && asked.len() > 1 && self.kv() == CacheKind::Paged;
        self.require_memory_to_read(asked, &model, are_forks)?;
        let pages = self.pages(asked, &model, are_forks)?;
        let mut growing = Growing::new(self, asked, (&model, &tokenizer), (sampling, pages.as_ref(), are_forks))?;
        let new_tokens = asked.iter().map(|text| text.max_new_tokens as u64).sum();
        let progress = self.json.then(|| Progress::new("generating", new_tokens));
        let mut live = if self.json { None } else { Live::on_terminal(asked) };
        let mut in_order = InOrder::new(asked, are_samples);
        while !growing.is_done() {
            let start = Instant::now();
            let n_new = growing.step()?;
            match &mut live {
                Some(live) => {
                    live.draw(
                        &growing,
                        pages.as_ref().map(|pages| pages.n_pages),
                        are_forks || self.several.prefix_cache,
                    );
                    if let Some(pause) = self.pause().and_then(|pause| pause.checked_sub(start.elapsed())) {
                        thread::sleep(pause);
                    }
                }
                None if !self.json => in_order.print(&growing.stories)?,
                None => {}
            }
            if let Some(progress) = &progress {
                progress.advance(n_new as u64);
            }
        }
        if let Some(live) = live {
            live.clear();
        }
        drop(progress);
        let pages = pages.as_ref();
        let (has_prefixes, share_pages) = (self.several.prefix_cache, are_forks || self.several.prefix_cache);
        let costs = Costs { sampling, growing: &growing, asked, pages, are_samples, share_pages, has_prefixes };
        if self.json {
            print_json(&costs.report(self))?;
        } else {
            in_order.print(&growing.stories)?;
            say_report(costs.table().as_ref(), &costs.lines(self, &model, &chapters));
        }
        let mut cut = costs.failed();
        let Some(last) = cut.pop() else {
            return Ok(());
        };
        cut.iter().for_each(|text| say(&format!("error: {text}")));
        bail!(last)
    }

    /// `but`: why there are several, and what to do.
    pub(super) fn refuse_what_is_for_one(&self, but: &str) -> Result<()> {
        ensure!(self.draft.drafter.is_none(), "--draft drafts for one output, and {but}");
        ensure!(!self.snapshot.is_asked(), "--save-cache and --load-cache are for the cache of one output, and {but}");
        Ok(())
    }

    /// The chapters whose code it runs. The loop of chapter 1 is for one sequence; its `argmax` chooses where nothing is drawn.
    fn chapters_of_several(&self, sampling: Sampling) -> Vec<usize> {
        let of_cache = self.kv().chapters().iter().copied();
        let of_cache = of_cache.filter(|number| *number != 1 || sampling.temperature == 0.0);
        let of_loop: &[usize] = if self.kv() == CacheKind::Paged { &[10, 11, 12] } else { &[] };
        of_cache.chain(of_loop.iter().copied()).chain(self.rows.chapters(self.kv())).collect()
    }

    /// `who`: which prompt, to begin a message with.
    fn asked<'a>(&self, who: &str, beginning: &'a str, model: &Model, tokenizer: &Tokenizer) -> Result<Asked<'a>> {
        let prompt = tokenizer.encode(beginning)?;
        let checked = model.check(&prompt, 0);
        if let (Err(error), false) = (&checked, who.is_empty()) {
            bail!("{who}{error}");
        }
        checked?;
        let max_new_tokens = self.new_tokens_that_fit(who, prompt.len(), model.config())?;
        Ok(Asked { beginning, prompt, max_new_tokens, seed: self.sampling.seed })
    }

    /// The slab, where sequences are kept in pages. `are_forks`: they share those of their prompt.
    fn pages(&self, asked: &[Asked<'_>], model: &Model, are_forks: bool) -> Result<Option<Pages>> {
        let page_size = self.cache.page_size;
        let of_each = asked.iter().map(|text| Ok(CacheSize::for_tokens(text.most(), page_size)?.n_pages));
        let of_each = of_each.collect::<Result<Vec<usize>>>()?;
        if self.kv() != CacheKind::Paged {
            return Ok(None);
        }
        let enough = match asked {
            // Samples share the full pages of their prompt.
            [text, ..] if are_forks => {
                let full = text.prompt.len() / page_size;
                full.saturating_add((of_each[0] - full).saturating_mul(asked.len()))
            }
            _ => sum_of_largest(of_each),
        };
        let n_pages = self.cache.pages.unwrap_or(enough);
        let layout = model.kv_layout();
        require::pages(layout, page_size, n_pages)?;
        let slab = PageSlab::new(layout, page_size, n_pages)?;
        for (text, number) in asked.iter().zip(1..).filter(|(text, _)| text.max_new_tokens > 0) {
            let needed = (text.most() - 1).div_ceil(page_size);
            if needed > n_pages {
                let (prompt, max_new_tokens) = (text.prompt.len(), text.max_new_tokens);
                let error = ScheduleError::NeverFits { prompt, max_new_tokens, needed, n_pages };
                bail!("text {number}: {error} (--pages)");
            }
        }
        Ok(Some(Pages { slab, layout, page_size, n_pages }))
    }

    /// Refuses prompts that there is no memory to compute.
    fn require_memory_to_read(&self, asked: &[Asked<'_>], model: &Model, are_forks: bool) -> Result<()> {
        if self.kv() == CacheKind::Contiguous {
            let slots = asked.iter().map(|text| self.cache.capacity.unwrap_or(text.most()));
            require::slots(model.kv_layout(), sum_of_largest(slots.collect()))?;
        }
        let tokens = match self.kv() {
            _ if are_forks => asked[0].prompt.len().max(asked.len()),
            // The last step recomputes all sequences.
            CacheKind::Recompute => sum_of_largest(asked.iter().map(Asked::most).collect()),
            _ => {
                let longest = asked.iter().map(|text| text.prompt.len()).max().unwrap_or(0);
                let all = sum_of_largest(asked.iter().map(|text| text.prompt.len()).collect());
                all.min(longest.max(MOST_TOKENS))
            }
        };
        let what = format!("computing {} in a step", count(tokens, "token"));
        let bytes = model.step_bytes(tokens, asked.len().min(MOST_TEXTS));
        require::memory(&what, bytes, "ask for fewer outputs, or give shorter prompts")
    }

    /// How long a step takes at least while it shows on a terminal.
    fn pause(&self) -> Option<Duration> {
        (self.several.pace > 0).then(|| Duration::from_secs(1) / self.several.pace)
    }
}

/// The sum of those that can run at once: the largest, if there are more.
fn sum_of_largest(mut sizes: Vec<usize>) -> usize {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().take(MOST_TEXTS).fold(0, usize::saturating_add)
}

/// What generating begins with.
struct Inputs {
    model: Model,
    tokenizer: Tokenizer,
    /// Of the first output.
    sampling: Sampling,
    chapters: Vec<usize>,
    /// All have the same prompt.
    are_samples: bool,
}

/// Writes outputs one after the other, each piece as soon as all before it is written.
struct InOrder<'a> {
    asked: &'a [Asked<'a>],
    /// Whether the heading names the seed.
    are_samples: bool,
    /// The output that is being written.
    place: usize,
    /// Bytes of it that are written already; `None` before its heading.
    written: Option<usize>,
}

impl<'a> InOrder<'a> {
    fn new(asked: &'a [Asked<'a>], are_samples: bool) -> Self {
        InOrder { asked, are_samples, place: 0, written: None }
    }

    fn print(&mut self, stories: &[Story<'_>]) -> Result<()> {
        let mut out = String::new();
        while let Some(story) = stories.get(self.place).filter(|story| story.has_begun()) {
            if self.written.is_none() {
                let gap = if self.place == 0 { "" } else { "\n" };
                let Asked { beginning, seed, .. } = &self.asked[self.place];
                let seed = if self.are_samples { format!(", seed {seed}") } else { String::new() };
                out.push_str(&format!("{gap}text {}{seed}\n{beginning}", self.place + 1));
            }
            let text = story.stream.text();
            out.push_str(&text[self.written.unwrap_or(0)..]);
            self.written = Some(text.len());
            if story.generated.is_none() {
                break;
            }
            out.push('\n');
            (self.place, self.written) = (self.place + 1, None);
        }
        if out.is_empty() { Ok(()) } else { print(&out) }
    }
}
