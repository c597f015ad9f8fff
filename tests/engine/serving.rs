//! The loop that serves many sequences: each gets the tokens that it gets alone, and its prompt the scores, whatever the
//! pool, the budget, the company and the prefix cache, and no page is lost.

use std::collections::HashMap;
use std::path::Path;

use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::generation::logprobs::{TokenLogprobs, token_logprobs};
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::{Model, StepError};
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::{FinishReason, ScheduleError, Sequence, SequenceId, StepLimits};
use page_by_page::serving::{
    Engine, EngineError, EngineTotals, FinishedSequence, GenerationRequest, SequenceError, StepOutput,
};
use page_by_page::simulation::Setup;
use safetensors::Dtype;

use grading::checkpoints::Folder;
use grading::pools::{setup, with_prefix_cache};

pub const SEEDED: SamplingParams = SamplingParams { seed: 23, ..SamplingParams::DEFAULT };
/// Prompts, as ids of the tiny model, and new tokens at most. Some begin alike, two are the same, one gets no token.
pub const ASKED: [(&[u32], usize); 8] = [
    (&[1, 43, 59, 12, 57], 30),
    (&[1, 9], 13),
    (&[1, 43, 59, 12, 57, 40, 9, 8, 7, 30, 44, 5, 6, 7, 10, 11, 13], 25),
    (&[7], 1),
    (&[1, 43, 59, 12, 57], 30),
    (&[1, 1], 0),
    (&[1, 43, 59, 12, 57, 40, 9, 8, 7, 30, 44, 5, 6, 7, 10, 11, 13], 17),
    (&[1, 43, 59, 12, 57, 40, 9, 8, 2], 9),
];

/// Slots that the longest of them takes: its newest token is never computed.
const MAX_SLOTS: usize = 17 + 25 - 1;

pub fn tiny_model() -> Model {
    Model::open(&grading::root().join("assets/golden/bf16-gqa3")).unwrap()
}

pub type Ended = (Vec<u32>, Result<FinishReason, SequenceError>);

/// What a sequence becomes alone, computed without any cache; and why it ends.
pub fn alone(model: &Model, (prompt, most): (&[u32], usize), ends: &[u32], sampling: SamplingParams) -> Ended {
    let mut sampler = Sampler::new(sampling);
    let mut text = prompt.to_vec();
    while text.len() < prompt.len() + most {
        let logits = match model.step(&text, None) {
            Ok(logits) => logits,
            Err(error) => return (text, Err(error.into())),
        };
        let token = sampler.sample(&logits);
        if ends.contains(&token) {
            return (text, Ok(FinishReason::Stop));
        }
        text.push(token);
    }
    (text, Ok(FinishReason::Length))
}

/// Each sequence draws with a seed of its own.
fn sampling_of(index: usize, sampling: SamplingParams) -> SamplingParams {
    SamplingParams { seed: sampling.seed + index as u64 % 3, ..sampling }
}

/// How many of the likeliest tokens the scores of a prompt name.
const TOP: usize = 3;

/// What all sequences become alone, and the scores of their prompts, from all rows of each at once.
struct Alone {
    ended: Vec<Ended>,
    scores: Vec<Result<Vec<TokenLogprobs>, StepError>>,
}

impl Alone {
    fn new(model: &Model, ends: &[u32], sampling: SamplingParams) -> Self {
        let texts = ASKED.into_iter().enumerate();
        let ended = texts.map(|(index, asked)| alone(model, asked, ends, sampling_of(index, sampling))).collect();
        let scores = |(prompt, _): &(&[u32], usize)| {
            let logits = model.forward(vec![model.prepare_chunk(prompt, None, prompt.len())?])?;
            let rows = logits.chunks_exact(model.config().vocab_size);
            Ok(rows.zip(&prompt[1..]).map(|(row, next)| token_logprobs(row, *next, TOP)).collect())
        };
        Alone { ended, scores: ASKED.iter().map(scores).collect() }
    }

    /// How a sequence ends, and its scores, if its prompt is scored or not.
    fn expected(&self, index: usize, is_scored: bool) -> (Ended, Option<Vec<TokenLogprobs>>) {
        let ended = self.ended[index].clone();
        match self.scores[index].clone() {
            Ok(scores) => (ended, is_scored.then_some(scores)),
            Err(error) if is_scored => ((ASKED[index].0.to_vec(), Err(error.into())), None),
            Err(_) => (ended, None),
        }
    }
}

