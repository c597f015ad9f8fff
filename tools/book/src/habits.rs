//! Habits of writing that can be found mechanically: private words, tables that talk, a colon in place of a reason. It finds
//! slips and does not judge; a page that passes still has to be read aloud.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use mdbook_markdown::pulldown_cmark::{Event, Tag, TagEnd};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};
use regex::Regex;
use walkdir::WalkDir;

use crate::finding::{Findings, Place};
use crate::page::Page;

/// Phrases that only look like a slip.
const FINE: [&str; 1] = ["texts in the training data"];

/// A sentence of at most this many words is short.
const SHORT: usize = 7;
/// Short sentences in a row that are a drumbeat.
const DRUMBEAT: usize = 4;

static SLIPS: LazyLock<[(Regex, &str); 5]> = LazyLock::new(|| {
    let pattern = |pattern| Regex::new(pattern).expect("valid pattern");
    [
        (pattern(r"(?i)\b(?:some|no|any)body\b|\bwho(?:so)?ever\b"), "name the component that acts"),
        (pattern(r"\b[Bb]ehind\b"), "say `after`, `following` or `beyond`"),
        (pattern(r"(?i)\b(?:just )?so many\b"), "give the number, or say `that many`"),
        (
            pattern(r"(?:`code`|(?i:command|table|report|output|listing|file)s?) (?:tells?|told|says?|said)\b"),
            "functions return, commands print, tables show",
        ),
        (
            pattern(r"(?i)\b(?:each|every|one|another|this|that|the (?:first|second|other|same)) text\b|\btexts\b"),
            "say `sequence`, `request`, `prompt` or `output`",
        ),
    ]
});
/// Code that readers see: its docs, errors and reports.
const FOLDERS: [&str; 6] = ["src", "solutions", "kernels/src", "cli/src", "serve/src", "course/src"];
static DOC: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\s*//[/!] ?").expect("valid pattern"));
static QUOTED: LazyLock<Regex> = LazyLock::new(|| Regex::new("[\"“][^\"”]*[\"”]").expect("valid pattern"));
static COLON: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[^`]:(?:\s|$)").expect("valid pattern"));
static ASIDE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\([A-Z][^()]*[.!?]\)").expect("valid pattern"));

pub fn check(page: &Page, findings: &mut Findings) {
    check_text(&page.text, |at| page.place(at), findings);
}

/// Checks what the code says to readers: its doc comments, and the words in its strings.
pub fn check_code(root: &Path, findings: &mut Findings) {
    let files = FOLDERS.iter().flat_map(|folder| WalkDir::new(root.join(folder)).sort_by_file_name());
    for entry in files.flatten().filter(|entry| entry.path().extension().is_some_and(|extension| extension == "rs")) {
        let Ok(code) = fs::read_to_string(entry.path()) else { continue };
        let file = entry.path().strip_prefix(root).unwrap_or(entry.path());
        // Line for line, so that a place in the docs is one in the file.
        let docs: Vec<&str> = code.lines().map(|line| DOC.find(line).map_or("", |sign| &line[sign.end()..])).collect();
        let docs = docs.join("\n");
        check_text(&docs, |at| Place::new(file, 1 + docs[..at].matches('\n').count()), findings);
        for (line, words) in (1..).zip(code.lines()).filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for quoted in QUOTED.find_iter(words) {
                check_words(quoted.as_str(), &Place::new(file, line), findings);
            }
        }
    }
}

fn check_words(words: &str, place: &Place, findings: &mut Findings) {
    for (slip, next_step) in &*SLIPS {
        if let Some(found) = slip.find(words) {
            findings.add(place.clone(), format!("the paragraph has `{}`", found.as_str()), *next_step);
        }
    }
}

fn check_text(text: &str, place: impl Fn(usize) -> Place, findings: &mut Findings) {
    for (at, paragraph) in paragraphs(text) {
        let place = place(at);
        let paragraph = FINE.iter().fold(paragraph, |words, fine| words.replace(fine, ""));
        let paragraph = QUOTED.replace_all(&paragraph, "quotation");
        check_words(&paragraph, &place, findings);
        let mut add = |problem: String, next_step: &str| findings.add(place.clone(), problem, next_step);
        if COLON.find_iter(&paragraph).count() > 1 {
            add(
                "the paragraph has more than one colon".into(),
                "write `because`, `so` or `which means`, or start a new sentence",
            );
        }
        if let Some(aside) = ASIDE.find(&paragraph) {
            add(
                format!("a parenthesis is a whole sentence: {}", aside.as_str()),
                "take it out of its parenthesis, or leave it out",
            );
        }
        let short: Vec<bool> =
            sentences(&paragraph).map(|sentence| sentence.split_whitespace().count() <= SHORT).collect();
        if short.windows(DRUMBEAT).any(|row| row.iter().all(|is_short| *is_short)) {
            add(format!("{DRUMBEAT} short sentences in a row"), "join some of them");
        }
    }
}

/// Running text outside of block quotes and tables, each paragraph with the byte at which it begins. Inline code reads `code`.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_quote, mut paragraph) = (Vec::new(), false, None::<(usize, String)>);
    for (event, range) in new_cmark_parser(text, &MarkdownOptions::default()).into_offset_iter() {
        let words = paragraph.as_mut().map(|(_, words)| words);
        match (event, words) {
            (Event::Start(Tag::BlockQuote(_)), _) => in_quote = true,
            (Event::End(TagEnd::BlockQuote(_)), _) => in_quote = false,
            (Event::Start(Tag::Paragraph | Tag::Item), _) if !in_quote => {
                paragraph = Some((range.start, String::new()))
            }
            (Event::End(TagEnd::Paragraph | TagEnd::Item) | Event::Start(Tag::List(_) | Tag::CodeBlock(_)), _) => {
                found.extend(paragraph.take());
            }
            (Event::SoftBreak | Event::HardBreak, Some(words)) => words.push(' '),
            (Event::Text(text), Some(words)) => words.push_str(&text),
            (Event::Code(_), Some(words)) => words.push_str("`code`"),
            _ => {}
        }
    }
    found
}

fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    let ends = paragraph.split_inclusive([' ']).scan(0, |at, word| {
        *at += word.len();
        Some((*at, word.trim_end().ends_with(['.', '!', '?'])))
    });
    let ends: Vec<usize> = ends.filter(|(_, is_end)| *is_end).map(|(at, _)| at).chain([paragraph.len()]).collect();
    let mut from = 0;
    ends.into_iter().filter_map(move |end| {
        let sentence = paragraph[from..end].trim();
        from = end;
        (!sentence.is_empty()).then_some(sentence)
    })
}
