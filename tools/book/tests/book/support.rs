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
        let real = fs::read_dir(here.join("../../book")).unwrap().map(|entry| entry.unwrap().path());
        fs::create_dir(book.path("book")).unwrap();
        for file in real.filter(|path| path.is_file()) {
            fs::copy(&file, book.path("book").join(file.file_name().unwrap())).unwrap();
        }
        copy(&here.join("tests/fixtures/good"), book.root());
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

    pub fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
    }

    /// Replaces the one place where `file` says `old`.
    pub fn replace(&self, file: &str, old: &str, new: &str) {
        let text = self.read(file);
        assert_eq!(text.matches(old).count(), 1, "{file} must say {old:?} once");
        self.write(file, &text.replace(old, new));
    }

    pub fn cargo_book(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_book-tool")).args(arguments).current_dir(self.root()).output().unwrap()
    }
}

/// What the program printed, on both of its outputs.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn copy(from: &Path, to: &Path) {
    for entry in WalkDir::new(from) {
        let entry = entry.unwrap();
        let target = to.join(entry.path().strip_prefix(from).unwrap());
        if entry.file_type().is_dir() {
            fs::create_dir_all(target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
