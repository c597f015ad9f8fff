//! Several prompts, or several samples of one: texts that grow together, and what they cost.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use page_by_page::cache::{KvLayout, Usage};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{FinishReason, ScheduleError};
use serde::Serialize;

use super::growing::{Growing, Story};
use super::live::Live;
use super::{Generate, MOST_TEXTS, SamplingUsed, Timings, Tokens};
use crate::caches::{Kv, Room};
use crate::output::{Progress, Table, count, describe, mib, per_second, print, print_json, rate, say, thousands, time};
use crate::require;

/// Tokens that a step computes, at most.
pub const MOST_TOKENS: usize = 4096;
/// Texts that the report lists one by one, at most.
const MOST_LINES: usize = 20;
/// Characters of a prompt that name its text.
const NAME: usize = 30;

/// A text that was asked for.
#[derive(Clone)]
pub struct Asked<'a> {
    pub beginning: &'a str,
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub seed: u64,
}

impl Asked<'_> {
    /// Tokens of the whole text, at most.
    pub fn most(&self) -> usize {
        self.prompt.len() + self.max_new_tokens
    }
}

/// The pages that all texts share.
pub struct Pages {
    pub slab: SharedSlab,
    layout: KvLayout,
    pub page_size: usize,
    pub n_pages: usize,
}

/// How many texts would find room in the memory that was there.
#[derive(Clone, Copy, Serialize)]
struct Fits {
    /// Texts like those told, with as many pages as these had at their ends, on average.
    in_pages: usize,
    /// Texts with a reservation each.
    reserved: usize,
    /// Slots of a reservation: what the longest text may need.
    slots_reserved_for_each: usize,
}

impl Generate {
    /// Tells a text for each of the prompts, all in turns.
    pub(super) fn tell_several(&self, beginnings: &[String]) -> Result<()> {
        ensure!(
            !self.several.prefix_cache || self.kv() == Kv::Paged,
            "--prefix-cache keeps pages, and --kv {} has none; leave out --kv, or give --kv paged",
            self.kv()
        );
        self.refuse_what_serves_one_text("several were asked for; give one prompt")?;
        let (model, tokenizer) = self.open()?;
        let sampling = self.sampling.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        require::chapters(&chapters)?;
        let mut asked = Vec::new();
        for (beginning, number) in beginnings.iter().zip(1..) {
            ensure!(!beginning.is_empty(), "text {number}: the prompt is empty; give the text a beginning");
            asked.push(self.asked(&format!("text {number}: "), beginning, &model, &tokenizer)?);
        }
        self.tell(&asked, Texts { model, tokenizer, sampling, chapters, are_samples: false })
    }

    /// Tells so many texts of one prompt, each with a seed of its own. In pages, they share those of the prompt.
    pub(super) fn tell_samples(&self, n_samples: usize) -> Result<()> {
        ensure!(
            !self.several.prefix_cache,
            "--prefix-cache is for several prompts, --samples for one: use one or the other"
        );
        self.refuse_what_serves_one_text("--samples tells several: use one or the other")?;
        let beginning = self.only_prompt("--samples")?;
        let (model, tokenizer) = self.open()?;
        let sampling = self.sampling.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        require::chapters(&chapters)?;
        if sampling.temperature == 0.0 && n_samples > 1 {
            say("note: at temperature 0 nothing is drawn: all samples are the same text");
        }
        let first = self.asked("", beginning, &model, &tokenizer)?;
        let seeds = (0..n_samples as u64).map(|sample| self.sampling.seed.wrapping_add(sample));
        let asked: Vec<Asked<'_>> = seeds.map(|seed| Asked { seed, ..first.clone() }).collect();
        self.tell(&asked, Texts { model, tokenizer, sampling, chapters, are_samples: true })
    }

    fn open(&self) -> Result<(Model, Tokenizer)> {
        self.model.open(self.rows, self.kv())
    }

