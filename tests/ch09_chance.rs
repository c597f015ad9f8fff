//! Grader of chapter 9: speculative sampling.

#[cfg(unstarted = "ch09_chance")]
#[test]
#[ignore = "not started: edit exercises/ch09_chance.rs, or run with --features solution"]
fn ch09_chance() {}

#[cfg(not(unstarted = "ch09_chance"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch09_chance"))]
whose_code! {
    ch01_recompute = "ch01_recompute",
    ch02_flat = "ch02_flat",
    ch03_contiguous = "ch03_contiguous",
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch08_speculative = "ch08_speculative",
    ch09_chance = "ch09_chance",
}

#[cfg(not(unstarted = "ch09_chance"))]
mod checks {
    use page_by_page::cache::{CacheError, KvLayout, Rewind};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
    use page_by_page::chapters::ch08_speculative::Speculation;
    use page_by_page::chapters::ch09_chance::{SamplingDraftModel, accept_sampled, residual, share_to_expect};
    use page_by_page::decode::sampler::{Sampler, Sampling, draw};
    use page_by_page::decode::{Cached, Draft, Drafter, LanguageModel, Limits, RewindableModel};
    use page_by_page::model::{Model, StepError};

    use crate::support::asking::{asking, granted, made};
    use crate::support::limits::allocated;
    use crate::support::oracle::{Dice, seeds};
    use crate::support::script::{Log, Script, refusals_to_read};
    use crate::support::story::{SAMPLING, Storyteller, Watched, assets};
    use crate::support::transcript::{Transcript, assert_transcript};

    /// The table of the chapter.
    const P: [f32; 3] = [0.5, 0.375, 0.125];
    const Q: [f32; 3] = [0.25, 0.25, 0.5];

