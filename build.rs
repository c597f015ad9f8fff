//! Decides, chapter by chapter, whose code is compiled.
//!
//! `exercises/chapters.txt` records a hash of every stub as it is handed out. A stub that still has its hash has not
//! been started. For each such chapter, this script sets
//!
//! - `cfg(reference = "chNN_name")` with `--features solution`: `src/chapters.rs` takes it from `solutions/`;
//! - `cfg(stub = "chNN_name")` without: the stub itself is compiled, and its grader is ignored, with the reason.
//!
//! Where no `todo!` is left in what is compiled, the reader's or the reference's, it sets `cfg(written = "chNN_name")`:
//! what needs several chapters, as the commands do, is tested on them.
//!
//! It also writes, from the same list, the table of `src/chapters.rs` and the head of each grader.
//!
//! A file that cannot be compiled fairly stops the build, with a line that says what to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use page_by_page_course::chapters::{self, Chapter, Exercise, ExerciseState};
use page_by_page_course::source;

fn main() {
    println!("cargo::rerun-if-changed=exercises");
    println!("cargo::rustc-check-cfg=cfg(reference, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(stub, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(written, values(any()))");

    let [root, out] = ["CARGO_MANIFEST_DIR", "OUT_DIR"].map(|name| PathBuf::from(std::env::var_os(name).expect(name)));
    match compiled(&root) {
        Err(problems) => problems.iter().for_each(|problem| println!("cargo::error={problem}")),
        Ok(chapters) => {
            let table: String = chapters.iter().map(|chapter| chapter.entry(&root)).collect();
            let count = chapters.len();
            write(&out, "chapters", &format!("const CHAPTERS: [CompiledChapter; {count}] = [\n{table}];\n"));
            for chapter in &chapters {
                chapter.set_cfgs();
                write(&out, &chapter.chapter.name, &chapter.head_of_grader(&chapters));
            }
        }
    }
}

/// A chapter as it is compiled.
struct Compiled {
    chapter: Chapter,
    exercise: Exercise,
    /// As `Source` has it in `src/chapters.rs`.
    source: &'static str,
}

/// All chapters, if all may be compiled; otherwise what is wrong, in a line each.
fn compiled(root: &Path) -> Result<Vec<Compiled>, Vec<String>> {
    let with_solutions = std::env::var_os("CARGO_FEATURE_SOLUTION").is_some();
    let (mut compiled, mut problems) = (Vec::new(), Vec::new());
    for chapter in chapters::all(root).map_err(|problem| vec![problem])? {
        let exercise = chapter.read(root).and_then(|exercise| match source::refused(&exercise.text) {
            Some((line, problem)) => Err(format!("{}:{line}: {problem}", chapter.exercise())),
            None => Ok(exercise),
        });
        match exercise {
            Err(problem) => problems.push(problem),
            Ok(exercise) => {
                let source = match exercise.state {
                    ExerciseState::Untouched if with_solutions => "Reference",
                    ExerciseState::Untouched => "Stub",
                    ExerciseState::Begun | ExerciseState::Written => "Yours",
                };
                compiled.push(Compiled { chapter, exercise, source });
            }
        }
    }
    if problems.is_empty() { Ok(compiled) } else { Err(problems) }
}

impl Compiled {
    fn set_cfgs(&self) {
        let name = &self.chapter.name;
        match self.source {
            "Reference" => println!("cargo::rustc-cfg=reference=\"{name}\""),
            "Stub" => println!("cargo::rustc-cfg=stub=\"{name}\""),
            _ => {}
        }
        if self.exercise.state == ExerciseState::Written || self.source == "Reference" {
            println!("cargo::rustc-cfg=written=\"{name}\"");
        }
    }

    /// An entry of the table in `src/chapters.rs`.
    fn entry(&self, root: &Path) -> String {
        let Compiled { chapter: Chapter { number, name, depends_on, title, .. }, source, .. } = self;
        let file = root.join(self.chapter.exercise());
        let mut tasks: Vec<(u32, &str)> =
            self.exercise.todos.iter().map(|todo| (todo.task, todo.what.as_str())).collect();
        tasks.sort_by_key(|(task, _)| *task);
        let uses: BTreeSet<usize> = chapters::used(&self.exercise.text).map(|chapter| chapter.number).collect();
        let uses = Vec::from_iter(uses);
        format!(
            "CompiledChapter {{ number: {number}, title: {title:?}, name: {name:?}, source: Source::{source}, \
             uses: &{uses:?}, depends_on: &{depends_on:?}, exercise: include_str!({file:?}), tasks_left: &{tasks:?} }},\n"
        )
    }

    /// What `grading::grader!` puts at the head of the chapter's grader.
    fn head_of_grader(&self, chapters: &[Compiled]) -> String {
        let name = &self.chapter.name;
        if self.source == "Stub" {
            let reason = format!("not started: edit exercises/{name}.rs, or run with --features solution");
            return format!("#[test]\n#[ignore = {reason:?}]\nfn {name}() {{}}\n");
        }
        let is_listed = |other: &&Compiled| self.chapter.depends_on.contains(&other.chapter.number);
        let checks = chapters.iter().filter(is_listed).map(|Compiled { chapter, source, .. }| {
            let (check, call) = match *source {
                "Reference" => ("is_the_reference_not_yours", "assert_as_on_disk"),
                "Stub" => ("is_not_started", "refuse_a_stub"),
                _ => ("is_yours", "assert_as_on_disk"),
            };
            format!(
                "mod {0} {{ #[test] #[cfg_attr(miri, ignore = \"Miri reads no files\")] \
                 fn {check}() {{ grading::whose_code::{call}({0:?}) }} }}\n",
                chapter.name
            )
        });
        format!("mod whose_code {{\n{}}}\n", checks.collect::<String>())
    }
}

/// Writes a file of Rust for the targets of this package.
fn write(out: &Path, name: &str, text: &str) {
    fs::write(out.join(name).with_extension("rs"), text).expect("cargo's own folder can be written");
}
