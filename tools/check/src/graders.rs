//! What surrounds the checks of a chapter: the head of the grader, and the modules in `src/chapters.rs`.

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
pub fn check(chapter: &Chapter, grader: &str, report: &mut Report) {
    for wanted in ["\ngrading::grader!();\n".into(), format!("\n#[cfg(not(unstarted = \"{}\"))]\n", chapter.name)] {
        if !grader.contains(&wanted) {
            let problem = format!("lacks `{}`: an untouched chapter would not be ignored", wanted.trim());
            report.add(chapter.grader(), 0, problem);
        }
    }
}
