//! Chapter 13: the two walks of a query over the pages of its sequence.

use std::borrow::Cow;

use page_by_page::cache::attention::{AttentionCache, F32Heads};
use page_by_page::chapters::ch06_paged::PagedCache;
use page_by_page::chapters::ch13_paged_attention::{attend_row, row_starts};
use page_by_page::kernels::{Heads, Run, add_scaled, dot, softmax_scaled};

use super::ch06_gather::{TOKENS, named_rows, reused_pages};
use super::prelude::*;
use crate::slab::{PAGE_SIZE, Page, pages_of_words};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const HEADS: Heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
const PAGES: usize = 3;
/// Rows of the wolf, whose newest token is the query.
const KEYS: [[f32; 2]; TOKENS] = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [0.0, -1.0]];
const VALUES: [[f32; 2]; TOKENS] = [[4.0, 0.0], [0.0, 4.0], [8.0, 2.0], [2.0, 6.0], [6.0, 6.0], [0.0, 8.0]];
const QUERY: [f32; 2] = [1.5, 0.5];

/// Names the rows of one slab, and walks through another that went the same way and holds small numbers.
pub fn figure() -> Result<Figure> {
    let (state, _) = named_rows()?;
    let (slab, mut caches) = reused_pages(LAYOUT, |cache, name, _| {
        if name == 'b' {
            cache.write(0, KEYS.as_flattened(), VALUES.as_flattened());
        }
    })?;
    let cache = caches.remove(&'b').context("no wolf")?;
    let copied = if std::ptr::eq(cache.rows(0).sequence_rows(0).keys, slab.borrow().keys()) { 0 } else { cache.len() };
    let copied_by_gather = if matches!(cache.gather(0), (Cow::Owned(_), _)) { cache.len() } else { 0 };
    let mut figure = Figure {
        label: format!(
            "A pool of {PAGES} pages, once its keys and once its values. Arrows lead from the wolf\u{2019}s keys to \
             {TOKENS} scores, which become weights, and from his values to one sum; none comes from Silda\u{2019}s page \
             or from a stale slot."
        ),
        headline: format!(
            "Attention walks through the pages twice and copies {copied} rows, where a gather would copy \
             {copied_by_gather}."
        ),
        setup: format!(
            "The newest of the wolf\u{2019}s {TOKENS} tokens has the query ({:.1}, {:.1}). Each key and each value is \
             two numbers, and there is one layer, so page 2 begins at number 16.",
            QUERY[0], QUERY[1],
        ),
        outline: Some("read or computed in this step"),
        ..Figure::default()
    };
    walk(&mut figure, &cache, &state.slab)?;
    Ok(figure)
}

/// What has been computed so far, and the page whose keys or values are read, with the number of its rows that are.
#[derive(Default)]
struct Seen {
    keys: Option<(usize, usize)>,
    scores: Vec<f32>,
    weights: Vec<f32>,
    values: Option<(usize, usize)>,
    sum: Vec<f32>,
}

