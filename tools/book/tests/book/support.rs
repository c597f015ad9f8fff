//! A small good book in a temporary repository of its own, for a test to spoil in one place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use walkdir::WalkDir;

pub struct Book {
    folder: TempDir,
}

impl Book {
    /// The pages of `tests/fixtures/good` with the configuration, styles and scripts of the real book.
    pub fn good() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let book = Self { folder: tempfile::tempdir().unwrap() };
        for entry in fs::read_dir(here.join("../../book")).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                book.write(&format!("book/{}", entry.file_name().display()), fs::read(entry.path()).unwrap());
            }
        }
        for (file, content) in contents(&here.join("tests/fixtures/good")) {
            book.write(&file, content);
        }
        book
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.root().join(file)
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
    }

    /// Replaces the one place where `file` says `old`.
    pub fn replace(&self, file: &str, old: &str, new: &str) {
        let text = self.read(file);
        assert_eq!(text.matches(old).count(), 1, "{file} must say {old:?} once");
        self.write(file, text.replace(old, new));
    }

    pub fn cargo_book(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_book-tool")).args(arguments).current_dir(self.root()).output().unwrap()
    }
}

/// What the program printed, on both of its outputs.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

pub fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = WalkDir::new(folder).sort_by_file_name().into_iter().map(Result::unwrap);
    let files = files.map(|entry| entry.into_path()).filter(|path| path.is_file() && !path.is_symlink());
    let name = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
    files.map(|path| (name(&path), fs::read(path).unwrap())).collect()
}
