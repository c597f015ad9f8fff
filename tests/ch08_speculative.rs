//! Grader of chapter 8: speculative decoding.

#[cfg(unstarted = "ch08_speculative")]
#[test]
#[ignore = "not started: edit exercises/ch08_speculative.rs, or run with --features solution"]
fn ch08_speculative() {}

#[cfg(not(unstarted = "ch08_speculative"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch08_speculative"))]
whose_code! {
    ch01_recompute = "ch01_recompute",
    ch02_flat = "ch02_flat",
    ch03_contiguous = "ch03_contiguous",
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch08_speculative = "ch08_speculative",
}

#[cfg(not(unstarted = "ch08_speculative"))]
mod checks {
    use page_by_page::cache::{CacheError, KvLayout, Rewind};
    use page_by_page::chapters::ch01_recompute::{Recompute, generate};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
    use page_by_page::chapters::ch08_speculative::{
        DraftModel, Speculation, accept_matching, accept_sampled, residual, verify,
    };
    use page_by_page::engine::{Cached, Draft, Drafter, Limits, RewindableModel};
    use page_by_page::model::{Model, StepError};
    use page_by_page::sampler::{Sampler, Sampling};

    use crate::support::oracle::{Dice, seeds};
    use crate::support::script::{Log, Script, one_hot};
    use crate::support::story::{SAMPLING, Storyteller, assets};
    use crate::support::transcript::{Transcript, assert_transcript};

    /// Turns a draft and the target's probabilities into new tokens, with random numbers of the sampler.
    type SampledRule = dyn Fn(&Draft, &[Vec<f32>], &mut Sampler) -> Vec<u32>;

    const VOCAB: usize = 12;
    const END: u32 = 11;

    fn greedy() -> Sampler {
        Sampler::new(Sampling::GREEDY)
    }

