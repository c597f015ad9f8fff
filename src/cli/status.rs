//! `status`: how far the reader has come.

use anyhow::Result;
use clap::Args;
use page_by_page::chapters::{Chapter, Source, all};

use super::print;
use super::report::{Table, count};

/// Show the chapters: whose code runs, and what is left to write
///
/// A chapter is yours as soon as its file in exercises/ has changed. Until then the reference from solutions/ stands
/// in, if the program was built with --features solution.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo run -- status")]
pub struct Status {}

impl Status {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let mut table = Table::new(3, &["chapter", "code", "left to write"]);
        for chapter in all() {
            let title = format!("{:2}  {}", chapter.number, chapter.title);
            let code = match chapter.source {
                Source::Yours => "yours",
                Source::Reference => "reference",
                Source::Unstarted => "not started",
            };
            let left = left_to_write(chapter);
            table.line([title.as_str(), code, left.first().map_or("nothing", String::as_str)]);
            for task in left.iter().skip(1) {
                table.line(["", "", task.as_str()]);
            }
        }
        print(&format!("{}\n{}\n", table.render(), next_step()))
    }
}

/// The tasks one by one in a chapter that was started, else how many there are.
fn left_to_write(chapter: &Chapter) -> Vec<String> {
    let left = chapter.tasks_left();
    match chapter.source {
        Source::Yours => left.into_iter().map(String::from).collect(),
        Source::Reference | Source::Unstarted => vec![format!("all {}", count(left.len(), "piece"))],
    }
}

fn next_step() -> String {
    let started = all().iter().find(|chapter| chapter.source == Source::Yours && !chapter.tasks_left().is_empty());
    if let Some(chapter) = started {
        return format!("Next: {} in exercises/{}.rs", chapter.tasks_left()[0], chapter.name);
    }
    match all().iter().find(|chapter| chapter.source != Source::Yours) {
        Some(Chapter { number, title, name, .. }) => {
            format!("Next: read chapter {number}, {title} (cargo book), and edit exercises/{name}.rs")
        }
        None => "Next: cargo test --features solution, to see whether all of it is right".into(),
    }
}
