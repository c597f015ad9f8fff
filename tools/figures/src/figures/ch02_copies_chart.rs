//! Chapter 2: the tokens that `chapters::ch01_recompute` computes, and those that `chapters::ch02_flat` computes and
//! copies instead.

use super::ch01_rows_chart::counted;
use super::prelude::*;

/// As in the page's story.
const PROMPT: usize = 5;
const NEW_TOKENS: [usize; 4] = [50, 100, 150, 200];
pub const COMPUTED: char = 'a';
pub const COPIED: char = 'b';

pub fn figure() -> Result<Figure> {
    let counts = NEW_TOKENS.into_iter().map(|n| counted(PROMPT, n)).collect::<Result<Vec<_>>>()?;
    let last = counts[counts.len() - 1];
    let [recompute, computed, copied] = last.map(grouped);
    let [first, .., n] = NEW_TOKENS;
    let figure = Figure {
        label: format!(
            "Pairs of bars for {first} to {n} new tokens. The bars of a pair are equally long: the rows that chapter 1 \
             computes, and the tokens that the flat cache copies, after a thin slice of tokens that it computes. For {n} \
             new tokens {recompute} tokens are computed, or {computed} computed and {copied} copied."
        ),
        headline:
            "The flat cache copies tokens where the loop computed them, and their number still grows with the square."
                .into(),
        setup: format!(
            "For {n} new tokens after a prompt of {PROMPT}, chapter 1 computes {recompute} tokens. The flat cache \
             computes {computed}, the thin slice at the left, and copies {copied}."
        ),
        legend: vec![(held(COMPUTED, ""), "computed"), (held(COPIED, ""), "copied")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        let labels = text_width("chapter 1") + 8.0;
        let notes = text_width(&format!("{computed} + {copied}")) + 8.0;
        let scale = (picture.width - labels - notes - 2.0) / last[0] as f64;
        for (new_tokens, [recompute, computed, copied]) in NEW_TOKENS.iter().zip(&counts) {
            picture.heading(&format!("{new_tokens} new tokens"), "");
            let bars =
                [("chapter 1", vec![(COMPUTED, *recompute)]), ("flat", vec![(COMPUTED, *computed), (COPIED, *copied)])];
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
