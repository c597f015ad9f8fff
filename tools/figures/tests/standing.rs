//! The list of the chapters that a figure stands on is what its code names.
//!
//! A figure's file and the modules that it uses name chapters; these use others in turn, as their stubs and solutions say. A
//! few parts of the engine run chapters by themselves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use page_by_page_course::figures;

/// A part of the engine, the folder that has it, and the chapters that it runs. The model's attention runs chapters 13 and 14
/// only if it is asked to, and no figure asks for it.
const ENGINE: [(&str, &str, &[usize]); 6] = [
    ("Sampler", "src/decode", &[1]),
    ("Serving", "src/serving", &[6, 10, 12]),
    ("Prefixes", "src/prefixes", &[4, 5]),
    ("Requests", "src/experiments", &[11]),
    ("in_tables", "src/experiments", &[4, 5]),
    ("Bundled", "src/experiments", &[3, 9]),
];

/// What goes back by chapter 7's `rewind`, which is written for the caches of other chapters.
const REWINDS: [&str; 3] = [".rewind(", "Speculation {", "Bundled::open"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The names of the Rust files in a folder.
fn names_in(folder: &str) -> BTreeSet<String> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    files.filter_map(|file| Some(file.to_str()?.strip_suffix(".rs")?.to_string())).collect()
}

/// The words in a text that follow `start`: `ch06_paged`, after `chapters::`.
fn names_after<'t>(text: &'t str, start: &str) -> Vec<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(start).skip(1).map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]).collect()
}

/// A figure's file, and the modules that it uses, with those that they use.
fn code_of(figure: &str) -> String {
    let mut files = vec![format!("figures/{figure}")];
    let mut code = String::new();
    for index in 0.. {
        let Some(file) = files.get(index) else { break };
        let text = read(&format!("tools/figures/src/{file}.rs"));
        // The list of all figures is beside the type of one.
        let modules =
            names_after(&text, "use crate::").into_iter().filter(|name| *name != "figures").map(str::to_string);
        let others = names_after(&text, "use super::").into_iter().filter(|name| name.starts_with("ch"));
        let used: Vec<String> = modules.chain(others.map(|name| format!("figures/{name}"))).collect();
        files.extend(used.into_iter().filter(|name| !files.contains(name)).collect::<BTreeSet<_>>());
        code += &text;
    }
    code
}

/// The numbers of the chapters that a text names.
fn numbers(text: &str) -> BTreeSet<usize> {
    names_after(text, "chapters::ch").into_iter().filter_map(|name| name[..2].parse().ok()).collect()
}

/// The chapters that a figure's code runs.
fn derived(figure: &str) -> BTreeSet<usize> {
    let code = code_of(figure);
    let mut chapters = numbers(&code);
    if REWINDS.iter().any(|call| code.contains(call)) {
        chapters.insert(7);
    }
    let is_named = |name: &str| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    for (_, _, runs) in ENGINE.iter().filter(|(name, ..)| is_named(name)) {
        chapters.extend(runs.iter());
    }
    let names = names_in("solutions");
    let mut to_read: Vec<usize> = chapters.iter().copied().collect();
    while let Some(chapter) = to_read.pop() {
        let name = names.iter().find(|name| name.starts_with(&format!("ch{chapter:02}_"))).unwrap();
        let text = ["exercises", "solutions"].map(|folder| read(&format!("{folder}/{name}.rs"))).concat();
        to_read.extend(numbers(&text).into_iter().filter(|other| chapters.insert(*other)));
    }
    chapters
}

#[test]
fn each_figure_stands_on_what_its_code_names() {
    let wrong: Vec<String> = (figures::STANDS_ON.iter())
        .map(|(name, chapters)| (name, BTreeSet::from_iter(chapters.iter().copied()), derived(name)))
        .filter(|(_, listed, derived)| listed != derived)
        .map(|(name, listed, derived)| format!("{name}: listed {listed:?}, its code names {derived:?}"))
        .collect();
    assert!(wrong.is_empty(), "course/src/figures.rs:\n{}", wrong.join("\n"));
    for (name, chapters) in figures::STANDS_ON {
        assert!(chapters.is_sorted() && figures::stands_on(name) == Some(chapters), "{name}");
    }
    assert_eq!(figures::stands_on("ch99_none"), None);
}

#[test]
fn every_figure_is_listed() {
    let files = names_in("tools/figures/src/figures");
    assert_eq!(files, figures::STANDS_ON.iter().map(|(name, _)| name.to_string()).collect());
}

#[test]
fn the_engine_still_runs_these_chapters() {
    for (name, folder, chapters) in ENGINE {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let text: String = files.filter(|file| file.is_file()).map(|file| fs::read_to_string(file).unwrap()).collect();
        let is_here = ["struct", "trait", "fn"].iter().any(|kind| text.contains(&format!("pub {kind} {name}")));
        assert!(is_here, "{folder} has no {name}");
        assert!(chapters.iter().all(|chapter| numbers(&text).contains(chapter)), "{folder} does not name {chapters:?}");
    }
}
