//! Chapter 13: the two walks of a query over the pages of its sequence.

use std::borrow::Cow;
use std::ops::Range;

use page_by_page::cache::attention::{AttentionCache, F32Heads};
use page_by_page::chapters::ch06_paged::PagedCache;
use page_by_page::chapters::ch13_paged_attention::{attend_row, row_starts};
use page_by_page::kernels::{Heads, Run, add_scaled, dot, softmax_scaled};

use super::ch06_gather::{TOKENS, named_rows, reused_pages};
use super::prelude::*;
use crate::chart::circle;
use crate::slab::{PAGE_SIZE, Page};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const HEADS: Heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
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
            "A table, 2 and then 0, over memory with pages 0, 1 and 2. Footprints lead through the wolf\u{2019}s {TOKENS} \
             slots: 1 to 4 in page 2, 5 and 6 in page 0. Silda\u{2019}s page between them has none, nor has a stale slot."
        ),
        headline: format!(
            "Attention walks through the pages twice and copies {copied} tokens, where a gather would copy \
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

/// How far the walks have come. Positions are counted along the table.
#[derive(Default)]
struct Seen {
    /// Each page of the table with its run.
    runs: Vec<(usize, Run)>,
    /// What is walked past, if anything, and the positions whose keys or values are read.
    walk: &'static str,
    now: Range<usize>,
    /// The score of each position so far, or its weight.
    numbers: Vec<String>,
    sum: Vec<f32>,
}

/// The two walks, run by run. Compares the sum with what the chapter's code gives.
fn walk(figure: &mut Figure, cache: &PagedCache, slab: &[Page]) -> Result<()> {
    let rows = cache.rows(0);
    let sequence = rows.sequence_rows(1);
    let pages = cache.table().pages().iter().map(|page| page.index());
    let runs: Vec<(usize, Run)> = pages.zip(sequence.runs.iter().copied()).collect();
    let mut seen = Seen { runs: runs.clone(), walk: "keys", ..Seen::default() };
    let stale: Vec<String> = slab.iter().flat_map(Page::stale).collect();
    let mut scores: Vec<f32> = Vec::new();
    for (page, run) in &runs {
        scores.extend(row_starts(&[*run], 2).map(|start| dot(&QUERY, &sequence.keys[start..start + 2])));
        seen.now = scores.len() - run.rows..scores.len();
        seen.numbers = scores.iter().map(f32::to_string).collect();
        let Run { start, rows } = *run;
        let notice = match seen.now.start {
            0 => format!("His table begins with page {page}, and its {rows} keys are scored where they lie."),
            _ => format!("After {rows} keys the run ends, and the stale {} get no scores.", listed(&stale)),
        };
        let text = format!("First walk, <code>Run {{ start: {start}, rows: {rows} }}</code>. {notice}");
        figure.frame(text, |picture| draw(picture, slab, &seen));
    }
    softmax_scaled(&mut scores, 1.0 / 2.0_f32.sqrt());
    (seen.walk, seen.now) = ("", 0..0);
    seen.numbers = scores.iter().map(|weight| format!("{weight:.3}")).collect();
    let text = format!("Between the walks, one softmax turns all {TOKENS} scores into weights that add up to 1.");
    figure.frame(text, |picture| draw(picture, slab, &seen));
    let mut sum = [0.0; 2];
    seen.walk = "values";
    for (page, run) in &runs {
        seen.now = seen.now.end..seen.now.end + run.rows;
        for (start, weight) in row_starts(&[*run], 2).zip(&scores[seen.now.clone()]) {
            add_scaled(&mut sum, *weight, &sequence.values[start..start + 2]);
        }
        seen.sum = sum.to_vec();
        let notice = if seen.now.end < TOKENS { "Nothing else is written." } else { "That is the output." };
        let text = format!("Second walk, page {page}: each value times its weight is added to the sum. {notice}");
        figure.frame(text, |picture| draw(picture, slab, &seen));
    }
    let mut out = [0.0; 2];
    attend_row(HEADS, &mut F32Heads { head_dim: 2 }, &sequence, TOKENS, &QUERY, &mut out);
    ensure!(out == sum, "the walk ends with {sum:?}, the chapter's code with {out:?}");
    Ok(())
}

/// The table, the pages in memory, and the sum.
fn draw(picture: &mut Picture, slab: &[Page], seen: &Seen) {
    picture.labelled("weights");
    let left = picture.left + picture.labels;
    let table: Vec<usize> = seen.runs.iter().map(|(page, _)| *page).collect();
    picture.notes = picture.right() - left - 64.0;
    picture.row("table", "", 1, [held('b', joined(&table, " \u{2192} "))]);
    picture.y += 28.0;
    let per_line = if picture.is_wide() { slab.len() } else { 1 };
    let width = (picture.right() - left - GAP * (per_line - 1) as f64) / per_line as f64;
    for (page, content) in slab.iter().enumerate() {
        let x = left + (page % per_line) as f64 * (width + GAP);
        draw_page(picture, content, page, Area { x, y: picture.y, width, height: CELL }, seen);
        if (page + 1) % per_line == 0 {
            picture.y += if table.contains(&page) { 112.0 } else { 60.0 };
        }
    }
    picture.y -= 20.0;
    picture.notes = picture.right() - left - 130.0;
    let sum = |n: usize| seen.sum.get(n).map_or(part(""), |number| held('c', format!("{number:.2}")).outlined(true));
    picture.row("sum", "", 2, [sum(0), sum(1)]);
}

/// A page, and under each slot of its run a footprint and a number.
fn draw_page(picture: &mut Picture, content: &Page, page: usize, area: Area, seen: &Seen) {
    let place = seen.runs.iter().position(|(other, _)| *other == page);
    let before: usize = seen.runs.iter().take(place.unwrap_or(0)).map(|(_, run)| run.rows).sum();
    let Run { start, rows } = place.map_or(Run { start: 0, rows: 0 }, |place| seen.runs[place].1);
    let name = if rows > 0 { format!(": start {start}, rows {rows}") } else { String::new() };
    picture.text(area.x, area.y - 12.0, Anchor::Start, format!("page {page}{name}"));
    let width = area.width / PAGE_SIZE as f64;
    for (n, cell) in content.cells().enumerate() {
        let slot = Area { x: area.x + n as f64 * width, width: width - 2.5, ..area };
        let position = before + n;
        let is_read = n < rows && seen.now.contains(&position);
        picture.cell(slot, cell.outlined(is_read));
        if n < rows && position < seen.now.end {
            let (x, y) = (slot.middle() - 5.0, slot.bottom() + 13.0);
            picture.path("dots o1", paw(x, y));
            picture.text(x + 7.0, y + 4.0, Anchor::Start, position + 1);
        }
        if n < rows {
            let number = seen.numbers.get(position).map_or(part(""), |number| held('c', number));
            let is_new = seen.walk.is_empty() || seen.walk == "keys" && is_read;
            picture.cell(Area { y: slot.bottom() + 22.0, height: 26.0, ..slot }, number.outlined(is_new));
        }
    }
    if rows == 0 {
        return;
    }
    picture.path("line", format!("M{:.1} {:.1}v-4h{:.1}v4", area.x, area.y - 2.0, rows as f64 * width - 2.5));
    if area.x == picture.left + picture.labels {
        let numbers = if seen.walk == "keys" { "scores" } else { "weights" };
        picture.text(picture.left, area.baseline(), Anchor::Start, seen.walk);
        picture.text(picture.left, area.bottom() + 39.5, Anchor::Start, numbers);
    }
}

/// The path of a footprint.
fn paw(x: f64, y: f64) -> String {
    let toes = [(-4.0, -4.5), (0.0, -7.0), (4.0, -4.5)].map(|(dx, dy)| circle(x + dx, y + dy, 1.6));
    toes.concat() + &circle(x, y, 3.2)
}
