//! The compiler's errors and warnings, from cargo's messages in JSON: those in the reader's file come first.

use serde_json::Value;

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

impl Build {
    /// Takes a line of cargo's standard output; false if it isn't one of cargo's messages.
    pub fn take(&mut self, line: &str, file: &str) -> bool {
        let message = Some(line).filter(|line| line.starts_with("{\"reason\":"));
        let message: Value = message.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        match message["reason"].as_str() {
            Some("build-finished") => self.finished = message["success"].as_bool(),
            Some("compiler-message") => self.add(&message["message"], file),
            Some(_) => {}
            None => return false,
        }
        true
    }

    fn add(&mut self, message: &Value, file: &str) {
        let text = message["message"].as_str().unwrap_or_default();
        let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
        let is_summary =
            spans.is_empty() && (text.starts_with("aborting due to") || text.starts_with("could not compile"));
        let list = match message["level"].as_str() {
            _ if is_summary => return,
            Some("error" | "error: internal compiler error") => &mut self.errors,
            Some("warning") => &mut self.warnings,
            _ => return,
        };
        let mut primary = spans.iter().filter(|span| span["is_primary"] == true);
        let in_file = primary.clone().find_map(|span| place_in(span, file));
        let place = in_file.or(primary.next());
        let diagnostic = Diagnostic {
            file: place.map(|span| file_of(span).replace("src/../", "")),
            line: place.and_then(|span| usize::try_from(span["line_start"].as_u64()?).ok()),
            rendered: message["rendered"].as_str().unwrap_or(text).to_string(),
            is_in_file: in_file.is_some(),
        };
        // The same file can be compiled more than once.
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

fn file_of(span: &Value) -> String {
    span["file_name"].as_str().unwrap_or_default().replace('\\', "/")
}

/// The span in the file that this one points to, directly or through a macro used there.
fn place_in<'s>(span: &'s Value, file: &str) -> Option<&'s Value> {
    let name = file_of(span);
    let is_here = name == file || name.strip_suffix(file).is_some_and(|folder| folder.ends_with('/'));
    if is_here { Some(span) } else { place_in(span.get("expansion")?.get("span")?, file) }
}

/// Whether cargo reports its own progress in this line.
pub fn is_progress(line: &str) -> bool {
    let verb = line.trim_start().split(' ').next().unwrap_or_default();
    line.starts_with(' ')
        && "Compiling Finished Running Blocking Building Fresh Updating Downloading Downloaded Locking"
            .split(' ')
            .any(|known| known == verb)
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
    use serde_json::json;

    use super::*;

    const FILE: &str = "exercises/ch02_flat.rs";
    const SUMMARY: &str = "aborting due to 2 previous errors";

    fn message(level: &str, text: &str, file: &str, expansion: Value) -> Value {
        let spans = json!([
            { "file_name": file, "is_primary": true, "expansion": expansion, "line_start": 1 },
            { "file_name": FILE, "is_primary": false, "expansion": null },
        ]);
        let message = json!({ "level": level, "message": "m", "rendered": text, "code": null, "spans": spans });
        json!({ "reason": "compiler-message", "message": message })
    }

    fn without_place(text: &str) -> Value {
        let message = json!({ "level": "error", "message": text, "rendered": null, "spans": [] });
        json!({ "reason": "compiler-message", "message": message })
    }

    fn build(messages: &[Value]) -> Build {
        let mut build = Build::default();
        for message in messages {
            // Cargo begins each with its reason.
            let rest = message.as_object().unwrap().iter().filter(|(key, _)| *key != "reason");
            let rest: String = rest.map(|(key, value)| format!(",\"{key}\":{value}")).collect();
            let line = format!("{{\"reason\":{}{rest}}}", message["reason"]);
            assert!(build.take(&line, FILE), "{line}");
        }
        build
    }

    #[test]
    fn errors_in_the_readers_file_come_alone_and_once() {
        let here = message("error", "here", "src/../exercises/ch02_flat.rs", Value::Null);
        let inside = json!({ "span": {
            "file_name": "exercises\\ch02_flat.rs", "is_primary": false, "line_start": 7, "expansion": null
        }});
        let build = build(&[
            message("error", "there", "tests/ch02_flat.rs", Value::Null),
            here.clone(),
            here,
            message("error", "by macro", "/rustc/library/vec.rs", inside),
            message("warning", "warning", FILE, Value::Null),
            message("warning", "other", "other_exercises/ch02_flat.rs", Value::Null),
            without_place(SUMMARY),
            json!({ "reason": "build-finished", "success": false }),
        ]);
        let errors = build.errors().unwrap();
        let shown = |error: &Diagnostic| (error.rendered.clone(), error.file.clone().unwrap(), error.line);
        let shown: Vec<_> = errors.shown.iter().map(shown).collect();
        assert_eq!(shown, [("here".into(), FILE.into(), Some(1)), ("by macro".into(), FILE.into(), Some(7))]);
        assert_eq!((errors.elsewhere, errors.in_file), (1, true));
        assert_eq!((build.n_warnings(), build.finished), (1, Some(false)));
    }

    #[test]
    fn where_none_is_in_the_readers_file_all_are_shown() {
        let there = message("error", "there", "tests/ch02_flat.rs", Value::Null);
        let found = build(&[without_place("linker `cc` not found"), there]).errors().unwrap();
        let shown: Vec<&str> = found.shown.iter().map(|error| error.rendered.as_str()).collect();
        assert_eq!((shown, found.in_file), (vec!["linker `cc` not found", "there"], false));
        assert_eq!(build(&[json!({ "reason": "build-finished", "success": true })]).errors(), None);
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
        assert!(is_progress("   Compiling tokenizers v1.0.0") && !is_progress("prefill  5 tokens"));
    }
}
