//! The book's figures, one file each: what to run, and how to draw what was seen.
//!
//! A figure is a list of frames, and each frame is the whole picture of one state, drawn once for each width. What
//! differs from the frame before is found here, by place: a changed cell gets a line around it, and what it was is
//! still to be seen, struck through.

use page_by_page::chapters::{self, Source};

use self::prelude::*;

/// What each figure is made with.
pub mod prelude {
    pub use super::Figure;
    pub use crate::chart::Chart;
    pub use crate::models::*;
    pub use crate::picture::*;
    pub use crate::words::*;
    pub use anyhow::{Context, Result, ensure};
    pub use page_by_page::cache::{CacheError, CacheUsage, KvCache, KvLayout, PageId, Rewind};
    pub use std::collections::BTreeMap;
}

/// What was seen of the code, drawn and in words. `book/stepper.js` lays the frames on top of each other; without it
/// the kept ones stand below each other.
#[derive(Default)]
pub struct Figure {
    pub name: &'static str,
    pub number: String,
    /// The picture in words, for those who do not see it.
    pub label: String,
    /// Under the picture: what it shows, in bold, and the set-up in a line; HTML.
    pub headline: String,
    pub setup: String,
    /// Cells and what they mean, where a kind has no usual meaning or a different one here.
    pub legend: Vec<(Cell, &'static str)>,
    /// What the outline means; it is a change from the frame before unless something else is said.
    pub outline: Option<&'static str>,
    /// The frame at which a reader who can step begins, counted from 0.
    pub opens: usize,
    /// The frame to keep between the first and the last, counted from 0, if it is not the one that changes most.
    pub middle: Option<usize>,
    /// The state that the first frame changes. It is not shown.
    pub before: Option<[Picture; 2]>,
    pub frames: Vec<Frame>,
}

/// The whole picture of one state, narrow and wide.
pub struct Frame {
    /// HTML; empty in a figure of one frame.
    pub text: String,
    pub pictures: [Picture; 2],
}

impl Figure {
    pub fn frame(&mut self, text: impl Into<String>, draw: impl Fn(&mut Picture)) {
        self.frames.push(Frame { text: text.into(), pictures: drawn(draw) });
    }

    pub fn starts_from(&mut self, draw: impl Fn(&mut Picture)) {
        self.before = Some(drawn(draw));
    }

    pub fn still(mut self, draw: impl Fn(&mut Picture)) -> Self {
        self.frame("", draw);
        self
    }

    /// The fragment that a page includes. No line is blank, because that would end the HTML in Markdown; no element has
    /// an id, because the print page renames those.
    pub fn html(&self) -> String {
        let Figure { name, number, headline, setup, frames, opens, .. } = self;
        let kept = self.kept();
        let frames: String = (0..frames.len()).map(|step| self.frame_html(step, kept.contains(&step))).collect();
        let legend = self.legend_html();
        format!(
            "<figure class=\"pbp-figure\" data-opens=\"{opens}\" data-figure=\"{name}\">\n<div class=\"pbp-frames\">\n{frames}</div>\n{legend}\
             <figcaption><span>Figure {number}.</span> <strong>{headline}</strong> {setup}</figcaption>\n</figure>\n"
        )
    }

    fn frame_html(&self, step: usize, is_kept: bool) -> String {
        let (Frame { text, pictures }, n) = (&self.frames[step], self.frames.len());
        let text = match n {
            1 => String::new(),
            _ => format!("<p class=\"pbp-says\"><b>{} of {n}</b> {text}</p>\n", step + 1),
        };
        let before = step.checked_sub(1).map_or(self.before.as_ref(), |before| Some(&self.frames[before].pictures));
        let label = escaped(&self.label);
        let svg = |size: usize| {
            let (class, picture) = (["narrow", "wide"][size], &pictures[size]);
            let (width, height) = (picture.full, picture.y.ceil() + 2.0);
            format!(
                "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
                 role=\"img\" aria-label=\"{label}\">\n{}</svg>\n",
                picture.svg(before.map(|before| &before[size]))
            )
        };
        let kept = if is_kept { " kept" } else { "" };
        format!("<div class=\"pbp-frame{kept}\" data-step=\"{step}\">\n{text}{}{}</div>\n", svg(0), svg(1))
    }

