//! Chapter 13: the two passes of a query over the pages of its sequence.

use std::borrow::Cow;

use anyhow::{Context, Result, ensure};
use page_by_page::cache::in_place::{F32Heads, InPlace};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::chapters::ch13_paged_attention::{attend_row, places};
use page_by_page::kernels::{Heads, Run, add_scaled, dot, softmax_scaled};

use super::Figure;
use super::ch06_gather::{EARLIER, ENDED, TOKENS, reused_pages};
use crate::layout::{CELL, Grid};
use crate::slab::{PAGE_SIZE, Page, grid, name_pages};
use crate::svg::{Cell, Kind, Svg, cell, named};
use crate::words::{joined, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const HEADS: Heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
const PAGES: usize = 3;
/// Rows of sequence `a`, whose newest token is the query.
const KEYS: [[f32; 2]; TOKENS] = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [0.0, -1.0]];
const VALUES: [[f32; 2]; TOKENS] = [[4.0, 0.0], [0.0, 4.0], [8.0, 2.0], [2.0, 6.0], [6.0, 6.0], [0.0, 8.0]];
const QUERY: [f32; 2] = [1.5, 0.5];

const KEYS_AT: f64 = 58.0;
const SCORES_AT: f64 = 144.0;
const WEIGHTS_AT: f64 = 190.0;
const VALUES_AT: f64 = 248.0;
const SUM_AT: f64 = 334.0;

/// Names the rows of one slab, and walks through another that went the same way and holds small numbers.
pub fn figure() -> Result<Figure> {
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
    let copied = if is_in_place { 0 } else { cache.len() };
    let copied_by_gather = if matches!(cache.gather(0), (Cow::Owned(_), _)) { cache.len() } else { 0 };
    let mut figure = Figure::default();
    name_pages(&mut figure.svg, PAGES);
    walk(&mut figure, &cache, &states.pop().context("no state")?.slab)?;
    figure.svg.y = SUM_AT + CELL + 6.0;
    figure.svg.legend(&[
        (Kind::New, "read or computed now"),
        (Kind::Reused, "held"),
        (Kind::Stale, "stale, never read"),
        (Kind::Wasted, "empty"),
    ]);
    figure.label = format!(
        "A slab of {PAGES} pages, once its keys and once its values. Arrows lead from the keys of sequence a to {TOKENS} scores, \
         which become weights, and from its values to one sum; none comes from b's page or from a stale slot."
    );
    figure.caption = format!(
        "<strong>Attention walks through the pages twice, and copies {copied} rows; a gather copies {copied_by_gather}.</strong> \
         The newest token of sequence a, with the query ({:.1}, {:.1}), computes the scores first and then the sum. Recorded from \
         <code>PagedCache::runs</code>, <code>places</code> and <code>attend_row</code>; numbers are shown to two decimals.",
        QUERY[0], QUERY[1],
    );
    Ok(figure)
}

