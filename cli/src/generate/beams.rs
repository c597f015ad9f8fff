//! `--beams`: the likeliest text, and those that came close.

use anyhow::{Context, Result, bail, ensure};
use page_by_page::cache::CacheError;
use page_by_page::cache::kind::CacheKind;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::decode::Limits;
use page_by_page::decode::beams::{Found, LENGTH_PENALTY, Work, search};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, StepError};
use serde::Serialize;

use super::{Generate, Timings, Tokens};
use crate::output::{
    Lines, Progress, Table, count, mib, per_second, print, print_json, rate, say_report, thousands, time,
};
use crate::require;

/// The pages, forks and beams.
const CHAPTERS: [usize; 4] = [4, 5, 6, 10];
/// Texts that the report lists, at most.
const MOST_LINES: usize = 20;
/// Characters of a text that the report shows.
const SHOWN: usize = 40;

/// The pages that all beams share.
#[derive(Clone, Copy)]
struct Room {
    page_size: usize,
    n_pages: usize,
    /// With this number no beam is ever refused one.
    always_enough: usize,
}

/// A search that is over.
struct Searched {
    prompt: Vec<u32>,
    max_new_tokens: usize,
    width: usize,
    room: Room,
    found: Vec<Found>,
    /// In words.
    texts: Vec<String>,
    work: Work,
}

impl Generate {
    /// Looks for the likeliest output with this number of beams.
    pub(super) fn search(&self, width: usize) -> Result<()> {
        self.refuse_what_no_beam_needs()?;
        let beginning = self.only_prompt("--beams")?;
        require::chapters(&CHAPTERS)?;
        let (model, tokenizer) = self.model.open(self.rows, CacheKind::Paged)?;
        let prompt = tokenizer.encode(beginning)?;
        model.check(&prompt, 0)?;
        let max_new_tokens = self.new_tokens_that_fit("", prompt.len(), model.config())?;
        require_memory(&model, prompt.len(), width)?;
        let room = self.room_for_beams(prompt.len(), max_new_tokens, width)?;
        let layout = model.kv_layout();
        require::pages(layout, room.page_size, room.n_pages)?;
        let slab = PageSlab::new(layout, room.page_size, room.n_pages)?;
        room.require_for(prompt.len(), max_new_tokens)?;

        let progress = Progress::new("searching", max_new_tokens as u64);
        let limits = Limits { max_new_tokens, end_of_text: &model.config().eos_token_ids };
        let searched = search(&model, &slab, &prompt, width, limits, &mut || progress.advance(1));
        drop(progress);
        let (found, work) = searched.map_err(|error| room.why(error))?;
        let texts = found.iter().map(|found| words(&tokenizer, &found.tokens)).collect::<Result<_>>()?;
        let searched = Searched { prompt, max_new_tokens, width, room, found, texts, work };
        if self.json {
            return print_json(&self.likeliest(beginning, &searched)?);
        }
        let best = searched.texts.first().context("the search has found no text")?;
        print(&format!("{beginning}{best}\n"))?;
        say_report(Some(&searched.table()), &self.lines_of_beams(&model, &searched)?);
        Ok(())
    }

    fn refuse_what_no_beam_needs(&self) -> Result<()> {
        ensure!(
            self.several.samples.is_none(),
            "--beams looks for the likeliest output, --samples draws several at random: use one or the other"
        );
        ensure!(
            !self.several.prefix_cache,
            "--prefix-cache is for several prompts, --beams for one: use one or the other"
        );
        self.refuse_what_is_for_one("--beams follows several: use one or the other")?;
        ensure!(
            self.sampling.temperature.is_none_or(|temperature| temperature == 0.0)
                && self.sampling.top_k.is_none()
                && self.sampling.top_p.is_none(),
            "--beams draws nothing: it takes the probabilities as the model gives them; leave out --temperature, --top-k \
             and --top-p"
        );
        ensure!(
            self.cache.kv.is_none_or(|kv| kv == CacheKind::Paged),
            "--beams follows texts that share their pages, and --kv {} has none; leave out --kv, or give --kv paged",
            self.kv()
        );
        Ok(())
    }

    fn room_for_beams(&self, n_prompt: usize, max_new_tokens: usize, width: usize) -> Result<Room> {
        let page_size = self.cache.page_size;
        ensure!(page_size > 0, CacheError::NoSlots);
        // No page of the prompt is taken twice but the last, if it is filled in part.
        let full = n_prompt / page_size;
        let each = (n_prompt + max_new_tokens).div_ceil(page_size);
        let always_enough = full.saturating_add((each - full).saturating_mul(width));
        Ok(Room { page_size, n_pages: self.cache.pages.unwrap_or(always_enough), always_enough })
    }

    /// The report for people.
    fn lines_of_beams(&self, model: &Model, searched: &Searched) -> Result<Lines> {
        let Searched { prompt, room, width, work, .. } = searched;
        let (pages, size) = (thousands(room.n_pages), count(room.page_size, "slot"));
        let peak_bytes = require::slot_bytes(model.kv_layout(), work.peak_pages * room.page_size)?;
        let decoded = (work.rows_projected as usize).saturating_sub(prompt.len());
        Ok(vec![
            ("model", self.describe_model(model)),
            ("beams", format!("{width}; score: log-probability / tokens^{LENGTH_PENALTY:?}")),
            ("prefill", format!("{} in {}", count(prompt.len(), "token"), time(work.prefill))),
            ("decode", {
                let steps = count(work.steps.saturating_sub(1), "step");
                let speed = rate(per_second(decoded, work.decode));
                format!("{} in {steps}, {}, {speed} tokens/s", count(decoded, "token"), time(work.decode))
            }),
            ("projected", count(work.rows_projected, "row")),
            ("cache", format!("paged: {} at the peak, {} copied", mib(peak_bytes), count(work.rows_copied, "row"))),
            ("pages", format!("{} of {pages} at the peak, {size} each", thousands(work.peak_pages))),
            ("chapters", require::whose_chapters(&[&CHAPTERS[..], &self.rows.chapters(CacheKind::Paged)].concat())),
        ])
    }

