//! Grader of chapter 1: the loop without a cache.

grading::grader!();

#[cfg(not(stub = "ch01_recompute"))]
mod checks {
    use std::cell::RefCell;

    use page_by_page::cache::CacheError;
    use page_by_page::chapters::ch01_recompute::{Recompute, argmax, generate};
    use page_by_page::generation::sampler::Sampler;
    use page_by_page::generation::{LanguageModel, StopConditions};
    use page_by_page::model::{Model, StepError};

    use grading::checkpoints::Folder;
    use grading::prelude::*;

    // Task 1

    #[test]
    fn task_1_a_highest_logit_wins() {
        const LOW: f32 = f32::NEG_INFINITY;
        for (logits, expected, why) in [
            (&[0.5, 2.0, -1.0][..], 1, "the highest wins"),
            (&[3.0, 2.0, -1.0], 0, "the first may be it"),
            (&[0.0, 1.0, 4.0], 2, "the last may be it"),
            (&[42.0], 0, "it may be the only one"),
            (&[1.0, 1.0 + f32::EPSILON], 1, "close together"),
            (&[2e-30, 3e-30], 1, "close together"),
            (&[-3.0, -0.5, -2.0], 1, "all can be negative"),
            (&[LOW, f32::MIN], 1, "all can be negative"),
            (&[0.5, 2.0, -1.0, 2.0], 1, "of equal logits the lowest id wins"),
            (&[LOW, LOW], 0, "of equal logits the lowest id wins"),
            (&[-0.0, 0.0], 0, "zeros are equal, whatever their signs"),
        ] {
            same!(argmax(logits), expected, "argmax({logits:?}): {why}");
        }
    }

    #[test]
    fn task_1_the_vocabulary_may_be_large() {
        let mut logits = vec![-1.0; 151_936];
        for id in [151_935, 70_000, 300] {
            logits[id] = 1.0;
            same!(argmax(&logits), id as u32, "argmax of 151,936 logits, of which {id} is the first of the highest");
        }
    }

    // Task 2

    /// Asks about some tokens; how many logits come, or why none.
    fn n_logits(model: &mut Recompute<'_>, tokens: &[u32]) -> Result<usize, StepError> {
        let question = format!("next_logits of {} tokens", tokens.len());
        in_call(question, || model.next_logits(tokens)).map(|logits| logits.len())
    }

