//! Chapter 3: four reservations of one size for four texts of unequal length.

use anyhow::Result;
use page_by_page::cache::{KvCache, KvLayout, Usage};
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::Told;
use crate::svg::{Anchor, Area, Kind, Svg, grouped, listed};

const CAPACITY: usize = 16;
const LENGTHS: [usize; 4] = [16, 11, 5, 3];
/// The same with the numbers of a real context.
const LARGE_CAPACITY: usize = 1024;
const LARGE_LENGTHS: [usize; 4] = [1024, 700, 300, 224];

#[derive(Serialize)]
pub struct Trace {
    frames: Vec<Frame>,
    /// Large reservations, filled alike: too many slots to draw.
    large: Large,
}

/// One text more.
#[derive(Serialize)]
struct Frame {
    name: char,
    /// What the filled slots hold, from the first.
    filled: Vec<String>,
    /// Slots reserved.
    slots: usize,
    /// Slots of all texts so far.
    slots_in_all: usize,
    /// Empty slots of all texts so far.
    wasted_in_all: usize,
    /// Of all slots so far, from 0 to 1.
    wasted_share: f64,
}

#[derive(Serialize)]
struct Large {
    tokens: Vec<usize>,
    slots: usize,
    wasted: usize,
}

pub fn record() -> Result<Trace> {
    let mut usages = Vec::new();
    let mut frames = Vec::new();
    for (name, length) in ('A'..).zip(LENGTHS) {
        let told = filled(CAPACITY, length)?;
        let usage = told.cache.usage();
        usages.push(usage);
        frames.push(Frame {
            name,
            filled: told.row_names(0),
            slots: usage.slots,
            slots_in_all: usages.iter().map(|usage| usage.slots).sum(),
            wasted_in_all: usages.iter().map(Usage::wasted).sum(),
            wasted_share: wasted_share(&usages),
        });
    }
    let mut usages = Vec::new();
    for length in LARGE_LENGTHS {
        usages.push(filled(LARGE_CAPACITY, length)?.cache.usage());
    }
    let large = Large {
        tokens: usages.iter().map(|usage| usage.tokens).collect(),
        slots: usages.iter().map(|usage| usage.slots).sum(),
        wasted: usages.iter().map(Usage::wasted).sum(),
    };
    Ok(Trace { frames, large })
}

fn filled(capacity: usize, tokens: usize) -> Result<Told<ContiguousCache>> {
    let layout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
    let mut told = Told { cache: ContiguousCache::new(layout, capacity) };
    told.extend(tokens)?;
    told.write(tokens);
    Ok(told)
}

const LEFT: f64 = 20.0;
const PITCH: f64 = 16.5;
const LINE: f64 = 40.0;
const CELL: f64 = 26.0;
const TOP: f64 = 4.0;

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let bottom = TOP + frames.len() as f64 * LINE;
    let mut svg = Svg::new(bottom + 62.0);
    let last = &frames[frames.len() - 1];
    let percent = percent(last.wasted_share);
    for (step, frame) in frames.iter().enumerate() {
        svg.step(step, |svg| {
            draw_reservation(svg, TOP + step as f64 * LINE, frame);
            // True only when all four are there.
            if step + 1 == frames.len() {
                let total = format!("{} of {} slots empty: {percent}", last.wasted_in_all, last.slots_in_all);
                svg.bold(360.0, bottom + 15.0, Anchor::End, &total);
            }
        });
    }
    svg.legend(Kind::Reused, 0.0, bottom + 38.0, "holds a token");
    svg.legend(Kind::Wasted, 140.0, bottom + 38.0, "empty: wasted");

    let Large { tokens, slots, wasted } = &trace.large;
    let lengths: Vec<String> = frames.iter().map(|frame| frame.filled.len().to_string()).collect();
    let large_lengths: Vec<String> = tokens.iter().map(|tokens| grouped(*tokens as u64)).collect();
    Drawing {
        svg,
        label: format!(
            "Four rows of {} cells, one for each text. They hold {} tokens; the other cells are empty. In all {} \
             of {} slots are empty, {percent}.",
            last.slots,
            listed(&lengths),
            last.wasted_in_all,
            last.slots_in_all
        ),
        caption: format!(
            "Four texts of {} tokens, each with {} slots reserved: {} of {} slots are empty, {percent}, and no \
             other text can use them. With {} slots each and {} tokens, {} of {} are empty. Recorded from \
             <code>ContiguousCache</code> and <code>wasted_share</code>.",
            listed(&lengths),
            last.slots,
            last.wasted_in_all,
            last.slots_in_all,
            grouped(*slots as u64 / tokens.len() as u64),
            listed(&large_lengths),
            grouped(*wasted as u64),
            grouped(*slots as u64),
        ),
        steps: frames.iter().map(step_text).collect(),
    }
}

fn draw_reservation(svg: &mut Svg, y: f64, frame: &Frame) {
    svg.bold(0.0, y + 18.0, Anchor::Start, &frame.name.to_string());
    for slot in 0..frame.slots {
        let area = Area { x: LEFT + slot as f64 * PITCH, y, width: PITCH - 3.5, height: CELL };
        match frame.filled.get(slot) {
            Some(name) => svg.cell(Kind::Reused, area, name, ""),
            None => svg.cell(Kind::Wasted, area, "", ""),
        }
    }
    svg.text(360.0, y + 18.0, Anchor::End, &format!("{} empty", frame.slots - frame.filled.len()));
}

fn step_text(frame: &Frame) -> String {
    format!(
        "{} takes {} slots and fills {}. So far {} of {} slots are empty: {}.",
        frame.name,
        frame.slots,
        frame.filled.len(),
        frame.wasted_in_all,
        frame.slots_in_all,
        percent(frame.wasted_share)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}