    fn tell(&self, asked: &[Asked<'_>], texts: Texts) -> Result<()> {
        let Texts { model, tokenizer, sampling, chapters, are_samples } = texts;
        let are_forks = are_samples && asked.len() > 1 && self.kv() == Kv::Paged;
        self.require_memory_to_read(asked, &model, are_forks)?;
        let pages = self.pages(asked, &model, are_forks)?;
        let mut growing = Growing::new(self, asked, (&model, &tokenizer), (sampling, pages.as_ref(), are_forks))?;
        let new_tokens = asked.iter().map(|text| text.max_new_tokens as u64).sum();
        let progress = self.json.then(|| Progress::new("writing", new_tokens));
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
        let told = Told { sampling, growing: &growing, asked, pages, are_samples, share_pages, has_prefixes };
        if self.json {
            print_json(&self.stories(&told))?;
        } else {
            in_order.print(&growing.stories)?;
            self.report_several(&model, &told, &chapters);
        }
        let mut cut = told.cut();
        let Some(last) = cut.pop() else {
            return Ok(());
        };
        cut.iter().for_each(|text| say(&format!("error: {text}")));
        bail!(last)
    }

    /// `but`: why there are several, and what to do.
    pub(super) fn refuse_what_serves_one_text(&self, but: &str) -> Result<()> {
        ensure!(self.draft.drafter.is_none(), "--draft guesses ahead for one text, and {but}");
        ensure!(!self.snapshot.is_asked(), "--save-cache and --load-cache are for the cache of one text, and {but}");
        Ok(())
    }

    /// The chapters whose code it runs. The loop of chapter 1 tells one text; its `argmax` chooses where nothing is drawn.
    fn chapters_of_several(&self, sampling: Sampling) -> Vec<usize> {
        let of_cache = self.kv().chapters().iter().copied();
        let of_cache = of_cache.filter(|number| *number != 1 || sampling.temperature == 0.0);
        let of_loop: &[usize] = if self.kv() == Kv::Paged { &[10, 11, 12] } else { &[] };
        of_cache.chain(of_loop.iter().copied()).chain(self.rows.chapters(self.kv())).collect()
    }

    /// `who`: which text, to begin a message with.
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

    /// The slab, where the texts are kept in pages. `are_forks`: they share those of their prompt.
    fn pages(&self, asked: &[Asked<'_>], model: &Model, are_forks: bool) -> Result<Option<Pages>> {
        let page_size = self.cache.page_size;
        let of_each = asked.iter().map(|text| Ok(Room::for_tokens(text.most(), page_size)?.n_pages));
        let of_each = of_each.collect::<Result<Vec<usize>>>()?;
        if self.kv() != Kv::Paged {
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

    /// Refuses prompts that there is no memory to read.
    fn require_memory_to_read(&self, asked: &[Asked<'_>], model: &Model, are_forks: bool) -> Result<()> {
        if self.kv() == Kv::Contiguous {
            let slots = asked.iter().map(|text| self.cache.capacity.unwrap_or(text.most()));
            require::slots(model.kv_layout(), sum_of_largest(slots.collect()))?;
        }
        let tokens = match self.kv() {
            _ if are_forks => asked[0].prompt.len().max(asked.len()),
            // It reads all texts again in the last step.
            Kv::Recompute => sum_of_largest(asked.iter().map(Asked::most).collect()),
            _ => {
                let longest = asked.iter().map(|text| text.prompt.len()).max().unwrap_or(0);
                let all = sum_of_largest(asked.iter().map(|text| text.prompt.len()).collect());
                all.min(longest.max(MOST_TOKENS))
            }
        };
        let what = format!("reading {} in a step", count(tokens, "token"));
        let bytes = model.step_bytes(tokens, asked.len().min(MOST_TEXTS));
        require::memory(&what, bytes, "ask for fewer texts, or give shorter prompts")
    }

    /// How long a step takes at least while somebody watches.
    fn pause(&self) -> Option<Duration> {
        (self.several.pace > 0).then(|| Duration::from_secs(1) / self.several.pace)
    }

    fn report_several(&self, model: &Model, told: &Told<'_>, chapters: &[usize]) {
        let config = model.config();
        let weights = model.weights().map(|weight| weight.bytes().len()).sum();
        let Growing { prefill, decode, .. } = told.growing;
        let totals = told.growing.totals();
        let mut lines = vec![
            ("model", format!("{}, {} layers, {} of weights", self.model.name(), config.n_layers, mib(weights))),
            ("sampling", describe(told.sampling)),
            (
                if told.are_samples { "samples" } else { "texts" },
                format!("{}, at most {} in a step", thousands(told.asked.len() as u64), totals.most_sequences),
            ),
            ("prefill", {
                let (rows, steps) = (count(prefill.rows as usize, "token"), count(prefill.steps as usize, "step"));
                format!("{rows} in {steps}, {}", time(prefill.time))
            }),
            ("decode", {
                let answers = decode.answers as usize;
                let (tokens, steps) = (count(answers, "token"), count(decode.steps as usize, "step"));
                let speed = rate(per_second(answers, decode.time));
                format!("{tokens} in {steps}, {}, {speed} tokens/s", time(decode.time))
            }),
            (
                "projected",
                count(totals.rows_projected as usize, "row") + &told.apart(|apart| count(apart.tokens, "row")),
            ),
            ("cache", self.describe_memory(told)),
        ];
        if let Some(pages) = told.pages {
            let peak = thousands(totals.peak_pages as u64);
            let (size, of) = (count(pages.page_size, "slot"), thousands(pages.n_pages as u64));
            let apart = told.apart(|_| count(told.pages_at_ends(), "page"));
            lines.push(("pages", format!("{peak} of {of} at the peak, {size} each{apart}")));
        }
        if self.several.prefix_cache {
            let prompts: usize = told.asked.iter().map(|text| text.prompt.len()).sum();
            let found: usize = told.growing.stories.iter().map(Story::cached_tokens).sum();
            let found = thousands(found as u64);
            lines.push(("prefixes", format!("{found} of {} of the prompts found", count(prompts, "token"))));
        }
        if let (Some(pages), Some(fits)) = (told.pages, told.fits()) {
            lines.push((
                "room for",
                format!(
                    "{} like these in {}; with {} reserved for each: {}",
                    count(fits.in_pages, "text"),
                    count(pages.n_pages, "page"),
                    count(fits.slots_reserved_for_each, "slot"),
                    thousands(fits.reserved as u64)
                ),
            ));
        }
        lines.push(("chapters", require::whose_chapters(chapters)));
        say("");
        if told.asked.len() <= MOST_LINES {
            for line in told.table().render().lines() {
                say(line);
            }
            say("");
        }
        for (name, text) in lines {
            say(&format!("{name:<9}  {text}"));
        }
    }

    fn describe_memory(&self, told: &Told<'_>) -> String {
        let usage = told.usage();
        if let Some(bytes) = told.peak_bytes() {
            let copied = count(usage.rows_copied as usize, "row");
            let apart = told.apart(|apart| format!("{}, nothing copied", mib(apart.bytes)));
            return format!("{}: {} at the peak, {copied} copied{apart}", self.kv(), mib(bytes));
        }
        if self.kv() == Kv::Recompute {
            return "none, all is computed again".into();
        }
        format!(
            "{}: {} in {}, {} wasted, {}; {} copied",
            self.kv(),
            count(usage.tokens, "token"),
            count(usage.slots, "slot"),
            thousands(usage.wasted() as u64),
            mib(usage.bytes),
            count(usage.rows_copied as usize, "row")
        )
    }

    fn stories<'a>(&'a self, told: &'a Told<'a>) -> Stories<'a> {
        let totals = told.growing.totals();
        let usage = told.usage();
        let Usage { tokens, slots, bytes, rows_copied } = usage;
        let (Growing { prefill, decode, .. }, sampling) = (told.growing, told.sampling);
        Stories {
            texts: told.stories(),
            kv: self.kv().to_string(),
            model: self.model.name(),
            seed: sampling.seed,
            sampling: sampling.into(),
            counters: CountersOfAll {
                steps: totals.steps,
                most_texts_in_a_step: totals.most_sequences,
                rows_projected: totals.rows_projected,
                rows_copied,
                held: (!told.share_pages).then_some(HeldByAll { tokens, slots, wasted: usage.wasted(), bytes }),
                peak_bytes: told.peak_bytes(),
            },
            apart: told.share_pages.then(|| Apart {
                rows_projected: tokens,
                rows_copied: 0,
                pages: told.pages_at_ends(),
                bytes,
            }),
            pages: told.pages.map(|pages| PagesUsed {
                page_size: pages.page_size,
                pages: pages.n_pages,
                peak: totals.peak_pages,
                room_for: told.fits(),
            }),
            timings: Timings {
                prefill_seconds: prefill.time.as_secs_f64(),
                prefill_tokens_per_second: per_second(prefill.rows as usize, prefill.time),
                decode_seconds: decode.time.as_secs_f64(),
                decode_tokens_per_second: per_second(decode.answers as usize, decode.time),
            },
        }
    }
}

/// The sum of those that can be told at once: the largest, if there are more.
fn sum_of_largest(mut sizes: Vec<usize>) -> usize {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().take(MOST_TEXTS).fold(0, usize::saturating_add)
}

/// The beginning of a prompt, in a line.
fn name(beginning: &str) -> String {
    let line: String = beginning.chars().map(|c| if c.is_control() { ' ' } else { c }).take(NAME + 1).collect();
    if line.chars().count() <= NAME { line } else { line.chars().take(NAME - 1).chain(['…']).collect() }
}

/// What telling texts begins with.
struct Texts {
    model: Model,
    tokenizer: Tokenizer,
    /// Of the first text.
    sampling: Sampling,
    chapters: Vec<usize>,
    /// All have the same prompt.
    are_samples: bool,
}

/// Texts that were told, and what they took.
struct Told<'a> {
    sampling: Sampling,
    growing: &'a Growing<'a>,
    asked: &'a [Asked<'a>],
    pages: Option<&'a Pages>,
    /// All have the same prompt.
    are_samples: bool,
    /// A page may be that of several texts.
    share_pages: bool,
    /// They share the pages of what they begin with.
    has_prefixes: bool,
}

impl Told<'_> {
    /// What as many caches apart would have taken, if the texts have shared theirs.
    ///
    /// A cache of its own would have read all tokens of its text, into as many pages as the text's table lists at its end.
    fn apart(&self, what: impl Fn(Usage) -> String) -> String {
        let caches = count(self.asked.len(), "cache");
        if self.share_pages { format!("; {caches} apart: {}", what(self.usage())) } else { String::new() }
    }

