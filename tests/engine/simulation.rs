//! The made-up world of chapter 15, and schedulers with a bug.

use page_by_page::simulation::buggy_scheduler::with_bug;
use page_by_page::simulation::{Case, World, examples, new_scheduler};

#[test]
fn without_a_bug_the_scheduler_is_that_of_chapter_12() {
    for seed in 0..300 {
        let case = Case::from_seed(seed, 80);
        let mut plain = World::new(&with_bug(None), case.setup).unwrap();
        let mut chapter = World::new(&new_scheduler, case.setup).unwrap();
        for (place, event) in case.events.iter().enumerate() {
            let (plain, chapter) = (plain.apply(*event).unwrap(), chapter.apply(*event).unwrap());
            assert_eq!(plain, chapter, "seed {seed}, event {place}: {event:?}");
        }
    }
}

/// What the schedulers with a bug show there is in `crates/cli`: the gains of chapter 15, and the script `simulate`.
#[test]
fn the_scheduler_of_chapter_12_passes_all_examples_and_loses_nothing_in_a_day() {
    assert_eq!(examples::pass(&new_scheduler), Ok(9));
    let outcome = examples::replay(&new_scheduler, &examples::day(3000), |_| {}).unwrap();
    assert!(outcome.lost == 0 && outcome.wrong == 0 && outcome.ended > 700, "{outcome:?}");
}
