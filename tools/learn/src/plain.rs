//! Plain lines, where there is no terminal or none is wanted: one verdict, or a hint.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Error, Result};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::record::Record;

use crate::current::Current;
use crate::run::CheckRun;
use crate::text::Paragraph;
use crate::view::verdict::Layout;
use crate::view::{reading, verdict};

pub fn run(root: &Path, chapter: &Chapter, time_limit: Duration, mut record: Record) -> Result<ExitCode> {
    let mut current = Current::new(root, chapter);
    if current.is_started() {
        let mut run = CheckRun::start(root, chapter, Vec::new(), time_limit).map_err(Error::msg)?;
        let result = loop {
            match run.update() {
                Some(result) => break result,
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        current.take(result, true);
    }
    if let Err(error) = record.update(root, |record| current.write(record)) {
        eprintln!("note: the record of this run cannot be written: {error}");
    }
    let mut lines = verdict::tallies(&current);
    lines.extend(verdict::lines(&current, Layout::Plain));
    print(&text(&lines), current.is_green())
}

/// Prints the hints of the current task that the reader has seen, and one more.
pub fn hint(root: &Path, chapter: &Chapter, mut record: Record) -> Result<ExitCode> {
    let mut current = Current::new(root, chapter);
    current.task = current.task_on_record(&record);
    let (Some(task), n_hints) = (current.task, current.n_hints()) else {
        return print("Nothing is left to do.\n", true);
    };
    if n_hints == 0 {
        return print(&format!("The page has no hint for task {task}: {}\n", current.link(None)), true);
    }
    let seen = (record.hints_seen(&chapter.name, task) + 1).min(n_hints);
    if let Err(error) = record.update(root, |record| {
        record.chapter_mut(&chapter.name).hints.insert(task, seen);
    }) {
        eprintln!("note: the record of this hint cannot be written: {error}");
    }
    print(&format!("{}\n", text(&reading::hints(&current, seen)).trim_end()), true)
}

fn text(lines: &[Paragraph]) -> String {
    lines.iter().map(|line| line.text().trim_end().to_string() + "\n").collect()
}

/// The reader of a pipe can be gone: `cargo learn --once | head`.
pub fn print(text: &str, is_success: bool) -> Result<ExitCode> {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
