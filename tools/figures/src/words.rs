//! Numbers and lists as words.

pub use page_by_page::english::{listed, plural, thousands as grouped};
pub use page_by_page_course::figures::escaped;

/// `16, 11, 5`
pub fn joined<T: ToString>(items: &[T], between: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(between)
}

/// `a4`, `a4 and a5`, `a4 to a8`
pub fn span<T: ToString>(items: &[T]) -> String {
    match items {
        [first, _, .., last] if items.len() > 2 => format!("{} to {}", first.to_string(), last.to_string()),
        _ => listed(items),
    }
}

/// `page 3`, `pages 0 and 2`, `no pages`
pub fn pages<T: ToString>(pages: &[T]) -> String {
    match pages {
        [] => "no pages".into(),
        [page] => format!("page {}", page.to_string()),
        pages => format!("pages {}", listed(pages)),
    }
}

/// Words as tokens: the place of each among all words.
pub fn tokens(words: &str, all: &[&str]) -> Vec<u32> {
    let token = |word| all.iter().position(|other| *other == word).map(|token| token as u32);
    words.split(' ').filter_map(token).collect()
}

/// How wide the book's letters are, in thousandths of their size: Open Sans, from the space to the tilde.
const LETTERS: [u16; 95] = [
    260, 267, 401, 646, 572, 823, 730, 221, 296, 296, 552, 572, 245, 322, 266, 367, 572, 572, 572, 572, 572, 572, 572,
    572, 572, 572, 266, 266, 572, 572, 572, 429, 899, 633, 648, 631, 729, 556, 516, 728, 738, 279, 267, 614, 519, 903,
    754, 779, 602, 779, 618, 549, 553, 728, 595, 926, 577, 560, 571, 329, 367, 329, 542, 448, 577, 556, 613, 476, 613,
    561, 339, 548, 614, 253, 253, 525, 253, 930, 614, 604, 613, 613, 408, 477, 353, 614, 501, 778, 524, 504, 468, 379,
    551, 379, 572,
];

/// The width of a text in a picture. A letter outside ASCII counts as a wide one.
pub fn text_width(text: &str) -> f64 {
    let letter = |c: char| LETTERS.get((c as usize).wrapping_sub(32)).copied().unwrap_or(800);
    text.chars().map(|c| f64::from(letter(c))).sum::<f64>() * 13.0 / 1000.0
}
