//! `--beams`: the likeliest output, and those that came close.

use anyhow::{Context, Result, anyhow, bail, ensure};
use page_by_page::cache::CacheError;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::decode::Limits;
use page_by_page::decode::beams::{Found, LENGTH_PENALTY, Work, search};
use page_by_page::model::{Model, StepError};

use super::{Generate, Timings, one_line, token_ids};
use crate::output::{Lines, Object, Progress, Table, count, mib, print, print_json, say_report, text_of, thousands};
use crate::require;
use page_by_page::cache::kind::CacheKind;

/// The pages, forks and beams.
const CHAPTERS: [usize; 4] = [4, 5, 6, 10];
/// Outputs that the report lists, at most.
const MOST_LINES: usize = 20;
/// Characters of an output that the report shows.
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
    /// What was found, best first, and each in characters.
    found: Vec<(Found, String)>,
    work: Work,
}

impl Generate {
    /// Looks for the likeliest output with this number of beams.
    pub(super) fn search(&self, width: usize) -> Result<()> {
        require::chapters(&CHAPTERS)?;
        let beginning = &self.prompt[0];
        let (model, tokenizer) = self.model.open(self.rows, CacheKind::Paged)?;
        let (prompt, max_new_tokens) = self.encode("", beginning, &model, &tokenizer)?;
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
        let in_characters = |found: Found| text_of(&found.tokens, &tokenizer).map(|text| (found, text));
        let found = found.into_iter().map(in_characters).collect::<Result<Vec<_>>>()?;
        let (_, best) = found.first().context("the search has found no text")?;
        let output = format!("{beginning}{best}\n");
        let searched = Searched { prompt, max_new_tokens, width, room, found, work };
        if self.json {
            return print_json(&searched.report(self));
        }
        print(&output)?;
        say_report(Some(&searched.table()), &searched.lines(self, &model)?);
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
                thousands(self.n_pages)
            );
        }
        Ok(())
    }

    fn why(self, error: StepError) -> anyhow::Error {
        match error {
            StepError::Cache(CacheError::OutOfPages { needed, free }) => anyhow!(
                "the beams need more pages than the pool has: pages needed: {needed}, free: {free} of {}; give it more, {} are \
                 always enough (--pages), or follow fewer beams",
                thousands(self.n_pages),
                thousands(self.always_enough)
            ),
            error => error.into(),
        }
    }
}

impl Searched {
    fn timings(&self) -> Timings {
        let (rows, n_prompt) = (self.work.rows_projected as usize, self.prompt.len());
        Timings {
            prefill: (rows.min(n_prompt), self.work.prefill),
            decode: (rows.saturating_sub(n_prompt), self.work.decode),
        }
    }

    /// For `--json`. The best output stands before the list of all.
    fn report(&self, options: &Generate) -> Object {
        let Searched { prompt, width, room, found, work, .. } = self;
        let output = |(found, text): &(Found, String)| {
            Object::default()
                .with("text", text)
                .with("generated", &found.tokens)
                .with("finish_reason", if found.has_ended { "stop" } else { "length" })
                .with("log_probability", found.log_probability)
                .with("score", found.score)
        };
        let counters = Object::default()
            .with("steps", work.steps)
            .with("rows_projected", work.rows_projected)
            .with("rows_copied", work.rows_copied);
        let pages = Object::default()
            .with("page_size", room.page_size)
            .with("pages", room.n_pages)
            .with("peak", work.peak_pages);
        let (best, text) = &found[0];
        Object::default()
            .with("prompt", &options.prompt[0])
            .with("text", text)
            .with("tokens", token_ids(prompt, &best.tokens))
            .with("outputs", found.iter().map(output).collect::<Vec<_>>())
            .with("kv", CacheKind::Paged.to_string())
            .with("model", options.model.name())
            .with("beams", width)
            .with("length_penalty", LENGTH_PENALTY)
            .with("counters", counters)
            .with("pages", pages)
            .with("timings", self.timings().report())
    }

    /// The report for people.
    fn lines(&self, options: &Generate, model: &Model) -> Result<Lines> {
        let Searched { room, width, work, .. } = self;
        let (pages, size) = (thousands(room.n_pages), count(room.page_size, "slot"));
        let peak_bytes = require::slot_bytes(model.kv_layout(), work.peak_pages * room.page_size)?;
        let mut lines = vec![
            ("model", options.describe_model(model)),
            ("beams", format!("{width}; score: log-probability / tokens^{LENGTH_PENALTY:?}")),
        ];
        let steps = format!("{}, ", count(work.steps.saturating_sub(1), "step"));
        lines.extend(self.timings().lines([String::new(), steps]));
        let chapters = [&CHAPTERS[..], &options.rows.chapters(CacheKind::Paged)].concat();
        lines.extend([
            ("projected", count(work.rows_projected, "row")),
            ("cache", format!("paged: {} at the peak, {} copied", mib(peak_bytes), count(work.rows_copied, "row"))),
            ("pages", format!("{} of {pages} at the peak, {size} each", thousands(work.peak_pages))),
            ("chapters", require::whose_chapters(&chapters)),
        ]);
        Ok(lines)
    }

    fn table(&self) -> Table {
        let mut table = Table::new(3, &["sequence", "", "ended", "tokens", "log-probability", "score"]);
        for ((found, text), number) in self.found.iter().zip(1..=MOST_LINES) {
            let end = match found.has_ended {
                true => "by itself".into(),
                false => format!("after {} new", thousands(self.max_new_tokens)),
            };
            table.line([
                number.to_string(),
                one_line(text.trim_start(), SHOWN),
                end,
                thousands(found.tokens.len()),
                format!("{:.3}", found.log_probability),
                format!("{:.4}", found.score),
            ]);
        }
        table
    }
}