/// Tokens that end some of the sequences, each at another point.
fn ends(model: &Model, sampling: SamplingParams) -> Vec<u32> {
    let (first, _) = alone(model, ASKED[0], &[], sampling_of(0, sampling));
    let (third, _) = alone(model, ASKED[2], &[], sampling_of(2, sampling));
    vec![third[third.len() - 5], first[first.len() - 9]]
}

pub fn engine<'m>(model: &'m Model, setting: Setup, ends: &[u32]) -> (Engine<'m>, SharedSlab) {
    let Setup { page_size, n_pages, limits, keeps_prefixes } = setting;
    let slab = PageSlab::new(model.config().kv_layout(), page_size, n_pages).unwrap();
    let kind = if keeps_prefixes { PrefixCacheKind::Trie } else { PrefixCacheKind::None };
    let prefix_cache = kind.new_cache(page_size).unwrap();
    (Engine::new(model, &slab, prefix_cache, limits, ends).unwrap(), slab)
}

/// Runs an engine until nothing is left; `see` gets each step. Returns what has finished, in the order of arrival.
pub fn run_to_end(engine: &mut Engine<'_>, mut see: impl FnMut(&Engine<'_>, &StepOutput)) -> Vec<FinishedSequence> {
    let mut finished: Vec<FinishedSequence> = Vec::new();
    for n_steps in 0.. {
        if engine.is_done() {
            break;
        }
        assert!(n_steps < 10_000, "no end");
        let step = engine.step().unwrap();
        let has_ended = |id| finished.iter().any(|finished| finished.sequence.id == id);
        assert!(!step.new_tokens.iter().any(|new| has_ended(new.sequence_id)), "a token after the end");
        see(engine, &step);
        finished.extend(step.finished);
    }
    finished.sort_by_key(|finished| finished.sequence.id);
    finished
}

pub fn note_tokens(reported: &mut HashMap<SequenceId, Vec<u32>>, step: &StepOutput) {
    for new in &step.new_tokens {
        reported.entry(new.sequence_id).or_default().push(new.token);
    }
}

/// Generates all sequences in a setting, and compares each with the one generated alone. Then once more, when the prefix
/// cache has the prompts: every second one is scored, and then the others are. Returns what has finished, what was
/// counted, and how often a sequence was seen without pages in the middle of a prompt.
fn generate(
    model: &Model,
    setting: Setup,
    sampling: SamplingParams,
    ends: &[u32],
    alone: &Alone,
) -> (Vec<FinishedSequence>, EngineTotals, usize) {
    let (mut engine, slab) = engine(model, setting, ends);
    let (mut all, mut preempted) = (Vec::new(), 0);
    for round in 0..3 {
        let is_scored = |index: usize| round > 0 && (index + round).is_multiple_of(2);
        let mut ids = Vec::new();
        for (index, (prompt, most)) in ASKED.iter().enumerate() {
            let sampler = Sampler::new(sampling_of(index, sampling));
            let request = GenerationRequest::new(prompt.to_vec(), *most, vec![sampler]);
            let (prompt_logprobs, logprobs) = (is_scored(index), is_scored(index).then_some(TOP));
            ids.extend(engine.submit_request(GenerationRequest { prompt_logprobs, logprobs, ..request }).unwrap());
        }
        let (mut reported, mut scores) = (HashMap::new(), HashMap::new());
        let finished = run_to_end(&mut engine, |engine, step| {
            note_tokens(&mut reported, step);
            let last = step.finished.iter().map(|finished| (finished.sequence.id, &finished.delta));
            for (id, delta) in step.deltas.iter().map(|(id, delta)| (*id, delta)).chain(last) {
                let before = delta.prompt_logprobs.clone().and_then(|found| scores.insert(id, found));
                assert!(before.is_none(), "{setting:?}: sequence {id} has its scores twice");
            }
            let in_its_prompt = |waits: &&Sequence| waits.counters.preemptions > 0 && waits.new_tokens().is_empty();
            preempted += engine.scheduler().waiting().filter(in_its_prompt).count();
        });
        assert_eq!(finished.iter().map(|finished| finished.sequence.id).collect::<Vec<_>>(), ids, "{setting:?}");
        for (index, FinishedSequence { sequence, outcome, .. }) in finished.iter().enumerate() {
            let run = format!("{setting:?}, round {round}, sequence {index}");
            let ((tokens, why), expected) = alone.expected(index, is_scored(index));
            assert_eq!((&sequence.tokens, outcome), (&tokens, &why), "{run}");
            assert_eq!(sequence.new_tokens(), reported.remove(&sequence.id).unwrap_or_default(), "{run}: as reported");
            assert_eq!(scores.remove(&sequence.id), expected, "{run}: the scores of its prompt");
        }
        let (pool, kept) = (slab.borrow().pool().n_free(), engine.scheduler().prefix_cache().n_pages());
        assert_eq!(pool + kept, setting.n_pages, "{setting:?}: free pages and kept ones in the outcome");
        all.extend(finished);
    }
    (all, engine.totals(), preempted)
}

