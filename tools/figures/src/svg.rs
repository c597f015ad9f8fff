//! Pictures as text: cells, words and lines.
//!
//! A picture is 360 units wide, about the pixels that a phone has, so that words of 14 units can be read there. Colours
//! are those of the book's stylesheet; the values written here serve only where it is missing.

use std::fmt::Write as _;

pub const WIDTH: f64 = 360.0;

/// What a cell is. Colour, border and a word in the legend say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Made in this step.
    New,
    /// There already, and used.
    Reused,
    /// Has more than one owner.
    Shared,
    /// Work or memory that is good for nothing.
    Wasted,
    /// Left behind by somebody who has gone.
    Stale,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::New => "new",
            Kind::Reused => "reused",
            Kind::Shared => "shared",
            Kind::Wasted => "wasted",
            Kind::Stale => "stale",
        }
    }

    fn fill(self) -> &'static str {
        match self {
            Kind::New => "#c8efd4",
            Kind::Reused => "#cfe3fb",
            Kind::Shared => "#e6d8fa",
            Kind::Wasted => "#fde3c0",
            Kind::Stale => "#e4e4e4",
        }
    }

    fn ink(self) -> &'static str {
        match self {
            Kind::New => "#0b5a2a",
            Kind::Reused => "#0b4a8a",
            Kind::Shared => "#5b1f9c",
            Kind::Wasted => "#7a4300",
            Kind::Stale => "#505050",
        }
    }

    /// The colour of words and lines of this kind.
    pub fn ink_colour(self) -> String {
        format!("var(--pbp-{}-ink, {})", self.name(), self.ink())
    }
}

/// Which end of a text lies at its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A place and a size: x, y of the upper left corner, width, height.
#[derive(Clone, Copy)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    fn rounded(self) -> Self {
        let [x, y, width, height] = [self.x, self.y, self.width, self.height].map(rounded);
        Area { x, y, width, height }
    }
}

