//! A picture of one state, laid out from top to bottom in the width that it has: 340 units for a phone, 640 for a
//! desktop.
//!
//! ```text
//!   label  [ ][ ][ ][ ]  [ ][ ][ ][ ]  note     row
//!          page 12       page 5                 pages
//!          [ ][ ][ ][ ]  [ ][ ][ ][ ]
//!   left              right                     beside: one below the other on a phone
//! ```
//!
//! Each of them is drawn at the height that [`Picture::y`] has reached, and moves it down. Colours are those of the
//! book's stylesheet: a colour for each owner, and an outline or hatching for what became of a cell.

use std::fmt::Display;

use crate::words::{escaped, text_width};

/// What a page leaves of a phone of 390 pixels.
pub const NARROW: f64 = 340.0;
pub const WIDE: f64 = 640.0;
pub const CELL: f64 = 30.0;
const BELOW: f64 = 6.0;
/// Between the groups of a row, and between its cells.
pub const GAP: f64 = 7.0;
const APART: f64 = 2.5;
/// Between two parts beside each other.
const GUTTER: f64 = 28.0;
const COLOURS: usize = 8;

/// What a cell stands for. Its name in lower case is the cell's class in the stylesheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Owned, and in use.
    Held,
    Shared,
    /// Owned, and nothing in it.
    Empty,
    /// Work that was done before.
    Again,
    /// Left over from an owner that has gone.
    Stale,
    /// Only the prefix cache owns it.
    Cached,
    Free,
    /// A part with a name, which nobody owns.
    Part,
    /// Keeps a place free.
    Blank,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub kind: Kind,
    /// The numbers of its owners' colours.
    pub owners: Vec<usize>,
    /// One line, or several.
    pub word: String,
    /// Outlined like a change, whatever it was before.
    pub is_outlined: bool,
    /// For the stylesheet, besides its kind and owner.
    pub class: String,
}

fn cell(kind: Kind, owners: &[char], word: impl Display) -> Cell {
    let owners = owners.iter().map(|owner| (owner.to_ascii_lowercase() as usize - 'a' as usize) % COLOURS).collect();
    Cell { kind, owners, word: word.to_string(), is_outlined: false, class: String::new() }
}

pub fn held(owner: char, word: impl Display) -> Cell {
    cell(Kind::Held, &[owner], word)
}

pub fn shared(owners: &[char], word: impl Display) -> Cell {
    cell(Kind::Shared, owners, word)
}

/// A cell of its only owner, or one that they share; `without` if there is none.
pub fn owned(owners: &[char], word: impl Display, without: Cell) -> Cell {
    match owners {
        [] => without,
        [one] => held(*one, word),
        several => shared(several, word),
    }
}

pub fn empty(owner: char) -> Cell {
    cell(Kind::Empty, &[owner], "")
}

pub fn again(owner: char, word: impl Display) -> Cell {
    cell(Kind::Again, &[owner], word)
}

/// `owner`: that of the page in which it lies.
pub fn stale(owner: Option<char>, word: impl Display) -> Cell {
    cell(Kind::Stale, owner.as_slice(), word)
}

pub fn cached(word: impl Display) -> Cell {
    cell(Kind::Cached, &[], word)
}

pub fn free(word: impl Display) -> Cell {
    cell(Kind::Free, &[], word)
}

pub fn part(word: impl Display) -> Cell {
    cell(Kind::Part, &[], word)
}

pub fn blank() -> Cell {
    cell(Kind::Blank, &[], "")
}

impl Cell {
    pub fn outlined(self, is_outlined: bool) -> Self {
        Cell { is_outlined, ..self }
    }

