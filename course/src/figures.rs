//! The book's figures: which chapters' code each runs, and the line under a figure that says whose code it was recorded from.
//!
//! The tool for figures records them, the book's tool puts those of the reader's own code into the reader's copy of the book.
//! `tools/figures/tests/standing.rs` compares the list with what the figures' code names.

/// The figures, in the order of the pages, each with the numbers of its chapters.
pub const STANDS_ON: [(&str, &[usize]); 32] = [
    ("ch01_triangle", &[1]),
    ("ch01_rows_chart", &[1, 2]),
    ("engine_map", &[]),
    ("model_layer", &[]),
    ("ch02_copy", &[2]),
    ("ch02_copies_chart", &[1, 2]),
    ("ch03_reservation", &[3]),
    ("ch03_layers", &[3]),
    ("ch04_fragmentation", &[4]),
    ("ch04_free_list", &[4]),
    ("ch05_table", &[4, 5]),
    ("ch05_grow", &[4, 5]),
    ("ch06_page", &[4, 5, 6]),
    ("ch06_interleaved", &[4, 5, 6]),
    ("ch06_gather", &[4, 5, 6]),
    ("ch07_three", &[2, 3, 4, 5, 6, 7]),
    ("ch07_rewind", &[2, 3, 4, 5, 6, 7]),
    ("ch08_step", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("ch08_memory", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("ch08_k_chart", &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("ch09_bars", &[1, 8, 9]),
    ("ch09_share_chart", &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("ch10_fork", &[4, 5, 6, 10]),
    ("ch10_beams", &[4, 5, 6, 10]),
    ("ch11_trie", &[4, 5, 6, 10, 11]),
    ("ch11_hit_rate", &[4, 5, 6, 10, 11]),
    ("ch12_timeline", &[4, 5, 6, 10, 11, 12]),
    ("server_pages", &[1, 4, 5, 6, 10, 11, 12]),
    ("ch13_runs", &[4, 5, 6, 10, 13]),
    ("ch14_head", &[3, 14]),
    ("ch15_shrink", &[15]),
    ("ch16_file", &[4, 5, 6, 10, 11, 16]),
];

/// The numbers of the chapters that a figure stands on; None if there is no such figure.
pub fn stands_on(figure: &str) -> Option<&'static [usize]> {
    STANDS_ON.iter().find(|(name, _)| *name == figure).map(|(_, chapters)| *chapters)
}

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
