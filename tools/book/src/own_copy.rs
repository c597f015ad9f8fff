//! The reader's own copy of the book: figures recorded from the reader's code where its chapters are started and green.
//!
//! The published book shows the reference at work, and its figures are files in `book/src/figures`. Here each figure
//! that depends on a chapter in `exercises/` is recorded once more, by the tool for figures, in a process of its own
//! with limits: a reader's code can panic, hang or compute nonsense. The engine in the pages is compiled with these
//! chapters, finished or not. The result goes into `book/mine`, and nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use page_by_page_course::cargo::{self, Ended, Environment};
use page_by_page_course::chapters::{self, Chapter, Exercise, ExerciseState};
use page_by_page_course::figures::{self, escaped};
use page_by_page_course::source;

use crate::check::{self, Build};
use crate::engine::{self, BUILD, Compiler, Engine, SOON};
use crate::publish::files_ending;

/// Where the reader's copy lies, from the repository root. As deep as the book itself: its pages link to the exercises.
pub const COPY_FOLDER: &str = "book/mine";
const RECORDED: &str = "target/mine";

/// The longest that a chapter's checks can take; they stop by themselves after a minute of silence.
const CHECKS: Duration = Duration::from_secs(300);
/// The longest that recording a figure can take. It takes a few seconds at most.
const FIGURE: Duration = Duration::from_secs(40);

/// A chapter that the reader has started.
type Started = (Chapter, Exercise);

/// A figure from the reader's code, and whether it departs from the reference's.
type Recorded = (String, bool);

/// Why a figure stays the reference's, as a note in HTML.
type Reason = String;

/// `what`: `chapter 6 is red`; `command`: the arguments of cargo that show it.
fn reason(what: &str, command: &str) -> Reason {
    format!("From the reference: {} (<code>cargo {}</code>).", escaped(what), escaped(command))
}

/// The reader's copy, as it was last recorded.
#[derive(Default)]
pub struct OwnCopy {
    root: PathBuf,
    /// For each chapter whose checks have run: why it is not to be recorded, if so.
    graded: BTreeMap<usize, Option<Reason>>,
    /// The figures that depend on something the reader has started.
    figures: BTreeMap<String, Result<Recorded, Reason>>,
    /// `None`: to be compiled.
    engine: Option<Engine>,
    started: Vec<usize>,
}

impl OwnCopy {
    pub fn new(root: &Path) -> Self {
        OwnCopy { root: root.to_path_buf(), ..OwnCopy::default() }
    }

    /// Forgets what may not hold any more once these files have changed. A chapter depends on none that comes after it.
    pub fn forget_after(&mut self, changed: &[String]) {
        for file in changed.iter().map(Path::new).filter(|file| !file.starts_with("book")) {
            self.engine = None;
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let exercise = Chapter::named(&name).filter(|_| file.starts_with("exercises"));
            let first = exercise.map_or(0, |chapter| chapter.number);
            self.graded.retain(|number, _| *number < first);
            let root = &self.root;
            let depends_on =
                |figure: &str| figures::depends_on(root, figure).is_ok_and(|numbers| numbers.contains(&first));
            self.figures.retain(|figure, outcome| first > 0 && outcome.is_ok() && !depends_on(figure));
        }
    }

    /// Checks the changed chapters, and records the figures that depend on them. A mistake of the reader's is no error.
    pub fn follow(&mut self) -> Result<()> {
        let mut started: Vec<Started> = Vec::new();
        for chapter in chapters::all(&self.root).map_err(Error::msg)? {
            let exercise = chapter.read(&self.root).map_err(Error::msg)?;
            if exercise.state != ExerciseState::Untouched {
                started.push((chapter, exercise));
            }
        }
        self.started = started.iter().map(|(chapter, _)| chapter.number).collect();
        let mut is_built = None;
        for figure in figures::all(&self.root) {
            let numbers = figures::depends_on(&self.root, &figure).map_err(Error::msg)?;
            let mine: Vec<&Started> = started.iter().filter(|(chapter, _)| numbers.contains(&chapter.number)).collect();
            if mine.is_empty() || self.figures.contains_key(&figure) {
                continue;
            }
            let reason = match mine.iter().find_map(|started| unfinished(started)) {
                None if is_built.is_none() => is_built.insert(self.compile()?).clone(),
                None => is_built.clone().flatten(),
                unfinished => unfinished,
            };
            let outcome = match reason.map_or_else(|| self.grade(&mine), |reason| Ok(Some(reason)))? {
                Some(reason) => Err(reason),
                None => self.record(&figure)?,
            };
            self.figures.insert(figure, outcome);
        }
        eprintln!("{}", self.in_short());
        Ok(())
    }

