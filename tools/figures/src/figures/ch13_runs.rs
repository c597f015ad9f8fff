//! Chapter 13: the two passes of a query over the pages of its text.

use std::borrow::Cow;

use anyhow::{Result, ensure};
use page_by_page::cache::in_place::{F32Heads, InPlace};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::chapters::ch13_paged_attention::{attend_row, places};
use page_by_page::kernels::{Heads, add_scaled, dot, softmax_scaled};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{Page, Slot, Text, every_slot};
use crate::svg::{Anchor, Area, Kind, Svg, listed, rounded};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const HEADS: Heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 3;
/// Tokens of `d`, `b` and `e`, who come first; `d` and `e` go again.
const EARLIER: [(char, usize); 3] = [('d', 4), ('b', 3), ('e', 4)];
/// Tokens of `a`, whose newest asks.
const TOKENS: usize = 6;
const KEYS: [[f32; 2]; TOKENS] = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [0.0, -1.0]];
const VALUES: [[f32; 2]; TOKENS] = [[4.0, 0.0], [0.0, 4.0], [8.0, 2.0], [2.0, 6.0], [6.0, 6.0], [0.0, 8.0]];
const QUERY: [f32; 2] = [1.5, 0.5];

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    table: Vec<u32>,
    slab: Vec<Page>,
    query: [f32; 2],
    /// Rows that were copied to be read, here and by a gather.
    rows_copied: usize,
    gather_copies: usize,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
#[serde(untagged)]
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

pub fn record() -> Result<Trace> {
    // Two slabs that go the same way: rows with names in one, small numbers in the other.
    let named = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut texts = Vec::new();
    for (name, n) in EARLIER {
        let mut text = Text::new(name, &named)?;
        text.append(n)?;
        texts.push(text);
    }
    texts.retain(|text| text.name != 'd');
    texts.retain(|text| text.name != 'e');
    let mut a = Text::new('a', &named)?;
    a.append(TOKENS)?;
    let table = a.pages();
    texts.push(a);

    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut earlier = Vec::new();
    for (name, n) in EARLIER {
        let mut cache = PagedCache::new(&slab)?;
        cache.extend(n)?;
        earlier.push((name, cache));
    }
    earlier.retain(|text| text.0 != 'd');
    earlier.retain(|text| text.0 != 'e');
    let mut cache = PagedCache::new(&slab)?;
    cache.extend(TOKENS)?;
    cache.write(0, KEYS.as_flattened(), VALUES.as_flattened());
    ensure!(cache.table().pages().iter().map(|page| page.0).eq(table.iter().copied()), "two slabs, two ways");

    let (frames, rows_copied) = walk(&cache, &slab, &table)?;
    let gather_copies = if matches!(cache.gather(0), (Cow::Owned(_), _)) { cache.len() } else { 0 };
    let slab = every_slot(&named, texts, PAGE_SIZE)?;
    Ok(Trace { page_size: PAGE_SIZE, table, slab, query: QUERY, rows_copied, gather_copies, frames })
}

