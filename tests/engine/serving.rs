//! The loop that serves many sequences: each gets the tokens that it gets alone, whatever the pool, the budget and the company,
//! and no page is lost.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use page_by_page::cache::CacheError;
use page_by_page::cache::in_place::InPlace;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::scoring::{Likely, likely};
use page_by_page::model::{LogitRows, Model, StepError};
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::schedule::{FinishReason, ScheduleError, SequenceId, StepLimits};
use page_by_page::serving::side_by_side::SideBySide;
use page_by_page::serving::{Generated, Serving, ServingError, Totals};

use crate::checkpoints::Folder;

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
type Ended = (Vec<u32>, Result<FinishReason, StepError>);

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
            return (text, Ok(FinishReason::EndOfText));
        }
        text.push(token);
    }
    (text, Ok(FinishReason::Limit))
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
fn tell(
    model: &Model,
    setting: Setting,
    sampling: Sampling,
    ends: &[u32],
    alone: &[Ended],
) -> (Vec<Generated>, Totals) {
    let (mut serving, slab) = serving(model, setting, ends);
    let mut ids = Vec::new();
    for (place, (prompt, most)) in ASKED.iter().enumerate() {
        let sampler = Sampler::new(sampling_of(place, sampling));
        ids.push(serving.submit(prompt.to_vec(), *most, sampler).unwrap());
    }
    let mut reported: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    let mut told = Vec::new();
    for step in 0.. {
        if serving.is_done() {
            break;
        }
        assert!(step < 10_000, "{setting:?}: no end");
        let done = serving.step().unwrap();
        for pick in done.new_tokens {
            assert!(
                !told.iter().any(|told: &Generated| told.sequence.id == pick.sequence),
                "{setting:?}: a token after the end"
            );
            reported.entry(pick.sequence).or_default().push(pick.token);
        }
        told.extend(done.generated);
    }
    told.sort_by_key(|told| told.sequence.id);
    assert_eq!(told.iter().map(|told| told.sequence.id).collect::<Vec<_>>(), ids, "{setting:?}");
    for (told, (tokens, end)) in told.iter().zip(alone) {
        let id = told.sequence.id;
        assert_eq!((&told.sequence.tokens, &told.end), (tokens, end), "{setting:?}, text {id}");
        let reported = reported.remove(&id).unwrap_or_default();
        assert_eq!(told.sequence.new_tokens(), reported, "{setting:?}: the tokens reported of text {id}");
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
                    let limits = StepLimits { tokens, sequences: texts };
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
        assert!(alone.iter().any(|(_, end)| *end == Ok(FinishReason::EndOfText)), "none ends by itself");
        for setting in settings() {
            let (told, totals) = tell(&model, setting, sampling, &ends, &alone);
            preempted += totals.preemptions;
            found += totals.cached;
            found_again += totals.cached_again;
            check_counters(setting, &told, totals);
        }
    }
    // Else this has shown little.
    assert!(preempted > 100 && found > 1000 && found_again > 100, "{preempted} {found} {found_again}");
}

fn check_counters(setting: Setting, told: &[Generated], totals: Totals) {
    let sum = |of: fn(&Generated) -> u64| told.iter().map(of).sum::<u64>();
    assert_eq!(totals.rows_projected, sum(|told| told.sequence.counters.computed), "{setting:?}");
    assert_eq!(totals.recomputed, sum(|told| told.held.recomputed), "{setting:?}");
    assert_eq!(totals.preemptions, sum(|told| told.sequence.counters.preemptions), "{setting:?}");
    assert_eq!(totals.new_tokens, sum(|told| told.sequence.new_tokens().len() as u64), "{setting:?}");
    assert_eq!(totals.cached, sum(|told| told.sequence.counters.cached as u64), "{setting:?}");
    assert!(totals.peak_pages <= setting.n_pages && totals.peak_pages > 0, "{setting:?}");
    assert!(totals.most_sequences <= setting.limits.sequences.min(setting.limits.tokens), "{setting:?}");
    // All but one have run; nothing of a prompt is lost.
    assert_eq!(totals.prompt_tokens, 5 + 2 + 17 + 1 + 5 + 17 + 9, "{setting:?}");
    for told in told {
        let (text, counters) = (&told.sequence, told.sequence.counters);
        // The newest token is never read; where the model chose an end, all were.
        let rows = text.tokens.len() - usize::from(told.end == Ok(FinishReason::Limit));
        let computed = counters.computed as usize;
        if text.max_new_tokens == 0 {
            assert_eq!((computed, counters.cached), (0, 0), "{setting:?}");
        } else if counters.preemptions == 0 {
            assert_eq!((computed + counters.cached, told.held.recomputed), (rows, 0), "{setting:?}");
        } else {
            // Each row is found or computed for the first time, but for those found again that it had not had.
            let first = counters.cached + computed - told.held.recomputed as usize;
            assert!(first <= rows && first + counters.cached_again >= rows, "{setting:?}, text {}", text.id);
        }
        assert!(setting.keeps_prefixes || (counters.cached, counters.cached_again) == (0, 0), "{setting:?}");
    }
}

