//! Chapter 15: break the scheduler. What must hold, looked at after every event.
//!
//! A seed draws a world and what happens in it: texts come, are cancelled, end; strangers
//! take pages and give them back. After each event the rules are checked. When one is broken,
//! the list of events is made shorter and shorter, as long as the same rule is broken, until
//! what is left can be read like a story.
//!
//! ```text
//!   seed 15   115 events   ✗ pages      the rule that is broken
//!              58          ✗ pages      without the first half: go on with that
//!              30          ✗ pages
//!              16          ✗ pages
//!             ...
//!               3          ✗ pages      none of the three can be left out
//! ```
//!
//! Check your work with `cargo test --features solution --test ch15_simulation`.

use crate::cache::PageId;
use crate::schedule::{End, Turn};
use crate::simulation::{
    Case, Ended, Event, Failure, Make, Planned, Rule, Scene, Seen, Setup, Violation, World, alone, smaller,
};

/// Nobody has lost a page, and nobody has one that is not theirs: each page has as many
/// owners as there are those who have it. They are the page tables of the texts that run,
/// the prefix cache and strangers. And the pages without an owner are those of the free list.
/// A text that waits has no pages: it makes no difference whether you count those as well.
///
/// Pages 0 to 3. A text has pages 0 and 1, another one 0 and 2, and the prefix cache has
/// page 0: then the owners are 3, 1, 1, 0, and one page is free.
///
/// # Errors
/// [`Rule::Pages`], with the page, also if somebody has a page that the pool does not have.
pub fn check_pages(seen: &Seen) -> Result<(), Violation> {
    todo!("ch15 task 1: count for each page those who have it, and compare")
}

/// Those that run and then those that wait, as the scheduler lists them, are all texts that
/// are there, in the order in which they came: nobody overtakes, is lost, or is there twice.
///
/// Texts 4, 7, 8 and 9 are there. 4 and 7 run, 8 and 9 wait: well. 4 and 8 run, 7 and 9 wait:
/// broken, as 8 came after 7.
///
/// # Errors
/// [`Rule::Order`], with the texts.
pub fn check_order(seen: &Seen) -> Result<(), Violation> {
    todo!("ch15 task 1: compare those that run and wait with those that are there")
}

/// The plan can be carried out. `seen` is what there is after it, before anybody reads.
///
/// - No more texts run than may, and the turns together read no more tokens than the budget.
/// - Each turn is that of a text that runs, oldest first, each text once.
/// - It reads at least one token; its table holds these, and no more than the text has.
/// - It is the last exactly if the table then holds all tokens of the text.
///
/// # Errors
/// [`Rule::Plan`], with the text or the numbers.
pub fn check_plan(setup: &Setup, turns: &[Turn], seen: &Seen) -> Result<(), Violation> {
    todo!("ch15 task 2: the limits, then each turn")
}

/// Tokens that the turns read together.
fn read(turns: &[Turn]) -> usize {
    turns.iter().fold(0, |sum, turn| sum.saturating_add(turn.tokens))
}

/// The plan leaves nobody out who could go on. `seen` is what there is after it.
///
/// - Oldest first, the texts that run have a turn and then hold all of their tokens. The
///   first that has no turn, or has tokens left to read, must have an excuse: the whole
///   budget is used. And nobody behind it has a turn; it may have one itself.
/// - If strangers have no page, the oldest text of all that are there has a turn.
///
/// Budget 8. Three texts run and have 1, 9 and 1 tokens to read: turns of 1 and 7 are well.
/// Turns of 1 and 1, for the first and the third, are not.
///
/// It is asked about plans that keep the rules *plan* and *order*: see [`check`].
///
/// # Errors
/// [`Rule::Progress`], with the text.
pub fn check_progress(setup: &Setup, turns: &[Turn], seen: &Seen) -> Result<(), Violation> {
    todo!("ch15 task 3: who could go on, and has no turn?")
}