    fn likeliest<'a>(&'a self, beginning: &'a str, searched: &'a Searched) -> Result<Likeliest<'a>> {
        let Searched { prompt, width, room, found, texts, work, .. } = searched;
        let best = found.first().context("the search has found no text")?;
        let outputs = found.iter().zip(texts).map(|(found, text)| Output {
            text,
            generated: &found.tokens,
            finish_reason: if found.has_ended { "stop" } else { "length" },
            log_probability: found.log_probability,
            score: found.score,
        });
        let outputs: Vec<Output<'_>> = outputs.collect();
        let decoded = (work.rows_projected as usize).saturating_sub(prompt.len());
        let prefilled = (work.rows_projected as usize).min(prompt.len());
        Ok(Likeliest {
            prompt: beginning,
            text: outputs[0].text,
            tokens: Tokens { prompt, generated: &best.tokens },
            outputs,
            kv: CacheKind::Paged.to_string(),
            model: self.model.name(),
            beams: *width,
            length_penalty: LENGTH_PENALTY,
            counters: Counters {
                steps: work.steps,
                rows_projected: work.rows_projected,
                rows_copied: work.rows_copied,
            },
            pages: PagesUsed { page_size: room.page_size, pages: room.n_pages, peak: work.peak_pages },
            timings: Timings::new((prefilled, work.prefill), (decoded, work.decode)),
        })
    }
}

/// Refuses a search that there is no memory for; what the pages take is not in it.
fn require_memory(model: &Model, n_prompt: usize, width: usize) -> Result<()> {
    let vocab_size = model.config().vocab_size;
    let advice = "give fewer beams, or a shorter prompt";
    let what = format!("reading {}", count(n_prompt.max(width), "token"));
    require::memory(&what, model.step_bytes(n_prompt.max(width), width), advice)?;
    // Each token of each beam: its log-probability, and a candidate.
    let bytes = width.saturating_mul(vocab_size).saturating_mul(size_of::<f32>() + 24);
    let what = format!("choosing among {} of {}", count(vocab_size, "token"), count(width, "beam"));
    require::memory(&what, bytes, advice)
}

impl Room {
    /// Refuses a pool that cannot even hold the prompt and a new token.
    fn require_for(self, n_prompt: usize, max_new_tokens: usize) -> Result<()> {
        let needed = (n_prompt + max_new_tokens.saturating_sub(1).min(1)).div_ceil(self.page_size);
        if needed > self.n_pages && max_new_tokens > 0 {
            bail!(
                "the prompt of {} needs {} of {}, and the pool has {}; give it more (--pages), or shorten the prompt",
                count(n_prompt, "token"),
                count(needed, "page"),
                count(self.page_size, "slot"),
                thousands(self.n_pages as u64)
            );
        }
        Ok(())
    }

    fn why(self, error: StepError) -> anyhow::Error {
        match error {
            StepError::Cache(CacheError::OutOfPages { needed, free }) => anyhow::anyhow!(
                "the beams need more pages than the pool has: pages needed: {needed}, free: {free} of {}; give it more, {} are \
                 always enough (--pages), or follow fewer beams",
                thousands(self.n_pages as u64),
                thousands(self.always_enough as u64)
            ),
            error => error.into(),
        }
    }
}

impl Searched {
    fn table(&self) -> Table {
        let mut table = Table::new(3, &["text", "", "ended", "tokens", "log-probability", "score"]);
        for ((found, text), number) in self.found.iter().zip(&self.texts).zip(1..=MOST_LINES) {
            let end = match found.has_ended {
                true => "by itself".into(),
                false => format!("after {} new", thousands(self.max_new_tokens as u64)),
            };
            table.line([
                number.to_string(),
                beginning(text),
                end,
                thousands(found.tokens.len() as u64),
                format!("{:.3}", found.log_probability),
                format!("{:.4}", found.score),
            ]);
        }
        table
    }
}

/// The first words of a text, in a line.
fn beginning(text: &str) -> String {
    let line = text.trim_start().chars().map(|c| if c.is_control() { ' ' } else { c });
    let line: Vec<char> = line.take(SHOWN + 1).collect();
    if line.len() <= SHOWN { line.into_iter().collect() } else { line[..SHOWN - 1].iter().chain(&['…']).collect() }
}

fn words(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    let mut stream = tokenizer.stream();
    for token in tokens {
        stream.push(*token)?;
    }
    stream.finish()?;
    Ok(stream.text().to_string())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Likeliest<'a> {
    prompt: &'a str,
    /// The best text.
    text: &'a str,
    tokens: Tokens<'a>,
    /// All that were found, best first.
    outputs: Vec<Output<'a>>,
    kv: String,
    model: String,
    beams: usize,
    length_penalty: f64,
    counters: Counters,
    pages: PagesUsed,
    timings: Timings,
}

#[derive(Serialize)]
struct Output<'a> {
    text: &'a str,
    /// Its tokens, without the prompt.
    generated: &'a [u32],
    /// `stop` or `length`.
    finish_reason: &'static str,
    log_probability: f64,
    score: f64,
}

#[derive(Serialize)]
struct Counters {
    steps: u64,
    rows_projected: u64,
    rows_copied: u64,
}

#[derive(Serialize)]
struct PagesUsed {
    page_size: usize,
    pages: usize,
    peak: usize,
}