    /// The engine for the pages, compiled where it runs chapters of the reader's.
    fn engine(&mut self) -> Result<&Engine> {
        if self.engine.is_none() {
            let runs = engine::runs(&self.root)?;
            let yours: Vec<usize> = self.started.iter().copied().filter(|number| runs.contains(number)).collect();
            let engine = if yours.is_empty() {
                Engine::reference(&self.root, "")
            } else {
                self.compile_engine(&figures::chapters(&yours))?
            };
            self.engine = Some(engine);
        }
        Ok(self.engine.as_ref().expect("it has just been set"))
    }

    /// `yours`: `chapters 4 and 5`.
    fn compile_engine(&self, yours: &str) -> Result<Engine> {
        let Some(compiler) = Compiler::find() else {
            let install = Compiler::INSTALL;
            let says = format!(
                "This engine runs the reference. To see your own {yours} run here, enter {install}, and start cargo book --mine again."
            );
            return Ok(Engine::reference(&self.root, says));
        };
        eprintln!("Compiling the engine with your code …");
        Ok(match compiler.compile(&self.root, &SOON)? {
            Ok(module) => Engine { module, says: format!("This engine runs your own {yours}.") },
            Err(output) => {
                eprintln!("{}", output.trim_end());
                let says = "This engine runs the reference, because your code does not compile.";
                Engine::reference(&self.root, says)
            }
        })
    }

    /// Compiles the tool for figures with the reader's code. Returns why that fails, if so.
    fn compile(&self) -> Result<Option<Reason>> {
        eprintln!("Compiling your code and the figures …");
        let command = "build --package figures-tool";
        let Ended { status, output } = self.cargo(command, BUILD)?;
        let what = match status {
            Some(status) if status.success() => return Ok(None),
            Some(_) => "your code does not compile".into(),
            None => format!("compiling it took more than {} minutes", BUILD.as_secs() / 60),
        };
        eprintln!("{}\nThe figures stay the reference's: {what}", output.trim_end());
        Ok(Some(reason(&what, command)))
    }

    /// Runs the checks of chapters where that has not been done. Returns why one of them is not to be recorded, if so.
    fn grade(&mut self, chapters: &[&Started]) -> Result<Option<Reason>> {
        for (chapter, _) in chapters {
            let number = chapter.number;
            if !self.graded.contains_key(&number) {
                let command = checks(chapter);
                let what = match self.cargo(&command, CHECKS)?.status {
                    Some(status) if status.success() => None,
                    Some(_) => Some(format!("chapter {number} is red")),
                    None => Some(format!("the checks of chapter {number} did not end within {} s", CHECKS.as_secs())),
                };
                eprintln!("{}", what.clone().unwrap_or(format!("chapter {number} is green")));
                self.graded.insert(number, what.map(|what| reason(&what, &command)));
            }
            if let Some(Some(reason)) = self.graded.get(&number) {
                return Ok(Some(reason.clone()));
            }
        }
        Ok(None)
    }