/// The two passes, run by run. Compares the sum with what the chapter's code gives.
fn walk(cache: &PagedCache, slab: &SharedSlab, table: &[u32]) -> Result<(Vec<Frame>, usize)> {
    let rows = cache.rows(0);
    let copied = if std::ptr::eq(rows.keys(), slab.borrow().keys()) { 0 } else { cache.len() };
    let text = rows.of_sequence(1);
    let runs = || text.runs.iter().zip(table.iter().copied());
    let told = text.runs.iter().map(|run| (run.start, run.rows)).collect();
    let mut frames = vec![Frame::Runs { runs: told }];
    let mut weights: Vec<f32> = Vec::new();
    for (run, page) in runs() {
        let key = |place: usize| dot(&QUERY, &text.keys[place..place + 2]);
        let scores: Vec<f32> = places(&[*run], 2).map(key).collect();
        frames.push(Frame::Scores { page, first: weights.len(), scores: scores.clone() });
        weights.extend(scores);
    }
    softmax_scaled(&mut weights, 1.0 / 2.0_f32.sqrt());
    frames.push(Frame::Weights { weights: weights.clone() });
    let (mut sum, mut first) = ([0.0; 2], 0);
    for (run, page) in runs() {
        for (place, weight) in places(&[*run], 2).zip(&weights[first..]) {
            add_scaled(&mut sum, *weight, &text.values[place..place + 2]);
        }
        frames.push(Frame::Values { page, first, rows: run.rows, sum });
        first += run.rows;
    }
    let mut out = [0.0; 2];
    attend_row(HEADS, &mut F32Heads { head_dim: 2 }, &text, TOKENS, &QUERY, &mut out);
    ensure!(out == sum, "the walk ends with {sum:?}, the chapter's with {out:?}");
    Ok((frames, copied))
}

const PITCH: f64 = 28.5;
const CELL: f64 = 25.0;
const GAP: f64 = 8.0;
const HEIGHT: f64 = 28.0;
/// The upper edges of the lines.
const KEYS_AT: f64 = 60.0;
const SCORES_AT: f64 = 150.0;
const WEIGHTS_AT: f64 = 206.0;
const VALUES_AT: f64 = 270.0;
const SUM_AT: f64 = 360.0;
/// Cells that hold a number with decimals.
const WIDE: f64 = 46.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, table, slab, frames, .. } = trace;
    let mut svg = Svg::new(SUM_AT + HEIGHT + 66.0);
    for page in 0..slab.len() {
        let (first, end) = (x(page, 0, *page_size), x(page, page_size - 1, *page_size) + CELL);
        svg.text((first + end) / 2.0, 15.0, Anchor::Middle, &format!("page {page}"));
        svg.line(&format!("M{} 27v-6H{}v6", rounded(first), rounded(end)));
    }
    for (step, frame) in frames.iter().enumerate() {
        svg.step(step, |svg| match frame {
            Frame::Runs { .. } => {
                svg.bold(0.0, KEYS_AT - 8.0, Anchor::Start, "keys");
                draw_slab(svg, KEYS_AT, *page_size, slab, None);
                svg.bold(0.0, VALUES_AT - 8.0, Anchor::Start, "values");
                draw_slab(svg, VALUES_AT, *page_size, slab, None);
                svg.bold(0.0, SCORES_AT + HEIGHT / 2.0 + 5.0, Anchor::Start, "scores");
                svg.bold(0.0, WEIGHTS_AT + HEIGHT / 2.0 + 5.0, Anchor::Start, "weights");
                svg.bold(0.0, SUM_AT + HEIGHT / 2.0 + 5.0, Anchor::Start, "sum");
            }
            Frame::Scores { page, first, scores } => {
                draw_slab(svg, KEYS_AT, *page_size, slab, Some((*page, scores.len())));
                for (i, score) in scores.iter().enumerate() {
                    let from = x(*page as usize, i, *page_size) + CELL / 2.0;
                    svg.arrow((from, KEYS_AT + HEIGHT + 4.0), (wide_x(first + i) + WIDE / 2.0, SCORES_AT - 4.0));
                    svg.cell(Kind::New, wide(first + i, SCORES_AT), "", &format!("{score:.2}"));
                }
            }
            Frame::Weights { weights } => {
                for (i, weight) in weights.iter().enumerate() {
                    svg.cell(Kind::New, wide(i, WEIGHTS_AT), "", &format!("{weight:.2}"));
                }
            }
            Frame::Values { page, first, rows, sum } => {
                draw_slab(svg, VALUES_AT, *page_size, slab, Some((*page, *rows)));
                let number = if *first == 0 { 0 } else { 3 };
                let to = (wide_x(number) + WIDE, SUM_AT - 4.0);
                let middle = (x(*page as usize, 0, *page_size) + x(*page as usize, rows - 1, *page_size) + CELL) / 2.0;
                svg.arrow((middle, VALUES_AT + HEIGHT + 4.0), to);
                for (i, number_of_sum) in sum.iter().enumerate() {
                    svg.cell(Kind::New, wide(number + i, SUM_AT), "", &format!("{number_of_sum:.2}"));
                }
            }
        });
    }
    let legend = SUM_AT + HEIGHT + 18.0;
    svg.legend(Kind::New, 0.0, legend, "read or computed now");
    svg.legend(Kind::Reused, 190.0, legend, "held by a text");
    svg.legend(Kind::Stale, 0.0, legend + 24.0, "stale, never read");
    svg.legend(Kind::Wasted, 190.0, legend + 24.0, "empty");

    let copied = format!("rows copied: {}; a gather copies {}", trace.rows_copied, trace.gather_copies);
    Drawing {
        svg,
        label: format!(
            "A slab of {} pages of {page_size} slots, once its keys and once its values. Text a has pages {} in table order; \
             page 1 is text b's. Arrows lead from the keys of a to {} scores, which become weights, and from its \
             values to one sum. No arrow comes from page 1 or from a stale slot. R{}.",
            slab.len(),
            listed(table),
            TOKENS,
            &copied[1..]
        ),
        caption: format!(
            "The newest token of text a, whose query is ({:.1}, {:.1}), walks through the pages of its text twice: once for the \
             scores, once for the sum. <strong>{}.</strong> Recorded from <code>PagedCache::runs</code>, <code>places</code> \
             and <code>attend_row</code>; numbers are shown to two decimals.",
            trace.query[0],
            trace.query[1],
            format_args!("R{}", &copied[1..])
        ),
        steps: frames.iter().map(|frame| step_text(frame, trace)).collect(),
    }
}

