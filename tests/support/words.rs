//! Numbers with their nouns, and tokens, for failure messages.

/// `1 page`, `2 pages`
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Tokens; of many the first and the last: `[3, 1, 7]`, `20 tokens [1, 2, …, 20]`.
pub fn shown(tokens: &[u32]) -> String {
    match tokens {
        [a, b, .., z] if tokens.len() > 16 => format!("{} tokens [{a}, {b}, …, {z}]", tokens.len()),
        _ => format!("{tokens:?}"),
    }
}
