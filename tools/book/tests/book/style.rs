//! The colours of the figures can be read in every theme: text on a cell, a cell's border against the page, and words
//! beside it meet WCAG AA.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// mdBook's themes: whether they are dark, and the page's background.
const THEMES: [(&str, bool, [u8; 3]); 5] = [
    ("light", false, [0xff, 0xff, 0xff]),
    ("rust", false, [0xe1, 0xe1, 0xdb]),
    ("ayu", true, [0x0f, 0x14, 0x1a]),
    ("coal", true, [0x13, 0x15, 0x16]),
    ("navy", true, [0x16, 0x19, 0x23]),
];
/// The names of the colours beside those of the owners.
const KINDS: [&str; 5] = ["new", "reused", "shared", "wasted", "stale"];
const OWNERS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

const TEXT: f64 = 4.5;
const SHAPE: f64 = 3.0;

fn css() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/book.css");
    fs::read_to_string(file).unwrap()
}

/// `--name: light-dark(#rrggbb, #rrggbb);` of the first block.
fn colours(css: &str, is_dark: bool) -> HashMap<String, [u8; 3]> {
    let block = css.split_once(":root {").unwrap().1.split('}').next().unwrap();
    let pairs = block.split(';').filter_map(|line| {
        let (name, values) = line.trim().split_once(": light-dark(#")?;
        let value = values.split(", #").nth(usize::from(is_dark))?;
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
    for (theme, is_dark, page) in THEMES {
        let colours = colours(&css, is_dark);
        let at_least = |least: f64, what: &str, a: [u8; 3], b: [u8; 3]| {
            let found = contrast(a, b);
            assert!(found >= least, "{theme}: {what} has {found:.2}, needs {least}");
        };
        let ink = |name: &str| colours[&format!("--pbp-{name}-ink")];
        for name in OWNERS.into_iter().chain(KINDS) {
            let fill = colours[&format!("--pbp-{name}")];
            at_least(TEXT, &format!("text on {name}"), ink(name), fill);
            at_least(SHAPE, &format!("the border of {name}"), ink(name), page);
        }
        for owner in OWNERS {
            let fill = colours[&format!("--pbp-{owner}")];
            at_least(TEXT, &format!("text on a shared cell of {owner}"), colours["--pbp-ink"], fill);
            at_least(TEXT, &format!("text on an empty cell of {owner}"), ink(owner), page);
            // Its opacity there.
            let tint = [0, 1, 2].map(|at| (0.35 * f64::from(fill[at]) + 0.65 * f64::from(page[at])) as u8);
            at_least(TEXT, &format!("text on a stale cell of {owner}"), colours["--pbp-faint"], tint);
        }
        at_least(TEXT, "--pbp-faint", colours["--pbp-faint"], page);
        at_least(TEXT, "--pbp-ink", colours["--pbp-ink"], page);
        at_least(SHAPE, "--pbp-line", colours["--pbp-line"], page);
    }
}

/// What became of a cell can be seen without its colour: by its border, a hatching or a line through its word.
#[test]
fn cells_differ_by_more_than_colour() {
    let css = css();
    let block = |selector: &str| css.split_once(&format!("{selector} {{")).unwrap().1.split('}').next().unwrap();
    let borders = [
        "svg .c > rect",
        "svg .c.empty > rect",
        "svg .c.stale > rect",
        "svg .c.shared > rect:not(.band)",
        "svg .free > rect",
    ]
    .map(|selector| {
        block(selector).lines().map(str::trim).filter(|line| line.starts_with("stroke-")).collect::<Vec<_>>()
    });
    for (at, border) in borders.iter().enumerate() {
        assert!(!borders[..at].contains(border), "{border:?} is drawn twice");
    }
    assert!(block("svg .mark").contains("stroke-width: 2"));
    assert!(
        block("svg .again .hatch").contains("stroke-dasharray") && !block("svg .hatch").contains("stroke-dasharray")
    );
    assert!(block(".content svg .stale .w").contains("line-through"));
}
