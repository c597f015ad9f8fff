//! Figures on disk: what to write, and whether what is there is the same.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::figures::Figure;

/// A file of the book: its path from the repository root, and its text.
pub type File = (String, String);

/// The fragment of each figure, and its picture if it has one.
pub fn of(figures: &[Figure]) -> Vec<File> {
    let files_of_one = |figure: &Figure| {
        let file = |extension, text: String| (format!("book/src/figures/{}.{extension}", figure.name), text);
        [Some(file("html", figure.html())), figure.file().map(|svg| file("svg", svg))]
    };
    figures.iter().flat_map(files_of_one).flatten().collect()
}

/// Writes the files that differ; returns their paths.
pub fn write<'f>(root: &Path, files: &'f [File]) -> Result<Vec<&'f str>> {
    let mut written = Vec::new();
    for (path, text) in files {
        if read(root, path).is_ok_and(|found| found == *text) {
            continue;
        }
        let file = root.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(|| format!("no folder for {path}"))?;
        }
        fs::write(&file, text).with_context(|| format!("{path} cannot be written"))?;
        written.push(path.as_str());
    }
    Ok(written)
}

/// Compares the files with those on disk.
///
/// # Errors
/// Names the first line of each file that is not what the code does now.
pub fn compare(root: &Path, files: &[File]) -> Result<()> {
    let different: Vec<String> = files.iter().filter_map(|(path, text)| difference(root, path, text)).collect();
    if !different.is_empty() {
        bail!("{}\nrun `cargo run -p figures-tool -- record` and look at the figures again", different.join("\n"));
    }
    Ok(())
}

fn difference(root: &Path, path: &str, expected: &str) -> Option<String> {
    let found = match read(root, path) {
        Ok(found) => found,
        Err(error) => return Some(format!("{path}: {error}")),
    };
    if found == expected {
        return None;
    }
    let same = found.lines().zip(expected.lines()).take_while(|(found, expected)| found == expected).count();
    Some(format!("{path}:{}: not what the code does", same + 1))
}

/// Line ends as we write them: git may have changed them.
fn read(root: &Path, path: &str) -> std::io::Result<String> {
    Ok(fs::read_to_string(root.join(path))?.replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    fn repository() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_committed_files_are_what_the_code_does() {
        compare(&repository(), &of(figures::recorded())).unwrap();
    }

    #[test]
    fn a_changed_byte_is_found_in_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = of(figures::recorded());
        write(folder.path(), &files).unwrap();
        compare(folder.path(), &files).unwrap();
        for (path, text) in &files {
            let changed = match text.rfind('1') {
                Some(digit) => format!("{}2{}", &text[..digit], &text[digit + 1..]),
                None => panic!("{path} holds no number"),
            };
            fs::write(folder.path().join(path), changed).unwrap();
            let message = compare(folder.path(), &files).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{path}:")), "{message}");
            assert_eq!(message.lines().count(), 2, "{message}");
            fs::write(folder.path().join(path), text).unwrap();
        }
    }

    #[test]
    fn a_missing_file_is_found_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let files = of(figures::recorded());
        write(folder.path(), &files).unwrap();
        fs::remove_file(folder.path().join(&files[1].0)).unwrap();
        let message = compare(folder.path(), &files).unwrap_err().to_string();
        assert!(message.starts_with(&files[1].0), "{message}");
        assert_eq!(write(folder.path(), &files).unwrap(), [files[1].0.as_str()]);
        compare(folder.path(), &files).unwrap();
    }
}
