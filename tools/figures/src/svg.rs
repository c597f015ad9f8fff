//! Elements of a picture: cells, words, lines and arrows, each where the caller says. [`layout`](crate::layout) places them.
//!
//! A picture is 360 units wide, about the pixels of a phone, so that words of 14 units can be read there. The colours are
//! those of the book's stylesheet; the values written here serve only where it is missing.

use std::fmt::{Display, Write as _};

use crate::words::escaped;

pub const WIDTH: f64 = 360.0;
const LINE: &str = "var(--pbp-line, #5f6672)";

/// What a cell is. Its colour, its border and a word in the legend say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Made in this step.
    New,
    /// Made earlier, and used.
    Reused,
    /// Has several owners.
    Shared,
    /// Work or memory without use.
    Wasted,
    /// Left in memory after its owner has gone.
    Stale,
    /// Memory without an owner: an outline without a colour.
    Free,
}

impl Kind {
    /// Its name in the stylesheet, and the colours of a cell and of the words on it.
    fn style(self) -> [&'static str; 3] {
        match self {
            Kind::New => ["new", "#c8efd4", "#0b5a2a"],
            Kind::Reused => ["reused", "#cfe3fb", "#0b4a8a"],
            Kind::Shared => ["shared", "#e6d8fa", "#5b1f9c"],
            Kind::Wasted => ["wasted", "#fde3c0", "#7a4300"],
            Kind::Stale => ["stale", "#e4e4e4", "#505050"],
            Kind::Free => ["line", "none", "currentColor"],
        }
    }

    pub fn ink(self) -> String {
        match self.style() {
            ["line", ..] => "var(--pbp-ink, currentColor)".into(),
            [name, _, ink] => format!("var(--pbp-{name}-ink, {ink})"),
        }
    }
}

/// Which end of a text lies at its point.
#[derive(Debug)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Copy)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub fn middle(self) -> f64 {
        self.x + self.width / 2.0
    }

    /// The baseline of a line of text in its middle.
    pub fn baseline(self) -> f64 {
        self.y + self.height / 2.0 + 5.0
    }

    pub fn shrunk(self, by: f64) -> Self {
        let (width, height) = (self.width - 2.0 * by, self.height - 2.0 * by);
        Area { x: self.x + by, y: self.y + by, width, height }
    }

    fn attributes(self) -> String {
        let [x, y, width, height] = [self.x, self.y, self.width, self.height].map(rounded);
        format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"")
    }
}

/// To hundredths, since finer digits cannot be seen.
pub fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

#[derive(Clone)]
pub struct Cell {
    kind: Kind,
    /// One line, or two.
    word: String,
    /// Names the content, the same wherever it is shown; empty for none.
    key: String,
    is_lit: bool,
    style: &'static str,
}

pub fn cell(kind: Kind, word: impl Display) -> Cell {
    Cell { kind, word: word.to_string(), key: String::new(), is_lit: false, style: "" }
}

/// A cell with a word that names its content wherever that is shown.
pub fn named(kind: Kind, word: impl Display) -> Cell {
    let word = word.to_string();
    cell(kind, &word).key(word)
}

impl Cell {
    pub fn key(self, key: impl Display) -> Self {
        Cell { key: key.to_string(), ..self }
    }

    /// A cell that the figure points at.
    pub fn lit(self, is_lit: bool) -> Self {
        Cell { is_lit, ..self }
    }

    /// `style`: attributes of the word, each after a space.
    pub fn styled(self, style: &'static str) -> Self {
        Cell { style, ..self }
    }
}

pub struct Svg {
    width: f64,
    pub left: f64,
    /// How far down the picture is filled, and in the end its height.
    pub y: f64,
    steps: usize,
    body: String,
}

impl Default for Svg {
    fn default() -> Self {
        Svg::with_width(WIDTH)
    }
}

impl Svg {
    /// A picture that is not for a page of the book.
    pub fn with_width(width: f64) -> Self {
        Svg { width, left: 0.0, y: 0.0, steps: 0, body: String::new() }
    }

    /// The stepper lays no band behind the parts of a step, because their colours say what is new.
    pub fn without_bands(&mut self) {
        self.raw("<g class=\"pbp-no-bands\"></g>");
    }

    pub fn step(&mut self, draw: impl FnOnce(&mut Svg)) {
        writeln!(self.body, "<g data-step=\"{}\">", self.steps).unwrap();
        draw(self);
        self.body.push_str("</g>\n");
        self.steps += 1;
    }

    pub fn cell(&mut self, area: Area, cell: &Cell) {
        let Cell { kind, word, key, is_lit, style } = cell;
        let ([name, fill, _], key, area_of) = (kind.style(), data_key(key), area.attributes());
        let lit = if *is_lit { " lit" } else { "" };
        let (class, fill, stroke) = match kind {
            Kind::Free => (name.to_string(), fill.to_string(), LINE.to_string()),
            _ => (format!("cell-{name}"), format!("var(--pbp-{name}, {fill})"), kind.ink()),
        };
        self.raw(&format!("<rect class=\"{class}{lit}\"{key} {area_of} fill=\"{fill}\" stroke=\"{stroke}\"/>"));
        let lines: Vec<&str> = word.lines().filter(|line| !line.is_empty()).collect();
        let first = area.baseline() - 8.5 * (lines.len().max(1) - 1) as f64;
        for (line, word) in (0..).zip(lines) {
            let style = format!(" class=\"on-{name}\" fill=\"{}\"{style}", kind.ink());
            self.words(area.middle(), first + 17.0 * f64::from(line), Anchor::Middle, &style, word);
        }
    }