#[test]
fn many_steps_of_one_token_are_as_many_as_there_are_tokens() {
    let model = tiny_model();
    let setting =
        Setting { page_size: 4, n_pages: 100, limits: StepLimits { tokens: 1, sequences: 1 }, keeps_prefixes: false };
    let alone = all_alone(&model, &[], SEEDED);
    let (told, totals) = tell(&model, setting, SEEDED, &[], &alone);
    let rows: usize = told.iter().map(|told| told.sequence.tokens.len()).sum::<usize>() - 7 - 2;
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
                let limits = StepLimits { tokens: 20, sequences: 6 };
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
    let limits = StepLimits { tokens: 100, sequences: 8 };
    let setting = Setting { page_size: 4, n_pages: 50, limits, keeps_prefixes: true };
    let (mut serving, slab) = serving(&model, setting, &[]);
    for place in [0, 2] {
        serving.submit(ASKED[place].0.to_vec(), 5, Sampler::new(SEEDED)).unwrap();
    }
    let step = serving.step().unwrap();
    assert!(step.new_tokens.is_empty() && serving.is_done());
    assert!(step.generated.iter().all(|told| matches!(told.end, Err(StepError::NotFinite { .. }))));
    assert_eq!((step.generated.len(), serving.totals().rows_projected), (2, 2 * (5 + 17)));
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
    told: Vec<Generated>,
    scores: HashMap<SequenceId, Vec<Likely>>,
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
            let id = SequenceId(id.0 - first.0);
            assert!(scored.scores.insert(id, scores).is_none(), "text {id} has its scores twice");
        }
        scored.told.extend(done.generated);
        let waiting = serving.scheduler().waiting();
        let stopped = waiting.filter(|text| {
            let counters = text.counters;
            counters.preemptions > 0 && counters.computed > 0 && text.tokens.len() == text.n_prompt
        });
        let place = |text: &SequenceId| (text.0 - first.0) as usize;
        scored.preempted += stopped.filter(|text| (place(&text.id) % 2 == 1) == odd).count();
    }
    scored.told.iter_mut().for_each(|told| told.sequence.id.0 -= first.0);
    scored.told.sort_by_key(|told| told.sequence.id);
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
                let (text, is_scored) = (&told.sequence, (place % 2 == 1) == odd);
                assert_eq!((&text.tokens, &told.end), (tokens, end), "{setting:?}, text {place}");
                let expected = is_scored.then(|| scores_alone(&model, ASKED[place].0).unwrap());
                assert_eq!(scored.scores.get(&text.id), expected.as_ref(), "{setting:?}, text {place}");
                assert!(!is_scored || text.counters.cached == 0, "{setting:?}, text {place}: a row without a score");
                found += text.counters.cached;
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
            let limits = StepLimits { tokens, sequences: 6 };
            let setting = Setting { page_size: 4, n_pages: 100, limits, keeps_prefixes: true };
            let (mut serving, slab) = serving(&model, setting, &[]);
            let scored = tell_scored(&mut serving, SEEDED, false);
            for (place, (told, (tokens, end))) in scored.told.iter().zip(&alone).enumerate() {
                match scores_alone(&model, ASKED[place].0) {
                    Err(error) if place % 2 == 0 => {
                        failed += 1;
                        assert_eq!((&told.end, told.sequence.new_tokens()), (&Err(error), &[][..]), "text {place}");
                        assert!(!scored.scores.contains_key(&told.sequence.id));
                    }
                    _ => {
                        sound += 1;
                        assert_eq!((&told.sequence.tokens, &told.end), (tokens, end), "text {place}");
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
    let mut serving = Serving::new(&model, &slab, prefixes, StepLimits { tokens: 9, sequences: 3 }, &[]).unwrap();
    serving.submit(vec![1, 43], 1, Sampler::new(SEEDED)).unwrap();
    while !serving.is_done() {
        serving.step().unwrap();
    }
    let text = serving.submit_scored(vec![1, 43, 59], 1, Sampler::new(SEEDED), 0).unwrap();
    let error = serving.step().err().unwrap();
    assert_eq!(error, ServingError::CachedTooMuch { sequence: text, cached: 1, most: 0 });
    assert!(error.to_string().contains("run the checks of chapter 11"), "{error}");
}

#[test]
fn what_can_never_be_told_is_refused_at_once_and_nothing_changes() {
    let model = tiny_model();
    let limits = StepLimits { tokens: 8, sequences: 2 };
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
    let limits = StepLimits { tokens: 1, sequences: 1 };
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
    let limits = StepLimits { tokens: 7, sequences: 2 };
    let setting = Setting { page_size: 4, n_pages: 20, limits, keeps_prefixes: true };
    let (mut serving, _) = serving(&model, setting, &[]);
    let ids = [ASKED[0], ASKED[1]]
        .map(|(prompt, most)| serving.submit(prompt.to_vec(), most, Sampler::new(Sampling::GREEDY)).unwrap());
    serving.keep_logits(ids[1]);
    let (mut text, mut rows) = (ASKED[1].0.to_vec(), 0);
    while !serving.is_done() {
        let done = serving.step().unwrap();
        assert!(done.logits.keys().all(|id| *id == ids[1]), "{:?}", done.logits.keys());
        for pick in done.new_tokens.iter().filter(|pick| pick.sequence == ids[1]) {
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
    let limits = StepLimits { tokens: 64, sequences: 3 };
    let setting = Setting { page_size: 4, n_pages: 30, limits, keeps_prefixes: false };
    let (mut serving, slab) = serving(&model, setting, &[]);
    let mut submit = |place: usize| {
        let (prompt, most) = ASKED[place];
        serving.submit(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap()
    };
    let ids = [0, 2, 4, 6].map(&mut submit);
    for _ in 0..5 {
        assert!(serving.step().unwrap().generated.is_empty());
    }
    serving.cancel(ids[1]).unwrap();
    assert_eq!(serving.cancel(ids[1]), Err(ScheduleError::UnknownSequence(ids[1])));
    assert_eq!(slab.borrow().pool().n_free(), 30 - 2 * 3, "texts of 9 rows keep 3 pages of 4 slots each");
    let step = serving.step().unwrap();
    assert_eq!(step.generated[0].sequence.id, ids[1]);
    assert_eq!(step.generated[0].sequence.tokens, alone(&model, (ASKED[2].0, 5), &[], SEEDED).0);
    let mut rest = serving.cancel_all().unwrap();
    rest.sort_by_key(|told| told.sequence.id);
    assert_eq!(rest.iter().map(|told| told.sequence.id).collect::<Vec<_>>(), [ids[0], ids[2], ids[3]]);
    for (told, (place, new)) in rest.iter().zip([(0, 6), (4, 6), (6, 1)]) {
        assert_eq!(told.end, Ok(FinishReason::Cancelled));
        assert_eq!(told.sequence.tokens, alone(&model, (ASKED[place].0, new), &[], SEEDED).0, "text {place}");
    }
    assert!(serving.is_done() && slab.borrow().pool().n_free() == 30);
}

// Samples of one prompt

fn samplers(n: u64) -> Vec<Sampler> {
    (0..n).map(|sample| Sampler::new(Sampling { seed: SEEDED.seed + sample, ..SEEDED })).collect()
}

fn samples_alone(model: &Model, asked: (&[u32], usize), ends: &[u32], n: u64) -> Vec<Ended> {
    (0..n).map(|sample| alone(model, asked, ends, Sampling { seed: SEEDED.seed + sample, ..SEEDED })).collect()
}

/// A step, after which each page has the owners that the tables name, and no other.
fn step_and_check(
    serving: &mut Serving<'_>,
    slab: &SharedSlab,
    reported: &mut HashMap<SequenceId, Vec<u32>>,
    run: &str,
) -> Vec<Generated> {
    let step = serving.step().unwrap();
    for pick in &step.new_tokens {
        reported.entry(pick.sequence).or_default().push(pick.token);
    }
    let slab = slab.borrow();
    let tables: Vec<_> = serving.scheduler().running().flat_map(|(_, table)| table.pages().to_vec()).collect();
    let owned: HashSet<_> = tables.iter().collect();
    // Forks of a prompt that its samples have not taken yet share its pages.
    if step.forked.is_empty() {
        assert_eq!(slab.pool().n_free(), slab.pool().n_pages() - owned.len(), "{run}: free pages");
        for page in owned {
            let owners = tables.iter().filter(|other| *other == page).count() as u32;
            assert_eq!(slab.pool().owners(*page), Ok(owners), "{run}: owners of page {page}");
        }
    }
    step.generated
}

/// Random families in random pools: each sample is the sequence generated alone, and all pages come back.
#[test]
fn each_sample_is_the_sequence_generated_alone_in_pages_of_any_size_and_number() {
    let model = tiny_model();
    let vocab_size = model.config().vocab_size;
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut preempted, mut ended, mut copied) = (0, 0, 0);
    for run in 0..150 {
        let page_size = 1 + random(5);
        let ends = [random(vocab_size) as u32];
        let limits = StepLimits { tokens: 1 + random(30), sequences: 1 + random(9) };
        let (mut least, mut asked) = (1, Vec::new());
        for _ in 0..1 + random(4) {
            let prompt: Vec<u32> = (0..1 + random(11)).map(|_| random(vocab_size) as u32).collect();
            let (most, n) = (random(12), 1 + random(5));
            least = least.max((prompt.len() + most.max(1) - 1).div_ceil(page_size));
            asked.push((prompt, most, n as u64));
        }
        let n_pages = least + random(6);
        let run = format!("run {run}: {asked:?} in {n_pages} pages of {page_size}, {limits:?}");
        let setting = Setting { page_size, n_pages, limits, keeps_prefixes: false };
        let (mut serving, slab) = serving(&model, setting, &ends);
        let mut families: HashMap<SequenceId, (usize, usize)> = HashMap::new();
        for (family, (prompt, most, n)) in asked.iter().enumerate() {
            let first = serving.submit_samples(prompt.clone(), *most, samplers(*n)).unwrap();
            families.insert(first, (family, 0));
        }
        let (mut reported, mut all) = (HashMap::new(), Vec::new());
        while !serving.is_done() {
            let before = serving.scheduler().running().count();
            all.extend(step_and_check(&mut serving, &slab, &mut reported, &run));
            assert!(before <= limits.sequences, "{run}");
        }
        assert_eq!(slab.borrow().pool().n_free(), n_pages, "{run}: free pages in the end");
        assert_eq!(all.len() as u64, asked.iter().map(|(_, _, n)| n).sum::<u64>(), "{run}");
        // Samples of a family begin in the order of their samplers.
        all.sort_by_key(|generated| generated.sequence.id);
        for (family, (prompt, most, n)) in asked.iter().enumerate() {
            let mut expected = samples_alone(&model, (prompt, *most), &ends, *n);
            let of_family = |generated: &&Generated| {
                generated.sequence.tokens.starts_with(prompt) && generated.sequence.max_new_tokens <= *most
            };
            for generated in all.iter().filter(of_family) {
                let Generated { sequence: text, end, .. } = generated;
                let place = expected.iter().position(|(tokens, alone)| (tokens, alone) == (&text.tokens, end));
                if let Some(place) = place {
                    let _ = expected.remove(place);
                    assert_eq!(text.n_prompt, prompt.len(), "{run}");
                    assert_eq!(reported.get(&text.id).map_or(&[][..], Vec::as_slice), text.new_tokens(), "{run}");
                }
            }
            assert!(expected.is_empty(), "{run}: family {family} lacks {expected:?}");
        }
        preempted += serving.totals().preemptions;
        ended += all.iter().filter(|generated| generated.end == Ok(FinishReason::EndOfText)).count();
        copied += all.iter().map(|generated| generated.held.usage.rows_copied).sum::<u64>();
    }
    assert!(preempted > 30 && ended > 10 && copied > 200, "{preempted} {ended} {copied}: this has shown little");
}

#[test]
fn samples_share_all_full_pages_and_copy_the_rest_but_once() {
    // 8 samples of 49 tokens, 25 new ones, pages of 16: 3 full pages, and one that is filled in part.
    let model = tiny_model();
    let prompt: Vec<u32> = (0..49).map(|place| 5 + place * 7 % 80).collect();
    let limits = StepLimits { tokens: 100, sequences: 8 };
    let setting = Setting { page_size: 16, n_pages: 3 + 8 * 2, limits, keeps_prefixes: false };
    let (mut serving, slab) = serving(&model, setting, &[]);
    let n_free = || slab.borrow().pool().n_free();
    serving.submit_samples(prompt, 25, samplers(8)).unwrap();
    let step = serving.step().unwrap();
    assert_eq!((step.new_tokens.len(), step.forked.len()), (8, 7), "all choose their first token from the same logits");
    assert_eq!((serving.totals().rows_projected, n_free()), (49, 15), "a fork takes no page");
    assert_eq!(serving.step().unwrap().new_tokens.len(), 8, "4 pages, 7 copies of the last");
    assert_eq!(n_free(), 8);
    let mut copied = Vec::new();
    while !serving.is_done() {
        copied.extend(serving.step().unwrap().generated.iter().map(|generated| generated.held.usage.rows_copied));
    }
    assert_eq!(copied, [1, 1, 1, 1, 1, 1, 1, 0], "the last owner writes in place");
    let totals = serving.totals();
    assert_eq!((totals.steps, totals.peak_pages, totals.most_sequences), (25, 19, 8));
    assert_eq!(totals.rows_projected, 49 + 8 * 24, "the prompt is computed once");
    assert_eq!(n_free(), 19);
}

#[test]
fn samples_that_never_begin_leave_no_page() {
    let model = tiny_model();
    let limits = StepLimits { tokens: 20, sequences: 1 };
    let setting = Setting { page_size: 4, n_pages: 9, limits, keeps_prefixes: false };
    let (mut serving, slab) = serving(&model, setting, &[]);
    serving.submit_samples(ASKED[0].0.to_vec(), 5, samplers(3)).unwrap();
    serving.step().unwrap();
    assert_eq!(serving.cancel_all().unwrap().len(), 3);
    assert_eq!(slab.borrow().pool().n_free(), 9);
    serving.submit_samples(ASKED[0].0.to_vec(), 5, samplers(3)).unwrap();
    serving.step().unwrap();
    drop(serving);
    assert_eq!(slab.borrow().pool().n_free(), 9);
}

// Caches of their own

#[test]
fn sequences_side_by_side_are_those_generated_alone() {
    let model = tiny_model();
    let layout = model.kv_layout();
    let ends = ends(&model, SEEDED);
    let alone = all_alone(&model, &ends, SEEDED);
    for kind in ["recompute", "flat", "contiguous"] {
        for limits in [StepLimits { tokens: 9, sequences: 3 }, StepLimits { tokens: 1000, sequences: 100 }] {
            let mut steps = SideBySide::new(&model, limits, &ends);
            for (place, (prompt, most)) in ASKED.iter().enumerate() {
                let cache: Option<Box<dyn InPlace>> = match kind {
                    "flat" => Some(Box::new(FlatCache::new(layout))),
                    // The second has too few slots.
                    "contiguous" => Some(Box::new(ContiguousCache::new(layout, if place == 1 { 6 } else { 48 }))),
                    _ => None,
                };
                steps.submit(prompt.to_vec(), *most, Sampler::new(sampling_of(place, SEEDED)), cache).unwrap();
            }
            let mut all = Vec::new();
            while !steps.is_done() {
                all.extend(steps.step().generated);
            }
            all.sort_by_key(|generated| generated.sequence.id);
            for (place, (Generated { sequence: text, end, .. }, (tokens, expected))) in
                all.iter().zip(&alone).enumerate()
            {
                if kind == "contiguous" && place == 1 {
                    let full = StepError::Cache(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 6 });
                    assert_eq!((&text.tokens[..], end), (&tokens[..7], &Err(full)), "only this one ends");
                } else {
                    assert_eq!((&text.tokens, end), (tokens, expected), "{kind}, sequence {place}");
                }
            }
            assert_eq!(all.len(), ASKED.len(), "{kind}");
            assert!(steps.totals().most_sequences <= limits.sequences, "{kind}");
        }
    }
    let mut steps = SideBySide::new(&model, StepLimits { tokens: 9, sequences: 3 }, &[]);
    assert_eq!(steps.submit(vec![], 3, Sampler::new(SEEDED), None), Err(StepError::NoTokens));
    assert!(steps.is_done());
}
