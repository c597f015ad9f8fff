//! Chapter 6: two texts that grow by turns in the pages of one slab.

use anyhow::{Result, ensure};
use page_by_page::cache::KvLayout;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::Text;
use crate::slab::SlabLines;
use crate::svg::{Anchor, Kind, Svg, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 4;
/// The turns of the chapter's transcript.
const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

/// One `extend`, and `write` if it was granted.
#[derive(Serialize)]
struct Frame {
    text: char,
    extend: usize,
    /// The refusal in words.
    refused: Option<String>,
    /// The pages of each text.
    tables: Vec<(char, Vec<u32>)>,
    slab: Vec<Page>,
    free: usize,
}

/// A page in one layer; the others look the same.
#[derive(PartialEq, Serialize)]
struct Page {
    owner: Option<char>,
    /// What each slot holds; `null` if nothing.
    slots: Vec<Option<String>>,
}

pub fn record() -> Result<Trace> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut texts = [Text::new('a', &slab)?, Text::new('b', &slab)?];
    let mut frames: Vec<Frame> = Vec::new();
    for (name, n) in TURNS {
        let mut outcome = Ok(());
        for text in texts.iter_mut().filter(|text| text.name == name) {
            outcome = text.append(n);
        }
        let frame = Frame {
            text: name,
            extend: n,
            refused: outcome.as_ref().err().map(|error| format!("{error:?}")),
            tables: texts.iter().map(|text| (text.name, text.pages())).collect(),
            slab: pages(&texts)?,
            free: n_free(&slab),
        };
        let changed = frames.last().is_none_or(|before| before.slab != frame.slab);
        ensure!(changed == outcome.is_ok(), "{name}: extend({n}) gives {outcome:?}");
        let held = frame.slab.iter().filter(|page| page.owner.is_some()).count();
        ensure!(frame.free == PAGES - held, "{} pages are free, {held} are held", frame.free);
        frames.push(frame);
    }
    Ok(Trace { page_size: PAGE_SIZE, frames })
}

fn n_free(slab: &SharedSlab) -> usize {
    slab.borrow().pool().n_free()
}

fn pages(texts: &[Text]) -> Result<Vec<Page>> {
    let mut slab: Vec<Page> = (0..PAGES).map(|_| Page { owner: None, slots: vec![None; PAGE_SIZE] }).collect();
    for text in texts {
        for page in text.pages() {
            slab[page as usize].owner = Some(text.name);
        }
        for row in text.rows()? {
            let slot = &mut slab[row.page].slots[row.slot];
            ensure!(slot.is_none(), "two tokens in slot {} of page {}", row.slot, row.page);
            *slot = row.name;
        }
    }
    Ok(slab)
}

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, frames } = trace;
    let last = &frames[frames.len() - 1];
    let lines = SlabLines { page_size: *page_size, n_pages: last.slab.len(), n_lines: frames.len() };
    let (mut svg, bottom) = (lines.svg(), lines.bottom());
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_slab(svg, lines, lines.top(step), frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 4.0, "written now");
    svg.legend(Kind::Reused, 140.0, bottom + 4.0, "written before");
    svg.legend(Kind::Wasted, 0.0, bottom + 28.0, "taken, empty");
    svg.legend_free(140.0, bottom + 28.0, "free page");

    let told: Vec<String> = frames.iter().map(told).collect();
    let tables: Vec<String> =
        last.tables.iter().map(|(name, pages)| format!("{name} has pages {}", listed(pages))).collect();
    Drawing {
        svg,
        label: format!(
            "One slab of {} pages of {page_size} slots, one line for each step: {}. The pages of the two texts \
             alternate: at the end {}.",
            last.slab.len(),
            told.join("; "),
            listed(&tables)
        ),
        caption: format!(
            "Two texts grow by turns in one slab, page size {page_size}. The slots are those of one layer; each page \
             holds the same tokens in every layer. Above each line, on the right, the page tables. The refused step changes \
             nothing. Recorded from <code>PagedCache</code>: {} rows, each read with <code>gather</code> and found \
             with <code>locate</code>.",
            last.slab.iter().flat_map(|page| page.slots.iter().flatten()).count()
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

fn told(frame: &Frame) -> String {
    let Frame { text, extend, .. } = frame;
    match frame.refused {
        Some(_) => format!("{text}: extend({extend}) refused"),
        None => format!("{text}: extend({extend})"),
    }
}

fn is_new(page: usize, slot: usize, frame: &Frame, before: Option<&Frame>) -> bool {
    before.is_none_or(|before| before.slab[page].slots[slot] != frame.slab[page].slots[slot])
}

fn draw_slab(svg: &mut Svg, lines: SlabLines, y: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, y + 17.0, Anchor::Start, &told(frame));
    let tables: Vec<String> = frame.tables.iter().map(|(name, pages)| format!("{name} {pages:?}")).collect();
    svg.text(360.0, y + 17.0, Anchor::End, &format!("tables {}", tables.join(", ")));
    for (page, Page { owner, slots }) in frame.slab.iter().enumerate() {
        for (slot, row) in slots.iter().enumerate() {
            let area = lines.cell(y, page, slot);
            match (row, owner) {
                (Some(row), _) if is_new(page, slot, frame, before) => svg.cell(Kind::New, area, row, row),
                (Some(row), _) => svg.cell(Kind::Reused, area, row, row),
                (None, Some(_)) => svg.cell(Kind::Wasted, area, "", ""),
                (None, None) => svg.free(area, "", ""),
            }
        }
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let Frame { text, extend, free, .. } = frame;
    if let Some(error) = &frame.refused {
        return format!("{text}: <code>extend({extend})</code>: <code>{error}</code>. Every row is as it was.");
    }
    let before = step.checked_sub(1).map(|before| &frames[before]);
    let mut places = Vec::new();
    for (page, Page { slots, .. }) in frame.slab.iter().enumerate() {
        let new = slots.iter().enumerate().filter(|(slot, row)| row.is_some() && is_new(page, *slot, frame, before));
        let rows: Vec<String> = new.filter_map(|(_, row)| row.clone()).collect();
        if !rows.is_empty() {
            places.push(format!("{} in page {page}", listed(&rows)));
        }
    }
    let pages = if *free == 1 { "1 page is free".into() } else { format!("{free} pages are free") };
    format!("{text}: <code>extend({extend})</code> and <code>write</code>: {}. {pages}.", places.join("; "))
}
