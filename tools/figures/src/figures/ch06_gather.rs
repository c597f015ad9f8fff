//! Chapter 6: a page that was used before, and a gather that does not see what is left in it.

use anyhow::{Context, Result};
use page_by_page::cache::KvLayout;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{Page, Row, Slot, Text, every_slot};
use crate::svg::{Anchor, Area, Kind, Svg, listed, rounded};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 3;
/// The text that is gathered at the end.
const GATHERED: char = 'a';
/// `d` and `e` are earlier texts, whose pages `a` gets: the page that came back last first.
const OPERATIONS: [Operation; 6] = [
    Operation::Append('d', 4),
    Operation::Append('e', 4),
    Operation::Append('b', 3),
    Operation::Drop('d'),
    Operation::Drop('e'),
    Operation::Append('a', 6),
];
/// The states that are shown: after so many operations.
const SHOWN: [usize; 3] = [3, 5, 6];

#[derive(Clone, Copy)]
enum Operation {
    /// `extend` and `write`; the first makes the text.
    Append(char, usize),
    Drop(char),
}

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    /// The page table of the text that is gathered.
    name: char,
    table: Vec<u32>,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Frame {
    State(State),
    Copied(Copied),
}

/// The slab after some operations, in one layer; the others look the same.
#[derive(Serialize)]
struct State {
    did: Vec<String>,
    slab: Vec<Page>,
}

/// What `gather` has from one page.
#[derive(Serialize)]
struct Copied {
    page: u32,
    /// The row of the dense tensor, the slot, and what it holds.
    rows: Vec<(usize, usize, String)>,
}

pub fn record() -> Result<Trace> {
    let mut frames = Vec::new();
    let mut first = 0;
    for done in SHOWN {
        let did = OPERATIONS[first..done].iter().map(|operation| operation.name()).collect();
        // On a slab of its own, which goes the same way.
        let (slab, texts) = run(done)?;
        frames.push(Frame::State(State { did, slab: every_slot(&slab, texts, PAGE_SIZE)? }));
        first = done;
    }
    let (_slab, texts) = run(OPERATIONS.len())?;
    let text = texts.iter().find(|text| text.name == GATHERED).context("nothing to gather")?;
    let table = text.pages();
    let rows = text.rows()?;
    for &page in &table {
        let here = rows.iter().enumerate().filter(|(_, row)| row.page == page as usize);
        let row = |(dense, row): (usize, &Row)| Some((dense, row.slot, row.name.clone()?));
        frames.push(Frame::Copied(Copied { page, rows: here.filter_map(row).collect() }));
    }
    Ok(Trace { page_size: PAGE_SIZE, name: GATHERED, table, frames })
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Append(name, n) => format!("{name}: extend({n})"),
            Operation::Drop(name) => format!("drop({name})"),
        }
    }
}

/// A new slab after the first operations.
fn run(done: usize) -> Result<(SharedSlab, Vec<Text>)> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut texts: Vec<Text> = Vec::new();
    for operation in &OPERATIONS[..done] {
        match *operation {
            Operation::Append(name, n) => {
                let mut text = Text::new(name, &slab)?;
                text.append(n)?;
                texts.push(text);
            }
            Operation::Drop(name) => texts.retain(|text| text.name != name),
        }
    }
    Ok((slab, texts))
}

const PITCH: f64 = 28.5;
const CELL: f64 = 25.0;
const GAP: f64 = 8.0;
const HEIGHT: f64 = 28.0;
const LINE: f64 = 62.0;
const TOP: f64 = 36.0;
/// From the last slab down to the dense tensor.
const FALL: f64 = 58.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, name, table, frames } = trace;
    let states: Vec<&State> =
        frames.iter().filter_map(|frame| if let Frame::State(state) = frame { Some(state) } else { None }).collect();
    let copied: Vec<&Copied> =
        frames.iter().filter_map(|frame| if let Frame::Copied(copied) = frame { Some(copied) } else { None }).collect();
    let last = states[states.len() - 1];
    let slab_bottom = TOP + states.len() as f64 * LINE - (LINE - 24.0 - HEIGHT);
    let dense = slab_bottom + FALL;
    let tokens: usize = copied.iter().map(|copied| copied.rows.len()).sum();
    let mut svg = Svg::new(dense + HEIGHT + 62.0);
    for page in 0..last.slab.len() {
        let (first, end) = (x(page, 0, *page_size), x(page, page_size - 1, *page_size) + CELL);
        svg.text((first + end) / 2.0, 15.0, Anchor::Middle, &format!("page {page}"));
        svg.line(&format!("M{} 27v-6H{}v6", rounded(first), rounded(end)));
    }
    for (step, frame) in frames.iter().enumerate() {
        svg.step(step, |svg| match frame {
            Frame::State(state) => {
                let before = step.checked_sub(1).map(|before| states[before]);
                draw_slab(svg, TOP + step as f64 * LINE, *page_size, state, before);
            }
            Frame::Copied(copied) => {
                if step == states.len() {
                    let table_of = format!("table of {name}: {}", comma(table));
                    svg.bold(dense_x(tokens) + 10.0, dense + 12.0, Anchor::Start, &format!("gather of {name}"));
                    svg.text(dense_x(tokens) + 10.0, dense + 29.0, Anchor::Start, &table_of);
                }
                draw_copied(svg, slab_bottom, dense, *page_size, copied);
            }
        });
    }
    let legend = dense + HEIGHT + 18.0;
    svg.legend(Kind::New, 0.0, legend, "written or copied now");
    svg.legend(Kind::Reused, 190.0, legend, "held before");
    svg.legend(Kind::Stale, 0.0, legend + 24.0, "stale: its text has ended");
    svg.legend(Kind::Wasted, 190.0, legend + 24.0, "taken, never written");

    let stale: Vec<&String> = last.slab.iter().flat_map(|page| &page.slots).filter_map(Slot::stale).collect();
    let pages: Vec<String> = copied.iter().map(|copied| told(copied)).collect();
    Drawing {
        svg,
        label: format!(
            "{} lines show a slab of {} pages of {page_size} slots while two earlier texts end and text {name} gets \
             their pages, {} in table order. Arrows lead from {} into one dense tensor of {tokens} rows. The stale rows {} \
             stay behind, without an arrow.",
            states.len(),
            last.slab.len(),
            comma(table),
            listed(&pages),
            listed(&stale)
        ),
        caption: format!(
            "Texts d and e have ended, and {name} has got their pages, {} first. <code>gather</code> goes through the table, \
             not through the memory, and takes only filled slots: {tokens} rows. {} still lie in page {}; nothing \
             reads them. Recorded from <code>PagedCache</code>, one layer; the slots beyond a text's end were read \
             by extending it without a <code>write</code>, on a second slab that went the same way.",
            table[0],
            listed(&stale),
            table[table.len() - 1]
        ),
        steps: frames.iter().map(|frame| step_text(frame, *page_size)).collect(),
    }
}

