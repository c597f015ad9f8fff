//! Puts mdBook's includes into a page, and still knows where each line was written.
//!
//! mdBook forgives an include that finds nothing. A missing file leaves the directive in the page, and a missing anchor
//! an empty code block. Here both are problems. Otherwise the rules are mdBook's own, so that all tools read what the
//! reader reads: `{{#include file}}`, `file:3:9`, `file:3`, `file:3:`, `file::9` and `file:anchor`, and a backslash
//! before a directive that is to stay.

use std::fmt;
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::{Component, Path, PathBuf};

/// Includes in files that are included, one in the other, at most.
const MAX_DEPTH: usize = 10;

/// A line of a file, the file named from the repository's root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
}

impl Place {
    pub fn new(file: impl AsRef<Path>, line: usize) -> Self {
        Self { file: file.as_ref().to_path_buf(), line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Forward slashes on every system: the same text in every terminal and log.
        write!(f, "{}:{}", show(&self.file), self.line)
    }
}

/// Why an include can't be followed, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub next_step: String,
}

impl Problem {
    fn new(what: String, next_step: impl Into<String>) -> Self {
        Self { what, next_step: next_step.into() }
    }
}

/// A page with its includes put in.
#[derive(Debug, Default)]
pub struct Expanded {
    pub text: String,
    /// The files that are included, from the root of the repository.
    pub files: Vec<PathBuf>,
    pub problems: Vec<(Place, Problem)>,
    /// Where each stretch of the text was written, by the byte at which it starts.
    origins: Vec<(usize, Place)>,
}

impl Expanded {
    /// Reads the page `file` of the repository at `root`.
    pub fn read(root: &Path, file: &Path) -> std::io::Result<Self> {
        let text = fs::read_to_string(root.join(file))?.replace("\r\n", "\n");
        let mut expanded = Self::default();
        expanded.expand(root, file, &(1..).zip(text.split('\n')).collect::<Vec<_>>(), 0);
        Ok(expanded)
    }

    /// Where the byte `offset` of the text was written.
    pub fn place(&self, offset: usize) -> Place {
        let after = self.origins.partition_point(|(start, _)| *start <= offset);
        self.origins[after - 1].1.clone()
    }

    fn expand(&mut self, root: &Path, file: &Path, lines: &[(usize, &str)], depth: usize) {
        for (at, (number, line)) in lines.iter().enumerate() {
            if at > 0 {
                self.text.push('\n');
            }
            let (place, mut done) = (Place::new(file, *number), 0);
            while let Some((range, kind, argument)) = next_directive(line, done) {
                self.push(&place, &line[done..range.start]);
                done = range.end;
                let included = match kind {
                    "include" | "rustdoc_include" => self.include(root, file, argument, depth + 1),
                    other => Err(Problem::new(
                        format!("`{{{{#{other} …}}}}` is not used in this book"),
                        "use `{{#include file:anchor}}`, or escape the braces with a backslash",
                    )),
                };
                self.problems.extend(included.err().map(|problem| (place.clone(), problem)));
            }
            self.push(&place, &line[done..]);
        }
    }

    fn push(&mut self, place: &Place, text: &str) {
        self.origins.push((self.text.len(), place.clone()));
        self.text.push_str(text);
    }

    /// Adds the lines that `{{#include argument}}` in the file `from` asks for.
    fn include(&mut self, root: &Path, from: &Path, argument: &str, depth: usize) -> Result<(), Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::new("includes go round in a circle".into(), "include the inner file once"));
        }
        let (path, selection) = argument.split_once(':').unwrap_or((argument, ""));
        let file = normalised(&from.parent().unwrap_or(Path::new("")).join(path));
        let shown = show(&file);
        if file.starts_with("exercises") {
            let next_step = format!("include it from `solutions/`, or write the lines into the page: {argument}");
            return Err(Problem::new(format!("the page includes `{shown}`, which the reader edits"), next_step));
        }
        let Ok(text) = fs::read_to_string(root.join(&file)) else {
            let next_step = "the path is counted from the folder of the page";
            return Err(Problem::new(format!("no file `{shown}` to include"), next_step));
        };
        self.files.push(file.clone());
        let numbered = (1..).zip(text.lines());
        let lines: Vec<_> = match range(selection) {
            Some(range) => numbered.filter(|(n, _)| range.contains(n)).collect(),
            None => between_anchors(numbered, selection)
                .map_err(|problem| Problem { what: format!("`{shown}`: {}", problem.what), ..problem })?,
        };
        if lines.iter().all(|(_, line)| line.trim().is_empty()) {
            let problem = format!("`{{{{#include {argument}}}}}` yields nothing but blank lines");
            let next_step = format!("put code between the anchors in `{shown}`, or take the include out");
            return Err(Problem::new(problem, next_step));
        }
        self.expand(root, &file, &lines, depth);
        Ok(())
    }
}

