//! Chapter 3: four reservations of one size for four sequences of different lengths.

use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};

use super::prelude::*;
use crate::rows::{LAYOUT, append};

const CAPACITY: usize = 16;
const LENGTHS: [usize; 4] = [16, 11, 5, 3];
const LARGE_CAPACITY: usize = 1024;
const LARGE_LENGTHS: [usize; 4] = [1024, 700, 300, 224];

/// `29 of 64 slots are empty, 45 %`
fn empty_slots(usages: &[CacheUsage]) -> String {
    let slots: usize = usages.iter().map(|usage| usage.slots).sum();
    let wasted: usize = usages.iter().map(CacheUsage::wasted).sum();
    let [wasted, slots] = [wasted, slots].map(|n| grouped(n as u64));
    format!("{wasted} of {slots} slots are empty, {:.0}\u{a0}%", 100.0 * wasted_share(usages))
}

/// Of a reservation for each of these sequences.
fn usages(capacity: usize, lengths: [usize; 4]) -> Result<Vec<CacheUsage>> {
    let usage = |length| {
        let mut cache = ContiguousCache::new(LAYOUT, capacity);
        append(&mut cache, 't', length)?;
        Ok(cache.usage())
    };
    lengths.into_iter().map(usage).collect()
}

pub fn figure() -> Result<Figure> {
    let (usages, large) = (usages(CAPACITY, LENGTHS)?, usages(LARGE_CAPACITY, LARGE_LENGTHS)?);
    let [lengths, large_lengths] =
        [LENGTHS, LARGE_LENGTHS].map(|lengths| listed(&lengths.map(|length| grouped(length as u64))));
    let (empty_slots, large_empty_slots) = (empty_slots(&usages), empty_slots(&large));
    let figure = Figure {
        label: format!(
            "Rows of {CAPACITY} cells, one for each of four sequences of {lengths} tokens; the other cells are empty. \
             {empty_slots}."
        ),
        headline: "In this example, nearly half of what is reserved stays empty.".into(),
        setup: format!(
            "Four sequences of {lengths} tokens reserve {CAPACITY} slots each. With {} slots each and {large_lengths} \
             tokens, {large_empty_slots}.",
            grouped(LARGE_CAPACITY as u64)
        ),
        legend: vec![(held('a', ""), "holds a token"), (empty('b'), "reserved, empty")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.labelled("d");
        picture.noted("13 empty");
        for (name, usage) in ('a'..).zip(&usages) {
            let filled = usage.slots - usage.wasted();
            let cells = (0..usage.slots).map(|slot| if slot < filled { held(name, "") } else { empty(name) });
            picture.row(&name.to_string(), &format!("{} empty", usage.wasted()), 16, cells);
        }
        picture.bold(picture.right(), picture.y + 15.0, Anchor::End, &empty_slots);
        picture.y += 22.0;
    }))
}