    /// All tokens as likely as their logits say.
    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };

    /// Logits of five tokens that depend on the text.
    fn five(text: &[u32]) -> Vec<f32> {
        let last = text[text.len() - 1] as usize;
        (0..5).map(|id| ((id * text.len() + last * 2) % 7) as f32 / 3.0).collect()
    }

    /// The draft that the chapter asks for, written here, of a model that gives the logits `row(text)`.
    fn drawn(sampler: &mut Sampler, row: impl Fn(&[u32]) -> Vec<f32>, text: &[u32], k: usize) -> Draft {
        let (mut text, mut draft) = (text.to_vec(), Draft::default());
        for _ in 0..k {
            let row = sampler.probabilities(&row(&text));
            let token = draw(&row, sampler.uniform());
            text.push(token);
            draft.push(token, row);
        }
        draft
    }

    /// Random numbers, but no end of them: a loop that never ends is told of.
    fn bounded(mut next: impl FnMut() -> f64) -> impl FnMut() -> f64 {
        let mut taken = 0;
        move || {
            taken += 1;
            assert!(taken < 1000, "1000 random numbers were taken for one draft: does a loop of yours never end?");
            next()
        }
    }

    /// Checks the new tokens that these random numbers give, and that all of the numbers are taken.
    #[track_caller]
    fn assert_accepts(what: &str, draft: &Draft, rows: &[Vec<f32>], numbers: &[f64], expected: &[u32]) {
        let told = match draft.tokens.len() {
            0..10 => format!("{what}: {:?} drafted, random numbers {numbers:?}", draft.tokens),
            many => format!("{what}: {many} tokens drafted"),
        };
        let question = asking(told.clone());
        let mut taken = 0;
        let mut next = bounded(|| {
            taken += 1;
            numbers.get(taken - 1).copied().unwrap_or(0.5)
        });
        let new_tokens = accept_sampled(draft, rows, &mut next);
        drop(next);
        drop(question);
        if expected.len() > 10 {
            same!(new_tokens.len(), expected.len(), "{told}: how many tokens are new");
        }
        same!(new_tokens, expected, "{told}: new tokens");
        same!(taken, numbers.len(), "{told}: random numbers taken; the new tokens are right");
    }

    /// A draft of some tokens, each drawn from its row.
    fn drafted(tokens: &[u32], rows: &[&[f32]]) -> Draft {
        Draft { tokens: tokens.to_vec(), probabilities: rows.iter().map(|row| row.to_vec()).collect() }
    }

    // Task 1

    /// What a draft model that samples guesses.
    fn draft(drafter: &mut dyn Drafter, text: &[u32], k: usize) -> Result<Draft, StepError> {
        let _asking = asking(format!("a draft of {k} tokens after {text:?}"));
        drafter.draft(text, k)
    }

    /// Logits that leave no choice: all the probability is that of one token.
    fn sure(token: u32, vocab_size: usize) -> Vec<f32> {
        (0..vocab_size as u32).map(|id| if id == token { 500.0 } else { 0.0 }).collect()
    }

    #[test]
    fn task_1_draft_asks_after_the_text_and_each_guess() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, |text| sure(text[text.len() - 1] + 1, 12));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let draft = granted("a draft of 3 tokens after 3, 4", || draft(&mut drafter, &[3, 4], 3));
        same!(draft.tokens, [5, 6, 7], "3 tokens drafted by a model that counts, after 3, 4");
        let passes = [
            "draft reads [3, 4], answers after the last 1",
            "draft reads [5], answers after the last 1",
            "draft reads [6], answers after the last 1",
        ];
        same!(*log.borrow(), passes, "passes of the draft model for 3 tokens");
    }

    #[test]
    fn task_1_draft_may_guess_any_token_again() {
        let log = Log::default();
        let whole = [4, 2, 0, 2, 2, 0];
        let mut small = Script::new("draft", &log, |text| sure(whole[text.len().min(5)], 5));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let draft = granted("a draft of 5 tokens after 4", || draft(&mut drafter, &[4], 5));
        same!(draft.tokens, whole[1..], "5 tokens drafted after 4, by a model whose text is {whole:?}");
    }

    #[test]
    fn task_1_many_guesses_are_drafted() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, five);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let draft = granted("a draft of 300 tokens after 0", || draft(&mut drafter, &[0], 300));
        same!((draft.tokens.len(), draft.probabilities.len()), (300, 300), "tokens and rows of a draft of 300");
        let expected = drawn(&mut Sampler::new(PLAIN), five, &[0], 300);
        let differ = (0..300).find(|guess| draft.tokens[*guess] != expected.tokens[*guess]).unwrap_or(297).min(297);
        let [found, expected] = [&draft, &expected].map(|draft| &draft.tokens[differ..differ + 3]);
        same!(
            found,
            expected,
            "of 300 guesses after 0, `draw`n with the sampler's next numbers, the three from number {differ} on"
        );
    }

    /// A model that finds two tokens equally likely, and needs no memory for it.
    struct Indifferent;

    impl LanguageModel for Indifferent {
        fn next_logits(&mut self, _: &[u32]) -> Result<Vec<f32>, StepError> {
            Ok(vec![0.0; 2])
        }
    }

    impl RewindableModel for Indifferent {
        fn remembered(&self) -> usize {
            0
        }

        fn last_logits(&mut self, _: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
            Ok(vec![vec![0.0; 2]; n])
        }

        fn rewind(&mut self, _: usize) -> Result<(), CacheError> {
            Ok(())
        }
    }

    #[test]
    fn task_1_very_long_texts_are_copied_once() {
        let (text, guesses) = (vec![1; 10_000], 64);
        let mut model = Indifferent;
        let mut drafter = SamplingDraftModel::new(&mut model, Sampler::new(PLAIN));
        let (drafted, asked) = allocated(|| draft(&mut drafter, &text, guesses));
        same!(drafted.map(|draft| draft.tokens.len()), Ok(guesses), "tokens of a draft after 10,000 tokens");
        let most = 10 * size_of_val(&text[..]);
        assert!(
            asked.bytes <= most,
            "a draft of {guesses} tokens after 10,000 asked for {} bytes of memory, and {most} are plenty: is the text copied \
             for each guess? Copy it once, and push the guesses to it",
            asked.bytes
        );
    }

    #[test]
    fn task_1_nothing_drafted_asks_nothing_and_draws_nothing() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, five);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        same!(draft(&mut drafter, &[3, 4], 0), Ok(Draft::default()), "a draft of 0 tokens");
        let first = granted("a draft of 4 tokens after 3, 4", || draft(&mut drafter, &[3, 4], 4));
        let expected = drawn(&mut Sampler::new(PLAIN), five, &[3, 4], 4);
        same!(first.tokens, expected.tokens, "4 guesses after 3, 4, and after a draft of 0 tokens");
        same!(log.borrow().len(), 4, "passes of the draft model for 0 tokens, then for 4");
    }

    #[test]
    fn task_1_draft_reads_only_what_is_new_to_the_draft_model() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, |text| sure(text[text.len() - 1] + 1, 12));
        small.reads(&[3, 4]);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let draft = granted("a draft of 2 tokens after 3, 4, 5", || draft(&mut drafter, &[3, 4, 5], 2));
        same!(draft.tokens, [6, 7], "2 tokens drafted by a model that counts, after 3, 4, 5");
        let passes = ["draft reads [5], answers after the last 1", "draft reads [6], answers after the last 1"];
        same!(*log.borrow(), passes, "passes of a draft model that remembers 3, 4, for 2 tokens after 3, 4, 5");
    }

    #[test]
    fn task_1_each_guess_is_drawn_with_a_random_number_of_its_own() {
        // Three tokens, all as likely: the second guess tells nothing of the first.
        let mut seen = [[0; 3]; 3];
        for seed in 0..360 {
            let log = Log::default();
            let mut small = Script::new("draft", &log, |_| vec![1.0; 3]);
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed, ..PLAIN }));
            let told = format!("seed {seed}: a draft of 2 tokens after 0, out of 3");
            let tokens = granted(told.clone(), || draft(&mut drafter, &[0], 2)).tokens;
            same!(tokens.len(), 2, "{told}: how many are drafted");
            assert!(tokens.iter().all(|token| *token < 3), "{told}: {tokens:?} drafted, ids go from 0 to 2");
            seen[tokens[0] as usize][tokens[1] as usize] += 1;
        }
        for (first, second) in (0..9).map(|both| (both / 3, both % 3)) {
            let found = seen[first][second];
            assert!(
                (15..=70).contains(&found),
                "360 drafts of two tokens out of three that are all as likely: {found} are [{first}, {second}], about 40 \
                 are to be expected (is each guess drawn, with a random number of its own?)"
            );
        }
    }

    #[test]
    fn task_1_draft_keeps_what_its_tokens_were_drawn_from() {
        for sampling in [Sampling { temperature: 0.7, top_k: 3, ..PLAIN }, PLAIN, Sampling::GREEDY] {
            for seed in 0..20 {
                let log = Log::default();
                let mut small = Script::new("draft", &log, five);
                let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed, ..sampling }));
                let draft =
                    granted(format!("seed {seed}: a draft of 3 tokens after 0, 1"), || draft(&mut drafter, &[0, 1], 3));
                same!((draft.tokens.len(), draft.probabilities.len()), (3, 3), "tokens and rows of a draft of 3");
                let mut text = vec![0, 1];
                for (index, (token, found)) in draft.tokens.iter().zip(&draft.probabilities).enumerate() {
                    let expected = Sampler::new(sampling).probabilities(&five(&text));
                    same!(*found, expected, "seed {seed}, {sampling:?}: what guess {index}, {token}, was drawn from");
                    let q = expected.get(*token as usize).copied().unwrap_or(0.0);
                    assert!(q > 0.0, "seed {seed}: token {token} was guessed after {text:?}, its q is 0: {expected:?}");
                    text.push(*token);
                }
            }
        }
    }

    #[test]
    fn task_1_draft_takes_the_next_random_number_for_each_guess() {
        // One that leaves no choice takes a number too.
        let row = |text: &[u32]| if text.len().is_multiple_of(3) { sure(2, 5) } else { five(text) };
        // Seeds whose first two numbers give different first guesses.
        let first_two = |seed: u64| {
            let mut sampler = Sampler::new(Sampling { seed, ..PLAIN });
            let first = sampler.probabilities(&row(&[0, 1]));
            [(); 2].map(|()| draw(&first, sampler.uniform()))
        };
        let differing = |seed: &u64| first_two(*seed)[0] != first_two(*seed)[1];
        for seed in (0..).filter(differing).take(40) {
            let [first, second] = first_two(seed);
            let log = Log::default();
            let mut small = Script::new("draft", &log, row);
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed, ..PLAIN }));
            let told = format!("seed {seed}: a draft of 1 token after 0, 1");
            let found = granted(told.clone(), || draft(&mut drafter, &[0, 1], 1)).tokens;
            same!(found, [first], "{told}, `draw`n with the sampler's first number (its second number gives {second})");
            for sampling in [PLAIN, Sampling { temperature: 0.7, top_k: 3, ..PLAIN }] {
                let sampling = Sampling { seed, ..sampling };
                let log = Log::default();
                let mut small = Script::new("draft", &log, row);
                let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(sampling));
                let mut own = Sampler::new(sampling);
                let mut text = vec![0, 1];
                for k in [3, 1, 2] {
                    let expected = drawn(&mut own, row, &text, k).tokens;
                    let told = format!(
                        "guesses after {text:?}, k = {k}, `draw`n with the sampler's next numbers, {sampling:?}"
                    );
                    let found = granted(told.clone(), || draft(&mut drafter, &text, k)).tokens;
                    same!(found, expected, "{told}");
                    text.extend(found);
                }
            }
        }
    }

    #[test]
    fn task_1_keeps_the_53_bits_of_its_random_numbers() {
        // A thousand tokens, all as likely, and the first number that falls to another one if it is rounded to 32 bits.
        let row = Sampler::new(PLAIN).probabilities(&[0.0; 1000]);
        let part = |number: f64| (number * 1000.0) as u32;
        let mut numbers = Sampler::new(PLAIN);
        let (before, number) = (0..)
            .map(|before| (before, numbers.uniform()))
            .find(|(_, number)| part(*number) != part(f64::from(*number as f32)))
            .expect("there are always more numbers");
        let expected = draw(&row, number);
        assert_ne!(expected, draw(&row, f64::from(number as f32)), "this check itself is too blunt");
        let mut sampler = Sampler::new(PLAIN);
        for _ in 0..before {
            sampler.uniform();
        }
        let log = Log::default();
        let mut small = Script::new("draft", &log, |_| vec![0.0; 1000]);
        let mut drafter = SamplingDraftModel::new(&mut small, sampler);
        let told = format!("one of 1000 tokens that are all as likely, drawn with the number {number}");
        let found = granted(told.clone(), || draft(&mut drafter, &[0], 1)).tokens;
        same!(found, [expected], "{told}");
    }

    /// A model that refuses its first question.
    struct Late<'s>(Option<StepError>, Script<'s>);

    impl LanguageModel for Late<'_> {
        fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
            self.0.take().map_or(Ok(()), Err)?;
            self.1.next_logits(tokens)
        }
    }

    impl RewindableModel for Late<'_> {
        fn remembered(&self) -> usize {
            self.1.remembered()
        }

        fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
            self.0.take().map_or(Ok(()), Err)?;
            self.1.last_logits(tokens, n)
        }

        fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
            self.1.rewind(n)
        }
    }

    #[test]
    fn task_1_refused_guess_takes_no_random_number() {
        let log = Log::default();
        let full = StepError::from(CacheError::OutOfPages { needed: 1, free: 0 });
        let mut small = Late(Some(full.clone()), Script::new("draft", &log, five));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let told = "a draft of 4 tokens after 0, 1";
        same!(draft(&mut drafter, &[0, 1], 4), Err(full), "{told}, by a model that refuses its first question");
        let again = granted(format!("{told}, again"), || draft(&mut drafter, &[0, 1], 4)).tokens;
        let expected = drawn(&mut Sampler::new(PLAIN), five, &[0, 1], 4).tokens;
        same!(again, expected, "{told}, again: `draw`n with the sampler's first numbers, as none has been taken");
    }

    #[test]
    fn task_1_unlikely_tokens_are_guessed_too() {
        // Token 0 has half of the probability, each of 5,000 others a ten thousandth.
        let row = |_: &[u32]| [vec![5000_f32.ln()], vec![0.0; 5000]].concat();
        let log = Log::default();
        let mut small = Script::new("draft", &log, row);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let expected = drawn(&mut Sampler::new(PLAIN), row, &[0], 8).tokens;
        let draft = granted("a draft of 8 tokens after 0", || draft(&mut drafter, &[0], 8));
        same!(draft.tokens, expected, "8 guesses after 0, where token 0 has half of q, and 5,000 others have the rest");
    }

    #[test]
    fn task_1_works_with_large_ids() {
        // Cut to 16 bits they would be 5 and 4463.
        const LARGE: [u32; 2] = [65_541, 69_999];
        let log = Log::default();
        let mut small = Script::new("draft", &log, |text| sure(LARGE[text.len() % 2], 70_000));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let draft = granted("a draft of 2 tokens out of 70,000", || draft(&mut drafter, &[4, 7], 2));
        same!(draft.tokens, LARGE, "2 tokens drafted out of a vocabulary of 70,000");
    }

    #[test]
    fn task_1_draft_tells_a_refusal() {
        // The text is read first, then each guess.
        for (n, room) in [(2, 1), (1, 2), (1, 3)] {
            for refusal in refusals_to_read(n, room) {
                let log = Log::default();
                let mut small = Script::new("draft", &log, five);
                (small.room, small.refusal) = (room, Some(refusal.clone()));
                let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
                let told =
                    format!("a draft of 4 tokens after 0, 1 by a model that refuses to remember more than {room}");
                same!(draft(&mut drafter, &[0, 1], 4), Err(refusal.clone()), "{told}");
            }
        }
    }

    // Task 2

    #[test]
    fn task_2_residual_is_what_the_target_has_left() {
        same!(residual(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), [0.25, 0.0, 0.0], "residual of the example");
        same!(residual(&P, &Q), [0.25, 0.125, 0.0], "residual of the chapter's table, p {P:?}, q {Q:?}");
        for (p, q, expected) in [
            ([0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [0.5, 0.25, 0.0]),
            ([0.125, 0.0, 0.875], [0.125, 0.5, 0.375], [0.0, 0.0, 0.5]),
            ([0.0, 0.75, 0.25], [1.0, 0.0, 0.0], [0.0, 0.75, 0.25]),
        ] {
            same!(residual(&p, &q), expected, "residual of p {p:?}, q {q:?}");
        }
    }

    #[test]
    fn task_2_residual_of_equal_rows_is_p() {
        same!(residual(&P, &P), P, "residual of p {P:?} and a q that is the same");
        let (p, q) = ([0.5, 0.49999997], [0.5, 0.5]);
        same!(residual(&p, &q), p, "residual of p {p:?}, q {q:?}: the same but for rounding");
    }

    #[test]
    fn task_2_residual_keeps_the_least_that_is_left() {
        for least in [f32::EPSILON, f32::EPSILON / 2.0] {
            let (p, q) = ([0.25 + least, 0.75 - least, 0.0], [0.25, 0.75, 0.0]);
            same!(residual(&p, &q), [least, 0.0, 0.0], "residual of p {p:?}, q {q:?}");
        }
        let (p, q) = ([1e-9, 1.0, 0.0], [0.0, 1.0, 0.0]);
        same!(residual(&p, &q), [1e-9, 0.0, 0.0], "residual of p {p:?}, q {q:?}");
    }

    #[test]
    fn task_2_residual_of_many_tokens() {
        const N: usize = 70_000;
        let p = vec![1.0 / N as f32; N];
        let mut q = p.clone();
        (q[3], q[N - 1]) = (2.0 / N as f32, 0.0);
        let left = residual(&p, &q);
        same!(left.len(), N, "numbers in the residual of a vocabulary of 70,000");
        let n_left = left.iter().filter(|weight| **weight != 0.0).count();
        let told = "where q gives to 3 of 70,000 tokens what p gives to 69999, and is p for all others";
        same!(
            (n_left, left[3], left[N - 1]),
            (1, 0.0, p[0]),
            "how many tokens have something left, and what 3 and 69999 have, {told}"
        );
    }

    // Task 3

    #[test]
    fn task_3_accepts_with_probability_p_over_q() {
        let even = [0.5, 0.5];
        let cases = [
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.0, true),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.3, true),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.6, false),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.99, false),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.4999, true),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.5001, false),
            ("p / q is 0.5", [0.25, 0.75], even, 0, 0.5, false),
            ("p / q is 1.5", [0.25, 0.75], even, 1, 0.99, true),
            ("p is q", even, even, 0, 0.999_999, true),
            ("p / q is nearly 0", [1e-6, 1.0], even, 0, 1e-4, false),
            ("p is nearly 0, p / q is 0.25", [1e-12, 1.0], [4e-12, 1.0], 0, 0.24, true),
            ("p / q is a third", [0.25, 0.75], [0.75, 0.25], 0, 0.3332, true),
            ("p / q is a third", [0.25, 0.75], [0.75, 0.25], 0, 0.3335, false),
            ("p and q are small, p / q is 0.25", [1e-8, 1.0], [4e-8, 1.0], 0, 0.2499, true),
            ("p and q are small, p / q is 0.25", [1e-8, 1.0], [4e-8, 1.0], 0, 0.2501, false),
            ("q is nearly 0", [0.25, 0.75], [1e-30, 1.0], 0, 0.99, true),
        ];
        for (what, p, q, token, number, is_accepted) in cases {
            let expected = if is_accepted { [token, 0].to_vec() } else { vec![1] };
            let what = format!("{what}, p {p:?}, q {q:?}, in the last row token 0 has all the probability");
            let rows = [p.to_vec(), vec![1.0, 0.0]];
            assert_accepts(&what, &drafted(&[token], &[&q]), &rows, &[number, 0.5], &expected);
        }
    }

    #[test]
    fn task_3_draws_from_the_residual_in_the_place_of_a_rejected_guess() {
        // Left are 0.25 and 0.125: token 0 up to two thirds.
        for (number, expected) in [(0.0, 0), (0.6, 0), (0.7, 1), (0.99, 1)] {
            let what = format!("the residual is [0.25, 0.125, 0.0], p {P:?}, q {Q:?}");
            let rows = [P.to_vec(), vec![0.0, 0.0, 1.0]];
            assert_accepts(&what, &drafted(&[2], &[&Q]), &rows, &[0.3, number], &[expected]);
        }
    }

    #[test]
    fn task_3_judges_each_guess_by_its_own_rows() {
        let draft = drafted(&[0, 0, 0], &[&[0.5, 0.5], &[1.0, 0.0], &[0.625, 0.375]]);
        let rows = [[0.25, 0.75], [0.75, 0.25], [0.5, 0.5], [0.125, 0.875]].map(|row| row.to_vec());
        let what = "p / q is 0.5, then 0.75, then 0.8; then p is [0.125, 0.875]";
        assert_accepts(what, &draft, &rows, &[0.6, 0.9], &[1]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.77, 0.9], &[0, 1]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.82, 0.9], &[0, 0, 1]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.78, 0.1], &[0, 0, 0, 0]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.78, 0.2], &[0, 0, 0, 1]);
    }

    #[test]
    fn task_3_judges_many_guesses() {
        // 256 guesses are sure; p / q of those behind is 0.5.
        let even = [0.5, 0.5];
        let draft = drafted(&[0; 300], &[&even[..]; 300]);
        let mut rows = vec![even.to_vec(); 256];
        rows.resize(301, vec![0.25, 0.75]);
        let accepted = [vec![0; 256], vec![1]].concat();
        assert_accepts("p / q is 1 for 256 guesses, then 0.5", &draft, &rows, &[0.6; 258], &accepted);
        assert_accepts(
            "p / q is 1 for 256 guesses, then 0.5",
            &draft,
            &rows,
            &[0.4; 301],
            &[[0; 300].to_vec(), vec![1]].concat(),
        );
    }

    #[test]
    fn task_3_very_large_rows_are_not_copied() {
        let (vocab_size, guesses) = (10_000, 50);
        let row = vec![1.0 / vocab_size as f32; vocab_size];
        let draft = drafted(&vec![3; guesses], &vec![&row[..]; guesses]);
        let rows = vec![row; guesses + 1];
        let (new_tokens, asked) = allocated(|| accept_sampled(&draft, &rows, &mut bounded(|| 0.5)));
        same!(new_tokens.len(), guesses + 1, "new tokens, where p and q are the same for all of 50 guesses");
        let one_draw = allocated(|| draw(&rows[0], 0.5)).1.bytes;
        let most = one_draw + 2 * vocab_size * size_of::<f32>();
        assert!(
            asked.bytes <= most,
            "accept_sampled of {guesses} guesses that are all accepted asked for {} bytes of memory, and {most} are plenty: the \
             residual is needed for a rejected guess only, and the rows need no copy",
            asked.bytes
        );
    }

    #[test]
    fn task_3_never_accepts_what_the_target_never_chooses() {
        let rows = [vec![0.0, 0.5, 0.5], vec![1.0, 0.0, 0.0]];
        for (number, expected) in [(0.3, 1), (0.9, 2)] {
            let what = "token 0 has p 0, q 0.5";
            assert_accepts(what, &drafted(&[0], &[&[0.5, 0.25, 0.25]]), &rows, &[0.0, number], &[expected]);
        }
    }

    #[test]
    fn task_3_random_numbers_keep_their_53_bits() {
        let below = 0.5 - 1e-12;
        let rows = [vec![0.25, 0.75], vec![0.5, 0.5]];
        assert_accepts(
            "p / q is 0.5, then both are as likely",
            &drafted(&[0], &[&[0.5, 0.5]]),
            &rows,
            &[below, below],
            &[0, 0],
        );
        let rows = [vec![0.0, 0.5, 0.5], vec![1.0, 0.0, 0.0]];
        let what = "p / q is 0, then 1 and 2 are as likely";
        assert_accepts(what, &drafted(&[0], &[&[0.5, 0.25, 0.25]]), &rows, &[0.9, below], &[1]);
    }

    #[test]
    fn task_3_takes_a_random_number_for_each_guess_looked_at_and_one_for_the_last_token() {
        let certain = [1.0, 0.0, 0.0];
        let last = vec![0.25, 0.25, 0.5];
        type Case<'c> = (&'c str, Draft, &'c [f64], &'c [u32]);
        let cases: [Case<'_>; 6] = [
            ("nothing was drafted", drafted(&[], &[]), &[0.9], &[2]),
            ("a sure guess", drafted(&[0], &[&Q]), &[0.9, 0.3], &[0, 1]),
            ("all are accepted", drafted(&[1, 1], &[&Q, &Q]), &[0.9, 0.8, 0.3], &[1, 1, 1]),
            ("the first is rejected", drafted(&[2, 1], &[&Q, &Q]), &[0.9, 0.8], &[1]),
            ("the second is rejected", drafted(&[1, 2], &[&Q, &Q]), &[0.9, 0.8, 0.1], &[1, 0]),
            ("guesses that were not drawn", drafted(&[0, 0], &[&certain, &certain]), &[0.49, 0.51, 0.9], &[0, 2]),
        ];
        for (what, draft, numbers, expected) in cases {
            let rows = [vec![P.to_vec(); draft.tokens.len()], vec![last.clone()]].concat();
            let what = format!("{what}, p {P:?}, q {:?}, last row {last:?}", draft.probabilities.first());
            assert_accepts(&what, &draft, &rows, numbers, expected);
        }
        let what = "the last row is sure of token 1";
        assert_accepts(what, &drafted(&[0], &[&Q]), &[P.to_vec(), vec![0.0, 1.0, 0.0]], &[0.9, 0.3], &[0, 1]);
        let rows = [vec![0.25, 0.75], vec![1.0, 0.0]];
        let what = "only token 1 has anything left";
        assert_accepts(what, &drafted(&[0], &[&[0.5, 0.5]]), &rows, &[0.9, 0.3], &[1]);
    }

    #[test]
    fn task_3_tokens_may_have_large_ids() {
        // Cut to 16 bits, the last of 70,000 tokens would be 4463.
        const LAST: u32 = 69_999;
        const OTHER: u32 = 4_463;
        let row = |token: u32, p: f32| {
            let mut row = vec![0.0; 70_000];
            (row[token as usize], row[(LAST + OTHER - token) as usize]) = (p, 1.0 - p);
            row
        };
        let (draft, other) = (drafted(&[LAST], &[&row(LAST, 0.5)]), drafted(&[OTHER], &[&row(OTHER, 0.5)]));
        let rows = |token| [row(token, 0.25), row(LAST, 1.0)];
        assert_accepts("p / q is 0.5, out of 70,000 ids", &draft, &rows(LAST), &[0.4, 0.5], &[LAST, LAST]);
        assert_accepts("p / q is 0.5, out of 70,000 ids", &draft, &rows(LAST), &[0.6, 0.5], &[OTHER]);
        assert_accepts("p / q is 0.5, out of 70,000 ids", &other, &rows(OTHER), &[0.6, 0.5], &[LAST]);
    }

    /// Random numbers in the middle of so many equal parts: no threshold of these probabilities lies within a part, so
    /// that counting parts is exact.
    const PARTS: usize = 24;

    /// Compares how likely a text is with how likely the target makes it.
    #[track_caller]
    fn assert_as_likely(text: &str, found: f64, expected: f64, rows: &str) {
        assert!(
            (found - expected).abs() < 1e-9,
            "how likely a text begins with {text}, all random numbers tried; {rows}\n  expected: {expected:.4}\n  \
             yours:    {found:.4}"
        );
    }

    #[test]
    fn task_3_one_guess_gives_the_probabilities_of_the_target() {
        let mut found = [0.0; 3];
        let rows = [P.to_vec(), vec![1.0, 0.0, 0.0]];
        for (guess, q) in (0..).zip(Q) {
            let draft = drafted(&[guess], &[&Q]);
            let _asking = asking(format!("token {guess} drafted, p {P:?}, q {Q:?}"));
            for (first, second) in (0..PARTS * PARTS).map(|both| (both / PARTS, both % PARTS)) {
                let mut numbers = [first, second].map(|part| (part as f64 + 0.5) / PARTS as f64).into_iter();
                let new_tokens = accept_sampled(&draft, &rows, &mut bounded(|| numbers.next().unwrap_or(0.5)));
                assert!(!new_tokens.is_empty(), "no new token when {guess} was drafted: there is always one");
                found[new_tokens[0] as usize] += f64::from(q) / (PARTS * PARTS) as f64;
            }
        }
        for (token, (found, p)) in found.into_iter().zip(P).enumerate() {
            let rows = format!("one guess, p {P:?}, q {Q:?}");
            assert_as_likely(&token.to_string(), found, f64::from(p), &rows);
        }
    }

    const SECOND: [[f32; 3]; 3] = [[0.125, 0.5, 0.375], [0.25, 0.25, 0.5], [0.625, 0.25, 0.125]];
    const FIRST: [f32; 3] = [0.5, 0.125, 0.375];

    #[test]
    fn task_3_two_guesses_give_exactly_the_probabilities_of_the_target() {
        let q = [[0.25f32, 0.5, 0.25], [0.5, 0.25, 0.25]];
        let third = vec![1.0, 0.0, 0.0];
        let mut found = [[0.0f64; 3]; 3];
        for (first, second) in (0..9).map(|both| (both / 3, both % 3)) {
            let weight = f64::from(q[0][first]) * f64::from(q[1][second]) / (PARTS * PARTS * PARTS) as f64;
            let draft = drafted(&[first as u32, second as u32], &[&q[0], &q[1]]);
            let rows = [FIRST.to_vec(), SECOND[first].to_vec(), third.clone()];
            let _asking = asking(format!("{:?} drafted, p {rows:?}, q {q:?}", draft.tokens));
            for parts in 0..PARTS * PARTS * PARTS {
                let mut left = parts;
                let mut next = bounded(|| {
                    let part = left % PARTS;
                    left /= PARTS;
                    (part as f64 + 0.5) / PARTS as f64
                });
                let new_tokens = accept_sampled(&draft, &rows, &mut next);
                match new_tokens[..] {
                    [a] => (0..3).for_each(|b| found[a as usize][b] += weight * f64::from(SECOND[a as usize][b])),
                    [a, b, ..] => found[a as usize][b as usize] += weight,
                    [] => panic!("no new token: there is always one"),
                }
            }
        }
        for (a, b) in (0..9).map(|both| (both / 3, both % 3)) {
            let expected = f64::from(FIRST[a]) * f64::from(SECOND[a][b]);
            let rows = format!("two guesses, p {FIRST:?}, then {:?}, q {:?}, then {:?}", SECOND[a], q[0], q[1]);
            assert_as_likely(&format!("{a}, {b}"), found[a][b], expected, &rows);
        }
    }

    /// The logits of two small models that mostly agree; they depend on the text.
    fn unlike(text: &[u32], shift: usize) -> Vec<f32> {
        let last = text[text.len() - 1] as usize;
        (0..3).map(|id| ((id * 5 + last * 3 + text.len() + shift * id) % 7) as f32 / 3.0).collect()
    }

    /// Many texts of three tokens against those that the target would write.
    struct Likeness {
        /// The chi-square statistic of 27 cells.
        chi_square: f64,
        /// The text that is furthest off, in words.
        worst: String,
    }

    const RUNS: usize = 20_000;

    /// Compares 20,000 texts; `text(run)` writes one after token 0.
    fn likeness(mut text: impl FnMut(u64) -> Vec<u32>) -> Likeness {
        let mut counts = [0u32; 27];
        for run in 0..RUNS as u64 {
            let text = text(run);
            same!(text.len(), 3, "tokens in a text of 3, run {run}");
            counts[text.iter().fold(0, |cell, token| cell * 3 + *token as usize)] += 1;
        }
        let (mut sum, mut most, mut worst) = (0.0, 0.0, String::new());
        for (cell, count) in counts.iter().enumerate() {
            let mut text = vec![0];
            let mut expected = RUNS as f64;
            for token in [cell / 9, cell / 3 % 3, cell % 3] {
                expected *= f64::from(Sampler::new(PLAIN).probabilities(&unlike(&text, 0))[token]);
                text.push(token as u32);
            }
            let off = (f64::from(*count) - expected).powi(2) / expected;
            sum += off;
            if off > most {
                let [p, q] = [0, 1].map(|shift| Sampler::new(PLAIN).probabilities(&unlike(&[0], shift)));
                worst = format!(
                    "text {:?} after 0, where p of the first token is {p:.3?} and q {q:.3?}\n  expected: about {expected:.0} \
                     times\n  yours:    {count} times",
                    &text[1..]
                );
                most = off;
            }
        }
        Likeness { chi_square: sum, worst }
    }

    /// Fails if the texts are not as likely as the target makes them.
    #[track_caller]
    fn assert_alike(found: &Likeness) {
        let Likeness { chi_square, worst } = found;
        assert!(
            *chi_square < UNLIKELY,
            "of {RUNS} texts, how often comes {worst}\n  by chance? the chi-square of all texts is {chi_square:.0}, and above \
             {UNLIKELY} in one run of a thousand"
        );
    }

    /// Exceeded by chance in one run of a thousand, with 27 - 1 degrees of freedom.
    const UNLIKELY: f64 = 54.05;

    /// The same texts, without any chapter's code but the rule: drafts of two and a loop, written here.
    fn likeness_of(rule: impl Fn(&Draft, &[Vec<f32>], &mut Sampler) -> Vec<u32>) -> Likeness {
        let mut dice = Sampler::new(PLAIN);
        likeness(|run| {
            let mut guesses = Sampler::new(Sampling { seed: 1000 + run, ..PLAIN });
            let mut text = vec![0];
            while text.len() < 4 {
                let k = (4 - text.len() - 1).min(2);
                let mut draft = Draft::default();
                let mut guess = text.clone();
                let mut rows = vec![dice.probabilities(&unlike(&guess, 0))];
                for _ in 0..k {
                    let q = guesses.probabilities(&unlike(&guess, 1));
                    let token = draw(&q, guesses.uniform());
                    guess.push(token);
                    draft.push(token, q);
                    rows.push(dice.probabilities(&unlike(&guess, 0)));
                }
                let new_tokens = rule(&draft, &rows, &mut dice);
                assert!(!new_tokens.is_empty(), "no new token: there is always one");
                text.extend(new_tokens);
            }
            text.split_off(1)
        })
    }

    #[test]
    fn task_3_texts_are_as_likely_as_the_target_makes_them() {
        let question = asking("texts of three tokens, drafts of two");
        assert_alike(&likeness_of(|draft, rows, dice| accept_sampled(draft, rows, &mut bounded(|| dice.uniform()))));
        drop(question);
        // A rule that looks as good is told from it: a rejected guess is replaced by a token drawn from p itself.
        let wrong = likeness_of(|draft, rows, dice| {
            let mut new_tokens = Vec::new();
            for (index, token) in draft.tokens.iter().enumerate() {
                let (p, q) = (&rows[index], &draft.probabilities[index]);
                if dice.uniform() >= f64::from(p[*token as usize] / q[*token as usize]) {
                    break;
                }
                new_tokens.push(*token);
            }
            new_tokens.push(draw(&rows[new_tokens.len()], dice.uniform()));
            new_tokens
        });
        let wrong = wrong.chi_square;
        assert!(wrong > 2.0 * UNLIKELY, "this check itself is too blunt: chi-square {wrong:.1} of a wrong rule");
    }

    // Task 4

    #[test]
    fn task_4_share_to_expect_adds_up_the_smaller_of_both() {
        same!(share_to_expect(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), 0.75, "share of the example");
        same!(share_to_expect(&P, &Q), 0.625, "share of the chapter's table, p {P:?}, q {Q:?}");
        same!(share_to_expect(&Q, &P), 0.625, "share of the table with p and q changed over");
        same!(share_to_expect(&P, &P), 1.0, "share where q is p");
        same!(share_to_expect(&[1.0, 0.0], &[0.0, 1.0]), 0.0, "share where q never draws what p has");
        same!(share_to_expect(&P, &[0.0, 0.0, 1.0]), 0.125, "share of a guess that was not drawn: p of token 2");
        let (p, q) = ([0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.5, 0.0]);
        same!(share_to_expect(&p, &q), 0.75, "share where some probabilities are 0, p {p:?}, q {q:?}");
    }

    #[test]
    fn task_4_share_to_expect_of_many_tokens() {
        const N: usize = 70_000;
        let p = vec![1.0 / N as f32; N];
        let mut q = p.clone();
        // All that the last hundred had is now the first token's.
        q[N - 100..].fill(0.0);
        q[0] = 101.0 / N as f32;
        let (share, expected) = (share_to_expect(&p, &q), (N - 100) as f64 / N as f64);
        let off = (share - expected).abs();
        let help = if off < 1e-2 { " (are the probabilities added up as f64?)" } else { "" };
        assert!(
            off < 1e-6,
            "share of {N} tokens that are all as likely, q gives the first what the last 100 have\n  expected: {expected}\n  \
             yours:    {share}{help}"
        );
    }

    #[test]
    fn task_4_share_to_expect_is_the_share_that_is_accepted() {
        for (p, q) in [(P, Q), (Q, P), (FIRST, Q), (SECOND[0], SECOND[1])] {
            let mut found = 0.0;
            for (guess, part) in (0..3 * PARTS).map(|both| (both / PARTS, both % PARTS)) {
                let number = (part as f64 + 0.5) / PARTS as f64;
                // As the rule says: accepted if the random number is below p / q.
                if number * f64::from(q[guess]) < f64::from(p[guess]) {
                    found += f64::from(q[guess]) / PARTS as f64;
                }
            }
            let share = share_to_expect(&p, &q);
            assert!(
                (share - found).abs() < 1e-9,
                "share to expect, p {p:?}, q {q:?}\n  expected: {found}\n  yours:    {share}"
            );
        }
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let log = Log::default();
        let mut transcript = Transcript::default();
        let rows = |row: [f32; 3]| move |_: &[u32]| row.map(f32::ln).to_vec();
        let mut target = Script::new("target", &log, rows(P));
        let mut small = Script::new("draft", &log, rows(Q));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed: 4, ..PLAIN }));
        let mut numbers = [0.1, 0.9, 0.6, 0.4, 0.3, 0.7, 0.9, 0.8, 0.5, 0.8, 0.9, 0.3].into_iter();
        let mut text = vec![0];
        transcript.line(format!("p {P:?}, q {Q:?} after every text; text {text:?}, k = 2"));
        for _ in 0..4 {
            let told = log.clone();
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let note = |line: String| told.borrow_mut().push(line);
                for (token, q) in draft.tokens.iter().zip(&draft.probabilities) {
                    let ratio = (P[*token as usize] / q[*token as usize]).min(1.0);
                    note(format!("guess {token} is accepted below {}", (ratio * 1000.0).round() / 1000.0));
                }
                let rows = vec![P.to_vec(); rows.len()];
                accept_sampled(draft, &rows, &mut || {
                    let number = numbers.next().unwrap_or_else(|| {
                        panic!("accept_sampled takes a 13th random number: these four steps, drafts of 2, take twelve at most")
                    });
                    note(format!("random number {number}"));
                    number
                })
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let new_tokens = granted(format!("a step after {text:?}, k = 2"), || speculation.step(&text, 2, &[]));
            text.extend(&new_tokens);
            transcript.line("step");
            for line in log.borrow_mut().drain(..) {
                transcript.line(format!("  {line}"));
            }
            transcript.line(format!("  new tokens {new_tokens:?}"));
        }
        assert_transcript("ch09_chance", &transcript);
    }

    /// A row of probabilities: 64 parts, dealt out by dice.
    fn row(dice: &mut Dice, vocab_size: usize) -> Vec<u32> {
        let mut row = vec![0; vocab_size];
        // A few tokens get most of it, some get nothing.
        let piece = dice.roll(1, 16);
        (0..64).step_by(piece).for_each(|part| row[dice.roll(0, vocab_size - 1)] += piece.min(64 - part) as u32);
        row
    }

    /// The token into whose share of the parts a number falls, a number of 4096ths.
    fn share(parts: &[u32], number: u32) -> u32 {
        let (sum, mut left) = (parts.iter().sum::<u32>(), 0);
        let found = parts.iter().position(|part| {
            left += part;
            number * sum < left * 4096
        });
        found.expect("a number below 1") as u32
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(400) {
            let mut dice = Dice::new(seed);
            let (vocab_size, k) = (dice.roll(2, 9), dice.roll(0, 5));
            let p: Vec<Vec<u32>> = (0..=k).map(|_| row(&mut dice, vocab_size)).collect();
            // Some drafts are drawn from the target's own rows.
            let q: Vec<Vec<u32>> =
                (0..k).map(|i| if dice.roll(0, 3) == 0 { p[i].clone() } else { row(&mut dice, vocab_size) }).collect();
            // Odd numbers of 4096ths: none of them lies on a threshold.
            let numbers: Vec<u32> = (0..2 * k + 1).map(|_| 2 * dice.roll(0, 2047) as u32 + 1).collect();
            let tokens: Vec<u32> = (0..k).map(|i| share(&q[i], numbers[k + 1 + i])).collect();

            // The rule in whole numbers.
            let mut expected = Vec::new();
            let rejected = (0..k).find(|i| {
                let token = tokens[*i] as usize;
                let is_accepted = numbers[*i] * q[*i][token] < p[*i][token] * 4096;
                expected.extend(is_accepted.then_some(tokens[*i]));
                !is_accepted
            });
            let last = match rejected {
                Some(i) => (p[i].iter().zip(&q[i])).map(|(p, q)| p.saturating_sub(*q)).collect(),
                None => p[k].clone(),
            };
            let looked_at = rejected.map_or(k, |i| i + 1);
            expected.push(share(&last, numbers[looked_at]));

            let of_64 = |rows: &[Vec<u32>]| -> Vec<Vec<f32>> {
                rows.iter().map(|row| row.iter().map(|part| *part as f32 / 64.0).collect()).collect()
            };
            let draft = Draft { tokens, probabilities: of_64(&q) };
            let given: Vec<f64> = numbers.iter().map(|number| f64::from(*number) / 4096.0).collect();
            let told =
                format!("seed {seed}: {:?} drafted, in 64ths p {p:?}, q {q:?}, random numbers {given:?}", draft.tokens);
            let question = asking(told.clone());
            let mut taken = 0;
            let mut next = bounded(|| {
                taken += 1;
                given[(taken - 1).min(2 * k)]
            });
            let found = accept_sampled(&draft, &of_64(&p), &mut next);
            drop(next);
            drop(question);
            same!(found, expected, "{told}: new tokens");
            same!(taken, looked_at + 1, "{told}: random numbers taken");
        }
    }

    #[test]
    fn whole_texts_are_as_likely_as_the_target_makes_them() {
        let mut dice = Sampler::new(PLAIN);
        let found = likeness(|run| {
            let log = Log::default();
            let mut target = Script::new("target", &log, |text| unlike(text, 0));
            let mut small = Script::new("draft", &log, |text| unlike(text, 1));
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed: 1000 + run, ..PLAIN }));
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| dice.probabilities(row)).collect();
                accept_sampled(draft, &rows, &mut bounded(|| dice.uniform()))
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let limits = Limits { max_new_tokens: 3, end_of_text: &[] };
            granted(format!("text {run}, 3 tokens, k = 2"), || speculation.generate(&[0], limits, 2, &mut |_| {}))
        });
        assert_alike(&found);
    }

    #[test]
    fn whole_a_perfect_draft_is_never_rejected() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt();
        let layout = storyteller.model.config().kv_layout();
        let (mut target_cache, mut draft_cache) = (cache(1, layout), cache(2, layout));
        let mut target = Cached::new(&storyteller.model, &mut *target_cache);
        let mut small = Cached::new(&storyteller.model, &mut *draft_cache);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed: 8, ..SAMPLING }));
        let mut sampler = Sampler::new(SAMPLING);
        let mut shares = Vec::new();
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
            let new_tokens = accept_sampled(draft, &rows, &mut || sampler.uniform());
            let told = "accepted of 4 guesses that the target drafts for itself";
            same!(new_tokens.len() - 1, draft.tokens.len(), "{told}");
            shares.extend(rows.iter().zip(&draft.probabilities).map(|(p, q)| share_to_expect(p, q)));
            new_tokens
        };
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let limits = Limits { max_new_tokens: 20, end_of_text: &[] };
        granted("a story of 20 tokens, k = 4, the target drafts for itself", || {
            speculation.generate(&prompt, limits, 4, &mut |_| {})
        });
        same!(shares.len(), 16, "guesses in a text of 20 tokens, four of them the target's own");
        for share in shares {
            assert!((share - 1.0).abs() < 1e-4, "share to expect of a draft model that is the target: {share}, not 1");
        }
    }

    #[test]
    fn whole_story() {
        // Greedy leaves nothing to chance: the story is the one that is written without guesses.
        let storyteller = Storyteller::open();
        let draft_model = Model::open(&assets().join("storyteller-draft")).expect("the bundled draft model opens");
        let n = 16;
        let prompt = storyteller.prompt();
        let mut text = prompt.clone();
        for _ in 0..n {
            let logits = storyteller.model.step(&text, None).expect("a short text fits");
            text.push((0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32);
        }
        let expected = &text[prompt.len()..];
        for (k, kind) in (0..=5).flat_map(|k| (0..4).map(move |kind| (k, kind))) {
            let mut caches = [&storyteller.model, &draft_model].map(|model| cache(kind, model.config().kv_layout()));
            let [target_cache, draft_cache] = &mut caches;
            let (mut target_cache, mut draft_cache) = (Watched(&mut **target_cache), Watched(&mut **draft_cache));
            let mut target = Cached::new(&storyteller.model, &mut target_cache);
            let mut small = Cached::new(&draft_model, &mut draft_cache);
            let mut sampler = Sampler::new(Sampling::GREEDY);
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
                accept_sampled(draft, &rows, &mut || sampler.uniform())
            };
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling::GREEDY));
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let limits = Limits { max_new_tokens: n, end_of_text: &[] };
            let told = format!("a story of {n} tokens, {}, k = {k}", CACHES[kind]);
            let story = granted(told, || speculation.generate(&prompt, limits, k, &mut |_| {}));
            storyteller.assert_same_story(&story, expected);
        }
    }

    /// The caches of the story.
    const CACHES: [&str; 4] =
        ["flat cache", "contiguous cache", "paged cache, page size 3", "paged cache, page size 16"];

    /// An empty cache: one of `CACHES`.
    fn cache(kind: usize, layout: KvLayout) -> Box<dyn Rewind> {
        let paged = |page_size| {
            let slab = made("a slab of 64 pages", || PageSlab::new(layout, page_size, 64));
            Box::new(made("a paged cache", || PagedCache::new(&slab)))
        };
        match kind {
            0 => Box::new(FlatCache::new(layout)),
            1 => Box::new(ContiguousCache::new(layout, 64)),
            2 => paged(3),
            _ => paged(16),
        }
    }
}