    fn looks_like(&self, other: &Cell) -> bool {
        (self.kind, &self.owners, &self.word) == (other.kind, &other.owners, &other.word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
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

    pub fn bottom(self) -> f64 {
        self.y + self.height
    }

    /// The same with more on every side.
    fn grown(self, by: f64) -> Area {
        Area { x: self.x - by, y: self.y - by, width: self.width + 2.0 * by, height: self.height + 2.0 * by }
    }

    /// The baseline of a line of text in its middle.
    pub fn baseline(self) -> f64 {
        self.y + self.height / 2.0 + 4.5
    }
}

/// Which end of a text lies at its point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Where the cells of a row are: in groups, and in several lines if one is too short.
#[derive(Clone, Copy)]
pub struct Grid {
    x: f64,
    pub y: f64,
    pitch: f64,
    per: usize,
    groups_per_line: usize,
    /// From a line to the next.
    line: f64,
}

impl Grid {
    pub fn cell(&self, i: usize) -> Area {
        let (line, group) = (i / self.per / self.groups_per_line, i / self.per % self.groups_per_line);
        let column = group * self.per + i % self.per;
        Area {
            x: self.x + column as f64 * self.pitch + group as f64 * GAP,
            y: self.y + line as f64 * self.line,
            width: self.pitch - APART,
            height: CELL,
        }
    }

    pub fn middle(&self, i: usize) -> f64 {
        self.cell(i).middle()
    }

    pub fn group(&self, group: usize) -> Area {
        let [first, last] = [group * self.per, (group + 1) * self.per - 1].map(|i| self.cell(i));
        Area { width: last.x + last.width - first.x, ..first }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    Cell(Area, Cell),
    Text {
        x: f64,
        y: f64,
        anchor: Anchor,
        class: &'static str,
        text: String,
    },
    /// The class of a path, and its data.
    Path(String, String),
}

#[derive(Clone, Debug)]
pub struct Picture {
    /// The width of the whole picture. `left` and `width` are those of the part that is drawn now.
    pub full: f64,
    pub left: f64,
    pub width: f64,
    /// How far down the picture is filled, and in the end its height.
    pub y: f64,
    /// Room for the labels of rows, and for the notes at their other end.
    pub labels: f64,
    pub notes: f64,
    /// Cells that would be narrower go on in the next line, if they stand in groups.
    pub least: f64,
    pub marks: Vec<Mark>,
}

impl Picture {
    pub fn new(width: f64) -> Self {
        Picture { full: width, left: 0.0, width, y: 0.0, labels: 0.0, notes: 0.0, least: 26.0, marks: Vec::new() }
    }

    pub fn is_wide(&self) -> bool {
        self.full > 500.0
    }

    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn cell(&mut self, area: Area, cell: Cell) {
        self.marks.push(Mark::Cell(area, cell));
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: impl Display) {
        self.marks.push(Mark::Text { x, y, anchor, class: "", text: text.to_string() });
    }

    pub fn bold(&mut self, x: f64, y: f64, anchor: Anchor, text: impl Display) {
        self.marks.push(Mark::Text { x, y, anchor, class: "b", text: text.to_string() });
    }

    pub fn path(&mut self, class: impl Display, data: String) {
        self.marks.push(Mark::Path(class.to_string(), data));
    }

    pub fn arrow(&mut self, from: (f64, f64), to: (f64, f64)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(0.1);
        // The corners of the head, from its tip: back along the arrow, and to both sides of it.
        let back = (to.0 - dx / length * 6.0, to.1 - dy / length * 6.0);
        let side = (-dy / length * 3.5, dx / length * 3.5);
        let [left, right] = [1.0, -1.0].map(|sign| (back.0 + sign * side.0, back.1 + sign * side.1));
        let [from, tip, left, right] = [from, to, left, right].map(|(x, y)| format!("{x:.1} {y:.1}"));
        self.path("line", format!("M{from}L{tip}M{left}L{tip}L{right}"));
    }

    /// A line of text: a title on the left, a note on the right.
    pub fn heading(&mut self, title: &str, note: &str) {
        self.bold(self.left, self.y + 15.0, Anchor::Start, title);
        if !note.is_empty() {
            self.text(self.right(), self.y + 15.0, Anchor::End, note);
        }
        self.y += 24.0;
    }

    /// Makes room for the labels of the rows that follow.
    pub fn labelled(&mut self, widest: &str) {
        self.labels = text_width(widest) + 8.0;
    }

    /// Makes room for the notes at the right end of the rows that follow.
    pub fn noted(&mut self, widest: &str) {
        self.notes = text_width(widest) + 8.0;
    }

    /// Places for `n` cells in groups of `per`, from here on.
    pub fn grid(&self, n: usize, per: usize) -> Grid {
        let room = self.width - self.labels - self.notes - 2.0 + APART;
        let groups = n.div_ceil(per).max(1);
        let pitch = |per_line: usize| (room - (per_line - 1) as f64 * GAP) / (per_line * per).min(n.max(1)) as f64;
        let lines = (1..=groups).find(|lines| pitch(groups.div_ceil(*lines)) >= self.least && per > 1);
        let per_line = groups.div_ceil(lines.unwrap_or(1));
        Grid {
            x: self.left + self.labels + 1.0,
            y: self.y,
            pitch: pitch(per_line),
            per,
            groups_per_line: per_line,
            line: CELL + BELOW,
        }
    }

    /// Cells with a label in front of them and a note behind, both in one line or two.
    pub fn row(&mut self, label: &str, note: &str, per: usize, cells: impl IntoIterator<Item = Cell>) -> Grid {
        let cells: Vec<Cell> = cells.into_iter().collect();
        let grid = self.grid(cells.len(), per);
        let area = Area { x: self.left, y: self.y, width: self.labels, height: CELL };
        for (x, anchor, text) in [(self.left, Anchor::Start, label), (self.right(), Anchor::End, note)] {
            let up = 8.0 * (text.lines().count().max(1) - 1) as f64;
            for (line, text) in text.lines().enumerate() {
                self.text(x, area.baseline() - up + 16.0 * line as f64, anchor, text);
            }
        }
        self.place(grid, cells);
        grid
    }

    fn place(&mut self, grid: Grid, cells: Vec<Cell>) {
        let lines = cells.len().div_ceil(grid.per).div_ceil(grid.groups_per_line).max(1);
        self.y = grid.y + lines as f64 * grid.line;
        self.marks.extend(cells.into_iter().enumerate().map(|(i, cell)| Mark::Cell(grid.cell(i), cell)));
    }

    /// Groups of `per` cells, each under its name and a bracket. `name`: that of a group, by its number.
    pub fn pages(&mut self, name: impl Fn(usize) -> String, per: usize, cells: impl IntoIterator<Item = Cell>) -> Grid {
        const NAME: f64 = 24.0;
        let cells: Vec<Cell> = cells.into_iter().collect();
        let grid = self.grid(cells.len(), per);
        let grid = Grid { y: grid.y + NAME, line: grid.line + NAME, ..grid };
        for group in 0..cells.len() / per {
            let Area { x, y, width, .. } = grid.group(group);
            self.text(x + width / 2.0, y - 11.0, Anchor::Middle, name(group));
            self.path("line", format!("M{x:.1} {:.1}v-4H{:.1}v4", y - 2.0, x + width));
        }
        self.place(grid, cells);
        self.y -= NAME;
        grid
    }

    /// Parts side by side where the picture is wide, one below the other where it is not.
    pub fn beside(&mut self, n: usize, draw: impl Fn(&mut Picture, usize)) {
        let (left, width, top) = (self.left, self.width, self.y);
        let (labels, notes) = (self.labels, self.notes);
        let mut bottom = top;
        for i in 0..n {
            if self.is_wide() {
                self.width = (width - (n - 1) as f64 * GUTTER) / n as f64;
                (self.left, self.y) = (left + i as f64 * (self.width + GUTTER), top);
            } else if i > 0 {
                self.y += 10.0;
            }
            (self.labels, self.notes) = (labels, notes);
            draw(self, i);
            bottom = bottom.max(self.y);
        }
        (self.left, self.width, self.y) = (left, width, bottom);
    }
}

/// Lines across an area, from lower left to upper right.
fn hatching(Area { x, y, width, height }: Area) -> String {
    const STEP: f64 = 6.0;
    let lines = ((width + height) / STEP) as usize;
    let line = |n: usize| {
        let at = n as f64 * STEP;
        let (x1, y1) = (at.min(width), (at - width).max(0.0));
        let (x2, y2) = ((at - height).max(0.0), at.min(height));
        format!("M{:.1} {:.1}L{:.1} {:.1}", x + x1, y + y1, x + x2, y + y2)
    };
    (1..=lines).map(line).collect()
}

impl Picture {
    /// The elements of its marks, with what they show of the picture before, and of the cells in it that are gone.
    pub fn svg(&self, before: Option<&Picture>) -> String {
        let mut svg = String::new();
        for mark in before.iter().flat_map(|before| &before.marks) {
            if let Mark::Cell(area, cell) = mark
                && self.cell_at(area).is_none()
                && !matches!(cell.kind, Kind::Blank | Kind::Free)
            {
                let was = word_svg(*area, "was", 0.0, &cell.word);
                svg += &format!("<g class=\"c gone\">{}{was}</g>\n", rect(*area, ""));
            }
        }
        for mark in &self.marks {
            svg += &mark.svg(before.and_then(|before| before.was(mark)));
        }
        svg
    }

    /// The word that is at the place of a mark of the next picture, if that mark looks different.
    pub fn was(&self, next: &Mark) -> Option<&str> {
        match next {
            Mark::Cell(area, cell) => match self.cell_at(area) {
                Some(was) => (!was.looks_like(cell)).then_some(&was.word),
                None => (!matches!(cell.kind, Kind::Free | Kind::Blank)).then_some(""),
            },
            Mark::Text { x, y, anchor, text, .. } => self.text_at((*x, *y, *anchor)).filter(|was| was != text),
            Mark::Path(..) => None,
        }
    }

    fn cell_at(&self, place: &Area) -> Option<&Cell> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::Cell(area, cell) if area == place => Some(cell),
            _ => None,
        })
    }

