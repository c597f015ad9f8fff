//! Chapter 15: a case shrinks. A line for each list of events in which the rule was still broken.

use page_by_page::chapters::ch15_simulation::{run, shrink};
use page_by_page::simulation::buggy_scheduler::{Bug, with_bug};
use page_by_page::simulation::{Case, Event, Rule, SchedulerFactory, Setup, rule_broken, search};

use super::prelude::*;

const BUG: Bug = Bug::CancelLeaks;
const STEPS: u64 = 100;
/// What an event is, the letter of its colour, and how far below the others it begins.
const KINDS: [(&str, char, f64); 4] = [
    ("a request arrives", 'a', 0.0),
    ("is cancelled", 'd', 0.0),
    ("strangers take or return pages", 'c', 0.0),
    ("a step", 'b', 6.0),
];

/// A list in which the rule was broken: how many lists were tried until then, and which events it has.
type List = (usize, Vec<usize>);

/// What is left when the events of a case are shrunk, and the lists to show on the way there.
fn shrunk(factory: &SchedulerFactory, setup: Setup, rule: Rule, events: &[Event]) -> (Vec<Event>, Vec<List>) {
    let mut lists: Vec<List> = vec![(0, (0..events.len()).collect())];
    let mut runs = 0;
    let left = shrink(events, &mut |asked| {
        runs += 1;
        let broken = rule_broken(factory, setup, &asked.events) == Some(rule);
        if broken {
            // Of lists that are hardly shorter than the one before, or only have smaller numbers, the last is enough.
            if let [.., (_, before), _] = &lists[..]
                && 4 * asked.indices.len() > 3 * before.len()
            {
                lists.pop();
            }
            lists.push((runs, asked.indices.clone()));
        }
        broken
    });
    (left, lists)
}

/// The kind of an event, as a place in [`KINDS`].
fn kind(event: &Event) -> usize {
    match event {
        Event::Arrive { .. } => 0,
        Event::Cancel { .. } => 1,
        Event::Take { .. } | Event::GiveBack { .. } => 2,
        Event::Step => 3,
    }
}

pub fn figure() -> Result<Figure> {
    let factory = with_bug(Some(BUG));
    let failed = search(&factory, 0..1000, STEPS, || {}).err().with_context(|| format!("{} passes", BUG.name()))?;
    let (seed, rule) = (failed.seed, failed.failure.violation.rule);
    let case = Case::from_seed(seed, STEPS);
    let events = &case.events[..failed.events];
    let (left, lists) = shrunk(&factory, case.setup, rule, events);
    ensure!(left == failed.case.events, "the same list shrinks to the same");
    ensure!(run(&factory, &failed.case).is_err(), "what is left breaks no rule");
    let bug = BUG.name();
    let (n, left) = (events.len(), left.len());
    let figure = Figure {
        label: format!(
            "Lists of events as strips, from {n} events to {left}. In each of them the rule {rule} is still broken."
        ),
        headline: format!("A failing run of {n} events shrinks to {left}."),
        setup: format!(
            "With the planted bug <code>{bug}</code>, seed {seed} breaks the rule <em>{rule}</em>. Each line is a list \
             that still breaks it, shorter or with smaller numbers."
        ),
        legend: KINDS.iter().map(|(text, letter, _)| (held(*letter, ""), *text)).collect(),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.heading("lists that break the rule", "events, runs so far");
        let (strip, height) = (picture.width - 76.0, 16.0);
        let pitch = strip / n as f64;
        for (runs, kept) in &lists {
            for (kind, (_, letter, top)) in KINDS.iter().enumerate() {
                let event = |place: &usize| {
                    let (x, y, width) = (picture.left + *place as f64 * pitch, picture.y + top, (pitch - 0.8).max(1.6));
                    format!("M{x:.1} {y:.1}h{width:.1}v{:.1}h-{width:.1}z", height - top)
                };
                let strip: String =
                    kept.iter().filter(|place| self::kind(&events[**place]) == kind).map(event).collect();
                if !strip.is_empty() {
                    picture.path(format!("fill o{}", *letter as usize - 'a' as usize), strip);
                }
            }
            picture.bold(picture.right() - 42.0, picture.y + 13.0, Anchor::End, kept.len());
            picture.text(picture.right(), picture.y + 13.0, Anchor::End, runs);
            picture.y += 23.0;
        }
    }))
}
