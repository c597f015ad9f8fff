//! Numbers with their nouns, and tokens, for failure messages.

pub use page_by_page::english::count;

/// An argument of a call: `7`, `usize::MAX`, `usize::MAX - 9`.
pub fn argument(n: usize) -> String {
    match usize::MAX - n {
        0 => "usize::MAX".into(),
        less @ 1..=99 => format!("usize::MAX - {less}"),
        _ => n.to_string(),
    }
}

/// Tokens; of many the first and the last: `[3, 1, 7]`, `20 tokens [1, 2, …, 20]`.
pub fn shown(tokens: &[u32]) -> String {
    match tokens {
        [a, b, .., z] if tokens.len() > 16 => format!("{} tokens [{a}, {b}, …, {z}]", tokens.len()),
        _ => format!("{tokens:?}"),
    }
}
