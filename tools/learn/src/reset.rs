//! Replaces a chapter's file with the stub that was handed out, and keeps a copy of it beside the reader's record.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::source;

/// Writes the stub, made from the solution. Returns where the replaced file is, from the root of the repository.
///
/// # Errors
/// If the stub can't be made or the file can't be copied: nothing is changed then. If the stub can't be written.
pub fn reset(root: &Path, chapter: &Chapter) -> Result<Option<String>> {
    let solution = chapter.solution();
    let stub = chapter.stub(root).ok().filter(|stub| source::fingerprint(stub) == chapter.handed_out);
    let stub = stub.with_context(|| {
        format!(
            "the stub is made from {solution}, which has changed: restore that with `git checkout {solution}`, or take \
             the stub from git with `git checkout {}`",
            chapter.exercise()
        )
    })?;
    let file = root.join(chapter.exercise());
    let mut kept = None;
    if file.exists() {
        // No copy replaces an older one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let name = format!(".page-by-page/{}.{now}.rs", chapter.name);
        fs::create_dir_all(root.join(".page-by-page"))
            .and_then(|()| fs::copy(&file, root.join(&name)))
            .with_context(|| format!("{name} cannot be written; nothing was changed"))?;
        kept = Some(name);
    }
    fs::write(&file, stub).with_context(|| format!("{} cannot be written", chapter.exercise()))?;
    Ok(kept)
}
