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
// ANCHOR: check_pages
pub fn check_pages(state: &WorldState) -> Result<(), Violation> {
    // ch15 task 1: count who has each page, and compare
    let tables = state.running.iter().flat_map(|sequence| &sequence.pages);
    let mut known_owners = vec![0; state.owners.len()];
    for page in tables.chain(&state.cached).chain(&state.strangers) {
        Rule::Pages.ensure(page.index() < state.owners.len(), || format!("page {page} is not in the pool"))?;
        known_owners[page.index()] += 1;
    }
    for (page, (owners, known)) in state.owners.iter().zip(&known_owners).enumerate() {
        Rule::Pages.ensure(owners == known, || format!("page {page}: {owners} owners, {known} known"))?;
    }
    let (free, unowned) = (state.n_free, known_owners.iter().filter(|known| **known == 0).count());
    Rule::Pages.ensure(free == unowned, || format!("{free} pages are free, {unowned} have no owner"))
}
// ANCHOR_END: check_pages

/// Checks that the running and then the waiting sequences, as the scheduler lists them, are
/// exactly those [alive](WorldState::alive), in order. So none is overtaken, lost, or listed twice.
///
/// Suppose sequences 4, 7, 8 and 9 are alive. If 4 and 7 run while 8 and 9 wait, the rule holds.
/// If 4 and 8 run while 7 and 9 wait, it's broken, because 8 arrived after 7.
///
/// # Errors
/// [`Rule::Order`], with the sequences.
// ANCHOR: check_order
pub fn check_order(state: &WorldState) -> Result<(), Violation> {
    // ch15 task 1: compare what is listed with what is alive
    let listed: Vec<_> = state.running.iter().chain(&state.waiting).map(|sequence| sequence.id).collect();
    Rule::Order.ensure(listed == state.alive, || format!("listed: {listed:?}, alive: {:?}", state.alive))
}
// ANCHOR_END: check_order

/// Checks that the plan can be computed. `state` is the world before anything is computed.
///
/// - No more sequences run than allowed, and all chunks together fit into the budget.
/// - Each chunk belongs to a running sequence, at most one to each, oldest first.
/// - A chunk has at least one token, the table holds them, and no more than the sequence has.
/// - A chunk has [caught up](ScheduledChunk::caught_up) exactly if the table holds all tokens.
///
/// # Errors
/// [`Rule::Plan`], with the sequence or the numbers.
// ANCHOR: check_plan
pub fn check_plan(setup: &Setup, plan: &[ScheduledChunk], state: &WorldState) -> Result<(), Violation> {
    // ch15 task 2: can every chunk be computed?
    let (running, tokens, limits) = (state.running.len(), total_tokens(plan), setup.limits);
    Rule::Plan.ensure(running <= limits.max_running, || format!("{running} sequences run: {limits:?}"))?;
    Rule::Plan.ensure(tokens <= limits.token_budget, || format!("{tokens} tokens are planned: {limits:?}"))?;
    let in_order = plan.is_sorted_by(|a, b| a.sequence_id < b.sequence_id);
    Rule::Plan.ensure(in_order, || "the chunks are not in order of arrival".into())?;
    for chunk in plan {
        let id = chunk.sequence_id;
        let sequence =
            state.find_running(id).ok_or_else(|| Rule::Plan.broken(format!("sequence {id} does not run")))?;
        let (held, n_tokens) = (sequence.n_held, sequence.n_tokens);
        let is_held = 0 < chunk.n_tokens && chunk.n_tokens <= held && held <= n_tokens;
        let is_marked = chunk.caught_up == (held == n_tokens);
        Rule::Plan.ensure(is_held && is_marked, || format!("sequence {id} holds {held} of {n_tokens}: {chunk:?}"))?;
    }
    Ok(())
}

fn total_tokens(plan: &[ScheduledChunk]) -> usize {
    plan.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.n_tokens))
}
// ANCHOR_END: check_plan

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
// ANCHOR: check_progress
pub fn check_progress(setup: &Setup, plan: &[ScheduledChunk], state: &WorldState) -> Result<(), Violation> {
    // ch15 task 3: could any sequence compute more?
    let has_chunk = |id: SequenceId| plan.iter().any(|chunk| chunk.sequence_id == id);
    let is_served = |it: &SequenceState| has_chunk(it.id) && it.n_held == it.n_tokens;
    if let Some(first) = state.running.iter().position(|it| !is_served(it)) {
        let budget_used = total_tokens(plan) >= setup.limits.token_budget;
        let is_overtaken = state.running[first + 1..].iter().any(|younger| has_chunk(younger.id));
        let id = state.running[first].id;
        Rule::Progress.ensure(budget_used && !is_overtaken, || format!("sequence {id} could compute more"))?;
    }
    let Some(oldest) = state.alive.first() else { return Ok(()) };
    let advances = has_chunk(*oldest) || !state.strangers.is_empty();
    Rule::Progress.ensure(advances, || format!("sequence {oldest} computes nothing"))
}
// ANCHOR_END: check_progress

