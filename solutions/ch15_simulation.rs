//! Chapter 15: break the scheduler. The rules that must hold, checked after every event.
//!
//! A seed draws a world and what happens in it: requests arrive, are cancelled, finish;
//! strangers take pages and give them back. After each event the rules are checked. When one
//! is broken, the list of events gets shorter and shorter, as long as the same rule is broken,
//! until what is left reads like a story.
//!
//! ```text
//!   seed 15   115 events   ✗ pages      the rule that is broken
//!              58          ✗ pages      without the first half: go on with that
//!              30          ✗ pages
//!              16          ✗ pages
//!             ...
//!               3          ✗ pages      none of the three can be left out
//! ```

use crate::serving::schedule::{FinishReason, ScheduledChunk};
use crate::simulation::{
    Case, Ended, Event, Failure, Kept, Make, Planned, Rule, Scene, Seen, SeenSequence, Setup, Shrinking, Violation,
    World, alone, smaller,
};

// ANCHOR: check_pages
/// No page is lost, and none is used without being owned: each page has as many owners as
/// there are tables of running sequences, entries of the prefix cache and strangers with it.
/// The free list has the pages without owners. A waiting sequence has no pages.
///
/// Pages 0 to 3. One sequence has pages 0 and 1, another has 0 and 2, and the prefix cache
/// has page 0: then the reference counts are 3, 1, 1, 0, and one page is free.
///
/// # Errors
/// [`Rule::Pages`], with the page, also if it isn't a page of the pool.
pub fn check_pages(seen: &Seen) -> Result<(), Violation> {
    // ch15 task 1: count who has each page, and compare
    let mut known = vec![0; seen.owners.len()];
    let tables = seen.running.iter().flat_map(|sequence| &sequence.pages);
    for page in tables.chain(&seen.cached).chain(&seen.strangers) {
        let known = known.get_mut(page.index());
        *known.ok_or_else(|| Rule::Pages.broken(format!("page {page} is not in the pool")))? += 1;
    }
    for (page, (owners, known)) in seen.owners.iter().zip(&known).enumerate() {
        Rule::Pages.ensure(owners == known, || format!("page {page}: {owners} owners, {known} known"))?;
    }
    let (free, unowned) = (seen.n_free, known.iter().filter(|known| **known == 0).count());
    Rule::Pages.ensure(free == unowned, || format!("{free} pages are free, {unowned} have no owner"))
}
// ANCHOR_END: check_pages

// ANCHOR: check_order
/// The running and then the waiting sequences, as the scheduler lists them, are all that are
/// [alive](Seen::alive), in that order: none is overtaken, lost, or there twice.
///
/// Sequences 4, 7, 8 and 9 are alive. 4 and 7 run, 8 and 9 wait: fine. 4 and 8 run, 7 and 9
/// wait: broken, because 8 arrived after 7.
///
/// # Errors
/// [`Rule::Order`], with the sequences.
pub fn check_order(seen: &Seen) -> Result<(), Violation> {
    // ch15 task 1: compare what is listed with what is alive
    let listed: Vec<_> = seen.running.iter().chain(&seen.waiting).map(|sequence| sequence.id).collect();
    Rule::Order.ensure(listed == seen.alive, || format!("listed: {listed:?}, alive: {:?}", seen.alive))
}
// ANCHOR_END: check_order

// ANCHOR: check_plan
/// The plan can be computed. `seen` is what there is after it, before anything is computed.
///
/// - No more sequences run than allowed, and all chunks together fit into the budget.
/// - The chunks are those of running sequences, oldest first, at most one for each.
/// - A chunk has at least one token; the sequence's table holds these, and no more than the
///   sequence has.
/// - It has [caught up](ScheduledChunk::caught_up) exactly if the table holds all tokens.
///
/// # Errors
/// [`Rule::Plan`], with the sequence or the numbers.
pub fn check_plan(setup: &Setup, plan: &[ScheduledChunk], seen: &Seen) -> Result<(), Violation> {
    // ch15 task 2: can every chunk be computed?
    let (running, tokens, limits) = (seen.running.len(), total_tokens(plan), setup.limits);
    Rule::Plan.ensure(running <= limits.sequences, || format!("{running} sequences run: {limits:?}"))?;
    Rule::Plan.ensure(tokens <= limits.tokens, || format!("{tokens} tokens are planned: {limits:?}"))?;
    let in_order = plan.is_sorted_by(|a, b| a.sequence < b.sequence);
    Rule::Plan.ensure(in_order, || "the chunks are not in order of arrival".into())?;
    for chunk in plan {
        let id = chunk.sequence;
        let does_not_run = || Rule::Plan.broken(format!("sequence {id} does not run"));
        let SeenSequence { held, n_tokens: all, .. } = seen.find_running(id).ok_or_else(does_not_run)?;
        let fits = 0 < chunk.tokens && chunk.tokens <= *held && held <= all;
        let right = fits && chunk.caught_up == (held == all);
        Rule::Plan.ensure(right, || format!("sequence {id} holds {held} of {all}: {chunk:?}"))?;
    }
    Ok(())
}