/// The two passes, run by run. Compares the sum with what the chapter's code gives.
fn walk(figure: &mut Figure, cache: &PagedCache, slab: &[Page]) -> Result<()> {
    let rows = cache.rows(0);
    let sequence = rows.of_sequence(1);
    let runs = || sequence.runs.iter().zip(cache.table().pages().iter().map(|page| page.index()));
    let middle = |page: usize, slot: usize| grid(PAGES).middle(page * PAGE_SIZE + slot);
    let numbers = Grid::across(64.0, TOKENS, TOKENS);
    figure.step(runs_text(sequence.runs, slab), |svg| draw_lines(svg, slab));
    let mut weights: Vec<f32> = Vec::new();
    for (run, page) in runs() {
        let score = |place: usize| dot(&QUERY, &sequence.keys[place..place + 2]);
        let (first, scores): (usize, Vec<f32>) = (weights.len(), places(&[*run], 2).map(score).collect());
        weights.extend(&scores);
        let says = format!(
            "First pass, page {page}: the keys of positions {first} to {} give the scores <code>{}</code>.",
            weights.len() - 1,
            decimals(&scores)
        );
        figure.step(says, |svg| {
            draw_read(svg, KEYS_AT, &slab[page], page, run.rows);
            for (i, score) in scores.iter().enumerate() {
                svg.arrow((middle(page, i), KEYS_AT + CELL + 4.0), (numbers.middle(first + i), SCORES_AT - 4.0));
                svg.cell(numbers.cell(first + i, SCORES_AT), &number(score));
            }
        });
    }
    softmax_scaled(&mut weights, 1.0 / 2.0_f32.sqrt());
    let says = format!("One softmax over all scores: the weights <code>{}</code>, 1 in sum.", decimals(&weights));
    figure.step(says, |svg| {
        svg.y = WEIGHTS_AT;
        svg.row(numbers, weights.iter().map(number));
    });
    let (mut sum, mut first) = ([0.0; 2], 0);
    for (run, page) in runs() {
        for (place, weight) in places(&[*run], 2).zip(&weights[first..]) {
            add_scaled(&mut sum, *weight, &sequence.values[place..place + 2]);
        }
        let (column, last) = (if first == 0 { 0 } else { 3 }, first + run.rows - 1);
        let says = format!(
            "Second pass, page {page}: the values of positions {first} to {last} are added by their weights. The sum is now \
             <code>{}</code>.",
            decimals(&sum)
        );
        figure.step(says, |svg| {
            draw_read(svg, VALUES_AT, &slab[page], page, run.rows);
            let from = (middle(page, 0) + middle(page, run.rows - 1)) / 2.0;
            let to = (numbers.middle(column) + numbers.middle(column + 1)) / 2.0;
            svg.arrow((from, VALUES_AT + CELL + 4.0), (to, SUM_AT - 4.0));
            for (i, part) in sum.iter().enumerate() {
                svg.cell(numbers.cell(column + i, SUM_AT), &number(part));
            }
        });
        first += run.rows;
    }
    let mut out = [0.0; 2];
    attend_row(HEADS, &mut F32Heads { head_dim: 2 }, &sequence, TOKENS, &QUERY, &mut out);
    ensure!(out == sum, "the walk ends with {sum:?}, the chapter's code with {out:?}");
    Ok(())
}

/// The first rows of a page, which are read.
fn draw_read(svg: &mut Svg, y: f64, page: &Page, place: usize, rows: usize) {
    for (i, slot) in page.slots.iter().take(rows).enumerate() {
        let row = named(Kind::New, slot.row.as_deref().unwrap_or(""));
        svg.cell(grid(PAGES).cell(place * PAGE_SIZE + i, y), &row);
    }
}

fn number(number: &f32) -> Cell {
    cell(Kind::New, format!("{number:.2}"))
}

fn decimals(numbers: &[f32]) -> String {
    joined(&numbers.iter().map(|number| format!("{number:.2}")).collect::<Vec<_>>(), " ")
}

/// The slab's keys and values, and the names of the lines.
fn draw_lines(svg: &mut Svg, slab: &[Page]) {
    for (name, y) in [("keys", KEYS_AT), ("values", VALUES_AT)] {
        svg.y = y - 24.0;
        svg.heading(name, "");
        svg.row(grid(PAGES), slab.iter().flat_map(|page| page.slots.iter().map(|slot| slot.cell(1, false))));
    }
    for (name, y) in [("scores", SCORES_AT), ("weights", WEIGHTS_AT), ("sum", SUM_AT)] {
        svg.y = y + 3.0;
        svg.heading(name, "");
    }
}

fn runs_text(runs: &[Run], slab: &[Page]) -> String {
    let runs = runs.iter().map(|Run { start, rows }| format!("<code>Run {{ start: {start}, rows: {rows} }}</code>"));
    let stale: Vec<&String> = slab.iter().flat_map(Page::stale).collect();
    format!(
        "The runs of a, rows of 2 numbers, one layer: {}. After its last token lie the stale rows {}.",
        listed(&runs.collect::<Vec<_>>()),
        listed(&stale)
    )
}
