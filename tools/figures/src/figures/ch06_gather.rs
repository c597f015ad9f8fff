//! Chapter 6: a page that was used before, and a gather that skips what is left in it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};

use super::Figure;
use crate::layout::CELL;
use crate::rows;
use crate::slab::{PAGE_SIZE, State, grid, name_pages, new_slab};
use crate::svg::{Anchor, Kind, Svg, named};
use crate::words::{joined, listed};

/// Sequences `d` and `e` end, and `a` gets their pages: the page that was freed last first.
pub const EARLIER: [(char, usize); 3] = [('d', 4), ('b', 3), ('e', 4)];
pub const ENDED: [char; 2] = ['d', 'e'];
pub const TOKENS: usize = 6;

enum Frame {
    State(State),
    /// What `gather` has from one page: the row of the dense tensor, the slot, and what it holds.
    Gathered {
        page: u32,
        rows: Vec<(usize, usize, String)>,
    },
}

/// A slab in which `a` has pages that held other rows before, and what it looked like on the way.
pub fn reused_pages() -> Result<(Vec<State>, SharedSlab, BTreeMap<char, PagedCache>)> {
    let slab = new_slab(3)?;
    let mut caches: BTreeMap<char, PagedCache> = BTreeMap::new();
    let state = |operation: String, caches: &BTreeMap<char, PagedCache>| {
        let tables: Vec<_> = caches.iter().map(|(name, cache)| (*name, cache.table())).collect();
        State::of(operation, Ok(()), &slab, &tables)
    };
    let append = |caches: &mut BTreeMap<char, PagedCache>, name, n| -> Result<()> {
        let mut cache = PagedCache::new(&slab)?;
        cache.extend(n)?;
        rows::write(&mut cache, name, n);
        caches.insert(name, cache);
        Ok(())
    };
    EARLIER.iter().try_for_each(|(name, n)| append(&mut caches, *name, *n))?;
    let mut states = vec![state(format!("extend {}", listed(&EARLIER.map(|(name, _)| name))), &caches)?];
    caches.retain(|name, _| !ENDED.contains(name));
    states.push(state(format!("drop {}", listed(&ENDED)), &caches)?);
    append(&mut caches, 'a', TOKENS)?;
    states.push(state("extend a".into(), &caches)?);
    Ok((states, slab, caches))
}

fn record() -> Result<Vec<Frame>> {
    let (states, _slab, caches) = reused_pages()?;
    let a = caches.get(&'a').context("nothing to gather")?;
    let names = rows::of_layer(a, 0)?;
    let mut frames: Vec<Frame> = states.into_iter().map(Frame::State).collect();
    for page in a.table().pages() {
        let mut rows = Vec::new();
        for (row, name) in names.iter().enumerate() {
            let place = a.table().locate(row)?;
            if place.page == *page {
                rows.push((row, place.slot, name.clone().context("a row of zeros")?));
            }
        }
        frames.push(Frame::Gathered { page: page.0, rows });
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let grid = grid(3);
    let mut svg = Svg::new();
    name_pages(&mut svg, 3);
    let (mut before, mut dense) = (None, 0.0);
    for frame in frames {
        match frame {
            Frame::State(state) => {
                svg.step(|svg| state.draw(svg, before));
                svg.y += 4.0;
                before = Some(state);
                dense = svg.y + 46.0;
            }
            Frame::Gathered { page, rows } => svg.step(|svg| {
                for (row, slot, name) in rows {
                    let from = (grid.middle(*page as usize * PAGE_SIZE + slot), dense - 52.0);
                    svg.arrow(from, (grid.middle(*row), dense - 4.0));
                    svg.cell(grid.cell(*row, dense), &named(Kind::New, name));
                }
            }),
        }
    }
    svg.bold(grid.cell(TOKENS, 0.0).x + 10.0, dense + 19.0, Anchor::Start, "gather of a");
    svg.y = dense + CELL + 6.0;
    svg.legend(&[
        (Kind::New, "written or copied now"),
        (Kind::Reused, "held before"),
        (Kind::Stale, "stale: its sequence has ended"),
        (Kind::Wasted, "taken, empty"),
    ]);
    let stale: Vec<&String> = before.iter().flat_map(|state| &state.slab).flat_map(|page| page.stale()).collect();
    Ok(Figure {
        svg,
        label: format!(
            "A slab of pages while two sequences end and a gets their pages. Arrows lead from the slots of a into one dense \
             tensor of {TOKENS} rows, and none from the stale rows {}.",
            listed(&stale)
        ),
        caption: format!(
            "<strong>A gather follows the table, not the memory, and takes only filled slots.</strong> Sequences d and e have \
             ended, and a has got their pages. {} still lie in its last page, and nothing reads them. Recorded from \
             <code>PagedCache</code>, one layer.",
            listed(&stale)
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn step_text(frame: &Frame) -> String {
    match frame {
        Frame::State(state) => state.step(),
        Frame::Gathered { page, rows } => {
            let names: Vec<&String> = rows.iter().map(|(_, _, name)| name).collect();
            let places: Vec<usize> = rows.iter().map(|(row, ..)| *row).collect();
            let rest = match PAGE_SIZE - rows.len() {
                0 => String::new(),
                n => format!(" The other {n} slots are not filled."),
            };
            format!(
                "<code>gather</code> copies {} of page {page} into rows {} of the dense tensor.{rest}",
                listed(&names),
                joined(&places, ", ")
            )
        }
    }
}
