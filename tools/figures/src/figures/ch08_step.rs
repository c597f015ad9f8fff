//! Chapter 8: one step, as four acts: draft, verify, accept, rewind.

use anyhow::Result;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::speculation::{K, Step, italic, one_step, passes, recorded, text};
use crate::svg::{Kind, Svg, named};
use crate::words::{count, joined, listed};

pub fn figure() -> Result<Figure> {
    let step = &one_step()?;
    let Step { tokens, drafted, choices, new_tokens, target, draft } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    let mut figure = Figure::default();
    let says = [
        format!(
            "Draft: after \u{201c}{}\u{201d} the draft model proposes {}, in {}.",
            text(tokens),
            italic(drafted),
            passes(draft.passes.len())
        ),
        format!(
            "Verify: the target computes <em>{newest} {}</em> in one pass, and chooses a token after each: {}.",
            joined(drafted, " "),
            italic(choices)
        ),
        format!(
            "Accept: {} accepted. The first choice that differs, <em>{}</em>, is the target\u{2019}s own token and ends the \
             step. The rows after it continue a sequence that does not exist.",
            count(accepted, "draft token"),
            new_tokens[accepted]
        ),
        format!(
            "Rewind: the target forgets {}, the draft model {}. Both hold the sequence up to <em>{}</em>: all but the newest \
             token.",
            italic(&target.forgotten),
            italic(&draft.forgotten),
            new_tokens[accepted - 1]
        ),
    ];
    for (act, says) in ["draft", "verify", "accept", "rewind"].into_iter().zip(says) {
        figure.step(says, |svg| draw_act(svg, act, step));
        figure.svg.y += 8.0;
    }
    figure.svg.legend(&[
        (Kind::Reused, "kept"),
        (Kind::New, "new"),
        (Kind::Stale, "rejected"),
        (Kind::Wasted, "computed, not used"),
    ]);
    figure.label = format!(
        "One step in four acts: the draft model proposes {}, the target answers {}, and the new tokens are {}.",
        listed(drafted),
        listed(choices),
        listed(new_tokens)
    );
    figure.caption = format!(
        "<strong>One pass of the target gives {} new tokens, the very ones that it would have generated alone.</strong> The \
         sequence was \u{201c}{}\u{201d}. {}",
        new_tokens.len(),
        text(tokens),
        recorded()
    );
    Ok(figure)
}

fn draw_act(svg: &mut Svg, act: &str, step: &Step) {
    let Step { drafted, choices, new_tokens, target, draft, .. } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    let grid = Grid::across(58.0, K + 2, K + 2);
    // Rows that begin under the first draft token.
    let after = Grid::across(grid.cell(1, 0.0).x - 1.5, K + 1, K + 1);
    let judged = |words: &[String], held: usize, kinds: [Kind; 2]| {
        let kind = move |i| if i < held { kinds[0] } else { kinds[1] };
        words.iter().enumerate().map(|(i, word)| named(kind(i), word)).collect::<Vec<_>>()
    };
    let read =
        |kind| [named(Kind::Reused, newest)].into_iter().chain(drafted.iter().map(move |word| named(kind, word)));
    match act {
        "draft" => {
            svg.heading("1 draft", &format!("{} of the draft model", passes(draft.passes.len())));
            svg.label("draft");
            svg.row(grid, read(Kind::New));
        }
        "verify" => {
            svg.heading("2 verify", &format!("1 pass of the target over {} tokens", target.passes[0]));
            svg.label("input");
            for i in 0..=K {
                svg.arrow((grid.middle(i), svg.y + CELL + 2.0), (grid.middle(i + 1), svg.y + CELL + 18.0));
            }
            svg.row(grid, read(Kind::Reused));
            svg.y += 14.0;
            svg.label("choices");
            svg.row(after, judged(choices, choices.len(), [Kind::New; 2]));
        }
        "accept" => {
            svg.heading("3 accept", &format!("{accepted} accepted, {} new tokens", new_tokens.len()));
            svg.label("draft");
            svg.row(after, judged(drafted, accepted, [Kind::Reused, Kind::Stale]));
            svg.label("target");
            svg.row(after, judged(choices, new_tokens.len(), [Kind::New, Kind::Wasted]));
        }
        _ => {
            svg.heading("4 rewind", &format!("both hold … {newest} {}", joined(&new_tokens[..accepted], " ")));
            for (name, memory) in [("target", target), ("draft", draft)] {
                svg.label(name);
                let held = [newest].into_iter().chain(&new_tokens[..accepted]).map(|word| named(Kind::Reused, word));
                svg.row(grid, held.chain(memory.forgotten.iter().map(|word| named(Kind::Stale, word))));
            }
        }
    }
}
