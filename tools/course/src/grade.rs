//! `cargo course grade`: plays what readers do, and sees what the graders say. Right work must be green; wrong work
//! must be red, and the first failure must say what the list of mistakes expects.
//!
//! Several copies of the repository are graded at once, because a step spends half its time on one core. A chapter is
//! one job: what follows in the same file builds little more than that file.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Error, Result, bail};
use page_by_page_course::chapters::{self, Chapter};
use page_by_page_course::libtest::{TestOutcome, task_of};

use crate::copy::RepositoryCopy;
use crate::files::read;
use crate::mistakes::{self, PlantedMistake};
use crate::run::CargoRun;
use crate::tasks;

/// Copies that are graded at the same time.
const COPIES: usize = 2;

/// Appended to a stub or a solution, so that it is not the untouched stub.
const STARTED: &str = "\n// Started.\n";

enum Job {
    Chapter(Chapter),
    /// What keeps a wrong answer red in every chapter, tried on one.
    Safeguards(Chapter),
    /// All chapters at once, without the reference.
    WithoutReference,
}

/// Which of the planted mistakes of a chapter are tried.
pub enum Planted {
    /// The first of every so many, and those whose failures the page prints.
    Every(usize),
    /// Those that have these words in their names.
    Named(String),
}

/// Grades these chapters, or all if none is given; whether they are sound.
pub fn grade(root: &Path, only: &[usize], planted: &Planted) -> Result<bool> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("course");
    std::fs::create_dir_all(&target).with_context(|| format!("cannot make the folder {}", target.display()))?;
    let lock = File::create(target.join("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another run grades in {}: wait for it", target.display());
    }
    let chapters = chapters::all(root).map_err(Error::msg)?;
    if let Planted::Named(words) = planted {
        for chapter in chapters.iter().filter(|chapter| only.contains(&chapter.number)) {
            let (name, mut mistakes) = (&chapter.name, mistakes::read_list(root, chapter)?.into_keys());
            if !mistakes.any(|mistake| mistake.contains(words)) {
                bail!("no mistake of {name} has {words:?} in its name; tools/course/mistakes/{name}.toml lists them");
            }
        }
    }
    let jobs = Mutex::new(jobs(&chapters, only)?);
    let grading = Grading { chapters, planted, started: Instant::now(), jobs, problems: Mutex::default() };
    thread::scope(|scope| {
        let copies: Vec<_> = (1..=COPIES)
            .map(|copy| {
                let (grading, folder) = (&grading, target.join(copy.to_string()));
                scope.spawn(move || grading.work(root, &folder))
            })
            .collect();
        copies.into_iter().try_for_each(|copy| copy.join().expect("a copy is graded without a panic"))
    })?;
    Ok(grading.summary())
}

/// What there is to do, the longest first.
fn jobs(chapters: &[Chapter], only: &[usize]) -> Result<VecDeque<Job>> {
    if let Some(number) = only.iter().find(|number| !(1..=chapters.len()).contains(number)) {
        bail!("there is no chapter {number} (there are 1 to {})", chapters.len());
    }
    let is_wanted = |chapter: &&Chapter| only.is_empty() || only.contains(&chapter.number);
    let mut jobs: VecDeque<Job> = chapters.iter().rev().filter(is_wanted).cloned().map(Job::Chapter).collect();
    if only.is_empty() {
        // Chapter 2 is the first with a transcript, an oracle and a cache.
        jobs.push_front(Job::Safeguards(chapters[1].clone()));
        jobs.push_front(Job::WithoutReference);
    }
    Ok(jobs)
}

struct Grading<'a> {
    chapters: Vec<Chapter>,
    planted: &'a Planted,
    started: Instant,
    jobs: Mutex<VecDeque<Job>>,
    problems: Mutex<Vec<String>>,
}

/// What a step saw, and what is wrong.
type Graded = (String, Vec<String>);

