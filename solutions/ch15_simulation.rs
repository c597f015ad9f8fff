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

use crate::cache::PageId;
use crate::schedule::{End, Turn};
use crate::simulation::{
    Case, Ended, Event, Failure, Make, Planned, Rule, Scene, Seen, Setup, Violation, World, alone, smaller,
};

// ANCHOR: check_pages
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
    let mut known = vec![0; seen.owners.len()];
    let tables = seen.running.iter().flat_map(|text| &text.pages);
    for page in tables.chain(&seen.kept).chain(&seen.strangers) {
        match known.get_mut(page.index()) {
            Some(known) => *known += 1,
            None => {
                let n_pages = seen.owners.len();
                return Err(Rule::Pages.broken(format!("page {page} of a pool of {n_pages}")));
            }
        }
    }
    for (page, (owners, known)) in (0..).map(PageId).zip(seen.owners.iter().zip(&known)) {
        if owners != known {
            let words = format!("owners of page {page}: {owners}; seen to have it: {known}");
            return Err(Rule::Pages.broken(words));
        }
    }
    let (free, nobodys) = (seen.n_free, known.iter().filter(|known| **known == 0).count());
    if free != nobodys {
        let words = format!("{free} pages are in the free list, and {nobodys} have no owner");
        return Err(Rule::Pages.broken(words));
    }
    Ok(())
}
// ANCHOR_END: check_pages

// ANCHOR: check_order
/// Those that run and then those that wait, as the scheduler lists them, are all texts that
/// are there, in the order in which they came: nobody overtakes, is lost, or is there twice.
///
/// Texts 4, 7, 8 and 9 are there. 4 and 7 run, 8 and 9 wait: well. 4 and 8 run, 7 and 9 wait:
/// broken, as 8 came after 7.
///
/// # Errors
/// [`Rule::Order`], with the texts.
pub fn check_order(seen: &Seen) -> Result<(), Violation> {
    let listed = seen.running.iter().chain(&seen.waiting).map(|text| text.id);
    if listed.clone().eq(seen.alive.iter().copied()) {
        return Ok(());
    }
    let listed: Vec<String> = listed.map(|id| id.to_string()).collect();
    let alive: Vec<String> = seen.alive.iter().map(|id| id.to_string()).collect();
    let (run, listed, alive) = (seen.running.len(), listed.join(", "), alive.join(", "));
    let words = format!("texts {listed} (of these {run} run), and there are {alive}");
    Err(Rule::Order.broken(words))
}
// ANCHOR_END: check_order

// ANCHOR: check_plan
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
    let broken = |words: String| Err(Rule::Plan.broken(words));
    let (run, most) = (seen.running.len(), setup.limits.texts);
    if run > most {
        return broken(format!("{run} texts run, and at most {most} may"));
    }
    let (reads, budget) = (read(turns), setup.limits.tokens);
    if reads > budget {
        return broken(format!("the plan reads {reads} tokens, and the budget is {budget}"));
    }
    if !turns.is_sorted_by(|a, b| a.text < b.text) {
        return broken("the plan does not go from the oldest text to the newest".into());
    }
    for Turn { text: id, tokens, is_last } in turns {
        let Some(text) = seen.running.iter().find(|text| text.id == *id) else {
            return broken(format!("text {id} is in the plan, and does not run"));
        };
        if *tokens == 0 {
            return broken(format!("text {id} is in the plan, and reads nothing"));
        }
        let (held, all) = (text.held, text.n_tokens);
        if held < *tokens || held > all {
            let words = format!("text {id} reads {tokens}; it has {all}, and holds {held}");
            return broken(words);
        }
        if *is_last != (held == all) {
            let words = format!("text {id}: is_last is {is_last} at {held} of {all} tokens");
            return broken(words);
        }
    }
    Ok(())
}

/// Tokens that the turns read together.
fn read(turns: &[Turn]) -> usize {
    turns.iter().fold(0, |sum, turn| sum.saturating_add(turn.tokens))
}
// ANCHOR_END: check_plan

// ANCHOR: check_progress
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
    let left = setup.limits.tokens.saturating_sub(read(turns));
    for (place, text) in seen.running.iter().enumerate() {
        let id = text.id;
        let reads = turns.get(place).is_some_and(|turn| turn.text == id);
        let unread = text.n_tokens.saturating_sub(text.held);
        if reads && unread == 0 {
            continue;
        }
        let younger = turns.len() > place + usize::from(reads);
        if younger || left > 0 {
            let words = format!("text {id} is passed over; tokens left to read: {unread}");
            return Err(Rule::Progress.broken(words));
        }
        break;
    }
    let first = turns.first().map(|turn| turn.text);
    match seen.alive.first() {
        Some(oldest) if seen.strangers.is_empty() && first != Some(*oldest) => {
            let words = format!("text {oldest} is the oldest, and reads nothing");
            Err(Rule::Progress.broken(words))
        }
        _ => Ok(()),
    }
}
// ANCHOR_END: check_progress