    /// The frames that are shown where they cannot be stepped through: the first, the last, and one between them.
    fn kept(&self) -> Vec<usize> {
        let changes = |step: &usize| {
            let [before, now] = [step - 1, *step].map(|step| &self.frames[step].pictures[0]);
            now.marks.iter().filter(|mark| before.was(mark).is_some()).count()
        };
        let last = self.frames.len() - 1;
        let middle = self.middle.or_else(|| (1..last).rev().max_by_key(changes));
        [Some(0), middle, Some(last)].into_iter().flatten().collect()
    }

    /// What the looks of the cells mean: the figure's own words, and the usual ones for the other kinds that occur.
    fn legend_html(&self) -> String {
        let marks = self.frames.iter().flat_map(|frame| &frame.pictures[0].marks);
        let cells = || marks.clone().filter_map(|mark| if let Mark::Cell(_, cell) = mark { Some(cell) } else { None });
        let mut items = self.legend.clone();
        for (kind, words) in USUAL {
            let is_explained = self.legend.iter().any(|(own, _)| own.kind == kind);
            let Some(first) = cells().find(|cell| cell.kind == kind && !is_explained) else { continue };
            let sample = match kind {
                // A struck word says more than an empty cell, if it is short enough.
                Kind::Stale => stale(None, if first.word.len() < 3 { &first.word } else { "" }),
                _ => Cell { word: String::new(), ..first.clone() }.outlined(false),
            };
            items.push((sample, words));
        }
        items.sort_by_key(|(cell, _)| cell.kind);
        if self.frames.len() > 1 || self.outline.is_some() || cells().any(|cell| cell.is_outlined) {
            items.push((free("").outlined(true), self.outline.unwrap_or("changed in this step")));
        }
        let item = |(cell, words): &(Cell, &str)| {
            let sample = cell_svg(Area { x: 3.0, y: 3.0, width: 22.0, height: 16.0 }, cell, None);
            format!(
                "<span><svg viewBox=\"0 0 28 22\" width=\"28\" height=\"22\" \
                 aria-hidden=\"true\">{}</svg>{words}</span>",
                sample.trim()
            )
        };
        let items: String = items.iter().map(item).collect();
        if items.is_empty() { items } else { format!("<p class=\"pbp-legend\">{items}</p>\n") }
    }
}

/// The kinds of cells that mean the same in most figures, in the order of the legend.
const USUAL: [(Kind, &str); 6] = [
    (Kind::Shared, "shared: several owners"),
    (Kind::Empty, "taken, empty"),
    (Kind::Again, "computed before"),
    (Kind::Stale, "stale"),
    (Kind::Cached, "only the prefix cache owns it"),
    (Kind::Free, "free"),
];

fn drawn(draw: impl Fn(&mut Picture)) -> [Picture; 2] {
    [NARROW, WIDE].map(|width| {
        let mut picture = Picture::new(width);
        draw(&mut picture);
        picture
    })
}

type Entry = (&'static str, fn() -> Result<Figure>);

/// The module of each figure, and what runs its code and draws it, by name.
///
/// `cargo fmt` does not find these modules; `rustfmt --edition 2024 tools/figures/src/figures/*.rs` formats them.
macro_rules! figures {
    ($($name:ident,)*) => {
        $(mod $name;)*
        const FIGURES: &[Entry] = &[$((stringify!($name), $name::figure)),*];
    };
}

// In the order of the pages.
figures! {
    home_pages, ch01_triangle, ch01_bill, engine_map, model_layer, ch02_copy, ch02_bill, ch03_bandages, ch03_layers,
    ch03_reservation, ch04_fragmentation, ch04_free_list, ch05_table, ch05_grow, ch06_page, ch06_interleaved, ch06_gather,
    ch07_three, ch07_rewind, ch08_step, ch08_memory, ch08_k_chart, ch09_bars, ch09_share_chart, ch10_fork, ch10_beams,
    ch11_trie, ch11_swap, ch11_cliff, ch11_hit_rate, ch12_timeline, server_pages, ch13_runs, ch14_head, ch15_shrink, ch16_file,
}

/// Runs the code of every figure. Fails when a chapter has been started: the book shows the reference at work, not an
/// exercise half done.
pub fn all() -> Result<Vec<Figure>> {
    for chapter in chapters::all() {
        ensure!(
            chapter.source == Source::Reference,
            "figures show the reference, but exercises/{0}.rs has been edited; set it aside with \
             `git stash push exercises/{0}.rs`. To see your own code in the figures: `cargo book --mine`",
            chapter.name
        );
    }
    FIGURES.iter().map(run).collect()
}

/// Runs the code of one figure, with the reader's chapters where they are started.
pub fn run((name, figure): &Entry) -> Result<Figure> {
    Ok(Figure { name, number: number(name), ..figure()? })
}

pub fn find(name: &str) -> Result<&'static Entry> {
    let figure = FIGURES.iter().find(|(known, _)| *known == name);
    figure.with_context(|| format!("no figure {name}: the names are those in book/src/figures"))
}

/// `6.1`: the chapter, and the place among its figures. Those of no chapter are A, B and so on.
fn number(name: &str) -> String {
    let of_chapter = |name: &str| name.strip_prefix("ch").and_then(|rest| rest.get(..2)?.parse::<usize>().ok());
    let chapter = of_chapter(name);
    let before = FIGURES.iter().take_while(|(other, _)| *other != name);
    let place = before.filter(|(other, _)| of_chapter(other) == chapter).count();
    chapter.map_or_else(|| ('A'..).nth(place).unwrap_or('?').into(), |chapter| format!("{chapter}.{}", place + 1))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static ALL: LazyLock<Vec<Figure>> = LazyLock::new(|| all().unwrap());

    /// Of a window 900 units high, three fifths.
    const HIGHEST: f64 = 540.0;

    fn overlap(a: &Area, b: &Area) -> bool {
        a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.bottom() && b.y < a.bottom()
    }

    #[test]
    fn words_fit_and_lie_apart() {
        for figure in &*ALL {
            for (step, frame) in figure.frames.iter().enumerate() {
                for picture in &frame.pictures {
                    check_words(picture, &format!("{}, step {}, {} wide", figure.name, step + 1, picture.full));
                }
                let height = frame.pictures[1].y;
                assert!(height <= HIGHEST, "{}, step {}: {height} high", figure.name, step + 1);
            }
        }
    }

    fn check_words(picture: &Picture, place: &str) {
        let fits = |area: &Area| area.x >= -0.5 && area.x + area.width <= picture.full + 0.5;
        // What the next text must not lie on.
        let mut taken: Vec<(Area, &str)> = Vec::new();
        for mark in &picture.marks {
            let Mark::Cell(area, cell) = mark else { continue };
            assert!(fits(area), "{place}: the cell {} leaves the picture", cell.word);
            let widest = cell.word.lines().map(text_width).fold(0.0, f64::max);
            assert!(widest <= area.width, "{place}: {} is wider than its cell", cell.word);
            if cell.kind != Kind::Blank {
                taken.push((*area, &cell.word));
            }
        }
        for mark in &picture.marks {
            let Mark::Text { x, y, anchor, text, .. } = mark else { continue };
            let width = text_width(text);
            let to_the_left = [0.0, width / 2.0, width][*anchor as usize];
            let area = Area { x: x - to_the_left, y: y - 10.0, width, height: 12.0 };
            assert!(fits(&area), "{place}: {text} leaves the picture");
            let below = taken.iter().find(|(other, _)| overlap(&area, other));
            assert!(below.is_none(), "{place}: {text} lies on {below:?}");
            taken.push((area, text));
        }
    }

    #[test]
    fn a_fragment_fits_into_markdown_and_each_of_several_steps_has_a_text() {
        for figure in &*ALL {
            let (name, html) = (figure.name, figure.html());
            assert!(!html.contains("\n\n") && !html.contains(" id="), "{name}");
            assert!(figure.frames.iter().all(|frame| frame.text.is_empty() == (figure.frames.len() == 1)), "{name}");
            assert!(!figure.label.is_empty() && !figure.headline.is_empty(), "{name}");
        }
    }

    #[test]
    fn figures_are_numbered_in_the_order_of_the_pages() {
        let root = crate::root();
        let read = |page: &str| std::fs::read_to_string(root.join("book/src").join(page)).expect(page);
        let summary = read("SUMMARY.md");
        let pages = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(page, _)| page);
        // Each part begins with the map of the engine, which belongs to the page on the model.
        let text: String = pages.filter(|page| !page.starts_with("part")).map(read).collect();
        let included = text.split("{{#include figures/").skip(1).filter_map(|rest| rest.split_once(".html}}"));
        let mut names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, included.map(|(name, _)| name).collect::<Vec<_>>());
        names.sort();
        assert_eq!(names, page_by_page_course::figures::all(&root));
        assert_eq!(number("ch05_grow"), "5.2");
        assert_eq!(number("model_layer"), "C");
        assert!(ALL[0].html().contains("<figcaption><span>Figure A.</span> <strong>"));
    }
}