    #[test]
    fn task_2_every_row_of_every_call_is_counted() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let calls = [(3, 3), (4, 7), (5, 12), (5, 17), (2, 19), (300, 319)];
        for (call, (tokens, expected)) in calls.into_iter().enumerate() {
            let sequence: Vec<u32> = (1..=tokens).collect();
            same!(n_logits(&mut model, &sequence), Ok(4096), "logits of call {}, with {tokens} tokens", call + 1);
            same!(model.computed_tokens(), expected, "rows after call {}, with {tokens} tokens", call + 1);
        }
    }

    #[test]
    fn task_2_logits_follow_the_whole_sequence() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let prompt = storyteller.prompt();
        for (tokens, what) in [
            (&prompt[..], "the prompt"),
            (&prompt, "the same question asked again: it remembers nothing"),
            (&prompt[..2], "a shorter sequence: it remembers nothing"),
            (&[prompt[1], prompt[0]], "a different sequence: it remembers nothing"),
            (&[7; 1024], "as long as the model allows"),
        ] {
            let expected = storyteller.model.step(tokens, None).expect("the model knows these tokens");
            let logits = expect_ok(format!("next_logits({})", shown(tokens)), || model.next_logits(tokens));
            assert!(logits == expected, "not the logits that follow the whole of {}: {what}", shown(tokens));
        }
    }

    #[test]
    fn task_2_refused_steps_count_nothing() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let unknown = StepError::UnknownToken { token: 9999, vocab_size: 4096 };
        let too_long = StepError::TooLong { len: 1025, max_positions: 1024 };
        let refused = [
            (vec![1, 2, 9999], unknown, "token 9999 of 4096"),
            (vec![], StepError::NoTokens, "an empty sequence"),
            (vec![1; 1025], too_long, "1,025 tokens"),
        ];
        for held in [0, 3] {
            for (tokens, error, what) in &refused {
                same!(n_logits(&mut model, tokens), Err(error.clone()), "number of logits for {what}");
                same!(model.computed_tokens(), held, "rows after {what} was refused, with {held} counted before");
            }
            let answer = n_logits(&mut model, &[1, 2, 3]);
            same!(answer, Ok(4096), "logits after [1, 2, 3], when other sequences were refused before");
        }
    }

    /// The step is refused after it has computed all of its rows.
    #[test]
    fn task_2_a_sum_that_overflows_counts_nothing() {
        let folder = Folder::copy_of("f32-bias-gqa7");
        let largest = f32::MAX.to_le_bytes();
        folder.change_tensor("model.norm.weight", |tensor| {
            tensor.data.chunks_mut(4).for_each(|number| number.copy_from_slice(&largest));
        });
        let spoiled = Model::open(folder.path().as_ref()).expect("a model of finite weights");
        let mut model = Recompute::new(&spoiled);
        let found = n_logits(&mut model, &[1, 2, 3]);
        assert!(
            matches!(found, Err(StepError::NotFinite { .. })),
            "a norm's weights are too large, and that is {found:?}"
        );
        same!(model.computed_tokens(), 0, "rows after a step that was refused, with NotFinite, as a sum overflows");
    }

    #[test]
    fn task_2_the_sequence_is_computed_once() {
        let storyteller = Storyteller::open();
        let tokens = [1; 200];
        let (_, once) = allocated(|| storyteller.model.step(&tokens, None));
        let mut model = Recompute::new(&storyteller.model);
        let question = "next_logits of 200 tokens";
        let logits =
            assert_allocates(once + once / 2, question, "the sequence is computed once", || model.next_logits(&tokens));
        same!(logits.map(|logits| logits.len()), Ok(4096), "{question}");
    }

    // Task 3

    type Answer = Result<Vec<f32>, StepError>;

    /// A model that gives `answer(question, tokens)`, where questions are counted from 0.
    struct Answering<F> {
        answer: F,
        questions: usize,
        /// New tokens that the loop is allowed to make.
        budget: usize,
    }

    impl<F: FnMut(usize, &[u32]) -> Answer> LanguageModel for Answering<F> {
        /// Ends a loop that asks for ever. Ten questions more than are needed are let pass, and counted by the checks.
        fn next_logits(&mut self, tokens: &[u32]) -> Answer {
            let (question, budget, len) = (self.questions, self.budget, tokens.len());
            let advice = if len < question { "does the sequence grow?" } else { "does the loop end?" };
            let asked = format!("asked {} times for at most {budget} new tokens", question + 1);
            assert!(question < budget + 10, "the model was {asked}, the last time about {len} tokens: {advice}");
            self.questions += 1;
            (self.answer)(question, tokens)
        }
    }

    fn answering<F: FnMut(usize, &[u32]) -> Answer>(budget: usize, answer: F) -> Answering<F> {
        Answering { answer, questions: 0, budget }
    }

    /// Logits of a model of ten tokens that counts: after token `t` comes `t + 1`.
    fn count(tokens: &[u32]) -> Answer {
        let newest = tokens.last().ok_or(StepError::NoTokens)?;
        let mut logits = vec![0.0; 10];
        logits[(*newest as usize + 1) % 10] = 1.0;
        Ok(logits)
    }

    /// A run of `generate` on a model that counts.
    struct Generated {
        /// What was asked for, the limits included.
        what: String,
        new_tokens: Result<Vec<u32>, StepError>,
        /// Each token given to `on_token`, and the questions that the model had been asked by then.
        reported: Vec<(u32, usize)>,
        asked: Vec<Vec<u32>>,
        /// All of it in order.
        log: Vec<String>,
    }

    /// A run on a model that refuses one question, counted from 0, and lets the loop ask no more than 2,000.
    fn run_refused(prompt: &[u32], stop: StopConditions<'_>, refused: Option<(usize, StepError)>) -> Generated {
        let ends = match stop.end_of_text {
            [] => "no token ends the sequence".to_string(),
            [end] => format!("token {end} ends the sequence"),
            ends => format!("each of the tokens {ends:?} ends the sequence"),
        };
        let budget = stop.max_new_tokens;
        let what = format!("after the prompt {}; at most {} new tokens, and {ends}", shown(prompt), argument(budget));
        let (asked, log, mut reported) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()), Vec::new());
        let mut model = answering(budget.min(2_000), |question, tokens| {
            asked.borrow_mut().push(tokens.to_vec());
            log.borrow_mut().push(format!("asked for logits after {tokens:?}"));
            match &refused {
                Some((refused, error)) if *refused == question => Err(error.clone()),
                _ => count(tokens),
            }
        });
        let mut pick = |logits: &[f32]| {
            let one = logits.iter().position(|logit| *logit > 0.0);
            let token =
                one.unwrap_or_else(|| panic!("pick was given {logits:?}: not the logits that the model answered"));
            log.borrow_mut().push(format!("  picked {token}"));
            token as u32
        };
        let mut on_token = |token| {
            reported.push((token, asked.borrow().len()));
            log.borrow_mut().push(format!("  reported {token}"));
        };
        let question = format!("generate {what}");
        let new_tokens = in_call(question, || generate(&mut model, prompt, stop, &mut pick, &mut on_token));
        Generated { what, new_tokens, reported, asked: asked.take(), log: log.take() }
    }

    fn run(prompt: &[u32], max_new_tokens: usize, end_of_text: &[u32]) -> Generated {
        run_refused(prompt, StopConditions { max_new_tokens, end_of_text }, None)
    }

    impl Generated {
        fn reported(&self) -> Vec<u32> {
            self.reported.iter().map(|(token, _)| *token).collect()
        }

        /// Compares the new tokens. Each must be reported, and each question give one; an end takes a question too.
        #[track_caller]
        fn gives(self, new_tokens: &[u32], questions: usize) -> Self {
            let Generated { what, asked, .. } = &self;
            same!(self.new_tokens, Ok(new_tokens.to_vec()), "new tokens {what}");
            same!(self.reported(), new_tokens, "tokens given to on_token {what}");
            let why = "unused logits cost as much as others";
            same!(asked.len(), questions, "questions that the model was asked {what}: {why}");
            self
        }
    }

    #[test]
    fn task_3_a_turn_asks_about_the_whole_sequence() {
        let run = run(&[3, 4], 3, &[]).gives(&[5, 6, 7], 3);
        let expected: [&[u32]; 3] = [&[3, 4], &[3, 4, 5], &[3, 4, 5, 6]];
        same!(run.asked, expected, "the tokens that the model was asked about {}", run.what);
    }

    #[test]
    fn task_3_an_end_of_text_in_the_prompt_does_not_stop_the_loop() {
        run(&[0, 3], 2, &[0]).gives(&[4, 5], 2);
        for prompt in [&[3, 0][..], &[0], &[0, 0]] {
            run(prompt, 2, &[0]).gives(&[1, 2], 2);
        }
        run(&[6, 3], 9, &[6]).gives(&[4, 5], 3);
    }

    #[test]
    fn task_3_an_end_of_text_stops_the_loop_and_is_not_part_of_the_output() {
        run(&[3], 100, &[6]).gives(&[4, 5], 3);
        // In the first turn and in the last; or it would have come next.
        run(&[3], 3, &[6]).gives(&[4, 5], 3);
        run(&[3], 2, &[6]).gives(&[4, 5], 2);
        for budget in [1, 2] {
            run(&[5], budget, &[6]).gives(&[], 1);
        }
        for several in [&[6, 0][..], &[0, 6], &[9, 0, 6, 2, 1]] {
            run(&[3], 100, several).gives(&[4, 5], 3);
        }
    }

    #[test]
    fn task_3_every_new_token_is_reported_as_it_comes() {
        let run = run(&[3, 4], 3, &[]).gives(&[5, 6, 7], 3);
        same!(run.reported, [(5, 1), (6, 2), (7, 3)], "(token given to on_token, questions asked by then)");
    }

    #[test]
    fn task_3_pick_decides_and_is_given_what_the_model_answered() {
        let logits = vec![0.1, -0.0, -3.5, 1e-40, f32::NEG_INFINITY];
        // None is the likeliest.
        let picks = [300, 300, 70_000, u32::MAX];
        let (mut asked, mut given, mut reported) = (Vec::new(), Vec::new(), Vec::new());
        let mut model = answering(4, |_, tokens| {
            asked.push(tokens.to_vec());
            Ok(logits.clone())
        });
        let stop = StopConditions { max_new_tokens: 4, end_of_text: &[] };
        let mut pick = |logits: &[f32]| {
            given.push(format!("{logits:?}"));
            let pick = picks.get(given.len() - 1);
            *pick.unwrap_or_else(|| panic!("pick is asked {} times in 4 turns", given.len()))
        };
        let mut on_token = |token| reported.push(token);
        let question = "generate with the prompt [9], at most 4 new tokens";
        let new_tokens = in_call(question, || generate(&mut model, &[9], stop, &mut pick, &mut on_token));
        same!(new_tokens, Ok(picks.to_vec()), "new tokens, when pick chooses {picks:?}");
        same!(reported, picks, "tokens given to on_token, when pick chooses {picks:?}");
        let expected: [&[u32]; 4] = [&[9], &[9, 300], &[9, 300, 300], &[9, 300, 300, 70_000]];
        same!(asked, expected, "the tokens that the model was asked about, when pick chooses {picks:?}");
        same!(given, vec![format!("{logits:?}"); 4], "the logits that pick was given");
    }

    #[test]
    fn task_3_the_budget_counts_new_tokens_only() {
        for budget in 0..5 {
            run(&[1, 2, 3], budget, &[]).gives(&[4, 5, 6, 7][..budget], budget);
        }
        for budget in [usize::MAX, (u32::MAX as usize).saturating_add(1)] {
            run(&[3], budget, &[9]).gives(&[4, 5, 6, 7, 8], 6);
        }
    }

    #[test]
    fn task_3_very_long_sequences_are_asked_about_as_a_whole() {
        let counted: Vec<u32> = (0..1_500).map(|position| position % 10).collect();
        let run = run(&counted[..1_100], 400, &[]);
        let same_tokens = |yours: &[u32], expected: &[u32], what: &str| {
            let [told, expected_told] = [yours, expected].map(shown);
            assert!(yours == expected, "{what} {}\n  expected: {expected_told}\n  yours:    {told}", run.what);
        };
        for (question, asked) in run.asked.iter().enumerate() {
            let what = format!("the tokens of question {} to the model", question + 1);
            same_tokens(asked, &counted[..1_100 + question], &what);
        }
        same_tokens(&run.reported(), &counted[1_100..], "tokens given to on_token");
        same_tokens(run.new_tokens.as_deref().unwrap_or_default(), &counted[1_100..], "new tokens");
    }

    #[test]
    fn task_3_the_first_error_ends_the_loop() {
        let errors = [
            StepError::TooLong { len: 4, max_positions: 3 },
            StepError::NotFinite { position: 3, token: 1 },
            StepError::Cache(CacheError::OutOfPages { needed: 1, free: 0 }),
        ];
        for (error, question) in errors.into_iter().flat_map(|error| (0..3).map(move |at| (error.clone(), at))) {
            let stop = StopConditions { max_new_tokens: 3, end_of_text: &[] };
            let run = run_refused(&[3], stop, Some((question, error.clone())));
            let what = format!("when question {} of 3 is refused with {error:?}", question + 1);
            same!(run.new_tokens, Err(error), "what generate returns, {what}");
            same!(run.reported(), [4, 5, 6][..question], "tokens reported, {what}");
            same!(run.asked.len(), question + 1, "questions asked, {what}");
        }
    }

    #[test]
    fn task_3_the_model_refuses_an_empty_prompt() {
        let Generated { what, new_tokens, .. } = run(&[], 3, &[]);
        same!(new_tokens, Err(StepError::NoTokens), "what generate returns {what}: the model refuses it");
        run(&[], 0, &[]).gives(&[], 0);
    }

    #[test]
    fn task_3_transcript() {
        let mut transcript = Transcript::default();
        for (prompt, max_new_tokens, end_of_text) in [(vec![2, 3], 3, vec![]), (vec![7], 5, vec![0])] {
            let title = format!("prompt {prompt:?}, at most {max_new_tokens} new tokens, end of text {end_of_text:?}");
            transcript.line(title);
            let Generated { new_tokens, log, .. } = run(&prompt, max_new_tokens, &end_of_text);
            log.iter().for_each(|line| transcript.line(line));
            match new_tokens {
                Ok(tokens) => transcript.line(format!("returned {tokens:?}")),
                Err(error) => transcript.line(format!("returned the error {error:?}")),
            }
        }
        assert_transcript("ch01_recompute", &transcript);
    }

    // All tasks

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt();
        let mut recompute = Recompute::new(&storyteller.model);
        let mut model = answering(40, |_, tokens| recompute.next_logits(tokens));
        let mut sampler = Sampler::new(SAMPLING);
        let stop = StopConditions { max_new_tokens: 40, end_of_text: &[] };
        let mut pick = |logits: &[f32]| sampler.sample(logits);
        let story = expect_ok("generate with Recompute: 40 new tokens of a story", || {
            generate(&mut model, &prompt, stop, &mut pick, &mut |_| {})
        });
        storyteller.assert_recomputed(40, &story);
        let rows: usize = (prompt.len()..prompt.len() + 40).sum();
        let told = "tokens computed: the whole sequence for each of 40 tokens, after a prompt of";
        same!(recompute.computed_tokens(), rows as u64, "{told} {}", prompt.len());
    }
}
