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

pub fn run(root: &Path, only_page: Option<&str>, list: bool) -> Result<ExitCode> {
    let commands = find(root, only_page)?;
    if list {
        for (command, place) in &commands {
            println!("{place}: {command}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut failures = 0;
    for (command, place) in &commands {
        print!("{place}: {command} … ");
        io::stdout().flush()?;
        let started = Instant::now();
        let (outcome, output) = run_one(root, command)?;
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
    Ok(match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Each command with the first place that shows it, in the order of the book.
fn find(root: &Path, only_page: Option<&str>) -> Result<Vec<(String, Place)>> {
    // Whether the pages are in order is for `cargo book check` to say.
    let mut ignored = Findings::default();
    let listed = read_summary(root, &mut ignored)?;
    let mut seen = HashSet::new();
    let mut commands = Vec::new();
    for (page, contents) in read_pages(root, &listed, &mut ignored) {
        let name = page.file.file_name().unwrap_or_default().to_string_lossy();
        if only_page.is_some_and(|wanted| !name.contains(wanted)) {
            continue;
        }
        for block in &contents.code_blocks {
            let is_run = block.info.first().is_some_and(|language| language == "console")
                && !block.info.iter().any(|word| word == "norun");
            if !is_run {
                continue;
            }
            for (line, command) in typed_lines(&block.text) {
                let place = page.place_of_line(block.line + line);
                if seen.insert(command.clone()) {
                    commands.push((command, place));
                }
            }
        }
    }
    Ok(commands)
}

/// The lines that begin with `$ `, each with its line in the block (from 1). A backslash at the end joins the next line.
fn typed_lines(block: &str) -> Vec<(usize, String)> {
    let mut typed: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(block.lines()) {
        let (text, continues) = match line.strip_suffix('\\') {
            Some(text) => (text, true),
            None => (line, false),
        };
        if let Some((_, command)) = typed.last_mut().filter(|_| goes_on) {
            command.push_str(text.trim_start());
        } else if let Some(command) = text.strip_prefix("$ ") {
            typed.push((number, command.to_string()));
        } else {
            continue;
        }
        goes_on = continues;
    }
    typed
}

/// Runs a command to its end or to the limit, and returns how it went and what it wrote.
fn run_one(root: &Path, command: &str) -> Result<(String, String)> {
    let mut shell = shell(command);
    shell.current_dir(root);
    let Ended { status, output } = cargo::run(shell, TIME_LIMIT)?;
    let outcome = match status {
        Some(status) if status.success() => "ok".to_string(),
        Some(status) => format!("FAILED ({status})"),
        None => format!("FAILED (still running after {} s)", TIME_LIMIT.as_secs()),
    };
    Ok((outcome, output))
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    shell
}

#[cfg(windows)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.args(["/C", command]);
    shell
}