fn total_tokens(plan: &[ScheduledChunk]) -> usize {
    plan.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.tokens))
}
// ANCHOR_END: check_plan

// ANCHOR: check_progress
/// Every sequence that can advance does. `seen` is what there is after the plan.
///
/// - Oldest first, each running sequence has a chunk and then holds all of its tokens. The
///   first that doesn't needs an excuse: the whole budget is used. No younger one then has a
///   chunk; the sequence itself can have one.
/// - If strangers have no page, the oldest sequence alive has a chunk.
///
/// Budget 8. Three sequences run, with 1, 9 and 1 tokens left to compute: chunks of 1 and 7
/// are fine. Chunks of 1 and 1, for the first and the third, are not.
///
/// It is asked about plans that keep the rules *plan* and *order*: see [`check`].
///
/// # Errors
/// [`Rule::Progress`], with the sequence.
pub fn check_progress(setup: &Setup, plan: &[ScheduledChunk], seen: &Seen) -> Result<(), Violation> {
    // ch15 task 3: could any sequence compute more?
    let pairs = seen.running.iter().zip(plan);
    let done = pairs.take_while(|(it, chunk)| it.id == chunk.sequence && it.held == it.n_tokens).count();
    if let Some(SeenSequence { id, .. }) = seen.running.get(done) {
        let has_chunk = plan.get(done).is_some_and(|chunk| chunk.sequence == *id);
        let is_last = plan.len() == done + usize::from(has_chunk);
        let budget_used = total_tokens(plan) >= setup.limits.tokens;
        Rule::Progress.ensure(is_last && budget_used, || format!("sequence {id} could compute more"))?;
    }
    let Some(oldest) = seen.alive.first() else { return Ok(()) };
    let advances = plan.first().is_some_and(|chunk| chunk.sequence == *oldest);
    Rule::Progress.ensure(advances || !seen.strangers.is_empty(), || format!("sequence {oldest} computes nothing"))
}
// ANCHOR_END: check_progress

// ANCHOR: check_fits
/// An admitted sequence finds room: if one runs that did not run `before` the plan, then the
/// [pages needed](SeenSequence::pages_needed) by all running ones together
/// are [available](Seen::available). If none was admitted, there is nothing to check.
///
/// # Errors
/// [`Rule::Fits`], with the sequence.
pub fn check_fits(setup: &Setup, before: &Seen, seen: &Seen) -> Result<(), Violation> {
    // ch15 task 3: are there pages for all, if one was admitted?
    let newest = seen.running.iter().rfind(|sequence| before.find_running(sequence.id).is_none());
    let Some(SeenSequence { id, .. }) = newest else { return Ok(()) };
    let needed: usize = seen.running.iter().map(|sequence| sequence.pages_needed(setup.page_size)).sum();
    let available = seen.available();
    Rule::Fits.ensure(needed <= available, || format!("sequence {id}: {needed} pages needed, {available} available"))
}
// ANCHOR_END: check_fits

