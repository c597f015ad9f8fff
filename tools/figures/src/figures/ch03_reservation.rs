//! Chapter 3: four reservations of one size, to scale, and a request that would fit into what they leave empty.

use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};

use super::prelude::*;
use crate::rows::{LAYOUT, append};

const CAPACITY: usize = 1024;
const LENGTHS: [usize; 4] = [1024, 700, 300, 224];
const ASKED: usize = 500;

pub fn figure() -> Result<Figure> {
    let usage = |length| {
        let mut cache = ContiguousCache::new(LAYOUT, CAPACITY);
        append(&mut cache, 't', length).map(|()| cache.usage())
    };
    let usages = LENGTHS.into_iter().map(usage).collect::<Result<Vec<_>, _>>()?;
    let [slots, wasted] = [|usage: &CacheUsage| usage.slots, CacheUsage::wasted]
        .map(|part| grouped(usages.iter().map(part).sum::<usize>() as u64));
    let (lengths, percent) = (listed(&LENGTHS.map(|length| grouped(length as u64))), 100.0 * wasted_share(&usages));
    let figure = Figure {
        label: format!(
            "Four bars of one length, filled to {lengths}. Below them, a bar of {ASKED}, and all the empty ends in one long bar."
        ),
        headline: format!("A request for {ASKED} slots is turned away from {wasted} empty ones."),
        setup: format!(
            "Four sequences of {lengths} tokens have reserved {} slots each. Of all slots, {percent:.0}\u{a0}% are empty.",
            grouped(CAPACITY as u64)
        ),
        legend: vec![(held('a', ""), "holds a token"), (empty('a'), "reserved, empty"), (free(""), "has no place")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, &usages, &slots, &wasted)))
}

fn draw(picture: &mut Picture, usages: &[CacheUsage], slots: &str, wasted: &str) {
    let scale = (picture.width - 2.0) / usages.iter().map(CacheUsage::wasted).sum::<usize>() as f64;
    let bar = |picture: &mut Picture, pieces: &[(Cell, usize)]| {
        let mut area = Area { x: picture.left + picture.labels + 1.0, y: picture.y, width: 0.0, height: CELL };
        for (cell, slots) in pieces.iter().filter(|(_, slots)| *slots > 0) {
            area.width = *slots as f64 * scale - 2.5;
            picture.cell(area, Cell { word: grouped(*slots as u64), ..cell.clone() });
            area.x += area.width + 2.5;
        }
        picture.y += CELL + 6.0;
        (area.x + 6.0, area.baseline())
    };
    let rests: Vec<(Cell, usize)> = ('a'..).zip(usages).map(|(name, usage)| (empty(name), usage.wasted())).collect();
    picture.labelled("sequence 4");
    for ((n, name), (usage, rest)) in (1..).zip('a'..).zip(usages.iter().zip(&rests)) {
        let (x, y) = bar(picture, &[(held(name, ""), usage.slots - rest.1), rest.clone()]);
        picture.text(picture.left, y, Anchor::Start, format!("sequence {n}"));
        picture.text(x, y, Anchor::Start, if rest.1 == 0 { "0 empty" } else { "" });
    }
    picture.labels = 0.0;
    picture.path("mark", format!("M{:.1} {:.1}H{:.1}", picture.left, picture.y + 3.0, picture.right()));
    picture.y += 8.0;
    picture.heading(&format!("{slots} slots: all reserved"), "");
    let (x, y) = bar(picture, &[(free(""), ASKED)]);
    picture.text(x, y, Anchor::Start, "a fifth request: no place");
    picture.heading(&format!("all that is empty, in one piece: {wasted} slots"), "");
    bar(picture, &rests);
}
