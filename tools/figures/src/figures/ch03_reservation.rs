//! Chapter 3: four reservations of one size for four sequences of different lengths.

use anyhow::Result;
use page_by_page::cache::{KvCache, Usage};
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};

use super::Figure;
use crate::layout::Grid;
use crate::rows::{LAYOUT, append, of_layer};
use crate::svg::{Anchor, Kind, WIDTH, cell};
use crate::words::{grouped, listed};

const CAPACITY: usize = 16;
const LENGTHS: [usize; 4] = [16, 11, 5, 3];
const LARGE_CAPACITY: usize = 1024;
const LARGE_LENGTHS: [usize; 4] = [1024, 700, 300, 224];

/// `29 of 64 slots are empty, 45 %`
fn empty(usages: &[Usage]) -> String {
    let slots: usize = usages.iter().map(|usage| usage.slots).sum();
    let wasted: usize = usages.iter().map(Usage::wasted).sum();
    let [wasted, slots] = [wasted, slots].map(|n| grouped(n as u64));
    format!("{wasted} of {slots} slots are empty, {:.0}\u{a0}%", 100.0 * wasted_share(usages))
}

fn reserved(capacity: usize, tokens: usize) -> Result<ContiguousCache> {
    let mut cache = ContiguousCache::new(LAYOUT, capacity);
    append(&mut cache, 't', tokens)?;
    Ok(cache)
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure::default();
    figure.svg.y = 4.0;
    let mut usages = Vec::new();
    for (name, length) in ('A'..).zip(LENGTHS) {
        let cache = reserved(CAPACITY, length)?;
        let (filled, slots) = (of_layer(&cache, 0)?, cache.usage().slots);
        usages.push(cache.usage());
        let says = format!("{name} takes {slots} slots and fills {}. So far {}.", filled.len(), empty(&usages));
        figure.step(says, |svg| {
            svg.label(&name.to_string());
            svg.note(&format!("{} empty", slots - filled.len()));
            let cells = (0..slots).map(|slot| match filled.get(slot) {
                Some(name) => cell(Kind::Reused, "").key(name.as_deref().unwrap_or_default()),
                None => cell(Kind::Wasted, ""),
            });
            svg.row(Grid::between(18.0, 290.0, slots, slots), cells);
            // True only when all of them are there.
            if usages.len() == LENGTHS.len() {
                svg.bold(WIDTH, svg.y + 15.0, Anchor::End, &empty(&usages));
            }
        });
        figure.svg.y += 4.0;
    }
    figure.svg.y += 20.0;
    figure.svg.legend(&[(Kind::Reused, "holds a token"), (Kind::Wasted, "empty: wasted")]);
    let large: Vec<Usage> =
        LARGE_LENGTHS.iter().map(|length| Ok(reserved(LARGE_CAPACITY, *length)?.usage())).collect::<Result<_>>()?;
    figure.label = format!(
        "Rows of {CAPACITY} cells, one for each of four sequences of {} tokens; the other cells are empty. {}.",
        listed(&LENGTHS),
        empty(&usages)
    );
    figure.caption = format!(
        "<strong>An equal reservation for everyone is mostly empty.</strong> Four sequences of {} tokens have {CAPACITY} slots each: \
         {}, and no other sequence can use them. With {LARGE_CAPACITY} slots each and {} tokens, {}. Recorded from \
         <code>ContiguousCache</code> and <code>wasted_share</code>.",
        listed(&LENGTHS),
        empty(&usages),
        listed(&LARGE_LENGTHS),
        empty(&large)
    );
    Ok(figure)
}
