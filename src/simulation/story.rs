//! A case as a story: what happens, line by line, until a rule is broken.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::schedule::{TextId, Turn};

use super::{Case, Event, Failure, Make, Scene, Setup, World};

/// `1 page`, `2 pages`
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `text 0 reads 4, text 1 reads 2 and is ready`; `nobody reads`
pub fn told(turns: &[Turn]) -> String {
    let turn = |turn: &Turn| {
        let ready = if turn.is_last { " and is ready" } else { "" };
        format!("text {} reads {}{ready}", turn.text, turn.tokens)
    };
    match turns {
        [] => "nobody reads".into(),
        turns => turns.iter().map(turn).collect::<Vec<_>>().join(", "),
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setup { page_size, n_pages, limits, keeps_prefixes } = self;
        let cache = if *keeps_prefixes { "a prefix cache" } else { "no prefix cache" };
        let (pages, texts) = (count(*n_pages, "page"), count(limits.texts, "text"));
        write!(f, "{pages} of {page_size}, budget {}, at most {texts} at a time, {cache}", limits.tokens)
    }
}

/// The story of a case: a line for each event up to the one after which the rule was broken, and what was seen then.
///
/// ```text
/// 3 pages of 4, budget 4, at most 1 text at a time, a prefix cache
///   text 0 comes: 5 tokens, wants 1
///   step 1: text 0 reads 4
///   text 0 is cancelled
///   owners of page 0: 2; seen to have it: 1 (rule: pages)
/// ```
pub fn story(make: &Make<'_>, case: &Case, failure: &Failure) -> String {
    let mut lines = format!("{}\n", case.setup);
    let stopped = tell(make, case, failure, &mut lines).err();
    let violation = stopped.as_ref().unwrap_or(&failure.violation);
    let _ = writeln!(lines, "  {violation}");
    lines
}

fn tell(make: &Make<'_>, case: &Case, failure: &Failure, lines: &mut String) -> Result<(), super::Violation> {
    let mut world = World::new(make, case.setup)?;
    let mut kinds: HashMap<u32, TextId> = HashMap::new();
    for event in case.events.iter().take(failure.event + 1) {
        tell_event(&mut world, *event, &mut kinds, lines)?;
    }
    if failure.event >= case.events.len() {
        let _ = writeln!(lines, "  nobody else comes");
        tell_event(&mut world, Event::GiveBack { pages: usize::MAX }, &mut kinds, lines)?;
        let mut told = 0;
        while world.steps() < failure.step {
            // The first and the last of many.
            let left = failure.step - world.steps();
            if told < 6 || left <= 2 {
                tell_event(&mut world, Event::Step, &mut kinds, lines)?;
            } else {
                world.apply(Event::Step)?;
                if left == 3 {
                    let _ = writeln!(lines, "  …");
                }
            }
            told += 1;
        }
    }
    Ok(())
}

fn tell_event(
    world: &mut World,
    event: Event,
    kinds: &mut HashMap<u32, TextId>,
    lines: &mut String,
) -> Result<(), super::Violation> {
    let (came, cancelled) = (world.texts(), if let Event::Cancel { name } = event { world.id(name) } else { None });
    let begin = lines.len();
    // Told before it is done: the scheduler may stop in the middle.
    let stopped = match event {
        Event::Step => format!("step {}: the scheduler stops", world.steps() + 1),
        Event::Arrive { prompt, max_new_tokens, .. } => {
            format!("a text comes: {}, wants {max_new_tokens}", count(prompt, "token"))
        }
        Event::Cancel { .. } => cancelled.map_or("nobody is cancelled".into(), |id| format!("text {id} is cancelled")),
        Event::Take { .. } => "strangers take pages".into(),
        Event::GiveBack { .. } => "strangers give pages back".into(),
    };
    let _ = writeln!(lines, "  {stopped}");
    let scene = world.apply(event)?;
    lines.truncate(begin);
    let ended: Vec<String> = scene.ended.iter().map(|ended| format!("text {} ends", ended.id)).collect();
    let ended = if ended.is_empty() { String::new() } else { format!("; {}", ended.join(", ")) };
    let strangers = |scene: &Scene| scene.before.strangers.len().abs_diff(scene.after.strangers.len());
    let line = match event {
        Event::Arrive { alike, prompt, max_new_tokens, .. } => {
            let tokens = count(prompt, "token");
            match scene.after.alive.iter().find(|id| !scene.before.alive.contains(id)) {
                _ if world.texts() == came => {
                    format!("a text of {tokens} comes, wants {max_new_tokens}, and is not let in")
                }
                None => format!("a text of {tokens} comes, wants none{ended}"),
                Some(id) => {
                    let first = *kinds.entry(alike).or_insert(*id);
                    let like = if first == *id { String::new() } else { format!(", beginning like text {first}") };
                    format!("text {id} comes: {tokens}{like}, wants {max_new_tokens}")
                }
            }
        }
        Event::Cancel { .. } => match cancelled {
            Some(id) => format!("text {id} is cancelled"),
            None => "somebody is cancelled who is not there".into(),
        },
        Event::Take { .. } => format!("strangers take {}", count(strangers(&scene), "page")),
        Event::GiveBack { .. } if strangers(&scene) == 0 => return Ok(()),
        Event::GiveBack { .. } => format!("strangers give back {}", count(strangers(&scene), "page")),
        Event::Step => {
            let planned = scene.planned.as_ref();
            let reads = planned.map_or_else(String::new, |planned| told(&planned.turns));
            let before = scene.before.running.iter().map(|text| text.id);
            let runs = |id: &TextId| planned.is_some_and(|planned| planned.seen.running.iter().any(|t| t.id == *id));
            let gone: Vec<String> = before.filter(|id| !runs(id)).map(|id| format!("; text {id} has to go")).collect();
            format!("step {}: {reads}{}{ended}", world.steps(), gone.concat())
        }
    };
    let _ = writeln!(lines, "  {line}");
    Ok(())
}
