//! The results, in the order of the lines, each as soon as all before it are there.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_by_page::files::NewFile;

use crate::output::{Object, print};

pub fn describe(finish_reason: &str) -> &str {
    match finish_reason {
        "stop" => "ended by themselves",
        "length" => "reached their limit",
        other => other,
    }
}

/// Where the results go: by default to standard output, a line each.
#[derive(Default)]
pub struct Results {
    out: Out,
    /// Those that are waiting for an earlier one, by their place among all.
    ahead: BTreeMap<usize, Object>,
    next: usize,
    pub ends: BTreeMap<&'static str, usize>,
}

#[derive(Default)]
enum Out {
    #[default]
    Stdout,
    File(PathBuf, NewFile),
}

impl Results {
    /// Results for a file, a line each. It takes the place of the one that is there when all are written. Refuses the file that
    /// the lines are read from.
    pub fn to_file(file: &Path, input: &Path) -> Result<Self> {
        let name = file.display();
        let (same, there) = (|path: &Path| path.canonicalize().ok(), file.exists());
        ensure!(
            !there || same(file) != same(input),
            "{name}: the lines are read from it; name another file with --out"
        );
        let out = NewFile::begin(file)
            .with_context(|| format!("{name}: name a file in a folder that exists and may be written to"))?;
        Ok(Results { out: Out::File(file.into(), out), ..Self::default() })
    }

    /// Takes the result of a place. Writes it and those that waited for it, if all before it are written.
    pub fn put(&mut self, place: usize, end: &'static str, result: Object) -> Result<()> {
        *self.ends.entry(end).or_default() += 1;
        self.ahead.insert(place, result);
        while let Some(result) = self.ahead.remove(&self.next) {
            self.next += 1;
            let line = serde_json::to_string(&result)? + "\n";
            match &mut self.out {
                Out::Stdout => print(&line)?,
                Out::File(path, file) => {
                    file.write_all(line.as_bytes()).with_context(|| path.display().to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Puts the file in its place, if there is one.
    pub fn finish(self) -> Result<()> {
        match self.out {
            Out::Stdout => Ok(()),
            Out::File(path, file) => file.finish().with_context(|| path.display().to_string()),
        }
    }
}
