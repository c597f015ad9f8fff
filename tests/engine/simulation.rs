//! The made-up world of chapter 15, and the planted schedulers.

use page_by_page::simulation::planted::{Bug, planted};
use page_by_page::simulation::{Case, World, chapter_12, examples};

#[test]
fn without_a_bug_the_planted_scheduler_is_that_of_chapter_12() {
    for seed in 0..300 {
        let case = Case::from_seed(seed, 80);
        let mut plain = World::new(&planted(None), case.setup).unwrap();
        let mut chapter = World::new(&chapter_12, case.setup).unwrap();
        for (place, event) in case.events.iter().enumerate() {
            let (plain, chapter) = (plain.apply(*event).unwrap(), chapter.apply(*event).unwrap());
            assert_eq!(plain, chapter, "seed {seed}, event {place}: {event:?}");
        }
    }
}

#[test]
fn the_examples_find_nothing() {
    for (place, bug) in Bug::all().into_iter().enumerate() {
        assert_eq!(bug as usize, place, "{bug:?} stands elsewhere in the table than in the enum");
        assert_eq!(examples::pass(&planted(Some(bug))), Ok(9), "{bug:?}");
    }
    assert_eq!(examples::pass(&chapter_12), Ok(9));
    let outcome = examples::watch(&planted(Some(Bug::CancelLeaks)), &examples::day(3000), |_| {}).unwrap();
    assert!(outcome.lost > 20 && outcome.wrong == 0, "{outcome:?}");
    let outcome = examples::watch(&chapter_12, &examples::day(3000), |_| {}).unwrap();
    assert!(outcome.lost == 0 && outcome.wrong == 0 && outcome.ended > 700, "{outcome:?}");
}
