//! The loop around the scheduler, and the command `batch`: each text is the one that it is when told alone, whatever the pool,
//! the budget and the company, and nothing is lost.

/// What needs the code of chapters 1, 4 to 6 and 10 to 12. A reader's unfinished chapter fails its own checks, not these.
mod with_a_scheduler {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use page_by_page::cache::CacheError;
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::model::{LogitRows, Model, StepError};
    use page_by_page::prefixes::none::NoPrefixes;
    use page_by_page::prefixes::Prefixes;
    use page_by_page::sampler::{Sampler, Sampling};
    use page_by_page::schedule::{End, ScheduleError, StepLimits, TextId};
    use page_by_page::scoring::{Likely, likely};
    use page_by_page::serving::{Serving, ServingError, Told, Totals};
    use serde_json::{Value, json};

    use crate::checkpoints::Folder;
    use crate::program::{PROGRAM, Run, run_with, spawn};

    const SEEDED: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 23 };
    /// Prompts, as ids of the tiny model, and new tokens at most. Some begin alike, two are the same, one gets no token.
    const ASKED: [(&[u32], usize); 8] = [
        (&[1, 43, 59, 12, 57], 30),
        (&[1, 9], 13),
        (&[1, 43, 59, 12, 57, 40, 9, 8, 7, 30, 44, 5, 6, 7, 10, 11, 13], 25),
        (&[7], 1),
        (&[1, 43, 59, 12, 57], 30),
        (&[1, 1], 0),
        (&[1, 43, 59, 12, 57, 40, 9, 8, 7, 30, 44, 5, 6, 7, 10, 11, 13], 17),
        (&[1, 43, 59, 12, 57, 40, 9, 8, 2], 9),
    ];

    /// Slots that the longest of them takes: its newest token is never read.
    const LONGEST: usize = 17 + 25 - 1;

    fn tiny_model() -> Model {
        Model::open(&crate::support::root().join("tests/golden/bf16-gqa3")).unwrap()
    }

    /// A text as it ends.
    type Ended = (Vec<u32>, Result<End, StepError>);

    /// What a text becomes alone, computed without any cache; and why it ends.
    fn alone(model: &Model, (prompt, most): (&[u32], usize), ends: &[u32], sampling: Sampling) -> Ended {
        let mut sampler = Sampler::new(sampling);
        let mut text = prompt.to_vec();
        while text.len() < prompt.len() + most {
            let logits = match model.step(&text, None) {
                Ok(logits) => logits,
                Err(error) => return (text, Err(error)),
            };
            let token = sampler.pick(&logits);
            if ends.contains(&token) {
                return (text, Ok(End::EndOfText));
            }
            text.push(token);
        }
        (text, Ok(End::Limit))
    }

    /// Each text draws with a seed of its own.
    fn sampling_of(place: usize, sampling: Sampling) -> Sampling {
        Sampling { seed: sampling.seed + place as u64 % 3, ..sampling }
    }

    fn all_alone(model: &Model, ends: &[u32], sampling: Sampling) -> Vec<Ended> {
        let texts = ASKED.into_iter().enumerate();
        texts.map(|(place, asked)| alone(model, asked, ends, sampling_of(place, sampling))).collect()
    }

    /// Tokens that end some of the texts, each at another place.
    fn ends(model: &Model, sampling: Sampling) -> Vec<u32> {
        let (first, _) = alone(model, ASKED[0], &[], sampling_of(0, sampling));
        let (third, _) = alone(model, ASKED[2], &[], sampling_of(2, sampling));
        vec![third[third.len() - 5], first[first.len() - 9]]
    }

    #[derive(Clone, Copy, Debug)]
    struct Setting {
        page_size: usize,
        n_pages: usize,
        limits: StepLimits,
        keeps_prefixes: bool,
    }

    fn serving<'m>(model: &'m Model, setting: Setting, ends: &[u32]) -> (Serving<'m>, SharedSlab) {
        let Setting { page_size, n_pages, limits, keeps_prefixes } = setting;
        let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
        let prefixes: Box<dyn Prefixes> = match keeps_prefixes {
            true => Box::new(PrefixCache::new(page_size).unwrap()),
            false => Box::new(NoPrefixes::new(page_size).unwrap()),
        };
        (Serving::new(model, &slab, prefixes, limits, ends).unwrap(), slab)
    }

    /// Tells all texts in a setting, and compares each with the one told alone.
    fn tell(model: &Model, setting: Setting, sampling: Sampling, ends: &[u32], alone: &[Ended]) -> (Vec<Told>, Totals) {
        let (mut serving, slab) = serving(model, setting, ends);
        let mut ids = Vec::new();
        for (place, (prompt, most)) in ASKED.iter().enumerate() {
            let sampler = Sampler::new(sampling_of(place, sampling));
            ids.push(serving.submit(prompt.to_vec(), *most, sampler).unwrap());
        }
        let mut reported: HashMap<TextId, Vec<u32>> = HashMap::new();
        let mut told = Vec::new();
        for step in 0.. {
            if serving.is_done() {
                break;
            }
            assert!(step < 10_000, "{setting:?}: no end");
            let done = serving.step().unwrap();
            for pick in done.new_tokens {
                assert!(
                    !told.iter().any(|told: &Told| told.text.id == pick.text),
                    "{setting:?}: a token after the end"
                );
                reported.entry(pick.text).or_default().push(pick.token);
            }
            told.extend(done.told);
        }
        told.sort_by_key(|told| told.text.id);
        assert_eq!(told.iter().map(|told| told.text.id).collect::<Vec<_>>(), ids, "{setting:?}");
        for (told, (tokens, end)) in told.iter().zip(alone) {
            let id = told.text.id;
            assert_eq!((&told.text.tokens, &told.end), (tokens, end), "{setting:?}, text {id}");
            let reported = reported.remove(&id).unwrap_or_default();
            assert_eq!(told.text.new_tokens(), reported, "{setting:?}: the tokens reported of text {id}");
        }
        let (pool, kept) = (slab.borrow().pool().n_free(), serving.scheduler().prefixes().n_pages());
        assert_eq!(pool + kept, setting.n_pages, "{setting:?}: free pages and kept ones in the end");
        (told, serving.totals())
    }

    /// All settings of these, each with each.
    fn settings() -> Vec<Setting> {
        let mut settings = Vec::new();
        for page_size in [1, 3, 16] {
            let least = LONGEST.div_ceil(page_size);
            for n_pages in [least, least + 2, 3 * least] {
                for (tokens, texts) in [(1, 1), (1, 8), (2, 3), (7, 2), (7, 8), (64, 5), (1000, 1000)] {
                    for keeps_prefixes in [true, false] {
                        let limits = StepLimits { tokens, texts };
                        settings.push(Setting { page_size, n_pages, limits, keeps_prefixes });
                    }
                }
            }
        }
        settings
    }

    #[test]
    fn each_text_is_the_one_told_alone_in_every_setting() {
        let model = tiny_model();
        let (mut preempted, mut found, mut found_again) = (0, 0, 0);
        for sampling in [Sampling::GREEDY, SEEDED] {
            let ends = ends(&model, sampling);
            let alone = all_alone(&model, &ends, sampling);
            assert!(alone.iter().any(|(_, end)| *end == Ok(End::EndOfText)), "none ends by itself");
            for setting in settings() {
                let (told, totals) = tell(&model, setting, sampling, &ends, &alone);
                preempted += totals.preemptions;
                found += totals.found;
                found_again += totals.found_again;
                check_counters(setting, &told, totals);
            }
        }
        // Else this has shown little.
        assert!(preempted > 100 && found > 1000 && found_again > 100, "{preempted} {found} {found_again}");
    }

    fn check_counters(setting: Setting, told: &[Told], totals: Totals) {
        let sum = |of: fn(&Told) -> u64| told.iter().map(of).sum::<u64>();
        assert_eq!(totals.rows_projected, sum(|told| told.text.counters.computed), "{setting:?}");
        assert_eq!(totals.computed_again, sum(|told| told.computed_again), "{setting:?}");
        assert_eq!(totals.preemptions, sum(|told| told.text.counters.preemptions), "{setting:?}");
        assert_eq!(totals.new_tokens, sum(|told| told.text.new_tokens().len() as u64), "{setting:?}");
        assert_eq!(totals.found, sum(|told| told.text.counters.found as u64), "{setting:?}");
        assert!(totals.peak_pages <= setting.n_pages && totals.peak_pages > 0, "{setting:?}");
        assert!(totals.most_texts <= setting.limits.texts.min(setting.limits.tokens), "{setting:?}");
        // All but one have run; nothing of a prompt is lost.
        assert_eq!(totals.prompt_tokens, 5 + 2 + 17 + 1 + 5 + 17 + 9, "{setting:?}");
        for told in told {
            let (text, counters) = (&told.text, told.text.counters);
            // The newest token is never read; where the model chose an end, all were.
            let rows = text.tokens.len() - usize::from(told.end == Ok(End::Limit));
            let computed = counters.computed as usize;
            if text.max_new_tokens == 0 {
                assert_eq!((computed, counters.found), (0, 0), "{setting:?}");
            } else if counters.preemptions == 0 {
                assert_eq!((computed + counters.found, told.computed_again), (rows, 0), "{setting:?}");
            } else {
                // Each row is found or computed for the first time, but for those found again that it had not had.
                let first = counters.found + computed - told.computed_again as usize;
                assert!(first <= rows && first + counters.found_again >= rows, "{setting:?}, text {}", text.id);
            }
            assert!(setting.keeps_prefixes || (counters.found, counters.found_again) == (0, 0), "{setting:?}");
        }
    }

    #[test]
    fn many_steps_of_one_token_are_as_many_as_there_are_tokens() {
        let model = tiny_model();
        let setting =
            Setting { page_size: 4, n_pages: 100, limits: StepLimits { tokens: 1, texts: 1 }, keeps_prefixes: false };
        let alone = all_alone(&model, &[], SEEDED);
        let (told, totals) = tell(&model, setting, SEEDED, &[], &alone);
        let rows: usize = told.iter().map(|told| told.text.tokens.len()).sum::<usize>() - 7 - 2;
        assert_eq!((totals.steps, totals.rows_projected), (rows as u64, rows as u64));
        assert_eq!(totals.peak_pages, LONGEST.div_ceil(4));
    }

    /// A model whose logit of token 5 overflows once the hidden state's number in this column is above 1 or so.
    fn overflowing(folder: &Folder, column: usize) -> Model {
        folder.change_tensor("lm_head.weight", |tensor| {
            tensor.dtype = safetensors::Dtype::F32;
            let width = tensor.shape[1];
            let mut numbers: Vec<f32> = match tensor.data.len() / (tensor.shape[0] * width) {
                2 => {
                    let halves = tensor.data.as_chunks().0.iter();
                    halves.map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect()
                }
                _ => tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            };
            numbers[5 * width..6 * width].fill(0.0);
            numbers[5 * width + column] = 1.5e38;
            tensor.data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        });
        Model::open(Path::new(folder.path())).unwrap()
    }

    /// Where some hidden states are too large for the weights of the output: a few texts fail, each at its place.
    #[test]
    fn logits_that_are_not_finite_end_their_text_and_no_other() {
        let folder = Folder::copy_of("f16-mha-untied");
        let mut kinds_seen = 0;
        for column in 0..8 {
            let model = overflowing(&folder, column);
            let alone = all_alone(&model, &[], SEEDED);
            let failed = alone.iter().filter(|(_, end)| end.is_err()).count();
            kinds_seen += usize::from(failed > 0 && failed < alone.len() - 1);
            for n_pages in [LONGEST.div_ceil(4), 100] {
                for keeps_prefixes in [true, false] {
                    let limits = StepLimits { tokens: 20, texts: 6 };
                    let setting = Setting { page_size: 4, n_pages, limits, keeps_prefixes };
                    tell(&model, setting, SEEDED, &[], &alone);
                }
            }
        }
        assert!(kinds_seen > 0, "in no model some texts fail and some do not");
    }

    #[test]
    fn a_text_that_fails_at_once_leaves_no_page_to_others() {
        let folder = Folder::copy_of("bf16-gqa3");
        folder.change_tensor("model.norm.weight", |tensor| {
            tensor.data = half::bf16::MAX.to_le_bytes().repeat(tensor.shape[0]);
        });
        let model = Model::open(Path::new(folder.path())).unwrap();
        let limits = StepLimits { tokens: 100, texts: 8 };
        let setting = Setting { page_size: 4, n_pages: 50, limits, keeps_prefixes: true };
        let (mut serving, slab) = serving(&model, setting, &[]);
        for place in [0, 2] {
            serving.submit(ASKED[place].0.to_vec(), 5, Sampler::new(SEEDED)).unwrap();
        }
        let step = serving.step().unwrap();
        assert!(step.new_tokens.is_empty() && serving.is_done());
        assert!(step.told.iter().all(|told| matches!(told.end, Err(StepError::NotFinite { .. }))));
        assert_eq!((step.told.len(), serving.totals().rows_projected), (2, 2 * (5 + 17)));
        assert_eq!((serving.scheduler().prefixes().n_pages(), slab.borrow().pool().n_free()), (0, 50));
    }

    /// How many of the likeliest tokens the tests ask for.
    const TOP: usize = 3;

    /// The scores of a prompt, from all of its rows at once.
    fn scores_alone(model: &Model, prompt: &[u32]) -> Result<Vec<Likely>, StepError> {
        let logits = model.forward(vec![model.chunk(prompt, None, LogitRows::All)?])?;
        let rows = logits.chunks_exact(model.config().vocab_size);
        Ok(rows.zip(&prompt[1..]).map(|(row, next)| likely(row, *next, TOP)).collect())
    }

    /// What came of scored and other texts that were told together.
    #[derive(Default)]
    struct Scored {
        told: Vec<Told>,
        scores: HashMap<TextId, Vec<Likely>>,
        /// Texts seen without pages in the middle of a prompt that was scored in part.
        preempted: usize,
    }

    /// Tells all texts and scores those whose place is even, with the `odd` ones otherwise.
    fn tell_scored(serving: &mut Serving<'_>, sampling: Sampling, odd: bool) -> Scored {
        let mut first = None;
        for (place, (prompt, most)) in ASKED.iter().enumerate() {
            let (prompt, sampler) = (prompt.to_vec(), Sampler::new(sampling_of(place, sampling)));
            let id = match (place % 2 == 1) == odd {
                true => serving.submit_scored(prompt, *most, sampler, TOP),
                false => serving.submit(prompt, *most, sampler),
            };
            first = first.or(Some(id.unwrap()));
        }
        let first = first.unwrap();
        let mut scored = Scored::default();
        for step in 0.. {
            if serving.is_done() {
                break;
            }
            assert!(step < 10_000, "no end");
            let done = serving.step().unwrap();
            for (id, scores) in done.scores {
                let id = TextId(id.0 - first.0);
                assert!(scored.scores.insert(id, scores).is_none(), "text {id} has its scores twice");
            }
            scored.told.extend(done.told);
            let waiting = serving.scheduler().waiting();
            let stopped = waiting.filter(|text| {
                let counters = text.counters;
                counters.preemptions > 0 && counters.computed > 0 && text.tokens.len() == text.n_prompt
            });
            let place = |text: &TextId| (text.0 - first.0) as usize;
            scored.preempted += stopped.filter(|text| (place(&text.id) % 2 == 1) == odd).count();
        }
        scored.told.iter_mut().for_each(|told| told.text.id.0 -= first.0);
        scored.told.sort_by_key(|told| told.text.id);
        scored
    }

    #[test]
    fn prompts_are_scored_once_and_as_the_model_does_in_every_setting() {
        let model = tiny_model();
        let ends = ends(&model, SEEDED);
        let alone = all_alone(&model, &ends, SEEDED);
        let (mut preempted, mut found) = (0, 0);
        for setting in settings() {
            let (mut serving, slab) = serving(&model, setting, &ends);
            // The second and the third time the prefix cache has the prompts already.
            for odd in [false, true, false] {
                let scored = tell_scored(&mut serving, SEEDED, odd);
                preempted += scored.preempted;
                assert_eq!(scored.told.len(), ASKED.len(), "{setting:?}");
                for (place, (told, (tokens, end))) in scored.told.iter().zip(&alone).enumerate() {
                    let (text, is_scored) = (&told.text, (place % 2 == 1) == odd);
                    assert_eq!((&text.tokens, &told.end), (tokens, end), "{setting:?}, text {place}");
                    let expected = is_scored.then(|| scores_alone(&model, ASKED[place].0).unwrap());
                    assert_eq!(scored.scores.get(&text.id), expected.as_ref(), "{setting:?}, text {place}");
                    assert!(!is_scored || text.counters.found == 0, "{setting:?}, text {place}: a row without a score");
                    found += text.counters.found;
                }
            }
            let (free, kept) = (slab.borrow().pool().n_free(), serving.scheduler().prefixes().n_pages());
            assert_eq!(free + kept, setting.n_pages, "{setting:?}");
        }
        // Else this has shown little.
        assert!(preempted > 100 && found > 1000, "{preempted} {found}");
    }

    #[test]
    fn a_prompt_that_cannot_be_scored_ends_its_text_and_no_other() {
        let folder = Folder::copy_of("f16-mha-untied");
        let (mut failed, mut sound) = (0, 0);
        for column in 0..8 {
            let model = overflowing(&folder, column);
            let alone = all_alone(&model, &[], SEEDED);
            for tokens in [3, 20] {
                let limits = StepLimits { tokens, texts: 6 };
                let setting = Setting { page_size: 4, n_pages: 100, limits, keeps_prefixes: true };
                let (mut serving, slab) = serving(&model, setting, &[]);
                let scored = tell_scored(&mut serving, SEEDED, false);
                for (place, (told, (tokens, end))) in scored.told.iter().zip(&alone).enumerate() {
                    match scores_alone(&model, ASKED[place].0) {
                        Err(error) if place % 2 == 0 => {
                            failed += 1;
                            assert_eq!((&told.end, told.text.new_tokens()), (&Err(error), &[][..]), "text {place}");
                            assert!(!scored.scores.contains_key(&told.text.id));
                        }
                        _ => {
                            sound += 1;
                            assert_eq!((&told.text.tokens, &told.end), (tokens, end), "text {place}");
                        }
                    }
                }
                let (free, kept) = (slab.borrow().pool().n_free(), serving.scheduler().prefixes().n_pages());
                assert_eq!(free + kept, 100);
            }
        }
        assert!(failed > 0 && sound > 0, "{failed} {sound}");
    }

    /// A prefix cache whose lookup leaves no token to compute.
    struct Greedy(PrefixCache);

    impl Prefixes for Greedy {
        fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
            self.0.lookup(&[text, &[0]].concat(), pool)
        }

        fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
            self.0.insert(text, table, pool)
        }

        fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
            self.0.evict(n, pool)
        }

        fn n_pages(&self) -> usize {
            self.0.n_pages()
        }

        fn n_evictable(&self, pool: &PagePool) -> usize {
            self.0.n_evictable(pool)
        }
    }

    #[test]
    fn a_prompt_with_a_hole_in_its_scores_is_refused() {
        let model = tiny_model();
        let slab = PageSlab::new(model.config().kv_layout(), 1, 20).unwrap();
        let prefixes = Box::new(Greedy(PrefixCache::new(1).unwrap()));
        let mut serving = Serving::new(&model, &slab, prefixes, StepLimits { tokens: 9, texts: 3 }, &[]).unwrap();
        serving.submit(vec![1, 43], 1, Sampler::new(SEEDED)).unwrap();
        while !serving.is_done() {
            serving.step().unwrap();
        }
        let text = serving.submit_scored(vec![1, 43, 59], 1, Sampler::new(SEEDED), 0).unwrap();
        let error = serving.step().err().unwrap();
        assert_eq!(error, ServingError::FoundTooMuch { text, found: 1, most: 0 });
        assert!(error.to_string().contains("run the checks of chapter 11"), "{error}");
    }

    #[test]
    fn what_can_never_be_told_is_refused_at_once_and_nothing_changes() {
        let model = tiny_model();
        let limits = StepLimits { tokens: 8, texts: 2 };
        let setting = Setting { page_size: 4, n_pages: 3, limits, keeps_prefixes: true };
        let (mut serving, _) = serving(&model, setting, &[]);
        let mut submit = |prompt: &[u32], most| serving.submit(prompt.to_vec(), most, Sampler::new(SEEDED));
        assert_eq!(submit(&[], 3), Err(ServingError::Model(StepError::NoTokens)));
        let unknown = StepError::UnknownToken { token: 97, vocab_size: 97 };
        assert_eq!(submit(&[1, 97], 3), Err(ServingError::Model(unknown)));
        for most in [127, usize::MAX] {
            let len = most.saturating_add(2);
            let long = StepError::TooLong { len, max_positions: 128 };
            assert_eq!(submit(&[1, 2], most), Err(ServingError::Model(long)));
        }
        let never = ScheduleError::NeverFits { prompt: 2, max_new_tokens: 12, needed: 4, n_pages: 3 };
        assert_eq!(submit(&[1, 2], 12), Err(ServingError::Schedule(never)));
        assert!(submit(&[1, 2], 11).is_ok());
        let waiting: Vec<usize> = serving.scheduler().waiting().map(|text| text.tokens.len()).collect();
        assert_eq!(waiting, [2]);
    }

    #[test]
    fn texts_that_go_in_the_middle_of_their_prompts_are_no_stall() {
        let model = tiny_model();
        let limits = StepLimits { tokens: 1, texts: 1 };
        let setting = Setting { page_size: 4, n_pages: 20, limits, keeps_prefixes: false };
        let (mut serving, _) = serving(&model, setting, &[]);
        for round in 0..20 {
            let id = serving.submit(ASKED[2].0.to_vec(), 5, Sampler::new(SEEDED)).unwrap();
            for step in 0..3 {
                let done = serving.step().unwrap_or_else(|error| panic!("round {round}, step {step}: {error}"));
                assert_eq!(done.new_tokens, [], "3 of 17 tokens are read");
            }
            serving.cancel(id).unwrap();
        }
    }

    #[test]
    fn logits_are_handed_out_for_those_who_ask_and_for_nobody_else() {
        let model = tiny_model();
        let limits = StepLimits { tokens: 7, texts: 2 };
        let setting = Setting { page_size: 4, n_pages: 20, limits, keeps_prefixes: true };
        let (mut serving, _) = serving(&model, setting, &[]);
        let ids = [ASKED[0], ASKED[1]]
            .map(|(prompt, most)| serving.submit(prompt.to_vec(), most, Sampler::new(Sampling::GREEDY)).unwrap());
        serving.keep_logits(ids[1]);
        let (mut text, mut rows) = (ASKED[1].0.to_vec(), 0);
        while !serving.is_done() {
            let done = serving.step().unwrap();
            assert!(done.logits.keys().all(|id| *id == ids[1]), "{:?}", done.logits.keys());
            for pick in done.new_tokens.iter().filter(|pick| pick.text == ids[1]) {
                assert_eq!(done.logits[&ids[1]], model.step(&text, None).unwrap(), "after {text:?}");
                text.push(pick.token);
                rows += 1;
            }
        }
        assert_eq!(rows, ASKED[1].1);
    }

    #[test]
    fn cancelled_texts_keep_what_they_have_and_the_others_go_on() {
        let model = tiny_model();
        let limits = StepLimits { tokens: 64, texts: 3 };
        let setting = Setting { page_size: 4, n_pages: 30, limits, keeps_prefixes: false };
        let (mut serving, slab) = serving(&model, setting, &[]);
        let mut submit = |place: usize| {
            let (prompt, most) = ASKED[place];
            serving.submit(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap()
        };
        let ids = [0, 2, 4, 6].map(&mut submit);
        for _ in 0..5 {
            assert!(serving.step().unwrap().told.is_empty());
        }
        serving.cancel(ids[1]).unwrap();
        assert_eq!(serving.cancel(ids[1]), Err(ScheduleError::UnknownText(ids[1])));
        assert_eq!(slab.borrow().pool().n_free(), 30 - 2 * 3, "texts of 9 rows keep 3 pages of 4 slots each");
        let step = serving.step().unwrap();
        assert_eq!(step.told[0].text.id, ids[1]);
        assert_eq!(step.told[0].text.tokens, alone(&model, (ASKED[2].0, 5), &[], SEEDED).0);
        let mut rest = serving.cancel_all().unwrap();
        rest.sort_by_key(|told| told.text.id);
        assert_eq!(rest.iter().map(|told| told.text.id).collect::<Vec<_>>(), [ids[0], ids[2], ids[3]]);
        for (told, (place, new)) in rest.iter().zip([(0, 6), (4, 6), (6, 1)]) {
            assert_eq!(told.end, Ok(End::Cancelled));
            assert_eq!(told.text.tokens, alone(&model, (ASKED[place].0, new), &[], SEEDED).0, "text {place}");
        }
        assert!(serving.is_done() && slab.borrow().pool().n_free() == 30);
    }

    // The command

    /// A run of `batch -` with these lines; its exit code must be 0, or 1.
    #[track_caller]
    fn batch(lines: &[Value], more: &[&str], code: i32) -> Run {
        let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let run = run_with(&[&["batch", "-"], more].concat(), input.as_bytes());
        assert_eq!(run.code, Some(code), "{more:?}: {}", run.stderr);
        run
    }

    fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.jsonl");
        std::fs::write(&path, contents).unwrap();
        (folder, path)
    }

    fn stories() -> Vec<Value> {
        vec![
            json!({ "prompt": "Once upon a time there was a king who had three sons", "max_new_tokens": 40 }),
            json!({ "prompt": "Once upon a time there was a king who had three sons", "max_new_tokens": 30, "seed": 7 }),
            json!({ "prompt": "The 🐉", "max_new_tokens": 20, "temperature": 0 }),
            json!({ "prompt": "Once upon a time there was a king who had a horse", "max_new_tokens": 25, "top_k": 40,
                    "top_p": 0.5, "seed": 1 }),
            json!({ "prompt": "One day", "max_new_tokens": 0 }),
            json!({ "prompt": "One day", "max_new_tokens": 12, "temperature": 1.5, "top_p": 1 }),
        ]
    }

    /// What `generate` says of a line.
    fn generated(line: &Value) -> Value {
        let mut arguments = vec!["generate".to_string(), line["prompt"].as_str().unwrap().into(), "--json".into()];
        for field in ["max_new_tokens", "temperature", "top_k", "top_p", "seed"] {
            if let Some(value) = line.get(field) {
                arguments.push(format!("--{}={value}", field.replace('_', "-")));
            }
        }
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    #[test]
    fn the_command_tells_what_generate_tells() {
        let lines = stories();
        let expected: Vec<Value> = lines.iter().map(generated).collect();
        let mut preempted = 0;
        let settings: [&[&str]; 5] = [
            &[],
            &["--pages=5"],
            &["--pages=5", "--no-prefix-cache", "--budget=8"],
            &["--pages=18", "--page-size=3", "--budget=5", "--running=3"],
            &["--pages=55", "--page-size=1", "--budget=1", "--running=1"],
        ];
        for setting in settings {
            let run = batch(&lines, setting, 0);
            let results = run.json_lines();
            assert_eq!(results.len(), lines.len());
            for (place, (result, expected)) in results.iter().zip(&expected).enumerate() {
                assert_eq!(result["line"], json!(place + 1), "{setting:?}");
                for field in ["prompt", "text", "tokens"] {
                    assert_eq!(result[field], expected[field], "{setting:?}: {field} of line {}", place + 1);
                }
                for field in ["temperature", "top_k", "top_p"] {
                    assert_eq!(result["sampling"][field], expected["sampling"][field], "{setting:?}");
                }
                assert_eq!(result["sampling"]["seed"], expected["seed"]);
                let counters = &result["counters"];
                preempted += counters["preemptions"].as_u64().unwrap();
                let (n_prompt, n_new) =
                    (expected["tokens"]["prompt"].as_array().unwrap(), expected["tokens"]["new"].as_array().unwrap());
                assert_eq!(counters["prompt_tokens"], json!(n_prompt.len()));
                assert_eq!(counters["new_tokens"], json!(n_new.len()));
                let has_first = counters["steps_to_first_token"].as_u64().is_some_and(|steps| steps > 0);
                assert_eq!(has_first, !n_new.is_empty(), "{setting:?}: {result}");
                assert_eq!(result["timings"]["first_token_ms"].is_number(), has_first);
                assert_eq!(result["timings"]["ms_per_token"].is_number(), n_new.len() > 1);
            }
        }
        assert!(preempted > 5, "{preempted} preemptions: this has shown little");
    }

    #[test]
    fn the_report_adds_up() {
        let run = batch(&stories(), &["--pages=14", "--page-size=4", "--running=2"], 0);
        let sum = |field: &str| -> u64 {
            let numbers = run.json_lines().into_iter().map(|result| result["counters"][field].as_u64().unwrap());
            numbers.sum()
        };
        let (prompts, found, new) = (sum("prompt_tokens") - 3, sum("found"), sum("new_tokens"));
        let says = &run.stderr;
        assert!(found > 0, "{says}");
        assert!(says.contains(&format!("{found} of {prompts} prompt tokens found")), "{says}");
        assert!(says.contains(&format!(" steps, {new} new tokens in ")), "{says}");
        let (rows, again) = (sum("computed"), sum("computed_again"));
        assert!(says.contains(&format!("{rows} rows, {again} of them again after a preemption")), "{says}");
        assert!(says.contains(&format!("\npreempted  {} times\n", sum("preemptions"))), "{says}");
        assert!(says.contains("14 of 14 with texts at the peak, 4 slots each; "), "{says}");
        assert!(says.contains("12 reference"), "{says}");

        let all = batch(&stories(), &["--pages=14", "--page-size=4", "--running=2", "--json"], 0);
        let all: Value = serde_json::from_str(&all.stdout).unwrap();
        assert_eq!(all["texts"].as_array().unwrap().len(), 6);
        assert_eq!(all["counters"]["rows_projected"], json!(rows));
        assert_eq!(all["counters"]["new_tokens"], json!(new));
        assert_eq!(all["pages"]["peak"], json!(14));
    }

    #[test]
    fn a_bad_line_has_its_number_and_reason_and_the_others_go_on() {
        let long = "king ".repeat(1100);
        let good = "{\"prompt\": \"One day\", \"max_new_tokens\": 3}";
        let input = [
            good.to_string(),
            String::new(),
            "not JSON".into(),
            "{\"prompt\": 7}".into(),
            good.into(),
            "{\"prompt\": \"One day\", \"max_new_token\": 3}".into(),
            "{\"prompt\": \"One day\", \"temperature\": -1}".into(),
            "{\"prompt\": \"\"}".into(),
            format!("{{\"prompt\": \"{long}\"}}"),
            "{\"prompt\": \"One day\", \"max_new_tokens\": 100}".into(),
            format!("{{\"prompt\": \"{}\"}}", "x".repeat(1 << 20)),
            good.into(),
        ];
        let mut input = input.join("\n").into_bytes();
        input.extend_from_slice(b"\n{\"prompt\": \"\xFF\"}\n");
        let run = run_with(&["batch", "-", "--pages=4"], &input);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert!(run.stderr.ends_with("error: 9 of 12 texts not told: the results say why\n"), "{}", run.stderr);
        let results = run.json_lines();
        let expected = [
            (1, ""),
            (3, "it is not a JSON object; write one, such as "),
            (4, "column 12: invalid type: integer `7`, expected a string"),
            (5, ""),
            (6, "column 37: unknown field `max_new_token`, expected one of `prompt`, `max_new_tokens`, "),
            (7, "the temperature is -1, expected 0 (greedy) or "),
            (8, "the prompt is empty; "),
            (9, "1102 tokens are more than the model's 1024 positions; shorten the prompt"),
            (10, "a prompt of 3 tokens and 100 new ones need 7 pages, and the pool has 4; "),
            (11, "it has more than 1048576 bytes; "),
            (12, ""),
            (13, "it is not UTF-8; "),
        ];
        assert_eq!(results.len(), expected.len());
        for (result, (line, problem)) in results.iter().zip(expected) {
            assert_eq!(result["line"], json!(line));
            if problem.is_empty() {
                assert_eq!((&result["end"], result.get("error")), (&json!("limit"), None), "{result}");
                assert_eq!(result["text"], results[0]["text"]);
                continue;
            }
            assert_eq!(result["end"], "refused", "{result}");
            let error = result["error"].as_str().unwrap();
            assert!(error.starts_with(&format!("line {line}: {problem}")), "{error}");
            assert!(result.get("text").is_none() && result.get("counters").is_none(), "{result}");
        }
        assert_eq!(results[7]["prompt"], json!(long));
    }

    #[test]
    fn nothing_to_read_is_an_error_that_names_the_file() {
        let (folder, path) = file(b"\n  \r\n");
        let name = path.display().to_string();
        for (arguments, says) in [
            (["batch", &name], format!("error: {name}: there is no line; write one JSON object a line, such as ")),
            (["batch", "-"], "error: standard input: there is no line; ".into()),
            (["batch", folder.path().to_str().unwrap()], format!("error: {}: name a file ", folder.path().display())),
            (["batch", "no/such/file"], "error: no/such/file: name a file with one JSON object a line, ".into()),
        ] {
            let run = run_with(&arguments, b"");
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{arguments:?}");
            assert!(run.stderr.contains(&says), "{arguments:?}: {}", run.stderr);
        }
    }

    #[test]
    fn results_go_to_a_file_but_never_over_the_lines() {
        let line = b"{\"prompt\": \"One day\", \"max_new_tokens\": 3}\n";
        let (folder, path) = file(line);
        let (name, out) = (path.to_str().unwrap(), folder.path().join("out.jsonl"));
        std::fs::write(&out, "old").unwrap();
        let run = run_with(&["batch", name, "--out", out.to_str().unwrap()], b"");
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{}", run.stderr);
        let written = std::fs::read_to_string(&out).unwrap();
        let result: Value = serde_json::from_str(&written).unwrap();
        assert_eq!((written.lines().count(), &result["end"]), (1, &json!("limit")));

        let around = folder.path().join(".").join("prompts.jsonl");
        let run = run_with(&["batch", name, "--out", around.to_str().unwrap()], b"");
        assert_eq!(run.code, Some(1));
        assert!(run.stderr.contains("the lines are read from it; name another file with --out"), "{}", run.stderr);
        assert_eq!(std::fs::read(&path).unwrap(), line);

        let nowhere = folder.path().join("no").join("out.jsonl");
        let run = run_with(&["batch", name, "--out", nowhere.to_str().unwrap()], b"");
        assert!(run.code == Some(1) && run.stderr.contains("name a file in a folder that exists"), "{}", run.stderr);
    }

    #[test]
    fn nobody_left_to_read_is_no_failure() {
        let mut child = spawn(&["batch", "-"]);
        drop(child.stdout.take());
        child.stdin.take().unwrap().write_all(b"{\"prompt\": \"One day\", \"max_new_tokens\": 2}\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"" as &[u8]));
    }

    /// Waits for the end of a program that is to end soon.
    #[cfg(unix)]
    fn wait(child: &mut Child) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            if start.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("still running");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[cfg(unix)]
    fn press_ctrl_c(child: &Child) {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    #[cfg(unix)]
    #[test]
    fn ctrl_c_keeps_what_is_done_and_says_how_far_the_others_are() {
        let long = json!({ "prompt": "The king had", "max_new_tokens": 1000, "temperature": 1.2, "top_p": 1 });
        let mut child = spawn(&["batch", "-", "--running=2"]);
        // Nobody says that these are all: standard input stays open.
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", json!({ "prompt": "One day", "max_new_tokens": 5 })).unwrap();
        for _ in 0..3 {
            writeln!(stdin, "{long}").unwrap();
        }
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        // It is there before the others are done, and before there is an end of the lines.
        stdout.read_line(&mut first).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["end"], "limit");
        press_ctrl_c(&child);
        assert_eq!(wait(&mut child), Some(1));
        let (mut rest, mut says) = (String::new(), String::new());
        stdout.read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut says).unwrap();
        assert!(says.starts_with("interrupted: what is done is kept; "), "{says}");
        assert!(says.contains("error: interrupted: 1 text told, 3 not, "), "{says}");
        let rest: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rest.iter().map(|result| result["line"].clone()).collect::<Vec<_>>(), [2, 3, 4]);
        let whole = generated(&long);
        for result in &rest {
            assert_eq!(result["end"], "cancelled");
            let (so_far, whole) =
                (result["tokens"]["new"].as_array().unwrap(), whole["tokens"]["new"].as_array().unwrap());
            assert!(so_far.len() < whole.len() && whole.starts_with(so_far), "{result}");
        }
        assert!(rest[0]["text"].as_str().unwrap().len() > 1, "the second text was under way: {}", rest[0]);
        drop(stdin);
    }

    #[cfg(unix)]
    #[test]
    fn a_second_ctrl_c_ends_it_at_once() {
        let mut child = spawn(&["batch", "-"]);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
        writeln!(stdin, "the first").unwrap();
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        // Nobody reads the results of these, and more of them than a pipe holds: it waits for a reader for ever.
        let lines = "x\n".repeat(20_000);
        let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
        std::thread::sleep(Duration::from_millis(300));
        press_ctrl_c(&child);
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "the first Ctrl-C lets it finish what it is at");
        press_ctrl_c(&child);
        assert_eq!(wait(&mut child), Some(130));
        drop(stdout);
        writer.join().unwrap();
    }
}