    /// The likeliest token; written here so that the check does not depend on chapter 1.
    fn likeliest(logits: &[f32]) -> u32 {
        (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32
    }

    fn match_greedy(draft: &Draft, rows: &[Vec<f32>]) -> Vec<u32> {
        accept_matching(&draft.tokens, rows, &mut likeliest)
    }

    /// The next token of a fixed text: the one at the place behind `text`.
    fn next_of<'t>(whole: &'t [u32]) -> impl Fn(&[u32]) -> u32 + 't {
        |text| whole.get(text.len()).copied().unwrap_or(END)
    }

    // Task 1

    #[test]
    fn task_1_draft_guesses_one_after_the_other() {
        let log = Log::default();
        let mut small = Script::certain("draft", &log, VOCAB, |text| text[text.len() - 1] + 1);
        let draft = DraftModel::new(&mut small, greedy()).draft(&[3, 4], 3).expect("there is room");
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
        let mut small = Script::certain("draft", &log, VOCAB, |_| 1);
        let draft = DraftModel::new(&mut small, greedy()).draft(&[3, 4], 0);
        same!(draft, Ok(Draft::default()), "a draft of 0 tokens");
        same!(log.borrow().len(), 0, "passes of the draft model for 0 tokens");
    }

    #[test]
    fn task_1_draft_tells_what_its_tokens_were_drawn_from() {
        let sampling = Sampling { temperature: 0.7, top_k: 3, top_p: 1.0, seed: 5 };
        let logits = |text: &[u32]| (0..5).map(|id| (id * text.len() % 7) as f32 / 3.0).collect::<Vec<f32>>();
        let mut drawn = Vec::new();
        for seed in 0..60 {
            let log = Log::default();
            let mut small = Script::new("draft", &log, logits);
            let sampler = Sampler::new(Sampling { seed, ..sampling });
            let draft = DraftModel::new(&mut small, sampler).draft(&[0, 1], 2).expect("there is room");
            let first = logits(&[0, 1]);
            let second = logits(&[0, 1, draft.tokens[0]]);
            let expected = [first, second].map(|logits| Sampler::new(sampling).probabilities(&logits));
            same!(draft.probabilities, expected, "probabilities of 2 drafted tokens, temperature 0.7, top-k 3");
            for (token, row) in draft.tokens.iter().zip(&draft.probabilities) {
                assert!(row[*token as usize] > 0.0, "token {token} was drafted, its probability is 0: {row:?}");
            }
            drawn.push(draft.tokens[0]);
        }
        drawn.sort_unstable();
        drawn.dedup();
        same!(drawn.len(), 3, "different first tokens in 60 drafts that sample among 3: {drawn:?}");
    }

    #[test]
    fn task_1_verify_is_one_pass_with_a_row_for_each_guess_and_one_more() {
        let log = Log::default();
        let mut target = Script::certain("target", &log, VOCAB, |text| text[text.len() - 1] + 1);
        let rows = verify(&mut target, &[3, 4], &[5, 9, 2]).expect("there is room");
        same!(*log.borrow(), ["target reads [3, 4, 5, 9, 2], answers after the last 4"], "passes of the target");
        let followers: Vec<u32> = rows.iter().map(|row| likeliest(row)).collect();
        same!(followers, [5, 6, 10, 3], "the likeliest token of each row: after 4, after 5, after 9, after 2");
    }

    // Task 2

    #[test]
    fn task_2_keeps_what_the_target_would_have_chosen_and_adds_its_own() {
        type Tokens<'t> = &'t [u32];
        let cases: [(&str, Tokens<'_>, Tokens<'_>, Tokens<'_>); 6] = [
            ("the first guess is wrong", &[5, 9, 2], &[7, 9, 2, 4], &[7]),
            ("one in the middle is wrong", &[5, 9, 2], &[5, 8, 2, 4], &[5, 8]),
            ("the last is wrong", &[5, 9, 2], &[5, 9, 3, 4], &[5, 9, 3]),
            ("all are right", &[5, 9, 2], &[5, 9, 2, 4], &[5, 9, 2, 4]),
            ("the first is wrong, later ones happen to match", &[5, 5, 5], &[6, 5, 5, 5], &[6]),
            ("nothing was drafted", &[], &[4], &[4]),
        ];
        for (what, drafted, choices, expected) in cases {
            let rows: Vec<Vec<f32>> = choices.iter().map(|token| one_hot(*token, VOCAB)).collect();
            let found = accept_matching(drafted, &rows, &mut likeliest);
            same!(found, expected, "{what}: new tokens, {drafted:?} drafted, the target would choose {choices:?}");
        }
    }

    #[test]
    fn task_2_pick_is_asked_once_for_each_new_token_in_order() {
        let rows: Vec<Vec<f32>> = [5, 9, 3, 4].map(|token| one_hot(token, VOCAB)).into();
        let mut asked = Vec::new();
        let found = accept_matching(&[5, 9, 2], &rows, &mut |row| {
            asked.push(likeliest(row));
            likeliest(row)
        });
        same!(asked, [5, 9, 3], "rows that `pick` was asked about, by their likeliest token, with [5, 9, 2] drafted");
        same!(found, [5, 9, 3], "new tokens: the choices of `pick`");
    }

    // Task 3

    /// A target that writes `whole`, and a draft model that writes `drafted`, each where the text is so long.
    fn step_of(whole: &[u32], drafted: &[u32], text: &[u32], k: usize, log: &Log) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut target = Script::certain("target", log, VOCAB, next_of(whole));
        let mut small = Script::certain("draft", log, VOCAB, next_of(drafted));
        let mut drafter = DraftModel::new(&mut small, greedy());
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
        let new_tokens = speculation.step(text, k, &[END]).expect("there is room");
        (new_tokens, target.read().to_vec(), small.read().to_vec())
    }

    #[test]
    fn task_3_both_remember_all_but_the_newest_token() {
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let cases: [(&str, [u32; 7], usize, usize); 6] = [
            ("the first guess is wrong", [1, 2, 9, 4, 5, 6, 7], 3, 1),
            ("one in the middle is wrong", [1, 2, 3, 9, 5, 6, 7], 3, 2),
            ("the last is wrong", [1, 2, 3, 4, 9, 6, 7], 3, 3),
            ("all are right", whole, 3, 4),
            ("one token was drafted, and is right", whole, 1, 2),
            ("nothing was drafted", whole, 0, 1),
        ];
        for (what, drafted, k, n_new) in cases {
            let log = Log::default();
            let (new_tokens, target, small) = step_of(&whole, &drafted, &[1, 2], k, &log);
            same!(new_tokens, whole[2..2 + n_new], "{what}: new tokens after 1, 2 with k = {k}");
            same!(target, whole[..2 + n_new - 1], "{what}: what the target remembers, k = {k}");
            same!(small, whole[..2 + n_new - 1], "{what}: what the draft model remembers, k = {k}");
        }
    }

    #[test]
    fn task_3_nothing_comes_behind_the_end_of_the_text() {
        let whole = [1, 2, 3, END, 5, END, 7];
        let log = Log::default();
        let (new_tokens, target, small) = step_of(&whole, &whole, &[1, 2], 4, &log);
        same!(
            new_tokens,
            [3, END],
            "new tokens when the second and the fourth of 4 right guesses are the end of the text"
        );
        same!(target, [1, 2, 3], "what the target remembers when the text has ended behind 3");
        same!(small, [1, 2, 3], "what the draft model remembers when the text has ended behind 3");
    }

    #[test]
    fn task_3_a_refused_step_leaves_no_guess_behind() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
        let mut drafter = DraftModel::new(&mut small, greedy());
        let mut accept = match_greedy;
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        same!(speculation.step(&[1, 2], 1, &[END]), Ok(vec![3, 4]), "new tokens after 1, 2 with k = 1");
        target.room = 5;
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let full = StepError::Cache(CacheError::OutOfSlots { needed: 3, free: 2, capacity: 5 });
        same!(speculation.step(&[1, 2, 3, 4], 2, &[END]), Err(full), "a step of 3 tokens where 2 fit");
        same!(target.read(), [1, 2, 3], "what the target remembers after the refusal");
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        same!(speculation.step(&[1, 2, 3, 4], 1, &[END]), Ok(vec![5, 6]), "a step of 2 tokens after the refusal");
        same!(small.read(), [1, 2, 3, 4, 5], "what the draft model remembers then");
    }

    #[test]
    fn task_3_a_draft_model_without_room_for_its_last_guess_refuses_the_step() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
        small.room = 4;
        let mut drafter = DraftModel::new(&mut small, greedy());
        let mut accept = match_greedy;
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let full = StepError::Cache(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 4 });
        same!(speculation.step(&[1, 2], 3, &[END]), Err(full), "a step whose 3 guesses are right, room for 4 tokens");
        same!(speculation.step(&[1, 2], 2, &[END]), Ok(vec![3, 4, 5]), "a step of 2 guesses after the refusal");
        same!((target.read(), small.read()), (&whole[..4], &whole[..4]), "what target and draft model remember then");
    }

    #[test]
    fn task_3_drafts_no_more_than_the_text_may_still_have() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        for max_new_tokens in 0..=6 {
            let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
            target.room = 1 + max_new_tokens;
            let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
            let mut drafter = DraftModel::new(&mut small, greedy());
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
            let limits = Limits { max_new_tokens, end_of_text: &[END] };
            let story = speculation.generate(&[1, 2], limits, 4, &mut |_| {});
            same!(story, Ok(whole[2..2 + max_new_tokens].to_vec()), "text with max_new_tokens {max_new_tokens}, k = 4");
        }
    }

    // Task 4

    #[test]
    fn task_4_residual_is_what_the_target_has_left() {
        same!(residual(&[0.5, 0.25, 0.25], &[0.25, 0.5, 0.25]), [0.25, 0.0, 0.0], "residual of the example");
        same!(residual(&[0.5, 0.5, 0.0], &[0.0, 0.25, 0.75]), [0.5, 0.25, 0.0], "residual where q is mostly elsewhere");
        let (p, q) = ([0.5, 0.49999997], [0.5, 0.5]);
        same!(residual(&p, &q), p, "residual of two rows that are the same but for rounding");
    }

    #[test]
    fn task_4_accepts_with_probability_p_over_q() {
        let (p, q) = (vec![0.25, 0.75], vec![0.5, 0.5]);
        let cases: [(u32, f64, bool); 5] =
            [(0, 0.0, true), (0, 0.49, true), (0, 0.51, false), (1, 0.01, true), (1, 0.99, true)];
        let last = "in the last row, token 0 has all the probability";
        for (token, uniform, accepted) in cases {
            let draft = Draft { tokens: vec![token], probabilities: vec![q.clone()] };
            let mut numbers = [uniform, 0.5].into_iter();
            let found = accept_sampled(&draft, &[p.clone(), vec![1.0, 0.0]], &mut || {
                numbers.next().expect("two numbers are enough")
            });
            let expected = if accepted { vec![token, 0] } else { vec![1] };
            same!(
                found,
                expected,
                "new tokens when token {token} was drafted, p {p:?}, q {q:?}, random number {uniform}; {last}"
            );
        }
    }

    #[test]
    fn task_4_accepts_no_token_that_the_target_never_chooses() {
        let draft = Draft { tokens: vec![0], probabilities: vec![vec![0.5, 0.5]] };
        let found = accept_sampled(&draft, &[vec![0.0, 1.0], vec![1.0, 0.0]], &mut || 0.0);
        same!(found, [1], "new tokens when token 0 was drafted, which has p 0 and q 0.5, random number 0.0");
    }

    #[test]
    fn task_4_a_single_guess_gives_the_probabilities_of_the_target() {
        const PARTS: usize = 24;
        let (p, q) = ([0.5f32, 0.375, 0.125], [0.25f32, 0.25, 0.5]);
        let mut found = [0.0; 3];
        for guess in 0..3 {
            let draft = Draft { tokens: vec![guess as u32], probabilities: vec![q.to_vec()] };
            for (first, second) in (0..PARTS * PARTS).map(|both| (both / PARTS, both % PARTS)) {
                let mut numbers = [first, second].map(|part| (part as f64 + 0.5) / PARTS as f64).into_iter();
                let rows = [p.to_vec(), vec![1.0, 0.0, 0.0]];
                let new_tokens = accept_sampled(&draft, &rows, &mut || numbers.next().expect("two numbers are enough"));
                found[new_tokens[0] as usize] += f64::from(q[guess]) / (PARTS * PARTS) as f64;
            }
        }
        let rounded = found.map(|share| (share * 1e6).round() / 1e6);
        same!(rounded, p.map(f64::from), "probabilities of the first new token, one guess, p {p:?}, q {q:?}");
    }

    const SECOND: [[f32; 3]; 3] = [[0.125, 0.5, 0.375], [0.25, 0.25, 0.5], [0.625, 0.25, 0.125]];
    const FIRST: [f32; 3] = [0.5, 0.125, 0.375];

    #[test]
    fn task_4_gives_exactly_the_probabilities_of_the_target() {
        // Every draft of two tokens, and random numbers in the middle of 24 equal parts: no threshold of these
        // probabilities lies within a part, so that counting parts is exact.
        const PARTS: usize = 24;
        let q = [[0.25f32, 0.5, 0.25], [0.5, 0.25, 0.25]];
        let third = vec![1.0, 0.0, 0.0];
        let mut found = [[0.0f64; 3]; 3];
        for (first, second) in (0..9).map(|both| (both / 3, both % 3)) {
            let weight = f64::from(q[0][first]) * f64::from(q[1][second]) / (PARTS * PARTS * PARTS) as f64;
            let draft = Draft { tokens: vec![first as u32, second as u32], probabilities: q.map(Vec::from).into() };
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

    /// How far the texts of three tokens that `accept` writes are from those that the target would write: the chi-square
    /// statistic of 27 cells.
    fn chi_square(accept: &SampledRule) -> f64 {
        const RUNS: usize = 20_000;
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };
        let chances = |text: &[u32]| Sampler::new(sampling).probabilities(&unlike(text, 0));
        let mut counts = [0u32; 27];
        let mut dice = Sampler::new(sampling);
        for run in 0..RUNS as u64 {
            let log = Log::default();
            let mut target = Script::new("target", &log, |text| unlike(text, 0));
            let mut small = Script::new("draft", &log, |text| unlike(text, 1));
            let mut drafter = DraftModel::new(&mut small, Sampler::new(Sampling { seed: 1000 + run, ..sampling }));
            let mut rule = |draft: &Draft, rows: &[Vec<f32>]| {
                let rows: Vec<Vec<f32>> = rows.iter().map(|row| dice.probabilities(row)).collect();
                accept(draft, &rows, &mut dice)
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut rule };
            let limits = Limits { max_new_tokens: 3, end_of_text: &[] };
            let text = speculation.generate(&[0], limits, 2, &mut |_| {}).expect("there is room");
            counts[text.iter().fold(0, |cell, token| cell * 3 + *token as usize)] += 1;
        }
        let mut sum = 0.0;
        for (cell, count) in counts.iter().enumerate() {
            let mut text = vec![0];
            let mut expected = RUNS as f64;
            for token in [cell / 9, cell / 3 % 3, cell % 3] {
                expected *= f64::from(chances(&text)[token]);
                text.push(token as u32);
            }
            sum += (f64::from(*count) - expected).powi(2) / expected;
        }
        sum
    }

    /// Exceeded by chance in one run of a thousand, with 27 - 1 degrees of freedom.
    const UNLIKELY: f64 = 54.05;

    #[test]
    fn task_4_texts_are_as_likely_as_the_target_makes_them() {
        let found = chi_square(&|draft, rows, dice| accept_sampled(draft, rows, &mut || dice.uniform()));
        assert!(found < UNLIKELY, "20,000 texts: chi-square {found:.1}, more than {UNLIKELY} is no chance any more");
    }

    #[test]
    fn the_check_of_task_4_would_notice_a_wrong_rule() {
        // Replaces a refused token by one of the target's own, drawn from p and not from what p has left.
        let found = chi_square(&|draft, rows, dice| {
            let mut new_tokens = Vec::new();
            for (index, token) in draft.tokens.iter().enumerate() {
                let (p, q) = (&rows[index], &draft.probabilities[index]);
                if dice.uniform() >= f64::from(p[*token as usize] / q[*token as usize]) {
                    break;
                }
                new_tokens.push(*token);
            }
            new_tokens.push(page_by_page::sampler::draw(&rows[new_tokens.len()], dice.uniform()));
            new_tokens
        });
        assert!(found > 2.0 * UNLIKELY, "chi-square {found:.1} of a wrong rule");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let log = Log::default();
        let mut transcript = Transcript::default();
        let whole = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, END];
        let guesses = [1, 2, 3, 4, 0, 6, 7, 8, 0, 10, END];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&guesses));
        let mut drafter = DraftModel::new(&mut small, greedy());
        let mut text = vec![1, 2];
        transcript.line(format!("text {text:?}, k = 3, the text ends with {END}"));
        while text.last() != Some(&END) {
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
            let new_tokens = speculation.step(&text, 3, &[END]).expect("there is room");
            text.extend(&new_tokens);
            transcript.line("step");
            for line in log.borrow_mut().drain(..) {
                transcript.line(format!("  {line}"));
            }
            transcript.line(format!("  new tokens {new_tokens:?}"));
        }
        transcript.line(format!("target remembers {:?}", target.read()));
        transcript.line(format!("draft  remembers {:?}", small.read()));
        assert_transcript("ch08_speculative", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let vocab_size = dice.roll(2, 9);
            let (k, max_new_tokens, agree) = (dice.roll(0, 8), dice.roll(0, 30), dice.roll(1, 10));
            let end_of_text = [dice.roll(0, 2 * vocab_size) as u32];
            let prompt: Vec<u32> = (0..dice.roll(1, 5)).map(|_| dice.roll(0, vocab_size - 1) as u32).collect();
            // Any function of the text will do; the draft model gives the same answer to most texts.
            let mix = |text: &[u32], salt: u64| {
                text.iter().fold(seed ^ salt, |hash, token| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3))
                    >> 7
            };
            let next = |text: &[u32]| (mix(text, 1) % vocab_size as u64) as u32;
            let guess = |text: &[u32]| if mix(text, 2) % 10 < agree as u64 { next(text) } else { 0 };
            let log = Log::default();
            let limits = Limits { max_new_tokens, end_of_text: &end_of_text };
            let mut alone = Script::certain("target", &log, vocab_size, next);
            let expected = generate(&mut alone, &prompt, limits, &mut likeliest, &mut |_| {}).unwrap();

            let mut target = Script::certain("target", &log, vocab_size, next);
            let mut small = Script::certain("draft", &log, vocab_size, guess);
            let mut drafter = DraftModel::new(&mut small, greedy());
            let mut reported = Vec::new();
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
            let story = speculation.generate(&prompt, limits, k, &mut |token| reported.push(token));
            same!(story, Ok(expected.clone()), "seed {seed}: text with k = {k}, prompt {prompt:?}");
            same!(reported, expected, "seed {seed}: tokens told, k = {k}");
            same!(
                target.read(),
                alone.read(),
                "seed {seed}: what the target remembers, k = {k}, end of text {end_of_text:?}; expected is what it remembers alone"
            );
            same!(small.read(), target.read(), "seed {seed}: what draft model and target remember");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let draft_model = Model::open(&assets().join("storyteller-draft")).expect("the bundled draft model opens");
        let n = 16;
        let limits = Limits { max_new_tokens: n, end_of_text: &[] };
        let prompt = storyteller.prompt();
        for sampling in [Sampling::GREEDY, SAMPLING] {
            let expected = {
                let mut sampler = Sampler::new(sampling);
                let mut model = Recompute::new(&storyteller.model);
                generate(&mut model, &prompt, limits, &mut |row| sampler.pick(row), &mut |_| {}).unwrap()
            };
            for (k, kind) in (0..=8).flat_map(|k| (0..4).map(move |kind| (k, kind))) {
                let mut caches =
                    [&storyteller.model, &draft_model].map(|model| cache(kind, model.config().kv_layout()));
                let [target_cache, draft_cache] = &mut caches;
                let mut target = Cached::new(&storyteller.model, &mut **target_cache);
                let mut small = Cached::new(&draft_model, &mut **draft_cache);
                let mut sampler = Sampler::new(sampling);
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                    accept_matching(&draft.tokens, rows, &mut |row| sampler.pick(row))
                };
                let mut drafter = DraftModel::new(&mut small, greedy());
                let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
                let story = speculation.generate(&prompt, limits, k, &mut |_| {}).expect("there is room");
                storyteller.assert_same_story(&story, &expected);
                let lengths = (target.remembered(), small.remembered());
                let all_but_one = prompt.len() + n - 1;
                same!(lengths, (all_but_one, all_but_one), "tokens in the caches of target and draft model, k = {k}");
            }
        }
    }

    /// An empty cache: flat, contiguous, or paged with small or large pages.
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