    /// Pages that the tables of the texts list at their ends: one that several share, for each of them.
    fn pages_at_ends(&self) -> usize {
        self.growing.stories.iter().map(Story::pages_at_end).sum()
    }

    /// Bytes of all pages that had an owner at the same time, at most; `None` if no page has several owners.
    fn peak_bytes(&self) -> Option<usize> {
        let pages = self.pages.filter(|_| self.share_pages)?;
        let slots = self.growing.totals().peak_pages * pages.page_size;
        require::slot_bytes(pages.layout, slots).ok()
    }

    /// What the texts held at their ends, together: shared pages for each of their owners.
    fn usage(&self) -> Usage {
        let add = |sum: Usage, story: &Story<'_>| {
            let usage = story.usage();
            Usage {
                tokens: sum.tokens + usage.tokens,
                slots: sum.slots + usage.slots,
                bytes: sum.bytes + usage.bytes,
                rows_copied: sum.rows_copied + usage.rows_copied,
            }
        };
        self.growing.stories.iter().fold(Usage::default(), add)
    }

    /// `None` if no text has taken a page.
    fn fits(&self) -> Option<Fits> {
        let pages = self.pages.filter(|_| !self.share_pages)?;
        let taken = self.pages_at_ends();
        let n_texts = self.growing.stories.iter().filter(|story| story.pages_at_end() > 0).count();
        let slots_reserved_for_each = self.asked.iter().map(Asked::most).max()?;
        (taken > 0).then(|| Fits {
            in_pages: pages.n_pages.saturating_mul(n_texts) / taken,
            reserved: pages.n_pages.saturating_mul(pages.page_size) / slots_reserved_for_each,
            slots_reserved_for_each,
        })
    }

    fn table(&self) -> Table {
        let mut heading = vec!["text", "", "ended", "tokens", "slots"];
        heading.extend(self.pages.map(|_| "pages"));
        let mut table = Table::new(3, &heading);
        for ((story, asked), number) in self.growing.stories.iter().zip(self.asked).zip(1..) {
            let usage = story.usage();
            let end = match end(story) {
                ("end of text", _) => "by itself".into(),
                ("limit", _) => format!("after {} new", thousands(asked.max_new_tokens as u64)),
                (other, _) => other.into(),
            };
            let numbers = [usage.tokens, usage.slots].into_iter().chain(self.pages.map(|_| story.pages_at_end()));
            let which = if self.are_samples { format!("seed {}", asked.seed) } else { name(asked.beginning) };
            let cells =
                [number.to_string(), which, end].into_iter().chain(numbers.map(|number| thousands(number as u64)));
            table.line(cells);
        }
        table
    }

    /// A line for each text that is not told to its end.
    fn cut(&self) -> Vec<String> {
        let texts = self.growing.stories.iter().zip(self.asked).zip(1..);
        let cut = texts.filter_map(|((story, asked), number)| {
            let (_, error) = end(story);
            let (told, of) = (thousands(story.n_new as u64), count(asked.max_new_tokens, "new token"));
            error.map(|error| format!("text {number} is cut after {told} of {of}: {error}"))
        });
        cut.collect()
    }

    fn stories(&self) -> Vec<StoryOfMany<'_>> {
        let texts = self.growing.stories.iter().zip(self.asked);
        let story = texts.map(|(story, asked)| {
            let ((end, error), usage) = (end(story), story.usage());
            StoryOfMany {
                prompt: asked.beginning,
                seed: self.are_samples.then_some(asked.seed),
                text: story.stream.text(),
                tokens: Tokens { prompt: &asked.prompt, generated: new_tokens(story) },
                end,
                error,
                found: self.has_prefixes.then(|| story.cached_tokens()),
                held: Held { tokens: usage.tokens, slots: usage.slots, pages: story.pages_at_end() },
            }
        });
        story.collect()
    }
}

