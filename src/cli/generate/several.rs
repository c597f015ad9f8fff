//! Several prompts: texts that are told in turns, and what they cost together.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use page_by_page::batch::{Batch, End, MOST_PROMPT_TOKENS, MOST_TEXTS, Memory, Stage, Text, Totals};
use page_by_page::cache::{CacheError, Usage};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::model::{Model, StepError};
use page_by_page::sampler::{Sampler, Sampling};
use page_by_page::tokenizer::{TextStream, Tokenizer};
use serde::Serialize;

use super::live::Live;
use super::{Generate, SamplingUsed, Timings, Tokens, describe, whose_chapters};
use crate::cli::kv::{Kv, Room, require_chapters};
use crate::cli::memory;
use crate::cli::progress::Progress;
use crate::cli::report::{Table, count, mib, per_second, rate, thousands, time};
use crate::cli::{model_dir, print, say};

/// Texts that the report lists one by one, at most.
const MOST_LINES: usize = 20;
/// Characters of a prompt that name its text.
const NAME: usize = 30;

/// A text that was asked for.
struct Asked<'a> {
    beginning: &'a str,
    prompt: Vec<u32>,
    max_new_tokens: usize,
}

impl Asked<'_> {
    /// Tokens of the whole text, at most.
    fn most(&self) -> usize {
        self.prompt.len() + self.max_new_tokens
    }
}

/// The pages that all texts share.
struct Pages {
    slab: SharedSlab,
    page_size: usize,
    n_pages: usize,
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
        self.refuse_what_serves_one_text()?;
        let dir = model_dir(&self.model);
        let (model, tokenizer) = (Model::open(&dir)?, Tokenizer::open(&dir)?);
        let sampling = self.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        require_chapters(&chapters)?;
        let asked = self.asked(beginnings, &model, &tokenizer)?;
        self.require_memory_to_read(&asked, &model)?;
        let pages = self.pages(&asked, &model)?;
        let memory = self.memory(&asked, &model, pages.as_ref())?;