impl Grading<'_> {
    /// Does one job after the other in a copy of its own.
    fn work(&self, root: &Path, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder.join("copy"))?;
        let copy = RepositoryCopy::open(root, folder)?;
        loop {
            let job = self.jobs.lock().expect("held without a panic").pop_front();
            match job {
                None => return Ok(()),
                Some(Job::Chapter(chapter)) => self.chapter(&copy, &chapter)?,
                Some(Job::Safeguards(chapter)) => {
                    self.refusals(&copy, &chapter)?;
                    self.old_date(&copy, &chapter)?;
                    self.snapshots_stay(&copy, &chapter)?;
                }
                Some(Job::WithoutReference) => self.without_reference(&copy)?,
            }
        }
    }

    fn step(&self, label: &str, step: impl FnOnce() -> Result<Graded>) -> Result<()> {
        let began = Instant::now();
        let (seen, problems) = step()?;
        let seen = if problems.is_empty() { seen } else { format!("PROBLEM: {}", problems.join("; ")) };
        println!("{:7.1} s  {label}: {seen}", began.elapsed().as_secs_f64());
        let problems = problems.iter().map(|problem| format!("{label}: {problem}"));
        self.problems.lock().expect("held without a panic").extend(problems);
        Ok(())
    }

    /// One chapter started, all others as they are handed out: the stub, the solution, the mistakes.
    fn chapter(&self, copy: &RepositoryCopy, chapter: &Chapter) -> Result<()> {
        let (file, name) = (chapter.exercise(), &chapter.name);
        let (stub, solution) = (read(&copy.root, &file)?, read(&copy.root, &chapter.solution())?);
        // What `cargo learn list` counts: the grader writes it after a green run, and takes it away after a red one.
        let noted = copy.root.join(format!(".page-by-page/green/{name}.rs"));
        self.step(&format!("{name}, the stub started"), || {
            copy.put(&file, format!("{stub}{STARTED}"))?;
            Ok(stub_is_red(&graded(copy, chapter)?, chapter, &stub))
        })?;
        self.step(&format!("{name}, the solution over its stub"), || {
            copy.put(&file, format!("{solution}{STARTED}"))?;
            let run = graded(copy, chapter)?;
            let mut problems = run.not_green(std::slice::from_ref(chapter));
            problems.extend(run.warning(chapter));
            problems.extend((!noted.exists()).then(|| format!("is not noted as green in {}", noted.display())));
            Ok(("green".into(), problems))
        })?;
        let mut printed = printed_failures(&read(&copy.root, &chapter.page())?);
        let mut mistakes: Vec<(String, PlantedMistake)> =
            mistakes::read_list(&copy.root, chapter)?.into_iter().collect();
        let is_expected = |failure: &str, mistake: &PlantedMistake| failure.contains(&in_one_line(&mistake.expect));
        let (n_all, mut places) = (mistakes.len(), 0..);
        mistakes.retain(|(what, mistake)| {
            let place = places.next().unwrap_or(0);
            let is_printed = || printed.iter().any(|failure| is_expected(failure, mistake));
            match self.planted {
                Planted::Every(n) => place % n == 0 || is_printed(),
                Planted::Named(words) => what.contains(words),
            }
        });
        if mistakes.len() < n_all {
            // Others come with a mistake that is not planted now, as its second failure.
            printed.retain(|failure| mistakes.iter().any(|(_, mistake)| is_expected(failure, mistake)));
        }
        for (what, mistake) in &mistakes {
            self.step(&format!("{name}, {what}"), || {
                let wrong = mistake.apply(&solution).map_err(Error::msg).context(what.clone())?;
                copy.put(&file, wrong + STARTED)?;
                let run = graded(copy, chapter)?;
                let (seen, mut problems) = noticed(&run, mistake);
                printed.retain(|failure| !run.red().iter().any(|red| in_one_line(red.words).contains(failure)));
                problems.extend(noted.exists().then(|| "is noted as green all the same".into()));
                Ok((seen, problems))
            })?;
        }
        self.step(&format!("{name}, the failures that its page prints"), || {
            let missing = printed.iter().map(|failure| format!("no mistake in the list gives this: {failure}"));
            Ok(("as they come".into(), missing.collect()))
        })?;
        copy.put(&file, stub)
    }

    /// Files that can't be graded fairly stop the build, each with the advice that helps.
    fn refusals(&self, copy: &RepositoryCopy, chapter: &Chapter) -> Result<()> {
        let file = chapter.exercise();
        let stub = read(&copy.root, &file)?;
        let bad_byte = [stub.as_bytes(), b"// caf\xe9\n"].concat();
        let exit = format!("{stub}\nfn end() {{ std::process::exit(0) }}\n").into_bytes();
        for (name, content, says) in [
            ("a byte that is not UTF-8", Some(bad_byte), "not text in UTF-8: the byte 0xE9"),
            ("std::process::exit(0)", Some(exit), "a chapter may not use std::process"),
            ("no file", None, "is missing: restore it with `git checkout"),
        ] {
            self.step(name, || {
                match &content {
                    Some(content) => copy.put(&file, content)?,
                    None => std::fs::remove_file(copy.root.join(&file))?,
                }
                let run = graded(copy, chapter)?;
                let mut problems = Vec::new();
                if !run.suites.is_empty() || !run.output.contains(says) {
                    problems.push(format!("should stop the build with `{says}`"));
                }
                if content.is_some() && run.output.contains("git checkout") {
                    problems.push("advises to throw the file away".into());
                }
                Ok(("stops the build".into(), problems))
            })?;
            copy.put(&file, &stub)?;
        }
        Ok(())
    }

    /// A different file over the reader's, with an older date: cargo builds nothing, and the checks say so.
    fn old_date(&self, copy: &RepositoryCopy, chapter: &Chapter) -> Result<()> {
        let file = chapter.exercise();
        let (stub, solution) = (read(&copy.root, &file)?, read(&copy.root, &chapter.solution())?);
        copy.put(&file, solution + STARTED)?;
        graded(copy, chapter)?;
        self.step("a different file with an old date", || {
            copy.put_old(&file, &format!("{stub}{STARTED}"))?;
            let run = graded(copy, chapter)?;
            let (check, advice) = (format!("whose_code::{}::is_yours", chapter.name), format!("`touch {file}`"));
            let says = run.red().iter().any(|red| red.test == check && red.words.contains(&advice));
            let problem = (!says).then(|| format!("{check} should be red and say {advice}"));
            Ok(("red, with the next step".into(), problem.into_iter().collect()))
        })?;
        copy.put(&file, stub)
    }

    /// A wrong transcript stays red by all usual ways to accept a snapshot, and nothing is written.
    fn snapshots_stay(&self, copy: &RepositoryCopy, chapter: &Chapter) -> Result<()> {
        let file = chapter.exercise();
        let (stub, solution) = (read(&copy.root, &file)?, read(&copy.root, &chapter.solution())?);
        let mistake = mistakes::read_list(&copy.root, chapter)?.into_values().find(|mistake| mistake.transcript);
        let wrong = mistake.context("a mistake with `transcript = true`")?.apply(&solution).map_err(Error::msg)?;
        copy.put(&file, wrong + STARTED)?;
        let manifest = copy.root.join("Cargo.toml");
        let manifest = manifest.to_str().context("the path of the copy is not UTF-8")?;
        let (inside, outside) = (copy.root.clone(), std::env::temp_dir());
        let from_outside = vec!["test", "--manifest-path", manifest];
        let has_insta = copy.cargo(&inside, &["insta", "--version"], &[])?.success;
        let ways = [
            (vec!["test"], vec![("INSTA_UPDATE", "always")], &inside),
            (vec!["test"], vec![("INSTA_FORCE_PASS", "1")], &inside),
            (vec!["test"], vec![("INSTA_FORCE_UPDATE", "1")], &inside),
            (from_outside.clone(), vec![("INSTA_UPDATE", "always")], &outside),
            (from_outside, vec![("INSTA_FORCE_PASS", "1")], &outside),
            (vec!["insta", "test", "--accept"], vec![], &inside),
        ];
        for (command, variables, folder) in ways.into_iter().take(if has_insta { 6 } else { 5 }) {
            self.step(&format!("a wrong transcript, cargo {} {variables:?}", command[0]), || {
                let before = copy.snapshots()?;
                let arguments = [&command[..], &["--features", "solution", "--test", &chapter.name]].concat();
                let run = copy.cargo(folder, &arguments, &variables)?;
                let mut problems: Vec<String> = run.obstacle().into_iter().collect();
                let refused = "tells insta to accept a wrong transcript";
                if run.success || !run.red().iter().any(|red| red.is_snapshot() || red.words.contains(refused)) {
                    problems.push("turns green".into());
                }
                if copy.snapshots()? != before {
                    problems.push("writes a snapshot".into());
                }
                Ok(("stays red, nothing written".into(), problems))
            })?;
        }
        copy.put(&file, stub)
    }

    /// Without the feature: nothing of an untouched clone is graded, and all solutions over their stubs are green.
    fn without_reference(&self, copy: &RepositoryCopy) -> Result<()> {
        self.step("untouched, without the reference", || {
            let run = copy.cargo(&copy.root, &["test", "--no-fail-fast"], &[])?;
            let mut problems: Vec<String> = run.obstacle().into_iter().collect();
            problems.extend((!run.success).then(|| "cargo test should pass".into()));
            for chapter in &self.chapters {
                let suite = run.suites.iter().find(|suite| suite.name == chapter.name);
                let outcomes: Vec<_> = suite.iter().flat_map(|suite| suite.tests.values()).collect();
                if !matches!(outcomes[..], [TestOutcome::Ignored(reason)] if reason.starts_with("not started: ")) {
                    problems.push(format!("{} should have one check, ignored: not started", chapter.name));
                }
            }
            Ok(("each ignored: not started".into(), problems))
        })?;
        self.step("all solutions over their stubs, without the reference", || {
            let mut arguments = vec!["test", "--no-fail-fast"];
            for chapter in &self.chapters {
                copy.put(&chapter.exercise(), read(&copy.root, &chapter.solution())? + STARTED)?;
                arguments.extend(["--test", chapter.name.as_str()]);
            }
            Ok(("green".into(), copy.cargo(&copy.root, &arguments, &[])?.not_green(&self.chapters)))
        })?;
        for chapter in &self.chapters {
            copy.put(&chapter.exercise(), chapter.stub(&copy.root).map_err(Error::msg)?)?;
        }
        Ok(())
    }

    fn summary(&self) -> bool {
        let problems = self.problems.lock().expect("held without a panic");
        println!("\n{:.1} minutes", self.started.elapsed().as_secs_f64() / 60.0);
        match &problems[..] {
            [] => println!("sound"),
            problems => println!("{} problems:\n  {}", problems.len(), problems.join("\n  ")),
        }
        problems.is_empty()
    }
}