/// Whoever was let in finds room: if a text runs that did not run `before` the plan, the
/// [pages to go](crate::simulation::SeenText::pages_to_go) of all that run together are no
/// more than there is [room](Seen::room). If nobody was let in, there is nothing to check.
///
/// # Errors
/// [`Rule::Fits`], with the text.
pub fn check_fits(setup: &Setup, before: &Seen, seen: &Seen) -> Result<(), Violation> {
    todo!("ch15 task 3: if somebody was let in, is there room for all that run?")
}

/// The text is the one told alone (see [`alone`]), and it ended for the same reason. One that
/// was cancelled is the beginning of it. And what its reader was told is what it has: each
/// new token once, in its order, behind its prompt.
///
/// # Errors
/// [`Rule::Text`], with the text.
pub fn check_text(ended: &Ended) -> Result<(), Violation> {
    todo!("ch15 task 2: compare the text with what was told, and with the one told alone")
}

/// All rules, on what an event did. Behind one that is broken, none is asked any more.
///
/// # Errors
/// The first that is broken.
pub fn check(setup: &Setup, scene: &Scene) -> Result<(), Violation> {
    if let Some(Planned { turns, seen }) = &scene.planned {
        check_plan(setup, turns, seen)?;
        check_pages(seen)?;
        check_order(seen)?;
        check_progress(setup, turns, seen)?;
        check_fits(setup, &scene.before, seen)?;
    }
    check_pages(&scene.after)?;
    check_order(&scene.after)?;
    scene.ended.iter().try_for_each(check_text)
}

/// Runs a case: a new world, each event in its order, [all rules](check) after each. Then
/// nobody else comes, the strangers give back [all pages](Event::GiveBack), and step follows
/// step until all texts have ended, with the rules checked as before. Returns the
/// [steps made](World::steps).
///
/// The end is near: when nobody disturbs, the oldest text reads a token in each step. Look at
/// [`World::seen`] when the strangers have given back: no more steps are needed than all texts
/// that run or wait there have tokens, prompt and all that they may get, together. If a text
/// is still there after these, [`Rule::Ends`] is broken.
///
/// # Errors
/// The first rule that is broken, the place of the event, and the steps until then. For what
/// comes after the last event, the place is the number of events. A world that cannot even
/// be made breaks its rule before the first event: place 0, step 0. The world's own rule,
/// [`Rule::Stopped`], is passed on like any other.
pub fn run(make: &Make<'_>, case: &Case) -> Result<u64, Failure> {
    todo!("ch15 task 3: each event, then until all have ended, and no longer")
}

/// Lets an event happen and checks all rules.
fn happens(world: &mut World, event: Event) -> Result<(), Violation> {
    let scene = world.apply(event)?;
    check(&world.setup(), &scene)
}

/// Makes a list of events shorter, then the numbers in it smaller, as long as `is_broken`
/// says that the same rule is still broken. It says so of `events` itself.
///
/// Large pieces first: of 1,000 events of which 3 matter, most go in a few dozen questions.
/// In the end, no event can be left out, and none made [smaller], without the rule holding.
///
/// `is_broken` runs a whole case, so it is asked about lists that are shorter or smaller than
/// the last that was broken, and about no others. The same list gives the same answer.
pub fn shrink(events: &[Event], is_broken: &mut dyn FnMut(&[Event]) -> bool) -> Vec<Event> {
    todo!("ch15 task 4: leave out and make smaller, until neither changes anything")
}

/// Leaves out pieces that do not matter: halves, quarters and so on, and single events last.
fn leave_out(events: &mut Vec<Event>, is_broken: &mut dyn FnMut(&[Event]) -> bool) {
    todo!("ch15 task 4: large pieces first, then smaller ones")
}

/// Puts smaller events in the place of larger ones, as long as there are any that will do.
fn make_smaller(events: &mut [Event], is_broken: &mut dyn FnMut(&[Event]) -> bool) {
    todo!("ch15 task 4: at each place, smaller events as long as one will do")
}