        let mut batch = Batch::new(&model, memory, &model.config().eos_token_ids);
        for text in &asked {
            batch.add(text.prompt.clone(), text.max_new_tokens, Sampler::new(sampling))?;
        }
        let mut stories: Vec<TextStream<'_>> = asked.iter().map(|_| tokenizer.stream()).collect();
        let new_tokens = asked.iter().map(|text| text.max_new_tokens as u64).sum();
        let progress = self.json.then(|| Progress::new("writing", new_tokens));
        let mut live =
            if self.json { None } else { Live::on_terminal(asked.iter().map(|text| text.beginning).collect()) };
        let mut in_order = InOrder::new(&asked);
        while !batch.is_done() {
            let start = Instant::now();
            let new_tokens = batch.step();
            if let Some(progress) = &progress {
                progress.advance(new_tokens.len() as u64);
            }
            for new in new_tokens {
                stories[new.text].push(new.token)?;
            }
            for (text, story) in batch.texts().iter().zip(&mut stories) {
                if matches!(text.stage(), Stage::Ended(_)) {
                    story.finish()?;
                }
            }
            match &mut live {
                Some(live) => {
                    live.draw(&batch, &stories, pages.as_ref().map(|pages| pages.n_pages));
                    if let Some(pause) = self.pause().and_then(|pause| pause.checked_sub(start.elapsed())) {
                        thread::sleep(pause);
                    }
                }
                None if !self.json => in_order.print(&batch, &stories)?,
                None => {}
            }
        }
        if let Some(live) = live {
            live.clear();
        }
        drop(progress);
        let told = Told { sampling, batch: &batch, stories: &stories, asked: &asked, pages: pages.as_ref() };
        if self.json {
            print(&(serde_json::to_string(&self.stories(&told))? + "\n"))?;
        } else {
            in_order.print(&batch, &stories)?;
            self.report_several(&model, &told, &chapters);
        }
        let mut cut = told.cut();
        let Some(last) = cut.pop() else {
            return Ok(());
        };
        cut.iter().for_each(|text| say(&format!("error: {text}")));
        bail!(last)
    }

    fn refuse_what_serves_one_text(&self) -> Result<()> {
        ensure!(
            self.drafting.drafter.is_none(),
            "--draft guesses ahead for one text, and several were asked for; give one prompt, or leave out --draft"
        );
        ensure!(
            !self.saved_cache.is_asked(),
            "--save-cache and --load-cache are for the cache of one text, and several were asked for; give one prompt"
        );
        Ok(())
    }

    /// The chapters whose code it runs. The loop of chapter 1 tells one text; its `argmax` chooses where nothing is drawn.
    fn chapters_of_several(&self, sampling: Sampling) -> Vec<usize> {
        let of_cache = self.kv().chapters().iter().copied();
        of_cache.filter(|number| *number != 1 || sampling.temperature == 0.0).collect()
    }

    fn asked<'a>(&self, beginnings: &'a [String], model: &Model, tokenizer: &Tokenizer) -> Result<Vec<Asked<'a>>> {
        let mut asked = Vec::new();
        for (beginning, number) in beginnings.iter().zip(1..) {
            ensure!(!beginning.is_empty(), "text {number}: the prompt is empty; give the text a beginning");
            let prompt = tokenizer.encode(beginning)?;
            model.check(&prompt, 0).with_context(|| format!("text {number}"))?;
            let who = format!("text {number}: ");
            let max_new_tokens = self.new_tokens_that_fit(&who, prompt.len(), model.config())?;
            asked.push(Asked { beginning, prompt, max_new_tokens });
        }
        Ok(asked)
    }

    /// The slab, where the texts are kept in pages.
    fn pages(&self, asked: &[Asked<'_>], model: &Model) -> Result<Option<Pages>> {
        let page_size = self.page_size;
        let of_each = asked.iter().map(|text| Ok(Room::for_tokens(text.most(), page_size)?.n_pages));
        let enough = sum_of_largest(of_each.collect::<Result<Vec<usize>>>()?);
        if self.kv() != Kv::Paged {
            return Ok(None);
        }
        let n_pages = self.pages.unwrap_or(enough);
        let layout = model.config().kv_layout();
        memory::require_pages(layout, page_size, n_pages)?;
        let slab = PageSlab::new(layout, page_size, n_pages)?;
        for (text, number) in asked.iter().zip(1..) {
            let needed = text.prompt.len().div_ceil(page_size);
            if needed > n_pages && text.max_new_tokens > 0 {
                bail!(
                    "text {number}: its prompt of {} needs {} of {}, and the pool has {}; give it more (--pages), or \
                     shorten the prompt",
                    count(text.prompt.len(), "token"),
                    count(needed, "page"),
                    count(page_size, "slot"),
                    thousands(n_pages as u64)
                );
            }
        }
        Ok(Some(Pages { slab, page_size, n_pages }))
    }

    fn memory<'m>(&self, asked: &[Asked<'_>], model: &'m Model, pages: Option<&Pages>) -> Result<Memory<'m>> {
        if let Some(pages) = pages {
            return Ok(Memory::Shared(pages.slab.clone()));
        }
        let (kv, capacity, layout) = (self.kv(), self.capacity, model.config().kv_layout());
        if kv == Kv::Contiguous {
            let slots = asked.iter().map(|text| capacity.unwrap_or(text.most()));
            memory::require_slots(layout, sum_of_largest(slots.collect()))?;
        }
        Ok(Memory::Apart(Box::new(move |tokens| match kv {
            Kv::Flat => Some(Box::new(FlatCache::new(layout))),
            Kv::Contiguous => Some(Box::new(ContiguousCache::new(layout, capacity.unwrap_or(tokens)))),
            Kv::Recompute | Kv::Paged => None,
        })))
    }

    /// Refuses prompts that there is no memory to read.
    fn require_memory_to_read(&self, asked: &[Asked<'_>], model: &Model) -> Result<()> {
        let tokens = match self.kv() {
            // It reads all texts again in the last step.
            Kv::Recompute => sum_of_largest(asked.iter().map(Asked::most).collect()),
            _ => {
                let longest = asked.iter().map(|text| text.prompt.len()).max().unwrap_or(0);
                let all = sum_of_largest(asked.iter().map(|text| text.prompt.len()).collect());
                all.min(longest.max(MOST_PROMPT_TOKENS))
            }
        };
        let what = format!("reading {} in a step", count(tokens, "token"));
        let bytes = model.step_bytes(tokens, asked.len().min(MOST_TEXTS));
        memory::require(&what, bytes, "give fewer prompts, or shorter ones")
    }

    /// How long a step takes at least while somebody watches.
    fn pause(&self) -> Option<Duration> {
        (self.pace > 0).then(|| Duration::from_secs(1) / self.pace)
    }

    fn report_several(&self, model: &Model, told: &Told<'_>, chapters: &[usize]) {
        let config = model.config();
        let weights = model.weights().map(|weight| weight.bytes().len()).sum();
        let Totals { prefill, decode, rows_projected, most_texts, .. } = told.batch.totals();
        let mut lines = vec![
            ("model", format!("{}, {} layers, {} of weights", self.model.display(), config.n_layers, mib(weights))),
            ("sampling", describe(told.sampling)),
            ("texts", format!("{}, at most {} in a step", thousands(told.asked.len() as u64), most_texts)),
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
            ("projected", count(rows_projected as usize, "row")),
            ("cache", self.describe_usage(told.usage())),
        ];
        if let Some(pages) = told.pages {
            let peak = thousands(told.batch.totals().peak_pages as u64);
            let size = count(pages.page_size, "slot");
            lines.push(("pages", format!("{peak} of {} at the peak, {size} each", thousands(pages.n_pages as u64))));
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
        lines.push(("chapters", whose_chapters(chapters)));
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

    fn describe_usage(&self, usage: Usage) -> String {
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
        let totals = told.batch.totals();
        let Usage { tokens, slots, bytes, rows_copied } = told.usage();
        let (prefill, decode, sampling) = (totals.prefill, totals.decode, told.sampling);
        Stories {
            texts: told.stories(),
            kv: self.kv().to_string(),
            model: self.model.display().to_string(),
            seed: sampling.seed,
            sampling: SamplingUsed { temperature: sampling.temperature, top_k: sampling.top_k, top_p: sampling.top_p },
            counters: CountersOfAll {
                steps: totals.steps,
                most_texts_in_a_step: totals.most_texts,
                rows_projected: totals.rows_projected,
                rows_copied,
                tokens,
                slots,
                wasted: slots - tokens,
                bytes,
            },
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

/// Texts that were told, and what they took.
struct Told<'a> {
    sampling: Sampling,
    batch: &'a Batch<'a>,
    stories: &'a [TextStream<'a>],
    asked: &'a [Asked<'a>],
    pages: Option<&'a Pages>,
}

impl Told<'_> {
    /// What the texts held at their ends, together.
    fn usage(&self) -> Usage {
        let add = |sum: Usage, text: &Text| {
            let usage = text.usage();
            Usage {
                tokens: sum.tokens + usage.tokens,
                slots: sum.slots + usage.slots,
                bytes: sum.bytes + usage.bytes,
                rows_copied: sum.rows_copied + usage.rows_copied,
            }
        };
        self.batch.texts().iter().fold(Usage::default(), add)
    }

    /// `None` if no text has taken a page.
    fn fits(&self) -> Option<Fits> {
        let pages = self.pages?;
        let taken: usize = self.batch.texts().iter().map(Text::pages_at_end).sum();
        let n_texts = self.batch.texts().iter().filter(|text| text.pages_at_end() > 0).count();
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
        for ((text, asked), number) in self.batch.texts().iter().zip(self.asked).zip(1..) {
            let usage = text.usage();
            let end = match text.stage() {
                Stage::Ended(End::EndOfText) => "by itself".into(),
                Stage::Ended(End::Limit) => format!("after {} new", thousands(asked.max_new_tokens as u64)),
                Stage::Ended(End::Refused(_)) => "refused".into(),
                Stage::Waiting | Stage::Telling => String::new(),
            };
            let numbers = [usage.tokens, usage.slots].into_iter().chain(self.pages.map(|_| text.pages_at_end()));
            let cells = [number.to_string(), name(asked.beginning), end]
                .into_iter()
                .chain(numbers.map(|number| thousands(number as u64)));
            table.line(cells);
        }
        table
    }

    /// A line for each text that is not told to its end.
    fn cut(&self) -> Vec<String> {
        let texts = self.batch.texts().iter().zip(self.asked).zip(1..);
        let cut = texts.filter_map(|((text, asked), number)| match text.stage() {
            Stage::Ended(End::Refused(error)) => {
                let told = thousands(text.new_tokens().len() as u64);
                let of = count(asked.max_new_tokens, "new token");
                Some(format!("text {number} is cut after {told} of {of}: {}", self.why(error)))
            }
            _ => None,
        });
        cut.collect()
    }

    fn why(&self, error: &StepError) -> String {
        match (error, self.pages) {
            (StepError::Cache(CacheError::OutOfPages { needed, free }), Some(pages)) => format!(
                "pages needed: {needed}, free: {free} of {}, and no other text is left to wait for; give the pool more \
                 pages (--pages), or ask for fewer tokens",
                thousands(pages.n_pages as u64)
            ),
            _ => error.to_string(),
        }
    }

    fn stories(&self) -> Vec<StoryOfMany<'_>> {
        let texts = self.batch.texts().iter().zip(self.asked).zip(self.stories);
        let story = texts.map(|((text, asked), story)| {
            let (end, error) = match text.stage() {
                Stage::Ended(End::EndOfText) => ("end of text", None),
                Stage::Ended(End::Limit) => ("limit", None),
                Stage::Ended(End::Refused(error)) => ("refused", Some(self.why(error))),
                Stage::Waiting | Stage::Telling => ("", None),
            };
            let usage = text.usage();
            StoryOfMany {
                prompt: asked.beginning,
                text: story.text(),
                tokens: Tokens { prompt: &asked.prompt, new: text.new_tokens() },
                end,
                error,
                held: Held { tokens: usage.tokens, slots: usage.slots, pages: text.pages_at_end() },
            }
        });
        story.collect()
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<PagesUsed>,
    timings: Timings,
}

#[derive(Serialize)]
struct StoryOfMany<'a> {
    prompt: &'a str,
    text: &'a str,
    tokens: Tokens<'a>,
    /// Why it ended: `end of text`, `limit`, `refused`.
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
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
    tokens: usize,
    slots: usize,
    wasted: usize,
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
    /// The text that is being written.
    place: usize,
    /// Bytes of it that are written already; `None` before its heading.
    written: Option<usize>,
}

impl<'a> InOrder<'a> {
    fn new(asked: &'a [Asked<'a>]) -> Self {
        InOrder { asked, place: 0, written: None }
    }

    fn print(&mut self, batch: &Batch<'_>, stories: &[TextStream<'_>]) -> Result<()> {
        let mut out = String::new();
        while let Some(text) = batch.texts().get(self.place) {
            if *text.stage() == Stage::Waiting {
                break;
            }
            if self.written.is_none() {
                let gap = if self.place == 0 { "" } else { "\n" };
                out.push_str(&format!("{gap}text {}\n{}", self.place + 1, self.asked[self.place].beginning));
            }
            let story = stories[self.place].text();
            out.push_str(&story[self.written.unwrap_or(0)..]);
            self.written = Some(story.len());
            if !matches!(text.stage(), Stage::Ended(_)) {
                break;
            }
            out.push('\n');
            (self.place, self.written) = (self.place + 1, None);
        }
        if out.is_empty() { Ok(()) } else { print(&out) }
    }
}
