//! Grader of chapter 9: speculative sampling.

grading::grader!();

#[cfg(not(stub = "ch09_rejection"))]
mod checks {
    use page_by_page::cache::CacheError;
    use page_by_page::chapters::ch08_speculative::Speculation;
    use page_by_page::chapters::ch09_rejection::{SamplingDraftModel, accept_sampled, expected_acceptance, residual};
    use page_by_page::generation::sampler::{Sampler, SamplingParams, draw};
    use page_by_page::generation::{Draft, StopConditions};
    use page_by_page::model::StepError;

    use grading::caches::assert_stories;
    use grading::drafts::{self, draft, drafted};
    use grading::prelude::*;
    use grading::rows::same_numbers;
    use grading::scripted_model::{Log, ScriptedModel, one_hot};

    /// The table of the chapter.
    const P: [f32; 3] = [0.5, 0.375, 0.125];
    const Q: [f32; 3] = [0.25, 0.25, 0.5];

    /// All tokens as likely as their logits say.
    const PLAIN: SamplingParams = SamplingParams { temperature: 1.0, seed: 1, ..SamplingParams::GREEDY };

    /// Logits of five tokens that depend on the sequence.
    fn five(tokens: &[u32]) -> Vec<f32> {
        let last = tokens[tokens.len() - 1] as usize;
        (0..5).map(|id| ((id * tokens.len() + last * 2) % 7) as f32 / 3.0).collect()
    }

    /// What `accept_sampled` gives for these random numbers, and how many it takes. A loop that never ends is stopped.
    fn accepted(told: &str, draft: &Draft, rows: &[Vec<f32>], numbers: &[f64]) -> (Vec<u32>, usize) {
        let mut taken = 0;
        let mut next = || {
            taken += 1;
            assert!(taken < 1000, "1000 random numbers were taken for one draft: does a loop of yours never end?");
            numbers.get(taken - 1).copied().unwrap_or(0.5)
        };
        let new_tokens = in_call(told, || accept_sampled(draft, rows, &mut next));
        (new_tokens, taken)
    }

    /// Checks the new tokens that these random numbers give, and that all of the numbers are taken.
    fn assert_accepts(what: &str, draft: &Draft, rows: &[Vec<f32>], numbers: &[f64], expected: &[u32]) {
        let told = format!("{what}: {:?} drafted, random numbers {numbers:?}", draft.tokens);
        let (new_tokens, taken) = accepted(&told, draft, rows, numbers);
        same!(new_tokens, expected, "{told}: new tokens");
        same!(taken, numbers.len(), "{told}: random numbers taken; the new tokens are right");
    }

    /// A draft of some tokens, each drawn from its row.
    fn draft_of(tokens: &[u32], rows: &[&[f32]]) -> Draft {
        Draft { tokens: tokens.to_vec(), probabilities: rows.iter().map(|row| row.to_vec()).collect() }
    }

    // Task 1

    tests_on! {
        |small| Box::new(SamplingDraftModel::new(small, Sampler::new(PLAIN)));
        task_1_draft_asks_after_the_sequence_and_each_draft_token = drafts::one_after_the_other,
        task_1_very_long_sequence_is_copied_once = drafts::a_long_sequence_is_copied_once,
        task_1_draft_passes_a_refusal_on = drafts::a_refusal_is_passed_on,
        task_1_draft_reads_only_what_is_new_to_the_draft_model = drafts::only_what_is_new_is_read,
    }

    /// Drafts again and again, `ks` tokens each time, and compares each draft with the one that the chapter asks for,
    /// which is written here. `row` gives the draft model's logits.
    fn assert_drafts(
        drafter: &mut SamplingDraftModel<'_>,
        row: impl Fn(&[u32]) -> Vec<f32>,
        own: &mut Sampler,
        ks: &[usize],
    ) {
        let mut tokens = vec![0, 1];
        for k in ks {
            let told = format!("{k} draft tokens after {tokens:?}");
            let found = expect_ok(told.as_str(), || draft(drafter, &tokens, *k));
            same!((found.tokens.len(), found.probabilities.len()), (*k, *k), "tokens and rows of {told}");
            for (token, row_of_draft) in found.tokens.iter().zip(&found.probabilities) {
                let (probabilities, number) = (own.probabilities(&row(&tokens)), own.uniform());
                let told = format!("the draft token after {tokens:?} with the sampler's next number, {number:.4}");
                same!(*row_of_draft, probabilities, "the probabilities, kept with {told}");
                same!(*token, draw(&probabilities, number), "{told}, drawn from {probabilities:?}");
                tokens.push(*token);
            }
        }
    }

