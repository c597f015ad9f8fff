//! Runs the commands that the pages show, so that none of them greets a reader with an error.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;
use page_by_page_course::cargo::{self, Ended};

use crate::check::{read_pages, read_summary};
use crate::finding::{Findings, Place};

const TIME_LIMIT: Duration = Duration::from_secs(600);
/// How much of a failed command's output to show.
const LAST_LINES: usize = 40;

pub fn run(root: &Path) -> Result<ExitCode> {
    let commands = find(root)?;
    let mut failures = 0;
    for (command, place) in &commands {
        print!("{place}: {command} … ");
        io::stdout().flush()?;
        let started = Instant::now();
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(root);
        let Ended { status, output } = cargo::run(shell, TIME_LIMIT)?;
        let outcome = match status {
            Some(status) if status.success() => "ok".to_string(),
            Some(status) => format!("FAILED ({status})"),
            None => format!("FAILED (still running after {} s)", TIME_LIMIT.as_secs()),
        };
        println!("{outcome}, {:.1} s", started.elapsed().as_secs_f64());
        if outcome != "ok" {
            failures += 1;
            let lines: Vec<&str> = output.lines().collect();
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                println!("    {line}");
            }
        }
    }
    println!("{} commands, {failures} failed", commands.len());
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Each command with the first place that shows it, in the order of the book.
fn find(root: &Path) -> Result<Vec<(String, Place)>> {
    // Whether the pages are in order is for `cargo book build` to say.
    let mut ignored = Findings::default();
    let listed = read_summary(root, &mut ignored)?;
    let mut seen = HashSet::new();
    let mut commands = Vec::new();
    for page in read_pages(root, &listed, &mut ignored) {
        for block in page.contents.code_blocks.iter().filter(|block| block.info == "console") {
            for (line, command) in typed_lines(&block.text) {
                if seen.insert(command.clone()) {
                    commands.push((command, page.place_of_line(block.line + line)));
                }
            }
        }
    }
    Ok(commands)
}

/// The lines that begin with `$ `, each with its line in the block (from 1). A backslash at the end joins the next
/// line.
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