// ANCHOR: check_fits
/// Whoever was let in finds room: if a text runs that did not run `before` the plan, the
/// [pages to go](crate::simulation::SeenText::pages_to_go) of all that run together are no
/// more than there is [room](Seen::room). If nobody was let in, there is nothing to check.
///
/// # Errors
/// [`Rule::Fits`], with the text.
pub fn check_fits(setup: &Setup, before: &Seen, seen: &Seen) -> Result<(), Violation> {
    let ran = |id| before.running.iter().any(|text| text.id == id);
    let Some(newest) = seen.running.iter().rfind(|text| !ran(text.id)) else { return Ok(()) };
    let texts = seen.running.iter();
    let to_go: usize = texts.map(|text| text.pages_to_go(setup.page_size)).sum();
    let (id, room) = (newest.id, seen.room());
    if to_go > room {
        let words = format!("text {id} was let in; pages to go: {to_go}, room: {room}");
        return Err(Rule::Fits.broken(words));
    }
    Ok(())
}
// ANCHOR_END: check_fits

// ANCHOR: check_text
/// The text is the one told alone (see [`alone`]), and it ended for the same reason. One that
/// was cancelled is the beginning of it. And what its reader was told is what it has: each
/// new token once, in its order, behind its prompt.
///
/// # Errors
/// [`Rule::Text`], with the text.
pub fn check_text(ended: &Ended) -> Result<(), Violation> {
    let id = ended.id;
    if ended.tokens != [&ended.prompt[..], &ended.told].concat() {
        let words = format!("text {id} is not its prompt and the tokens that were told");
        return Err(Rule::Text.broken(words));
    }
    let (expected, why) = alone(&ended.prompt, ended.max_new_tokens);
    let is_right = match ended.end {
        End::Cancelled => expected.starts_with(&ended.told),
        end => expected == ended.told && end == why,
    };
    if !is_right {
        return Err(Rule::Text.broken(format!("text {id} is not the one told alone")));
    }
    Ok(())
}
// ANCHOR_END: check_text

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

// ANCHOR: run
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
    let failure = |event, step| move |violation| Failure { event, step, violation };
    let mut world = World::new(make, case.setup).map_err(failure(0, 0))?;
    for (place, event) in case.events.iter().enumerate() {
        let checked = happens(&mut world, *event);
        checked.map_err(failure(place, world.steps()))?;
    }
    let after = case.events.len();
    let mut ends = || {
        happens(&mut world, Event::GiveBack { pages: usize::MAX })?;
        let texts = world.seen().running.iter().chain(&world.seen().waiting);
        let mut patience: usize = texts.map(|text| text.n_prompt + text.max_new_tokens).sum();
        while let Some(id) = world.seen().alive.first() {
            if patience == 0 {
                return Err(Rule::Ends.broken(format!("text {id} is still there")));
            }
            patience -= 1;
            happens(&mut world, Event::Step)?;
        }
        Ok(())
    };
    let ended = ends();
    ended.map_err(failure(after, world.steps()))?;
    Ok(world.steps())
}

/// Lets an event happen and checks all rules.
fn happens(world: &mut World, event: Event) -> Result<(), Violation> {
    let scene = world.apply(event)?;
    check(&world.setup(), &scene)
}
// ANCHOR_END: run

// ANCHOR: shrink
/// Makes a list of events shorter, then the numbers in it smaller, as long as `is_broken`
/// says that the same rule is still broken. It says so of `events` itself.
///
/// Large pieces first: of 1,000 events of which 3 matter, most go in a few dozen questions.
/// In the end, no event can be left out, and none made [smaller], without the rule holding.
///
/// `is_broken` runs a whole case, so it is asked about lists that are shorter or smaller than
/// the last that was broken, and about no others. The same list gives the same answer.
pub fn shrink(events: &[Event], is_broken: &mut dyn FnMut(&[Event]) -> bool) -> Vec<Event> {
    let mut events = events.to_vec();
    loop {
        let before = events.clone();
        leave_out(&mut events, is_broken);
        make_smaller(&mut events, is_broken);
        if events == before {
            return events;
        }
    }
}

/// Leaves out pieces that do not matter: halves, quarters and so on, and single events last.
fn leave_out(events: &mut Vec<Event>, is_broken: &mut dyn FnMut(&[Event]) -> bool) {
    let mut size = events.len();
    while size > 0 {
        let mut start = 0;
        while start < events.len() {
            let end = events.len().min(start + size);
            let fewer = [&events[..start], &events[end..]].concat();
            if is_broken(&fewer) {
                *events = fewer;
            } else {
                start = end;
            }
        }
        size /= 2;
    }
}

/// Puts smaller events in the place of larger ones, as long as there are any that will do.
fn make_smaller(events: &mut [Event], is_broken: &mut dyn FnMut(&[Event]) -> bool) {
    for place in 0..events.len() {
        loop {
            let was = events[place];
            let will_do = smaller(was).into_iter().any(|event| {
                events[place] = event;
                is_broken(events)
            });
            if !will_do {
                events[place] = was;
                break;
            }
        }
    }
}
// ANCHOR_END: shrink
