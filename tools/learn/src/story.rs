//! The command of the page, run on the reader's code: what `page-by-page generate …` prints, as it comes.

use std::path::Path;
use std::time::Instant;

use page_by_page_course::cargo::{self, Environment, Line, Running, Streams, progress, with_progress};
use page_by_page_course::chapters::Chapter;

use crate::compiler::is_progress;
use crate::text::{DIM, Paragraph, YELLOW, blank, plain, prose};

/// A running command, or one that has ended. It is stopped when this is dropped.
pub struct Story {
    command: String,
    output: String,
    errors: String,
    /// What happens before the first output.
    doing: String,
    since: Instant,
    pub has_ended: bool,
    _running: Running,
}

impl Story {
    /// Starts `page-by-page` with these arguments, and sends its output; the end is `None`.
    ///
    /// # Errors
    /// If cargo can't be started.
    pub fn start(
        root: &Path,
        arguments: &[String],
        send: impl Fn(Option<Line>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mut command = page_by_page(root, arguments);
        with_progress(&mut command);
        let mut running = Running::start(command, Streams::Live)?;
        let lines = running.lines();
        std::thread::spawn(move || {
            lines.for_each(|line| send(Some(line)));
            send(None);
        });
        let quoted = |word: &String| match word.contains(' ') || word.is_empty() {
            true => format!("\"{word}\""),
            false => word.clone(),
        };
        Ok(Story {
            command: arguments.iter().map(quoted).collect::<Vec<_>>().join(" "),
            output: String::new(),
            errors: String::new(),
            doing: "starting".into(),
            since: Instant::now(),
            has_ended: false,
            _running: running,
        })
    }

    /// Takes a piece of output, or the end.
    pub fn take(&mut self, line: Option<Line>) {
        match line {
            None => self.has_ended = true,
            Some(Line { text, is_error: false }) => self.output += &text,
            Some(Line { text, .. }) => {
                if let Some(progress) = progress(&text) {
                    self.doing = format!("compiling {}", progress.crates);
                } else if text.trim_start().starts_with("Blocking ") {
                    self.doing = "waiting for another cargo".into();
                } else if !is_progress(&text) && !text.starts_with("error: process didn't exit successfully") {
                    // The reader knows the file by its own name.
                    self.errors += &(text.replace("src/../", "").replace("src\\..\\", "") + "\n");
                }
            }
        }
    }

    pub fn lines(&self) -> Vec<Paragraph> {
        let mut lines = vec![prose(format!("$ page-by-page {}", self.command), DIM), blank()];
        lines.extend(self.output.lines().map(plain));
        if !self.errors.is_empty() {
            lines.push(blank());
            lines.extend(self.errors.lines().map(|line| prose(line, DIM)));
        }
        if !self.has_ended && self.output.is_empty() {
            lines.push(prose(format!("{} … {} s", self.doing, self.since.elapsed().as_secs()), YELLOW));
            lines.push(prose(
                "The first time, the program is compiled for about a minute. After that it starts in seconds.",
                DIM,
            ));
        }
        lines
    }
}

/// `page-by-page` with these arguments, on the chapters as they are.
pub fn page_by_page(root: &Path, arguments: &[String]) -> std::process::Command {
    let mut command = cargo::cargo(root, Environment::Shell);
    command.args(["run", "--features", "solution", "--"]).args(arguments);
    command
}

/// The arguments of the command that a chapter's page has for its code: the first `generate` after the tasks begin, or else
/// the first command there.
pub fn arguments(root: &Path, chapter: &Chapter) -> Option<Vec<String>> {
    let page = std::fs::read_to_string(root.join(chapter.page())).ok()?.replace("\r\n", "\n");
    let tasks = &page[page.find("\n### Task 1")?..];
    let mut commands = tasks.replace("\\\n", " ").lines().filter_map(words).collect::<Vec<_>>().into_iter();
    let first = commands.next()?;
    let is_story = |command: &Vec<String>| command.first().is_some_and(|word| word == "generate");
    Some(if is_story(&first) { first } else { commands.find(is_story).unwrap_or(first) })
}

/// `$ cargo run --release --features solution -- generate "One day"` → `generate`, `One day`
fn words(line: &str) -> Option<Vec<String>> {
    let (cargo, command) = line.strip_prefix("$ cargo run ")?.split_once(" -- ")?;
    if cargo.contains("serve") || cargo.contains("package") {
        return None;
    }
    let mut words = Vec::new();
    for (index, part) in command.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.to_string()),
        }
    }
    Some(words)
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
        assert_eq!(second, ["generate", "There was once a tailor", "--kv", "flat", "--max-new-tokens", "60"]);
    }

    #[test]
    fn a_command_is_split_into_words() {
        let line = "$ cargo run --release --features solution --  generate \"One day\"  \"\" --kv  flat";
        assert_eq!(words(line).unwrap(), ["generate", "One day", "", "--kv", "flat"]);
        assert_eq!(words("$ cargo test"), None);
    }
}