/// Checks that an admitted sequence finds room. If one runs that did not run `before` the plan,
/// the [pages needed](SequenceState::pages_needed) by all running sequences together are
/// [available](WorldState::available). If none was admitted, there is nothing to check.
///
/// # Errors
/// [`Rule::Fits`], with the sequence.
// ANCHOR: check_fits
pub fn check_fits(setup: &Setup, before: &WorldState, state: &WorldState) -> Result<(), Violation> {
    // ch15 task 3: are there pages for all, if one was admitted?
    let is_admitted = |it: &&SequenceState| before.find_running(it.id).is_none();
    let Some(SequenceState { id, .. }) = state.running.iter().rfind(is_admitted) else { return Ok(()) };
    let needed: usize = state.running.iter().map(|sequence| sequence.pages_needed(setup.page_size)).sum();
    let available = state.available();
    Rule::Fits.ensure(needed <= available, || format!("sequence {id}: {needed} pages needed, {available} available"))
}
// ANCHOR_END: check_fits

/// Checks that a request finished as if it had [run alone](run_alone), with the same output and for
/// the same reason. One that was cancelled has the beginning of that output. Its tokens are its
/// prompt and what its client received, each new token once, in order.
///
/// # Errors
/// [`Rule::Output`], with the sequence.
// ANCHOR: check_output
pub fn check_output(request: &FinishedRequest) -> Result<(), Violation> {
    // ch15 task 2: compare with the sequence running alone
    let (expected, reason) = run_alone(&request.prompt, request.max_new_tokens);
    let is_as_alone = match request.reason {
        FinishReason::Abort => expected.starts_with(&request.received),
        finished => expected == request.received && finished == reason,
    };
    let is_received_once = request.tokens == [&request.prompt[..], &request.received].concat();
    Rule::Output.ensure(is_as_alone && is_received_once, || format!("sequence {} is not the same as alone", request.id))
}
// ANCHOR_END: check_output

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
// ANCHOR: run
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
    // ch15 task 3: step until all have finished, but not forever
    happens(world, Event::GiveBack { pages: usize::MAX })?;
    let alive = world.state().running.iter().chain(&world.state().waiting);
    let most = alive.fold(0_usize, |sum, it| sum.saturating_add(it.n_prompt).saturating_add(it.max_new_tokens));
    for _ in 0..most {
        if world.state().alive.is_empty() {
            break;
        }
        happens(world, Event::Step)?;
    }
    let alive = &world.state().alive;
    Rule::Ends.ensure(alive.is_empty(), || format!("after {most} more steps these are left: {alive:?}"))
}
// ANCHOR_END: run

/// Makes a list of events shorter, then the numbers in it smaller, as long as `is_broken` returns
/// true, which means that the same rule is still broken. It returns true for `events` itself.
///
/// In the end, no event can be left out and none made [smaller] without the rule holding again.
/// The same list always gives the same result.
// ANCHOR: shrink
pub fn shrink(events: &[Event], is_broken: &mut dyn FnMut(&Candidate) -> bool) -> Vec<Event> {
    let mut list = Shrinking::new(events, is_broken);
    // ch15 task 4: shorter and smaller, until neither is possible
    loop {
        let before = list.events().to_vec();
        leave_out(&mut list);
        make_smaller(&mut list);
        if list.events() == before {
            return before;
        }
    }
}

/// Leaves out pieces that don't matter. It tries the whole list, then halves, quarters and so on,
/// and single events last. If 3 of 1,000 events matter, most go in a few dozen calls.
fn leave_out(list: &mut Shrinking<'_>) {
    // ch15 task 4: leave out large pieces first
    let mut size = list.events().len();
    while size > 0 {
        let mut start = 0;
        while start < list.events().len() {
            let end = list.events().len().min(start + size);
            if !list.leave_out(start..end) {
                start = end;
            }
        }
        size /= 2;
    }
}

/// Replaces each event with a smaller one that will do, and that one in turn, until none will.
fn make_smaller(list: &mut Shrinking<'_>) {
    // ch15 task 4: replace events with smaller ones
    for index in 0..list.events().len() {
        while smaller(list.events()[index]).into_iter().any(|event| list.replace(index, event)) {}
    }
}
// ANCHOR_END: shrink