/// The failures that a page quotes, each in a line.
fn printed_failures(page: &str) -> Vec<String> {
    let blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("  yours: ")).map(in_one_line).collect()
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn graded(copy: &RepositoryCopy, chapter: &Chapter) -> Result<CargoRun> {
    copy.cargo(&copy.root, &["test", "--features", "solution", "--test", &chapter.name], &[])
}

/// A started stub compiles without a warning, is red, and each of its tasks is asked for by name.
fn stub_is_red(run: &CargoRun, chapter: &Chapter, stub: &str) -> Graded {
    let mut problems: Vec<String> = run.obstacle().into_iter().collect();
    problems.extend(run.warning(chapter));
    let (tasks, red) = (tasks::of_stub(chapter, stub), run.red());
    for task in &tasks {
        let words = format!("not yet implemented: ch{:02} task {task}:", chapter.number);
        if !red.iter().any(|red| task_of(red.test) == Some(*task) || red.words.contains(&words)) {
            problems.push(format!("no red check is about task {task}"));
        }
    }
    if !red.iter().any(|red| red.words.contains("not yet implemented: ch")) {
        problems.push("no red check shows the text of a todo!".into());
    }
    (format!("{} red, for each of {} tasks", red.len(), tasks.len()), problems)
}

/// A mistake is red, and the first failure says what is expected.
fn noticed(run: &CargoRun, mistake: &PlantedMistake) -> Graded {
    let red = run.red();
    let mut problems: Vec<String> = run.obstacle().into_iter().collect();
    let says = red.first().map(|first| first.says()).unwrap_or_default();
    if red.is_empty() && problems.is_empty() {
        problems.push("no check notices".into());
    }
    if red.first().is_some_and(|first| !first.words.contains(&mistake.expect)) {
        problems.push(format!("the first failure should say `{}`; it says `{says}`", mistake.expect));
    }
    if mistake.transcript && !red.iter().any(|red| red.is_snapshot()) {
        problems.push("the transcript is green, and the list has `transcript = true`".into());
    }
    (format!("{} red; {says}", red.len()), problems)
}
