//! What happens in a case, line by line, until a rule is broken.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::english::plural;
use crate::serving::schedule::{ScheduledChunk, SequenceId};

use super::{Case, Event, Failure, SchedulerFactory, Setup, Transition, Violation, World};

/// `sequence 0 computes 4, sequence 1 computes 2 and catches up`; `nothing is computed`
pub fn describe_plan(plan: &[ScheduledChunk]) -> String {
    let chunk = |chunk: &ScheduledChunk| {
        let caught_up = if chunk.caught_up { " and catches up" } else { "" };
        format!("sequence {} computes {}{caught_up}", chunk.sequence_id, chunk.n_tokens)
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
        let (pages, sequences) = (plural(*n_pages, "page"), plural(limits.max_running, "sequence"));
        write!(f, "{pages} of {page_size}, budget {}, at most {sequences} at a time, {cache}", limits.token_budget)
    }
}

/// A line for each event up to the one after which the rule was broken, and what was seen then.
///
/// ```text
/// 3 pages of 4, budget 4, at most 1 sequence at a time, a prefix cache
///   sequence 0 arrives: 5 tokens, wants 1
///   step 1: sequence 0 computes 4
///   sequence 0 is cancelled
///   page 0: 2 owners, 1 known (rule: pages)
/// ```
pub fn event_log(factory: &SchedulerFactory<'_>, case: &Case, failure: &Failure) -> String {
    let mut lines = format!("{}\n", case.setup);
    let stopped = write_events(factory, case, failure, &mut lines).err();
    let violation = stopped.as_ref().unwrap_or(&failure.violation);
    let _ = writeln!(lines, "  {violation}");
    lines
}

fn write_events(
    factory: &SchedulerFactory<'_>,
    case: &Case,
    failure: &Failure,
    lines: &mut String,
) -> Result<(), Violation> {
    let mut world = World::new(factory, case.setup)?;
    let mut first_alike = HashMap::new();
    for event in case.events.iter().take(failure.event + 1) {
        write_event(&mut world, *event, &mut first_alike, lines)?;
    }
    if failure.event >= case.events.len() {
        let _ = writeln!(lines, "  no more requests arrive");
        write_event(&mut world, Event::GiveBack { pages: usize::MAX }, &mut first_alike, lines)?;
        let mut n_steps = 0;
        while world.steps() < failure.step {
            // The first and the last of many.
            let left = failure.step - world.steps();
            if n_steps < 6 || left <= 2 {
                write_event(&mut world, Event::Step, &mut first_alike, lines)?;
            } else {
                world.apply(Event::Step)?;
                if left == 3 {
                    let _ = writeln!(lines, "  …");
                }
            }
            n_steps += 1;
        }
    }
    Ok(())
}

/// `first_alike`: for each kind of prompt, the first sequence that has it.
fn write_event(
    world: &mut World,
    event: Event,
    first_alike: &mut HashMap<u32, SequenceId>,
    lines: &mut String,
) -> Result<(), Violation> {
    let arrived = world.arrived();
    let cancelled = if let Event::Cancel { name } = event { world.id(name) } else { None };
    let stopped = if_stopped(world, event, cancelled);
    let transition = world.apply(event).inspect_err(|_| *lines += &format!("  {stopped}\n"))?;
    let strangers = transition.before.strangers.len().abs_diff(transition.after.strangers.len());
    let line = match event {
        Event::Arrive { prompt, max_new_tokens, .. } if world.arrived() == arrived => {
            format!("a request of {} arrives, wants {max_new_tokens}, and is turned away", plural(prompt, "token"))
        }
        Event::Arrive { prefix_id, prompt, max_new_tokens, .. } => {
            let tokens = plural(prompt, "token");
            match transition.after.alive.iter().find(|id| !transition.before.alive.contains(id)) {
                None => format!("a request of {tokens} arrives, wants none{}", finishes(&transition)),
                Some(id) => {
                    let first = *first_alike.entry(prefix_id).or_insert(*id);
                    let like = if first == *id { String::new() } else { format!(", beginning like sequence {first}") };
                    format!("sequence {id} arrives: {tokens}{like}, wants {max_new_tokens}")
                }
            }
        }
        Event::Cancel { .. } => match cancelled {
            Some(id) => format!("sequence {id} is cancelled"),
            None => "a request is cancelled that is not there".into(),
        },
        Event::Take { .. } => format!("strangers take {}", plural(strangers, "page")),
        Event::GiveBack { .. } if strangers == 0 => return Ok(()),
        Event::GiveBack { .. } => format!("strangers give back {}", plural(strangers, "page")),
        Event::Step => format!("step {}: {}{}", world.steps(), describe_step(&transition), finishes(&transition)),
    };
    let _ = writeln!(lines, "  {line}");
    Ok(())
}

/// The line of an event in which the scheduler stops.
fn if_stopped(world: &World, event: Event, cancelled: Option<SequenceId>) -> String {
    match event {
        Event::Step => format!("step {}: the scheduler stops", world.steps() + 1),
        Event::Arrive { prompt, max_new_tokens, .. } => {
            format!("a request arrives: {}, wants {max_new_tokens}", plural(prompt, "token"))
        }
        Event::Cancel { .. } => cancelled
            .map_or("no request of that name is left to cancel".into(), |id| format!("sequence {id} is cancelled")),
        Event::Take { .. } => "strangers take pages".into(),
        Event::GiveBack { .. } => "strangers give pages back".into(),
    }
}

/// `; sequence 0 finishes, sequence 2 finishes`
fn finishes(transition: &Transition) -> String {
    let finishes: Vec<_> = transition.finished.iter().map(|it| format!("sequence {} finishes", it.id)).collect();
    if finishes.is_empty() { String::new() } else { format!("; {}", finishes.join(", ")) }
}

/// `sequence 0 computes 4; sequence 1 is preempted`
fn describe_step(transition: &Transition) -> String {
    let Some(planned) = &transition.planned else { return String::new() };
    let preempted = transition.before.running.iter().filter(|it| planned.state.find_running(it.id).is_none());
    let preempted: String = preempted.map(|sequence| format!("; sequence {} is preempted", sequence.id)).collect();
    describe_plan(&planned.chunks) + &preempted
}
