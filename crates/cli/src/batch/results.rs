//! The results, in the order of the lines, each as soon as all before it are there.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_by_page::files::NewFile;
use page_by_page::serving::schedule::FinishReason;
use serde_json::Value;

use crate::output::{print, thousands};

#[derive(Default)]
pub struct Results {
    /// `None` is standard output.
    out: Option<(PathBuf, NewFile)>,
    /// The results by line, from the first line that has none yet.
    pending: BTreeMap<usize, Option<Value>>,
    /// How many have ended in each way; `None`: lines that were refused.
    pub ends: BTreeMap<Option<FinishReason>, usize>,
}

impl Results {
    /// Results for a file replace the old one when all are written. Refuses the file that the lines are read from.
    pub fn begin(file: Option<&Path>, input: &Path) -> Result<Self> {
        let is_stdout = |file: &&Path| [Path::new("-"), Path::new("/dev/stdout")].contains(file);
        let Some(file) = file.filter(|file| !is_stdout(file)) else { return Ok(Results::default()) };
        let name = file.display();
        let is_input = file.canonicalize().is_ok_and(|file| input.canonicalize().is_ok_and(|input| input == file));
        ensure!(!is_input, "{name}: the lines are read from it; name another file with --out");
        let out = NewFile::begin(file)
            .with_context(|| format!("{name}: name a file in a folder that exists and may be written to"))?;
        Ok(Results { out: Some((file.into(), out)), ..Self::default() })
    }

    /// A line that gets a result: those of later lines wait for it.
    pub fn expect(&mut self, line: usize) {
        self.pending.insert(line, None);
    }

    /// Takes the result of a line. Writes it and those that waited for it, if all before it are written.
    pub fn put(&mut self, line: usize, end: Option<FinishReason>, result: Value) -> Result<()> {
        *self.ends.entry(end).or_default() += 1;
        self.pending.insert(line, Some(result));
        while let Some(first) = self.pending.first_entry()
            && first.get().is_some()
        {
            let line = first.remove().map_or(String::new(), |result| format!("{result}\n"));
            match &mut self.out {
                None => print(&line)?,
                Some((path, file)) => {
                    file.write_all(line.as_bytes()).with_context(|| path.display().to_string())?;
                }
            }
        }
        Ok(())
    }

    pub fn finish(&mut self) -> Result<()> {
        let Some((path, file)) = self.out.take() else { return Ok(()) };
        file.finish().with_context(|| format!("{}: the results are lost", path.display()))
    }

    pub fn describe(&self) -> String {
        let ends = self.ends.iter().map(|(end, n)| {
            let how = match end {
                Some(FinishReason::Stop) => "ended by themselves",
                Some(FinishReason::Length) => "reached their limit",
                Some(FinishReason::Abort) => "cancelled",
                Some(FinishReason::Error) => "failed",
                None => "refused",
            };
            format!("{} {how}", thousands(*n))
        });
        ends.collect::<Vec<_>>().join(", ")
    }
}
