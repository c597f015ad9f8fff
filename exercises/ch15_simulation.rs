//! Chapter 15: break the scheduler, with rules that are checked after every event.
//!
//! A seed draws a world and the events in it. Requests arrive, are cancelled and finish, and
//! strangers take pages and give them back. When a rule is broken, events are left out as long as
//! the same rule is still broken, until the rest reads like a story.
//!
//! ```text
//!   seed 15   115 events   ✗ pages      the rule that is broken
//!              58          ✗ pages      without the first half: go on with that
//!             ...
//!               3          ✗ pages      none of the three can be left out
//! ```
//!
//! Check your work with `cargo test --features solution --test ch15_simulation`.

use crate::serving::schedule::{FinishReason, ScheduledChunk, SequenceId};
use crate::simulation::{
    Candidate, Case, Event, Failure, FinishedRequest, PlannedStep, Rule, SchedulerFactory, SequenceState, Setup,
    Shrinking, Transition, Violation, World, WorldState, run_alone, smaller,
};

/// Checks that no page is lost and that none is used without an owner.
///
/// - Every page in a table, in the prefix cache or with a stranger is a page of the pool.
/// - A page's reference count is how often the running tables, the cache and the strangers list
///   it. A table that has it twice counts twice. A waiting sequence has no pages.
/// - As many pages are free as have no owner.
///
/// Suppose there are pages 0 to 3. One sequence has pages 0 and 1, a second has 0 and 2, and the
/// prefix cache has page 0. Then the reference counts are 3, 1, 1, 0, and one page is free.
///
/// # Errors
/// [`Rule::Pages`], with the page.
pub fn check_pages(state: &WorldState) -> Result<(), Violation> {
    todo!("ch15 task 1: count who has each page, and compare")
}

/// Checks that the running and then the waiting sequences, as the scheduler lists them, are
/// exactly those [alive](WorldState::alive), in order. So none is overtaken, lost, or listed twice.
///
/// Suppose sequences 4, 7, 8 and 9 are alive. If 4 and 7 run while 8 and 9 wait, the rule holds.
/// If 4 and 8 run while 7 and 9 wait, it's broken, because 8 arrived after 7.
///
/// # Errors
/// [`Rule::Order`], with the sequences.
pub fn check_order(state: &WorldState) -> Result<(), Violation> {
    todo!("ch15 task 1: compare what is listed with what is alive")
}

/// Checks that the plan can be computed. `state` is the world before anything is computed.
///
/// - No more sequences run than allowed, and all chunks together fit into the budget.
/// - Each chunk belongs to a running sequence, at most one to each, oldest first.
/// - A chunk has at least one token, the table holds them, and no more than the sequence has.
/// - A chunk has [caught up](ScheduledChunk::caught_up) exactly if the table holds all tokens.
///
/// # Errors
/// [`Rule::Plan`], with the sequence or the numbers.
pub fn check_plan(setup: &Setup, plan: &[ScheduledChunk], state: &WorldState) -> Result<(), Violation> {
    todo!("ch15 task 2: can every chunk be computed?")
}

fn total_tokens(plan: &[ScheduledChunk]) -> usize {
    plan.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.n_tokens))
}

/// Checks that every sequence that can advance does. `state` is the world after the plan was made.
///
/// - Go through the running sequences, oldest first. One is served if it has a chunk and its table
///   then holds all its tokens. At the first that isn't served, two things must hold: the chunks
///   use the whole budget, and no younger sequence has a chunk. It can have one itself.
/// - If strangers have no page, the oldest sequence alive has a chunk.
///
/// Suppose the budget is 8, and three sequences run with 1, 9 and 1 tokens left to compute. Chunks
/// of 1 and 7 keep the rule. Chunks of 1 and 1, for the first and the third, break it.
///
/// # Errors
/// [`Rule::Progress`], with the sequence.
pub fn check_progress(setup: &Setup, plan: &[ScheduledChunk], state: &WorldState) -> Result<(), Violation> {
    todo!("ch15 task 3: could any sequence compute more?")
}