// ANCHOR: check_output
/// The output is the one of the sequence running [alone], and it finished for the same reason;
/// one that was cancelled has the beginning of it. And the sequence is its prompt and what its
/// client received: each new token once, in order.
///
/// # Errors
/// [`Rule::Output`], with the sequence.
pub fn check_output(ended: &Ended) -> Result<(), Violation> {
    // ch15 task 2: compare with the sequence running alone
    let (expected, reason) = alone(&ended.prompt, ended.max_new_tokens);
    let right = match ended.reason {
        FinishReason::Cancelled => expected.starts_with(&ended.received),
        finished => expected == ended.received && finished == reason,
    };
    let whole = ended.tokens == [&ended.prompt[..], &ended.received].concat();
    Rule::Output.ensure(right && whole, || format!("sequence {} is not the same as alone", ended.id))
}
// ANCHOR_END: check_output

/// All rules, on what an event did. After one that is broken, no other is asked.
///
/// # Errors
/// The first that is broken.
pub fn check(setup: &Setup, scene: &Scene) -> Result<(), Violation> {
    if let Some(Planned { chunks, seen }) = &scene.planned {
        check_plan(setup, chunks, seen)?;
        check_pages(seen)?;
        check_order(seen)?;
        check_progress(setup, chunks, seen)?;
        check_fits(setup, &scene.before, seen)?;
    }
    check_pages(&scene.after)?;
    check_order(&scene.after)?;
    scene.ended.iter().try_for_each(check_output)
}

// ANCHOR: run
/// Runs a case in a new world: each event in order, then the end, which is `finish`. Returns
/// the [steps made](World::steps).
///
/// # Errors
/// The first rule that is broken, the place of the event, and the steps until then. For the
/// end, the place is the number of events. A world that cannot even be made breaks its rule
/// before the first event: place 0, step 0.
pub fn run(make: &Make<'_>, case: &Case) -> Result<u64, Failure> {
    let mut world = World::new(make, case.setup).map_err(|violation| Failure { event: 0, step: 0, violation })?;
    for (event, what) in case.events.iter().enumerate() {
        happens(&mut world, *what).map_err(|violation| Failure { event, step: world.steps(), violation })?;
    }
    let event = case.events.len();
    finish(&mut world).map_err(|violation| Failure { event, step: world.steps(), violation })?;
    Ok(world.steps())
}

fn happens(world: &mut World, event: Event) -> Result<(), Violation> {
    let scene = world.apply(event)?;
    check(&world.setup(), &scene)
}

/// No more requests arrive, the strangers give back [all pages](Event::GiveBack), and step
/// follows step until all sequences have finished, with the rules checked as before.
///
/// The end is near, because the oldest sequence computes a token in each step. Look at
/// [`World::seen`] when the strangers have given back: all running and waiting sequences
/// together need no more steps than they have prompt tokens and requested new tokens.
///
/// # Errors
/// The first rule that is broken; [`Rule::Ends`] if a sequence is still there after that many
/// steps.
fn finish(world: &mut World) -> Result<(), Violation> {
    // ch15 task 3: step until all have finished, but not forever
    happens(world, Event::GiveBack { pages: usize::MAX })?;
    let alive = world.seen().running.iter().chain(&world.seen().waiting);
    let most = alive.fold(0_usize, |sum, it| sum.saturating_add(it.n_prompt).saturating_add(it.max_new_tokens));
    for _ in 0..most {
        if world.seen().alive.is_empty() {
            break;
        }
        happens(world, Event::Step)?;
    }
    let alive = &world.seen().alive;
    Rule::Ends.ensure(alive.is_empty(), || format!("after {most} more steps these are left: {alive:?}"))
}
// ANCHOR_END: run

// ANCHOR: shrink
/// Makes a list of events shorter, then the numbers in it smaller, as long as `is_broken` says
/// that the same rule is still broken. It says so of `events` itself.
///
/// In the end, no event can be left out and none made [smaller] without the rule holding. The
/// same list gives the same answer.
pub fn shrink(events: &[Event], is_broken: &mut dyn FnMut(&Kept) -> bool) -> Vec<Event> {
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

/// Leaves out pieces that don't matter: the whole list, halves, quarters and so on, and single
/// events last. Of 1,000 events of which 3 matter, most go in a few dozen questions.
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

/// Replaces events with smaller ones, as long as there are any that will do.
fn make_smaller(list: &mut Shrinking<'_>) {
    // ch15 task 4: replace events with smaller ones
    for place in 0..list.events().len() {
        while smaller(list.events()[place]).into_iter().any(|event| list.replace(place, event)) {}
    }
}
// ANCHOR_END: shrink
