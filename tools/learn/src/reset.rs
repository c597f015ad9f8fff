//! Puts a chapter's file back to the stub that was handed out; what was there is kept beside the record.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::course::Chapter;
use crate::record;

/// Writes the stub; returns where the file that it replaces is kept, from the root of the repository.
///
/// # Errors
/// If the copy cannot be made: nothing is changed then. If the stub cannot be written.
pub fn reset(root: &Path, chapter: &Chapter, stub: &str) -> Result<Option<String>> {
    let file = root.join(chapter.exercise());
    let folder = Path::new(record::FILE).parent().unwrap_or(Path::new(".page-by-page"));
    let mut kept = None;
    if file.exists() {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("{} cannot be made", folder.display()))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let names = (0..).map(|n| {
            if n == 0 { format!("{}.{seconds}.rs", chapter.name) } else { format!("{}.{seconds}-{n}.rs", chapter.name) }
        });
        let name = names.map(|name| folder.join(name)).find(|name| !root.join(name).exists()).unwrap_or_default();
        // Copied as it is, whatever its bytes are.
        fs::copy(&file, root.join(&name))
            .with_context(|| format!("{} cannot be written; nothing was changed", name.display()))?;
        kept = Some(name.display().to_string().replace('\\', "/"));
    }
    fs::write(&file, stub).with_context(|| format!("{} cannot be written", chapter.exercise()))?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::State;
    use crate::stub::fingerprint;

    #[test]
    fn what_is_reset_is_kept_first() {
        let root = tempfile::tempdir().unwrap();
        let stub = "fn a() { todo!(\"ch02 task 1: x\") }\n";
        let chapter =
            Chapter { number: 2, name: "ch02_flat".into(), title: "The flat cache".into(), stub: fingerprint(stub) };
        fs::create_dir(root.path().join("exercises")).unwrap();
        let file = root.path().join(chapter.exercise());
        let mut names = Vec::new();
        for mine in [&b"mine"[..], b"\xff mine too"] {
            fs::write(&file, mine).unwrap();
            let kept = reset(root.path(), &chapter, stub).unwrap().unwrap();
            assert!(kept.starts_with(".page-by-page/ch02_flat."), "{kept}");
            assert_eq!(fs::read(root.path().join(&kept)).unwrap(), mine);
            assert_eq!(chapter.read(root.path()).unwrap().state, State::Untouched);
            names.push(kept);
        }
        assert_ne!(names[0], names[1], "no copy replaces another");
        fs::remove_file(&file).unwrap();
        assert_eq!(reset(root.path(), &chapter, stub).unwrap(), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), stub);
    }
}
