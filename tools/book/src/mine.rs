//! The reader's own copy of the book: figures recorded from the reader's code where its chapters are started and green.
//!
//! The published book shows the reference at work, and its figures are files in `book/src/figures`. Here each figure that
//! stands on a chapter in `exercises/` is recorded once more, by the tool for figures, in a process of its own with limits: a
//! reader's code can panic, hang or compute nonsense. The result goes into `book/mine`, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use page_by_page_course::cargo::{self, Ended, Environment};
use page_by_page_course::chapters::{self, Exercise, State};
use page_by_page_course::figures::{self, STANDS_ON};
use page_by_page_course::stub;
use regex::Regex;
use serde_json::Value;
use walkdir::WalkDir;

use crate::about::capitalised;
use crate::check::{self, Build};
use crate::edition::escaped;

/// Where the reader's copy lies, from the repository root. As deep as the book itself: its pages link to the exercises.
pub const COPY_FOLDER: &str = "book/mine";
/// Where the recorded figures lie.
const RECORDED: &str = "target/mine";

/// The longest that a chapter's checks can take; they stop by themselves after a minute of silence.
const CHECKS: Duration = Duration::from_secs(300);
/// The longest that a build can take, on a slow computer and from nothing.
const BUILD: Duration = Duration::from_secs(1800);
/// The tool for figures stops after half a minute; this is for one that does not.
const FIGURE: Duration = Duration::from_secs(60);
/// How much of a failed build to show.
const ERROR_LINES: usize = 60;

static SOURCE_FILE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:exercises|tests|tools|src|solutions)/[\w/]+\.rs(?::\d+)?").expect("valid pattern")
});

/// A chapter, and the reader's file for it.
struct Chapter {
    chapter: chapters::Chapter,
    mine: Exercise,
}

/// Why a figure stays the reference's.
#[derive(Clone)]
struct Reason {
    /// `chapter 6 is red`
    what: String,
    /// Shows it.
    command: String,
}

/// What became of a figure.
enum Outcome {
    /// It is the reader's: its fragment, and how it compares, in a line.
    Yours(String, String),
    Reference(Reason),
}

/// The reader's copy, as it was last recorded.
pub struct Mine {
    root: PathBuf,
    /// The fingerprint of each exercise then.
    seen: BTreeMap<String, String>,
    /// For each chapter whose checks have run: why it is not to be recorded, if so.
    graded: BTreeMap<String, Option<Reason>>,
    /// The figures that stand on something the reader has started.
    figures: BTreeMap<&'static str, Outcome>,
    started: Vec<usize>,
}

impl Mine {
    pub fn new(root: &Path) -> Self {
        let (seen, graded) = (BTreeMap::new(), BTreeMap::new());
        Mine { root: root.to_path_buf(), seen, graded, figures: BTreeMap::new(), started: Vec::new() }
    }

    /// Forgets what was recorded if more than exercises and pages has changed: the engine, the checks, the figures' own code.
    pub fn forget_after(&mut self, changed: &[String]) {
        let others = |name: &String| !Path::new(name).starts_with("exercises") && !Path::new(name).starts_with("book");
        if changed.iter().any(others) {
            *self = Mine::new(&self.root);
        }
    }

    /// Checks the chapters that have changed, and records the figures that stand on them.
    ///
    /// # Errors
    /// When the exercises cannot be read or cargo cannot be started. What the reader's code does is no error.
    pub fn follow(&mut self) -> Result<()> {
        let chapters = read_chapters(&self.root)?;
        self.forget_changed(&chapters);
        let started: Vec<&Chapter> = chapters.iter().filter(|chapter| chapter.mine.state != State::Untouched).collect();
        self.started = started.iter().map(|chapter| chapter.chapter.number).collect();
        if started.is_empty() {
            eprintln!("You have started no chapter: all figures are the reference's");
            return Ok(());
        }
        let mut to_record = Vec::new();
        for (figure, numbers) in STANDS_ON {
            if self.figures.contains_key(figure) {
                continue;
            }
            let stands_on = |chapter: &&Chapter| numbers.contains(&chapter.chapter.number);
            let mine: Vec<&Chapter> = started.iter().copied().filter(stands_on).collect();
            match mine.iter().find_map(|chapter| chapter.unfinished()) {
                Some(reason) => drop(self.figures.insert(figure, Outcome::Reference(reason))),
                None if mine.is_empty() => {}
                None => to_record.push((figure, mine)),
            }
        }
        if !to_record.is_empty() {
            self.record(&to_record)?;
        }
        eprintln!("{}", self.in_short());
        Ok(())
    }