    /// The same for a new drafter that samples so.
    fn assert_samples(sampling: SamplingParams, row: impl Fn(&[u32]) -> Vec<f32>, ks: &[usize]) {
        let mut small = ScriptedModel::new("draft", &Log::default(), &row);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(sampling));
        assert_drafts(&mut drafter, &row, &mut Sampler::new(sampling), ks);
    }

    #[test]
    fn task_1_draft_keeps_what_its_tokens_were_drawn_from() {
        for sampling in [SamplingParams { temperature: 0.7, top_k: 3, ..PLAIN }, PLAIN, SamplingParams::GREEDY] {
            (0..20).for_each(|seed| assert_samples(SamplingParams { seed, ..sampling }, five, &[3]));
        }
    }

    #[test]
    fn task_1_draft_takes_the_next_random_number_for_each_draft_token() {
        // One that leaves no choice takes a number too.
        let row = |tokens: &[u32]| if tokens.len().is_multiple_of(3) { one_hot(2, 5) } else { five(tokens) };
        for seed in 0..40 {
            assert_samples(SamplingParams { seed, ..PLAIN }, row, &[3, 1, 2]);
        }
    }

    #[test]
    fn task_1_nothing_drafted_asks_nothing_and_draws_nothing() {
        let log = Log::default();
        let mut small = ScriptedModel::new("draft", &log, five);
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        assert_drafts(&mut drafter, five, &mut Sampler::new(PLAIN), &[0, 4]);
        same!(log.borrow().len(), 4, "passes of the draft model for 0 tokens, then for 4");
    }

    #[test]
    fn task_1_refused_draft_token_takes_no_random_number() {
        let full = StepError::from(CacheError::OutOfPages { needed: 1, free: 0 });
        let mut small = ScriptedModel::new("draft", &Log::default(), five);
        small.refuses_once = Some(full.clone());
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN));
        let told = "a draft of 4 tokens after 0, 1, by a model that refuses its first question";
        same!(draft(&mut drafter, &[0, 1], 4), Err(full), "{told}");
        let again = drafted(&mut drafter, &[0, 1], 4).tokens;
        let mut willing = ScriptedModel::new("draft", &Log::default(), five);
        let expected = drafted(&mut SamplingDraftModel::new(&mut willing, Sampler::new(PLAIN)), &[0, 1], 4).tokens;
        same!(again, expected, "{told}, again: drawn with the sampler's first numbers, as none has been taken");
    }

    // Task 2

    #[test]
    fn task_2_residual_is_what_the_target_has_left() {
        same!(residual(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), [0.25, 0.0, 0.0], "residual of the example");
        let table = [
            (P, Q, [0.25, 0.125, 0.0]),
            ([0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [0.5, 0.25, 0.0]),
            ([0.125, 0.0, 0.875], [0.125, 0.5, 0.375], [0.0, 0.0, 0.5]),
            ([0.0, 0.75, 0.25], [1.0, 0.0, 0.0], [0.0, 0.75, 0.25]),
            ([1e-9, 1.0, 0.0], [0.0, 1.0, 0.0], [1e-9, 0.0, 0.0]),
        ];
        let least = [f32::EPSILON, f32::EPSILON / 2.0]
            .map(|least| ([0.25 + least, 0.75 - least, 0.0], [0.25, 0.75, 0.0], [least, 0.0, 0.0]));
        for (p, q, expected) in table.into_iter().chain(least) {
            same!(residual(&p, &q), expected, "residual of p {p:?}, q {q:?}");
        }
        let (q, mut p, mut expected) = (vec![0.0; 70_000], vec![0.0; 70_000], vec![0.0; 70_000]);
        (p[3], p[69_999], expected[3], expected[69_999]) = (0.25, 0.75, 0.25, 0.75);
        let what = "residual of 70,000 tokens, p is 0.25 for token 3 and 0.75 for token 69,999, q is 0";
        same_numbers(&in_call(what, || residual(&p, &q)), &expected, what);
    }

    #[test]
    fn task_2_residual_of_equal_rows_is_p() {
        same!(residual(&P, &P), P, "residual of p {P:?} and a q that is the same");
        let (p, q) = ([0.5, 0.49999997], [0.5, 0.5]);
        same!(residual(&p, &q), p, "residual of p {p:?}, q {q:?}: the same but for rounding");
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
            ("p is 0", [0.0, 1.0], even, 0, 0.0, false),
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
            assert_accepts(&what, &draft_of(&[token], &[&q]), &rows, &[number, 0.5], &expected);
        }
    }

    #[test]
    fn task_3_draws_from_the_residual_in_the_place_of_a_rejected_draft_token() {
        // Left are 0.25 and 0.125: token 0 up to two thirds.
        for (number, expected) in [(0.0, 0), (0.6, 0), (0.7, 1), (0.99, 1)] {
            let what = format!("the residual is [0.25, 0.125, 0.0], p {P:?}, q {Q:?}");
            let rows = [P.to_vec(), vec![0.0, 0.0, 1.0]];
            assert_accepts(&what, &draft_of(&[2], &[&Q]), &rows, &[0.3, number], &[expected]);
        }
    }

    #[test]
    fn task_3_judges_each_draft_token_by_its_own_rows() {
        let q: [&[f32]; 3] = [&[0.5, 0.5, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0], &[0.625, 0.375, 0.0, 0.0]];
        let draft = draft_of(&[0, 0, 0], &q);
        let rows = [[0.25, 0.75, 0.0, 0.0], [0.75, 0.0, 0.25, 0.0], [0.5, 0.25, 0.0, 0.25], [0.125, 0.875, 0.0, 0.0]];
        let rows = rows.map(|row| row.to_vec());
        let what = "p / q is 0.5, then 0.75, then 0.8, the residual only token 1, then 2, then 3; then p of 0 is 0.125";
        assert_accepts(what, &draft, &rows, &[0.6, 0.9], &[1]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.77, 0.9], &[0, 2]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.82, 0.9], &[0, 0, 3]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.78, 0.1], &[0, 0, 0, 0]);
        assert_accepts(what, &draft, &rows, &[0.4, 0.7, 0.78, 0.2], &[0, 0, 0, 1]);
    }

    #[test]
    fn task_3_very_large_rows_are_not_copied() {
        let (vocab_size, drafted) = (10_000, 300);
        let row = vec![1.0 / vocab_size as f32; vocab_size];
        let draft = draft_of(&vec![3; drafted], &vec![&row[..]; drafted]);
        let rows = vec![row; drafted + 1];
        let one_draw = allocated(|| draw(&rows[0], 0.5)).1;
        let what = format!("accept_sampled of {drafted} draft tokens that are all accepted");
        let why = "the residual is needed for a rejected draft token only, and the rows need no copy";
        let most = one_draw + 2 * vocab_size * size_of::<f32>();
        let new_tokens = assert_allocates(most, &what, why, || accept_sampled(&draft, &rows, &mut || 0.5));
        same!(new_tokens.len(), drafted + 1, "new tokens of {what}");
    }

    #[test]
    fn task_3_random_numbers_keep_their_53_bits() {
        let below = 0.5 - 1e-12;
        let rows = [vec![0.25, 0.75], vec![0.5, 0.5]];
        let what = "p / q is 0.5, then both are as likely";
        assert_accepts(what, &draft_of(&[0], &[&[0.5, 0.5]]), &rows, &[below, below], &[0, 0]);
        let rows = [vec![0.0, 0.5, 0.5], vec![1.0, 0.0, 0.0]];
        let what = "p / q is 0, then 1 and 2 are as likely";
        assert_accepts(what, &draft_of(&[0], &[&[0.5, 0.25, 0.25]]), &rows, &[0.9, below], &[1]);
    }

    #[test]
    fn task_3_takes_a_random_number_for_each_draft_token_looked_at_and_one_for_the_last_token() {
        let certain = [1.0, 0.0, 0.0];
        let last = vec![0.25, 0.25, 0.5];
        type Case<'c> = (&'c str, Draft, &'c [f64], &'c [u32]);
        let cases: [Case<'_>; 6] = [
            ("nothing was drafted", draft_of(&[], &[]), &[0.9], &[2]),
            ("a token that is sure to be accepted", draft_of(&[0], &[&Q]), &[0.9, 0.3], &[0, 1]),
            ("all are accepted", draft_of(&[1, 1], &[&Q, &Q]), &[0.9, 0.8, 0.3], &[1, 1, 1]),
            ("the first is rejected", draft_of(&[2, 1], &[&Q, &Q]), &[0.9, 0.8], &[1]),
            ("the second is rejected", draft_of(&[1, 2], &[&Q, &Q]), &[0.9, 0.8, 0.1], &[1, 0]),
            ("tokens that were not drawn", draft_of(&[0, 0], &[&certain, &certain]), &[0.49, 0.51, 0.9], &[0, 2]),
        ];
        for (what, draft, numbers, expected) in cases {
            let rows = [vec![P.to_vec(); draft.tokens.len()], vec![last.clone()]].concat();
            let what = format!("{what}, p {P:?}, q {:?}, last row {last:?}", draft.probabilities.first());
            assert_accepts(&what, &draft, &rows, numbers, expected);
        }
        let what = "the last row is sure of token 1";
        assert_accepts(what, &draft_of(&[0], &[&Q]), &[P.to_vec(), vec![0.0, 1.0, 0.0]], &[0.9, 0.3], &[0, 1]);
        let rows = [vec![0.25, 0.75], vec![1.0, 0.0]];
        let what = "only token 1 has anything left";
        assert_accepts(what, &draft_of(&[0], &[&[0.5, 0.5]]), &rows, &[0.9, 0.3], &[1]);
    }

    /// Random numbers lie in the middle of this many equal parts. No threshold of these probabilities lies within a
    /// part, so counting parts is exact.
    const PARTS: usize = 24;

    const SECOND: [[f32; 3]; 3] = [[0.125, 0.5, 0.375], [0.25, 0.25, 0.5], [0.625, 0.25, 0.125]];
    const FIRST: [f32; 3] = [0.5, 0.125, 0.375];

    #[test]
    fn task_3_two_draft_tokens_give_exactly_the_probabilities_of_the_target() {
        let q = [[0.25f32, 0.5, 0.25], [0.5, 0.25, 0.25]];
        let third = vec![1.0, 0.0, 0.0];
        let mut found = [[0.0f64; 3]; 3];
        for (first, second) in (0..9).map(|both| (both / 3, both % 3)) {
            let weight = f64::from(q[0][first]) * f64::from(q[1][second]) / (PARTS * PARTS * PARTS) as f64;
            let draft = draft_of(&[first as u32, second as u32], &[&q[0], &q[1]]);
            let rows = [FIRST.to_vec(), SECOND[first].to_vec(), third.clone()];
            let told = format!("{:?} drafted, p {rows:?}, q {q:?}", draft.tokens);
            for parts in 0..PARTS * PARTS * PARTS {
                let parts = [parts % PARTS, parts / PARTS % PARTS, parts / PARTS / PARTS];
                let numbers = parts.map(|part| (part as f64 + 0.5) / PARTS as f64);
                match accepted(&told, &draft, &rows, &numbers).0[..] {
                    [a] => (0..3).for_each(|b| found[a as usize][b] += weight * f64::from(SECOND[a as usize][b])),
                    [a, b, ..] => found[a as usize][b as usize] += weight,
                    [] => panic!("no new token: there is always one"),
                }
            }
        }
        for (a, b) in (0..9).map(|both| (both / 3, both % 3)) {
            let expected = f64::from(FIRST[a]) * f64::from(SECOND[a][b]);
            let rows = format!("two draft tokens, p {FIRST:?}, then {:?}, q {:?}, then {:?}", SECOND[a], q[0], q[1]);
            let found = found[a][b];
            assert!(
                (found - expected).abs() < 1e-9,
                "how likely an output begins with {a}, {b}, all random numbers tried; {rows}\n  \
                 expected: {expected:.4}\n  yours:    {found:.4}"
            );
        }
    }

    // Task 4

    #[test]
    fn task_4_expected_acceptance_adds_up_the_smaller_of_both() {
        same!(expected_acceptance(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), 0.75, "share of the example");
        same!(expected_acceptance(&P, &Q), 0.625, "share of the chapter's table, p {P:?}, q {Q:?}");
        same!(expected_acceptance(&Q, &P), 0.625, "share of the table with p and q swapped");
        same!(expected_acceptance(&P, &P), 1.0, "share where q is p");
        same!(expected_acceptance(&[1.0, 0.0], &[0.0, 1.0]), 0.0, "share where q never draws what p has");
        same!(
            expected_acceptance(&P, &[0.0, 0.0, 1.0]),
            0.125,
            "share of a draft token that was not drawn: p of token 2"
        );
        let (p, q) = ([0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.5, 0.0]);
        same!(expected_acceptance(&p, &q), 0.75, "share where some probabilities are 0, p {p:?}, q {q:?}");
    }

    #[test]
    fn task_4_expected_acceptance_of_many_tokens() {
        const N: usize = 70_000;
        let p = vec![1.0 / N as f32; N];
        let what = format!("share of {N} tokens that are all as likely, where q is p");
        let (share, expected) = (in_call(&what, || expected_acceptance(&p, &p)), 1.0);
        let is_f32 = share == f64::from(p.iter().sum::<f32>());
        let why = if is_f32 { "\n  each smaller one is to be converted to f64, and then added" } else { "" };
        let is_near = (share - expected).abs() < 1e-6;
        assert!(is_near, "{what}\n  expected: {expected}\n  yours:    {share}{why}");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let log = Log::default();
        let mut transcript = Transcript::default();
        let rows = |row: [f32; 3]| move |_: &[u32]| row.map(f32::ln).to_vec();
        let mut target = ScriptedModel::new("target", &log, rows(P));
        let mut small = ScriptedModel::new("draft", &log, rows(Q));
        let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(SamplingParams { seed: 4, ..PLAIN }));
        let mut numbers = [0.1, 0.9, 0.6, 0.4, 0.3, 0.7, 0.9, 0.8, 0.5, 0.8, 0.9, 0.3].into_iter();
        let mut tokens = vec![0];
        transcript.line(format!("p {P:?}, q {Q:?} after every sequence; tokens {tokens:?}, k = 2"));
        for _ in 0..4 {
            let told = log.clone();
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let note = |line: String| told.borrow_mut().push(line);
                for (token, q) in draft.tokens.iter().zip(&draft.probabilities) {
                    let ratio = (P[*token as usize] / q[*token as usize]).min(1.0);
                    note(format!("draft token {token}: threshold {}", (ratio * 1000.0).round() / 1000.0));
                }
                let rows = vec![P.to_vec(); rows.len()];
                accept_sampled(draft, &rows, &mut || {
                    let number = numbers.next().unwrap_or_else(|| {
                        panic!("accept_sampled takes a 13th random number: four drafts of 2 take twelve at most")
                    });
                    note(format!("random number {number}"));
                    number
                })
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let new_tokens = expect_ok(format!("a step after {tokens:?}, k = 2"), || speculation.step(&tokens, 2, &[]));
            tokens.extend(&new_tokens);
            transcript.line("step");
            for line in log.borrow_mut().drain(..) {
                transcript.line(format!("  {line}"));
            }
            transcript.line(format!("  new tokens {new_tokens:?}"));
        }
        assert_transcript("ch09_rejection", &transcript);
    }

    /// The logits of two small models that mostly agree; they depend on the sequence.
    fn unlike(tokens: &[u32], shift: usize) -> Vec<f32> {
        let last = tokens[tokens.len() - 1] as usize;
        (0..3).map(|id| ((id * 5 + last * 3 + tokens.len() + shift * id) % 7) as f32 / 3.0).collect()
    }

    /// Exceeded by chance in one run of a thousand: the chi-square statistic of 27 cells.
    const UNLIKELY: f64 = 54.05;

    const RUNS: usize = 20_000;

    #[test]
    fn whole_outputs_are_as_likely_as_the_target_makes_them() {
        let mut rng = Sampler::new(PLAIN);
        let mut counts = [0u32; 27];
        for run in 0..RUNS as u64 {
            let mut target = ScriptedModel::new("target", &Log::default(), |tokens| unlike(tokens, 0));
            let mut small = ScriptedModel::new("draft", &Log::default(), |tokens| unlike(tokens, 1));
            let mut drafter =
                SamplingDraftModel::new(&mut small, Sampler::new(SamplingParams { seed: 1000 + run, ..PLAIN }));
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| rng.probabilities(row)).collect();
                accept_sampled(draft, &rows, &mut || rng.uniform())
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let stop = StopConditions { max_new_tokens: 3, end_of_text: &[] };
            let told = format!("output {run}, 3 tokens, k = 2");
            let output = expect_ok(told.as_str(), || speculation.generate(&[0], stop, 2, &mut |_| {}));
            same!(output.len(), 3, "{told}: how many there are");
            counts[output.iter().fold(0, |cell, token| cell * 3 + *token as usize)] += 1;
        }
        let [p, q] = [0, 1].map(|shift| Sampler::new(PLAIN).probabilities(&unlike(&[0], shift)));
        let (mut chi_square, mut worst) = (0.0, (0.0, String::new()));
        for (cell, count) in counts.iter().enumerate() {
            let (mut tokens, mut expected) = (vec![0], RUNS as f64);
            for token in [cell / 9, cell / 3 % 3, cell % 3] {
                expected *= f64::from(Sampler::new(PLAIN).probabilities(&unlike(&tokens, 0))[token]);
                tokens.push(token as u32);
            }
            let off = (f64::from(*count) - expected).powi(2) / expected;
            chi_square += off;
            if off > worst.0 {
                let what = format!("{:?} after 0, where p of the first token is {p:.3?} and q {q:.3?}", &tokens[1..]);
                worst = (off, format!("{what}\n  expected: about {expected:.0} times\n  yours:    {count} times"));
            }
        }
        println!("[2, 2, 2] comes {} times, and the chi-square of all outputs is {chi_square:.1}", counts[26]);
        assert!(
            chi_square < UNLIKELY,
            "of {RUNS} outputs, how often comes {}\n  by chance? the chi-square of all outputs is \
             {chi_square:.0}, and above {UNLIKELY} in one run of a thousand",
            worst.1
        );
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let (prompt, n) = (storyteller.prompt(), 16);
        // Greedy leaves nothing to chance: the story is the one that is generated without drafts.
        let mut tokens = prompt.clone();
        for _ in 0..n {
            let logits = storyteller.model.step(&tokens, None).expect("a short sequence fits");
            tokens.push((0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32);
        }
        assert_stories(&storyteller, true, (&prompt, &tokens[prompt.len()..]), |told, target, small, k| {
            let mut drafter = SamplingDraftModel::new(small, Sampler::new(SamplingParams::GREEDY));
            let mut sampler = Sampler::new(SamplingParams::GREEDY);
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
                accept_sampled(draft, &rows, &mut || sampler.uniform())
            };
            let mut speculation = Speculation { target, drafter: &mut drafter, accept: &mut accept };
            let stop = StopConditions { max_new_tokens: n, end_of_text: &[] };
            expect_ok(told, || speculation.generate(&prompt, stop, k, &mut |_| {}))
        });
    }
}