/// The next `{{#kind argument}}` of a line, from `from` on, that no backslash escapes: its place, kind and argument.
fn next_directive(text: &str, from: usize) -> Option<(Range<usize>, &str, &str)> {
    text[from..].match_indices("{{").find_map(|(at, _)| {
        let start = from + at;
        let inside = text[start + 2..].split('}').next()?;
        let end = start + 2 + inside.len();
        let is_directive = text[end..].starts_with("}}") && !text[..start].ends_with('\\');
        let (kind, argument) = inside.trim_start().strip_prefix('#')?.split_once(char::is_whitespace)?;
        (is_directive && !kind.is_empty()).then_some((start..end + 2, kind, argument.trim()))
    })
}

/// The lines that `3:9`, `3`, `3:`, `:9` or nothing asks for; None for the name of an anchor.
fn range(selection: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = selection.split_once(':').unwrap_or((selection, selection));
    let number = |text: &str, otherwise| if text.is_empty() { Ok(otherwise) } else { text.parse() };
    Some(number(first, 1).ok()?..=number(last, usize::MAX).unwrap_or(usize::MAX))
}

/// The lines between `ANCHOR: name` and `ANCHOR_END: name`, without the lines that carry anchors.
fn between_anchors<'a>(
    numbered: impl Iterator<Item = (usize, &'a str)>,
    anchor: &str,
) -> Result<Vec<(usize, &'a str)>, Problem> {
    let mut names = Vec::new();
    let mut lines = Vec::new();
    let mut inside = false;
    for (number, line) in numbered {
        match mark(line) {
            None if inside => lines.push((number, line)),
            None => {}
            Some((name, true)) if inside && name == anchor => return Ok(lines),
            Some((name, false)) if name == anchor => inside = true,
            Some((name, false)) => names.push(name),
            Some(_) => {}
        }
    }
    if inside {
        let next_step = format!("add a line `// ANCHOR_END: {anchor}`");
        return Err(Problem::new(format!("anchor `{anchor}` is never closed"), next_step));
    }
    let there = names.join(", ");
    let next_step =
        format!("mark the lines with `// ANCHOR: {anchor}` and `// ANCHOR_END: {anchor}`; there are: {there}");
    Err(Problem::new(format!("no anchor `{anchor}`"), next_step))
}

/// The name in `ANCHOR: name` or `ANCHOR_END: name`, and whether it is the end.
fn mark(line: &str) -> Option<(&str, bool)> {
    let rest = &line[line.find("ANCHOR")? + "ANCHOR".len()..];
    let (rest, is_end) = rest.strip_prefix("_END").map_or((rest, false), |rest| (rest, true));
    let name = rest.strip_prefix(':')?.trim_start();
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next()?;
    (!name.is_empty()).then_some((name, is_end))
}

/// The path with `/` on every system.
fn show(file: &Path) -> String {
    file.to_string_lossy().replace('\\', "/")
}

/// `book/src/../../solutions/x.rs` → `solutions/x.rs`, without asking the disk. A path that climbs out of the
/// repository keeps its leading `..`.
pub fn normalised(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_as_mdbook_finds_them() {
        let found = |text| next_directive(text, 0);
        assert_eq!(found("a {{#include b.rs}} c"), Some((2..19, "include", "b.rs")));
        assert_eq!(found("{{ #title  x }}"), Some((0..15, "title", "x")));
        assert_eq!(found("a \\{{#include b}} {{#c d}}"), Some((18..26, "c", "d")));
        for text in ["{{#include}}", "{{include a}}", "{{#include a}", "{ {#include a}}", "{{# a}}"] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn each_line_knows_where_it_was_written() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("book/src")).unwrap();
        fs::write(root.path().join("a.rs"), "one\n// ANCHOR: two\ntwo\n// ANCHOR: in\nthree\n// ANCHOR_END: two\n")
            .unwrap();
        let page = "x\n{{#include ../../a.rs:two}}\ny {{#include ../../a.rs:1}} z\n{{#include gone.html}}\r\n\
            {{#include ../../a.rs:twice}}\n{{#include p.md}}";
        fs::write(root.path().join("book/src/p.md"), page).unwrap();
        let expanded = Expanded::read(root.path(), Path::new("book/src/p.md")).unwrap();
        assert!(expanded.text.starts_with("x\ntwo\nthree\ny one z\n\n\nx\ntwo\n"), "{}", expanded.text);
        let place = |text: &str| expanded.place(expanded.text.find(text).unwrap()).to_string();
        assert_eq!(
            [place("two"), place("three"), place("one"), place(" z")],
            ["a.rs:3", "a.rs:5", "a.rs:1", "book/src/p.md:3"]
        );
        let problems: Vec<_> = expanded.problems.iter().map(|(place, problem)| (place.line, &*problem.what)).collect();
        assert_eq!(problems[..2], [(4, "no file `book/src/gone.html` to include"), (5, "`a.rs`: no anchor `twice`")]);
        assert_eq!(problems.last(), Some(&(6, "includes go round in a circle")));
    }
}