/// To hundredths, so that the picture has no digits that nobody sees.
pub fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// A picture that is being drawn.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(height: f64) -> Self {
        Svg::with_width(WIDTH, height)
    }

    /// A picture that is not for a page of the book.
    pub fn with_width(width: f64, height: f64) -> Self {
        Svg { width, height, body: String::new() }
    }

    /// The stepper lays no band behind the parts of a step: their colours say what is new.
    pub fn without_bands(&mut self) {
        self.raw("<g class=\"pbp-no-bands\"></g>");
    }

    /// What is drawn in `draw` belongs to this step.
    pub fn step(&mut self, step: usize, draw: impl FnOnce(&mut Svg)) {
        writeln!(self.body, "<g data-step=\"{step}\">").unwrap();
        draw(self);
        self.body.push_str("</g>\n");
    }

    /// A cell with a word in it. `key` names what it holds, the same wherever that is shown; empty: nothing.
    pub fn cell(&mut self, kind: Kind, area: Area, key: &str, word: &str) {
        self.rect(kind, "", area, key, word);
    }

    /// A cell that the figure points at.
    pub fn lit(&mut self, kind: Kind, area: Area, key: &str, word: &str) {
        self.rect(kind, " lit", area, key, word);
    }

    /// A cell whose word has a style of its own: attributes, each with a space before it.
    pub fn styled_cell(&mut self, kind: Kind, area: Area, style: &str, word: &str) {
        self.rect(kind, "", area, "", "");
        self.word_on(kind, area, style, word);
    }

    fn rect(&mut self, kind: Kind, lit: &str, area: Area, key: &str, word: &str) {
        let Area { x, y, width, height } = area.rounded();
        let (name, fill, ink, key) = (kind.name(), kind.fill(), kind.ink_colour(), data_key(key));
        writeln!(
            self.body,
            "<rect class=\"cell-{name}{lit}\"{key} x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             fill=\"var(--pbp-{name}, {fill})\" stroke=\"{ink}\"/>"
        )
        .unwrap();
        if !word.is_empty() {
            self.word_on(kind, area, "", word);
        }
    }

    fn word_on(&mut self, kind: Kind, area: Area, style: &str, word: &str) {
        let Area { x, y, width, height } = area.rounded();
        writeln!(
            self.body,
            "<text class=\"on-{}\" x=\"{}\" y=\"{}\" text-anchor=\"middle\"{style} fill=\"{}\">{}</text>",
            kind.name(),
            rounded(x + width / 2.0),
            rounded(y + height / 2.0 + 5.0),
            kind.ink_colour(),
            escaped(word)
        )
        .unwrap();
    }

    /// Memory that is free: an outline without a colour.
    pub fn free(&mut self, area: Area, key: &str, word: &str) {
        let (Area { x, y, width, height }, key) = (area.rounded(), data_key(key));
        writeln!(
            self.body,
            "<rect class=\"line\"{key} x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
             stroke=\"var(--pbp-line, #5f6672)\"/>"
        )
        .unwrap();
        if !word.is_empty() {
            self.text(x + width / 2.0, y + height / 2.0 + 5.0, Anchor::Middle, word);
        }
    }

    /// Gives an area a key. A line around it is seen when it is lit, and only then.
    pub fn mark(&mut self, area: Area, key: &str) {
        let (Area { x, y, width, height }, key) = (area.rounded(), data_key(key));
        writeln!(
            self.body,
            "<rect{key} x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
             stroke=\"var(--pbp-ink, currentColor)\" stroke-width=\"0\" pointer-events=\"all\"/>"
        )
        .unwrap();
    }

    /// A word of the legend after a small cell.
    pub fn legend(&mut self, kind: Kind, x: f64, y: f64, word: &str) {
        self.cell(kind, legend_cell(x, y), "", "");
        self.text(x + 25.0, y + 13.0, Anchor::Start, word);
    }

    /// The legend's word for what [`free`](Self::free) draws.
    pub fn legend_free(&mut self, x: f64, y: f64, word: &str) {
        self.free(legend_cell(x, y), "", "");
        self.text(x + 25.0, y + 13.0, Anchor::Start, word);
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.words(x, y, anchor, "", text);
    }

    /// A word with a style of its own: attributes, each with a space before it.
    pub fn word(&mut self, x: f64, y: f64, style: &str, word: &str) {
        self.words(x, y, Anchor::Start, style, word);
    }

    /// A word that is as wide as in the book, whatever the reader's letters are.
    pub fn fitted(&mut self, x: f64, y: f64, style: &str, word: &str) {
        let width = rounded(text_width(word));
        self.word(x, y, &format!("{style} textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\""), word);
    }

    pub fn bold(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.words(x, y, anchor, " font-weight=\"700\"", text);
    }

    /// The name of a line, in its colour.
    pub fn name(&mut self, x: f64, y: f64, kind: Kind, text: &str) {
        let style = format!(" font-weight=\"700\" class=\"on-{}\" fill=\"{}\"", kind.name(), kind.ink_colour());
        self.words(x, y, Anchor::End, &style, text);
    }

    fn words(&mut self, x: f64, y: f64, anchor: Anchor, style: &str, text: &str) {
        let (x, y, anchor, text) = (rounded(x), rounded(y), anchor.name(), escaped(text));
        writeln!(self.body, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{style}>{text}</text>").unwrap();
    }

    /// A thin line along `path`, in SVG's notation.
    pub fn line(&mut self, path: &str) {
        writeln!(self.body, "<path class=\"line\" d=\"{path}\" fill=\"none\" stroke=\"var(--pbp-line, #5f6672)\"/>")
            .unwrap();
    }

    /// A line with a head at its end.
    pub fn arrow(&mut self, from: (f64, f64), to: (f64, f64)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let (along, across) = ((dx / length * 5.0, dy / length * 5.0), (-dy / length * 3.5, dx / length * 3.5));
        let back = (to.0 - along.0, to.1 - along.1);
        self.line(&format!(
            "M{:.1} {:.1}L{:.1} {:.1}M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}",
            from.0,
            from.1,
            to.0,
            to.1,
            back.0 + across.0,
            back.1 + across.1,
            to.0,
            to.1,
            back.0 - across.0,
            back.1 - across.1
        ));
    }

    /// What the other methods do not draw. `markup` is whole elements, one a line.
    pub fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
        self.body.push('\n');
    }

    /// The element. `label` is escaped already.
    pub fn html(&self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\" font-size=\"14\" \
             fill=\"var(--pbp-ink, currentColor)\" style=\"min-width: 0; max-width: 50rem\">\n{}</svg>",
            self.width, self.height, self.body
        )
    }

    /// The picture as a file of its own, light or dark as the reader's screen is. `label` is escaped already.
    pub fn file(&self, label: &str) -> String {
        let Svg { width, height, body } = self;
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

fn legend_cell(x: f64, y: f64) -> Area {
    Area { x: x + 2.0, y, width: 16.0, height: 16.0 }
}

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

/// The width of a text in a picture. What is not ASCII counts as a wide letter.
pub fn text_width(text: &str) -> f64 {
    let letter = |c: char| LETTERS.get((c as usize).wrapping_sub(32)).copied().unwrap_or(800);
    text.chars().map(|c| f64::from(letter(c))).sum::<f64>() * 14.0 / 1000.0
}

/// Text as it stands in HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `16, 11, 5 and 3`
pub fn listed<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    match &items[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => items.join(""),
    }
}

/// A number with its thousands apart: `32,896`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 32_896, 1_234_567].map(grouped), ["0", "999", "1,000", "32,896", "1,234,567"]);
    }
}
