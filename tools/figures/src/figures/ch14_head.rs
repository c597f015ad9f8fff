//! Chapter 14: a key of the story teller in each format, and how far each number is off.

use anyhow::{Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::{decode, encode, words};
use page_by_page::kernels::RowFormat;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::bundled;
use crate::svg::{Anchor, Area, Kind, Svg, rounded};

const PROMPT: &str = "Once upon a time";

#[derive(Serialize)]
pub struct Trace {
    prompt: &'static str,
    /// A key of the newest token, in layer 0 and head 0, as it was computed.
    key: Vec<f32>,
    /// One for each format.
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    format: &'static str,
    bytes: usize,
    /// The first word, if it is a scale.
    scale: Option<f32>,
    /// What is read, less what was written.
    errors: Vec<f32>,
}

pub fn record() -> Result<Trace> {
    let dir = bundled("storyteller");
    let (model, tokenizer) = (Model::open(&dir)?, Tokenizer::open(&dir)?);
    let prompt = tokenizer.encode(PROMPT)?;
    let head_dim = model.config().head_dim;
    let mut cache = ContiguousCache::new(model.config().kv_layout(), prompt.len());
    model.step(&prompt, Some(&mut cache))?;
    let (keys, _) = cache.gather(0);
    let newest = (prompt.len() - 1) * model.config().kv_layout().kv_width();
    let key = keys[newest..newest + head_dim].to_vec();
    let frames = RowFormat::ALL.map(|format| {
        let (mut packed, mut again) = (vec![0.0; words(format, head_dim)], vec![0.0; head_dim]);
        encode(format, &key, &mut packed);
        decode(format, &packed, &mut again);
        Frame {
            format: format.name(),
            bytes: packed.len() * size_of::<f32>(),
            scale: (format == RowFormat::Int8).then_some(packed[0]),
            errors: again.iter().zip(&key).map(|(again, number)| again - number).collect(),
        }
    });
    ensure!(frames[0].errors.iter().all(|error| *error == 0.0), "f32 is not what was written");
    Ok(Trace { prompt: PROMPT, key, frames: frames.into() })
}

const LEFT: f64 = 2.0;
const WIDTH: f64 = 356.0;
/// The numbers themselves.
const KEY_AT: f64 = 24.0;
const KEY_HEIGHT: f64 = 74.0;
/// A format: its name, its memory, its errors.
const PANEL: f64 = 112.0;
const FIRST_AT: f64 = KEY_AT + KEY_HEIGHT + 34.0;
const MEMORY: f64 = 20.0;
const ERRORS: f64 = 44.0;

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { key, frames, prompt } = trace;
    let most = frames.iter().map(|frame| largest(&frame.errors)).fold(0.0, f32::max);
    let bottom = FIRST_AT + frames.len() as f64 * PANEL;
    let mut svg = Svg::new(bottom + 26.0);
    svg.bold(0.0, 15.0, Anchor::Start, &format!("a key: {} numbers, the largest {:.2}", key.len(), largest(key)));
    bars(&mut svg, KEY_AT, KEY_HEIGHT, key, largest(key), Kind::Reused);
    for (step, frame) in frames.iter().enumerate() {
        let y = FIRST_AT + step as f64 * PANEL;
        svg.step(step, |svg| {
            svg.bold(0.0, y, Anchor::Start, &format!("{}: {} bytes", frame.format, frame.bytes));
            svg.text(WIDTH + 2.0, y, Anchor::End, &off_by(frame));
            memory(svg, y + 8.0, frame, &frames[0]);
            bars(svg, y + 8.0 + MEMORY + 6.0, ERRORS, &frame.errors, most, Kind::Wasted);
        });
    }
    svg.legend(Kind::Reused, 0.0, bottom + 6.0, "a number");
    svg.legend(Kind::New, 96.0, bottom + 6.0, "a word");
    svg.legend(Kind::Shared, 180.0, bottom + 6.0, "scale");
    svg.legend(Kind::Wasted, 264.0, bottom + 6.0, "its error");
    let told: Vec<String> = frames
        .iter()
        .map(|frame| format!("{} takes {} bytes and is {}", frame.format, frame.bytes, off_by(frame)))
        .collect();
    let int8 = &frames[frames.len() - 1];
    let scale = int8.scale.unwrap_or_default();
    Drawing {
        svg,
        label: format!(
            "Bars for the {} numbers of a key. Below, four panels, one for each format, with the words of the key and a \
             bar for the error of each number: {}.",
            key.len(),
            told.join("; ")
        ),
        caption: format!(
            "A key of the story teller, after \u{201c}{prompt}\u{201d}, in each format: its words of 4 bytes, and how far each \
             of its numbers is off when it is read. All errors are drawn to the same scale. In int8 a byte counts {scale:.4}, so a \
             number is off by at most {:.4}. Recorded from <code>encode</code> and <code>decode</code>.",
            scale / 2.0
        ),
        steps: frames
            .iter()
            .map(|frame| format!("<strong>{}</strong>: {} bytes, {}.", frame.format, frame.bytes, off_by(frame)))
            .collect(),
    }
}

fn off_by(frame: &Frame) -> String {
    match largest(&frame.errors) {
        0.0 => "exact".into(),
        error => format!("off by {error:.5} at most"),
    }
}

/// The words, to scale.
fn memory(svg: &mut Svg, y: f64, frame: &Frame, of_f32: &Frame) {
    let word = WIDTH / (of_f32.bytes / 4) as f64;
    for i in 0..frame.bytes / 4 {
        let kind = if i == 0 && frame.scale.is_some() { Kind::Shared } else { Kind::New };
        let area = Area { x: rounded(LEFT + i as f64 * word), y, width: rounded(word - 1.5), height: MEMORY };
        svg.cell(kind, area, "", "");
    }
}

/// A bar for each number, up or down from the middle. `most`: what takes all the height.
fn bars(svg: &mut Svg, y: f64, height: f64, numbers: &[f32], most: f32, kind: Kind) {
    let (middle, pitch) = (y + height / 2.0, WIDTH / numbers.len() as f64);
    svg.line(&format!("M{LEFT} {}H{}", rounded(middle), LEFT + WIDTH));
    for (i, number) in numbers.iter().enumerate().filter(|(_, number)| **number != 0.0) {
        let length = f64::from(number.abs() / most) * height / 2.0;
        let top = if *number > 0.0 { middle - length } else { middle };
        let area = Area {
            x: rounded(LEFT + i as f64 * pitch + 1.0),
            y: rounded(top),
            width: rounded(pitch - 2.0),
            height: rounded(length.max(0.3)),
        };
        svg.cell(kind, area, "", "");
    }
}
