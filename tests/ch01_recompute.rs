//! Grader of chapter 1: the loop without a cache.

#[cfg(unstarted = "ch01_recompute")]
#[test]
#[ignore = "not started: edit exercises/ch01_recompute.rs, or run with --features solution"]
fn ch01_recompute() {}

#[cfg(not(unstarted = "ch01_recompute"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch01_recompute"))]
whose_code! { ch01_recompute = "ch01_recompute" }

#[cfg(not(unstarted = "ch01_recompute"))]
mod checks {
    use page_by_page::chapters::ch01_recompute::{Recompute, argmax, generate};
    use page_by_page::engine::{LanguageModel, Limits};
    use page_by_page::model::StepError;
    use page_by_page::sampler::Sampler;

    use crate::support::oracle::Dice;
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};

    // Task 1

    #[test]
    fn task_1_the_highest_logit_wins() {
        same!(argmax(&[0.5, 2.0, -1.0]), 1, "argmax([0.5, 2.0, -1.0])");
        same!(argmax(&[3.0, 2.0, -1.0]), 0, "argmax([3.0, 2.0, -1.0])");
        same!(argmax(&[0.0, 1.0, 4.0]), 2, "argmax([0.0, 1.0, 4.0])");
        same!(argmax(&[42.0]), 0, "argmax([42.0])");
    }

    #[test]
    fn task_1_of_equal_logits_the_lowest_id_wins() {
        same!(argmax(&[0.5, 2.0, -1.0, 2.0]), 1, "argmax([0.5, 2.0, -1.0, 2.0])");
        same!(argmax(&[1.0, 1.0, 1.0]), 0, "argmax([1.0, 1.0, 1.0])");
        same!(argmax(&[-0.0, 0.0]), 0, "argmax([-0.0, 0.0]), which are equal");
    }

    #[test]
    fn task_1_all_logits_may_be_negative() {
        same!(argmax(&[-3.0, -0.5, -2.0]), 1, "argmax([-3.0, -0.5, -2.0])");
        let low = f32::NEG_INFINITY;
        same!(argmax(&[low, -1e30, low]), 1, "argmax([-inf, -1e30, -inf])");
    }

    #[test]
    fn task_1_oracle() {
        let mut dice = Dice::new(1);
        for case in 0..300 {
            let logits: Vec<f32> = (0..dice.roll(1, 40)).map(|_| dice.roll(0, 12) as f32 - 6.0).collect();
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected = logits.iter().position(|logit| *logit == highest).unwrap();
            same!(argmax(&logits) as usize, expected, "case {case}: argmax({logits:?})");
        }
    }

    // Task 2

    /// A model of ten tokens that counts: after token `t` comes `t + 1`. It notes what it is asked.
    #[derive(Default)]
    struct Counting {
        asked: Vec<Vec<u32>>,
        /// Fails from this question on.
        fails_at: Option<usize>,
    }

    impl LanguageModel for Counting {
        fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
            if self.fails_at == Some(self.asked.len()) {
                return Err(StepError::TooLong { len: tokens.len(), max_positions: tokens.len() - 1 });
            }
            self.asked.push(tokens.to_vec());
            let mut logits = vec![0.0; 10];
            logits[(tokens[tokens.len() - 1] as usize + 1) % 10] = 1.0;
            Ok(logits)
        }
    }

    /// The token of the one logit that is not zero.
    fn the_one(logits: &[f32]) -> u32 {
        logits.iter().position(|logit| *logit > 0.0).unwrap() as u32
    }

    struct Run {
        new_tokens: Result<Vec<u32>, StepError>,
        reported: Vec<u32>,
        asked: Vec<Vec<u32>>,
    }

    fn run(mut model: Counting, prompt: &[u32], max_new_tokens: usize, end_of_text: &[u32]) -> Run {
        let mut reported = Vec::new();
        let limits = Limits { max_new_tokens, end_of_text };
        let new_tokens =
            generate(&mut model, prompt, limits, &mut |logits| the_one(logits), &mut |token| reported.push(token));
        Run { new_tokens, reported, asked: model.asked }
    }

    #[test]
    fn task_2_each_new_token_is_asked_for_with_the_whole_text() {
        let run = run(Counting::default(), &[3, 4], 3, &[]);
        same!(run.new_tokens, Ok(vec![5, 6, 7]), "new tokens after the prompt [3, 4]");
        let expected: [&[u32]; 3] = [&[3, 4], &[3, 4, 5], &[3, 4, 5, 6]];
        same!(run.asked, expected, "the texts that the model was asked about");
    }

    #[test]
    fn task_2_every_new_token_is_reported_as_it_comes() {
        struct Heard<'a>(Counting, &'a std::cell::Cell<usize>);
        impl LanguageModel for Heard<'_> {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                self.1.set(self.1.get() + 1);
                self.0.next_logits(tokens)
            }
        }
        let questions = std::cell::Cell::new(0);
        let mut model = Heard(Counting::default(), &questions);
        let mut reported = Vec::new();
        let limits = Limits { max_new_tokens: 3, end_of_text: &[] };
        let mut on_token = |token| reported.push((token, questions.get()));
        generate(&mut model, &[3, 4], limits, &mut |logits| the_one(logits), &mut on_token).unwrap();
        same!(reported, [(5, 1), (6, 2), (7, 3)], "(token given to on_token, questions asked by then)");
    }

    #[test]
    fn task_2_the_budget_counts_new_tokens_only() {
        for budget in 0..5 {
            let run = run(Counting::default(), &[1, 2, 3], budget, &[]);
            let new_tokens = run.new_tokens.unwrap();
            same!(new_tokens.len(), budget, "new tokens with max_new_tokens = {budget} and a prompt of 3");
            let asked = run.asked.len();
            same!(asked, budget, "questions asked for {budget} new tokens: logits that nobody uses cost as much");
        }
    }

    #[test]
    fn task_2_the_end_of_text_stops_the_loop_and_is_not_part_of_the_text() {
        let run = run(Counting::default(), &[3], 100, &[0, 6]);
        same!(run.new_tokens, Ok(vec![4, 5]), "new tokens when 6 ends the text");
        same!(run.reported, [4, 5], "tokens given to on_token when 6 ends the text");
        same!(run.asked.len(), 3, "questions asked");
    }

    #[test]
    fn task_2_an_end_of_text_in_the_prompt_does_not_stop_the_loop() {
        let run = run(Counting::default(), &[0, 3], 2, &[0]);
        same!(run.new_tokens, Ok(vec![4, 5]), "new tokens after a prompt that holds the end-of-text token 0");
    }

    #[test]
    fn task_2_the_first_error_ends_the_loop() {
        let run = run(Counting { fails_at: Some(2), ..Counting::default() }, &[3, 4], 9, &[]);
        same!(run.new_tokens, Err(StepError::TooLong { len: 4, max_positions: 3 }), "what generate returns");
        same!(run.reported, [5, 6], "tokens reported before the error");
    }

    #[test]
    fn task_2_transcript() {
        struct Told<'t>(Counting, &'t std::cell::RefCell<Transcript>);
        impl LanguageModel for Told<'_> {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                self.1.borrow_mut().line(format!("asked for logits after {tokens:?}"));
                self.0.next_logits(tokens)
            }
        }
        let transcript = std::cell::RefCell::new(Transcript::default());
        for (prompt, max_new_tokens, end_of_text) in [(vec![2, 3], 3, vec![]), (vec![7], 5, vec![0])] {
            transcript
                .borrow_mut()
                .line(format!("prompt {prompt:?}, at most {max_new_tokens} new tokens, end of text {end_of_text:?}"));
            let mut model = Told(Counting::default(), &transcript);
            let new_tokens = generate(
                &mut model,
                &prompt,
                Limits { max_new_tokens, end_of_text: &end_of_text },
                &mut |logits| {
                    let token = the_one(logits);
                    transcript.borrow_mut().line(format!("  picked {token}"));
                    token
                },
                &mut |token| transcript.borrow_mut().line(format!("  reported {token}")),
            );
            transcript.borrow_mut().line(format!("returned {:?}\n", new_tokens.unwrap()));
        }
        assert_transcript("ch01_loop", &transcript.into_inner());
    }

    // Task 3

    #[test]
    fn task_3_every_row_of_every_call_is_counted() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        for (call, (tokens, expected)) in [(3, 3), (4, 7), (5, 12)].into_iter().enumerate() {
            let text: Vec<u32> = (1..=tokens).collect();
            model.next_logits(&text).unwrap();
            let rows = model.rows_projected();
            same!(rows, expected, "rows after call {} with {tokens} tokens", call + 1);
        }
    }

    #[test]
    fn task_3_logits_follow_the_whole_text() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let text = storyteller.prompt();
        let expected = storyteller.model.step(&text, None).unwrap();
        assert!(model.next_logits(&text).unwrap() == expected, "logits after the prompt {text:?}");
        assert!(model.next_logits(&text).unwrap() == expected, "the same question asked again: it remembers nothing");
    }

    #[test]
    fn task_3_a_refused_step_counts_nothing() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let error = model.next_logits(&[1, 2, 9999]).unwrap_err();
        same!(error, StepError::UnknownToken { token: 9999, vocab_size: 4096 }, "token 9999 of 4096");
        same!(model.next_logits(&[]).unwrap_err(), StepError::NoTokens, "an empty text");
        same!(model.rows_projected(), 0, "rows after two refused calls");
    }

    #[test]
    fn task_3_from_one_token_to_n_takes_half_a_square() {
        let storyteller = Storyteller::open();
        for n in [1, 2, 10, 30] {
            let mut model = Recompute::new(&storyteller.model);
            let limits = Limits { max_new_tokens: n as usize, end_of_text: &[] };
            generate(&mut model, &[0], limits, &mut |_| 1, &mut |_| {}).unwrap();
            let rows = model.rows_projected();
            same!(rows, n * (n + 1) / 2, "rows projected after a prompt of 1, new tokens: {n}; n(n+1)/2");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt();
        let mut model = Recompute::new(&storyteller.model);
        let mut sampler = Sampler::new(SAMPLING);
        let limits = Limits { max_new_tokens: 40, end_of_text: &[] };
        let story = generate(&mut model, &prompt, limits, &mut |logits| sampler.pick(logits), &mut |_| {}).unwrap();
        storyteller.assert_same_story(&story, &storyteller.recompute(40));
    }
}