    fn text_at(&self, place: (f64, f64, Anchor)) -> Option<&str> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::Text { x, y, anchor, text, .. } if (*x, *y, *anchor) == place => Some(text.as_str()),
            _ => None,
        })
    }
}

impl Mark {
    /// The element. `was`: the word at its place in the frame before, if that looked different.
    fn svg(&self, was: Option<&str>) -> String {
        match self {
            Mark::Cell(area, cell) => cell_svg(*area, cell, was),
            Mark::Text { x, y, anchor, class, text } => {
                let changed = if was.is_some() { " b" } else { "" };
                let class = format!("{class}{}{changed}", ["", " m", " e"][*anchor as usize]);
                format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{}\">{}</text>\n", class.trim(), escaped(text))
            }
            Mark::Path(class, data) => format!("<path class=\"{class}\" d=\"{data}\"/>\n"),
        }
    }
}

fn rect(Area { x, y, width, height }: Area, more: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"{more}/>")
}

fn word_svg(area: Area, class: &str, down: f64, word: &str) -> String {
    let lines: Vec<&str> = word.lines().filter(|line| !line.is_empty()).collect();
    let first = area.baseline() + down - 8.0 * lines.len().saturating_sub(1) as f64;
    let line = |(n, word): (usize, &&str)| {
        let y = first + 16.0 * n as f64;
        format!("<text x=\"{:.1}\" y=\"{y:.1}\" class=\"{class} m\">{}</text>", area.middle(), escaped(word))
    };
    lines.iter().enumerate().map(line).collect()
}

