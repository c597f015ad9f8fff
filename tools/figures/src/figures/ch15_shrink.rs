//! Chapter 15: a case shrinks. A line for each list of events in which the rule was still broken.

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::ch15_simulation::{run, shrink};
use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{Case, Event, Make, rule_broken, search, story};

use super::Figure;
use crate::svg::{Anchor, Area, Kind, WIDTH, cell};
use crate::words::{count, escaped, joined, with_before};

const BUG: Bug = Bug::CancelLeaks;
const STEPS: u64 = 100;

struct Shrunk {
    seed: u64,
    rule: String,
    /// The events of the case: their kinds, and how far below the others they begin.
    events: Vec<(Kind, f64)>,
    story: String,
    lists: Vec<List>,
}

/// A list in which the rule was broken.
struct List {
    /// Lists that were tried until then.
    runs: usize,
    kept: Vec<usize>,
}

fn record() -> Result<Shrunk> {
    let make: Box<Make<'_>> = Box::new(|slab, prefixes, limits| Planted::subject(Some(BUG), slab, prefixes, limits));
    let failed = search(&make, 0..1000, STEPS, || {}).err().with_context(|| format!("{} passes", BUG.name()))?;
    let case = Case::of_seed(failed.seed, STEPS);
    let (setup, rule) = (case.setup, failed.failure.violation.rule);
    let events = &case.events[..failed.events];
    let mut frames = vec![List { runs: 0, kept: (0..events.len()).collect() }];
    let mut runs = 0;
    let shrunk = shrink(events, &mut |asked| {
        runs += 1;
        let broken = rule_broken(&make, setup, &asked.events) == Some(rule);
        if broken {
            frames.push(List { runs, kept: asked.places.clone() });
        }
        broken
    });
    ensure!(shrunk == failed.case.events, "the same list shrinks to the same");
    // Of lists that are hardly shorter than the one before, or only have smaller numbers, the last is enough.
    let mut shown: Vec<List> = Vec::new();
    for frame in frames {
        if let [.., before, _] = &shown[..]
            && 4 * frame.kept.len() > 3 * before.kept.len()
        {
            shown.pop();
        }
        shown.push(frame);
    }
    let failure = run(&make, &failed.case).err().context("what is left breaks no rule")?;
    let drawn = |event: &Event| match event {
        Event::Arrive { .. } => (Kind::New, 0.0),
        Event::Cancel { .. } => (Kind::Wasted, 0.0),
        Event::Take { .. } | Event::GiveBack { .. } => (Kind::Shared, 0.0),
        Event::Step => (Kind::Reused, 5.0),
    };
    Ok(Shrunk {
        seed: failed.seed,
        rule: rule.to_string(),
        events: events.iter().map(drawn).collect(),
        story: story(&make, &failed.case, &failure),
        lists: shown,
    })
}

pub fn figure() -> Result<Figure> {
    let Shrunk { seed, rule, events, story, lists } = record()?;
    let pitch = 296.0 / events.len() as f64;
    let mut figure = Figure::default();
    figure.svg.without_bands();
    figure.svg.y = 8.0;
    for (before, List { runs, kept }) in with_before(&lists) {
        let (now, gone) = (kept.len(), before.map(|before| before.kept.len() - kept.len()));
        let says = match gone {
            None => format!("<strong>{now} events</strong>, after which the rule was broken."),
            Some(0) => format!("{} with smaller numbers, after {runs} runs.", count(now, "event")),
            Some(gone) => {
                format!("{} left out: <strong>{now}</strong> remain, after {runs} runs.", count(gone, "event"))
            }
        };
        figure.step(says, |svg| {
            for place in kept {
                let (kind, top) = events[*place];
                let (x, width) = (2.0 + *place as f64 * pitch, (pitch - 0.8).max(1.2));
                svg.cell(Area { x, y: svg.y + top, width, height: 14.0 - top }, &cell(kind, ""));
            }
            let smaller = if gone == Some(0) { "*" } else { "" };
            svg.text(WIDTH - 2.0, svg.y + 13.0, Anchor::End, &format!("{now}{smaller}"));
        });
        figure.svg.y += 20.0;
    }
    figure.svg.text(WIDTH - 2.0, figure.svg.y + 14.0, Anchor::End, "* numbers made smaller");
    figure.svg.y += 18.0;
    figure.svg.legend(&[
        (Kind::New, "a request comes"),
        (Kind::Wasted, "is cancelled"),
        (Kind::Shared, "strangers"),
        (Kind::Reused, "step"),
    ]);
    let (n, left) = (events.len(), lists[lists.len() - 1].kept.len());
    let story: Vec<String> = story.lines().map(|line| escaped(line.trim())).collect();
    figure.label = format!(
        "Lists of events, each shorter than the one above it, as strips of cells, from {n} events to {left}. In each of them the \
         rule {rule} is still broken."
    );
    figure.caption = format!(
        "<strong>A failing run of {n} events shrinks to {left}.</strong> In the case of seed {seed}, <code>{}</code> ({}) breaks the \
         rule <em>{rule}</em>. A line is a list in which that rule was broken; the number is its length. Recorded from \
         <code>shrink</code>. What is left: {}.",
        BUG.name(),
        BUG.reported(),
        joined(&story, "; ")
    );
    Ok(figure)
}
