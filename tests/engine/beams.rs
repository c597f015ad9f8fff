//! Beam search, a user of `fork`: the same results as a search that recomputes everything, nothing half done, all pages
//! returned.

use page_by_page::cache::CacheError;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::generation::StopConditions;
use page_by_page::generation::beams::{Continuation, LENGTH_PENALTY, search};
use page_by_page::generation::logprobs::log_softmax;
use page_by_page::model::{Model, StepError};

use grading::story::assets;

fn bundled(model: &str) -> Model {
    Model::open(&assets().join(model)).unwrap()
}

/// The same search over lists of tokens: without a cache, a batch and forks, and with all candidates sorted.
fn recomputed(model: &Model, prompt: &[u32], width: usize, stop: StopConditions<'_>) -> Vec<Continuation> {
    let found = |tokens: Vec<u32>, log_probability: f64, has_ended: bool| {
        let score = log_probability / ((tokens.len() + usize::from(has_ended)) as f64).powf(LENGTH_PENALTY);
        Continuation { tokens, log_probability, score, has_ended }
    };
    let (mut beams, mut all): (Vec<(Vec<u32>, f64)>, _) = (vec![(Vec::new(), 0.0)], Vec::new());
    for _ in 0..stop.max_new_tokens {
        let mut candidates: Vec<(f64, &[u32], u32)> = Vec::new();
        for (tokens, sum) in &beams {
            let row = log_softmax(&model.step(&[prompt, tokens].concat(), None).unwrap());
            candidates.extend((0..).zip(row).map(|(token, x)| (sum + f64::from(x), &tokens[..], token)));
        }
        // The sort is stable: equal candidates stay in the order of beams, then of tokens.
        candidates.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap());
        let mut next = Vec::new();
        for (log_probability, tokens, token) in candidates {
            if next.len() == width {
                break;
            }
            if stop.end_of_text.contains(&token) {
                all.push(found(tokens.to_vec(), log_probability, true));
            } else {
                next.push(([tokens, &[token]].concat(), log_probability));
            }
        }
        beams = next;
        if all.len() >= width {
            beams.clear();
            break;
        }
    }
    all.extend(beams.into_iter().map(|(tokens, sum)| found(tokens, sum, false)));
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

#[test]
fn a_search_finds_what_a_search_without_a_cache_finds() {
    let model = bundled("storyteller-draft");
    for prompt in [&[0_u32, 435, 591, 12, 77] as &[u32], &[0, 500, 37, 4095, 8, 8, 8, 301, 44, 5, 6, 7, 1000, 1, 2, 3]]
    {
        let greedy = recomputed(&model, prompt, 1, StopConditions { max_new_tokens: 20, end_of_text: &[] });
        for (width, max_new_tokens) in [(1, 20), (2, 1), (3, 20), (7, 10)] {
            for end_of_text in [&[] as &[u32], &[greedy[0].tokens[3], greedy[0].tokens[9]]] {
                let stop = StopConditions { max_new_tokens, end_of_text };
                let expected = recomputed(&model, prompt, width, stop);
                for page_size in [1, 3, 16] {
                    let run = format!("{prompt:?}, width {width}, ends {end_of_text:?}, pages of {page_size}");
                    let full = prompt.len() / page_size;
                    let each = (prompt.len() + max_new_tokens).div_ceil(page_size);
                    let n_pages = full + (each - full) * width;
                    let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
                    let mut steps = 0;
                    let (found, work) = search(&model, &slab, prompt, width, stop, &mut |_| steps += 1).unwrap();
                    assert_eq!(found, expected, "{run}");
                    assert_eq!(work.steps, steps, "{run}: a pass for each token of the beams");
                    let rows = prompt.len() as u64 + (steps - 1) * width as u64;
                    assert_eq!(work.computed_tokens, rows, "{run}");
                    assert!(work.peak_pages <= n_pages && work.peak_pages >= prompt.len().div_ceil(page_size), "{run}");
                    assert_eq!(slab.borrow().pool().n_free(), n_pages, "{run}: pages returned");
                }
            }
        }
    }
}

#[test]
fn a_search_without_enough_pages_returns_all_and_one_without_new_tokens_takes_none() {
    let model = bundled("storyteller-draft");
    let slab = PageSlab::new(model.config().kv_layout(), 4, 4).unwrap();
    let stop = StopConditions { max_new_tokens: 30, end_of_text: &[] };
    let refused = search(&model, &slab, &[0, 435, 591, 12, 77], 3, stop, &mut |_| ());
    assert!(matches!(refused, Err(StepError::Cache(CacheError::OutOfPages { free: 0, .. }))), "{:?}", refused.err());
    assert_eq!(slab.borrow().pool().n_free(), 4);
    let (empty, work) =
        search(&model, &slab, &[0], 3, StopConditions { max_new_tokens: 0, ..stop }, &mut |_| ()).unwrap();
    assert_eq!(empty, [Continuation { tokens: vec![], log_probability: 0.0, score: 0.0, has_ended: false }]);
    assert_eq!(work.computed_tokens, 0);
}
