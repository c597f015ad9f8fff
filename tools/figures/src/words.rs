//! Numbers and lists as words.

use page_by_page::cache::PageId;

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `16, 11, 5 and 3`
pub fn listed<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    match &items[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => items.join(""),
    }
}

/// `16, 11, 5`
pub fn joined<T: ToString>(items: &[T], between: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(between)
}

/// `1 page`, `3 pages`, `2,024 pages`
pub fn count(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n as u64), if n == 1 { "" } else { "s" })
}

pub fn page_numbers(pages: &[PageId]) -> Vec<u32> {
    pages.iter().map(|page| page.0).collect()
}

/// `page 3`, `pages 0 and 2`, `no pages`
pub fn pages<T: ToString>(pages: &[T]) -> String {
    match pages {
        [] => "no pages".into(),
        [page] => format!("page {}", page.to_string()),
        pages => format!("pages {}", listed(pages)),
    }
}

pub fn with_before<F>(frames: &[F]) -> impl Iterator<Item = (Option<&F>, &F)> {
    [None].into_iter().chain(frames.iter().map(Some)).zip(frames)
}

/// Words as tokens: the place of each among all words.
pub fn tokens(words: &str, all: &[&str]) -> Vec<u32> {
    let token = |word| all.iter().position(|other| *other == word).map(|token| token as u32);
    words.split(' ').filter_map(token).collect()
}

/// A number with its thousands apart: `32,896`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
