//! Grader of chapter 9: guessing by chance.

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
    use page_by_page::engine::{Cached, Draft, Drafter, Limits};
    use page_by_page::model::Model;
    use page_by_page::sampler::{Sampler, Sampling, draw};

    use crate::support::asking::{asking, granted};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::script::{Log, Script};
    use crate::support::story::{SAMPLING, Storyteller, assets};
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

    /// The draft that the chapter asks for, written here.
    fn drawn(sampler: &mut Sampler, text: &[u32], k: usize) -> Draft {
        let (mut text, mut draft) = (text.to_vec(), Draft::default());
        for _ in 0..k {
            let row = sampler.probabilities(&five(&text));
            let token = draw(&row, sampler.uniform());
            text.push(token);
            draft.push(token, row);
        }
        draft
    }

    /// Gives the random numbers of a list, one by one.
    fn in_order(numbers: &[f64]) -> impl FnMut() -> f64 {
        let given = numbers.to_vec();
        let mut left = numbers.to_vec().into_iter();
        move || {
            left.next().unwrap_or_else(|| {
                panic!("accept_sampled asks for one random number more than these tokens take; given were {given:?}")
            })
        }
    }

    /// The new tokens, with these random numbers.
    fn accepted(draft: &Draft, rows: &[Vec<f32>], numbers: &[f64]) -> Vec<u32> {
        let told = format!("{:?} drafted, random numbers {numbers:?}", draft.tokens);
        let _asking = asking(told);
        accept_sampled(draft, rows, &mut in_order(numbers))
    }

    /// A draft of some tokens, each drawn from its row.
    fn drafted(tokens: &[u32], rows: &[&[f32]]) -> Draft {
        Draft { tokens: tokens.to_vec(), probabilities: rows.iter().map(|row| row.to_vec()).collect() }
    }

    // Task 1

    #[test]
    fn task_1_draft_asks_after_the_text_and_each_guess() {
        let log = Log::default();
        let certain =
            |text: &[u32]| (0..12).map(|id| if id == text[text.len() - 1] + 1 { 99.0 } else { 0.0 }).collect();
        let mut small = Script::new("draft", &log, certain);
        let draft = granted("a draft of 3 tokens after 3, 4", || {
            SamplingDraftModel::new(&mut small, Sampler::new(PLAIN)).draft(&[3, 4], 3)
        });
        same!(draft.tokens, [5, 6, 7], "3 tokens drafted by a model that counts, after 3, 4");
        let passes = [
            "draft reads [3, 4], answers after the last 1",
            "draft reads [5], answers after the last 1",
            "draft reads [6], answers after the last 1",
        ];
        same!(*log.borrow(), passes, "passes of the draft model for 3 tokens");
    }

    #[test]
    fn task_1_draft_of_nothing_asks_nothing() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, five);
        let draft = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN)).draft(&[3, 4], 0);
        same!(draft, Ok(Draft::default()), "a draft of 0 tokens");
        same!(log.borrow().len(), 0, "passes of the draft model for 0 tokens");
    }

    #[test]
    fn task_1_each_guess_is_drawn_with_a_random_number_of_its_own() {
        // Three tokens, all as likely: the second guess tells nothing of the first.
        let mut seen = [[0; 3]; 3];
        for seed in 0..360 {
            let log = Log::default();
            let mut small = Script::new("draft", &log, |_| vec![1.0; 3]);
            let sampler = Sampler::new(Sampling { seed, ..PLAIN });
            let draft = granted(format!("seed {seed}: a draft of 2 tokens after 0"), || {
                SamplingDraftModel::new(&mut small, sampler).draft(&[0], 2)
            });
            same!(draft.tokens.len(), 2, "tokens in a draft of 2");
            seen[draft.tokens[0] as usize][draft.tokens[1] as usize] += 1;
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
        for sampling in [PLAIN, Sampling { temperature: 0.7, top_k: 3, ..PLAIN }, Sampling::GREEDY] {
            for seed in 0..20 {
                let log = Log::default();
                let mut small = Script::new("draft", &log, five);
                let sampler = Sampler::new(Sampling { seed, ..sampling });
                let draft = granted(format!("seed {seed}: a draft of 3 tokens after 0, 1"), || {
                    SamplingDraftModel::new(&mut small, sampler).draft(&[0, 1], 3)
                });
                let mut text = vec![0, 1];
                for (index, token) in draft.tokens.iter().enumerate() {
                    let expected = Sampler::new(sampling).probabilities(&five(&text));
                    let found = draft.probabilities.get(index);
                    same!(
                        found,
                        Some(&expected),
                        "seed {seed}, {sampling:?}: what guess {index}, {token}, was drawn from"
                    );
                    assert!(expected[*token as usize] > 0.0, "token {token} was guessed, its q is 0: {expected:?}");
                    text.push(*token);
                }
                same!((draft.tokens.len(), draft.probabilities.len()), (3, 3), "tokens and rows of a draft of 3");
            }
        }
    }

    #[test]
    fn task_1_draft_takes_the_next_random_number_for_each_guess() {
        for seed in 0..40 {
            let sampling = Sampling { seed, top_k: 3, ..PLAIN };
            let log = Log::default();
            let mut small = Script::new("draft", &log, five);
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(sampling));
            let mut own = Sampler::new(sampling);
            let mut text = vec![0, 1];
            for k in [3, 1, 2] {
                let expected = drawn(&mut own, &text, k).tokens;
                let found =
                    granted(format!("seed {seed}: a draft of {k} tokens after {text:?}"), || drafter.draft(&text, k))
                        .tokens;
                same!(
                    found,
                    expected,
                    "seed {seed}: {k} guesses after {text:?}, `draw`n with the sampler's next numbers"
                );
                text.extend(found);
            }
        }
    }

    #[test]
    fn task_1_draft_passes_a_refusal_on() {
        let log = Log::default();
        let mut small = Script::new("draft", &log, five);
        small.room = 3;
        let draft = SamplingDraftModel::new(&mut small, Sampler::new(PLAIN)).draft(&[0, 1], 4);
        let full = CacheError::OutOfSlots { needed: 1, free: 0, capacity: 3 };
        same!(draft, Err(full.into()), "a draft of 4 tokens after 2 by a model with room for 3");
    }

    // Task 2

    #[test]
    fn task_2_residual_is_what_the_target_has_left() {
        same!(residual(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), [0.25, 0.0, 0.0], "residual of the example");
        same!(residual(&P, &Q), [0.25, 0.125, 0.0], "residual of the chapter's table, p {P:?}, q {Q:?}");
        same!(residual(&[0.5, 0.5, 0.0], &[0.0, 0.25, 0.75]), [0.5, 0.25, 0.0], "residual where q is mostly elsewhere");
    }

    #[test]
    fn task_2_residual_of_equal_rows_is_p() {
        same!(residual(&P, &P), P, "residual of p {P:?} and a q that is the same");
        let (p, q) = ([0.5, 0.49999997], [0.5, 0.5]);
        same!(residual(&p, &q), p, "residual of p {p:?}, q {q:?}: the same but for rounding");
    }

    #[test]
    fn task_2_residual_has_a_number_for_each_token() {
        let p = vec![1.0 / 65_536.0; 65_536];
        let mut q = p.clone();
        (q[3], q[65_535]) = (2.0 / 65_536.0, 0.0);
        let left = residual(&p, &q);
        same!(left.len(), 65_536, "numbers in the residual of a vocabulary of 65,536");
        let some: Vec<usize> = (0..left.len()).filter(|token| left[*token] != 0.0).collect();
        same!(some, [65_535], "tokens of which something is left, where q has its all on 3 instead of 65535");
    }

    // Task 3

    #[test]
    fn task_3_accepts_with_probability_p_over_q() {
        let (p, q) = (vec![0.25, 0.75], [0.5, 0.5]);
        let cases =
            [(0, 0.0, true), (0, 0.3, true), (0, 0.49, true), (0, 0.51, false), (0, 0.6, false), (1, 0.99, true)];
        for (token, number, is_accepted) in cases {
            let draft = drafted(&[token], &[&q]);
            let found = accepted(&draft, &[p.clone(), vec![1.0, 0.0]], &[number, 0.5]);
            let expected = if is_accepted { vec![token, 0] } else { vec![1] };
            same!(
                found,
                expected,
                "new tokens when token {token} was drafted, p {p:?}, q {q:?}, random numbers {number}, then 0.5; in the \
                 last row, token 0 has all the probability"
            );
        }
    }

    #[test]
    fn task_3_accepts_no_token_that_the_target_never_chooses() {
        let draft = drafted(&[0], &[&[0.5, 0.5]]);
        same!(
            accept_sampled(&draft, &[vec![0.0, 1.0], vec![1.0, 0.0]], &mut || 0.0),
            [1],
            "new tokens when token 0 was drafted, which has p 0 and q 0.5, random number 0.0"
        );
    }

    #[test]
    fn task_3_draws_from_the_residual_in_the_place_of_a_rejected_guess() {
        // Left are 0.25 and 0.125: token 0 up to two thirds.
        for (number, expected) in [(0.0, 0), (0.6, 0), (0.7, 1), (0.99, 1)] {
            let found = accepted(&drafted(&[2], &[&Q]), &[P.to_vec(), vec![0.0, 0.0, 1.0]], &[0.3, number]);
            same!(
                found,
                [expected],
                "new tokens when token 2 was drafted, p {P:?}, q {Q:?}, random numbers 0.3, {number}"
            );
        }
    }

    #[test]
    fn task_3_takes_a_random_number_for_each_guess_looked_at_and_one_for_the_last_token() {
        let certain = [1.0, 0.0, 0.0];
        let last = vec![0.25, 0.25, 0.5];
        type Case<'c> = (&'c str, Draft, &'c [f64], &'c [u32]);
        let cases: [Case<'_>; 5] = [
            ("nothing was drafted", drafted(&[], &[]), &[0.9], &[2]),
            ("all are accepted", drafted(&[1, 1], &[&Q, &Q]), &[0.9, 0.8, 0.3], &[1, 1, 1]),
            ("the first is rejected", drafted(&[2, 1], &[&Q, &Q]), &[0.9, 0.8], &[1]),
            ("the second is rejected", drafted(&[1, 2], &[&Q, &Q]), &[0.9, 0.8, 0.1], &[1, 0]),
            ("guesses that were not drawn", drafted(&[0, 0], &[&certain, &certain]), &[0.49, 0.51, 0.9], &[0, 2]),
        ];
        for (what, draft, numbers, expected) in cases {
            let rows = [vec![P.to_vec(); draft.tokens.len()], vec![last.clone()]].concat();
            let told = format!("{what}: {:?} drafted from {:?}, p {P:?}", draft.tokens, draft.probabilities.first());
            let question = asking(format!("{told}, random numbers {numbers:?}"));
            let mut given = in_order(numbers);
            let mut n_given = 0;
            let found = accept_sampled(&draft, &rows, &mut || {
                n_given += 1;
                given()
            });
            drop(question);
            same!(found, expected, "{told}, random numbers {numbers:?}: new tokens");
            same!(n_given, numbers.len(), "{told}: random numbers taken");
        }
    }

    #[test]
    fn task_3_a_sure_guess_takes_a_random_number_too() {
        let draft = drafted(&[0], &[&[0.5, 0.5]]);
        let found = accepted(&draft, &[vec![0.75, 0.25], vec![0.5, 0.5]], &[0.9, 0.1]);
        same!(
            found,
            [0, 0],
            "new tokens when token 0 was drafted, p 0.75, q 0.5; random numbers 0.9, 0.1; last row even"
        );
    }

    #[test]
    fn task_3_random_numbers_keep_their_53_bits() {
        let just_below = 0.5 - 1e-12;
        let draft = drafted(&[0], &[&[0.5, 0.5]]);
        let found = accepted(&draft, &[vec![0.25, 0.75], vec![0.5, 0.5]], &[just_below, just_below]);
        same!(found, [0, 0], "new tokens when token 0 was drafted, p 0.25, q 0.5, random numbers {just_below}, twice");
    }

    #[test]
    fn task_3_tokens_may_have_large_ids() {
        const LAST: u32 = 69_999;
        let row = |token: u32, p: f32| {
            let mut row = vec![0.0; 70_000];
            (row[token as usize], row[4_463]) = (p, 1.0 - p);
            row
        };
        let draft = Draft { tokens: vec![LAST], probabilities: vec![row(LAST, 0.5)] };
        let rows = [row(LAST, 0.25), row(LAST, 1.0)];
        same!(accepted(&draft, &rows, &[0.4, 0.5]), [LAST, LAST], "new tokens, {LAST} of 70,000 drafted and accepted");
        same!(accepted(&draft, &rows, &[0.6, 0.5]), [4_463], "new tokens, {LAST} of 70,000 drafted and rejected");
    }

    /// Random numbers in the middle of so many equal parts: no threshold of these probabilities lies within a part, so
    /// that counting parts is exact.
    const PARTS: usize = 24;

    #[test]
    fn task_3_a_single_guess_gives_the_probabilities_of_the_target() {
        let mut found = [0.0; 3];
        for guess in 0..3 {
            let draft = drafted(&[guess as u32], &[&Q]);
            for (first, second) in (0..PARTS * PARTS).map(|both| (both / PARTS, both % PARTS)) {
                let numbers = [first, second].map(|part| (part as f64 + 0.5) / PARTS as f64);
                let new_tokens = accepted(&draft, &[P.to_vec(), vec![1.0, 0.0, 0.0]], &numbers);
                assert!(!new_tokens.is_empty(), "no new token when {guess} was drafted: there is always one");
                found[new_tokens[0] as usize] += f64::from(Q[guess]) / (PARTS * PARTS) as f64;
            }
        }
        let rounded = found.map(|share| (share * 1e6).round() / 1e6);
        same!(rounded, P.map(f64::from), "probabilities of the first new token, one guess, p {P:?}, q {Q:?}");
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
            for parts in 0..PARTS * PARTS * PARTS {
                let mut left = parts;
                let new_tokens = accept_sampled(&draft, &rows, &mut || {
                    let part = left % PARTS;
                    left /= PARTS;
                    (part as f64 + 0.5) / PARTS as f64
                });
                match new_tokens[..] {
                    [a] => (0..3).for_each(|b| found[a as usize][b] += weight * f64::from(SECOND[a as usize][b])),
                    [a, b, ..] => found[a as usize][b as usize] += weight,
                    [] => panic!("no new token: there is always one"),
                }
            }
        }
        for (a, b) in (0..9).map(|both| (both / 3, both % 3)) {
            let expected = f64::from(FIRST[a]) * f64::from(SECOND[a][b]);
            assert!(
                (found[a][b] - expected).abs() < 1e-9,
                "probability of a text that begins with {a}, {b}\n  expected: {expected}\n  yours:    {}",
                found[a][b]
            );
        }
    }

    /// The logits of two small models that mostly agree; they depend on the text.
    fn unlike(text: &[u32], shift: usize) -> Vec<f32> {
        let last = text[text.len() - 1] as usize;
        (0..3).map(|id| ((id * 5 + last * 3 + text.len() + shift * id) % 7) as f32 / 3.0).collect()
    }

    /// How far texts of three tokens are from those that the target would write: the chi-square statistic of 27 cells.
    /// `text(run)` writes one after token 0.
    fn chi_square(mut text: impl FnMut(u64) -> Vec<u32>) -> f64 {
        const RUNS: usize = 20_000;
        let mut counts = [0u32; 27];
        for run in 0..RUNS as u64 {
            let text = text(run);
            same!(text.len(), 3, "tokens in a text of 3, run {run}");
            counts[text.iter().fold(0, |cell, token| cell * 3 + *token as usize)] += 1;
        }
        let mut sum = 0.0;
        for (cell, count) in counts.iter().enumerate() {
            let mut text = vec![0];
            let mut expected = RUNS as f64;
            for token in [cell / 9, cell / 3 % 3, cell % 3] {
                expected *= f64::from(Sampler::new(PLAIN).probabilities(&unlike(&text, 0))[token]);
                text.push(token as u32);
            }
            sum += (f64::from(*count) - expected).powi(2) / expected;
        }
        sum
    }

    /// Exceeded by chance in one run of a thousand, with 27 - 1 degrees of freedom.
    const UNLIKELY: f64 = 54.05;

    /// The same texts, without any chapter's code but the rule: drafts of two and a loop, written here.
    fn chi_square_of(rule: impl Fn(&Draft, &[Vec<f32>], &mut Sampler) -> Vec<u32>) -> f64 {
        let mut dice = Sampler::new(PLAIN);
        chi_square(|run| {
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
        let found = chi_square_of(|draft, rows, dice| accept_sampled(draft, rows, &mut || dice.uniform()));
        assert!(found < UNLIKELY, "20,000 texts: chi-square {found:.1}, more than {UNLIKELY} is no chance any more");
        // A rule that looks as good is told from it: a rejected guess is replaced by a token drawn from p itself.
        let wrong = chi_square_of(|draft, rows, dice| {
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
                    let number = numbers.next().expect("twelve random numbers are enough for four steps");
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
            let found = accept_sampled(&draft, &of_64(&p), &mut || {
                taken += 1;
                given[(taken - 1).min(2 * k)]
            });
            drop(question);
            same!(found, expected, "{told}: new tokens");
            same!(taken, looked_at + 1, "{told}: random numbers taken");
        }
    }

    #[test]
    fn whole_texts_are_as_likely_as_the_target_makes_them() {
        let mut dice = Sampler::new(PLAIN);
        let found = chi_square(|run| {
            let log = Log::default();
            let mut target = Script::new("target", &log, |text| unlike(text, 0));
            let mut small = Script::new("draft", &log, |text| unlike(text, 1));
            let mut drafter = SamplingDraftModel::new(&mut small, Sampler::new(Sampling { seed: 1000 + run, ..PLAIN }));
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| dice.probabilities(row)).collect();
                accept_sampled(draft, &rows, &mut || dice.uniform())
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let limits = Limits { max_new_tokens: 3, end_of_text: &[] };
            granted(format!("text {run}, 3 tokens, k = 2"), || speculation.generate(&[0], limits, 2, &mut |_| {}))
        });
        assert!(found < UNLIKELY, "20,000 texts: chi-square {found:.1}, more than {UNLIKELY} is no chance any more");
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
            let mut target = Cached::new(&storyteller.model, &mut **target_cache);
            let mut small = Cached::new(&draft_model, &mut **draft_cache);
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
            let slab = PageSlab::new(layout, page_size, 64).unwrap();
            Box::new(PagedCache::new(&slab).unwrap())
        };
        match kind {
            0 => Box::new(FlatCache::new(layout)),
            1 => Box::new(ContiguousCache::new(layout, 64)),
            2 => paged(3),
            _ => paged(16),
        }
    }
}
