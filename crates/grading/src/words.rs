//! Numbers with their nouns, and tokens, for failure messages.

use std::fmt::Debug;

pub use page_by_page::english::plural;

/// An argument of a call: `7`, `usize::MAX`, `usize::MAX - 9`.
pub fn argument(n: usize) -> String {
    match usize::MAX - n {
        0 => "usize::MAX".into(),
        less @ 1..=99 => format!("usize::MAX - {less}"),
        _ => n.to_string(),
    }
}

/// Compares lists: short ones whole, of long ones how many there are, then the first that differs.
#[track_caller]
pub fn same_list<T: PartialEq + Debug>(yours: &[T], expected: &[T], what: &str) {
    if yours.len() + expected.len() <= 12 {
        return same!(yours, expected, "{what}");
    }
    same!(yours.len(), expected.len(), "how many {what}");
    if let Some(at) = (0..yours.len()).find(|at| yours[*at] != expected[*at]) {
        same!(yours[at], expected[at], "number {at} of the {what}");
    }
}

/// Tokens; of many the first and the last: `[3, 1, 7]`, `20 tokens [1, 2, …, 20]`.
pub fn shown<T: Debug>(tokens: &[T]) -> String {
    match tokens {
        [a, b, .., z] if tokens.len() > 16 => format!("{} tokens [{a:?}, {b:?}, …, {z:?}]", tokens.len()),
        _ => format!("{tokens:?}"),
    }
}
