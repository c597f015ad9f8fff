//! A slab of a few pages, drawn once for each step, line below line.

use crate::svg::{Anchor, Area, Svg, rounded};

/// From the left edge of a slot to that of the next one of its page.
const PITCH: f64 = 21.5;
const CELL: f64 = 19.0;
/// Between two pages, beyond that.
const GAP: f64 = 4.5;
/// From a line to the next one.
const LINE: f64 = 62.0;
/// Where the first line begins, under the names of the pages.
const TOP: f64 = 36.0;

/// Where the slots of a slab are in each line.
#[derive(Clone, Copy)]
pub struct SlabLines {
    /// Slots in a page.
    pub page_size: usize,
    pub n_pages: usize,
    /// One for each step.
    pub n_lines: usize,
}

impl SlabLines {
    /// An empty picture with the names of the pages, and room for the lines and two rows of legend.
    pub fn svg(self) -> Svg {
        let mut svg = Svg::new(self.bottom() + 46.0);
        for page in 0..self.n_pages {
            let (first, end) = (self.x(page, 0), self.x(page, self.page_size - 1) + CELL);
            svg.text((first + end) / 2.0, 15.0, Anchor::Middle, &format!("page {page}"));
            svg.line(&format!("M{} 27v-6H{}v6", rounded(first), rounded(end)));
        }
        svg
    }

    /// The upper edge of a step's line.
    pub fn top(self, step: usize) -> f64 {
        TOP + step as f64 * LINE
    }

    /// Under the last line.
    pub fn bottom(self) -> f64 {
        self.top(self.n_lines)
    }

    /// A slot's cell, in the line with this upper edge.
    pub fn cell(self, top: f64, page: usize, slot: usize) -> Area {
        Area { x: self.x(page, slot), y: top + 24.0, width: CELL, height: 28.0 }
    }

    fn x(self, page: usize, slot: usize) -> f64 {
        2.0 + (page * self.page_size + slot) as f64 * PITCH + page as f64 * GAP
    }
}