    /// Records a figure whose chapters are green.
    fn record(&self, figure: &str) -> Result<Result<Recorded, Reason>> {
        let command = format!("run --quiet --package figures-tool -- mine {figure} --to {RECORDED}");
        let Ended { status, output } = self.cargo(&command, FIGURE)?;
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        if status.is_some_and(|status| status.success()) {
            let file = self.root.join(RECORDED).join(format!("{figure}.html"));
            let html = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            eprintln!("{last}");
            let says = last.split_once(": ").map_or(last, |(_, says)| says);
            return Ok(Ok((html, says.starts_with("departs"))));
        }
        let told = |sign| output.lines().find(|line| line.starts_with(sign));
        let why = match (told("error: "), told("memory allocation of ")) {
            _ if status.is_none() => format!("no end after {} s: does a loop of yours never end?", FIGURE.as_secs()),
            (Some(error), _) => error["error: ".len()..].to_string(),
            (None, Some(memory)) => format!("it asks for ever more memory ({memory})"),
            (None, None) => last.to_string(),
        };
        eprintln!("{figure}: not recorded: {why}");
        let command = format!("run --package figures-tool -- mine {figure}");
        Ok(Err(reason(&format!("recording it from your code failed: {why}"), &command)))
    }

    /// Runs cargo as the reader would.
    fn cargo(&self, arguments: &str, limit: Duration) -> Result<Ended> {
        let mut command = cargo::cargo(&self.root, Environment::Shell);
        command.args(arguments.split(' ')).env("CARGO_TERM_COLOR", "never");
        Ok(cargo::run(command, limit)?)
    }

    /// The figures that are not as in the published book, by name.
    pub fn fragments(&self) -> Result<BTreeMap<String, String>> {
        let mut fragments = BTreeMap::new();
        for (figure, outcome) in &self.figures {
            let fragment = match outcome {
                Ok((html, _)) => html.clone(),
                Err(note) => {
                    let file = format!("book/src/figures/{figure}.html");
                    figures::with_note(&source::read(&self.root, &file).map_err(Error::msg)?, note)
                }
            };
            fragments.insert(figure.to_string(), fragment);
        }
        Ok(fragments)
    }

    /// Writes on each page of a rendered book that it is the reader's copy.
    pub fn sign(&self, folder: &Path) -> Result<()> {
        let line = format!("<main>\n<p class=\"pbp-copy\" role=\"note\">{}</p>\n", escaped(&self.in_short()));
        for file in files_ending(folder, "html")? {
            let page = fs::read_to_string(folder.join(&file))?;
            fs::write(folder.join(&file), page.replacen("<main>", &line, 1))?;
        }
        Ok(())
    }

    /// What this copy shows, in a line or two.
    fn in_short(&self) -> String {
        if self.started.is_empty() {
            return "Your copy of the book. You have started no chapter yet: all figures are the reference\u{2019}s."
                .into();
        }
        let recorded = || self.figures.values().flatten();
        let yours = recorded().count();
        let unlike = recorded().filter(|(_, departs)| *departs).count();
        format!(
            "Your copy of the book, with {}. Figures recorded from your code: {yours}; unlike the reference: {unlike}. Figures that \
             are still the reference\u{2019}s, and say why: {}.",
            figures::chapters(&self.started),
            self.figures.len() - yours
        )
    }
}

/// Why the checks of a chapter need not run.
fn unfinished((chapter, exercise): &Started) -> Option<Reason> {
    let todos = exercise.todos.len();
    let what = format!("chapter {} is not finished, todo! left: {todos}", chapter.number);
    (exercise.state == ExerciseState::Begun).then(|| reason(&what, &checks(chapter)))
}

/// The arguments of cargo that run the checks of a chapter.
fn checks(chapter: &Chapter) -> String {
    format!("test --features solution --test {}", chapter.name)
}

/// Renders and checks the book: the reader's copy, brought up to date, or without one the reference's.
pub fn build(root: &Path, mut own_copy: Option<&mut OwnCopy>, repository: Option<&str>) -> Result<Build> {
    let mut figures = BTreeMap::new();
    if let Some(own_copy) = &mut own_copy {
        own_copy.follow()?;
        figures = own_copy.fragments()?;
    }
    let build = check::build(root, &figures, repository)?;
    let folder = build.folder.path();
    if let Some(own_copy) = &own_copy {
        own_copy.sign(folder)?;
    }
    if build.pages.iter().any(|page| page.expanded.text.contains("class=\"pbp-live\"")) {
        match own_copy {
            Some(own_copy) => engine::add(root, folder, own_copy.engine()?)?,
            None => engine::add(root, folder, &Engine::reference(root, ""))?,
        }
    }
    Ok(build)
}
