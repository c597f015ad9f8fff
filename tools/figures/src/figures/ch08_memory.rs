//! Chapter 8: what each model's cache holds before a step, when all is computed, and after it.

use anyhow::Result;

use super::Figure;
use crate::layout::Grid;
use crate::speculation::{K, Memory, Step, italic, one_step, recorded};
use crate::svg::{Kind, Svg, named};
use crate::words::count;

pub fn figure() -> Result<Figure> {
    let step = &one_step()?;
    let Step { drafted, new_tokens, target, draft, .. } = step;
    let (newest, after) = (step.newest(), &new_tokens[step.accepted()]);
    let mut figure = Figure::default();
    let says = [
        format!(
            "Before: the newest token is <em>{newest}</em>. Neither model has computed it; both hold all before it."
        ),
        format!(
            "Draft and verify: the target has computed <em>{newest}</em> {0}. The draft model has computed <em>{newest}</em> {1} but \
             not its last draft token, {2}, because nothing comes after that.",
            italic(drafted),
            italic(&drafted[..K - 1]),
            italic(&drafted[K - 1..])
        ),
        format!(
            "After: the target has forgotten {} and the draft model {}. Both hold the same again: all but the newest token, \
             <em>{after}</em>.",
            count(target.forgotten.len(), "token"),
            count(draft.forgotten.len(), "token")
        ),
    ];
    for (moment, says) in ["before", "computed", "after"].into_iter().zip(says) {
        figure.step(says, |svg| draw_moment(svg, moment, step));
        figure.svg.y += 8.0;
    }
    figure.svg.legend(&[(Kind::Reused, "in the cache"), (Kind::New, "just computed"), (Kind::Free, "not computed")]);
    figure.label = "The tokens in the caches of target and draft model before a step, when draft and verification are computed, and \
                    after the step."
        .into();
    figure.caption = format!(
        "<strong>Before and after a step, both caches hold all but the newest token.</strong> The step of the first figure. {}",
        recorded()
    );
    Ok(figure)
}

fn draw_moment(svg: &mut Svg, moment: &str, step: &Step) {
    let Step { tokens, drafted, new_tokens, target, draft, .. } = step;
    let before = &tokens[tokens.len() - 2..tokens.len() - 1];
    let newest = std::slice::from_ref(step.newest());
    let (accepted, after) = new_tokens.split_at(step.accepted());
    let (title, note) = match moment {
        "before" => ("before the step", format!("newest token: {}", newest[0])),
        "computed" => ("drafted and verified", String::new()),
        _ => ("after the step", format!("newest token: {}", after[0])),
    };
    svg.heading(title, &note);
    // The draft model never computes its last draft token.
    let models: [(&str, &Memory, usize); 2] = [("target", target, K), ("draft", draft, K - 1)];
    for (name, model, computed) in models {
        let [held, new, missing] = match moment {
            "before" => [before.to_vec(), vec![], newest.to_vec()],
            "computed" => [before.to_vec(), [newest, &drafted[..computed]].concat(), drafted[computed..].to_vec()],
            _ => [[before, newest, accepted].concat(), vec![], after.to_vec()],
        };
        if moment == "after" {
            svg.note(&format!("forgot {}", model.forgotten.len()));
        }
        svg.label(name);
        let words = [(Kind::Reused, held), (Kind::New, new), (Kind::Free, missing)].into_iter();
        let cells = words.flat_map(|(kind, words)| words.into_iter().map(move |word| named(kind, word)));
        svg.row(Grid::across(52.0, K + 2, K + 2), cells);
    }
}
