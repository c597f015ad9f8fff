//! `cargo course stubs`: writes what the solutions' marks give, and the list of stubs as they are handed out.
//!
//! `build.rs` tells a chapter that the reader has started by that list. A file in `exercises/` that is neither the stub
//! of the list nor the new one is a reader's work, and is never overwritten.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use page_by_page_course::chapters::{self, Chapter, LIST};
use page_by_page_course::source::{self, file_names};

use crate::check::Report;
use crate::files::read;

const HEADER: &str = "# The chapters, each with the hash of its stub as it is handed out, the chapters that its checks \
                      depend on, and its title.\n# `cargo course stubs` writes this file.\n";

/// Writes `exercises/` and the list; returns what has changed, in a line.
///
/// # Errors
/// If a mark makes no sense, or a file in `exercises/` is a reader's work. Nothing is written then.
pub fn write(root: &Path) -> Result<String> {
    let before = chapters::all(root).unwrap_or_default();
    let mut list = HEADER.to_string();
    let mut files = Vec::new();
    for name in file_names(root, "solutions", ".rs") {
        let Some(mut chapter) = Chapter::named(&name) else { bail!("solutions/{name}.rs is not called ch01_name.rs") };
        let (now, made) = (read(root, &chapter.exercise()).ok(), chapter.stub(root).map_err(Error::msg)?);
        if let Some(now) = now.filter(|now| *now != made) {
            let known = before.iter().find(|known| known.name == name);
            if known.is_none_or(|known| known.handed_out != source::fingerprint(&now)) {
                bail!(
                    "{} is neither the stub that was handed out nor the new one: it would be lost; keep a copy, then \
                     `git checkout {0}`",
                    chapter.exercise()
                );
            }
        }
        chapter.handed_out = source::fingerprint(&made);
        complete(root, &mut chapter)?;
        list.push_str(&chapter.line());
        files.push((chapter.exercise(), made));
    }
    files.push((LIST.to_string(), list));
    files.retain(|(file, text)| read(root, file).ok().as_ref() != Some(text));
    for (file, text) in &files {
        fs::write(root.join(file), text).with_context(|| format!("cannot write {file}"))?;
    }
    let changed: Vec<&str> = files.iter().map(|(file, _)| file.as_str()).collect();
    Ok(if changed.is_empty() { "all stubs are current".into() } else { format!("written: {}", changed.join(", ")) })
}

/// Finds out what else the list says of a chapter: its title, and the chapters that its checks depend on.
fn complete(root: &Path, chapter: &mut Chapter) -> Result<()> {
    let page = read(root, &chapter.page())?;
    let heading = page.lines().next().unwrap_or_default();
    let title = heading.strip_prefix(&format!("# {}. ", chapter.number));
    chapter.title =
        title.with_context(|| format!("{} does not begin with `# {}. Title`", chapter.page(), chapter.number))?.into();
    chapter.depends_on = chapters::depends_on(root, &chapter.grader()).map_err(Error::msg)?;
    if !chapter.depends_on.contains(&chapter.number) {
        chapter.depends_on.push(chapter.number);
    }
    Ok(())
}

/// Reports stubs that are not what their solutions give. Returns the current stub of a chapter.
pub fn check(root: &Path, chapter: &Chapter, report: &mut Report) -> Result<String> {
    let (made, solution) = (chapter.stub(root).map_err(Error::msg)?, chapter.solution());
    let mut derived = chapter.clone();
    complete(root, &mut derived)?;
    if derived != *chapter {
        let (name, line) = (&chapter.name, derived.line());
        report.add(LIST, format!("the line of {name} should be `{}`: run `cargo course stubs`", line.trim_end()));
    }
    if source::fingerprint(&made) != chapter.handed_out {
        let problem = format!("{solution} gives a stub that is not the recorded one: run `cargo course stubs`");
        report.add(LIST, problem);
    } else if read(root, &chapter.exercise()).ok().as_ref() != Some(&made) {
        report.add(chapter.exercise(), format!("is not the stub that {solution} gives: a reader has started it"));
    }
    Ok(made)
}
