//! A page as mdBook sees it, with every include in place, that still knows where each line came from.
//!
//! mdBook forgives an include that finds nothing: a missing file leaves the directive in the page, a missing anchor
//! an empty code block. Here both are findings. The expansion follows mdBook's own rules, so that the later checks
//! read the text that the reader reads and can still name the file and line where it was written.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::finding::{Findings, Place, did_you_mean};

// mdBook's own pattern for `{{#include …}}` and its relatives, escaped ones included.
static DIRECTIVE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\\\{\{\#.*\}\}|\{\{\s*\#([a-zA-Z0-9_]+)\s+([^}]+)\}\}").expect("valid pattern"));
static ANCHOR: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"ANCHOR(_END)?:\s*([\w_-]+)").expect("valid pattern"));

const MAX_DEPTH: usize = 10;

/// One page of the book, includes expanded.
pub struct Page {
    /// The Markdown file, from the repository root: `book/src/ch02.md`.
    pub file: PathBuf,
    pub text: String,
    /// Where each stretch of `text` was written, by the byte at which it starts.
    origins: Vec<(usize, Place)>,
    /// The files that the page includes, from the repository root.
    pub includes: Vec<PathBuf>,
}

impl Page {
    pub fn read(root: &Path, file: &Path, findings: &mut Findings) -> std::io::Result<Self> {
        let mut page =
            Self { file: file.to_path_buf(), text: String::new(), origins: Vec::new(), includes: Vec::new() };
        let text = fs::read_to_string(root.join(file))?;
        let lines = text.split('\n').zip(1..).map(|(text, number)| (number, text));
        let whole = Excerpt::new(file, lines);
        page.expand(root, &whole, 0, findings);
        Ok(page)
    }

    /// Where the byte `offset` of the expanded text was written.
    pub fn place(&self, offset: usize) -> Place {
        let after = self.origins.partition_point(|(start, _)| *start <= offset);
        match after.checked_sub(1) {
            Some(index) => self.origins[index].1.clone(),
            None => Place::new(&self.file, 1),
        }
    }

    /// The place of a line (counted from 1) of the expanded text.
    pub fn place_of_line(&self, line: usize) -> Place {
        let before = self.text.split_inclusive('\n').take(line.saturating_sub(1));
        self.place(before.map(str::len).sum())
    }

    /// Where `needle` first occurs; the first line of the page if it does not.
    pub fn find(&self, needle: &str) -> Place {
        self.place(self.text.find(needle).unwrap_or(0))
    }

    fn expand(&mut self, root: &Path, excerpt: &Excerpt, depth: usize, findings: &mut Findings) {
        let mut done = 0;
        for directive in DIRECTIVE.captures_iter(&excerpt.text) {
            let whole = directive.get(0).expect("group 0 always takes part");
            self.push(excerpt, done..whole.start());
            done = whole.end();

            let (Some(kind), Some(argument)) = (directive.get(1), directive.get(2)) else {
                self.push(excerpt, whole.start() + 1..whole.end());
                continue;
            };
            let place = excerpt.place(whole.start());
            match kind.as_str() {
                "title" => {}
                "include" | "rustdoc_include" if depth < MAX_DEPTH => {
                    let argument = argument.as_str().trim();
                    if let Some(included) = self.included(root, &excerpt.file, argument, &place, findings) {
                        self.expand(root, &included, depth + 1, findings);
                    }
                }
                "include" | "rustdoc_include" => {
                    findings.add(place, "includes go round in a circle", "include the inner file once");
                }
                other => findings.add(
                    place,
                    format!("`{{{{#{other} …}}}}` is not used in this book"),
                    "use `{{#include file:anchor}}`, or escape the braces with a backslash",
                ),
            }
        }
        self.push(excerpt, done..excerpt.text.len());
    }