/// The left edge of a slot's cell.
fn x(page: usize, slot: usize, page_size: usize) -> f64 {
    2.0 + (page * page_size + slot) as f64 * PITCH + page as f64 * GAP
}

fn wide_x(place: usize) -> f64 {
    64.0 + place as f64 * (WIDE + 3.0)
}

fn wide(place: usize, y: f64) -> Area {
    Area { x: wide_x(place), y, width: WIDE, height: HEIGHT }
}

/// The slots of the slab; the first `rows` of a page are read.
fn draw_slab(svg: &mut Svg, y: f64, page_size: usize, slab: &[Page], read: Option<(u32, usize)>) {
    for (page, Page { slots, .. }) in slab.iter().enumerate() {
        for (slot, content) in slots.iter().enumerate() {
            let area = Area { x: x(page, slot, page_size), y, width: CELL, height: HEIGHT };
            let is_read = read.is_some_and(|(of, rows)| of as usize == page && slot < rows);
            match (&content.row, content.held) {
                (Some(row), true) if is_read => svg.cell(Kind::New, area, row, row),
                (_, _) if read.is_some() => {}
                (Some(row), true) => svg.cell(Kind::Reused, area, row, row),
                (Some(row), false) => svg.cell(Kind::Stale, area, row, row),
                (None, _) => svg.cell(Kind::Wasted, area, "", ""),
            }
        }
    }
}

fn step_text(frame: &Frame, trace: &Trace) -> String {
    let numbers = |numbers: &[f32]| numbers.iter().map(|x| format!("{x:.2}")).collect::<Vec<_>>().join(" ");
    match frame {
        Frame::Runs { runs } => {
            let runs: Vec<String> = runs
                .iter()
                .map(|(start, rows)| format!("<code>Run {{ start: {start}, rows: {rows} }}</code>"))
                .collect();
            let stale: Vec<&String> = trace.slab.iter().flat_map(|page| &page.slots).filter_map(Slot::stale).collect();
            format!(
                "The runs of a, rows of 2 numbers, one layer: {}. {} are stale rows behind its last token.",
                listed(&runs),
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
