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
    use std::cell::{Cell, RefCell};
    use std::path::Path;

    use page_by_page::cache::{CacheError, KvLayout};
    use page_by_page::chapters::ch01_recompute::{Recompute, argmax, generate};
    use page_by_page::decode::sampler::Sampler;
    use page_by_page::decode::{LanguageModel, Limits};
    use page_by_page::model::{Model, StepError};

    use crate::support::asking::asking;
    use crate::support::limits::allocated;
    use crate::support::oracle::Dice;
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};

    // Task 1

    #[test]
    fn task_1_a_highest_logit_wins() {
        same!(argmax(&[0.5, 2.0, -1.0]), 1, "argmax([0.5, 2.0, -1.0])");
        same!(argmax(&[3.0, 2.0, -1.0]), 0, "argmax([3.0, 2.0, -1.0])");
        same!(argmax(&[0.0, 1.0, 4.0]), 2, "argmax([0.0, 1.0, 4.0])");
        same!(argmax(&[42.0]), 0, "argmax([42.0])");
    }

    #[test]
    fn task_1_all_logits_may_be_negative() {
        same!(argmax(&[-3.0, -0.5, -2.0]), 1, "argmax([-3.0, -0.5, -2.0])");
        let low = f32::NEG_INFINITY;
        same!(argmax(&[low, -1e30, low]), 1, "argmax([-inf, -1e30, -inf])");
        same!(argmax(&[low, f32::MIN]), 1, "argmax([-inf, f32::MIN]), the lowest finite number");
    }

    #[test]
    fn task_1_ids_go_beyond_16_bits() {
        // As many as Qwen3 has.
        let mut logits = vec![-1.5; 151_936];
        for highest in [151_935, 70_000, 65_536, 65_535, 256] {
            logits[highest] = 2.5;
            same!(argmax(&logits), highest as u32, "argmax of 151,936 logits, the highest of which is at {highest}");
            logits[highest] = -1.5;
        }
    }

    #[test]
    fn task_1_logits_may_be_close_together() {
        same!(argmax(&[0.25, 0.75, 0.5]), 1, "argmax([0.25, 0.75, 0.5])");
        same!(argmax(&[-0.75, -0.25, -0.5]), 1, "argmax([-0.75, -0.25, -0.5])");
        let next = 1.0 + f32::EPSILON;
        same!(argmax(&[1.0, next]), 1, "argmax([1.0, {next:?}]), where the second is the next f32 after 1.0");
        same!(argmax(&[2e-30, 3e-30]), 1, "argmax([2e-30, 3e-30])");
        same!(argmax(&[2e30, 3e30]), 1, "argmax([2e30, 3e30])");
    }

    #[test]
    fn task_1_of_equal_logits_the_lowest_id_wins() {
        same!(argmax(&[0.5, 2.0, -1.0, 2.0]), 1, "argmax([0.5, 2.0, -1.0, 2.0])");
        same!(argmax(&[1.0, 1.0, 1.0]), 0, "argmax([1.0, 1.0, 1.0])");
        same!(argmax(&[f32::NEG_INFINITY; 2]), 0, "argmax([-inf, -inf])");
        same!(argmax(&[-0.0, 0.0]), 0, "argmax([-0.0, 0.0]), which are equal");
        same!(argmax(&[0.0, -0.0]), 0, "argmax([0.0, -0.0]), which are equal");
        same!(argmax(&[-1.0, -0.0, 0.0]), 1, "argmax([-1.0, -0.0, 0.0]), of which two are equal");
    }

    #[test]
    fn task_1_oracle() {
        let mut dice = Dice::new(1);
        for case in 0..300 {
            let logits: Vec<f32> = (0..dice.roll(1, 40)).map(|_| (dice.roll(0, 12) as f32 - 6.0) / 8.0).collect();
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected = logits.iter().position(|logit| *logit == highest).unwrap();
            same!(argmax(&logits) as usize, expected, "case {case}: argmax({logits:?})");
        }
    }

    // Task 2

    /// A model of ten tokens that counts: after token `t` comes `t + 1`. It notes what it is asked.
    struct Counting {
        asked: Vec<Vec<u32>>,
        /// The question, from 0, that it refuses, and how.
        refuses: Option<(usize, StepError)>,
        /// New tokens that the loop may make.
        budget: usize,
    }

    impl Counting {
        fn new(budget: usize) -> Self {
            Counting { asked: Vec::new(), refuses: None, budget }
        }
    }

    impl LanguageModel for Counting {
        fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
            let question = self.asked.len();
            bound(question, self.budget, 1_000, tokens);
            self.asked.push(tokens.to_vec());
            if let Some((_, error)) = self.refuses.as_ref().filter(|(refused, _)| *refused == question) {
                return Err(error.clone());
            }
            let newest = tokens.last().ok_or(StepError::NoTokens)?;
            let mut logits = vec![0.0; 10];
            logits[(*newest as usize + 1) % 10] = 1.0;
            Ok(logits)
        }
    }

    /// Ends a loop that asks without end: ten questions more than are needed, at most `most`, are let pass, and counted by the
    /// checks.
    #[track_caller]
    fn bound(earlier_questions: usize, budget: usize, most: usize, tokens: &[u32]) {
        let advice = if tokens.len() < earlier_questions { "does the text grow?" } else { "does the loop end?" };
        assert!(
            earlier_questions < budget.min(most) + 10,
            "the model was asked {} times for at most {budget} new tokens, the last time about {} tokens: {advice}",
            earlier_questions + 1,
            tokens.len()
        );
    }

    /// The token of the one logit that is not zero.
    #[track_caller]
    fn the_one(logits: &[f32]) -> u32 {
        let one = logits.iter().position(|logit| *logit > 0.0);
        one.unwrap_or_else(|| panic!("pick was given {logits:?}: not the logits that the model answered")) as u32
    }

    /// A run of `generate` on [`Counting`].
    struct Run {
        /// What was asked for, the limits included.
        what: String,
        new_tokens: Result<Vec<u32>, StepError>,
        reported: Vec<u32>,
        asked: Vec<Vec<u32>>,
    }

    fn run(prompt: &[u32], max_new_tokens: usize, end_of_text: &[u32]) -> Run {
        run_on(Counting::new(max_new_tokens), prompt, end_of_text)
    }

    fn run_on(mut model: Counting, prompt: &[u32], end_of_text: &[u32]) -> Run {
        let ends = match end_of_text {
            [] => "no token ends the text".to_string(),
            [end] => format!("token {end} ends the text"),
            ends => format!("each of the tokens {ends:?} ends the text"),
        };
        let what = format!("after the prompt {prompt:?}; at most {} new tokens, and {ends}", model.budget);
        let limits = Limits { max_new_tokens: model.budget, end_of_text };
        let _question = asking(format!("generate {what}"));
        let mut reported = Vec::new();
        let new_tokens =
            generate(&mut model, prompt, limits, &mut |logits| the_one(logits), &mut |token| reported.push(token));
        Run { what, new_tokens, reported, asked: model.asked }
    }

    impl Run {
        /// Compares the new tokens, and that each was reported and took one question. The pick that ends the text takes one too.
        #[track_caller]
        fn gives(self, new_tokens: &[u32]) -> Self {
            let Run { what, asked, .. } = &self;
            same!(self.new_tokens, Ok(new_tokens.to_vec()), "new tokens {what}");
            same!(self.reported, new_tokens, "tokens given to on_token {what}");
            let is_cut = self.what.contains("no token") || asked.len() == new_tokens.len();
            let questions = new_tokens.len() + usize::from(!is_cut);
            let why = "unused logits cost as much as others";
            same!(asked.len(), questions, "questions that the model was asked {what}: {why}");
            self
        }
    }

    #[test]
    fn task_2_a_turn_asks_about_the_whole_text() {
        let run = run(&[3, 4], 3, &[]).gives(&[5, 6, 7]);
        let expected: [&[u32]; 3] = [&[3, 4], &[3, 4, 5], &[3, 4, 5, 6]];
        same!(run.asked, expected, "the texts that the model was asked about {}", run.what);
    }

    #[test]
    fn task_2_an_end_of_text_in_the_prompt_does_not_stop_the_loop() {
        let prompts: [(&[u32], [u32; 2]); 4] =
            [(&[0, 3], [4, 5]), (&[3, 0], [1, 2]), (&[0], [1, 2]), (&[0, 0], [1, 2])];
        for (prompt, expected) in prompts {
            run(prompt, 2, &[0]).gives(&expected);
        }
        run(&[6, 3], 9, &[6]).gives(&[4, 5]);
    }

    #[test]
    fn task_2_an_end_of_text_stops_the_loop_and_is_not_part_of_the_text() {
        run(&[3], 100, &[6]).gives(&[4, 5]);
    }

    #[test]
    fn task_2_any_of_several_ends_stops_the_loop() {
        for end_of_text in [&[6, 0][..], &[0, 6], &[0, 6, 9], &[9, 6, 0], &[9, 0, 6, 2, 1], &[2, 1, 7, 6]] {
            run(&[3], 100, end_of_text).gives(&[4, 5]);
        }
    }

    #[test]
    fn task_2_the_end_of_text_may_come_in_the_first_turn_and_in_the_last() {
        for budget in [2, 3, 4] {
            let run = run(&[3], budget, &[6]).gives(&[4, 5]);
            same!(run.asked.len(), budget.min(3), "questions that the model was asked {}", run.what);
        }
        for budget in [1, 2] {
            let run = run(&[5], budget, &[6]).gives(&[]);
            same!(run.asked.len(), 1, "questions that the model was asked {}", run.what);
        }
    }

    #[test]
    fn task_2_every_new_token_is_reported_as_it_comes() {
        struct Heard<'a>(Counting, &'a Cell<usize>);
        impl LanguageModel for Heard<'_> {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                self.1.set(self.1.get() + 1);
                self.0.next_logits(tokens)
            }
        }
        let questions = Cell::new(0);
        let mut model = Heard(Counting::new(3), &questions);
        let mut reported = Vec::new();
        let limits = Limits { max_new_tokens: 3, end_of_text: &[] };
        let mut on_token = |token| reported.push((token, questions.get()));
        let question = asking("generate with the prompt [3, 4], at most 3 new tokens");
        let new_tokens = generate(&mut model, &[3, 4], limits, &mut |logits| the_one(logits), &mut on_token);
        drop(question);
        same!(new_tokens, Ok(vec![5, 6, 7]), "new tokens after the prompt [3, 4]");
        same!(reported, [(5, 1), (6, 2), (7, 3)], "(token given to on_token, questions asked by then)");
    }

    #[test]
    fn task_2_pick_decides_and_is_given_what_the_model_answered() {
        /// Answers the same at each question.
        struct Same(Vec<f32>, Vec<Vec<u32>>);
        impl LanguageModel for Same {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                bound(self.1.len(), 4, 4, tokens);
                self.1.push(tokens.to_vec());
                Ok(self.0.clone())
            }
        }
        let logits = vec![0.1, -0.0, -3.5, 1e-40, f32::NEG_INFINITY];
        // None is the likeliest; of Qwen3's vocabulary is the third, and the last is the highest id that there can be.
        let picks = [300, 70_000, 151_643, u32::MAX];
        let (mut model, mut given, mut reported) = (Same(logits.clone(), Vec::new()), Vec::new(), Vec::new());
        let limits = Limits { max_new_tokens: 4, end_of_text: &[300 - 256, 70_000 - 65_536, 151_643 - 131_072] };
        let mut pick = |logits: &[f32]| {
            given.push(format!("{logits:?}"));
            picks
                .get(given.len() - 1)
                .copied()
                .unwrap_or_else(|| panic!("pick is asked {} times in 4 turns", given.len()))
        };
        let question = asking("generate with the prompt [9], at most 4 new tokens");
        let new_tokens = generate(&mut model, &[9], limits, &mut pick, &mut |token| reported.push(token));
        drop(question);
        same!(new_tokens, Ok(picks.to_vec()), "new tokens, when pick chooses {picks:?}");
        same!(reported, picks, "tokens given to on_token, when pick chooses {picks:?}");
        let expected: [&[u32]; 4] = [&[9], &[9, 300], &[9, 300, 70_000], &[9, 300, 70_000, 151_643]];
        same!(model.1, expected, "the texts that the model was asked about, when pick chooses {picks:?}");
        same!(given, vec![format!("{logits:?}"); 4], "the logits that pick was given");
    }

    #[test]
    fn task_2_the_budget_counts_new_tokens_only() {
        for budget in 0..5 {
            run(&[1, 2, 3], budget, &[]).gives(&[4, 5, 6, 7][..budget]);
        }
    }

    #[test]
    fn task_2_the_budget_may_be_any_number() {
        // From the second on, their low bits are 3.
        for budget in [usize::MAX, 256 + 3, 65_536 + 3, (1 << 32) + 3] {
            run(&[3], budget, &[9]).gives(&[4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn task_2_the_text_may_be_long() {
        /// Knows how long the text must be at each question, and no more of it.
        struct Long {
            questions: usize,
            prompt: usize,
            budget: usize,
        }
        impl LanguageModel for Long {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                bound(self.questions, self.budget, self.budget, tokens);
                let expected = self.prompt + self.questions;
                same!(tokens.len(), expected, "tokens that question {} is about", self.questions + 1);
                self.questions += 1;
                Ok(vec![0.0, 1.0])
            }
        }
        for (prompt, budget) in [(3, 300), (300, 3), (70_000, 3), (3, 66_000)] {
            let mut model = Long { questions: 0, prompt, budget };
            let limits = Limits { max_new_tokens: budget, end_of_text: &[0] };
            let what = format!("after a prompt of {prompt}, with max_new_tokens = {budget}");
            let _question = asking(format!("generate {what}"));
            let new_tokens = generate(&mut model, &vec![1; prompt], limits, &mut |_| 1, &mut |_| {});
            same!(new_tokens.map(|tokens| tokens.len()), Ok(budget), "new tokens {what}");
        }
    }

    #[test]
    fn task_2_the_first_error_ends_the_loop() {
        let layout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 4 };
        let errors = [
            StepError::TooLong { len: 4, max_positions: 3 },
            StepError::NoTokens,
            StepError::UnknownToken { token: 5, vocab_size: 4 },
            StepError::TooFewTokens { wanted: 2, tokens: 1 },
            StepError::WrongLayout { found: layout, expected: layout },
            StepError::Cache(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 3 }),
            StepError::Cache(CacheError::OutOfPages { needed: 1, free: 0 }),
        ];
        for error in errors {
            for question in 0..3 {
                let model = Counting { refuses: Some((question, error.clone())), ..Counting::new(3) };
                let run = run_on(model, &[3], &[]);
                let what = format!("when question {} of 3 is refused with {error:?}", question + 1);
                same!(run.new_tokens, Err(error.clone()), "what generate returns, {what}");
                same!(run.reported, [4, 5, 6][..question], "tokens reported, {what}");
                same!(run.asked.len(), question + 1, "questions asked, {what}");
            }
        }
    }

    #[test]
    fn task_2_the_model_refuses_an_empty_prompt() {
        let nothing = run(&[], 3, &[]);
        same!(
            nothing.new_tokens,
            Err(StepError::NoTokens),
            "what generate returns {}: the model refuses it",
            nothing.what
        );
        run(&[], 0, &[]).gives(&[]);
    }

    #[test]
    fn task_2_transcript() {
        struct Told<'t>(Counting, &'t RefCell<Transcript>);
        impl LanguageModel for Told<'_> {
            fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
                self.1.borrow_mut().line(format!("asked for logits after {tokens:?}"));
                self.0.next_logits(tokens)
            }
        }
        let transcript = RefCell::new(Transcript::default());
        for (prompt, max_new_tokens, end_of_text) in [(vec![2, 3], 3, vec![]), (vec![7], 5, vec![0])] {
            let title = format!("prompt {prompt:?}, at most {max_new_tokens} new tokens, end of text {end_of_text:?}");
            let _question = asking(format!("generate: {title}, in the transcript"));
            transcript.borrow_mut().line(title);
            let mut model = Told(Counting::new(max_new_tokens), &transcript);
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
            match new_tokens {
                Ok(tokens) => transcript.borrow_mut().line(format!("returned {tokens:?}\n")),
                Err(error) => transcript.borrow_mut().line(format!("returned the error {error:?}\n")),
            }
        }
        assert_transcript("ch01_loop", &transcript.into_inner());
    }

    // Task 3

    /// Asks about a text; how many logits come, or why none.
    fn ask(model: &mut Recompute<'_>, text: &[u32]) -> Result<usize, StepError> {
        let _question = asking(format!("next_logits of {} tokens", text.len()));
        model.next_logits(text).map(|logits| logits.len())
    }

    #[test]
    fn task_3_every_row_of_every_call_is_counted() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let calls = [(3, 3), (4, 7), (5, 12), (5, 17), (2, 19)];
        for (call, (tokens, expected)) in calls.into_iter().enumerate() {
            let text: Vec<u32> = (1..=tokens).collect();
            let answer = ask(&mut model, &text);
            same!(answer, Ok(4096), "logits of call {}, with {tokens} tokens", call + 1);
            let rows = model.rows_projected();
            same!(rows, expected, "rows after call {}, with {tokens} tokens", call + 1);
        }
    }

    #[test]
    fn task_3_logits_follow_the_whole_text() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let text = storyteller.prompt();
        let mut compare = |text: &[u32], what: &str| {
            let expected = storyteller.model.step(text, None).expect("the model knows these tokens");
            let _question = asking(format!("next_logits({text:?})"));
            match model.next_logits(text) {
                Ok(logits) => {
                    assert!(logits == expected, "other logits than those after the whole text {text:?}: {what}")
                }
                Err(error) => panic!("next_logits({text:?}) fails: {error}"),
            }
        };
        compare(&text, "the prompt");
        compare(&text, "the same question asked again: it remembers nothing");
        compare(&text[..2], "a shorter text: it remembers nothing");
        compare(&[text[1], text[0]], "another text: it remembers nothing");
    }

    #[test]
    fn task_3_many_rows_are_counted() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let answer = ask(&mut model, &[1; 300]);
        same!(answer, Ok(4096), "logits of a call with 300 tokens");
        same!(model.rows_projected(), 300, "rows after a call with 300 tokens");

        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/one-layer-odd");
        let tiny = Model::open(&folder).expect("a golden checkpoint opens");
        let mut model = Recompute::new(&tiny);
        for call in 1..=1_320 {
            let answer = ask(&mut model, &[1; 50]);
            same!(answer, Ok(17), "logits of call {call} with 50 tokens");
        }
        same!(model.rows_projected(), 66_000, "rows after 1,320 calls with 50 tokens");
    }

    #[test]
    fn task_3_refused_steps_count_nothing() {
        let storyteller = Storyteller::open();
        let mut model = Recompute::new(&storyteller.model);
        let unknown = StepError::UnknownToken { token: 9999, vocab_size: 4096 };
        let too_long = StepError::TooLong { len: 1025, max_positions: 1024 };
        let refused = [
            (vec![1, 2, 9999], unknown, "token 9999 of 4096"),
            (vec![], StepError::NoTokens, "an empty text"),
            (vec![1; 1025], too_long, "1,025 tokens"),
        ];
        for held in [0, 3] {
            for (text, error, what) in &refused {
                let answer = ask(&mut model, text);
                same!(answer, Err(error.clone()), "number of logits for {what}");
                same!(model.rows_projected(), held, "rows after {what} was refused, with {held} counted before");
            }
            let answer = ask(&mut model, &[1, 2, 3]);
            same!(answer, Ok(4096), "logits after [1, 2, 3], when other texts were refused before");
        }
    }

    #[test]
    fn task_3_the_text_is_computed_once() {
        let storyteller = Storyteller::open();
        let text = [1; 200];
        let (_, once) = allocated(|| storyteller.model.step(&text, None));
        let mut model = Recompute::new(&storyteller.model);
        let question = asking("next_logits of 200 tokens");
        let (_, taken) = allocated(|| model.next_logits(&text));
        drop(question);
        let share = taken.bytes as f64 / once.bytes as f64;
        assert!(
            share < 1.5,
            "next_logits of 200 tokens took {share:.1} times the memory that one step takes: is the text computed once?"
        );
    }

    #[test]
    fn task_3_from_one_token_to_n_takes_half_a_square() {
        let storyteller = Storyteller::open();
        for n in [1, 2, 10, 30] {
            let mut model = Recompute::new(&storyteller.model);
            let mut text = vec![0];
            for _ in 0..n {
                let answer = ask(&mut model, &text);
                same!(answer, Ok(4096), "logits after a text of {} tokens", text.len());
                text.push(1);
            }
            let rows = model.rows_projected();
            same!(rows, n * (n + 1) / 2, "rows projected after a prompt of 1, new tokens: {n}; n(n+1)/2");
        }
    }

    /// A model that recomputes, asked so often and no oftener.
    struct Bounded<'m> {
        model: Recompute<'m>,
        questions: usize,
        budget: usize,
    }

    impl LanguageModel for Bounded<'_> {
        fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
            bound(self.questions, self.budget, self.budget, tokens);
            self.questions += 1;
            self.model.next_logits(tokens)
        }
    }

    #[test]
    fn whole_bill() {
        let storyteller = Storyteller::open();
        let mut model = Bounded { model: Recompute::new(&storyteller.model), questions: 0, budget: 30 };
        let limits = Limits { max_new_tokens: 30, end_of_text: &[] };
        let _question = asking("generate with Recompute: 30 new tokens after a prompt of 1");
        let new_tokens = generate(&mut model, &[0], limits, &mut |_| 1, &mut |_| {});
        same!(new_tokens, Ok(vec![1; 30]), "30 new tokens, when pick always chooses 1");
        same!(
            model.model.rows_projected(),
            30 * 31 / 2,
            "rows projected after a prompt of 1, new tokens: 30; n(n+1)/2"
        );
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt();
        let mut model = Bounded { model: Recompute::new(&storyteller.model), questions: 0, budget: 40 };
        let mut sampler = Sampler::new(SAMPLING);
        let limits = Limits { max_new_tokens: 40, end_of_text: &[] };
        let _question = asking("generate with Recompute: 40 new tokens of a story");
        match generate(&mut model, &prompt, limits, &mut |logits| sampler.pick(logits), &mut |_| {}) {
            Ok(story) => storyteller.assert_same_story(&story, &storyteller.recompute(40)),
            Err(error) => panic!("generate fails, after a prompt of {} tokens: {error}", prompt.len()),
        }
    }
}
