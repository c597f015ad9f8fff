//! Chapter 13: the two passes of a query over the pages of its sequence.

use std::borrow::Cow;

use anyhow::{Context, Result, ensure};
use page_by_page::cache::in_place::{F32Heads, InPlace};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::chapters::ch13_paged_attention::{attend_row, places};
use page_by_page::kernels::{Heads, add_scaled, dot, softmax_scaled};

use super::Figure;
use super::ch06_gather::{EARLIER, ENDED, TOKENS, reused_pages};
use crate::layout::{CELL, Grid};
use crate::slab::{PAGE_SIZE, Page, grid, name_pages};
use crate::svg::{Kind, Svg, cell, named};
use crate::words::{joined, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const HEADS: Heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
const PAGES: usize = 3;
/// Rows of sequence `a`, whose newest token is the query.
const KEYS: [[f32; 2]; TOKENS] = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [0.0, -1.0]];
const VALUES: [[f32; 2]; TOKENS] = [[4.0, 0.0], [0.0, 4.0], [8.0, 2.0], [2.0, 6.0], [6.0, 6.0], [0.0, 8.0]];
const QUERY: [f32; 2] = [1.5, 0.5];

struct Trace {
    slab: Vec<Page>,
    /// Rows copied in order to be read, here and by a gather.
    rows_copied: usize,
    rows_copied_by_gather: usize,
    frames: Vec<Frame>,
}

enum Frame {
    /// Where the rows lie.
    Runs { runs: Vec<(usize, usize)> },
    /// The keys of a run, and their scores.
    Scores { page: u32, first: usize, scores: Vec<f32> },
    /// All weights.
    Weights { weights: Vec<f32> },
    /// The values of a run, and the sum so far.
    Values { page: u32, first: usize, rows: usize, sum: [f32; 2] },
}

/// Names the rows of one slab, and walks through another that went the same way and holds small numbers.
fn record() -> Result<Trace> {
    let (mut states, _slab, _caches) = reused_pages()?;
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut others = Vec::new();
    for (name, n) in EARLIER {
        let mut cache = PagedCache::new(&slab)?;
        cache.extend(n)?;
        others.push((name, cache));
    }
    ENDED.iter().for_each(|ended| others.retain(|(name, _)| name != ended));
    let mut cache = PagedCache::new(&slab)?;
    cache.extend(TOKENS)?;
    cache.write(0, KEYS.as_flattened(), VALUES.as_flattened());

    let is_in_place = std::ptr::eq(cache.rows(0).keys(), slab.borrow().keys());
    let rows_copied = if is_in_place { 0 } else { cache.len() };
    let rows_copied_by_gather = if matches!(cache.gather(0), (Cow::Owned(_), _)) { cache.len() } else { 0 };
    let (frames, slab) = (walk(&cache)?, states.pop().context("no state")?.slab);
    Ok(Trace { slab, rows_copied, rows_copied_by_gather, frames })
}

/// The two passes, run by run. Compares the sum with what the chapter's code gives.
fn walk(cache: &PagedCache) -> Result<Vec<Frame>> {
    let rows = cache.rows(0);
    let sequence = rows.of_sequence(1);
    let runs = || sequence.runs.iter().zip(cache.table().pages().iter().map(|page| page.0));
    let mut frames = vec![Frame::Runs { runs: sequence.runs.iter().map(|run| (run.start, run.rows)).collect() }];
    let mut weights: Vec<f32> = Vec::new();
    for (run, page) in runs() {
        let score = |place: usize| dot(&QUERY, &sequence.keys[place..place + 2]);
        let scores: Vec<f32> = places(&[*run], 2).map(score).collect();
        frames.push(Frame::Scores { page, first: weights.len(), scores: scores.clone() });
        weights.extend(scores);
    }
    softmax_scaled(&mut weights, 1.0 / 2.0_f32.sqrt());
    frames.push(Frame::Weights { weights: weights.clone() });
    let (mut sum, mut first) = ([0.0; 2], 0);
    for (run, page) in runs() {
        for (place, weight) in places(&[*run], 2).zip(&weights[first..]) {
            add_scaled(&mut sum, *weight, &sequence.values[place..place + 2]);
        }
        frames.push(Frame::Values { page, first, rows: run.rows, sum });
        first += run.rows;
    }
    let mut out = [0.0; 2];
    attend_row(HEADS, &mut F32Heads { head_dim: 2 }, &sequence, TOKENS, &QUERY, &mut out);
    ensure!(out == sum, "the walk ends with {sum:?}, the chapter's code with {out:?}");
    Ok(frames)
}

/// The upper edges of the lines.
const KEYS_AT: f64 = 58.0;
const SCORES_AT: f64 = 144.0;
const WEIGHTS_AT: f64 = 190.0;
const VALUES_AT: f64 = 248.0;
const SUM_AT: f64 = 334.0;