    /// Forgets what no longer holds.
    fn forget_changed(&mut self, chapters: &[Chapter]) {
        let is_changed = |chapter: &&Chapter| self.seen.get(&chapter.chapter.name) != Some(&chapter.mine.fingerprint);
        let changed: Vec<&chapters::Chapter> =
            chapters.iter().filter(is_changed).map(|chapter| &chapter.chapter).collect();
        self.graded.retain(|name, _| {
            let stands_on = grader_stands_on(&self.root, name);
            !changed.iter().any(|chapter| stands_on.contains(&chapter.name))
        });
        let still_holds = |numbers: &[usize]| !changed.iter().any(|chapter| numbers.contains(&chapter.number));
        self.figures.retain(|figure, outcome| {
            matches!(outcome, Outcome::Yours(..)) && figures::stands_on(figure).is_some_and(still_holds)
        });
        let seen = chapters.iter().map(|Chapter { chapter, mine }| (chapter.name.clone(), mine.fingerprint.clone()));
        self.seen = seen.collect();
    }

    /// Records figures, each with the chapters that the reader has written for it.
    fn record(&mut self, figures: &[(&'static str, Vec<&Chapter>)]) -> Result<()> {
        let names: BTreeSet<&str> =
            figures.iter().flat_map(|(_, mine)| mine).map(|chapter| chapter.chapter.name.as_str()).collect();
        let ungraded: Vec<&str> = names.into_iter().filter(|name| !self.graded.contains_key(*name)).collect();
        let tool = match self.compile(&ungraded)? {
            Ok(tool) => tool,
            Err(reason) => {
                self.figures.extend(figures.iter().map(|(figure, _)| (*figure, Outcome::Reference(reason.clone()))));
                return Ok(());
            }
        };
        for name in ungraded {
            let verdict = self.grade(name)?;
            self.graded.insert(name.to_string(), verdict);
        }
        for (figure, mine) in figures {
            let red = mine.iter().find_map(|chapter| self.graded.get(&chapter.chapter.name)?.clone());
            let outcome = match red {
                Some(reason) => Outcome::Reference(reason),
                None => self.record_one(&tool, figure)?,
            };
            self.figures.insert(figure, outcome);
        }
        Ok(())
    }

    /// Compiles the tool for figures with the reader's code, and the checks of some chapters. In one go, so that the crate
    /// is built once, as `cargo test` builds it. Returns where the tool is, or why there is none.
    fn compile(&self, chapters: &[&str]) -> Result<Result<PathBuf, Reason>> {
        eprintln!("Compiling your code, its checks and the figures …");
        let crates = ["--package", "page-by-page", "--features", "page-by-page/solution", "--package", "figures-tool"];
        let tests = chapters.iter().flat_map(|name| ["--test", *name]);
        let last = ["--bin", "figures-tool", "--message-format", "json-render-diagnostics"];
        let arguments: Vec<&str> = ["build"].into_iter().chain(crates).chain(tests).chain(last).collect();
        let Ended { status, output } = self.cargo(&arguments, BUILD)?;
        let (messages, lines): (Vec<&str>, Vec<&str>) =
            output.lines().partition(|line| line.starts_with("{\"reason\""));
        if status.is_some_and(|status| status.success()) {
            let tool = messages.iter().rev().find_map(|message| executable(message, "figures-tool"));
            return Ok(Ok(tool.context("cargo does not say where the tool for figures is")?));
        }
        Ok(Err(does_not_compile(&lines, status.is_none())))
    }

    /// Runs the checks of a chapter. Returns why its figures are not to be recorded, if so.
    fn grade(&self, name: &str) -> Result<Option<Reason>> {
        let began = Instant::now();
        let arguments = ["test", "--features", "solution", "--test", name];
        let Ended { status, .. } = self.cargo(&arguments, CHECKS)?;
        let chapter = format!("chapter {}", chapters::Chapter::named(name, "").map_or(0, |chapter| chapter.number));
        let (says, is_green) = match status {
            Some(status) if status.success() => (format!("{chapter} is green"), true),
            Some(_) => (format!("{chapter} is red"), false),
            None => (format!("the checks of {chapter} did not end within {} s", CHECKS.as_secs()), false),
        };
        let command = format!("cargo {}", arguments.join(" "));
        eprintln!("{}: {command} ({:.1} s)", capitalised(&says), began.elapsed().as_secs_f64());
        Ok((!is_green).then_some(Reason { what: says, command }))
    }

    /// Records a figure whose chapters are green.
    fn record_one(&self, tool: &Path, figure: &str) -> Result<Outcome> {
        let mut command = Command::new(tool);
        command.args(["mine", figure, "--to", RECORDED]).current_dir(&self.root);
        let Ended { status, output } = cargo::run(command, FIGURE)?;
        let failed = |what: &str| {
            eprintln!("{figure}: not recorded: {what}");
            let command = format!("cargo run --package figures-tool -- mine {figure}");
            Outcome::Reference(Reason { what: format!("recording it from your code failed: {what}"), command })
        };
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        let status = match status {
            Some(status) if status.success() => {
                let file = self.root.join(RECORDED).join(format!("{figure}.html"));
                let html = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
                eprintln!("{last}");
                let says = last.strip_prefix(figure).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(last);
                return Ok(Outcome::Yours(html, says.to_string()));
            }
            Some(status) => status,
            None => return Ok(failed(&format!("no end after {} s", FIGURE.as_secs()))),
        };
        let error = output.lines().find_map(|line| line.strip_prefix("error: ").map(str::to_string));
        let memory = output.lines().find(|line| line.starts_with("memory allocation of "));
        let why = error.or(memory.map(|line| format!("it asks for ever more memory ({line})")));
        Ok(failed(&why.unwrap_or_else(|| format!("{last} ({status})"))))
    }

    /// Runs cargo as the reader would.
    fn cargo(&self, arguments: &[&str], limit: Duration) -> Result<Ended> {
        let mut command = cargo::cargo(&self.root, Environment::Shell);
        command.args(arguments).env("CARGO_TERM_COLOR", "never");
        Ok(cargo::run(command, limit)?)
    }

    /// The figures that are not as in the published book, by name.
    pub fn fragments(&self) -> Result<BTreeMap<String, String>> {
        let mut fragments = BTreeMap::new();
        for (figure, outcome) in &self.figures {
            let fragment = match outcome {
                Outcome::Yours(html, _) => html.clone(),
                Outcome::Reference(Reason { what, command }) => {
                    let file = format!("book/src/figures/{figure}.html");
                    let html = stub::read(&self.root, &file).map_err(Error::msg)?.replace("\r\n", "\n");
                    let note = format!("From the reference: {} (<code>{}</code>).", escaped(what), escaped(command));
                    figures::with_note(&html, &note)
                }
            };
            fragments.insert(figure.to_string(), fragment);
        }
        Ok(fragments)
    }

    /// Writes on each page of a rendered book that it is the reader's copy.
    pub fn sign(&self, folder: &Path) -> Result<()> {
        let line = format!("<p class=\"pbp-copy\" role=\"note\">{}</p>\n", escaped(&self.in_short()));
        for entry in WalkDir::new(folder) {
            let entry = entry?;
            if entry.path().extension().is_none_or(|extension| extension != "html") {
                continue;
            }
            let page = fs::read_to_string(entry.path())?;
            if let Some(at) = page.find("<main>").map(|at| at + "<main>".len()) {
                fs::write(entry.path(), format!("{}\n{line}{}", &page[..at], &page[at..]))?;
            }
        }
        Ok(())
    }

    /// What this copy shows, in a line or two.
    fn in_short(&self) -> String {
        if self.started.is_empty() {
            return "Your copy of the book. You have started no chapter yet: all figures are the reference\u{2019}s."
                .into();
        }
        let says = self.figures.values().filter_map(|outcome| match outcome {
            Outcome::Yours(_, says) => Some(says),
            Outcome::Reference(_) => None,
        });
        let (n_yours, n_unlike) = (says.clone().count(), says.filter(|says| says.starts_with("departs")).count());
        let are = |n: usize| if n == 1 { "1 figure is".into() } else { format!("{n} figures are") };
        let compared = match (n_unlike, n_yours) {
            (_, 0) => String::new(),
            (0, _) => ", the same as the reference step by step".into(),
            (n, _) => format!(", {n} of them unlike the reference"),
        };
        let kept = match self.figures.len() - n_yours {
            0 => String::new(),
            n => format!(" {} still the reference\u{2019}s, and {} why.", are(n), if n == 1 { "says" } else { "say" }),
        };
        let with = figures::chapters(&self.started);
        format!("Your copy of the book, with {with}. {} recorded from your code{compared}.{kept}", are(n_yours))
    }
}

impl Chapter {
    /// Why its checks need not run.
    fn unfinished(&self) -> Option<Reason> {
        let left = match self.mine.todos.len() {
            _ if self.mine.state != State::Begun => return None,
            1 => "1 piece".into(),
            n => format!("{n} pieces"),
        };
        Some(Reason {
            what: format!("chapter {} is not finished, {left} left to write", self.chapter.number),
            command: format!("cargo test --features solution --test {}", self.chapter.name),
        })
    }
}

/// Renders and checks the book: the reader's copy, brought up to date, or without one the reference's.
pub fn build(root: &Path, mine: Option<&mut Mine>) -> Result<Build> {
    let Some(mine) = mine else { return check::build(root, &BTreeMap::new()) };
    mine.follow()?;
    let build = check::build(root, &mine.fragments()?)?;
    mine.sign(build.folder.path())?;
    Ok(build)
}

fn read_chapters(root: &Path) -> Result<Vec<Chapter>> {
    let read = |chapter: chapters::Chapter| Ok(Chapter { mine: chapter.read(root)?, chapter });
    chapters::all(root).and_then(|all| all.into_iter().map(read).collect()).map_err(Error::msg)
}

/// The chapters that a grader says its checks ran on: its `whose_code! { … }`.
fn grader_stands_on(root: &Path, name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root.join(format!("tests/{name}.rs"))).unwrap_or_default();
    let list = text.split_once("whose_code! {").and_then(|(_, rest)| rest.split_once('}')).map_or("", |(list, _)| list);
    let quoted = list.split('"').skip(1).step_by(2).map(str::to_string);
    quoted.chain([name.to_string()]).collect()
}

/// The path of a program that cargo has built, if a message of cargo tells it.
fn executable(message: &str, name: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_it = message["target"]["name"] == name && message["profile"]["test"] == false;
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

/// Shows what the compiler says, and names the file.
fn does_not_compile(lines: &[&str], took_too_long: bool) -> Reason {
    let lines: Vec<&&str> = lines.iter().skip_while(|line| !line.starts_with("error")).collect();
    for line in lines.iter().take(ERROR_LINES) {
        eprintln!("{line}");
    }
    if lines.len() > ERROR_LINES {
        eprintln!("… and {} lines more", lines.len() - ERROR_LINES);
    }
    let file = lines.iter().find_map(|line| {
        let line = line.replace('\\', "/");
        SOURCE_FILE.find(&line).map(|found| found.as_str().to_string())
    });
    let what = match file {
        _ if took_too_long => format!("compiling it took more than {} minutes", BUILD.as_secs() / 60),
        Some(file) if file.starts_with("exercises/") => format!("{file} does not compile"),
        Some(file) => format!("{file} does not compile with your code"),
        None => "your code does not compile".into(),
    };
    eprintln!("Figures that stand on your chapters stay the reference's: {what}");
    Reason { what, command: "cargo build --package figures-tool".into() }
}
