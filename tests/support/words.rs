//! Numbers with their nouns.

/// `1 page`, `2 pages`
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
