//! Runs the commands that the pages show, so that none of them greets a reader with an error.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use page_by_page_course::cargo::{self, Ended};

use crate::check::{read_pages, read_summary};
use crate::finding::{Findings, Place};

const TIME_LIMIT: Duration = Duration::from_secs(600);
/// How much of a failed command's output to show.
const LAST_LINES: usize = 40;

/// Pages are run at the same time, because most commands keep one core busy. Those of a page run in its order.
const AT_ONCE: usize = 2;

pub fn run(root: &Path) -> Result<ExitCode> {
    let pages = find(root)?;
    let (left, failures) = (Mutex::new(pages.iter()), AtomicUsize::new(0));
    let next = || left.lock().expect("held without a panic").next();
    let work = || -> Result<()> {
        while let Some(commands) = next() {
            for (command, place) in commands {
                if !run_one(root, command, place)? {
                    failures.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("commands are run without a panic"))
    })?;
    let failures = failures.into_inner();
    println!("{} commands, {failures} failed", pages.iter().map(Vec::len).sum::<usize>());
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the command succeeds.
fn run_one(root: &Path, command: &str, place: &Place) -> Result<bool> {
    let started = Instant::now();
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(root);
    let Ended { status, output } = cargo::run(shell, TIME_LIMIT)?;
    let outcome = match status {
        Some(status) if status.success() => "ok".to_string(),
        Some(status) => format!("FAILED ({status})"),
        None => format!("FAILED (still running after {} s)", TIME_LIMIT.as_secs()),
    };
    let mut told = format!("{place}: {command} … {outcome}, {:.1} s", started.elapsed().as_secs_f64());
    if outcome != "ok" {
        let lines: Vec<&str> = output.lines().collect();
        told.extend(lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("\n    {line}")));
    }
    println!("{told}");
    Ok(outcome == "ok")
}

/// The commands of each page, in the order of the book: each with the first place that shows it.
fn find(root: &Path) -> Result<Vec<Vec<(String, Place)>>> {
    // Whether the pages are in order is for `cargo book build` to say.
    let mut ignored = Findings::default();
    let listed = read_summary(root, &mut ignored)?;
    let mut seen = HashSet::new();
    let mut pages = Vec::new();
    for page in read_pages(root, &listed, &mut ignored) {
        let mut commands = Vec::new();
        for block in page.contents.code_blocks.iter().filter(|block| block.info == "console") {
            for (line, command) in typed_lines(&block.text) {
                if seen.insert(command.clone()) {
                    commands.push((command, page.place_of_line(block.line + line)));
                }
            }
        }
        pages.push(commands);
    }
    Ok(pages)
}

/// The lines that begin with `$ `, each with its line in the block (from 1). A backslash at the end joins the next.
fn typed_lines(block: &str) -> Vec<(usize, String)> {
    let mut typed: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(block.lines()) {
        let text = line.strip_suffix('\\').unwrap_or(line);
        match (typed.last_mut().filter(|_| goes_on), text.strip_prefix("$ ")) {
            (Some((_, command)), _) => command.push_str(text.trim_start()),
            (None, Some(command)) => typed.push((number, command.to_string())),
            (None, None) => continue,
        }
        goes_on = text != line;
    }
    typed
}
