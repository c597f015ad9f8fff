//! The compiler's errors and warnings, from cargo's messages in JSON: those in the reader's file come first.

use serde::Deserialize;

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// As rustc prints it, with colours.
    pub rendered: String,
    /// Whether it points into the reader's file.
    pub is_in_file: bool,
    /// Its first place.
    pub file: Option<String>,
    pub line: Option<usize>,
}

/// The messages of a build.
#[derive(Clone, Debug, Default)]
pub struct Build {
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    /// Whether it ended, and if so, whether it succeeded.
    pub finished: Option<bool>,
}

/// The errors of a build that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// Those in the reader's file, or all of them if none is there.
    pub shown: Vec<Diagnostic>,
    /// How many are elsewhere, if some are in the reader's file.
    pub elsewhere: usize,
    /// Whether the shown ones are in the reader's file.
    pub in_file: bool,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    success: bool,
    message: Option<CompilerMessage>,
}

#[derive(Deserialize)]
struct CompilerMessage {
    level: String,
    #[serde(default)]
    message: String,
    rendered: Option<String>,
    #[serde(default)]
    spans: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    is_primary: bool,
    #[serde(default)]
    line_start: Option<usize>,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: Span,
}

impl Span {
    /// The span in the file that it points to, directly or through a macro used there.
    fn place_in(&self, file: &str) -> Option<&Span> {
        let name = self.file_name.replace('\\', "/");
        let is_here = name == file || name.strip_suffix(file).is_some_and(|folder| folder.ends_with('/'));
        match is_here {
            true => Some(self),
            false => self.expansion.as_ref()?.span.place_in(file),
        }
    }
}

impl Build {
    /// Takes a line of cargo's standard output; false if it isn't one of cargo's messages.
    pub fn take(&mut self, line: &str, file: &str) -> bool {
        if !line.starts_with("{\"reason\":") {
            return false;
        }
        let Ok(Message { reason, success, message }) = serde_json::from_str(line) else {
            return false;
        };
        match (reason.as_str(), message) {
            ("build-finished", _) => self.finished = Some(success),
            ("compiler-message", Some(text)) => self.add(text, file),
            _ => {}
        }
        true
    }

    fn add(&mut self, text: CompilerMessage, file: &str) {
        let is_summary = text.spans.is_empty()
            && (text.message.starts_with("aborting due to") || text.message.starts_with("could not compile"));
        let list = match text.level.as_str() {
            _ if is_summary => return,
            "error" | "error: internal compiler error" => &mut self.errors,
            "warning" => &mut self.warnings,
            _ => return,
        };
        let is_in_file = text.spans.iter().any(|span| span.is_primary && span.place_in(file).is_some());
        let mut primary = text.spans.iter().filter(|span| span.is_primary);
        let place = primary.clone().find_map(|span| span.place_in(file)).or(primary.next());
        let diagnostic = Diagnostic {
            file: place.map(|span| span.file_name.replace('\\', "/").replace("src/../", "")),
            line: place.and_then(|span| span.line_start),
            rendered: text.rendered.unwrap_or(text.message),
            is_in_file,
        };
        // The same file may be compiled more than once.
        if !list.contains(&diagnostic) {
            list.push(diagnostic);
        }
    }

    /// The errors, if there are any.
    pub fn errors(&self) -> Option<Errors> {
        if self.errors.is_empty() {
            return None;
        }
        let (here, there): (Vec<_>, Vec<_>) = self.errors.iter().cloned().partition(|error| error.is_in_file);
        Some(match here.is_empty() {
            true => Errors { shown: there, elsewhere: 0, in_file: false },
            false => Errors { shown: here, elsewhere: there.len(), in_file: true },
        })
    }

    /// Warnings about the reader's file.
    pub fn n_warnings(&self) -> usize {
        self.warnings.iter().filter(|warning| warning.is_in_file).count()
    }
}

