//! Chapter 1: the tokens that each call of the loop computes, drawn to scale, and how few of them are new.

use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::generation::{CachedModel, LanguageModel, StopConditions};

use super::prelude::*;

/// As in the page's story.
const PROMPT: usize = 5;
pub const NEW_TOKENS: usize = 200;
/// Calls of the model in a bar.
const CALLS: usize = 20;
const NEW: char = 'a';

/// What the first `n` calls after a prompt cost: tokens that chapter 1 computes, and those that the flat cache lets the
/// model compute and copies. Which tokens does not matter.
fn counted(n: usize) -> Result<[u64; 3]> {
    let model = model(DRAFT)?;
    let run = |model: &mut dyn LanguageModel| {
        let stop = StopConditions { max_new_tokens: n, end_of_text: &[] };
        generate(model, &[0; PROMPT], stop, &mut |_| 1, &mut |_| {})
    };
    let mut recompute = Recompute::new(&model);
    run(&mut recompute)?;
    let mut cache = FlatCache::new(model.config().kv_layout());
    let mut cached = CachedModel::new(&model, &mut cache);
    run(&mut cached)?;
    let computed = cached.computed_tokens();
    Ok([recompute.computed_tokens(), computed, cache.usage().copied_tokens])
}

/// A bar for every 20 calls: the tokens of a call, new ones at the right end. `old`: the cell of the others, and which of
/// the three counts they are, if they are not the rest of the first.
pub fn bill(old: Cell, copied: bool, headline: impl Fn([u64; 3]) -> String) -> Result<Figure> {
    let ends = (0..=NEW_TOKENS).step_by(CALLS).map(counted).collect::<Result<Vec<_>>>()?;
    let total = ends[ends.len() - 1];
    let bars: Vec<[u64; 2]> = ends
        .windows(2)
        .map(|ends| {
            let [all, new, moved] = [0, 1, 2].map(|count| ends[1][count] - ends[0][count]);
            [if copied { moved } else { all - new }, new]
        })
        .collect();
    let figure = Figure {
        label: format!(
            "Ten bars, each for {CALLS} calls of the model, that grow longer and longer like a triangle on its side. A thin \
             edge at the right end of each is the new tokens."
        ),
        headline: headline(total),
        setup: format!("A story of {NEW_TOKENS} new tokens after a prompt of {PROMPT}, {CALLS} calls in a bar."),
        legend: vec![(held(NEW, ""), "computed for the first time")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        let labels = text_width("calls 181 to 200") + 8.0;
        let notes = text_width("3,890 + 20") + 8.0;
        let longest = bars.iter().map(|parts| parts.iter().sum::<u64>()).max().unwrap_or(1);
        let scale = (picture.width - labels - notes) / longest as f64;
        for (n, parts) in bars.iter().enumerate() {
            let mut area = Area { x: picture.left + labels, y: picture.y, width: 0.0, height: 18.0 };
            let calls = format!("calls {} to {}", n * CALLS + 1, (n + 1) * CALLS);
            picture.text(picture.left, area.baseline(), Anchor::Start, calls);
            for (count, cell) in parts.iter().zip([old.clone(), held(NEW, "")]) {
                area.width = (*count as f64 * scale).max(2.0);
                picture.cell(area, cell);
                area.x += area.width;
            }
            picture.text(area.x + 6.0, area.baseline(), Anchor::Start, parts.map(grouped).join(" + "));
            picture.y += 19.0;
        }
    }))
}

pub fn figure() -> Result<Figure> {
    bill(again('b', ""), false, |[all, new, _]| {
        format!(
            "{} tokens are computed, and {} of them for the first time: the thin green edge.",
            grouped(all),
            grouped(new)
        )
    })
}
