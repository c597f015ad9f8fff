//! Several texts told in turns: each is the one that it is when told alone, whatever the memory, and nothing is lost.

/// What needs the code of chapters 1 to 6. A reader's unfinished chapter fails its own checks, not these.
mod with_caches {
    use std::collections::HashSet;
    use std::io::Read;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use page_by_page::batch::{Batch, End, MOST_TEXTS, Memory, Stage};
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::in_place::InPlace;
    use page_by_page::model::{Model, StepError};
    use page_by_page::sampler::{Sampler, Sampling};
    use serde_json::{Value, json};

    use crate::checkpoints::Folder;
    use crate::program::{PROGRAM, Run, ok, run, run_with};

    const SEEDED: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 23 };
    /// Prompts, as ids of the small bundled model, and new tokens at most. The last may have none.
    const ASKED: [(&[u32], usize); 6] = [
        (&[0, 435, 591, 12, 77], 40),
        (&[0, 9], 13),
        (&[0, 500, 37, 4095, 8, 8, 8, 301, 44, 5, 6, 7, 1000, 1001, 1002, 1003, 1004], 25),
        (&[7], 1),
        (&[0, 435, 591, 12, 77], 30),
        (&[0, 1], 0),
    ];

    fn small_model() -> Model {
        Model::open(&crate::support::root().join("assets/storyteller-draft")).unwrap()
    }

    /// What a text becomes alone, computed without any cache; and why it ends.
    fn alone(model: &Model, (prompt, most): (&[u32], usize), ends: &[u32], sampling: Sampling) -> (Vec<u32>, End) {
        let mut sampler = Sampler::new(sampling);
        let mut text = prompt.to_vec();
        while text.len() < prompt.len() + most {
            let token = sampler.pick(&model.step(&text, None).unwrap());
            if ends.contains(&token) {
                return (text, End::EndOfText);
            }
            text.push(token);
        }
        (text, End::Limit)
    }

    /// Tokens that end some of the texts, each at another place.
    fn ends(model: &Model, sampling: Sampling) -> Vec<u32> {
        let (first, _) = alone(model, ASKED[0], &[], sampling);
        let (third, _) = alone(model, ASKED[2], &[], sampling);
        vec![third[third.len() - 5], first[first.len() - 9]]
    }

    fn batch<'m>(model: &'m Model, memory: Memory<'m>, ends: &[u32], sampling: Sampling) -> Batch<'m> {
        let mut batch = Batch::new(model, memory, ends);
        for (place, (prompt, most)) in ASKED.iter().enumerate() {
            assert_eq!(batch.add(prompt.to_vec(), *most, Sampler::new(sampling)), Ok(place));
        }
        batch
    }

    fn all_alone(model: &Model, ends: &[u32], sampling: Sampling) -> Vec<(Vec<u32>, End)> {
        ASKED.into_iter().map(|asked| alone(model, asked, ends, sampling)).collect()
    }

    #[track_caller]
    fn assert_as_alone(batch: &Batch<'_>, alone: &[(Vec<u32>, End)], run: &str) {
        for (place, ((text, asked), (expected, end))) in batch.texts().iter().zip(ASKED).zip(alone).enumerate() {
            let end = Stage::Ended(end.clone());
            assert_eq!((text.tokens(), text.stage()), (&expected[..], &end), "{run}, text {place}");
            assert_eq!(text.new_tokens(), &expected[asked.0.len()..], "{run}, text {place}");
        }
    }

    fn n_free(slab: &SharedSlab) -> usize {
        slab.borrow().pool().n_free()
    }

    /// Tells all texts and counts the pages in another way: from the tokens that each text has read.
    fn tell_and_count(batch: &mut Batch<'_>, slab: &SharedSlab, page_size: usize, run: &str) {
        let n_pages = slab.borrow().pool().n_pages();
        let mut peak = 0;
        let mut begun = 0;
        for step in 0.. {
            let run = format!("{run}, step {step}");
            if batch.is_done() {
                break;
            }
            assert!(step < 1000, "{run}: no end");
            let read: Vec<usize> = batch.texts().iter().map(|text| text.tokens().len()).collect();
            let held: Vec<usize> = batch.texts().iter().map(|text| text.pages().len()).collect();
            let answered: HashSet<usize> = batch.step().iter().map(|new| new.text).collect();
            let mut during = 0;
            for (place, text) in batch.texts().iter().enumerate() {
                let ends_now = matches!(text.stage(), Stage::Ended(_)) && held[place] + read[place] > 0;
                during += match text.stage() {
                    _ if answered.contains(&place) => read[place].div_ceil(page_size),
                    // It chose its end in this step, if it was not told before.
                    Stage::Ended(End::EndOfText)
                        if ends_now && text.usage().tokens == read[place] && held[place] > 0 =>
                    {
                        read[place].div_ceil(page_size)
                    }
                    _ => held[place],
                };
            }
            peak = peak.max(during);
            assert!(during <= n_pages, "{run}: {during} pages of {n_pages}");
            // Afterwards: nobody's page is another's, and what ended has none.
            let pages: Vec<_> = batch.texts().iter().flat_map(|text| text.pages()).collect();
            assert_eq!(pages.iter().collect::<HashSet<_>>().len(), pages.len(), "{run}: a page has two texts");
            assert_eq!(n_free(slab), n_pages - pages.len(), "{run}: free pages when the texts hold {}", pages.len());
            for text in batch.texts().iter().filter(|text| matches!(text.stage(), Stage::Ended(_))) {
                assert!(text.pages().is_empty(), "{run}: a text that has ended holds pages");
            }
            // They begin in order.
            let waiting = batch.texts().iter().position(|text| *text.stage() == Stage::Waiting);
            let now = waiting.unwrap_or(batch.texts().len());
            let later = &batch.texts()[now..];
            assert!(later.iter().all(|text| *text.stage() != Stage::Telling), "{run}: a text was passed over");
            assert!(now >= begun, "{run}");
            begun = now;
        }
        assert_eq!(batch.totals().peak_pages, peak, "{run}: pages at the peak");
        assert_eq!(n_free(slab), n_pages, "{run}: free pages in the end");
    }

    #[test]
    fn each_text_is_the_one_told_alone_in_pages_of_any_size_and_number() {
        let model = small_model();
        for sampling in [Sampling::GREEDY, SEEDED] {
            let ends = ends(&model, sampling);
            let alone = all_alone(&model, &ends, sampling);
            for page_size in [1, 3, 16] {
                let pages = |(prompt, most): (&[u32], usize)| (prompt.len() + most).div_ceil(page_size);
                let longest = ASKED.map(pages).into_iter().max().unwrap();
                let all: usize = ASKED.map(pages).into_iter().sum();
                let mut at_once = Vec::new();
                for n_pages in [longest, longest + 1, longest + longest / 2, all, 2 * all] {
                    let run = format!("temperature {}, {n_pages} pages of {page_size}", sampling.temperature);
                    let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
                    let mut batch = batch(&model, Memory::Shared(slab.clone()), &ends, sampling);
                    tell_and_count(&mut batch, &slab, page_size, &run);
                    assert_as_alone(&batch, &alone, &run);
                    at_once.push(batch.totals().most_texts);
                }
                assert!(at_once[0] < 5, "the longest text leaves no room for all others: {at_once:?}");
                assert_eq!(at_once[3..], [5, 5], "with pages for all, all that want a token are told at once");
            }
        }
    }

    #[test]
    fn the_texts_end_at_different_times() {
        // Otherwise the test above would show less than it says.
        let model = small_model();
        for sampling in [Sampling::GREEDY, SEEDED] {
            let ends = ends(&model, sampling);
            let told = ASKED.map(|asked| alone(&model, asked, &ends, sampling));
            let by_themselves = told.iter().filter(|(_, end)| *end == End::EndOfText).count();
            let lengths: HashSet<usize> =
                told.iter().zip(ASKED).map(|((text, _), (prompt, _))| text.len() - prompt.len()).collect();
            assert!(by_themselves >= 2 && lengths.len() >= 4, "{by_themselves} end by themselves; lengths {lengths:?}");
        }
    }

    #[test]
    fn a_step_is_one_pass_for_all() {
        let model = small_model();
        let slab = PageSlab::new(model.config().kv_layout(), 4, 200).unwrap();
        let mut batch = batch(&model, Memory::Shared(slab), &[], SEEDED);
        while !batch.is_done() {
            batch.step();
        }
        let totals = batch.totals();
        assert_eq!(totals.steps, 40, "as many passes as the longest text has new tokens");
        let rows: usize =
            ASKED.iter().filter(|(_, most)| *most > 0).map(|(prompt, most)| prompt.len() + most - 1).sum();
        assert_eq!(totals.rows_projected, rows as u64, "each token once, but never the last");
        assert_eq!((totals.prefill.steps, totals.decode.steps), (1, 39));
        assert_eq!(totals.prefill.answers + totals.decode.answers, 40 + 13 + 25 + 1 + 30);
    }

    #[test]
    fn a_cache_for_each_tells_the_same_texts() {
        let model = small_model();
        let layout = model.config().kv_layout();
        let ends = ends(&model, SEEDED);
        let alone = all_alone(&model, &ends, SEEDED);
        let make = |kind: &'static str| -> Memory<'static> {
            Memory::Apart(Box::new(move |tokens| -> Option<Box<dyn InPlace>> {
                match kind {
                    "flat" => Some(Box::new(FlatCache::new(layout))),
                    "contiguous" => Some(Box::new(ContiguousCache::new(layout, tokens))),
                    _ => None,
                }
            }))
        };
        for kind in ["recompute", "flat", "contiguous"] {
            let mut batch = batch(&model, make(kind), &ends, SEEDED);
            while !batch.is_done() {
                batch.step();
            }
            assert_as_alone(&batch, &alone, kind);
            assert_eq!((batch.totals().peak_pages, batch.totals().most_texts), (0, 5), "{kind}");
        }
    }

    #[test]
    fn a_text_that_is_too_long_for_the_slab_waits_until_it_is_alone_and_is_then_cut() {
        let model = small_model();
        // Pages of 4: the first text may need 11, the third 11; the others need 4 and fewer, or 9.
        let slab = PageSlab::new(model.config().kv_layout(), 4, 10).unwrap();
        let mut batch = batch(&model, Memory::Shared(slab.clone()), &[], SEEDED);
        let mut together = Vec::new();
        while !batch.is_done() {
            batch.step();
            let telling: Vec<usize> =
                (0..ASKED.len()).filter(|place| *batch.texts()[*place].stage() == Stage::Telling).collect();
            if telling.contains(&0) || telling.contains(&2) {
                together.push(telling.len());
            }
        }
        assert!(together.iter().all(|texts| *texts == 1), "in company: {together:?}");
        let refused = Stage::Ended(End::Refused(StepError::Cache(CacheError::OutOfPages { needed: 1, free: 0 })));
        for (place, (text, asked)) in batch.texts().iter().zip(ASKED).enumerate() {
            let (expected, _) = alone(&model, asked, &[], SEEDED);
            if place == 0 || place == 2 {
                assert_eq!(text.stage(), &refused, "text {place}");
                assert_eq!(text.tokens(), &expected[..41], "40 tokens in 10 pages, and the one that they led to");
                assert_eq!((text.pages_at_end(), text.usage().tokens), (10, 40));
            } else {
                assert_eq!((text.tokens(), text.stage()), (&expected[..], &Stage::Ended(End::Limit)), "text {place}");
            }
        }
        assert_eq!(n_free(&slab), 10);
    }

    #[test]
    fn a_text_that_may_be_too_long_can_end_in_time() {
        let model = small_model();
        let slab = PageSlab::new(model.config().kv_layout(), 4, 10).unwrap();
        let (text, _) = alone(&model, ASKED[0], &[], SEEDED);
        let mut batch = Batch::new(&model, Memory::Shared(slab), &[text[30]]);
        batch.add(ASKED[0].0.to_vec(), 1000, Sampler::new(SEEDED)).unwrap();
        while !batch.is_done() {
            batch.step();
        }
        assert_eq!(batch.texts()[0].stage(), &Stage::Ended(End::EndOfText));
    }

    #[test]
    fn a_refused_text_takes_no_other_along() {
        let model = small_model();
        let layout = model.config().kv_layout();
        let slots = |tokens: usize| if tokens == ASKED[1].0.len() + ASKED[1].1 { 6 } else { tokens };
        let memory = Memory::Apart(Box::new(move |tokens| {
            Some(Box::new(ContiguousCache::new(layout, slots(tokens))) as Box<dyn InPlace>)
        }));
        let mut batch = batch(&model, memory, &[], SEEDED);
        while !batch.is_done() {
            batch.step();
        }
        for (place, (text, asked)) in batch.texts().iter().zip(ASKED).enumerate() {
            let (expected, _) = alone(&model, asked, &[], SEEDED);
            if place == 1 {
                let refused = CacheError::OutOfSlots { needed: 1, free: 0, capacity: 6 };
                assert_eq!(text.stage(), &Stage::Ended(End::Refused(StepError::Cache(refused))));
                assert_eq!(text.tokens(), &expected[..7]);
            } else {
                assert_eq!((text.tokens(), text.stage()), (&expected[..], &Stage::Ended(End::Limit)), "text {place}");
            }
        }
    }

    #[test]
    fn logits_that_are_not_finite_end_the_texts_of_their_step() {
        let folder = Folder::copy_of("bf16-gqa3");
        folder.change_tensor("model.norm.weight", |tensor| {
            tensor.data = half::bf16::MAX.to_le_bytes().repeat(tensor.shape[0]);
        });
        let model = Model::open(Path::new(folder.path())).unwrap();
        let slab = PageSlab::new(model.config().kv_layout(), 4, 9).unwrap();
        let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &[]);
        for prompt in [vec![1, 2, 7], vec![3]] {
            batch.add(prompt, 5, Sampler::new(SEEDED)).unwrap();
        }
        assert!(batch.step().is_empty() && batch.is_done());
        for text in batch.texts() {
            let refused = matches!(text.stage(), Stage::Ended(End::Refused(StepError::NotFinite { .. })));
            assert!(refused && text.new_tokens().is_empty(), "{:?}", text.stage());
        }
        assert_eq!(n_free(&slab), 9);
    }

    #[test]
    fn a_step_has_no_more_texts_than_it_should() {
        let model = small_model();
        let mut batch = Batch::new(&model, Memory::Apart(Box::new(|_| None)), &[]);
        for _ in 0..MOST_TEXTS + 40 {
            batch.add(vec![0, 5], 2, Sampler::new(Sampling::GREEDY)).unwrap();
        }
        while !batch.is_done() {
            batch.step();
        }
        assert_eq!(batch.totals().most_texts, MOST_TEXTS);
        assert!(batch.texts().iter().all(|text| text.tokens() == batch.texts()[0].tokens()));
    }

    #[test]
    fn a_prompt_that_the_model_cannot_read_is_refused() {
        let model = small_model();
        let mut batch = Batch::new(&model, Memory::Apart(Box::new(|_| None)), &[]);
        assert_eq!(batch.add(vec![], 3, Sampler::new(SEEDED)), Err(StepError::NoTokens));
        let unknown = StepError::UnknownToken { token: 4096, vocab_size: 4096 };
        assert_eq!(batch.add(vec![0, 4096], 3, Sampler::new(SEEDED)), Err(unknown));
        assert!(batch.is_done() && batch.texts().is_empty());
    }

    /// Samples of one prompt share its pages with the code of chapter 10.
    mod samples {
        use super::*;

        /// What so many samples of a prompt become, each alone and computed without any cache.
        fn samples_alone(model: &Model, asked: (&[u32], usize), ends: &[u32], n: u64) -> Vec<(Vec<u32>, End)> {
            (0..n).map(|sample| alone(model, asked, ends, Sampling { seed: SEEDED.seed + sample, ..SEEDED })).collect()
        }

        fn samplers(n: u64) -> Vec<Sampler> {
            (0..n).map(|sample| Sampler::new(Sampling { seed: SEEDED.seed + sample, ..SEEDED })).collect()
        }

        /// Tells the texts and checks in every step who owns which page.
        fn tell_samples(batch: &mut Batch<'_>, slab: &SharedSlab, run: &str) {
            let n_pages = slab.borrow().pool().n_pages();
            for step in 0.. {
                if batch.is_done() {
                    break;
                }
                let run = format!("{run}, step {step}");
                assert!(step < 2000, "{run}: no end");
                let unended = |batch: &Batch<'_>| {
                    batch.texts().iter().filter(|text| !matches!(text.stage(), Stage::Ended(_))).count()
                };
                let before = (unended(batch), batch.texts().iter().map(|text| text.tokens().len()).sum::<usize>());
                let answered = batch.step().len();
                let after = (unended(batch), batch.texts().iter().map(|text| text.tokens().len()).sum::<usize>());
                assert_eq!(after.1, before.1 + answered, "{run}");
                assert!(before != after, "{run}: nobody got a token, and nobody ended");
                let slab = slab.borrow();
                let tables: Vec<_> = batch.texts().iter().flat_map(|text| text.pages()).collect();
                let owned: HashSet<_> = tables.iter().collect();
                assert_eq!(slab.pool().n_free(), n_pages - owned.len(), "{run}: free pages");
                for page in &owned {
                    let owners = tables.iter().filter(|other| other == page).count() as u32;
                    assert_eq!(slab.pool().owners(***page), Ok(owners), "{run}: owners of page {page}");
                }
            }
            assert_eq!(n_free(slab), n_pages, "{run}: free pages in the end");
        }

        #[test]
        fn each_sample_is_the_text_told_alone_in_pages_of_any_size_and_number() {
            let model = small_model();
            for (prompt, most) in [(ASKED[0].0, 20), (ASKED[2].0, 13), (&ASKED[2].0[..16], 10)] {
                let third = alone(&model, (prompt, most), &[], Sampling { seed: SEEDED.seed + 2, ..SEEDED }).0;
                let ends = [third[prompt.len() + most / 2]];
                let expected = samples_alone(&model, (prompt, most), &ends, 5);
                assert!(expected.iter().any(|(_, end)| *end == End::EndOfText), "one ends before the others");
                for page_size in [1, 3, 16, 256] {
                    let each = (prompt.len() + most - 1).div_ceil(page_size);
                    let full = prompt.len() / page_size;
                    let in_part = usize::from(!prompt.len().is_multiple_of(page_size));
                    // The least: one sample with pages of its own, beside the prompt that all others hold on to.
                    let least = full + in_part + (each - full);
                    let enough = full + 5 * (each - full);
                    let mut at_once = Vec::new();
                    for n_pages in [least, least + 1, least + 2, enough.max(least), 2 * enough.max(least)] {
                        let run = format!("{} tokens, {n_pages} pages of {page_size}", prompt.len());
                        let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
                        let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &ends);
                        assert_eq!(batch.add_samples(prompt, most, samplers(5)), Ok(0..5));
                        tell_samples(&mut batch, &slab, &run);
                        for (place, (text, (tokens, end))) in batch.texts().iter().zip(&expected).enumerate() {
                            let end = Stage::Ended(end.clone());
                            assert_eq!((text.tokens(), text.stage()), (&tokens[..], &end), "{run}, sample {place}");
                        }
                        let totals = batch.totals();
                        let read: usize = batch.texts().iter().map(|text| text.usage().tokens - prompt.len()).sum();
                        assert_eq!(
                            totals.rows_projected as usize,
                            prompt.len() + read,
                            "{run}: the prompt is read once"
                        );
                        let copied: u64 = batch.texts().iter().map(|text| text.usage().rows_copied).sum();
                        assert_eq!(copied as usize, 4 * (prompt.len() % page_size), "{run}: rows copied");
                        assert!(totals.peak_pages <= n_pages);
                        at_once.push((totals.most_texts, totals.steps));
                    }
                    assert_eq!(at_once[3..], [(5, most as u64); 2], "pages for all: nobody waits, {page_size} slots");
                    if page_size < 256 && each - full > 2 {
                        assert!(
                            at_once[0].1 > most as u64,
                            "in so few pages they wait: {at_once:?}, {page_size} slots"
                        );
                    }
                }
            }
        }

        #[test]
        fn samples_share_all_full_pages_and_copy_the_rest_but_once() {
            // The numbers of the chapter, of a quarter of the size: 8 samples of 225 tokens, 25 new ones, pages of 16.
            let model = small_model();
            let prompt: Vec<u32> = (0..225).map(|place| 5 + place * 7 % 1000).collect();
            let slab = PageSlab::new(model.config().kv_layout(), 16, 30).unwrap();
            let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &[]);
            batch.add_samples(&prompt, 25, samplers(8)).unwrap();
            assert_eq!(batch.step().len(), 8, "all choose their first token from the same logits");
            assert_eq!((batch.totals().rows_projected, n_free(&slab)), (225, 15), "a fork takes no page");
            assert!(batch.texts().iter().all(|text| !text.waits() && text.pages() == batch.texts()[0].pages()));
            assert_eq!(batch.step().len(), 8, "15 pages, 7 copies of the last");
            assert_eq!(n_free(&slab), 8);
            let copied: Vec<u64> = batch.texts().iter().map(|text| text.usage().rows_copied).collect();
            assert_eq!(copied, [1, 1, 1, 1, 1, 1, 1, 0], "the last owner writes in place");
            tell_samples(&mut batch, &slab, "eight samples");
            assert_eq!((batch.totals().steps, batch.totals().peak_pages), (25, 30));
        }

        #[test]
        fn samples_and_other_texts_share_a_slab_and_none_waits_for_ever() {
            let model = small_model();
            // Places: 0, 1 to 3, 4, 5 to 8, 9 and 10, 11.
            let asked: [((&[u32], usize), u64); 6] = [
                (ASKED[1], 1),
                ((ASKED[2].0, 15), 3),
                ((ASKED[0].0, 20), 1),
                ((ASKED[0].0, 20), 4),
                ((ASKED[3].0, 0), 2),
                ((ASKED[3].0, 9), 1),
            ];
            let expected = asked.map(|(asked, n)| samples_alone(&model, asked, &[], n)).concat();
            for n_pages in [9, 10, 11, 12, 14, 17, 21, 30] {
                let slab = PageSlab::new(model.config().kv_layout(), 4, n_pages).unwrap();
                let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &[]);
                for ((prompt, most), n) in asked {
                    if n == 1 && most > 9 {
                        batch.add(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap();
                    } else {
                        batch.add_samples(prompt, most, samplers(n)).unwrap();
                    }
                }
                assert_eq!(batch.texts().len(), 12);
                let run = format!("{n_pages} pages");
                tell_samples(&mut batch, &slab, &run);
                for (place, (text, (tokens, end))) in batch.texts().iter().zip(&expected).enumerate() {
                    let end = Stage::Ended(end.clone());
                    assert_eq!((text.tokens(), text.stage()), (&tokens[..], &end), "{run}, text {place}");
                }
            }
        }

        /// Random families in random pools: all end, each as it is alone, if the pool can hold the largest of them.
        #[test]
        fn whatever_is_asked_and_however_small_the_pool_all_are_told() {
            let model = Model::open(&crate::support::root().join("tests/golden/bf16-gqa3")).unwrap();
            let vocab_size = model.config().vocab_size;
            let mut state = 1_u64;
            let mut random = move |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let mut waited = 0;
            for run in 0..150 {
                let page_size = 1 + random(5);
                let ends = [random(vocab_size) as u32];
                let mut least = 1;
                let mut asked = Vec::new();
                for _ in 0..1 + random(4) {
                    let prompt: Vec<u32> = (0..1 + random(11)).map(|_| random(vocab_size) as u32).collect();
                    let (most, n) = (random(12), 1 + random(5));
                    if most > 0 {
                        let each = (prompt.len() + most - 1).div_ceil(page_size);
                        let shared = usize::from(n > 1 && most > 1 && !prompt.len().is_multiple_of(page_size));
                        least = least.max(each + shared);
                    }
                    asked.push((prompt, most, n));
                }
                let n_pages = least + random(6);
                let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
                let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &ends);
                let mut expected = Vec::new();
                for (prompt, most, n) in &asked {
                    batch.add_samples(prompt, *most, samplers(*n as u64)).unwrap();
                    expected.extend(samples_alone(&model, (prompt, *most), &ends, *n as u64));
                }
                let run = format!("run {run}: {asked:?} in {n_pages} pages of {page_size}");
                tell_samples(&mut batch, &slab, &run);
                for (place, (text, (tokens, end))) in batch.texts().iter().zip(&expected).enumerate() {
                    let end = Stage::Ended(end.clone());
                    assert_eq!((text.tokens(), text.stage()), (&tokens[..], &end), "{run}, text {place}");
                }
                let longest = batch.texts().iter().map(|text| text.new_tokens().len()).max().unwrap();
                waited += usize::from(batch.totals().steps as usize > longest + 1);
            }
            assert!(waited > 30, "only in {waited} runs did anybody wait");
        }

        #[test]
        fn samples_in_caches_apart_are_the_same_texts() {
            let model = small_model();
            let layout = model.config().kv_layout();
            let expected = samples_alone(&model, ASKED[0], &[], 3);
            for kind in ["recompute", "flat", "contiguous"] {
                let memory = Memory::Apart(Box::new(move |tokens| -> Option<Box<dyn InPlace>> {
                    match kind {
                        "flat" => Some(Box::new(FlatCache::new(layout))),
                        "contiguous" => Some(Box::new(ContiguousCache::new(layout, tokens))),
                        _ => None,
                    }
                }));
                let mut batch = Batch::new(&model, memory, &[]);
                assert_eq!(batch.add_samples(ASKED[0].0, ASKED[0].1, samplers(3)), Ok(0..3));
                while !batch.is_done() {
                    batch.step();
                }
                for (text, (tokens, _)) in batch.texts().iter().zip(&expected) {
                    assert_eq!(text.tokens(), &tokens[..], "{kind}");
                }
            }
        }

        #[test]
        fn samples_that_are_too_long_for_the_slab_are_told_one_after_the_other_and_cut() {
            let model = small_model();
            // 5 tokens and up to 39 that are read: 11 pages of 4, and one more while others have the last page of the prompt.
            let expected = samples_alone(&model, ASKED[0], &[], 3);
            let slab = PageSlab::new(model.config().kv_layout(), 4, 10).unwrap();
            let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &[]);
            batch.add_samples(ASKED[0].0, ASKED[0].1, samplers(3)).unwrap();
            tell_samples(&mut batch, &slab, "10 pages");
            let lengths: Vec<usize> = batch.texts().iter().map(|text| text.tokens().len()).collect();
            // Nine pages beside the shared one; the last sample has them all.
            assert_eq!(lengths, [37, 37, 41]);
            for (text, (tokens, _)) in batch.texts().iter().zip(&expected) {
                assert_eq!(text.tokens(), &tokens[..text.tokens().len()]);
                assert!(matches!(
                    text.stage(),
                    Stage::Ended(End::Refused(StepError::Cache(CacheError::OutOfPages { .. })))
                ));
            }
        }

        #[test]
        fn a_prompt_that_does_not_fit_ends_all_its_samples() {
            let model = small_model();
            let slab = PageSlab::new(model.config().kv_layout(), 4, 2).unwrap();
            let mut batch = Batch::new(&model, Memory::Shared(slab.clone()), &[]);
            batch.add_samples(ASKED[2].0, 5, samplers(3)).unwrap();
            batch.add(ASKED[1].0.to_vec(), 3, Sampler::new(SEEDED)).unwrap();
            tell_samples(&mut batch, &slab, "2 pages");
            let refused = Stage::Ended(End::Refused(StepError::Cache(CacheError::OutOfPages { needed: 5, free: 2 })));
            assert!(batch.texts()[..3].iter().all(|text| *text.stage() == refused && text.new_tokens().is_empty()));
            assert_eq!(batch.texts()[3].stage(), &Stage::Ended(End::Limit));
            assert_eq!(
                batch.add_samples(&[4096], 5, samplers(3)),
                Err(StepError::UnknownToken { token: 4096, vocab_size: 4096 })
            );
            assert_eq!(batch.texts().len(), 4);
        }
    }

    /// Several prompts share pages with the code of chapters 10 and 11.
    mod prefixes {
        use page_by_page::chapters::ch11_prefix_cache::PrefixCache;

        use super::*;

        fn prefixed<'m>(model: &'m Model, slab: &SharedSlab, page_size: usize, ends: &[u32]) -> Batch<'m> {
            Batch::new(model, Memory::Prefixed(slab.clone(), PrefixCache::new(page_size).unwrap()), ends)
        }

        /// Tells the texts; every page has its texts and the prefix cache as owners, or some of them, or none.
        fn tell(batch: &mut Batch<'_>, slab: &SharedSlab, run: &str) {
            let n_pages = slab.borrow().pool().n_pages();
            let pages_of = |batch: &Batch<'_>| -> Vec<PageId> {
                batch.texts().iter().flat_map(|text| text.pages()).copied().collect()
            };
            for step in 0.. {
                if batch.is_done() {
                    break;
                }
                let run = format!("{run}, step {step}");
                assert!(step < 2000, "{run}: no end");
                let waiting =
                    |batch: &Batch<'_>| batch.texts().iter().filter(|text| *text.stage() == Stage::Waiting).count();
                let unended = |batch: &Batch<'_>| {
                    batch.texts().iter().filter(|text| !matches!(text.stage(), Stage::Ended(_))).count()
                };
                let before = (waiting(batch), unended(batch));
                let answered = batch.step().len();
                assert!(answered > 0 || unended(batch) < before.1, "{run}: nobody got a token, and nobody ended");
                assert!(waiting(batch) + 1 >= before.0, "{run}: two have begun");
                let slab = slab.borrow();
                let tables = pages_of(batch);
                for page in (0..n_pages as u32).map(PageId) {
                    let texts = tables.iter().filter(|other| **other == page).count() as u32;
                    let owners = slab.pool().owners(page).unwrap();
                    assert!(
                        (texts..=texts + 1).contains(&owners),
                        "{run}: page {page} has {owners} owners, {texts} texts"
                    );
                }
            }
            let slab = slab.borrow();
            let kept = (0..n_pages as u32).filter(|page| slab.pool().owners(PageId(*page)) == Ok(1)).count();
            assert_eq!(slab.pool().n_free() + kept, n_pages, "{run}: pages free, or the prefix cache's alone");
        }

        #[test]
        fn a_text_finds_the_full_pages_of_those_before_it() {
            let model = small_model();
            let slab = PageSlab::new(model.config().kv_layout(), 4, 40).unwrap();
            let mut batch = prefixed(&model, &slab, 4, &[]);
            let long = ASKED[2].0;
            // The same prompt, one token longer than four pages; a part of it; another; and four pages, one of which is computed.
            let asked: [(&[u32], usize, usize); 5] =
                [(long, 9, 0), (long, 9, 16), (&long[..9], 9, 8), (ASKED[0].0, 9, 0), (&long[..16], 9, 12)];
            for (prompt, most, _) in asked {
                batch.add(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap();
            }
            tell(&mut batch, &slab, "40 pages");
            let found: Vec<usize> = batch.texts().iter().map(|text| text.n_found()).collect();
            assert_eq!(found, asked.map(|(_, _, found)| found));
            let rows: usize = asked.iter().map(|(prompt, most, found)| prompt.len() + most - 1 - found).sum();
            assert_eq!(batch.totals().rows_projected, rows as u64);
            for (text, (prompt, most, _)) in batch.texts().iter().zip(asked) {
                assert_eq!(text.tokens(), &alone(&model, (prompt, most), &[], SEEDED).0[..]);
            }
            // What a text has made is found as well.
            let told = batch.texts()[0].tokens().to_vec();
            batch.add([&told[..25], &[7]].concat(), 2, Sampler::new(SEEDED)).unwrap();
            tell(&mut batch, &slab, "once more");
            assert_eq!(batch.texts()[5].n_found(), 24, "25 tokens were read: six pages");
        }

        #[test]
        fn what_only_the_prefix_cache_has_is_as_good_as_free() {
            let model = small_model();
            let slab = PageSlab::new(model.config().kv_layout(), 4, 10).unwrap();
            let mut batch = prefixed(&model, &slab, 4, &[]);
            batch.add(ASKED[2].0.to_vec(), 9, Sampler::new(SEEDED)).unwrap();
            tell(&mut batch, &slab, "25 tokens");
            assert_eq!((n_free(&slab), batch.totals().peak_pages), (4, 7), "six full pages are kept");
            let before = batch.totals().steps;
            for prompt in [ASKED[0].0, &[9, 8, 7, 6, 5]] {
                batch.add(prompt.to_vec(), 14, Sampler::new(SEEDED)).unwrap();
            }
            tell(&mut batch, &slab, "two of 18 tokens");
            assert_eq!(batch.totals().steps - before, 15, "five pages each: one begins a step later, and nobody waits");
            assert_eq!(batch.totals().peak_pages, 10, "pages that texts had");
        }

        #[test]
        fn pages_that_a_younger_text_has_found_are_not_waited_for() {
            let model = small_model();
            let slab = PageSlab::new(model.config().kv_layout(), 1, 12).unwrap();
            let mut batch = prefixed(&model, &slab, 1, &[]);
            // The third finds six pages of the first, which the second needs when the first has ended: it must wait.
            let asked: [(&[u32], usize); 3] = [(&[1, 2, 3, 4, 5, 6], 4), (&[7], 9), (&[1, 2, 3, 4, 5, 6, 8], 3)];
            for (prompt, most) in asked {
                batch.add(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap();
            }
            tell(&mut batch, &slab, "12 pages");
            for (text, asked) in batch.texts().iter().zip(asked) {
                let (tokens, end) = alone(&model, asked, &[], SEEDED);
                assert_eq!((text.tokens(), text.stage()), (&tokens[..], &Stage::Ended(end)));
            }
        }

        #[test]
        fn whatever_begins_alike_and_however_small_the_pool_all_are_told_as_alone() {
            let model = Model::open(&crate::support::root().join("tests/golden/bf16-gqa3")).unwrap();
            let vocab_size = model.config().vocab_size;
            let mut state = 5_u64;
            let mut random = move |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let (mut found, mut waited) = (0, 0);
            for run in 0..200 {
                let page_size = 1 + random(4);
                let ends = [random(vocab_size) as u32];
                let stem: Vec<u32> = (0..20).map(|_| random(vocab_size) as u32).collect();
                let mut least = 1;
                let mut asked = Vec::new();
                for _ in 0..1 + random(8) {
                    let mut prompt = stem[..1 + random(19)].to_vec();
                    prompt.extend((0..random(3)).map(|_| random(vocab_size) as u32));
                    let most = random(10);
                    if most > 0 {
                        least = least.max((prompt.len() + most - 1).div_ceil(page_size));
                    }
                    asked.push((prompt, most));
                }
                let n_pages = least + random(8);
                let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
                let mut batch = prefixed(&model, &slab, page_size, &ends);
                for (prompt, most) in &asked {
                    batch.add(prompt.clone(), *most, Sampler::new(SEEDED)).unwrap();
                }
                let run = format!("run {run}: {asked:?} in {n_pages} pages of {page_size}");
                tell(&mut batch, &slab, &run);
                for (place, (text, (prompt, most))) in batch.texts().iter().zip(&asked).enumerate() {
                    let (tokens, end) = alone(&model, (prompt, *most), &ends, SEEDED);
                    assert_eq!((text.tokens(), text.stage()), (&tokens[..], &Stage::Ended(end)), "{run}, text {place}");
                }
                found += batch.texts().iter().map(|text| text.n_found()).sum::<usize>();
                let longest = batch.texts().iter().map(|text| text.new_tokens().len()).max().unwrap();
                waited += usize::from(batch.totals().steps as usize > longest + asked.len());
            }
            assert!(found > 1000 && waited > 20, "{found} tokens found, and in {waited} runs somebody waited");
        }

        #[test]
        fn the_command_tells_the_same_texts_with_a_prefix_cache() {
            let beginning = "Once upon a time there was a king who had a daughter, and the daughter had";
            let prompts =
                [format!("{beginning} a ring"), format!("{beginning} no"), "One day".into(), format!("{beginning} a")];
            let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
            let asked = |more: &[&str]| {
                let arguments = [&["generate"], &prompts[..], &["--max-new-tokens", "20"], more].concat();
                ok(&arguments)
            };
            let expected = asked(&[]).stdout;
            for pages in
                [&[] as &[&str], &["--page-size", "3"], &["--page-size", "1"], &["--page-size", "4", "--pages", "12"]]
            {
                let run = asked(&[pages, &["--prefix-cache"]].concat());
                assert_eq!(run.stdout, expected, "{pages:?}");
            }
            let run = asked(&["--prefix-cache", "--page-size", "4"]);
            let line = |name: &str| run.stderr.lines().find(|line| line.starts_with(name)).expect(name).to_string();
            let all = json_of(&asked(&["--prefix-cache", "--page-size", "4", "--json"]));
            let texts = all["texts"].as_array().unwrap();
            let found: Vec<u64> = texts.iter().map(|text| text["found"].as_u64().unwrap()).collect();
            assert!(found[0] == 0 && found[2] == 0 && found[1] >= 16 && found[3] >= 16, "{found:?}");
            let prompts: usize = texts.iter().map(|text| text["tokens"]["prompt"].as_array().unwrap().len()).sum();
            let sum: u64 = found.iter().sum();
            assert_eq!(line("prefixes"), format!("prefixes   {sum} of {prompts} tokens of the prompts found"));
            let rows = prompts as u64 + 4 * 19;
            assert_eq!(line("projected"), format!("projected  {} rows; 4 caches apart: {rows} rows", rows - sum));
            assert_eq!(all["apart"]["rows_projected"], rows);
            let chapters = line("chapters");
            assert!(chapters.ends_with("10 reference, 11 reference, 13 reference"), "{chapters}");
        }

        #[test]
        fn a_prefix_cache_that_serves_nobody_is_refused() {
            let refused = |arguments: &[&str], says: &str| {
                let run = run(&[&["generate", "--prefix-cache"], arguments].concat());
                assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
                assert_eq!(run.stderr, format!("error: {says}\n"));
            };
            refused(
                &["One day"],
                "--prefix-cache is for several prompts, and one was given; give more, or leave it out",
            );
            let says = "--prefix-cache is for several prompts, --samples for one: use one or the other";
            refused(&["One day", "--samples", "2"], says);
            refused(&["One day", "--beams", "2"], &says.replace("--samples", "--beams"));
            let says = "--prefix-cache keeps pages, and --kv flat has none; leave out --kv, or give --kv paged";
            refused(&["One day", "The king", "--kv", "flat"], says);
        }
    }

    // The command

    const PROMPTS: [&str; 4] = ["Once upon a time", "The king had", "An old woman", "One day"];

    /// `generate` with the four prompts; the third of them ends by itself after 107 new tokens.
    fn several<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["generate"], &PROMPTS[..], &["--max-new-tokens", "110"], more].concat()
    }

    /// What `several` should print: each text as it is told alone.
    fn told_alone(more: &[&str]) -> String {
        let mut texts = String::new();
        for (prompt, number) in PROMPTS.iter().zip(1..) {
            let alone = ok(&[&["generate", prompt, "--max-new-tokens", "110"], more].concat()).stdout;
            texts.push_str(&format!("{}text {number}\n{alone}", if number == 1 { "" } else { "\n" }));
        }
        texts
    }

    #[test]
    fn the_command_prints_the_texts_that_it_prints_alone() {
        let memories: [&[&str]; 5] = [
            &["--page-size", "3", "--pages", "39"],
            &[],
            &["--page-size", "1"],
            &["--kv", "flat"],
            &["--kv", "contiguous"],
        ];
        for (sampling, memories) in [
            (&[] as &[&str], &memories[..]),
            (&["--temperature", "0"], &memories[..1]),
            (&["--seed", "4", "--top-k", "40"], &memories[..1]),
        ] {
            let expected = told_alone(sampling);
            for memory in memories {
                let run = ok(&several(&[memory, sampling].concat()));
                assert_eq!(run.stdout, expected, "{memory:?} {sampling:?}");
                assert!(!run.stderr.contains('\u{1b}'), "no picture where nobody watches");
            }
        }
        // Recomputing takes its time: shorter texts.
        let short = |kv| ok(&[&["generate"], &PROMPTS[..], &["--max-new-tokens", "12", "--kv", kv]].concat()).stdout;
        assert_eq!(short("recompute"), short("paged"));
    }

    #[test]
    fn the_report_counts_for_all_texts() {
        let report = |more: &[&str]| ok(&several(more)).stderr;
        let line = |report: &str, name: &str| {
            let line = report.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {report}"));
            line[name.len()..].trim_start().to_string()
        };
        let paged = report(&[]);
        // 5, 4, 5 and 3 tokens; 110 new ones, the third text 107 and its end. The last of 110 is not read.
        assert_eq!(line(&paged, "texts"), "4, at most 4 in a step");
        assert!(line(&paged, "prefill").starts_with("17 tokens in 1 step, "), "{paged}");
        assert!(line(&paged, "decode").starts_with("434 tokens in 109 steps, "), "{paged}");
        assert_eq!(line(&paged, "projected"), "451 rows");
        assert_eq!(line(&paged, "cache"), "paged: 451 tokens in 480 slots, 29 wasted, 1.41 MiB; 0 rows copied");
        assert_eq!(line(&paged, "pages"), "28 of 32 at the peak, 16 slots each");
        assert_eq!(line(&paged, "room for"), "4 texts like these in 32 pages; with 115 slots reserved for each: 4");
        assert!(line(&paged, "chapters").starts_with("4 reference, 5 reference, 6 reference"));
        assert!(
            paged.lines().any(|line| line.starts_with("3      An old woman") && line.contains("by itself")),
            "{paged}"
        );

        let contiguous = report(&["--kv", "contiguous"]);
        assert_eq!(
            line(&contiguous, "cache"),
            "contiguous: 451 tokens in 457 slots, 6 wasted, 1.34 MiB; 0 rows copied"
        );
        assert!(!contiguous.contains("\npages") && !contiguous.contains("\nroom for"), "{contiguous}");
        let greedy = report(&["--temperature", "0"]);
        assert!(line(&greedy, "chapters").starts_with("1 reference"), "argmax is chapter 1's: {greedy}");
    }

    fn json_of(run: &Run) -> Value {
        serde_json::from_str(&run.stdout).expect("JSON on standard output")
    }

    #[test]
    fn json_is_one_object_with_all_texts() {
        let all = json_of(&ok(&several(&["--json"])));
        for (text, prompt) in all["texts"].as_array().unwrap().iter().zip(PROMPTS) {
            let alone = json_of(&ok(&["generate", prompt, "--max-new-tokens", "110", "--json"]));
            for key in ["prompt", "text", "tokens"] {
                assert_eq!(text[key], alone[key], "{key} of {prompt}");
            }
        }
        let ends: Vec<&Value> = all["texts"].as_array().unwrap().iter().map(|text| &text["end"]).collect();
        assert_eq!(json!(ends), json!(["limit", "limit", "end of text", "limit"]));
        assert_eq!(all["texts"][2]["held"], json!({ "tokens": 112, "slots": 112, "pages": 7 }));
        let counters = json!({
            "steps": 110, "most_texts_in_a_step": 4, "rows_projected": 451, "rows_copied": 0, "tokens": 451,
            "slots": 480, "wasted": 29, "bytes": 480 * 2 * 6 * 64 * 4
        });
        assert_eq!(all["counters"], counters);
        let room_for = json!({ "in_pages": 4, "reserved": 4, "slots_reserved_for_each": 115 });
        assert_eq!(all["pages"], json!({ "page_size": 16, "pages": 32, "peak": 28, "room_for": room_for }));
        assert!(all["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
    }

    fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.txt");
        std::fs::write(&path, contents).unwrap();
        (folder, path)
    }

    #[test]
    fn prompts_come_from_a_file_or_from_standard_input() {
        let expected = ok(&["generate", "The king had", "One day", "--max-new-tokens", "9"]).stdout;
        let lines = b"\xEF\xBB\xBFThe king had\r\n\n   \nOne day";
        let (_folder, path) = file(lines);
        let path = path.to_str().unwrap();
        assert_eq!(ok(&["generate", "--prompts", path, "--max-new-tokens", "9"]).stdout, expected);
        let piped = run_with(&["generate", "--prompts", "-", "--max-new-tokens", "9"], lines);
        assert_eq!((piped.code, piped.stdout), (Some(0), expected));
        // A file with one prompt is a list of one.
        let one = run_with(&["generate", "--prompts", "-", "--max-new-tokens", "9", "--json"], b"One day\n");
        assert_eq!(json_of(&one)["texts"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_file_without_prompts_is_refused_by_name() {
        for (contents, says) in [
            (b"" as &[u8], "no prompt; write one a line"),
            (b"\n \r\n", "no prompt; write one a line"),
            (b"One day\nThe \xFFking\n", "line 2 is not UTF-8; save the file as UTF-8"),
        ] {
            let (_folder, path) = file(contents);
            let run = run(&["generate", "--prompts", path.to_str().unwrap()]);
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
            assert!(run.stderr.starts_with(&format!("error: {}: {says}", path.display())), "{}", run.stderr);
        }
        let (folder, path) = file(b"");
        for path in [folder.path(), &path.with_file_name("no_such_file")] {
            let run = run(&["generate", "--prompts", path.to_str().unwrap()]);
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
            let start = format!("error: {}: name a file with one prompt a line, or - for", path.display());
            assert!(run.stderr.starts_with(&start), "{}", run.stderr);
        }
        let both = run(&["generate", "One day", "--prompts", path.to_str().unwrap()]);
        assert_eq!((both.code, both.stdout.as_str()), (Some(2), ""));
    }

    #[test]
    fn what_serves_one_text_is_refused_for_several() {
        for (option, value) in
            [("--draft", "storyteller-draft"), ("--save-cache", "no/such/file"), ("--load-cache", "no/such/file")]
        {
            let run = run(&several(&[option, value]));
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
            let says =
                run.stderr.starts_with("error: --") && run.stderr.contains("several were asked for; give one prompt");
            assert!(says && run.stderr.contains(option), "{}", run.stderr);
        }
        let empty = run(&["generate", "One day", ""]);
        assert_eq!((empty.code, empty.stdout.as_str()), (Some(1), ""));
        assert_eq!(empty.stderr, "error: text 2: the prompt is empty; give the text a beginning\n");
        for (arguments, says) in [
            (["--page-size", "0"], "error: a page needs at least one slot"),
            (["--pages", "0"], "error: a pool needs at least one page"),
            (["--pages", "99999999999"], "error: 99,999,999,999 pages are more than"),
        ] {
            let run = run(&several(&arguments));
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
            assert!(run.stderr.starts_with(says), "{}", run.stderr);
        }
    }

    #[test]
    fn a_pool_that_is_too_small_cuts_a_text_and_loses_nothing() {
        // Seven pages are 112 tokens: enough for the third text, and for the fourth, whose last token is not read.
        let expected = told_alone(&[]);
        let cut = run(&several(&["--pages", "7"]));
        assert_eq!(cut.code, Some(1));
        let (whole, found): (Vec<&str>, Vec<&str>) =
            (expected.split("\n\n").collect(), cut.stdout.split("\n\n").collect());
        assert_eq!(found.len(), 4, "{}", cut.stdout);
        for (place, (found, whole)) in found.iter().zip(&whole).enumerate() {
            let found = found.trim_end();
            assert!(whole.starts_with(found) && found.len() > 400, "text {}: {found}", place + 1);
            assert_eq!(place >= 2, found == whole.trim_end(), "text {}: {found}", place + 1);
        }
        let errors: Vec<&str> = cut.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 2, "{}", cut.stderr);
        let says = "error: text 1 is cut after 108 of 110 new tokens: pages needed: 1, free: 0 of 7, and no other text is \
                    left to wait for; give the pool more pages (--pages), or ask for fewer tokens";
        assert_eq!(errors[0], says);
        assert!(errors[1].starts_with("error: text 2 is cut after 109 of 110 new tokens: "), "{}", errors[1]);

        let json = run(&several(&["--pages", "7", "--json"]));
        assert_eq!(json.code, Some(1));
        let all = json_of(&json);
        assert_eq!((&all["texts"][0]["end"], &all["texts"][2]["end"]), (&json!("refused"), &json!("end of text")));
        assert_eq!(all["texts"][0]["tokens"]["new"].as_array().unwrap().len(), 108);
        assert!(all["texts"][0]["error"].as_str().unwrap().starts_with("pages needed: 1, free: 0 of 7"));
        assert_eq!(all["pages"]["peak"], 7);
    }

    #[test]
    fn a_prompt_that_no_pool_of_this_size_can_hold_is_refused_first() {
        let run = run(&several(&["--pages", "1", "--page-size", "4"]));
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let says = "error: text 1: its prompt of 5 tokens needs 2 pages of 4 slots, and the pool has 1; give it more \
                    (--pages), or shorten the prompt\n";
        assert_eq!(run.stderr, says);
    }

    #[test]
    fn nobody_left_to_read_is_no_failure() {
        let mut child = Command::new(PROGRAM)
            .args(several(&["--kv", "recompute"]))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut start = [0; 27];
        child.stdout.take().unwrap().read_exact(&mut start).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(start, *b"text 1\nOnce upon a time the");
        assert!(output.status.success() && !stderr.contains("panicked") && !stderr.contains("error"), "{stderr}");
    }
}
