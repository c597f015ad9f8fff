//! One verdict in plain lines, where no terminal is or none is wanted.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::app::{self, Shown};
use crate::course::{Chapter, State};
use crate::record::Record;
use crate::runs::{News, Order, Run};
use crate::text::Line;
use crate::view;

pub fn run(root: &Path, chapter: &Chapter, limit: Duration) -> Result<ExitCode> {
    let mut shown = Shown { has_keys: false, ..Shown::new(root, chapter) };
    if matches!(&shown.exercise, Ok(exercise) if exercise.state == State::Started) {
        let (sender, news) = channel();
        let order =
            Order { root: root.into(), chapter: chapter.number, name: chapter.name.clone(), filter: Vec::new(), limit };
        let _run = Run::start(order, move |news| drop(sender.send(news))).map_err(|problem| anyhow!(problem))?;
        let report = news.iter().find_map(|news| if let News::Ended(report) = news { Some(report) } else { None });
        if let Some(report) = report {
            shown.take(report, true);
        }
        if let Err(problem) = app::keep(root, |record| shown.write(record)) {
            eprintln!("note: {problem}");
        }
    } else {
        let _ = app::keep(root, |record: &mut Record| record.at = Some(chapter.name.clone()));
    }
    let mut lines = view::tallies(&shown);
    lines.push(Line::default());
    lines.extend(view::verdict(&shown));
    // Whoever reads it may have gone: `cargo learn --once | head`.
    let text: String = lines.iter().map(|line| line.text().trim_end().to_string() + "\n").collect();
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(if shown.is_green() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