    /// Gives an area a key. A line around it is seen only while it is lit.
    pub fn mark(&mut self, area: Area, key: &str) {
        self.raw(&format!(
            "<rect{} {} fill=\"none\" stroke=\"var(--pbp-ink, currentColor)\" stroke-width=\"0\" pointer-events=\"all\"/>",
            data_key(key),
            area.attributes()
        ));
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.words(x, y, anchor, "", text);
    }

    pub fn bold(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.words(x, y, anchor, " font-weight=\"700\"", text);
    }

    pub fn name(&mut self, x: f64, y: f64, kind: Kind, text: &str) {
        let style = format!(" font-weight=\"700\" class=\"on-{}\" fill=\"{}\"", kind.style()[0], kind.ink());
        self.words(x, y, Anchor::End, &style, text);
    }

    /// A text that is as wide as in the book, whatever the reader's font is.
    pub fn fitted(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let width = rounded(text_width(text));
        let style = format!("{style} textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\"");
        self.words(x, y, Anchor::Start, &style, text);
    }

    /// A text with a style: attributes, each after a space.
    pub fn words(&mut self, x: f64, y: f64, anchor: Anchor, style: &str, text: &str) {
        let (x, y, anchor, text) = (rounded(x), rounded(y), format!("{anchor:?}").to_lowercase(), escaped(text));
        self.raw(&format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{style}>{text}</text>"));
    }

    pub fn line(&mut self, path: &str) {
        self.raw(&format!("<path class=\"line\" d=\"{path}\" fill=\"none\" stroke=\"{LINE}\"/>"));
    }

    pub fn arrow(&mut self, from: (f64, f64), to: (f64, f64)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let (back, side) =
            ((to.0 - dx / length * 5.0, to.1 - dy / length * 5.0), (-dy / length * 3.5, dx / length * 3.5));
        let heads = [(back.0 + side.0, back.1 + side.1), to, (back.0 - side.0, back.1 - side.1)];
        let [from, to, left, tip, right] =
            [from, to, heads[0], heads[1], heads[2]].map(|(x, y)| format!("{x:.1} {y:.1}"));
        self.line(&format!("M{from}L{to}M{left}L{tip}L{right}"));
    }

    /// What the other methods do not draw: a whole element, or several, one a line.
    pub fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
        self.body.push('\n');
    }

    /// The element. `label` is escaped already.
    pub fn html(&self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\" font-size=\"14\" \
             fill=\"var(--pbp-ink, currentColor)\" style=\"min-width: 0; max-width: 50rem\">\n{}</svg>",
            self.width,
            rounded(self.y),
            self.body
        )
    }

    /// The picture as a file of its own, light or dark as the reader's screen is. `label` is escaped already.
    pub fn file(&self, label: &str) -> String {
        let (width, height, body) = (self.width, rounded(self.y), &self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{label}\">\n<style>\n{STYLE}</style>\n\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n{body}</svg>\n"
        )
    }
}

/// The book's colours and borders, for a picture that stands outside of it.
const STYLE: &str = "\
:root { --pbp-line: #5f6672; --pbp-ink: #1c1d20; --ground: #fff; }
@media (prefers-color-scheme: dark) {
:root { --pbp-line: #a3abb8; --pbp-ink: #e6e9ef; --ground: #161b22;
--pbp-new: #123f23; --pbp-new-ink: #8fe3ab; --pbp-reused: #17395f; --pbp-reused-ink: #a9cffb;
--pbp-wasted: #4a2f08; --pbp-wasted-ink: #f6c581; }
}
text { font: 14px 'Open Sans', 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: var(--pbp-ink); }
text[font-weight] { font-weight: 700; }
text[font-style] { font-style: italic; }
.ground { fill: var(--ground); }
.line { stroke-width: 1.5; }
.cell-new { stroke-width: 3; }
.cell-reused { stroke-width: 1.5; }
.cell-wasted { stroke-width: 2; stroke-dasharray: 6 4; }
.on-new { fill: var(--pbp-new-ink, #0b5a2a); }
.on-reused { fill: var(--pbp-reused-ink, #0b4a8a); }
";

fn data_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" data-key=\"{}\"", escaped(key)) }
}

/// How wide the book's letters are, in thousandths of their size: Open Sans, from the space to the tilde.
const LETTERS: [u16; 95] = [
    260, 267, 401, 646, 572, 823, 730, 221, 296, 296, 552, 572, 245, 322, 266, 367, 572, 572, 572, 572, 572, 572, 572,
    572, 572, 572, 266, 266, 572, 572, 572, 429, 899, 633, 648, 631, 729, 556, 516, 728, 738, 279, 267, 614, 519, 903,
    754, 779, 602, 779, 618, 549, 553, 728, 595, 926, 577, 560, 571, 329, 367, 329, 542, 448, 577, 556, 613, 476, 613,
    561, 339, 548, 614, 253, 253, 525, 253, 930, 614, 604, 613, 613, 408, 477, 353, 614, 501, 778, 524, 504, 468, 379,
    551, 379, 572,
];

/// The width of a text in a picture. A letter outside ASCII counts as a wide one.
pub fn text_width(text: &str) -> f64 {
    let letter = |c: char| LETTERS.get((c as usize).wrapping_sub(32)).copied().unwrap_or(800);
    text.chars().map(|c| f64::from(letter(c))).sum::<f64>() * 14.0 / 1000.0
}