/// Checks that an admitted sequence finds room. If one runs that did not run `before` the plan,
/// the [pages needed](SequenceState::pages_needed) by all running sequences together are
/// [available](WorldState::available). If none was admitted, there is nothing to check.
///
/// # Errors
/// [`Rule::Fits`], with the sequence.
pub fn check_fits(setup: &Setup, before: &WorldState, state: &WorldState) -> Result<(), Violation> {
    todo!("ch15 task 3: are there pages for all, if one was admitted?")
}

/// Checks that a request finished as if it had [run alone](run_alone), with the same output and for
/// the same reason. One that was cancelled has the beginning of that output. Its tokens are its
/// prompt and what its client received, each new token once, in order.
///
/// # Errors
/// [`Rule::Output`], with the sequence.
pub fn check_output(request: &FinishedRequest) -> Result<(), Violation> {
    todo!("ch15 task 2: compare with the sequence running alone")
}

/// Checks all rules on what an event did, and stops at the first that is broken.
///
/// # Errors
/// The first rule that is broken.
pub fn check(setup: &Setup, transition: &Transition) -> Result<(), Violation> {
    if let Some(PlannedStep { chunks, state }) = &transition.planned {
        check_plan(setup, chunks, state)?;
        check_pages(state)?;
        check_order(state)?;
        check_progress(setup, chunks, state)?;
        check_fits(setup, &transition.before, state)?;
    }
    check_pages(&transition.after)?;
    check_order(&transition.after)?;
    transition.finished.iter().try_for_each(check_output)
}

/// Runs a case in a new world: its events, then `finish`. Returns the [steps made](World::steps).
///
/// # Errors
/// The first rule that is broken, with the event's index in the list and the steps until then. In
/// `finish`, the index is the number of events. If no world can be made, both are 0.
pub fn run(factory: &SchedulerFactory<'_>, case: &Case) -> Result<u64, Failure> {
    let mut world = World::new(factory, case.setup).map_err(|violation| Failure { event: 0, step: 0, violation })?;
    for (index, event) in case.events.iter().enumerate() {
        happens(&mut world, *event).map_err(|violation| Failure { event: index, step: world.steps(), violation })?;
    }
    let last = case.events.len();
    finish(&mut world).map_err(|violation| Failure { event: last, step: world.steps(), violation })?;
    Ok(world.steps())
}

fn happens(world: &mut World, event: Event) -> Result<(), Violation> {
    let transition = world.apply(event)?;
    check(&world.setup(), &transition)
}

/// Lets all sequences finish. No more requests arrive, the strangers give back
/// [all pages](Event::GiveBack), and step follows step, with the rules checked as before.
///
/// The oldest sequence computes a token in each step. So once the strangers have given back their
/// pages, all running and waiting sequences together ([`World::state`]) need no more steps than
/// they have prompt tokens and requested new tokens.
///
/// # Errors
/// The first rule that is broken, or [`Rule::Ends`] if a sequence is left after that many steps.
fn finish(world: &mut World) -> Result<(), Violation> {
    todo!("ch15 task 3: step until all have finished, but not forever")
}

/// Makes a list of events shorter, then the numbers in it smaller, as long as `is_broken` returns
/// true, which means that the same rule is still broken. It returns true for `events` itself.
///
/// In the end, no event can be left out and none made [smaller] without the rule holding again.
/// The same list always gives the same result.
pub fn shrink(events: &[Event], is_broken: &mut dyn FnMut(&Candidate) -> bool) -> Vec<Event> {
    let mut list = Shrinking::new(events, is_broken);
    todo!("ch15 task 4: shorter and smaller, until neither is possible")
}

/// Leaves out pieces that don't matter. It tries the whole list, then halves, quarters and so on,
/// and single events last. If 3 of 1,000 events matter, most go in a few dozen calls.
fn leave_out(list: &mut Shrinking<'_>) {
    todo!("ch15 task 4: leave out large pieces first")
}

/// Replaces each event with a smaller one that will do, and that one in turn, until none will.
fn make_smaller(list: &mut Shrinking<'_>) {
    todo!("ch15 task 4: replace events with smaller ones")
}
