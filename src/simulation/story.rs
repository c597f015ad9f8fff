//! A case as a story: what happens, line by line, until a rule is broken.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::serving::schedule::{ScheduledChunk, SequenceId};

use super::{Case, Event, Failure, Make, Scene, Setup, World};

/// `1 page`, `2 pages`
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `sequence 0 computes 4, sequence 1 computes 2 and catches up`; `nothing is computed`
pub fn in_words(plan: &[ScheduledChunk]) -> String {
    let chunk = |chunk: &ScheduledChunk| {
        let caught_up = if chunk.caught_up { " and catches up" } else { "" };
        format!("sequence {} computes {}{caught_up}", chunk.sequence, chunk.tokens)
    };
    match plan {
        [] => "nothing is computed".into(),
        plan => plan.iter().map(chunk).collect::<Vec<_>>().join(", "),
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setup { page_size, n_pages, limits, keeps_prefixes } = self;
        let cache = if *keeps_prefixes { "a prefix cache" } else { "no prefix cache" };
        let (pages, sequences) = (count(*n_pages, "page"), count(limits.sequences, "sequence"));
        write!(f, "{pages} of {page_size}, budget {}, at most {sequences} at a time, {cache}", limits.tokens)
    }
}

/// The story of a case: a line for each event up to the one after which the rule was broken, and what was seen then.
///
/// ```text
/// 3 pages of 4, budget 4, at most 1 sequence at a time, a prefix cache
///   sequence 0 arrives: 5 tokens, wants 1
///   step 1: sequence 0 computes 4
///   sequence 0 is cancelled
///   page 0: 2 owners, 1 known (rule: pages)
/// ```
pub fn story(make: &Make<'_>, case: &Case, failure: &Failure) -> String {
    let mut lines = format!("{}\n", case.setup);
    let stopped = write_events(make, case, failure, &mut lines).err();
    let violation = stopped.as_ref().unwrap_or(&failure.violation);
    let _ = writeln!(lines, "  {violation}");
    lines
}

fn write_events(make: &Make<'_>, case: &Case, failure: &Failure, lines: &mut String) -> Result<(), super::Violation> {
    let mut world = World::new(make, case.setup)?;
    let mut kinds: HashMap<u32, SequenceId> = HashMap::new();
    for event in case.events.iter().take(failure.event + 1) {
        write_event(&mut world, *event, &mut kinds, lines)?;
    }
    if failure.event >= case.events.len() {
        let _ = writeln!(lines, "  no more requests arrive");
        write_event(&mut world, Event::GiveBack { pages: usize::MAX }, &mut kinds, lines)?;
        let mut lines_told = 0;
        while world.steps() < failure.step {
            // The first and the last of many.
            let left = failure.step - world.steps();
            if lines_told < 6 || left <= 2 {
                write_event(&mut world, Event::Step, &mut kinds, lines)?;
            } else {
                world.apply(Event::Step)?;
                if left == 3 {
                    let _ = writeln!(lines, "  …");
                }
            }
            lines_told += 1;
        }
    }
    Ok(())
}

fn write_event(
    world: &mut World,
    event: Event,
    kinds: &mut HashMap<u32, SequenceId>,
    lines: &mut String,
) -> Result<(), super::Violation> {
    let (arrived, cancelled) =
        (world.arrived(), if let Event::Cancel { name } = event { world.id(name) } else { None });
    let begin = lines.len();
    // Written before it is done, because the scheduler might stop in the middle.
    let stopped = match event {
        Event::Step => format!("step {}: the scheduler stops", world.steps() + 1),
        Event::Arrive { prompt, max_new_tokens, .. } => {
            format!("a request arrives: {}, wants {max_new_tokens}", count(prompt, "token"))
        }
        Event::Cancel { .. } => cancelled
            .map_or("no request of that name is left to cancel".into(), |id| format!("sequence {id} is cancelled")),
        Event::Take { .. } => "strangers take pages".into(),
        Event::GiveBack { .. } => "strangers give pages back".into(),
    };
    let _ = writeln!(lines, "  {stopped}");
    let scene = world.apply(event)?;
    lines.truncate(begin);
    let ended: Vec<String> = scene.ended.iter().map(|ended| format!("sequence {} finishes", ended.id)).collect();
    let ended = if ended.is_empty() { String::new() } else { format!("; {}", ended.join(", ")) };
    let strangers = |scene: &Scene| scene.before.strangers.len().abs_diff(scene.after.strangers.len());
    let line = match event {
        Event::Arrive { alike, prompt, max_new_tokens, .. } => {
            let tokens = count(prompt, "token");
            match scene.after.alive.iter().find(|id| !scene.before.alive.contains(id)) {
                _ if world.arrived() == arrived => {
                    format!("a request of {tokens} arrives, wants {max_new_tokens}, and is turned away")
                }
                None => format!("a request of {tokens} arrives, wants none{ended}"),
                Some(id) => {
                    let first = *kinds.entry(alike).or_insert(*id);
                    let like = if first == *id { String::new() } else { format!(", beginning like sequence {first}") };
                    format!("sequence {id} arrives: {tokens}{like}, wants {max_new_tokens}")
                }
            }
        }
        Event::Cancel { .. } => match cancelled {
            Some(id) => format!("sequence {id} is cancelled"),
            None => "a request is cancelled that is not there".into(),
        },
        Event::Take { .. } => format!("strangers take {}", count(strangers(&scene), "page")),
        Event::GiveBack { .. } if strangers(&scene) == 0 => return Ok(()),
        Event::GiveBack { .. } => format!("strangers give back {}", count(strangers(&scene), "page")),
        Event::Step => {
            let planned = scene.planned.as_ref();
            let plan = planned.map_or_else(String::new, |planned| in_words(&planned.chunks));
            let before = scene.before.running.iter().map(|sequence| sequence.id);
            let runs = |id: &SequenceId| {
                planned.is_some_and(|planned| planned.seen.running.iter().any(|sequence| sequence.id == *id))
            };
            let gone: Vec<String> =
                before.filter(|id| !runs(id)).map(|id| format!("; sequence {id} is preempted")).collect();
            format!("step {}: {plan}{}{ended}", world.steps(), gone.concat())
        }
    };
    let _ = writeln!(lines, "  {line}");
    Ok(())
}
