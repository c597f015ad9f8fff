//! The few words that the house's style has replaced by others. It looks at the book's pages only: not at sentences,
//! and not at code. A page that passes still has to be read aloud.

use std::sync::LazyLock;

use regex::Regex;

use crate::finding::Findings;
use crate::page::Page;

static REPLACED: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
    let pattern = |pattern| Regex::new(pattern).expect("valid pattern");
    [
        (pattern(r"\b[Bb]ehind\b"), "say `after`, `following` or `beyond`"),
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
/// A phrase in which it is the right word.
const FINE: &str = "texts in the training data";
static QUOTED: LazyLock<Regex> = LazyLock::new(|| Regex::new("[\"“][^\"”]*[\"”]").expect("valid pattern"));
static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").expect("valid pattern"));

pub fn check(page: &Page, findings: &mut Findings) {
    for (line, paragraph) in &page.contents.paragraphs {
        // Somebody else's words stay as they are.
        let paragraph = QUOTED.replace_all(paragraph, "\"quoted\"");
        let paragraph = CODE.replace_all(&paragraph, "`code`").replace(FINE, "");
        for (word, next_step) in &*REPLACED {
            if let Some(found) = word.find(&paragraph) {
                let problem = format!("the paragraph has `{}`", found.as_str());
                findings.add(page.place_of_line(*line), problem, *next_step);
            }
        }
    }
}
