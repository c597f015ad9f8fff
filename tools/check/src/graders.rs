//! What surrounds the checks of a chapter: the list of chapters whose code they run, and the modules in `src/chapters.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use page_by_page_course::chapters::Chapter;

use crate::files::read;
use crate::finding::Report;

/// The chapters' modules.
const MODULES: &str = "src/chapters.rs";

/// Checks the module of a chapter: attributes that name a different chapter's file would compile, and grade the wrong one.
pub fn check_module(root: &Path, chapter: &Chapter, report: &mut Report) -> Result<()> {
    let name = &chapter.name;
    let module = format!(
        "#[cfg_attr(reference = \"{name}\", path = \"../solutions/{name}.rs\")]\n\
         #[cfg_attr(not(reference = \"{name}\"), path = \"../exercises/{name}.rs\", allow(unused))]\n\
         pub mod {name};\n"
    );
    if !read(root, MODULES)?.contains(&module) {
        report.add(MODULES, 0, format!("lacks these lines:\n{module}"));
    }
    Ok(())
}

/// Checks that a grader is ignored while its chapter is untouched, and says whose code it ran.
pub fn check(root: &Path, chapters: &[Chapter], chapter: &Chapter, grader: &str, report: &mut Report) {
    let (file, name) = (chapter.grader(), &chapter.name);
    for wanted in [format!("#[cfg(unstarted = \"{name}\")]"), "#[ignore = \"not started: ".into()] {
        if !grader.contains(&wanted) {
            report.add(&file, 0, format!("lacks {wanted}: an untouched chapter would not be ignored"));
        }
    }
    let list =
        grader.split_once("whose_code! {").and_then(|(_, after)| after.split_once('}')).map_or("", |list| list.0);
    let mut missing = stands_on(root, chapters, chapter, grader);
    missing.retain(|name| !list.contains(&entry_of(name)));
    if !missing.is_empty() || !list.trim_end_matches([',', ' ', '\n']).ends_with(&entry_of(name)) {
        let problem = "should have `whose_code! { … }` with the chapters whose code it runs, in order, this one last";
        report.add(&file, 0, format!("{problem}; missing: {missing:?}"));
    }
}

/// A chapter in the list of a grader.
fn entry_of(name: &str) -> String {
    format!("{name} = \"{name}\"")
}

/// The chapters whose code the grader of a chapter runs: those that grader and solution name, and those that these name in
/// turn. In order.
fn stands_on<'a>(root: &Path, chapters: &'a [Chapter], chapter: &'a Chapter, grader: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([chapter.name.as_str()]);
    let mut to_read = vec![grader.to_string(), read(root, &chapter.solution()).unwrap_or_default()];
    while let Some(text) = to_read.pop() {
        for other in chapters.iter().filter(|other| text.contains(&format!("chapters::{}", other.name))) {
            if found.insert(&other.name) {
                to_read.push(read(root, &other.solution()).unwrap_or_default());
            }
        }
    }
    found
}
