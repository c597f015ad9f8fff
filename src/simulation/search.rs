//! Tries seeds until a rule is broken.

use super::{Case, Event, Failure, Rule, SchedulerFactory, Setup};
use crate::chapters::ch15_simulation::{run, shrink};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub seeds: u64,
    pub steps: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    pub seed: u64,
    pub failure: Failure,
    /// Events of the case, up to the one after which it was seen.
    pub events: usize,
    /// The same rule broken in fewer and smaller events.
    pub case: Case,
    pub shrunk: Failure,
    /// Cases that were run to shrink it.
    pub runs: u64,
    pub passed: Passed,
}

/// The rule that is broken first when these events happen; `None` if all hold.
pub fn rule_broken(factory: &SchedulerFactory<'_>, setup: Setup, events: &[Event]) -> Option<Rule> {
    let case = Case { setup, events: events.to_vec() };
    run(factory, &case).err().map(|failure| failure.violation.rule)
}

/// Runs the case of each seed by chapter 15, and shrinks the first that breaks a rule. `on_run` is called for each run.
///
/// # Errors
/// What was found. The same seed finds the same.
pub fn search(
    factory: &SchedulerFactory<'_>,
    seeds: impl IntoIterator<Item = u64>,
    steps: u64,
    mut on_run: impl FnMut(),
) -> Result<Passed, Box<Counterexample>> {
    let mut passed = Passed::default();
    for seed in seeds {
        on_run();
        let case = Case::from_seed(seed, steps);
        match run(factory, &case) {
            Ok(made) => {
                passed.seeds += 1;
                passed.steps += made;
            }
            Err(failure) => return Err(Box::new(found(factory, seed, &case, failure, passed, on_run))),
        }
    }
    Ok(passed)
}

fn found(
    factory: &SchedulerFactory<'_>,
    seed: u64,
    case: &Case,
    failure: Failure,
    passed: Passed,
    mut on_run: impl FnMut(),
) -> Counterexample {
    let (setup, rule) = (case.setup, failure.violation.rule);
    // What comes after it changes nothing.
    let until = (failure.event + 1).min(case.events.len());
    let mut runs = 0;
    let events = shrink(&case.events[..until], &mut |candidate| {
        runs += 1;
        on_run();
        rule_broken(factory, setup, &candidate.events) == Some(rule)
    });
    let case = Case { setup, events };
    // A shrinking that goes wrong leaves the case as it was found.
    let shrunk = run(factory, &case).err().unwrap_or_else(|| failure.clone());
    Counterexample { seed, failure, events: until, case, shrunk, runs, passed }
}