    /// The lines that `{{#include argument}}` asks for.
    fn included(
        &mut self,
        root: &Path,
        from: &Path,
        argument: &str,
        place: &Place,
        findings: &mut Findings,
    ) -> Option<Excerpt> {
        let (path, selection) = argument.split_once(':').unwrap_or((argument, ""));
        let file = normalised(&from.parent().unwrap_or(Path::new("")).join(path));
        let shown = file.display();

        if file.starts_with("exercises") {
            findings.add(
                place.clone(),
                format!("the page includes `{shown}`, which the reader edits"),
                format!("include it from `solutions/`, or write the lines into the page: {argument}"),
            );
            return None;
        }
        let Ok(text) = fs::read_to_string(root.join(&file)) else {
            findings.add(
                place.clone(),
                format!("no file `{shown}` to include"),
                "the path is counted from the folder of the page",
            );
            return None;
        };
        self.includes.push(file.clone());

        let lines = match Selection::parse(selection) {
            Selection::Range(range) => numbered(&text).filter(|(n, _)| range.contains(n)).collect(),
            Selection::Anchor(anchor) => match between_anchors(&text, &anchor) {
                Ok(lines) => lines,
                Err((problem, next_step)) => {
                    findings.add(place.clone(), format!("`{shown}`: {problem}"), next_step);
                    return None;
                }
            },
        };
        let excerpt = Excerpt::new(&file, lines);
        if excerpt.text.trim().is_empty() {
            findings.add(
                place.clone(),
                format!("`{{{{#include {argument}}}}}` yields nothing but blank lines"),
                format!("put code between the anchors in `{shown}`, or take the include out"),
            );
        }
        Some(excerpt)
    }

    fn push(&mut self, excerpt: &Excerpt, range: std::ops::Range<usize>) {
        let mut at = range.start;
        for line in excerpt.text[range].split_inclusive('\n') {
            self.origins.push((self.text.len(), excerpt.place(at)));
            self.text.push_str(line);
            at += line.len();
        }
    }
}

/// Some lines of one file, with their numbers.
struct Excerpt {
    file: PathBuf,
    text: String,
    numbers: Vec<usize>,
}

impl Excerpt {
    fn new<'a>(file: &Path, lines: impl IntoIterator<Item = (usize, &'a str)>) -> Self {
        let (numbers, lines): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
        Self { file: file.to_path_buf(), text: lines.join("\n"), numbers }
    }

    fn place(&self, offset: usize) -> Place {
        let index = self.text[..offset].matches('\n').count();
        Place::new(&self.file, self.numbers.get(index).copied().unwrap_or(1))
    }
}

/// What follows the colon of an include: `3:9`, `3`, `:9` or the name of an anchor.
enum Selection {
    Range(std::ops::RangeInclusive<usize>),
    Anchor(String),
}

impl Selection {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(':');
        let first = parts.next().unwrap_or("");
        let start = match (first, first.parse::<usize>()) {
            ("", _) => None,
            (_, Ok(line)) => Some(line),
            (anchor, Err(_)) => return Self::Anchor(anchor.to_string()),
        };
        let end = match (start, parts.next()) {
            (Some(line), None) => line,
            (_, end) => end.and_then(|end| end.parse().ok()).unwrap_or(usize::MAX),
        };
        Self::Range(start.unwrap_or(1)..=end)
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// The lines between `ANCHOR: name` and `ANCHOR_END: name`, without the lines that carry anchors; or what is wrong and
/// what to do.
fn between_anchors<'a>(text: &'a str, anchor: &str) -> Result<Vec<(usize, &'a str)>, (String, String)> {
    let mut names = Vec::new();
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, line) in numbered(text) {
        let Some(mark) = ANCHOR.captures(line) else {
            if inside {
                lines.push((number, line));
            }
            continue;
        };
        let (is_end, name) = (mark.get(1).is_some(), mark.get(2).map_or("", |m| m.as_str()));
        match (inside, is_end, name == anchor) {
            (true, true, true) => return Ok(lines),
            (false, false, true) => inside = true,
            (false, false, false) => names.push(name),
            _ => {}
        }
    }
    if inside {
        return Err((format!("anchor `{anchor}` is never closed"), format!("add a line `// ANCHOR_END: {anchor}`")));
    }
    let otherwise = format!("mark the lines with `// ANCHOR: {anchor}` and `// ANCHOR_END: {anchor}`");
    Err((format!("no anchor `{anchor}`"), did_you_mean(anchor, names, &otherwise)))
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