/// All settings of these, each with each.
fn settings() -> Vec<Setup> {
    let mut settings = Vec::new();
    for page_size in [1, 3, 16] {
        let least = MAX_SLOTS.div_ceil(page_size);
        for n_pages in [least, least + 2, 3 * least] {
            for (token_budget, texts) in [(1, 1), (1, 8), (2, 3), (7, 2), (7, 8), (64, 5), (1000, 1000)] {
                for keeps_prefixes in [true, false] {
                    let limits = StepLimits { token_budget, max_running: texts };
                    settings.push(Setup { page_size, n_pages, limits, keeps_prefixes });
                }
            }
        }
    }
    settings
}

#[test]
fn each_sequence_is_the_one_generated_alone_in_every_setting_scored_or_not() {
    let model = tiny_model();
    let (mut preempted, mut in_prompts, mut found, mut found_again) = (0, 0, 0, 0);
    for sampling in [SamplingParams::GREEDY, SEEDED] {
        let ends = ends(&model, sampling);
        let alone = Alone::new(&model, &ends, sampling);
        assert!(alone.ended.iter().any(|(_, end)| *end == Ok(FinishReason::Stop)), "none ends by itself");
        for setting in settings() {
            let (finished, totals, in_their_prompts) = generate(&model, setting, sampling, &ends, &alone);
            preempted += totals.preemptions;
            in_prompts += in_their_prompts;
            found += totals.cached_tokens;
            found_again += totals.cached_after_preemption;
            check_counters(setting, &finished, totals);
        }
    }
    // Else this has shown little.
    assert!(preempted > 100 && in_prompts > 100, "{preempted} {in_prompts}");
    assert!(found > 1000 && found_again > 100, "{found} {found_again}");
}

fn check_counters(setting: Setup, finished: &[FinishedSequence], totals: EngineTotals) {
    let sum = |of: fn(&FinishedSequence) -> u64| finished.iter().map(of).sum::<u64>();
    assert_eq!(totals.computed_tokens, sum(|finished| finished.sequence.counters.computed_tokens), "{setting:?}");
    assert_eq!(totals.recomputed_tokens, sum(|finished| finished.sequence.counters.recomputed_tokens), "{setting:?}");
    assert_eq!(totals.new_tokens, sum(|finished| finished.sequence.new_tokens().len() as u64), "{setting:?}");
    assert!(totals.peak_pages <= setting.n_pages && totals.peak_pages > 0, "{setting:?}");
    assert!(totals.peak_sequences <= setting.limits.max_running.min(setting.limits.token_budget), "{setting:?}");
    // Nothing of a prompt is lost. That of the sequence without new tokens runs once, to be scored.
    assert_eq!(totals.prompt_tokens, 3 * (5 + 2 + 17 + 1 + 5 + 17 + 9) + 2, "{setting:?}");
}

/// A model whose logit of token 5 overflows once the hidden state's number in this column is above 1 or so.
fn overflowing(folder: &Folder, column: usize) -> Model {
    folder.change_tensor("lm_head.weight", |tensor| {
        let width = tensor.shape[1];
        if tensor.dtype == Dtype::F16 {
            let halves = tensor.data.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32());
            tensor.data = halves.flat_map(f32::to_le_bytes).collect();
            tensor.dtype = Dtype::F32;
        }
        let row = &mut tensor.data[4 * 5 * width..4 * 6 * width];
        row.fill(0);
        row[4 * column..4 * (column + 1)].copy_from_slice(&1.5e38_f32.to_le_bytes());
    });
    Model::open(Path::new(folder.path())).unwrap()
}

