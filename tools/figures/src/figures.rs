//! The figures of the book, one file each: what to run, and how to draw what was seen.

mod ch01_rows_chart;
mod ch01_triangle;
mod ch02_copies_chart;
mod ch02_copy;
mod ch03_layers;
mod ch03_reservation;
mod ch04_fragmentation;
mod ch04_free_list;
mod ch05_locate;
mod ch05_table;
mod ch05_waste_chart;
mod ch06_gather;
mod ch06_interleaved;
mod ch07_rewind;
mod ch07_three;
mod ch08_k_chart;
mod ch08_memory;
mod ch08_speculation;
mod ch08_step;
mod ch09_bars;
mod ch09_share_chart;
mod ch10_fork;
mod ch11_hit_rate;
mod ch11_trie;
mod ch12_timeline;
mod ch13_runs;
mod ch14_head;
mod ch15_shrink;
mod ch16_file;
mod home_paged;
mod server_pages;

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::{self, Source};
use serde::Serialize;

use crate::fragment::{Drawing, fragment};
use crate::svg::{Svg, escaped, listed};

/// A recorded figure.
pub struct Figure {
    pub name: &'static str,
    /// JSON on one line.
    compact: String,
    /// The same, for people.
    pretty: String,
    drawing: Drawing,
    /// The picture as a file of its own, if there is one.
    alone: Option<String>,
}

impl Figure {
    fn new<T: Serialize>(name: &'static str, trace: &T, draw: fn(&T) -> Drawing) -> Result<Self> {
        Ok(Figure {
            name,
            compact: serde_json::to_string(trace)?,
            pretty: serde_json::to_string_pretty(trace)?,
            drawing: draw(trace),
            alone: None,
        })
    }

    /// A figure with a picture besides, for where HTML is not to be had.
    fn with_picture<T: Serialize>(
        name: &'static str,
        trace: &T,
        draw: fn(&T) -> Drawing,
        draw_alone: fn(&T) -> (Svg, String),
    ) -> Result<Self> {
        let (svg, label) = draw_alone(trace);
        Ok(Figure { alone: Some(svg.file(&escaped(&label))), ..Figure::new(name, trace, draw)? })
    }

    /// The trace as a file.
    pub fn json(&self) -> String {
        format!("{}\n", self.pretty)
    }

    /// The picture as a file of its own, if there is one.
    pub fn svg(&self) -> Option<&str> {
        self.alone.as_deref()
    }

    /// The trace on one line.
    pub fn trace(&self) -> &str {
        &self.compact
    }

    /// What is said of each frame; HTML.
    pub fn steps_mut(&mut self) -> &mut [String] {
        &mut self.drawing.steps
    }

    /// The fragment that a page includes.
    pub fn html(&self) -> String {
        fragment(self.name, &self.drawing, &self.compact)
    }
}

/// Runs the code of a figure and draws what it saw.
type Record = fn(&'static str) -> Result<Figure>;

/// The figures, in the order of the book.
const FIGURES: [(&str, Record); 31] = [
    ("home_paged", |name| Figure::with_picture(name, &home_paged::record()?, home_paged::draw, home_paged::draw_alone)),
    ("ch01_triangle", |name| Figure::new(name, &ch01_triangle::record()?, ch01_triangle::draw)),
    ("ch01_rows_chart", |name| Figure::new(name, &ch01_rows_chart::record()?, ch01_rows_chart::draw)),
    ("ch02_copy", |name| Figure::new(name, &ch02_copy::record()?, ch02_copy::draw)),
    ("ch02_copies_chart", |name| Figure::new(name, &ch02_copies_chart::record()?, ch02_copies_chart::draw)),
    ("ch03_reservation", |name| Figure::new(name, &ch03_reservation::record()?, ch03_reservation::draw)),
    ("ch03_layers", |name| Figure::new(name, &ch03_layers::record()?, ch03_layers::draw)),
    ("ch04_fragmentation", |name| Figure::new(name, &ch04_fragmentation::record()?, ch04_fragmentation::draw)),
    ("ch04_free_list", |name| Figure::new(name, &ch04_free_list::record()?, ch04_free_list::draw)),
    ("ch05_table", |name| Figure::new(name, &ch05_table::record()?, ch05_table::draw)),
    ("ch05_locate", |name| Figure::new(name, &ch05_locate::record()?, ch05_locate::draw)),
    ("ch05_waste_chart", |name| Figure::new(name, &ch05_waste_chart::record()?, ch05_waste_chart::draw)),
    ("ch06_interleaved", |name| Figure::new(name, &ch06_interleaved::record()?, ch06_interleaved::draw)),
    ("ch06_gather", |name| Figure::new(name, &ch06_gather::record()?, ch06_gather::draw)),
    ("ch07_three", |name| Figure::new(name, &ch07_three::record()?, ch07_three::draw)),
    ("ch07_rewind", |name| Figure::new(name, &ch07_rewind::record()?, ch07_rewind::draw)),
    ("ch08_step", |name| Figure::new(name, &ch08_step::record()?, ch08_step::draw)),
    ("ch08_memory", |name| Figure::new(name, &ch08_memory::record()?, ch08_memory::draw)),
    ("ch08_speculation", |name| Figure::new(name, &ch08_speculation::record()?, ch08_speculation::draw)),
    ("ch08_k_chart", |name| Figure::new(name, &ch08_k_chart::record()?, ch08_k_chart::draw)),
    ("ch09_bars", |name| Figure::new(name, &ch09_bars::record()?, ch09_bars::draw)),
    ("ch09_share_chart", |name| Figure::new(name, &ch09_share_chart::record()?, ch09_share_chart::draw)),
    ("ch10_fork", |name| Figure::new(name, &ch10_fork::record()?, ch10_fork::draw)),
    ("ch11_trie", |name| Figure::new(name, &ch11_trie::record()?, ch11_trie::draw)),
    ("ch11_hit_rate", |name| Figure::new(name, &ch11_hit_rate::record()?, ch11_hit_rate::draw)),
    ("ch12_timeline", |name| Figure::new(name, &ch12_timeline::record()?, ch12_timeline::draw)),
    ("ch13_runs", |name| Figure::new(name, &ch13_runs::record()?, ch13_runs::draw)),
    ("ch14_head", |name| Figure::new(name, &ch14_head::record()?, ch14_head::draw)),
    ("ch15_shrink", |name| Figure::new(name, &ch15_shrink::record()?, ch15_shrink::draw)),
    ("ch16_file", |name| Figure::new(name, &ch16_file::record()?, ch16_file::draw)),
    ("server_pages", |name| Figure::new(name, &server_pages::record()?, server_pages::draw)),
];

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
    FIGURES.iter().map(|(name, record)| record(name)).collect()
}