pub fn cell_svg(area: Area, cell: &Cell, was: Option<&str>) -> String {
    let Cell { kind, owners, word, is_outlined, class } = cell;
    if *kind == Kind::Blank {
        return String::new();
    }
    let mut body = String::new();
    // Around the cell, which keeps its own edge within.
    let is_marked = *is_outlined || was.is_some();
    if is_marked {
        let Area { x, y, width, height } = area.grown(1.25);
        body += &format!("<path class=\"mark\" d=\"M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z\"/>");
    }
    let area = if is_marked { area.grown(-1.5) } else { area };
    if *kind == Kind::Shared {
        let width = area.width / owners.len() as f64;
        for (n, owner) in owners.iter().enumerate() {
            let band = Area { x: area.x + n as f64 * width, width, ..area };
            body += &rect(band, &format!(" class=\"band o{owner}\""));
        }
    }
    body += &rect(area, if *kind == Kind::Shared { " rx=\"6\"" } else { "" });
    if matches!(kind, Kind::Empty | Kind::Again | Kind::Cached) {
        body += &format!("<path class=\"hatch\" d=\"{}\"/>", hatching(area));
    }
    let was = was.filter(|was| !is_outlined && was != word).unwrap_or_default();
    let (above, word) = change(was, word, area.width);
    let (up, down) = if above.is_empty() || word.is_empty() { (0.0, 0.0) } else { (-8.0, 6.0) };
    body += &word_svg(area, "was", up, above);
    body += &word_svg(area, "w", down, &word);
    let owner = owners.first().map_or(String::new(), |owner| format!(" o{owner}"));
    let classes = format!("c {}{owner} {class}", format!("{kind:?}").to_lowercase());
    format!("<g class=\"{}\">{body}</g>\n", classes.trim_end())
}

/// What a cell shows of the word that was in it before, which stands above the new one, and of the new one. A number
/// and the one before it stand in one line, `1 → 0`. What has no room is left out.
fn change<'a>(was: &'a str, word: &str, width: f64) -> (&'a str, String) {
    let is_number = |text: &str| text.rsplit(' ').next().is_some_and(|last| last.parse::<u64>().is_ok());
    let fits = |text: &str| !text.contains('\n') && text_width(text) <= width;
    let change = format!("{was} \u{2192} {word}");
    match word {
        _ if was.is_empty() => ("", word.into()),
        "" if was.contains('\n') => ("", String::new()),
        "" => (was, String::new()),
        _ if is_number(was) || is_number(word) => {
            let has_room = !change.contains(char::is_alphabetic) && text_width(&change) < width;
            ("", if has_room { change } else { word.into() })
        }
        _ if fits(was) && fits(word) => (was, word.into()),
        _ => ("", word.into()),
    }
}