/// Some hidden states overflow in the output weights: a few sequences fail, each at its place, or in a scored prompt.
#[test]
fn logits_that_are_not_finite_end_their_sequence_and_no_other() {
    let folder = Folder::copy_of("f16-mha-untied");
    let (mut kinds_seen, mut prompts_failed) = (0, 0);
    for column in 0..8 {
        let model = overflowing(&folder, column);
        let alone = Alone::new(&model, &[], SEEDED);
        let failed = alone.ended.iter().filter(|(_, end)| end.is_err()).count();
        kinds_seen += usize::from(failed > 0 && failed < ASKED.len() - 1);
        prompts_failed += alone.scores.iter().filter(|scores| scores.is_err()).count();
        for (n_pages, tokens) in [(MAX_SLOTS.div_ceil(4), 20), (100, 20), (100, 3)] {
            for keeps_prefixes in [true, false] {
                generate(&model, Setup { keeps_prefixes, ..setup(n_pages, tokens, 6) }, SEEDED, &[], &alone);
            }
        }
    }
    assert!(kinds_seen > 0, "in no model some sequences fail and some do not");
    assert!(prompts_failed > 0, "all prompts can be scored");
}

#[test]
fn a_request_that_never_fits_is_refused_at_once_and_nothing_changes() {
    let model = tiny_model();
    let (mut engine, _) = engine(&model, with_prefix_cache(setup(3, 8, 2)), &[]);
    let mut submit = |prompt: &[u32], most| engine.submit(prompt.to_vec(), most, Sampler::new(SEEDED));
    assert_eq!(submit(&[], 3), Err(EngineError::Model(StepError::NoTokens)));
    let unknown = StepError::UnknownToken { token: 97, vocab_size: 97 };
    assert_eq!(submit(&[1, 97], 3), Err(EngineError::Model(unknown)));
    for most in [127, usize::MAX] {
        let len = most.saturating_add(2);
        let long = StepError::TooLong { len, max_positions: 128 };
        assert_eq!(submit(&[1, 2], most), Err(EngineError::Model(long)));
    }
    let never = ScheduleError::NeverFits { prompt: 2, max_new_tokens: 12, needed: 4, n_pages: 3 };
    assert_eq!(submit(&[1, 2], 12), Err(EngineError::Schedule(never)));
    assert!(submit(&[1, 2], 11).is_ok());
    let waiting: Vec<usize> = engine.scheduler().waiting().map(|text| text.tokens.len()).collect();
    assert_eq!(waiting, [2]);
}

#[test]
fn cancelled_sequences_keep_what_they_have_and_the_others_go_on() {
    let model = tiny_model();
    // Steps that only compute parts of prompts are no stall, however many of these are cancelled.
    let (mut idle, _) = engine(&model, setup(20, 1, 1), &[]);
    for _ in 0..20 {
        let id = idle.submit(ASKED[2].0.to_vec(), 5, Sampler::new(SEEDED)).unwrap();
        (0..3).for_each(|_| assert_eq!(idle.step().unwrap().new_tokens, [], "3 of 17 tokens are computed"));
        drop(idle.cancel(id).unwrap());
    }
    let (mut engine, slab) = engine(&model, setup(30, 64, 3), &[]);
    let mut submit = |index: usize| {
        let (prompt, most) = ASKED[index];
        engine.submit(prompt.to_vec(), most, Sampler::new(SEEDED)).unwrap()
    };
    let ids = [0, 2, 4, 6].map(&mut submit);
    for _ in 0..5 {
        assert!(engine.step().unwrap().finished.is_empty());
    }
    let cancelled = engine.cancel(ids[1]).unwrap();
    assert_eq!(engine.cancel(ids[1]).err(), Some(ScheduleError::UnknownSequence(ids[1])));
    assert_eq!(slab.borrow().pool().n_free(), 30 - 2 * 3, "sequences of 9 rows keep 3 pages of 4 slots each");
    assert_eq!(cancelled.sequence.tokens, alone(&model, (ASKED[2].0, 5), &[], SEEDED).0);
    assert!(engine.step().unwrap().finished.is_empty(), "what cancel returns is not reported again");
    let rest = engine.cancel_all().unwrap();
    assert!(rest.len() == 3 && rest.iter().all(|finished| finished.outcome == Ok(FinishReason::Abort)));
    let mut new_tokens: Vec<usize> = rest.iter().map(|finished| finished.sequence.new_tokens().len()).collect();
    new_tokens.sort_unstable();
    assert_eq!(new_tokens, [1, 6, 6], "the others have gone on");
    assert!(engine.is_done() && slab.borrow().pool().n_free() == 30);
}

#[test]
fn the_page_and_the_book_have_words_for_every_finish_reason() {
    let (words, page) = (include_str!("../../book/words.js"), include_str!("../../book/src/server.md"));
    for reason in FinishReason::ALL.map(FinishReason::as_str) {
        assert!(words.contains(&format!("{reason}: \"")) && page.contains(&format!("`{reason}`")), "{reason}");
    }
}
