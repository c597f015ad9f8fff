//! What a page is about, in one or two sentences of its own: for search engines, link previews and lists of pages.

use crate::contents::Contents;
use crate::html::Piece;

/// Search engines show about as many characters.
const MAX_CHARS: usize = 160;
/// A shorter first paragraph says too little, and the next is read, too.
const MIN_CHARS: usize = 80;

/// The beginning of the page's running text, without its marks, in at most 160 characters; empty if there is none.
/// Figures, code and tables are left out, and it ends before the first fold.
pub fn description(contents: &Contents) -> String {
    let is_fold = |piece: &Piece| matches!(piece, Piece::Open(element) if element.name == "details");
    let fold = contents.html.iter().find(|(_, piece)| is_fold(piece)).map_or(usize::MAX, |(line, _)| *line);
    let mut beginning = String::new();
    for (_, paragraph) in contents.paragraphs.iter().take_while(|(line, _)| *line < fold) {
        let paragraph = paragraph.replace('`', "");
        beginning += match paragraph.strip_suffix(':') {
            // What it leads to is not there.
            Some(lead) => [lead, "."].concat(),
            None => paragraph,
        }
        .trim();
        if beginning.ends_with(['.', '?', '!']) && beginning.chars().count() >= MIN_CHARS {
            break;
        }
        beginning.push(' ');
    }
    cut(&beginning.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// As many whole sentences as there is room for; of a first one that is too long, as many words.
fn cut(text: &str) -> String {
    let limit = |characters| text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at);
    let mut ends = text.match_indices(['.', '?', '!']).map(|(at, _)| at + 1);
    let sentences = ends.rfind(|end| *end <= limit(MAX_CHARS) && text[*end..].starts_with(' '));
    match sentences.map(|end| &text[..end]).filter(|sentences| sentences.chars().count() >= MIN_CHARS) {
        _ if limit(MAX_CHARS) == text.len() => text.to_string(),
        Some(sentences) => sentences.to_string(),
        None => {
            let text = &text[..limit(MAX_CHARS - 2)];
            let words = text.rsplit_once(' ').map_or(text, |(words, _)| words);
            format!("{} …", words.trim_end_matches([',', ';', ':', '(', '.']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pages.txt` has pages with descriptions: a short paragraph takes the next, and a long one ends with a sentence.
    #[test]
    fn a_description_is_the_beginning_of_the_running_text() {
        for case in include_str!("description/pages.txt").split("====\n") {
            let (page, expected) = case.split_once("----\n").expect("a page and its description");
            assert_eq!(description(&Contents::read(page)), expected.trim_end());
        }
    }

    #[test]
    fn a_long_sentence_ends_with_a_word() {
        let said = description(&Contents::read(&format!("# T\n\n{}\n", "words and ".repeat(40))));
        assert!(said.chars().count() <= MAX_CHARS && said.ends_with(" …"), "{said}");
        let umlauts = description(&Contents::read(&format!("# T\n\n{}\n", "ü".repeat(400))));
        assert_eq!(umlauts.chars().count(), MAX_CHARS);
    }
}
