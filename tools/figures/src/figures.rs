//! The book's figures, one file each: what to run, and how to draw what was seen.
//!
//! A figure is a list of frames, and each frame is the whole picture of one state, drawn once for each width. What differs from
//! the frame before is found here, by place: a changed cell gets a line around it, and what it was is still to be seen, struck through.

mod ch01_rows_chart;
mod ch01_triangle;
mod ch02_copies_chart;
mod ch02_copy;
mod ch03_layers;
mod ch03_reservation;
mod ch04_fragmentation;
mod ch04_free_list;
mod ch05_grow;
mod ch05_table;
mod ch06_gather;
mod ch06_interleaved;
mod ch06_page;
mod ch07_rewind;
mod ch07_three;
mod ch08_k_chart;
mod ch08_memory;
mod ch08_step;
mod ch09_bars;
mod ch09_share_chart;
mod ch10_beams;
mod ch10_fork;
mod ch11_hit_rate;
mod ch11_trie;
mod ch12_timeline;
mod ch13_runs;
mod ch14_head;
mod ch15_shrink;
mod ch16_file;
mod engine_map;
mod model_layer;
mod server_pages;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::{self, Source};

use crate::picture::{Area, Cell, Fate, Mark, NARROW, Picture, WIDE, blank, free};
use crate::words::{escaped, listed};

