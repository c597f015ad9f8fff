//! Chapter 2: to grow by a row, the flat cache copies all the rows it has.

use anyhow::Result;
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch02_flat::FlatCache;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::Told;
use crate::svg::{Anchor, Area, Kind, Svg};

const TOKENS: usize = 5;

#[derive(Serialize)]
pub struct Trace {
    frames: Vec<Frame>,
}

/// One token: `extend(1)`, then `write`.
#[derive(Serialize)]
struct Frame {
    after_extend: Vec<String>,
    after_write: Vec<String>,
    /// Whether the rows lie elsewhere in memory than before.
    moved: bool,
    /// Rows since the start.
    rows_copied: u64,
    /// Slots taken.
    slots: usize,
}

pub fn record() -> Result<Trace> {
    let layout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
    let mut told = Told { cache: FlatCache::new(layout) };
    let mut frames = Vec::new();
    for _ in 0..TOKENS {
        let address = told.address(0);
        told.extend(1)?;
        let after_extend = told.row_names(0);
        told.write(1);
        let usage = told.cache.usage();
        frames.push(Frame {
            after_extend,
            after_write: told.row_names(0),
            moved: told.address(0) != address,
            rows_copied: usage.rows_copied,
            slots: usage.slots,
        });
    }
    Ok(Trace { frames })
}

const PITCH: f64 = 50.0;
const LEFT: f64 = 22.0;
const LINE: f64 = 56.0;
const CELL: f64 = 30.0;
const TOP: f64 = 28.0;

pub fn draw(trace: &Trace) -> Drawing {
    let lines = trace.frames.len();
    let bottom = TOP + lines as f64 * LINE - (LINE - CELL);
    let mut svg = Svg::new(bottom + 38.0);
    svg.text(0.0, 15.0, Anchor::Start, "the tensor after each extend(1) and write");
    svg.text(360.0, 15.0, Anchor::End, "copied");
    let mut before = 0;
    for (step, frame) in trace.frames.iter().enumerate() {
        let y = TOP + step as f64 * LINE;
        svg.step(step, |svg| draw_tensor(svg, y, step, frame, copied(frame, before)));
        before = frame.rows_copied;
    }
    svg.legend(Kind::New, 0.0, bottom + 14.0, "new row");
    svg.legend(Kind::Reused, 110.0, bottom + 14.0, "row copied from the old tensor");

    let n = lines as u64;
    let totals: Vec<String> = trace.frames.iter().map(|frame| frame.rows_copied.to_string()).collect();
    Drawing {
        svg,
        label: format!(
            "{n} tensors, one below the other, of 1 to {n} rows. Arrows lead from every row of one to the same row \
             of the next, which has one new row at its end. Rows copied in all: {}.",
            totals.join(", ")
        ),
        caption: format!(
            "A tensor cannot grow where it is: each new token takes a new one and copies every row there is. {n} \
             tokens one by one copy {} rows. Recorded from <code>FlatCache</code>.",
            totals[lines - 1]
        ),
        steps: steps(trace),
    }
}

/// Rows copied in this step.
fn copied(frame: &Frame, before: u64) -> usize {
    (frame.rows_copied - before) as usize
}

fn draw_tensor(svg: &mut Svg, y: f64, step: usize, frame: &Frame, copied: usize) {
    let names = &frame.after_write;
    svg.text(0.0, y + 20.0, Anchor::Start, &(step + 1).to_string());
    for (row, name) in names.iter().enumerate() {
        // A row that has its content before the write came with the copy.
        let came_with_copy = frame.after_extend[row] == *name;
        let x = LEFT + row as f64 * PITCH;
        let kind = if came_with_copy { Kind::Reused } else { Kind::New };
        svg.cell(kind, Area { x, y, width: PITCH - 6.0, height: CELL }, name, name);
        if came_with_copy && frame.moved {
            let middle = x + (PITCH - 6.0) / 2.0;
            svg.arrow((middle, y - (LINE - CELL) + 3.0), (middle, y - 3.0));
        }
    }
    svg.text(312.0, y + 20.0, Anchor::End, &format!("+{copied}"));
    svg.bold(360.0, y + 20.0, Anchor::End, &frame.rows_copied.to_string());
}

fn steps(trace: &Trace) -> Vec<String> {
    let mut before = 0;
    let text = |frame: &Frame| {
        let copied = copied(frame, before);
        before = frame.rows_copied;
        format!(
            "<code>extend(1)</code> takes a new tensor of {} and copies {}: <code>{}</code>. After \
             <code>write</code>: <code>{}</code>. {} copied in all.",
            rows(frame.slots),
            rows(copied),
            frame.after_extend.join(" "),
            frame.after_write.join(" "),
            rows(frame.rows_copied as usize),
        )
    };
    trace.frames.iter().map(text).collect()
}

fn rows(n: usize) -> String {
    if n == 1 { "1 row".into() } else { format!("{n} rows") }
}