/// Runs the code of one figure, whoever wrote its chapters.
///
/// # Errors
/// What the chapters refuse, or that there is no such figure.
pub fn one(name: &str) -> Result<Figure> {
    let found = FIGURES.iter().find(|(known, _)| *known == name);
    let (name, record) = found.with_context(|| {
        let known: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
        format!("no figure {name} (there are {})", listed(&known))
    })?;
    record(name)
}

/// The figures as recorded once for all tests.
#[cfg(test)]
pub fn recorded() -> &'static [Figure] {
    static RECORDED: std::sync::LazyLock<Vec<Figure>> = std::sync::LazyLock::new(|| all().unwrap());
    &RECORDED
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn fragments_are_whole_in_markdown_and_in_print() {
        for figure in recorded() {
            let (name, html) = (figure.name, figure.html());
            assert!(html.lines().all(|line| !line.trim().is_empty()), "{name} has a blank line");
            assert!(!html.contains(" id=") && !html.contains("url(#"), "{name} has an id or refers to one");
            assert!(!html.contains("{{"), "{name} has a directive of mdBook");
            for tag in ["figure", "svg", "figcaption", "details", "summary", "ol", "script", "g", "li", "text"] {
                let open = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
                assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{name}: <{tag}> and </{tag}>");
            }
        }
    }

    #[test]
    fn fragments_speak_to_those_who_cannot_see() {
        for figure in recorded() {
            let (name, html) = (figure.name, figure.html());
            let svg = html.lines().find(|line| line.starts_with("<svg")).unwrap();
            assert!(svg.contains("role=\"img\""), "{name} has no role");
            let label = svg.split_once("aria-label=\"").unwrap().1.split_once('"').unwrap().0;
            assert!(label.len() > 80, "{name} says too little: {label}");
        }
    }

    #[test]
    fn every_frame_of_the_trace_is_a_step_in_the_list_and_in_the_picture() {
        for figure in recorded() {
            let (name, html) = (figure.name, figure.html());
            let trace: Value = serde_json::from_str(&figure.json()).unwrap();
            let frames = trace["frames"].as_array().unwrap().len();
            assert!(frames > 1, "{name}");
            for step in 0..frames {
                for element in ["li", "g"] {
                    let open = format!("<{element} data-step=\"{step}\">");
                    assert_eq!(html.matches(&open).count(), 1, "{name}: {open}");
                }
            }
            assert!(!html.contains(&format!("data-step=\"{frames}\"")), "{name} shows a step that is no frame");
        }
    }

    #[test]
    fn the_embedded_trace_is_the_trace() {
        for figure in recorded() {
            let html = figure.html();
            let embedded = html.split_once("application/json\">").unwrap().1.split_once("</script>").unwrap().0;
            let [embedded, file] = [embedded, &figure.json()].map(|json| serde_json::from_str::<Value>(json).unwrap());
            assert_eq!(embedded, file, "{}", figure.name);
        }
    }

    #[test]
    fn every_picture_keeps_to_its_frame_and_words_to_their_size() {
        for figure in recorded() {
            for line in figure.html().lines().filter(|line| line.starts_with("<text") || line.starts_with("<rect")) {
                let x: f64 = line.split_once(" x=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap();
                assert!((0.0..=crate::svg::WIDTH).contains(&x), "{}: {line}", figure.name);
                assert!(!line.contains("font-size"), "{}: all words have the size of the picture: {line}", figure.name);
            }
        }
    }
}