/// What was seen of the code, drawn and in words. `book/stepper.js` lays the frames on top of each other; without it the kept
/// ones stand below each other.
#[derive(Default)]
pub struct Figure {
    /// As in [`FIGURES`], which gives it.
    pub name: &'static str,
    pub number: String,
    /// What is seen, for those who do not see it.
    pub label: String,
    /// Under the picture: what it shows, in bold, and the set-up in a line; HTML.
    pub message: String,
    pub setup: String,
    /// Words in the legend that are not the usual ones.
    pub legend: Vec<(Fate, &'static str)>,
    /// What each owner's colour stands for, where no word says so.
    pub owners: Vec<(Cell, &'static str)>,
    /// What the outline means; it is a change from the frame before unless something else is said.
    pub outline: &'static str,
    /// Nothing stays from a frame to the next, so changes are not marked.
    pub is_anew: bool,
    /// The frame that tells most, counted from 0, if it is not the one that changes most.
    pub telling: Option<usize>,
    /// The state that the first frame changes. It is not shown.
    pub before: Option<[Picture; 2]>,
    pub frames: Vec<Frame>,
}

/// The whole picture of one state, narrow and wide.
pub struct Frame {
    /// HTML; empty in a figure of one frame.
    pub says: String,
    pub pictures: [Picture; 2],
}

impl Figure {
    pub fn frame(&mut self, says: impl Into<String>, draw: impl Fn(&mut Picture)) {
        self.frames.push(Frame { says: says.into(), pictures: drawn(draw) });
    }

    /// The state before the first frame.
    pub fn starts_from(&mut self, draw: impl Fn(&mut Picture)) {
        self.before = Some(drawn(draw));
    }

    /// A figure of one frame.
    pub fn still(mut self, draw: impl Fn(&mut Picture)) -> Self {
        self.frame("", draw);
        self
    }

    /// The fragment that a page includes. No line is blank, because that would end the HTML in Markdown; no element has an
    /// id, because the print page renames those.
    pub fn html(&self) -> String {
        let Figure { name, number, message, setup, frames, .. } = self;
        let kept = self.kept();
        let frames: String = (0..frames.len()).map(|step| self.frame_html(step, kept.contains(&step))).collect();
        let legend = self.legend_html();
        format!(
            "<figure class=\"pbp-figure\" data-figure=\"{name}\">\n<div class=\"pbp-frames\">\n{frames}</div>\n{legend}\
             <figcaption><span>Figure {number}.</span> <strong>{message}</strong> {setup}</figcaption>\n</figure>\n"
        )
    }

    fn frame_html(&self, step: usize, is_kept: bool) -> String {
        let Frame { says, pictures } = &self.frames[step];
        let n = self.frames.len();
        let says = match n {
            1 => String::new(),
            _ => format!("<p class=\"pbp-says\"><b>{} of {n}</b> {says}</p>\n", step + 1),
        };
        let label = escaped(&self.label);
        let svgs: String = ["narrow", "wide"].iter().zip(pictures).enumerate().map(|(size, (class, now))| {
            let before = step.checked_sub(1).map_or(self.before.as_ref(), |before| Some(&self.frames[before].pictures));
            let before = before.filter(|_| !self.is_anew).map(|pictures| &pictures[size]);
            let (width, height) = (now.full_width(), now.y.ceil() + 2.0);
            format!(
                "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
                 aria-label=\"{label}\">\n{}</svg>\n",
                marked(now, before)
            )
        }).collect();
        let kept = if is_kept { " kept" } else { "" };
        format!("<div class=\"pbp-frame{kept}\" data-step=\"{step}\">\n{says}{svgs}</div>\n")
    }

    /// The frames that are shown where they cannot be stepped through: the first, the last, and of those between them the
    /// one that tells most.
    fn kept(&self) -> Vec<usize> {
        let changes = |step: &usize| {
            let [before, now] = [step - 1, *step].map(|step| &self.frames[step].pictures[0]);
            now.marks.iter().filter(|mark| was(mark, before).is_some()).count()
        };
        let last = self.frames.len() - 1;
        let telling = self.telling.or_else(|| (1..last).rev().max_by_key(changes));
        [Some(0), telling, Some(last)].into_iter().flatten().collect()
    }

    /// What the looks of the cells mean, for those that occur.
    fn legend_html(&self) -> String {
        let mut seen: BTreeMap<Fate, Cell> = BTreeMap::new();
        let mut is_lit = self.frames.len() > 1 && !self.is_anew;
        for mark in self.frames.iter().flat_map(|frame| &frame.pictures[0].marks) {
            if let Mark::Cell(_, cell) = mark {
                seen.entry(cell.fate).or_insert_with(|| cell.clone());
                is_lit |= cell.is_lit;
            }
        }
        let mut items: Vec<(Cell, &str)> = self.owners.clone();
        for (fate, cell) in seen {
            let own = self.legend.iter().find(|(own, _)| *own == fate).map(|(_, words)| *words);
            let word = if fate == Fate::Stale && cell.word.len() < 3 { cell.word.clone() } else { String::new() };
            let owners = if fate == Fate::Stale { Vec::new() } else { cell.owners.clone() };
            let sample = Cell { owners, ..cell.says(word).lit(false) };
            items.extend(own.or(usual(fate)).map(|words| (sample, words)));
        }
        if is_lit {
            items.push((
                free("").lit(true),
                if self.outline.is_empty() { "changed in this step" } else { self.outline },
            ));
        }
        let item = |(cell, words): &(Cell, &str)| {
            let area = Area { x: 3.0, y: 3.0, width: 22.0, height: 16.0 };
            let sample = Mark::Cell(area, cell.clone()).svg(None);
            format!(
                "<span><svg viewBox=\"0 0 28 22\" width=\"28\" height=\"22\" aria-hidden=\"true\">{}</svg>{words}</span>",
                sample.trim()
            )
        };
        let items: String = items.iter().filter(|(_, words)| !words.is_empty()).map(item).collect();
        if items.is_empty() { items } else { format!("<p class=\"pbp-legend\">{items}</p>\n") }
    }
}

/// A state in both widths.
fn drawn(draw: impl Fn(&mut Picture)) -> [Picture; 2] {
    [NARROW, WIDE].map(|width| {
        let mut picture = Picture::new(width);
        draw(&mut picture);
        picture
    })
}

fn usual(fate: Fate) -> Option<&'static str> {
    match fate {
        Fate::Held | Fate::Part | Fate::Blank => None,
        Fate::Shared => Some("shared: several owners"),
        Fate::Empty => Some("taken, empty"),
        Fate::Again => Some("computed before"),
        Fate::Stale => Some("stale"),
        Fate::Cached => Some("only the prefix cache owns it"),
        Fate::Free => Some("free"),
    }
}

/// The marks of a picture, and what they show of the one before.
fn marked(now: &Picture, before: Option<&Picture>) -> String {
    let Some(before) = before else { return now.marks.iter().map(|mark| mark.svg(None)).collect() };
    let gone = before.marks.iter().filter(|mark| !now.marks.iter().any(|other| is_same_place(mark, other)));
    let gone = gone.map(Mark::ghost);
    gone.chain(now.marks.iter().map(|mark| mark.svg(was(mark, before).as_ref()))).collect()
}

/// What was at the place of a mark, if it differs.
fn was(mark: &Mark, before: &Picture) -> Option<Mark> {
    match (before.marks.iter().find(|other| is_same_place(mark, other)), mark) {
        (Some(was), _) => (!was.shows_the_same(mark)).then(|| was.clone()),
        (None, Mark::Cell(area, cell)) if !matches!(cell.fate, Fate::Free | Fate::Blank) => {
            Some(Mark::Cell(*area, blank()))
        }
        _ => None,
    }
}

fn is_same_place(one: &Mark, other: &Mark) -> bool {
    match (one, other) {
        (Mark::Cell(one, _), Mark::Cell(other, _)) => {
            let near = |a: f64, b: f64| (a - b).abs() < 0.05;
            near(one.x, other.x)
                && near(one.y, other.y)
                && near(one.width, other.width)
                && near(one.height, other.height)
        }
        (Mark::Text(one), Mark::Text(other)) => (one.x, one.y, one.anchor) == (other.x, other.y, other.anchor),
        _ => one == other,
    }
}

/// Runs the code of a figure and draws what it saw.
type Record = fn() -> Result<Figure>;

/// Each figure by its name.
macro_rules! figures {
    ($($name:ident,)*) => { &[$((stringify!($name), $name::figure)),*] };
}

/// The figures, in the order of the pages.
const FIGURES: &[(&str, Record)] = figures! {
    ch01_triangle, ch01_rows_chart, engine_map, model_layer, ch02_copy, ch02_copies_chart, ch03_reservation,
    ch03_layers, ch04_fragmentation, ch04_free_list, ch05_table, ch05_grow, ch06_page, ch06_interleaved, ch06_gather,
    ch07_three, ch07_rewind, ch08_step, ch08_memory, ch08_k_chart, ch09_bars, ch09_share_chart, ch10_fork, ch10_beams,
    ch11_trie, ch11_hit_rate, ch12_timeline, server_pages, ch13_runs, ch14_head, ch15_shrink, ch16_file,
};

/// Runs the code of every figure.
///
/// # Errors
/// When a chapter has been started: the book shows the reference at work, not an exercise half done.
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
///
/// # Errors
/// The chapters' own, or that there is no such figure.
pub fn one(name: &str) -> Result<Figure> {
    let figure = FIGURES.iter().find(|(known, _)| *known == name);
    run(figure.with_context(|| {
        format!("no figure {name} (there are {})", listed(&FIGURES.iter().map(|(name, _)| *name).collect::<Vec<_>>()))
    })?)
}

/// Whether there is a figure of this name.
pub fn is_one(name: &str) -> bool {
    FIGURES.iter().any(|(known, _)| *known == name)
}

fn run((name, record): &(&'static str, Record)) -> Result<Figure> {
    Ok(Figure { name, number: number(name), ..record()? })
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
    use std::path::Path;
    use std::sync::LazyLock;

    use super::*;
    use crate::picture::Anchor;
    use crate::words::text_width;

    static ALL: LazyLock<Vec<Figure>> = LazyLock::new(|| all().unwrap());

    /// Of a window 900 units high, three fifths.
    const HIGHEST: f64 = 540.0;

    /// The words of a picture, and what they take up.
    fn words(picture: &Picture) -> Vec<(String, Area)> {
        let text = |mark: &Mark| {
            let Mark::Text(text) = mark else { return None };
            let width = text_width(&text.text);
            let x = match text.anchor {
                Anchor::Start => text.x,
                Anchor::Middle => text.x - width / 2.0,
                Anchor::End => text.x - width,
            };
            Some((text.text.clone(), Area { x, y: text.y - 10.0, width, height: 12.0 }))
        };
        picture.marks.iter().filter_map(text).collect()
    }

    fn overlap(a: &Area, b: &Area) -> bool {
        a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.bottom() && b.y < a.bottom()
    }

    #[test]
    fn words_fit_and_lie_apart() {
        for figure in &*ALL {
            for (step, frame) in figure.frames.iter().enumerate() {
                for picture in &frame.pictures {
                    let place = format!("{}, step {}, {} wide", figure.name, step + 1, picture.full_width());
                    check_words(picture, &place);
                }
                let height = frame.pictures[1].y;
                assert!(height <= HIGHEST, "{}, step {}: {height} high", figure.name, step + 1);
            }
        }
    }

    fn check_words(picture: &Picture, place: &str) {
        let fits = |area: &Area| area.x >= -0.5 && area.x + area.width <= picture.full_width() + 0.5;
        let texts = words(picture);
        let cells = picture.marks.iter().filter_map(|mark| match mark {
            Mark::Cell(area, cell) => Some((area, cell)),
            _ => None,
        });
        for (n, (text, area)) in texts.iter().enumerate() {
            assert!(fits(area), "{place}: {text} leaves the picture");
            let other = texts[..n].iter().find(|(_, at)| overlap(area, at));
            assert!(other.is_none(), "{place}: {text} lies on {other:?}");
            let cell = cells.clone().find(|(at, cell)| cell.fate != Fate::Blank && overlap(area, at));
            assert!(cell.is_none(), "{place}: {text} lies on the cell {cell:?}");
        }
        for (area, cell) in cells {
            assert!(fits(area), "{place}: the cell {} leaves the picture", cell.word);
            let widest = cell.word.lines().map(text_width).fold(0.0, f64::max);
            assert!(widest <= area.width, "{place}: {} is wider than its cell", cell.word);
        }
    }

    #[test]
    fn a_fragment_has_all_frames_in_both_widths_and_says_what_each_shows() {
        for figure in &*ALL {
            let (name, html, n) = (figure.name, figure.html(), figure.frames.len());
            assert_eq!(html.matches("<svg class=\"narrow\"").count(), n, "{name}");
            assert_eq!(html.matches("<svg class=\"wide\"").count(), n, "{name}");
            assert!((1..=3).contains(&html.matches("pbp-frame kept").count()), "{name}");
            assert!(!html.contains("\n\n") && !html.contains(" id="), "{name}");
            for frame in &figure.frames {
                assert_eq!(frame.says.is_empty(), n == 1, "{name}");
            }
            assert!(!figure.label.is_empty() && !figure.message.is_empty(), "{name}");
        }
    }

    #[test]
    fn figures_are_numbered_in_the_order_of_the_pages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |page: &str| std::fs::read_to_string(root.join("book/src").join(page)).expect(page);
        let summary = read("SUMMARY.md");
        let pages = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(page, _)| page);
        // Each part begins with the map of the engine, which belongs to the page on the model.
        let text: String = pages.filter(|page| !page.starts_with("part")).map(read).collect();
        let included = text.split("{{#include figures/").skip(1).filter_map(|rest| rest.split_once(".html}}"));
        let mut names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, included.map(|(name, _)| name).collect::<Vec<_>>());
        names.sort();
        assert_eq!(names, page_by_page_course::figures::all(&root).unwrap());
        assert_eq!(number("ch05_grow"), "5.2");
        assert_eq!(number("model_layer"), "B");
        assert!(ALL[0].html().contains("<figcaption><span>Figure 1.1.</span> <strong>"));
    }

    #[test]
    fn a_change_is_outlined_and_what_was_there_is_seen() {
        let mut figure = Figure { name: "x", label: "Two cells.".into(), ..Figure::default() };
        let draw = |picture: &mut Picture, word| {
            picture.row("", "", 2, [crate::picture::held('a', word), crate::picture::held('a', "same")]);
        };
        for word in ["a0", "b1"] {
            figure.frame(word, |picture| draw(picture, word));
        }
        let html = figure.html();
        let (first, second) = html.split_once("data-step=\"1\"").unwrap();
        assert!(!first.contains("mark"), "{first}");
        assert_eq!(second.matches("c held o0\"><path class=\"mark\"").count(), 2, "once in each width: {second}");
        assert_eq!(second.matches("class=\"was m\">a0<").count(), 2, "{second}");

        figure.starts_from(|picture| draw(picture, "c2"));
        let html = figure.html();
        let (first, _) = html.split_once("data-step=\"1\"").unwrap();
        assert_eq!(first.matches("class=\"was m\">c2<").count(), 2, "{first}");
    }
}
