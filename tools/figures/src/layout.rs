//! How a picture is laid out: from top to bottom, in headings, rows of cells and a legend.
//!
//! ```text
//!   title                          note     heading
//!   label  [ ][ ][ ][ ]  [ ][ ][ ][ ]       row, in a grid of groups
//!   [ ] word   [ ] word                     legend
//! ```
//!
//! Each of them is drawn at the height that [`Svg::y`] has reached, and moves it down.

use crate::svg::{Anchor, Area, Cell, Kind, Svg, WIDTH, cell, rounded, text_width};

pub const CELL: f64 = 28.0;
/// From a row to what follows.
const BELOW: f64 = 6.0;
const HEADING: f64 = 24.0;
const LEGEND: f64 = 24.0;

/// Where the cells of a row are, from left to right.
#[derive(Clone, Copy)]
pub struct Grid {
    left: f64,
    pitch: f64,
    width: f64,
    /// Cells that stand together: the slots of a page.
    per: usize,
    gap: f64,
}

impl Grid {
    /// `n` cells in groups of `per`, from `left` to the right edge.
    pub fn across(left: f64, n: usize, per: usize) -> Self {
        Grid::between(left, WIDTH, n, per)
    }

    pub fn between(left: f64, right: f64, n: usize, per: usize) -> Self {
        const GAP: f64 = 5.0;
        const APART: f64 = 2.5;
        let gaps = n.div_ceil(per).max(1) - 1;
        let pitch = (right - left - 3.0 - gaps as f64 * GAP + APART) / n as f64;
        Grid { left: left + 1.5, pitch, width: pitch - APART, per, gap: GAP }
    }

    /// A cell of a row with its upper edge at `y`.
    pub fn cell(self, i: usize, y: f64) -> Area {
        let x = self.left + i as f64 * self.pitch + (i / self.per) as f64 * self.gap;
        Area { x, y, width: self.width, height: CELL }
    }

    pub fn middle(self, i: usize) -> f64 {
        self.cell(i, 0.0).middle()
    }

    pub fn group(self, group: usize, y: f64) -> Area {
        let [first, last] = [group * self.per, (group + 1) * self.per - 1].map(|i| self.cell(i, y));
        Area { width: last.x + last.width - first.x, ..first }
    }
}

impl Svg {
    pub fn heading(&mut self, title: &str, note: &str) {
        self.bold(self.left, self.y + 16.0, Anchor::Start, title);
        if !note.is_empty() {
            self.text(self.left + WIDTH, self.y + 16.0, Anchor::End, note);
        }
        self.y += HEADING;
    }

    /// Cells from the first place of a grid on.
    pub fn row(&mut self, grid: Grid, cells: impl IntoIterator<Item = Cell>) {
        for (i, cell) in cells.into_iter().enumerate() {
            self.cell(grid.cell(i, self.y), &cell);
        }
        self.y += CELL + BELOW;
    }

    /// The name of the row that follows, on its left.
    pub fn label(&mut self, name: &str) {
        self.text(self.left, self.y + CELL / 2.0 + 5.0, Anchor::Start, name);
    }

    /// A text at the right edge of the row that follows.
    pub fn note(&mut self, note: &str) {
        self.text(WIDTH, self.y + CELL / 2.0 + 5.0, Anchor::End, note);
    }

    /// The names of groups, each over a line from its first cell to its last.
    pub fn group_names(&mut self, grid: Grid, names: impl IntoIterator<Item = String>) {
        for (group, name) in names.into_iter().enumerate() {
            let Area { x, y, width, .. } = grid.group(group, self.y);
            self.text(x + width / 2.0, y + 15.0, Anchor::Middle, &name);
            self.line(&format!("M{} {}v-6H{}v6", rounded(x), rounded(y + 27.0), rounded(x + width)));
        }
        self.y += 34.0;
    }

    /// What the kinds of cells mean, in as many lines as it takes.
    pub fn legend(&mut self, words: &[(Kind, &str)]) {
        self.legend_of(&words.iter().map(|(kind, word)| (cell(*kind, ""), *word)).collect::<Vec<_>>());
    }

    /// The same with cells that have a word on them.
    pub fn legend_of(&mut self, words: &[(Cell, &str)]) {
        let mut x = self.left;
        self.y += 8.0;
        for (cell, word) in words {
            // Letters of the reader's own font may be a little wider.
            let width = 25.0 + 1.08 * text_width(word);
            if x + width > self.left + WIDTH {
                (x, self.y) = (self.left, self.y + LEGEND);
            }
            self.cell(Area { x: x + 2.0, y: self.y, width: 18.0, height: 18.0 }, cell);
            self.text(x + 27.0, self.y + 14.0, Anchor::Start, word);
            x += width + 12.0;
        }
        self.y += LEGEND;
    }
}
