//! Replaces a chapter's file with the stub that was handed out, and keeps a copy of it beside the reader's record.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::{marks, record, stub};
use similar::{ChangeTag, TextDiff};

/// The stub as it was handed out, made from the solution.
///
/// # Errors
/// If the solution can't be read, or has been changed.
pub fn handed_out(root: &Path, chapter: &Chapter) -> Result<String> {
    let file = chapter.solution();
    let solution = stub::read(root, &file).map_err(anyhow::Error::msg)?.replace("\r\n", "\n");
    let stub = marks::stub_of(&chapter.name, &solution).ok();
    match stub.filter(|stub| stub::fingerprint(stub) == chapter.handed_out) {
        Some(stub) => Ok(stub),
        None => bail!(
            "the stub is made from {file}, which has changed: restore that with `git checkout {file}`, or take the stub \
             from git with `git checkout {}`",
            chapter.exercise()
        ),
    }
}

/// How many lines of `mine` are not in `stub`. Blank lines don't count.
pub fn lost(mine: &str, stub: &str) -> usize {
    let (mine, stub) = (mine.replace("\r\n", "\n"), stub.replace("\r\n", "\n"));
    let diff = TextDiff::from_lines(&mine, &stub);
    let is_lost =
        |change: &similar::Change<&str>| change.tag() == ChangeTag::Delete && !change.value().trim().is_empty();
    diff.iter_all_changes().filter(is_lost).count()
}

/// Writes the stub. Returns where the replaced file is kept, from the root of the repository.
///
/// # Errors
/// If the copy can't be made: nothing is changed then. If the stub can't be written.
pub fn reset(root: &Path, chapter: &Chapter, stub: &str) -> Result<Option<String>> {
    let file = root.join(chapter.exercise());
    let folder = Path::new(record::FILE).parent().unwrap_or(Path::new(".page-by-page"));
    let mut kept = None;
    if file.exists() {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("{} cannot be made", folder.display()))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let names = (0..).map(|n| match n {
            0 => format!("{}.{seconds}.rs", chapter.name),
            n => format!("{}.{seconds}-{n}.rs", chapter.name),
        });
        let name = names.map(|name| folder.join(name)).find(|name| !root.join(name).exists()).unwrap_or_default();
        fs::copy(&file, root.join(&name))
            .with_context(|| format!("{} cannot be written; nothing was changed", name.display()))?;
        kept = Some(name.display().to_string().replace('\\', "/"));
    }
    fs::write(&file, stub).with_context(|| format!("{} cannot be written", chapter.exercise()))?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use page_by_page_course::chapters::State;

    use super::*;

    #[test]
    fn a_copy_is_kept_before_a_reset() {
        let root = tempfile::tempdir().unwrap();
        let solution = "//! Two.\n\nfn a() -> u32 {\n    // ch02 task 1: count\n    7\n}\n";
        let stub = marks::stub_of("ch02_flat", solution).unwrap();
        let chapter = Chapter::named("ch02_flat", &stub::fingerprint(&stub)).unwrap();
        for folder in ["exercises", "solutions"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join(chapter.solution()), solution).unwrap();
        assert_eq!(handed_out(root.path(), &chapter).unwrap(), stub);
        let file = root.path().join(chapter.exercise());
        let mut names = Vec::new();
        for mine in [&b"mine"[..], b"\xff mine too"] {
            fs::write(&file, mine).unwrap();
            let kept = reset(root.path(), &chapter, &stub).unwrap().unwrap();
            assert!(kept.starts_with(".page-by-page/ch02_flat."), "{kept}");
            assert_eq!(fs::read(root.path().join(&kept)).unwrap(), mine, "whatever its bytes are");
            assert_eq!(chapter.read(root.path()).unwrap().state, State::Untouched);
            names.push(kept);
        }
        assert_ne!(names[0], names[1], "no copy replaces another");
        fs::remove_file(&file).unwrap();
        assert_eq!(reset(root.path(), &chapter, &stub).unwrap(), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), stub);
        fs::write(root.path().join(chapter.solution()), "// mine\n").unwrap();
        let problem = handed_out(root.path(), &chapter).unwrap_err().to_string();
        assert!(problem.contains("`git checkout solutions/ch02_flat.rs`"), "{problem}");
    }

    #[test]
    fn every_chapter_can_be_reset() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        for chapter in page_by_page_course::chapters::all(root).unwrap() {
            handed_out(root, &chapter).unwrap();
        }
    }

    #[test]
    fn lines_that_would_be_lost_are_counted() {
        assert_eq!(lost("a\n\nmine\nmine too\nb\n", "a\ntodo!()\nb\n"), 2);
        assert_eq!(lost("a\r\nb\r\n", "a\nb\n"), 0);
    }
}
