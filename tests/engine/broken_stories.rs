//! What each mistake of the list shows. The book quotes these stories and costs.

use std::collections::BTreeSet;

use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::english::wrapped;
use page_by_page::experiments::mistakes::{Effect, Mistake, ScenarioOutput, ScenarioRunner, all};
use page_by_page::experiments::shrunk_events;
use page_by_page::generation::read_checker::{CacheFault, ReadChecker};

use grading::calls::expect_panic;
use grading::story::Storyteller;
use grading::transcript::{Transcript, assert_transcript};

/// Columns of the book's terminals.
const COLUMNS: usize = 58;

#[test]
fn broken_stories() {
    let (runner, mut transcript) = (ScenarioRunner::open().unwrap(), Transcript::default());
    let mut known = BTreeSet::new();
    let mut tell = |transcript: &mut Transcript, how: &str, mistake: &Mistake, told: &ScenarioOutput| {
        for (name, text) in told.names.iter().zip(&told.texts).filter(|(_, text)| known.insert(text.to_string())) {
            transcript.line(format!("{how}, {name}:"));
            let anchor = format!("{}{}", mistake.name, name.trim_start_matches("the").replace(' ', "-"));
            // So that a page includes it by name.
            transcript.line(format!("ANCHOR: {how}-{anchor}"));
            wrapped(text, COLUMNS).iter().for_each(|line| transcript.line(line));
            transcript.line(format!("ANCHOR_END: {how}-{anchor}"));
        }
    };
    for mistake in all() {
        let title = format!("chapter {}, {}: {}", mistake.chapter, mistake.name, mistake.about);
        match mistake.effect {
            Effect::Story(scenario, fault) => {
                let (right, broken) = (runner.run(&scenario, None).unwrap(), runner.run(&scenario, Some(fault)));
                let broken = broken.unwrap();
                assert_eq!(right.wrong, None, "{title}");
                assert_ne!(right.texts, broken.texts, "{title}");
                tell(&mut transcript, "right", &mistake, &right);
                transcript.line(title);
                if let Some((first, n)) = &broken.wrong {
                    transcript.line(format!("{first} ({n} in all)"));
                }
                tell(&mut transcript, "broken", &mistake, &broken);
            }
            Effect::Forgetful(scenario) => {
                transcript.line(title);
                tell(&mut transcript, "broken", &mistake, &runner.run_forgetful(&scenario).unwrap());
            }
            Effect::Cost(cost) => {
                transcript.line(title);
                let [right, broken] = cost().unwrap();
                assert_ne!(right, broken);
                right.iter().for_each(|line| transcript.line(format!("right: {line}")));
                broken.iter().for_each(|line| transcript.line(format!("broken: {line}")));
            }
            Effect::Events(bug) => {
                transcript.line(title);
                transcript.line(shrunk_events(bug));
            }
        }
    }
    assert_transcript("broken_stories", &transcript);
}

/// Changes the rows of a layer that a cache holds: layer, keys, values and `kv_width`.
type Spoil<'a> = &'a dyn Fn(usize, &mut [f32], &mut [f32], usize);

/// Five tokens are computed, their rows are spoiled where they lie, and the sixth reads them.
#[test]
fn a_checker_names_the_rows_that_a_wrong_cache_returns_and_changes_no_right_one() {
    let storyteller = Storyteller::open();
    let (layout, tokens) = (storyteller.model.config().kv_layout(), [0, 2805, 666, 259, 532, 301]);
    let alone = storyteller.model.step(&tokens, None).unwrap();
    let tries: [(Spoil<'_>, &str); 5] = [
        (&|_, _, _, _| {}, ""),
        (
            &|_, k, _, width| k[width..][..width].rotate_left(width / 2),
            "layer 0 reads numbers of that row from other places, in place of its token 1",
        ),
        (
            &|layer, k, _, width| k[width + 7] = k[if layer == 2 { 3 } else { 1 } * width + 7],
            "layer 2 reads sequence 0's token 3, in place of its token 1",
        ),
        (
            &|_, k, v, width| k[..width].swap_with_slice(&mut v[..width]),
            "layer 0 reads numbers of that row from other places, in place of its token 0",
        ),
        (
            &|layer, _, v, width| v[4 * width..].iter_mut().filter(|_| layer == 5).for_each(|number| *number = 0.0),
            "layer 5 reads a slot that nobody has written, in place of its token 4",
        ),
    ];
    for (spoil, expected) in tries {
        let (mut cache, checker) = (ContiguousCache::new(layout, 6), ReadChecker::new(None));
        storyteller.model.step(&tokens[..5], Some(&mut checker.checked(0, &tokens, &mut cache))).unwrap();
        for layer in 0..layout.n_layers {
            let (mut k, mut v) = (cache.gather(layer).0.to_vec(), cache.gather(layer).1.to_vec());
            spoil(layer, &mut k, &mut v, layout.kv_width());
            cache.write(layer, &k, &v);
        }
        let newest = storyteller.model.step(&tokens[5..], Some(&mut checker.checked(0, &tokens, &mut cache)));
        let wrong = checker.take_wrong_reads();
        let found = wrong.first().map_or(String::new(), ToString::to_string);
        assert_eq!(found.trim_start_matches("attention of sequence 0's token 5 in "), expected);
        assert_eq!(newest.unwrap() == alone, expected.is_empty(), "{expected:?}");
    }
}

/// A cache returns the rows of its first five tokens and no more. A check whose story is wrong says so, too.
#[test]
fn a_checker_names_rows_that_are_missing_at_the_end() {
    let storyteller = Storyteller::open();
    let few = ReadChecker::new(Some(CacheFault { rows: |_, held| held.min(5), ..CacheFault::NONE }));
    let mut cache = ContiguousCache::new(storyteller.model.config().kv_layout(), 20);
    let mut cache = few.checked(0, &[0; 20], &mut cache);
    let words = expect_panic(|| storyteller.assert_through(&mut cache, "cache", 12, || {})).unwrap();
    let read = "\n  wrong read: attention of sequence 0's token 5 in layer 0 reads only 5 rows, for 6 tokens";
    assert!(words.ends_with(read), "{words}");
}
