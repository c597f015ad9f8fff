//! A line under a figure that says whose code it was recorded from.
//!
//! The tool for the book, which writes such lines under the reference's figures, uses this file, too. Hence nothing but the
//! standard library.

/// A fragment with a line under its caption. `note`: HTML, on one line.
pub fn with_note(fragment: &str, note: &str) -> String {
    const CAPTION_END: &str = "</figcaption>\n";
    let Some(at) = fragment.find(CAPTION_END).map(|at| at + CAPTION_END.len()) else {
        return fragment.to_string();
    };
    let (before, after) = fragment.split_at(at);
    format!("{before}<p class=\"pbp-whose\">{note}</p>\n{after}")
}

/// `chapter 5`, `chapters 5 and 6`
pub fn chapters(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match &numbers[..] {
        [one] => format!("chapter {one}"),
        [first @ .., last] => format!("chapters {} and {last}", first.join(", ")),
        [] => "no chapter".into(),
    }
}
