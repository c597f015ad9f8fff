//! Chapter 2: the rows that `chapters::ch01_recompute` projects, and those that `chapters::ch02_flat` projects and
//! copies instead.

use super::ch01_rows_chart::counted;
use super::prelude::*;

/// As in the page's story.
const PROMPT: usize = 5;
const NEW_TOKENS: [usize; 4] = [50, 100, 150, 200];
pub const PROJECTED: char = 'a';
pub const COPIED: char = 'b';

pub fn figure() -> Result<Figure> {
    let counts = NEW_TOKENS.into_iter().map(|n| counted(PROMPT, n)).collect::<Result<Vec<_>>>()?;
    let last = counts[counts.len() - 1];
    let [recompute, projected, copied] = last.map(grouped);
    let [first, .., n] = NEW_TOKENS;
    let figure = Figure {
        label: format!(
            "Pairs of bars for {first} to {n} new tokens. The bars of a pair are equally long: the rows that chapter 1 \
             projects, and the rows that the flat cache copies, after a thin slice of rows that it projects. For {n} \
             new tokens {recompute} rows are projected, or {projected} projected and {copied} copied."
        ),
        message: "The flat cache turns projected rows into copied ones, and their number still grows with the square."
            .into(),
        setup: format!(
            "For {n} new tokens after a prompt of {PROMPT}, chapter 1 projects {recompute} rows. The flat cache \
             projects {projected}, the thin slice at the left, and copies {copied}."
        ),
        legend: vec![(held(PROJECTED, ""), "projected"), (held(COPIED, ""), "copied")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        let labels = text_width("chapter 1") + 8.0;
        let notes = text_width(&format!("{projected} + {copied}")) + 8.0;
        let scale = (picture.width - labels - notes - 2.0) / last[0] as f64;
        for (new_tokens, [recompute, projected, copied]) in NEW_TOKENS.iter().zip(&counts) {
            picture.heading(&format!("{new_tokens} new tokens"), "");
            let bars = [
                ("chapter 1", vec![(PROJECTED, *recompute)]),
                ("flat", vec![(PROJECTED, *projected), (COPIED, *copied)]),
            ];
            for (name, parts) in bars {
                let x = picture.left + labels;
                let mut area = Area { x, y: picture.y, width: 0.0, height: CELL - 6.0 };
                picture.text(picture.left, area.baseline(), Anchor::Start, name);
                for (owner, rows) in &parts {
                    area.width = *rows as f64 * scale;
                    picture.cell(area, held(*owner, ""));
                    area.x += area.width;
                }
                let rows: Vec<String> = parts.iter().map(|(_, rows)| grouped(*rows)).collect();
                picture.text(area.x + 6.0, area.baseline(), Anchor::Start, rows.join(" + "));
                picture.y += CELL - 3.0;
            }
            picture.y += 4.0;
        }
    }))
}