/// Why a text has ended, and what has cut it.
fn end(story: &Story<'_>) -> (&'static str, Option<String>) {
    match story.generated.as_ref().map(|generated| &generated.end) {
        Some(Ok(FinishReason::EndOfText)) => ("end of text", None),
        Some(Ok(FinishReason::Limit)) => ("limit", None),
        Some(Err(error)) => ("refused", Some(error.to_string())),
        Some(Ok(FinishReason::Cancelled)) | None => ("", None),
    }
}

fn new_tokens<'a>(story: &'a Story<'_>) -> &'a [u32] {
    story.generated.as_ref().map_or(&[], |generated| generated.sequence.new_tokens())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Stories<'a> {
    texts: Vec<StoryOfMany<'a>>,
    kv: String,
    model: String,
    seed: u64,
    sampling: SamplingUsed,
    counters: CountersOfAll,
    /// What as many caches apart would have taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<PagesUsed>,
    timings: Timings,
}

#[derive(Serialize)]
struct StoryOfMany<'a> {
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    text: &'a str,
    tokens: Tokens<'a>,
    /// Why it ended: `end of text`, `limit`, `refused`.
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Tokens of the prompt that the prefix cache held.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<usize>,
    /// At its end.
    held: Held,
}

#[derive(Serialize)]
struct Held {
    tokens: usize,
    slots: usize,
    pages: usize,
}

#[derive(Serialize)]
struct CountersOfAll {
    steps: u64,
    most_texts_in_a_step: usize,
    rows_projected: u64,
    rows_copied: u64,
    /// `None` where a page may be held by several texts.
    #[serde(flatten)]
    held: Option<HeldByAll>,
    /// Then it is this that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<usize>,
}

/// By all texts at their ends, together.
#[derive(Serialize)]
struct HeldByAll {
    tokens: usize,
    slots: usize,
    wasted: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Apart {
    rows_projected: usize,
    rows_copied: u64,
    pages: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct PagesUsed {
    page_size: usize,
    pages: usize,
    peak: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    room_for: Option<Fits>,
}

/// Writes texts one after the other, each piece as soon as all before it is written.
struct InOrder<'a> {
    asked: &'a [Asked<'a>],
    /// Whether the texts are told apart by their seeds.
    are_samples: bool,
    /// The text that is being written.
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
