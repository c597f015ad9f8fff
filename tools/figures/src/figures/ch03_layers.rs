//! Chapter 3: one reservation, all layers in it, and where each row lies.

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::Told;
use crate::svg::{Anchor, Area, Kind, Svg};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const CAPACITY: usize = 8;
const EXTENDS: [usize; 4] = [3, 1, 5, 2];

#[derive(Serialize)]
pub struct Trace {
    layers: usize,
    frames: Vec<Frame>,
}

/// One `extend`, and `write` if it was granted.
#[derive(Serialize)]
struct Frame {
    operation: String,
    /// The refusal in words.
    refused: Option<String>,
    /// Tokens held.
    tokens: usize,
    /// Tokens that came with this step.
    new_tokens: usize,
    /// What each row of the tensor holds; `null` if nothing.
    tensor: Vec<Option<String>>,
    rows_copied: u64,
}

pub fn record() -> Result<Trace> {
    let mut told = Told { cache: ContiguousCache::new(LAYOUT, CAPACITY) };
    let mut frames = vec![frame(&told, format!("new, capacity {CAPACITY}"), None, 0)];
    for n in EXTENDS {
        let operation = format!("extend({n})");
        let outcome = told.extend(n);
        if outcome.is_ok() {
            told.write(n);
        }
        let refused = outcome.as_ref().err().map(|error| format!("{error:?}"));
        let new_tokens = if outcome.is_ok() { n } else { 0 };
        let frame = frame(&told, operation, refused, new_tokens);
        let changed = frame.tensor != frames[frames.len() - 1].tensor;
        ensure!(changed == outcome.is_ok(), "after extend({n}) {outcome:?} the tensor holds {:?}", frame.tensor);
        frames.push(frame);
    }
    Ok(Trace { layers: LAYOUT.n_layers, frames })
}

/// Reads the cache. A row's place in the tensor is told by its address.
fn frame(told: &Told<ContiguousCache>, operation: String, refused: Option<String>, new_tokens: usize) -> Frame {
    let usage = told.cache.usage();
    let row_bytes = LAYOUT.kv_width() * size_of::<f32>();
    let mut tensor = vec![None; LAYOUT.n_layers * usage.slots];
    for layer in 0..LAYOUT.n_layers {
        let first = (told.address(layer) - told.address(0)) / row_bytes;
        for (row, name) in (first..).zip(told.row_names(layer)) {
            tensor[row] = Some(name);
        }
    }
    Frame { operation, refused, tokens: usage.tokens, new_tokens, tensor, rows_copied: usage.rows_copied }
}

const PITCH: f64 = 22.0;
const GAP: f64 = 8.0;
const LINE: f64 = 62.0;
const CELL: f64 = 28.0;
const TOP: f64 = 54.0;

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let rows = frames[0].tensor.len();
    let per_layer = rows / trace.layers;
    let bottom = TOP + frames.len() as f64 * LINE;
    let mut svg = Svg::new(bottom + 32.0);
    for layer in 0..trace.layers {
        let (first, last) = (x(layer * per_layer, per_layer), x((layer + 1) * per_layer - 1, per_layer) + PITCH - 4.0);
        svg.text((first + last) / 2.0, 15.0, Anchor::Middle, &format!("rows of layer {layer}"));
        svg.line(&format!("M{first} 27v-6H{last}v6"));
    }
    for row in 0..rows {
        svg.text(x(row, per_layer) + (PITCH - 4.0) / 2.0, 42.0, Anchor::Middle, &row.to_string());
    }
    for (step, frame) in frames.iter().enumerate() {
        svg.step(step, |svg| draw_tensor(svg, TOP + step as f64 * LINE, per_layer, frame));
    }
    svg.legend(Kind::New, 0.0, bottom + 10.0, "new");
    svg.legend(Kind::Reused, 75.0, bottom + 10.0, "where it was");
    svg.legend(Kind::Wasted, 205.0, bottom + 10.0, "reserved, empty");

    let last = &frames[frames.len() - 1];
    Drawing {
        svg,
        label: format!(
            "The same {rows} cells {} times, one line for each step: the rows of one tensor, 0 to {} for layer 0 and \
             {} to {} for layer 1. Tokens fill both halves from the left; no row ever moves; {} of {per_layer} slots \
             are filled at the end.",
            frames.len(),
            per_layer - 1,
            per_layer,
            rows - 1,
            last.tokens,
        ),
        caption: format!(
            "One tensor of {rows} rows, made once: layer 0 has rows 0 to {}, layer 1 rows {per_layer} to {}. Token 3 \
             lies in row 3 and in row {per_layer} + 3 = {}. A refused <code>extend</code> changes nothing; rows \
             copied: {}. Recorded from <code>ContiguousCache</code>; the tensor of the values looks the same.",
            per_layer - 1,
            rows - 1,
            row_of(last, "t3", per_layer),
            last.rows_copied
        ),
        steps: frames.iter().map(|frame| step_text(frame, per_layer)).collect(),
    }
}

/// The row in the last layer that holds this token.
fn row_of(frame: &Frame, token: &str, per_layer: usize) -> usize {
    let rows = frame.tensor.iter().skip(per_layer);
    per_layer + rows.take_while(|row| row.as_deref() != Some(token)).count()
}

/// The left edge of a row's cell.
fn x(row: usize, per_layer: usize) -> f64 {
    2.0 + row as f64 * PITCH + (row / per_layer) as f64 * GAP
}

/// Whether a row came with this step.
fn is_new(frame: &Frame, row: usize, per_layer: usize) -> bool {
    let position = row % per_layer;
    (frame.tokens - frame.new_tokens..frame.tokens).contains(&position)
}

fn draw_tensor(svg: &mut Svg, y: f64, per_layer: usize, frame: &Frame) {
    for (row, name) in frame.tensor.iter().enumerate() {
        let area = Area { x: x(row, per_layer), y: y + 24.0, width: PITCH - 4.0, height: CELL };
        match name {
            Some(name) if is_new(frame, row, per_layer) => svg.cell(Kind::New, area, name, name),
            Some(name) => svg.cell(Kind::Reused, area, name, name),
            None => svg.cell(Kind::Wasted, area, "", ""),
        }
    }
    let outcome = match frame.refused {
        Some(_) => "refused: nothing changes".to_string(),
        None => format!("{} of {per_layer} slots filled", frame.tokens),
    };
    svg.bold(0.0, y + 17.0, Anchor::Start, &frame.operation);
    svg.text(360.0, y + 17.0, Anchor::End, &outcome);
}

fn step_text(frame: &Frame, per_layer: usize) -> String {
    let operation = &frame.operation;
    if let Some(error) = &frame.refused {
        return format!("<code>{operation}</code>: <code>{error}</code>. Every row is as it was.");
    }
    let places = |position: usize| {
        let rows = (position..frame.tensor.len()).step_by(per_layer);
        let token = frame.tensor[position].as_deref().unwrap_or("nothing");
        format!("{token} in rows {}", rows.map(|row| row.to_string()).collect::<Vec<_>>().join(" and "))
    };
    let new: Vec<String> = (frame.tokens - frame.new_tokens..frame.tokens).map(places).collect();
    match new.is_empty() {
        true => format!("{operation}: {} rows, all empty.", frame.tensor.len()),
        false => format!("<code>{operation}</code> and <code>write</code>: {}.", new.join(", ")),
    }
}
