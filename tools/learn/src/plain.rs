//! One verdict in plain lines, where there is no terminal or none is wanted.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Error, Result};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::record::Record;

use crate::current::Current;
use crate::run::{self, News, Order};
use crate::view::verdict;

pub fn run(root: &Path, chapter: &Chapter, limit: Duration, mut record: Record) -> Result<ExitCode> {
    let mut current = Current::new(root, chapter);
    if current.is_started() {
        let (sender, news) = channel();
        let order = Order { root: root.into(), chapter: chapter.clone(), filter: Vec::new(), limit };
        let _run = run::start(order, move |news| drop(sender.send(news))).map_err(Error::msg)?;
        for news in news {
            if let News::Ended(ending, verdict) = news {
                current.take(ending, verdict, true);
            }
        }
    }
    if let Err(error) = record.update(root, |record| current.write(record)) {
        eprintln!("note: the record of this run cannot be written: {error}");
    }
    let mut lines = verdict::tallies(&current);
    lines.extend(verdict::lines(&current, false));
    let text: String = lines.iter().map(|line| line.text().trim_end().to_string() + "\n").collect();
    // The reader of a pipe can be gone: `cargo learn --once | head`.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(if current.is_green() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