pub fn figure() -> Result<Figure> {
    let trace = &record()?;
    let Trace { slab, frames, rows_copied, rows_copied_by_gather, .. } = trace;
    let mut svg = Svg::new();
    name_pages(&mut svg, PAGES);
    for frame in frames {
        svg.step(|svg| draw_frame(svg, frame, slab));
    }
    svg.y = SUM_AT + CELL + 6.0;
    svg.legend(&[
        (Kind::New, "read or computed now"),
        (Kind::Reused, "held"),
        (Kind::Stale, "stale, never read"),
        (Kind::Wasted, "empty"),
    ]);
    Ok(Figure {
        svg,
        label: format!(
            "A slab of {PAGES} pages, once its keys and once its values. Arrows lead from the keys of sequence a to {TOKENS} \
             scores, which become weights, and from its values to one sum; none comes from b's page or from a stale slot."
        ),
        caption: format!(
            "<strong>Attention walks through the pages twice, and copies {rows_copied} rows; a gather copies \
             {rows_copied_by_gather}.</strong> The newest token of sequence a, with the query ({:.1}, {:.1}), computes the scores \
             first and then the sum. Recorded from <code>PagedCache::runs</code>, <code>places</code> and \
             <code>attend_row</code>; numbers are shown to two decimals.",
            QUERY[0], QUERY[1],
        ),
        steps: frames.iter().map(|frame| step_text(frame, slab)).collect(),
        ..Figure::default()
    })
}

fn draw_frame(svg: &mut Svg, frame: &Frame, slab: &[Page]) {
    let (slots, numbers) = (grid(PAGES), Grid::across(64.0, TOKENS, TOKENS));
    let place = |page: u32, slot: usize| page as usize * PAGE_SIZE + slot;
    // The first rows of a page are read.
    let read = |svg: &mut Svg, y: f64, page: u32, rows: usize| {
        for (slot, name) in slab[page as usize].slots.iter().take(rows).enumerate() {
            svg.cell(slots.cell(place(page, slot), y), &named(Kind::New, name.row.as_deref().unwrap_or("")));
        }
    };
    let decimals = |number: f32| cell(Kind::New, format!("{number:.2}"));
    match frame {
        Frame::Runs { .. } => {
            for (name, y) in [("keys", KEYS_AT), ("values", VALUES_AT)] {
                svg.y = y - 24.0;
                svg.heading(name, "");
                svg.row(slots, slab.iter().flat_map(|page| page.slots.iter().map(|slot| slot.cell(1, false))));
            }
            for (name, y) in [("scores", SCORES_AT), ("weights", WEIGHTS_AT), ("sum", SUM_AT)] {
                svg.y = y + 3.0;
                svg.heading(name, "");
            }
        }
        Frame::Scores { page, first, scores } => {
            read(svg, KEYS_AT, *page, scores.len());
            for (i, score) in scores.iter().enumerate() {
                let from = (slots.middle(place(*page, i)), KEYS_AT + CELL + 4.0);
                svg.arrow(from, (numbers.middle(first + i), SCORES_AT - 4.0));
                svg.cell(numbers.cell(first + i, SCORES_AT), &decimals(*score));
            }
        }
        Frame::Weights { weights } => {
            svg.y = WEIGHTS_AT;
            svg.row(numbers, weights.iter().map(|weight| decimals(*weight)));
        }
        Frame::Values { page, first, rows, sum } => {
            read(svg, VALUES_AT, *page, *rows);
            let column = if *first == 0 { 0 } else { 3 };
            let middle = (slots.middle(place(*page, 0)) + slots.middle(place(*page, rows - 1))) / 2.0;
            let to = (numbers.middle(column) + numbers.middle(column + 1)) / 2.0;
            svg.arrow((middle, VALUES_AT + CELL + 4.0), (to, SUM_AT - 4.0));
            for (i, number) in sum.iter().enumerate() {
                svg.cell(numbers.cell(column + i, SUM_AT), &decimals(*number));
            }
        }
    }
}

fn step_text(frame: &Frame, slab: &[Page]) -> String {
    let numbers = |numbers: &[f32]| joined(&numbers.iter().map(|x| format!("{x:.2}")).collect::<Vec<_>>(), " ");
    match frame {
        Frame::Runs { runs } => {
            let runs = runs.iter().map(|(start, rows)| format!("<code>Run {{ start: {start}, rows: {rows} }}</code>"));
            let stale: Vec<&String> = slab.iter().flat_map(Page::stale).collect();
            format!(
                "The runs of a, rows of 2 numbers, one layer: {}. After its last token lie the stale rows {}.",
                listed(&runs.collect::<Vec<_>>()),
                listed(&stale)
            )
        }
        Frame::Scores { page, first, scores } => format!(
            "First pass, page {page}: the keys of positions {first} to {} give the scores <code>{}</code>.",
            first + scores.len() - 1,
            numbers(scores)
        ),
        Frame::Weights { weights } => {
            format!("One softmax over all scores: the weights <code>{}</code>, 1 in sum.", numbers(weights))
        }
        Frame::Values { page, first, rows, sum } => format!(
            "Second pass, page {page}: the values of positions {first} to {} are added by their weights. The sum is now \
             <code>{}</code>.",
            first + rows - 1,
            numbers(sum)
        ),
    }
}
