//! Cases drawn by a seed, and events made smaller.

use crate::dice::Dice;
use crate::serving::schedule::StepLimits;

use super::{Case, Event, Setup};

impl Case {
    /// A case of `steps` steps, drawn by a seed: a small world in which pages are nearly always short.
    ///
    /// The first steps of a longer case are those of a shorter one of the same seed.
    pub fn from_seed(seed: u64, steps: u64) -> Case {
        let mut dice = Dice::new(seed);
        let setup = Setup {
            page_size: dice.roll(1, 4),
            n_pages: dice.roll(3, 12),
            limits: StepLimits { token_budget: dice.roll(1, 10), max_running: dice.roll(1, 4) },
            keeps_prefixes: dice.roll(0, 3) > 0,
        };
        let (mut events, mut made, mut names) = (Vec::new(), 0, 0);
        while made < steps {
            let event = match dice.roll(1, 100) {
                1..=28 => {
                    names += 1;
                    arrival(&mut dice, setup, names)
                }
                29..=33 => Event::Cancel { name: dice.roll(names.saturating_sub(8) as usize, names as usize) as u32 },
                34..=37 => Event::Take { pages: dice.roll(1, setup.n_pages.div_ceil(3)) },
                38..=45 => Event::GiveBack { pages: dice.roll(1, setup.n_pages) },
                _ => {
                    made += 1;
                    Event::Step
                }
            };
            events.push(event);
        }
        Case { setup, events }
    }
}

fn arrival(dice: &mut Dice, setup: Setup, name: u32) -> Event {
    let Setup { page_size, n_pages, .. } = setup;
    let slots = page_size * n_pages;
    // Now and then one that fills the pool, or is too long for it.
    let (longest, most) = if dice.roll(1, 8) == 1 { (slots + 2, 12) } else { (2 * page_size + 2, 10) };
    let (prefix_id, prompt) = (dice.roll(0, 2) as u32, dice.roll(1, longest));
    Event::Arrive { name, prefix_id, prompt, max_new_tokens: dice.roll(0, most) }
}

/// Events like this one with a smaller number in one place, the smallest first. None for a step or a cancellation.
///
/// A prompt of 9 tokens: 1, 4 and 8 tokens instead.
pub fn smaller(event: Event) -> Vec<Event> {
    match event {
        Event::Arrive { name, prefix_id, prompt, max_new_tokens } => {
            let arrive = |prefix_id, prompt, max_new_tokens| Event::Arrive { name, prefix_id, prompt, max_new_tokens };
            let prompts = below(prompt, 1).into_iter().map(|prompt| arrive(prefix_id, prompt, max_new_tokens));
            let limits = below(max_new_tokens, 0).into_iter().map(|most| arrive(prefix_id, prompt, most));
            let kinds = below(prefix_id as usize, 0).into_iter().map(|id| arrive(id as u32, prompt, max_new_tokens));
            prompts.chain(limits).chain(kinds).collect()
        }
        Event::Take { pages } => below(pages, 1).into_iter().map(|pages| Event::Take { pages }).collect(),
        Event::GiveBack { pages } => below(pages, 1).into_iter().map(|pages| Event::GiveBack { pages }).collect(),
        Event::Cancel { .. } | Event::Step => Vec::new(),
    }
}

/// The least, the half and one less: those that are below `number`, each once.
fn below(number: usize, least: usize) -> Vec<usize> {
    let mut numbers = vec![least, (number / 2).max(least), number.saturating_sub(1).max(least)];
    numbers.dedup();
    numbers.retain(|smaller| *smaller < number);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_events_are_smaller_and_end() {
        let arrive = Event::Arrive { name: 3, prefix_id: 1, prompt: 9, max_new_tokens: 2 };
        let with = |prefix_id, prompt, max_new_tokens| Event::Arrive { name: 3, prefix_id, prompt, max_new_tokens };
        let expected = [with(1, 1, 2), with(1, 4, 2), with(1, 8, 2), with(1, 9, 0), with(1, 9, 1), with(0, 9, 2)];
        assert_eq!(smaller(arrive), expected);
        let least = Event::Arrive { name: 3, prefix_id: 0, prompt: 1, max_new_tokens: 0 };
        for event in
            [least, Event::Take { pages: 1 }, Event::GiveBack { pages: 1 }, Event::Step, Event::Cancel { name: 9 }]
        {
            assert_eq!(smaller(event), [], "{event:?}");
        }
        assert_eq!(smaller(Event::Take { pages: 2 }), [Event::Take { pages: 1 }]);
    }
}