/// Why nothing was compiled: the words of cargo and of `build.rs`, without cargo's lines about its progress.
pub fn refusals(stderr: &str) -> String {
    const WORK: [&str; 10] = [
        "Compiling ",
        "Finished ",
        "Running ",
        "Blocking ",
        "Building ",
        "Fresh ",
        "Updating ",
        "Downloading ",
        "Downloaded ",
        "Locking ",
    ];
    let is_work = |line: &&str| WORK.iter().any(|work| line.trim_start().starts_with(work));
    let said: Vec<&str> = stderr.lines().filter(|line| !is_work(line)).collect();
    // `error: page-by-page@0.1.0: exercises/ch02_flat.rs is missing: …` is build.rs's message to the reader.
    let own =
        said.iter().filter_map(|line| line.strip_prefix("error: page-by-page@")?.split_once(": ").map(|(_, own)| own));
    let own: Vec<&str> = own.collect();
    if own.is_empty() { said.join("\n").trim().to_string() } else { own.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "exercises/ch02_flat.rs";

    fn message(level: &str, rendered: &str, file: &str, expansion: &str) -> String {
        format!(
            r#"{{"reason":"compiler-message","message":{{"level":"{level}","message":"m","rendered":"{rendered}","code":null,
            "spans":[{{"file_name":"{file}","is_primary":true,"expansion":{expansion},"line_start":1}},
            {{"file_name":"exercises/ch02_flat.rs","is_primary":false,"expansion":null}}]}}}}"#
        )
        .replace('\n', "")
    }

    fn build(lines: &[String]) -> Build {
        let mut build = Build::default();
        for line in lines {
            assert!(build.take(line, FILE), "{line}");
        }
        build
    }

    #[test]
    fn errors_in_the_readers_file_come_alone_and_once() {
        let here = message("error", "here", "src/../exercises/ch02_flat.rs", "null");
        let there = message("error", "there", "tests/ch02_flat.rs", "null");
        let inside =
            r#"{"span":{"file_name":"exercises\\ch02_flat.rs","is_primary":false,"line_start":7,"expansion":null}}"#;
        let by_macro = message("error", "by macro", "/rustc/library/vec.rs", inside);
        let warning = message("warning", "warning", "exercises/ch02_flat.rs", "null");
        let other = message("warning", "other", "other_exercises/ch02_flat.rs", "null");
        let summary = r#"{"reason":"compiler-message","message":{"level":"error","message":"aborting due to 2 previous errors","rendered":"x","spans":[]}}"#;
        let end = r#"{"reason":"build-finished","success":false}"#;
        let all = [&there, &here, &here, &by_macro, &warning, &other, summary, end].map(String::from);
        let build = build(&all);
        let errors = build.errors().unwrap();
        let places: Vec<_> = errors.shown.iter().map(|error| (error.file.as_deref(), error.line)).collect();
        assert_eq!(places, [(Some(FILE), Some(1)), (Some(FILE), Some(7))]);
        let shown: Vec<&str> = errors.shown.iter().map(|error| error.rendered.as_str()).collect();
        assert_eq!((shown, errors.elsewhere, errors.in_file), (vec!["here", "by macro"], 1, true));
        assert_eq!((build.n_warnings(), build.finished), (1, Some(false)));
    }

    #[test]
    fn where_none_is_in_the_readers_file_all_are_shown() {
        let no_span = r#"{"reason":"compiler-message","message":{"level":"error","message":"linker `cc` not found","rendered":null,"spans":[]}}"#;
        let found = build(&[no_span.into(), message("error", "there", "tests/ch02_flat.rs", "null")]).errors().unwrap();
        let shown: Vec<&str> = found.shown.iter().map(|error| error.rendered.as_str()).collect();
        assert_eq!((shown, found.in_file), (vec!["linker `cc` not found", "there"], false));
        assert_eq!(build(&[r#"{"reason":"build-finished","success":true}"#.into()]).errors(), None);
    }

    #[test]
    fn output_of_the_checks_is_no_message() {
        let mut build = Build::default();
        for line in ["", "running 3 tests", "{\"reason\":", "{\"reason\":7}", "{}"] {
            assert!(!build.take(line, FILE), "{line}");
        }
    }

    #[test]
    fn a_message_of_the_build_script_is_shown_as_it_is() {
        let stderr = "   Compiling page-by-page v0.1.0 (/x)\nerror: page-by-page@0.1.0: exercises/ch02_flat.rs is missing: \
                      restore it\nerror: build script logged errors\n";
        assert_eq!(refusals(stderr), "exercises/ch02_flat.rs is missing: restore it");
        let other = "    Blocking waiting for file lock\nerror: no such command\n\nhelp: try\n";
        assert_eq!(refusals(other), "error: no such command\n\nhelp: try");
    }
}
