//! The colours of the figures can be read in every theme: text on a cell, a cell's border against the page, and words
//! beside it meet WCAG AA.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The page's background in mdBook's themes, and the block of `book.css` that sets the colours for it.
const THEMES: [(&str, &str, [u8; 3]); 5] = [
    ("light", "\n.light,", [0xff, 0xff, 0xff]),
    ("rust", "\n.light,", [0xe1, 0xe1, 0xdb]),
    ("ayu", "\n.ayu,", [0x0f, 0x14, 0x1a]),
    ("coal", "\n.ayu,", [0x13, 0x15, 0x16]),
    ("navy", "\n.ayu,", [0x16, 0x19, 0x23]),
];
const KINDS: [&str; 5] = ["new", "reused", "shared", "wasted", "stale"];

const TEXT: f64 = 4.5;
const SHAPE: f64 = 3.0;

fn css() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/book.css");
    fs::read_to_string(file).unwrap()
}

/// `--name: #rrggbb;` of the first block after `mark`.
fn colours(css: &str, mark: &str) -> HashMap<String, [u8; 3]> {
    let block = css.split_once(mark).unwrap().1.split('}').next().unwrap();
    let pairs = block.lines().filter_map(|line| {
        let (name, value) = line.trim().strip_suffix(';')?.split_once(": #")?;
        let channel = |at: usize| u8::from_str_radix(value.get(at..at + 2)?, 16).ok();
        Some((name.to_string(), [channel(0)?, channel(2)?, channel(4)?]))
    });
    pairs.collect()
}

fn luminance(colour: [u8; 3]) -> f64 {
    let linear = colour.map(|channel| match f64::from(channel) / 255.0 {
        value if value <= 0.03928 => value / 12.92,
        value => ((value + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn figures_can_be_read_in_every_theme() {
    let css = css();
    for (theme, mark, page) in THEMES {
        let colours = colours(&css, mark);
        let at_least = |least: f64, what: &str, a: [u8; 3], b: [u8; 3]| {
            let found = contrast(a, b);
            assert!(found >= least, "{theme}: {what} has {found:.2}, needs {least}");
        };
        for kind in KINDS {
            let fill = colours[&format!("--pbp-{kind}")];
            let ink = colours[&format!("--pbp-{kind}-ink")];
            at_least(TEXT, &format!("text on {kind}"), ink, fill);
            at_least(SHAPE, &format!("the border of {kind}"), ink, page);
        }
        at_least(TEXT, "--pbp-ink", colours["--pbp-ink"], page);
        at_least(SHAPE, "--pbp-line", colours["--pbp-line"], page);
    }
}

#[test]
fn cells_differ_by_more_than_colour() {
    let css = css();
    let borders = KINDS.map(|kind| {
        let block = css.split_once(&format!("svg .cell-{kind} {{")).unwrap().1;
        let block = block.split('}').next().unwrap();
        let lines = block.lines().map(str::trim);
        let shape = lines.filter(|line| !line.contains("--pbp") && !line.is_empty());
        shape.collect::<Vec<_>>().join(" ")
    });
    for (at, border) in borders.iter().enumerate() {
        assert!(!borders[..at].contains(border), "{} is drawn like another", KINDS[at]);
    }
}
