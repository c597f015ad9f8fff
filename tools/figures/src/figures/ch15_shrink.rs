//! Chapter 15: a case shrinks. A line for each list of events in which the rule was still broken.

use anyhow::{Result, ensure};
use page_by_page::chapters::ch15_simulation::{run, shrink};
use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{Case, Event, Make, rule_broken, search, story};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::svg::{Anchor, Area, Kind, Svg, escaped, rounded};

/// The scheduler that is wrong.
const BUG: Bug = Bug::CancelLeaks;
const STEPS: u64 = 100;
/// More lines are no picture.
const MOST_LINES: usize = 16;

#[derive(Serialize)]
pub struct Trace {
    bug: &'static str,
    reported: &'static str,
    seed: u64,
    rule: String,
    /// The events of the case.
    events: Vec<What>,
    story: String,
    frames: Vec<Frame>,
}

/// What an event is.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Arrive,
    Cancel,
    Strangers,
    Step,
}

/// A list in which the rule was broken.
#[derive(Serialize)]
struct Frame {
    /// Lists that were tried until then.
    runs: usize,
    /// The places of its events in the case.
    kept: Vec<usize>,
    /// Events whose numbers have been made smaller.
    smaller: bool,
}

pub fn record() -> Result<Trace> {
    let make: Box<Make<'_>> = Box::new(|slab, prefixes, limits| Planted::subject(Some(BUG), slab, prefixes, limits));
    let found = search(&make, 0..1000, STEPS, || {});
    let Err(found) = found else { anyhow::bail!("{} passes", BUG.name()) };
    let case = Case::of_seed(found.seed, STEPS);
    let (setup, rule) = (case.setup, found.failure.violation.rule);
    let events = &case.events[..found.events];
    let mut frames = vec![Frame { runs: 0, kept: (0..events.len()).collect(), smaller: false }];
    let mut runs = 0;
    let shrunk = shrink(events, &mut |asked| {
        runs += 1;
        let broken = rule_broken(&make, setup, &asked.events) == Some(rule);
        if broken {
            frames.push(Frame { runs, kept: asked.places.clone(), smaller: false });
        }
        broken
    });
    ensure!(shrunk == found.case.events, "the same list shrinks to the same");
    // Lists that are hardly shorter than the one before, or only smaller: the last of a row of them tells them all.
    let mut told: Vec<Frame> = Vec::new();
    for frame in frames {
        if let [.., before, _] = &told[..]
            && 4 * frame.kept.len() > 3 * before.kept.len()
        {
            told.pop();
        }
        told.push(frame);
    }
    for place in 1..told.len() {
        told[place].smaller = told[place].kept.len() == told[place - 1].kept.len();
    }
    ensure!(told.len() <= MOST_LINES, "{} lines, and the figure has room for {MOST_LINES}", told.len());
    let failure = run(&make, &found.case).err();
    let Some(failure) = failure else { anyhow::bail!("what is left breaks no rule") };
    Ok(Trace {
        bug: BUG.name(),
        reported: BUG.reported(),
        seed: found.seed,
        rule: rule.to_string(),
        events: events.iter().map(what).collect(),
        story: story(&make, &found.case, &failure),
        frames: told,
    })
}

fn what(event: &Event) -> What {
    match event {
        Event::Arrive { .. } => What::Arrive,
        Event::Cancel { .. } => What::Cancel,
        Event::Take { .. } | Event::GiveBack { .. } => What::Strangers,
        Event::Step => What::Step,
    }
}

const LEFT: f64 = 2.0;
const TOP: f64 = 8.0;
const LINE: f64 = 20.0;
const STRIP: f64 = 296.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { bug, reported, seed, rule, events, story, frames } = trace;
    let pitch = STRIP / events.len() as f64;
    let bottom = TOP + frames.len() as f64 * LINE + 6.0;
    let mut svg = Svg::new(bottom + 50.0);
    svg.without_bands();
    for (step, frame) in frames.iter().enumerate() {
        let y = TOP + step as f64 * LINE;
        svg.step(step, |svg| {
            for place in &frame.kept {
                let x = rounded(LEFT + *place as f64 * pitch);
                let width = rounded((pitch - 0.8).max(1.2));
                let (kind, top, height) = match events[*place] {
                    What::Arrive => (Kind::New, 0.0, 14.0),
                    What::Cancel => (Kind::Wasted, 0.0, 14.0),
                    What::Strangers => (Kind::Shared, 0.0, 14.0),
                    What::Step => (Kind::Reused, 5.0, 9.0),
                };
                svg.cell(kind, Area { x, y: y + top, width, height }, "", "");
            }
            let sign = if frame.smaller { "*" } else { "" };
            svg.text(358.0, y + 13.0, Anchor::End, &format!("{}{sign}", frame.kept.len()));
        });
    }
    svg.legend(Kind::New, 0.0, bottom + 8.0, "text comes");
    svg.legend(Kind::Wasted, 112.0, bottom + 8.0, "cancelled");
    svg.legend(Kind::Shared, 214.0, bottom + 8.0, "strangers");
    svg.legend(Kind::Reused, 0.0, bottom + 32.0, "step");
    svg.text(112.0, bottom + 40.0, Anchor::Start, "* numbers made smaller");
    let left = frames.last().map_or(0, |frame| frame.kept.len());
    let counts: Vec<String> = frames.iter().map(|frame| frame.kept.len().to_string()).collect();
    Drawing {
        svg,
        label: format!(
            "Lists of events, each shorter than the one above it, as strips of cells: {} events. In each of them the rule \
             {rule} is still broken.",
            counts.join(", ")
        ),
        caption: format!(
            "The case of seed {seed}, in which <code>{bug}</code> ({reported}) breaks the rule <em>{rule}</em>, shrinks from {} \
             events to {left}. A line is a list in which that rule was broken; the number is its length. Recorded from \
             <code>shrink</code>. What is left: {}",
            events.len(),
            told(story)
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// The story on one line.
fn told(story: &str) -> String {
    let lines: Vec<String> = story.lines().map(|line| escaped(line.trim())).collect();
    lines.join("; ") + "."
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let now = frame.kept.len();
    if step == 0 {
        return format!("<strong>{now} events</strong>, after which the rule was broken.");
    }
    let before = frames[step - 1].kept.len();
    match before - now {
        0 => format!("{now} events with smaller numbers, after {} runs.", frame.runs),
        1 => format!("One is left out: <strong>{now}</strong>, after {} runs.", frame.runs),
        gone => format!("{gone} are left out: <strong>{now}</strong>, after {} runs.", frame.runs),
    }
}
