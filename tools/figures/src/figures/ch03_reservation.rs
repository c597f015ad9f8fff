//! Chapter 3: four reservations of one size for four sequences of different lengths.

use anyhow::Result;
use page_by_page::cache::{KvCache, Usage};
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};

use super::Figure;
use crate::layout::Grid;
use crate::rows::{LAYOUT, of_layer, write};
use crate::svg::{Anchor, Kind, Svg, WIDTH, cell};
use crate::words::{grouped, listed};

const CAPACITY: usize = 16;
const LENGTHS: [usize; 4] = [16, 11, 5, 3];
/// The same with the numbers of a real context.
const LARGE_CAPACITY: usize = 1024;
const LARGE_LENGTHS: [usize; 4] = [1024, 700, 300, 224];

struct Trace {
    frames: Vec<Frame>,
    /// Large reservations, filled alike: too many slots to draw.
    large: Waste,
}

/// One more sequence.
struct Frame {
    name: char,
    /// What the filled slots hold, from the first.
    filled: Vec<Option<String>>,
    slots: usize,
    /// Of all sequences so far.
    in_all: Waste,
}

struct Waste {
    slots: usize,
    wasted: usize,
    /// From 0 to 1.
    wasted_share: f64,
}

impl Waste {
    fn of(usages: &[Usage]) -> Self {
        Waste {
            slots: usages.iter().map(|usage| usage.slots).sum(),
            wasted: usages.iter().map(Usage::wasted).sum(),
            wasted_share: wasted_share(usages),
        }
    }

    /// `29 of 64 slots are empty, 45 %`
    fn says(&self) -> String {
        let [wasted, slots] = [self.wasted, self.slots].map(|n| grouped(n as u64));
        format!("{wasted} of {slots} slots are empty, {:.0}\u{a0}%", 100.0 * self.wasted_share)
    }
}

fn record() -> Result<Trace> {
    let reserved = |capacity: usize, tokens: usize| -> Result<ContiguousCache> {
        let mut cache = ContiguousCache::new(LAYOUT, capacity);
        cache.extend(tokens)?;
        Ok(cache)
    };
    let (mut usages, mut frames) = (Vec::new(), Vec::new());
    for (name, length) in ('A'..).zip(LENGTHS) {
        let mut cache = reserved(CAPACITY, length)?;
        write(&mut cache, 't', length);
        usages.push(cache.usage());
        let (filled, slots) = (of_layer(&cache, 0)?, cache.usage().slots);
        frames.push(Frame { name, filled, slots, in_all: Waste::of(&usages) });
    }
    let large: Vec<Usage> =
        LARGE_LENGTHS.iter().map(|length| Ok(reserved(LARGE_CAPACITY, *length)?.usage())).collect::<Result<_>>()?;
    Ok(Trace { frames, large: Waste::of(&large) })
}

pub fn figure() -> Result<Figure> {
    let trace = &record()?;
    let frames = &trace.frames;
    let all = &frames[frames.len() - 1].in_all;
    let mut svg = Svg::new();
    svg.y = 4.0;
    for frame in frames {
        svg.step(|svg| {
            let (filled, slots) = (frame.filled.len(), frame.slots);
            svg.label(&frame.name.to_string());
            svg.note(&format!("{} empty", slots - filled));
            let grid = Grid::between(18.0, 290.0, slots, slots);
            svg.row(
                grid,
                (0..slots).map(|slot| match frame.filled.get(slot) {
                    Some(name) => cell(Kind::Reused, "").key(name.as_deref().unwrap_or_default()),
                    None => cell(Kind::Wasted, ""),
                }),
            );
            // True only when all of them are there.
            if std::ptr::eq(all, &frame.in_all) {
                svg.bold(WIDTH, svg.y + 15.0, Anchor::End, &all.says());
            }
        });
        svg.y += 4.0;
    }
    svg.y += 20.0;
    svg.legend(&[(Kind::Reused, "holds a token"), (Kind::Wasted, "empty: wasted")]);
    Ok(Figure {
        svg,
        label: format!(
            "Rows of {CAPACITY} cells, one for each of four sequences of {} tokens; the other cells are empty. {}.",
            listed(&LENGTHS),
            all.says()
        ),
        caption: format!(
            "<strong>An equal reservation for everyone is mostly empty.</strong> Four sequences of {} tokens have {CAPACITY} slots \
             each: {}, and no other sequence can use them. With {LARGE_CAPACITY} slots each and {} tokens, {}. Recorded from \
             <code>ContiguousCache</code> and <code>wasted_share</code>.",
            listed(&LENGTHS),
            all.says(),
            listed(&LARGE_LENGTHS),
            trace.large.says()
        ),
        steps: frames
            .iter()
            .map(|Frame { name, filled, slots, in_all }| {
                format!("{name} takes {slots} slots and fills {}. So far {}.", filled.len(), in_all.says())
            })
            .collect(),
        ..Figure::default()
    })
}