/// The left edge of a slot's cell.
fn x(page: usize, slot: usize, page_size: usize) -> f64 {
    2.0 + (page * page_size + slot) as f64 * PITCH + page as f64 * GAP
}

/// The left edge of a row of the dense tensor.
fn dense_x(row: usize) -> f64 {
    2.0 + row as f64 * PITCH
}

fn comma(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn draw_slab(svg: &mut Svg, y: f64, page_size: usize, state: &State, before: Option<&State>) {
    svg.bold(0.0, y + 17.0, Anchor::Start, &state.did.join(", "));
    for (page, Page { owner, slots }) in state.slab.iter().enumerate() {
        for (slot, content) in slots.iter().enumerate() {
            let area = Area { x: x(page, slot, page_size), y: y + 24.0, width: CELL, height: HEIGHT };
            let is_new = before.is_none_or(|before| before.slab[page].slots[slot] != *content);
            match (&content.row, content.held, owner) {
                (Some(row), true, _) if is_new => svg.cell(Kind::New, area, row, row),
                (Some(row), true, _) => svg.cell(Kind::Reused, area, row, row),
                (Some(row), false, _) => svg.cell(Kind::Stale, area, row, row),
                (None, _, Some(_)) => svg.cell(Kind::Wasted, area, "", ""),
                (None, _, None) => svg.free(area, "", ""),
            }
        }
    }
}

fn draw_copied(svg: &mut Svg, slab_bottom: f64, dense: f64, page_size: usize, copied: &Copied) {
    for (row, slot, name) in &copied.rows {
        let from = x(copied.page as usize, *slot, page_size) + CELL / 2.0;
        svg.arrow((from, slab_bottom + 4.0), (dense_x(*row) + CELL / 2.0, dense - 4.0));
        svg.cell(Kind::New, Area { x: dense_x(*row), y: dense, width: CELL, height: HEIGHT }, name, name);
    }
}

/// `a0, a1, a2 and a3 of page 1`
fn told(copied: &Copied) -> String {
    let names: Vec<&String> = copied.rows.iter().map(|(_, _, name)| name).collect();
    format!("{} of page {}", listed(&names), copied.page)
}

fn step_text(frame: &Frame, page_size: usize) -> String {
    match frame {
        Frame::State(State { did, slab }) => {
            let pages = slab.iter().enumerate().map(|(page, Page { owner, slots })| {
                let owner = owner.map_or("free".to_string(), |owner| owner.to_string());
                let row = |slot: &Slot| match (&slot.row, slot.held) {
                    (Some(row), true) => row.clone(),
                    (Some(row), false) => format!("({row})"),
                    (None, _) => "..".into(),
                };
                format!("page {page} ({owner}): <code>{}</code>", slots.iter().map(row).collect::<Vec<_>>().join(" "))
            });
            let stale = slab.iter().flat_map(|page| &page.slots).any(|slot| slot.stale().is_some());
            let note = if stale { " In brackets: stale rows, which no text holds." } else { "" };
            format!("<code>{}</code>: {}.{note}", did.join(", "), pages.collect::<Vec<_>>().join(", "))
        }
        Frame::Copied(copied) => {
            let (first, n) = (copied.rows.first().map_or(0, |(row, _, _)| *row), copied.rows.len());
            let rest = page_size - n;
            let left = if rest == 0 { String::new() } else { format!(" The other {rest} slots are not filled.") };
            format!(
                "<code>gather</code> copies {}: rows {first} to {} of the dense tensor.{left}",
                told(copied),
                first + n - 1
            )
        }
    }
}
