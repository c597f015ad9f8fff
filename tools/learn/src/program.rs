//! The program on the reader's code: the command of the page with what it prints as it comes, and what a chapter gains.

use std::io;
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use page_by_page_course::cargo::{self, Environment, Line, Process, Streams};
use page_by_page_course::chapters::Chapter;

use crate::compiler::is_progress;
use crate::text::{DIM, Paragraph, YELLOW, blank, plain, prose};

/// A run of `page-by-page`, on the chapters as they are. It is stopped when this is dropped.
pub struct Program {
    command: String,
    pub output: Vec<String>,
    errors: Vec<String>,
    /// What happens before the first output.
    doing: String,
    started: Instant,
    pub has_ended: bool,
    process: Process,
}

impl Program {
    /// Starts `page-by-page` with these arguments.
    pub fn start(root: &Path, arguments: &[String]) -> io::Result<Self> {
        let mut command = cargo::cargo(root, Environment::Shell);
        command.args(["run", "--features", "solution", "--"]).args(arguments);
        cargo::with_progress(&mut command);
        let process = cargo::start(command, Streams::Apart)?;
        let quoted = |word: &String| if word.contains(' ') { format!("\"{word}\"") } else { word.clone() };
        Ok(Program {
            command: arguments.iter().map(quoted).collect::<Vec<_>>().join(" "),
            output: Vec::new(),
            errors: Vec::new(),
            doing: "starting".into(),
            started: Instant::now(),
            has_ended: false,
            process,
        })
    }

    /// Reads what it has printed since the last call.
    pub fn update(&mut self) {
        loop {
            match self.process.lines.try_recv() {
                Ok(Line { text, is_error: false }) => self.output.push(text),
                Ok(Line { text, .. }) => {
                    if let Some(progress) = cargo::progress(&text) {
                        self.doing = format!("compiling {}", progress.crates);
                    } else if !is_progress(&text) {
                        // The reader knows the file by its own name.
                        self.errors.push(text.replace("src/../", "").replace("src\\..\\", ""));
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.has_ended = true,
            }
        }
    }

    /// The command, and what it has printed.
    pub fn paragraphs(&self) -> Vec<Paragraph> {
        let mut lines = vec![prose(format!("$ page-by-page {}", self.command), DIM), blank()];
        lines.extend(self.output.iter().map(plain));
        lines.extend(self.errors.iter().map(|line| prose(line, DIM)));
        if !self.has_ended && self.output.is_empty() {
            lines.push(prose(format!("{} … {} s", self.doing, self.started.elapsed().as_secs()), YELLOW));
            lines.push(prose("The first time, the program is compiled for about a minute.", DIM));
        }
        lines
    }
}

/// The arguments of the command that a chapter's page has: after the tasks begin, the first `generate`, or the first.
pub fn arguments(root: &Path, chapter: &Chapter) -> Option<Vec<String>> {
    let page = std::fs::read_to_string(root.join(chapter.page())).ok()?.replace("\r\n", "\n");
    let tasks = &page[page.find("\n### Task 1")?..];
    let command = |line: &str| shlex::split(line.strip_prefix("$ cargo page ")?);
    let commands: Vec<Vec<String>> = tasks.replace("\\\n", " ").lines().filter_map(command).collect();
    let is_story = |command: &&Vec<String>| command.first().is_some_and(|word| word == "generate");
    commands.iter().find(is_story).or(commands.first()).cloned()
}

#[cfg(test)]
mod tests {
    use page_by_page_course::chapters::all;

    use super::*;

    #[test]
    fn every_page_has_a_command_for_its_code() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let chapters = all(&root).unwrap();
        for chapter in &chapters {
            let words =
                arguments(&root, chapter).unwrap_or_else(|| panic!("{}: no command after Task 1", chapter.name));
            assert!(words.len() > 1 && words.iter().all(|word| word != "--release" && word != "\\"), "{words:?}");
        }
        let second = arguments(&root, &chapters[1]).unwrap();
        assert_eq!(second, ["generate", "--kv", "flat", "--max-new-tokens", "200"]);
    }
}
