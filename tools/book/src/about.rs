//! What a page is about, in one or two sentences of its own: for search engines, link previews and lists of pages.

use mdbook_markdown::pulldown_cmark::{Event, Tag, TagEnd};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};

/// Search engines show about as many characters.
const LONGEST: usize = 160;
/// A shorter first paragraph says too little, and the next is read, too.
const SHORTEST: usize = 80;
/// How every chapter begins: what sets it apart comes after these words.
const LEAD: &str = "When this chapter ends, you can ";

/// The beginning of the page's running text, without its marks, in at most 160 characters; empty if there is none. What
/// a list says that ends a sentence ("you can …") belongs to it. Figures, code, tables and folds do not.
pub fn description(text: &str) -> String {
    let said = beginning(text);
    match said.strip_prefix(LEAD) {
        Some(rest) => cut(&capitalised(rest)),
        None => cut(&said),
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The first paragraphs, at least `SHORTEST` characters of them if there are as many.
fn beginning(text: &str) -> String {
    let mut said = String::new();
    // Code, tables, quotes and the like, and what is hidden in a fold, for the depth that they are open.
    let mut passed_over = 0;
    let mut folds = 0;
    for event in new_cmark_parser(text, &MarkdownOptions::default()) {
        match event {
            Event::Start(Tag::Heading { .. } | Tag::CodeBlock(_) | Tag::Table(_) | Tag::BlockQuote(_)) => {
                passed_over += 1;
            }
            Event::End(TagEnd::Heading(_) | TagEnd::CodeBlock | TagEnd::Table | TagEnd::BlockQuote(_)) => {
                passed_over -= 1;
                end_sentence(&mut said);
            }
            Event::Html(html) => {
                folds += html.matches("<details").count();
                folds -= html.matches("</details").count().min(folds);
            }
            _ if passed_over > 0 || folds > 0 => {}
            Event::Text(text) | Event::Code(text) => said.push_str(&text),
            Event::SoftBreak | Event::HardBreak => said.push(' '),
            Event::End(TagEnd::Item) => {
                // Items have commas inside.
                if said.ends_with(',') {
                    said.pop();
                    said.push(';');
                }
                said.push(' ');
            }
            Event::End(TagEnd::Paragraph | TagEnd::List(_)) => {
                let is_over = said.trim_end().ends_with(['.', '?', '!']);
                if is_over && said.trim().chars().count() >= SHORTEST {
                    break;
                }
                said.push(' ');
            }
            _ => {}
        }
    }
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line that leads to code or a table ends with a colon: what it leads to is not there.
fn end_sentence(said: &mut String) {
    let end = said.trim_end();
    if let Some(sentence) = end.strip_suffix(':') {
        *said = format!("{sentence}. ");
    }
}

/// As many whole sentences, or items of a list, as there is room for; of a first one that is too long, as many words.
fn cut(text: &str) -> String {
    if text.chars().count() <= LONGEST {
        return text.to_string();
    }
    let limit = text.char_indices().nth(LONGEST).map_or(text.len(), |(at, _)| at);
    let mut ends = text.match_indices(['.', '?', '!', ';']).map(|(at, _)| at + 1);
    let whole = ends.rfind(|end| *end <= limit && text[*end..].starts_with(' '));
    match whole.map(|end| &text[..end]).filter(|whole| whole.chars().count() >= SHORTEST) {
        Some(whole) => whole.strip_suffix(';').map_or_else(|| whole.to_string(), |items| format!("{items}.")),
        None => {
            let limit = text.char_indices().nth(LONGEST - 2).map_or(text.len(), |(at, _)| at);
            let words = text[..limit].rsplit_once(' ').map_or(&text[..limit], |(words, _)| words);
            format!("{} …", words.trim_end_matches([',', ';', ':', '(', '.']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_the_beginning_of_the_running_text() {
        for (text, expected) in [
            (
                "<figure>\n<figcaption>A picture.</figcaption>\n</figure>\n\nA *cache* keeps [rows](x.md) in `pages`\nof \
                 one pool, and gives each of them back when its last owner lets go.\n\nMore.",
                "A cache keeps rows in pages of one pool, and gives each of them back when its last owner lets go.",
            ),
            // A list that ends the sentence belongs to it.
            (
                "When this chapter ends, you can\n\n- keep many texts in one memory,\n- tell many stories at once, and say \
                 how many more fit into it.\n\n## Next\n\nAnother.",
                "Keep many texts in one memory; tell many stories at once, and say how many more fit into it.",
            ),
            // A short paragraph takes the next.
            (
                "Short.\n\n```text\ncode\n```\n\n<details>\n<summary>Q</summary>\n\nHidden.\n\n</details>\n\nThe second \
                 paragraph is read as well.",
                "Short. The second paragraph is read as well.",
            ),
            ("```text\ncode\n```", ""),
        ] {
            assert_eq!(description(&format!("# Title\n\n{text}\n")), expected);
        }
    }

    #[test]
    fn a_long_one_ends_with_a_sentence_or_else_with_a_word() {
        let sentence = "Nothing in this sentence, which is as long as it has to be, is longer than it has to be.";
        assert_eq!(description(&format!("# T\n\n{sentence} {sentence}\n")), sentence);
        let words = "words and ".repeat(40);
        let said = description(&format!("# T\n\n{words}\n"));
        assert!(said.chars().count() <= LONGEST && said.ends_with(" …"), "{said}");
        let umlauts = "ü".repeat(400);
        assert_eq!(description(&format!("# T\n\n{umlauts}\n")).chars().count(), LONGEST);
    }
}
