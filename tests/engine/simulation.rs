//! The made-up world of chapter 15, the ten planted schedulers.

use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{Case, Event, MOST_SEQUENCES, Make, World, alone, chapter_12, examples, prompt};

fn planted(bug: Option<Bug>) -> Box<Make<'static>> {
    Box::new(move |slab, prefixes, limits| Planted::subject(bug, slab, prefixes, limits))
}

#[test]
fn without_a_bug_the_planted_scheduler_is_that_of_chapter_12() {
    for seed in 0..300 {
        let case = Case::of_seed(seed, 80);
        let mut plain = World::new(&planted(None), case.setup).unwrap();
        let mut chapter = World::new(&chapter_12, case.setup).unwrap();
        for (place, event) in case.events.iter().enumerate() {
            let (plain, chapter) = (plain.apply(*event).unwrap(), chapter.apply(*event).unwrap());
            assert_eq!(plain, chapter, "seed {seed}, event {place}: {event:?}");
        }
    }
}

/// A case finds little if hardly anything happens in it.
#[test]
fn a_lot_happens_in_the_cases() {
    let (mut preempted, mut cached, mut ended, mut most, mut idle, mut refused) = (0, 0, 0, 0, 0, 0);
    for seed in 0..200 {
        let case = Case::of_seed(seed, 100);
        let mut world = World::new(&chapter_12, case.setup).unwrap();
        for event in &case.events {
            let scene = world.apply(*event).unwrap();
            ended += scene.ended.len();
            most = most.max(scene.after.alive.len());
            if let Event::Arrive { .. } = event {
                refused += usize::from(scene.before.alive == scene.after.alive && scene.ended.is_empty());
            }
            let Some(planned) = &scene.planned else { continue };
            idle += usize::from(planned.chunks.is_empty());
            let sequences = scene.after.running.iter().chain(&scene.after.waiting);
            preempted += sequences.filter(|sequence| sequence.counters.preemptions > 0).count();
            cached += planned.seen.running.iter().filter(|sequence| sequence.counters.cached > 0).count();
        }
    }
    assert_eq!(most, MOST_SEQUENCES);
    let counts = [preempted, cached, ended, refused];
    assert!(
        counts.iter().all(|n| *n > 300) && idle < 20_000 / 3,
        "preempted, cached, ended, refused: {counts:?}; {idle}"
    );
}

#[test]
fn the_examples_find_nothing() {
    for bug in Bug::ALL {
        assert_eq!(examples::pass(&planted(Some(bug))), Ok(9), "{bug:?}");
    }
    assert_eq!(examples::pass(&chapter_12), Ok(9));
    let outcome = examples::watch(&planted(Some(Bug::CancelLeaks)), &examples::day(3000), |_| {}).unwrap();
    assert!(outcome.lost > 20 && outcome.wrong == 0, "{outcome:?}");
    let outcome = examples::watch(&chapter_12, &examples::day(3000), |_| {}).unwrap();
    assert!(outcome.lost == 0 && outcome.wrong == 0 && outcome.ended > 700, "{outcome:?}");
}

#[test]
fn each_bug_is_the_one_that_it_is_called() {
    let names: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
    let source = include_str!("../../src/simulation/planted.rs");
    for bug in Bug::ALL {
        assert_eq!(names.iter().filter(|name| **name == bug.name()).count(), 1);
        let reported = bug.reported();
        assert!(source.contains(&format!("/// [{reported}](https://github.com/")), "{reported} is linked in the docs");
        let number = reported.split('#').nth(1).unwrap();
        assert!(source.contains(&format!("/{number}): ")), "the link of {reported} leads to its number");
    }
}

#[test]
fn the_stand_in_for_a_model_depends_on_every_token() {
    let tokens = prompt(1, 8);
    for place in 0..8 {
        let mut other = tokens.clone();
        other[place] ^= 1 << 20;
        assert_ne!(alone(&other, 20), alone(&tokens, 20), "token {place}");
    }
    let ends = (0..2000).filter(|alike| alone(&prompt(*alike, 5), 1).0.is_empty()).count();
    assert!((60..200).contains(&ends), "{ends} of 2,000 end at once, about every 16th");
    assert_eq!(prompt(1, 8)[..5], prompt(1, 5));
}
