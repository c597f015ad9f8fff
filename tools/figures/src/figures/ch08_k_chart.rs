//! Chapter 8: passes of the target, and what they cost in time. The stories are by `chapters::ch08_speculative`, over
//! caches that rewind by `chapters::ch07_rewind`.

use page_by_page::experiments::drafts::Bundled;
use page_by_page::generation::drafting::AcceptRule;

use super::prelude::*;

/// Draft tokens and, as the table in "When does it save time?" prints them, "Pass that verifies, about", "Drafting, about"
/// and "Time, over several runs".
const TABLE: [(usize, [f64; 2], [f64; 2]); 3] =
    [(2, [1.5, 0.6], [0.91, 1.06]), (4, [2.3, 1.0], [1.02, 1.28]), (2, [1.1, 0.0], [0.77, 0.90])];
/// The large target, the last column, makes 24 tokens in 17 passes, as the page prints. It is too large to run here.
const PASSES_OF_LARGE: f64 = 17.0 / 24.0;
/// The columns of each target, and how large it is.
const TARGETS: [(usize, usize, &str); 2] = [(0, 1, "3 million parameters"), (2, 2, "600 million")];
const UNIT: f64 = 150.0;

pub fn figure() -> Result<Figure> {
    let mut models = Bundled::open()?;
    let mut passes = [PASSES_OF_LARGE; TABLE.len()];
    for (passes, (k, ..)) in passes.iter_mut().zip(TABLE).take(2) {
        let counts = models.stories(0.0, k, AcceptRule::Match)?.counters;
        *passes = counts.target_passes as f64 / counts.new_tokens as f64;
    }
    let said = passes.iter().zip(TABLE).map(|(passes, (k, _, [least, most]))| {
        format!(" Drafts of {k}: {passes:.2} passes, and {least:.2} to {most:.2} of the time without drafts.")
    });
    let targets = "two for a target of 3 million parameters, one for 600 million";
    let figure = Figure {
        label: format!(
            "Three bars beside a line at 1, the time without drafts: {targets}.{}",
            said.collect::<String>()
        ),
        headline: "The fewest passes and the worst time stand in the same column.".into(),
        setup: "Without drafts, a token takes 1.00. Bars: the formula. Thin lines: the range over several runs.".into(),
        legend: vec![(held('b', ""), "passes × verifying"), (held('c', ""), "passes × drafting")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, passes)))
}

fn draw(picture: &mut Picture, passes: [f64; TABLE.len()]) {
    let (left, bottom) = (picture.left + 36.0, 46.0 + 1.3 * UNIT);
    let pitch = (picture.right() - left) / TABLE.len() as f64;
    let up = |time: f64| bottom - time * UNIT;
    for (y, title) in [(13.0, "passes per token"), (59.0, "time per token")] {
        picture.bold(picture.left, y, Anchor::Start, title);
    }
    for time in [0.0, 0.5, 1.0] {
        picture.path("tick", format!("M{:.1} {:.1}H{:.1}", left - 4.0, up(time), picture.right()));
        picture.text(left - 8.0, up(time) + 4.5, Anchor::End, format!("{time:.2}"));
    }
    for (place, (passes, (k, times, measured))) in passes.iter().zip(TABLE).enumerate() {
        let middle = left + (place as f64 + 0.5) * pitch;
        picture.bold(middle, 31.0, Anchor::Middle, format!("{passes:.2}"));
        let mut area = Area { x: middle - 36.0, y: bottom, width: 40.0, height: 0.0 };
        for (time, owner) in times.iter().zip(['b', 'c']).filter(|(time, _)| **time > 0.0) {
            area.height = passes * time * UNIT;
            area.y -= area.height;
            picture.cell(area, held(owner, format!("{:.2}", passes * time)));
        }
        let x = middle + 12.0;
        let [least, most] = measured.map(up);
        picture.path("line", format!("M{:.1} {least:.1}h8m-4 0V{most:.1}m-4 0h8", x - 4.0));
        for (y, time) in [(least + 15.0, measured[0]), (most + 2.0, measured[1])] {
            picture.text(x + 6.0, y, Anchor::Start, format!("{time:.2}"));
        }
        picture.text(middle, bottom + 18.0, Anchor::Middle, format!("{k} draft tokens"));
    }
    picture.path("line dash", format!("M{left:.1} {:.1}H{:.1}", up(1.0), picture.right()));
    picture.text(picture.right(), up(1.0) - 6.0, Anchor::End, "no drafts");
    for (first, last, name) in TARGETS {
        let [from, to] = [first as f64 * pitch + 6.0, (last + 1) as f64 * pitch - 6.0].map(|x| left + x);
        picture.path("line", format!("M{from:.1} {:.1}v4H{to:.1}v-4", bottom + 24.0));
        picture.text((from + to) / 2.0, bottom + 44.0, Anchor::Middle, name);
    }
    picture.y = bottom + 50.0;
}