/// The two walks, run by run. Compares the sum with what the chapter's code gives.
fn walk(figure: &mut Figure, cache: &PagedCache, slab: &[Page]) -> Result<()> {
    let rows = cache.rows(0);
    let sequence = rows.sequence_rows(1);
    let runs = || sequence.runs.iter().zip(cache.table().pages().iter().map(|page| page.index()));
    let mut seen = Seen::default();
    let stale: Vec<String> = slab.iter().flat_map(Page::stale).collect();
    for (run, page) in runs() {
        let score = |start: usize| dot(&QUERY, &sequence.keys[start..start + 2]);
        let (first, scores): (usize, Vec<f32>) = (seen.scores.len(), row_starts(&[*run], 2).map(score).collect());
        seen.scores.extend(&scores);
        seen.keys = Some((page, run.rows));
        let Run { start, rows } = *run;
        let notice = if first == 0 {
            format!(
                "page {page} comes first, because it is first in his table, and its {rows} keys are scored \
                 where they lie."
            )
        } else {
            format!("the run ends after {rows} keys of page {page}, so the stale {} get no scores.", listed(&stale))
        };
        let text = format!("First walk, <code>Run {{ start: {start}, rows: {rows} }}</code>: {notice}");
        figure.frame(text, |picture| draw(picture, slab, &seen));
    }
    let mut weights = seen.scores.clone();
    softmax_scaled(&mut weights, 1.0 / 2.0_f32.sqrt());
    let text = format!("Between the walks, one softmax turns all {TOKENS} scores into weights that add up to 1.");
    (seen.keys, seen.weights) = (None, weights);
    figure.frame(text, |picture| draw(picture, slab, &seen));
    let (mut sum, mut first) = ([0.0; 2], 0);
    for (run, page) in runs() {
        for (start, weight) in row_starts(&[*run], 2).zip(&seen.weights[first..]) {
            add_scaled(&mut sum, *weight, &sequence.values[start..start + 2]);
        }
        let last = first + run.rows - 1;
        let notice = if last + 1 == TOKENS { "That is the output." } else { "Only the sum is written." };
        let text = format!(
            "Second walk, page {page}: each value of positions {first} to {last} is multiplied by its weight and added \
             to the sum. {notice}"
        );
        (seen.values, seen.sum) = (Some((page, run.rows)), sum.to_vec());
        figure.frame(text, |picture| draw(picture, slab, &seen));
        first += run.rows;
    }
    let mut out = [0.0; 2];
    attend_row(HEADS, &mut F32Heads { head_dim: 2 }, &sequence, TOKENS, &QUERY, &mut out);
    ensure!(out == sum, "the walk ends with {sum:?}, the chapter's code with {out:?}");
    Ok(())
}

/// The pages; the rows that are read are outlined.
fn draw_pages(picture: &mut Picture, kind: &str, slab: &[Page], read: Option<(usize, usize)>) -> Grid {
    let cells = slab.iter().enumerate().flat_map(|(page, content)| {
        let is_read = move |slot| read.is_some_and(|(place, rows)| place == page && slot < rows);
        content.cells().enumerate().map(move |(slot, cell)| cell.outlined(is_read(slot)))
    });
    pages_of_words(picture, |page| format!("{kind}, page {page}"), PAGE_SIZE, cells)
}

fn draw(picture: &mut Picture, slab: &[Page], seen: &Seen) {
    let numbers = |numbers: &[f32], n: usize| -> Vec<Cell> {
        (0..n).map(|i| numbers.get(i).map_or(free(""), |number| held('c', format!("{number:.2}")))).collect()
    };
    let keys = draw_pages(picture, "keys", slab, seen.keys);
    picture.y += 24.0;
    picture.labelled("weights");
    let old = seen.scores.len() - seen.keys.map_or(0, |(_, rows)| rows);
    let is_new = |i: usize| (old..seen.scores.len()).contains(&i);
    let cells = numbers(&seen.scores, TOKENS).into_iter().enumerate().map(|(i, cell)| cell.outlined(is_new(i)));
    let scores = picture.row("scores", "", TOKENS, cells);
    if let Some((page, rows)) = seen.keys {
        for i in 0..rows {
            let from = keys.cell(page * PAGE_SIZE + i);
            picture.arrow((from.middle(), from.bottom() + 3.0), (scores.middle(old + i), scores.y - 3.0));
        }
    }
    picture.row("weights", "", TOKENS, numbers(&seen.weights, TOKENS));
    picture.labels = 0.0;
    picture.y += 10.0;
    let values = draw_pages(picture, "values", slab, seen.values);
    picture.y += 24.0;
    picture.labelled("weights");
    let sum = picture.row("sum", "", TOKENS, numbers(&seen.sum, 2).into_iter().chain((2..TOKENS).map(|_| blank())));
    if let Some((page, rows)) = seen.values {
        let [first, last] = [0, rows - 1].map(|slot| values.middle(page * PAGE_SIZE + slot));
        let from = ((first + last) / 2.0, values.y + CELL + 3.0);
        picture.arrow(from, ((sum.middle(0) + sum.middle(1)) / 2.0, sum.y - 3.0));
    }
}
