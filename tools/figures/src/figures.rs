//! The book's figures, one file each: what to run, and how to draw what was seen.

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

use crate::layout::Grid;
use crate::svg::{Cell, Svg};
use crate::words::{escaped, listed};

/// What was seen of the code, drawn and in words. In the picture, a `<g data-step="0">` belongs to the first step, as does the
/// `<li>` of this number in the list. `book/stepper.js` builds its controls from them; without it the figure is whole: all
/// steps drawn, and the list.
#[derive(Default)]
pub struct Figure {
    /// As in [`FIGURES`], which gives it.
    pub name: &'static str,
    pub svg: Svg,
    pub label: String,
    /// Under the picture; HTML.
    pub caption: String,
    /// What is said of each step; HTML.
    pub steps: Vec<String>,
    /// The picture as a file of its own, for where HTML cannot be shown.
    pub alone: Option<Svg>,
}

impl Figure {
    /// Draws the next step, with what is said of it; HTML.
    pub fn step(&mut self, says: String, draw: impl FnOnce(&mut Svg)) {
        self.svg.step(draw);
        self.steps.push(says);
    }

    /// A step with a title, a note and a row of cells.
    pub fn line(&mut self, says: String, [title, note]: [&str; 2], grid: Grid, cells: impl IntoIterator<Item = Cell>) {
        self.step(says, |svg| {
            svg.heading(title, note);
            svg.row(grid, cells);
        });
        self.svg.y += 4.0;
    }

    /// The picture as a file of its own, if there is one.
    pub fn file(&self) -> Option<String> {
        self.alone.as_ref().map(|svg| svg.file(&escaped(&self.label)))
    }

    /// The fragment that a page includes. No line is blank, because that would end the HTML in Markdown; no element has an
    /// id, because the print page renames those.
    pub fn html(&self) -> String {
        let Figure { name, svg, label, caption, steps, .. } = self;
        let items: Vec<String> =
            steps.iter().enumerate().map(|(step, text)| format!("<li data-step=\"{step}\">{text}</li>")).collect();
        format!(
            "<figure class=\"pbp-figure\" data-figure=\"{name}\">\n{}\n<figcaption>{caption}</figcaption>\n<details>\n\
             <summary>Step by step</summary>\n<ol class=\"pbp-steps\">\n{}\n</ol>\n</details>\n</figure>\n",
            svg.html(&escaped(label)),
            items.join("\n"),
        )
    }
}

/// Runs the code of a figure and draws what it saw.
type Record = fn() -> Result<Figure>;

/// The figures, in the order of the book.
const FIGURES: [(&str, Record); 31] = [
    ("home_paged", home_paged::figure),
    ("ch01_triangle", ch01_triangle::figure),
    ("ch01_rows_chart", ch01_rows_chart::figure),
    ("ch02_copy", ch02_copy::figure),
    ("ch02_copies_chart", ch02_copies_chart::figure),
    ("ch03_reservation", ch03_reservation::figure),
    ("ch03_layers", ch03_layers::figure),
    ("ch04_fragmentation", ch04_fragmentation::figure),
    ("ch04_free_list", ch04_free_list::figure),
    ("ch05_table", ch05_table::figure),
    ("ch05_locate", ch05_locate::figure),
    ("ch05_waste_chart", ch05_waste_chart::figure),
    ("ch06_interleaved", ch06_interleaved::figure),
    ("ch06_gather", ch06_gather::figure),
    ("ch07_three", ch07_three::figure),
    ("ch07_rewind", ch07_rewind::figure),
    ("ch08_step", ch08_step::figure),
    ("ch08_memory", ch08_memory::figure),
    ("ch08_speculation", ch08_speculation::figure),
    ("ch08_k_chart", ch08_k_chart::figure),
    ("ch09_bars", ch09_bars::figure),
    ("ch09_share_chart", ch09_share_chart::figure),
    ("ch10_fork", ch10_fork::figure),
    ("ch11_trie", ch11_trie::figure),
    ("ch11_hit_rate", ch11_hit_rate::figure),
    ("ch12_timeline", ch12_timeline::figure),
    ("ch13_runs", ch13_runs::figure),
    ("ch14_head", ch14_head::figure),
    ("ch15_shrink", ch15_shrink::figure),
    ("ch16_file", ch16_file::figure),
    ("server_pages", server_pages::figure),
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
    FIGURES.iter().map(run).collect()
}

/// Runs the code of one figure, with the reader's chapters where they are started.
///
/// # Errors
/// The chapters' own, or that there is no such figure.
pub fn one(name: &str) -> Result<Figure> {
    let figure = FIGURES.iter().find(|(known, _)| *known == name);
    run(figure.with_context(|| format!("no figure {name} (there are {})", listed(&FIGURES.map(|(name, _)| name))))?)
}

fn run((name, record): &(&'static str, Record)) -> Result<Figure> {
    Ok(Figure { name, ..record()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_in_the_list_and_in_the_picture() {
        for figure in all().unwrap() {
            let (name, html, steps) = (figure.name, figure.html(), figure.steps.len());
            assert!(steps > 1, "{name}");
            for step in 0..=steps {
                for element in ["li", "g"] {
                    let open = format!("<{element} data-step=\"{step}\">");
                    assert_eq!(html.matches(&open).count(), usize::from(step < steps), "{name}: {open}");
                }
            }
        }
    }
}
