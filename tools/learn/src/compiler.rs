//! The compiler's errors, from cargo's messages in JSON.

use serde_json::Value;

/// An error as rustc prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub rendered: String,
    pub is_in_file: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Build {
    errors: Vec<Diagnostic>,
    pub has_succeeded: bool,
}

impl Build {
    /// Takes a line of cargo's standard output; false if it isn't one of cargo's messages.
    pub fn take(&mut self, line: &str, file: &str) -> bool {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        match message["reason"].as_str() {
            Some("build-finished") => self.has_succeeded = message["success"] == true,
            Some("compiler-message") => self.add(&message["message"], file),
            Some(_) => {}
            None => return false,
        }
        true
    }

    fn add(&mut self, message: &Value, file: &str) {
        let text = message["message"].as_str().unwrap_or_default();
        let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
        let is_summary = spans.is_empty() && text.starts_with("aborting due to");
        if is_summary || !message["level"].as_str().is_some_and(|level| level.starts_with("error")) {
            return;
        }
        // The reader knows the file by its own name.
        let rendered = message["rendered"].as_str().unwrap_or(text).replace("src/../", "").replace("src\\..\\", "");
        let is_in_file = spans.iter().any(|span| span["is_primary"] == true && is_in(span, file));
        let diagnostic = Diagnostic { rendered: rendered.trim_end().to_string(), is_in_file };
        // The same file can be compiled more than once.
        if !self.errors.contains(&diagnostic) {
            self.errors.push(diagnostic);
        }
    }

    /// The errors: those in the reader's file come first, then those in the reader's other chapters.
    pub fn errors(mut self) -> Vec<Diagnostic> {
        self.errors.sort_by_key(|error| (!error.is_in_file, !error.rendered.contains("exercises/")));
        self.errors
    }
}

/// Whether a span is in the file, directly or through a macro used there.
fn is_in(span: &Value, file: &str) -> bool {
    let name = span["file_name"].as_str().unwrap_or_default().replace('\\', "/");
    name == file
        || name.strip_suffix(file).is_some_and(|folder| folder.ends_with('/'))
        || span["expansion"].get("span").is_some_and(|span| is_in(span, file))
}

/// Whether cargo reports its own progress in this line: a verb that ends in column 12, as in `   Compiling serde`.
pub fn is_progress(line: &str) -> bool {
    let verb = line.get(..12).unwrap_or_default().trim_start();
    let is_verb = verb.starts_with(char::is_uppercase) && verb.chars().all(char::is_alphabetic);
    is_verb && line.starts_with(' ') && line[12..].starts_with(' ')
}

/// Why nothing was compiled: the words of cargo and of `build.rs`, without cargo's lines about its progress.
pub fn refusals(stderr: &str) -> String {
    let said: Vec<&str> = stderr.lines().filter(|line| !is_progress(line)).collect();
    // `error: page-by-page@0.1.0: exercises/ch02_flat.rs is missing: …` is build.rs's message to the reader.
    let own = |line: &&'_ str| Some(line.strip_prefix("error: page-by-page@")?.split_once(": ")?.1.to_string());
    let own: Vec<String> = said.iter().filter_map(own).collect();
    if own.is_empty() { said.join("\n").trim().to_string() } else { own.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "exercises/ch02_flat.rs";

    #[test]
    fn errors_in_the_readers_file_come_first_and_once() {
        let mut build = Build::default();
        for line in include_str!("compiler/messages.jsonl").lines() {
            assert!(build.take(line, FILE), "{line}");
        }
        for line in ["", "running 3 tests", "{\"reason\":", "{\"reason\":7}", "{}"] {
            assert!(!build.take(line, FILE), "{line}");
        }
        assert!(!build.has_succeeded);
        let errors: Vec<_> = build.errors().into_iter().map(|error| (error.rendered, error.is_in_file)).collect();
        let expected = [(FILE, true), ("by macro", true), ("exercises/ch01_recompute.rs", false)];
        assert_eq!(errors[..3], expected.map(|(text, is_in_file)| (text.to_string(), is_in_file)));
        assert_eq!(errors.len(), 4);
    }

    #[test]
    fn an_error_of_cargo_is_shown_as_it_is() {
        let other = "    Blocking waiting for file lock\nerror: no such command\n\nhelp: try\n";
        assert_eq!(refusals(other), "error: no such command\n\nhelp: try");
    }
}
