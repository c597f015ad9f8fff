//! A handful of cases as one writes them by hand, and a look at what comes out in the end. They aren't enough:
//! all [schedulers with a bug](super::buggy_scheduler) pass.

use crate::serving::schedule::{FinishReason, StepLimits};

use super::{Case, Event, FinishedRequest, SchedulerFactory, Setup, Violation, World, run_alone};

/// What a user and an operator see. No rule is checked on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub steps: u64,
    pub ended: u64,
    /// Sequences that have ended with another output than alone.
    pub wrong: u64,
    pub left: usize,
    /// Pages with an owner that is neither a sequence, nor the prefix cache, nor a stranger. They never come back.
    pub lost: usize,
}

impl Outcome {
    fn note(&mut self, ended: &FinishedRequest) {
        self.ended += 1;
        let (output, _) = run_alone(&ended.prompt, ended.max_new_tokens);
        let right = match ended.reason {
            FinishReason::Abort => output.starts_with(&ended.received),
            _ => output == ended.received,
        };
        self.wrong += u64::from(!right);
    }
}

/// A case without rules. `after` is called after each step.
pub fn replay(
    factory: &SchedulerFactory<'_>,
    case: &Case,
    mut after: impl FnMut(&Outcome),
) -> Result<Outcome, Violation> {
    let mut world = World::new(factory, case.setup)?;
    let mut outcome = Outcome::default();
    for event in &case.events {
        let transition = world.apply(*event)?;
        transition.finished.iter().for_each(|ended| outcome.note(ended));
        let state = &transition.after;
        let tables = state.running.iter().flat_map(|sequence| &sequence.pages);
        let mut known = vec![0; state.owners.len()];
        for page in tables.chain(&state.cached).chain(&state.strangers) {
            // A wrong scheduler can have a page that the pool does not have.
            known.get_mut(page.index()).into_iter().for_each(|known| *known += 1);
        }
        outcome.lost = state.owners.iter().zip(&known).filter(|(owners, known)| owners > known).count();
        outcome.left = state.alive.len();
        outcome.steps = world.steps();
        if *event == Event::Step {
            after(&outcome);
        }
    }
    Ok(outcome)
}

/// An ordinary server's day: 100 pages of 4, prompts of 1 to 30 tokens, few cancellations, and room enough.
pub fn day(steps: u64) -> Case {
    let setup = Setup {
        page_size: 4,
        n_pages: 100,
        limits: StepLimits { token_budget: 8, max_running: 4 },
        keeps_prefixes: true,
    };
    let mut events = Vec::new();
    for step in 0..steps {
        // Numbers that look drawn, and are the same everywhere.
        let drawn = (step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        if step.is_multiple_of(4) {
            let (name, prefix_id) = (step as u32, (drawn % 17) as u32);
            events.push(Event::Arrive { name, prefix_id, prompt: 1 + drawn % 30, max_new_tokens: 1 + drawn / 32 % 4 });
        }
        events.push(Event::Step);
        if step % 24 == 20 {
            events.push(Event::Cancel { name: step as u32 });
        }
    }
    Case { setup, events }
}

/// The examples, each with its name.
pub fn all() -> Vec<(&'static str, Case)> {
    let arrive = |name, prefix_id, prompt, max_new_tokens| Event::Arrive { name, prefix_id, prompt, max_new_tokens };
    let cancel = |name| Event::Cancel { name };
    let steps = |n: usize| vec![Event::Step; n];
    let case = |n_pages, token_budget, max_running, events: Vec<Vec<Event>>| Case {
        setup: Setup { page_size: 4, n_pages, limits: StepLimits { token_budget, max_running }, keeps_prefixes: true },
        events: events.concat(),
    };
    vec![
        ("one sequence", case(6, 16, 4, vec![vec![arrive(1, 0, 5, 4)], steps(10)])),
        ("a prompt in chunks", case(6, 4, 4, vec![vec![arrive(1, 0, 15, 3)], steps(10)])),
        (
            "three sequences share the budget",
            case(12, 8, 4, vec![vec![arrive(1, 0, 6, 3), arrive(2, 1, 7, 3), arrive(3, 2, 2, 3)], steps(12)]),
        ),
        (
            "the next starts when one finishes",
            case(12, 8, 1, vec![vec![arrive(1, 0, 5, 2), arrive(2, 1, 5, 2)], steps(10)]),
        ),
        (
            "a prompt is found in the prefix cache",
            case(12, 8, 4, vec![vec![arrive(1, 0, 9, 2)], steps(6), vec![arrive(2, 0, 11, 2)], steps(6)]),
        ),
        ("one waits for pages", case(5, 16, 4, vec![vec![arrive(1, 0, 8, 3), arrive(2, 1, 9, 3)], steps(16)])),
        (
            "one is preempted, and resumes",
            case(6, 16, 4, vec![vec![arrive(1, 0, 11, 5), arrive(2, 1, 9, 5)], steps(24)]),
        ),
        (
            "a waiting one is cancelled",
            case(6, 8, 1, vec![vec![arrive(1, 0, 5, 3), arrive(2, 1, 5, 3)], steps(2), vec![cancel(2)], steps(8)]),
        ),
        (
            "a running one is cancelled",
            case(6, 8, 4, vec![vec![arrive(1, 0, 5, 6)], steps(2), vec![cancel(1)], steps(2)]),
        ),
    ]
}

/// Number of [examples](all) that come out right: every output as it is alone, no sequence left, no page lost.
pub fn pass(factory: &SchedulerFactory<'_>) -> Result<usize, String> {
    let examples = all();
    for (name, case) in &examples {
        let outcome = replay(factory, case, |_| {}).map_err(|violation| format!("{name}: {violation}"))?;
        let Outcome { wrong, left, lost, .. } = outcome;
        if (wrong, left, lost) != (0, 0, 0) {
            return Err(format!("{name}: {wrong} sequences wrong, {left} not finished, {lost} pages lost"));
        }
    }
    Ok(examples.len())
}
