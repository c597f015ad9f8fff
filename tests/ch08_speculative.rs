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
    use page_by_page::chapters::ch01_recompute::Recompute;
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
    use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation, accept_matching, remember, verify};
    use page_by_page::engine::{Cached, Draft, Drafter, LanguageModel, Limits, RewindableModel};
    use page_by_page::model::{Model, StepError};
    use page_by_page::sampler::{Sampler, Sampling};

    use crate::support::asking::granted;
    use crate::support::oracle::{Dice, seeds};
    use crate::support::script::{Log, Script, one_hot};
    use crate::support::story::{SAMPLING, Storyteller, assets};
    use crate::support::transcript::{Transcript, assert_transcript};

    const VOCAB: usize = 12;
    const END: u32 = 11;

    /// The likeliest token; written here so that the check does not depend on chapter 1.
    fn likeliest(logits: &[f32]) -> u32 {
        (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32
    }

    /// The match rule, greedy, as the chapter has it.
    fn match_greedy(draft: &Draft, rows: &[Vec<f32>]) -> Vec<u32> {
        accept_matching(&draft.tokens, rows, &mut likeliest)
    }

    /// The same, written here: what task 4 does then does not depend on task 2.
    fn matching(draft: &Draft, rows: &[Vec<f32>]) -> Vec<u32> {
        let choices: Vec<u32> = rows.iter().map(|row| likeliest(row)).collect();
        let right = draft.tokens.iter().zip(&choices).take_while(|(guess, choice)| guess == choice).count();
        choices[..right + 1].to_vec()
    }

    /// The new tokens that a target writes alone, and how many tokens it has read then. Written here: the checks do not
    /// depend on the loop of chapter 1.
    fn alone(prompt: &[u32], limits: Limits<'_>, mut next: impl FnMut(&[u32]) -> u32) -> (Vec<u32>, usize) {
        let (mut text, mut read) = (prompt.to_vec(), 0);
        while text.len() < prompt.len() + limits.max_new_tokens {
            read = text.len();
            match next(&text) {
                end if limits.end_of_text.contains(&end) => break,
                token => text.push(token),
            }
        }
        (text.split_off(prompt.len()), read)
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
        let draft = granted("a draft of 3 tokens after 3, 4", || DraftModel::new(&mut small).draft(&[3, 4], 3));
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
        let draft = DraftModel::new(&mut small).draft(&[3, 4], 0);
        same!(draft, Ok(Draft::default()), "a draft of 0 tokens");
        same!(log.borrow().len(), 0, "passes of the draft model for 0 tokens");
    }

    #[test]
    fn task_1_draft_guesses_the_likeliest_token() {
        let log = Log::default();
        let rows = [vec![-3.0, -1.0, -1.0, -2.0], vec![0.5, 0.25, 2.0, 1.0]];
        let mut small = Script::new("draft", &log, |text| rows[text.len() - 2].clone());
        let draft = granted("a draft of 2 tokens after 3, 0", || DraftModel::new(&mut small).draft(&[3, 0], 2));
        same!(draft.tokens, [1, 2], "2 tokens drafted where the logits are {:?}, then {:?}", rows[0], rows[1]);
        let certain = [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]];
        same!(draft.probabilities, certain, "probabilities that the draft of [1, 2] tells: nothing was drawn");
    }

    #[test]
    fn task_1_draft_passes_a_refusal_on() {
        let log = Log::default();
        for room in [1, 2, 3] {
            let mut small = Script::certain("draft", &log, VOCAB, |_| 1);
            small.room = room;
            let draft = DraftModel::new(&mut small).draft(&[3, 4], 4);
            let needed = if room < 2 { 2 } else { 1 };
            let full = CacheError::OutOfSlots { needed, free: room - small.read().len(), capacity: room };
            same!(draft, Err(full.into()), "a draft of 4 tokens after 2 by a model with room for {room}");
        }
    }

    #[test]
    fn task_1_verify_is_one_pass_with_a_row_for_each_guess_and_one_more() {
        let log = Log::default();
        let mut target = Script::certain("target", &log, VOCAB, |text| text[text.len() - 1] + 1);
        let rows = granted("verifying 5, 9, 2 after 3, 4", || verify(&mut target, &[3, 4], &[5, 9, 2]));
        same!(*log.borrow(), ["target reads [3, 4, 5, 9, 2], answers after the last 4"], "passes of the target");
        let followers: Vec<u32> = rows.iter().map(|row| likeliest(row)).collect();
        same!(followers, [5, 6, 10, 3], "the likeliest token of each row: after 4, after 5, after 9, after 2");
    }

    #[test]
    fn task_1_verify_reads_only_what_is_new_to_the_target() {
        let log = Log::default();
        let mut target = Script::certain("target", &log, VOCAB, |text| text[text.len() - 1] + 1);
        target.last_logits(&[3], 0).expect("there is room");
        let rows = granted("verifying no guesses after 3, 4", || verify(&mut target, &[3, 4], &[]));
        same!(rows.len(), 1, "rows of a pass that verifies a draft of no tokens");
        same!(log.borrow()[1..], ["target reads [4], answers after the last 1"], "passes of a target that remembers 3");
    }

    #[test]
    fn task_1_verify_passes_a_refusal_on() {
        let log = Log::default();
        let mut target = Script::certain("target", &log, VOCAB, |_| 1);
        target.room = 4;
        let full = CacheError::OutOfSlots { needed: 5, free: 4, capacity: 4 };
        same!(verify(&mut target, &[3, 4], &[5, 9, 2]), Err(full.into()), "5 tokens for a target with room for 4");
        same!(target.read().len(), 0, "tokens that the target remembers after the refusal");
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

    #[test]
    fn task_3_remember_reads_or_rewinds_to_just_this_text() {
        let text = [3, 4, 5, 6];
        let cases: [(usize, usize, &[&str]); 6] = [
            (4, 3, &["model forgets [6]"]),
            (4, 1, &["model forgets [4, 5, 6]"]),
            (4, 0, &["model forgets [3, 4, 5, 6]"]),
            (3, 4, &["model reads [6], answers after the last 0"]),
            (0, 4, &["model reads [3, 4, 5, 6], answers after the last 0"]),
            (3, 3, &[]),
        ];
        for (read, wanted, expected) in cases {
            let log = Log::default();
            let mut model = Script::certain("model", &log, VOCAB, |_| 1);
            if read > 0 {
                model.last_logits(&text[..read], 0).expect("there is room");
            }
            log.take();
            let done = remember(&mut model, &text[..wanted]);
            let told = format!("a model that remembers {read} tokens is to remember {wanted}");
            same!(done, Ok(()), "{told}");
            same!(*log.borrow(), expected, "{told}: what it does");
            same!(model.read(), &text[..wanted], "{told}: what it remembers then");
        }
    }

    #[test]
    fn task_3_remember_passes_a_refusal_on() {
        let log = Log::default();
        let mut model = Script::certain("model", &log, VOCAB, |_| 1);
        model.last_logits(&[3, 4], 0).expect("there is room");
        model.room = 3;
        let full = CacheError::OutOfSlots { needed: 2, free: 1, capacity: 3 };
        same!(remember(&mut model, &[3, 4, 5, 6]), Err(full.into()), "2 tokens more for a model with room for 1");
        same!(model.read(), [3, 4], "what it remembers after the refusal");
    }

    // Task 4

    /// A target that writes `whole`, and a draft model that writes `drafted`, each where the text is so long.
    fn step_of(whole: &[u32], drafted: &[u32], text: &[u32], k: usize, log: &Log) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut target = Script::certain("target", log, VOCAB, next_of(whole));
        let mut small = Script::certain("draft", log, VOCAB, next_of(drafted));
        let mut drafter = DraftModel::new(&mut small);
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
        let new_tokens = granted(format!("a step after {text:?}, k = {k}"), || speculation.step(text, k, &[END]));
        (new_tokens, target.read().to_vec(), small.read().to_vec())
    }

    #[test]
    fn task_4_both_remember_all_but_the_newest_token() {
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
    fn task_4_nothing_comes_behind_the_end_of_the_text() {
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
    fn task_4_a_refused_step_leaves_no_guess_behind() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
        let mut drafter = DraftModel::new(&mut small);
        let mut accept = matching;
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
    fn task_4_a_draft_model_without_room_for_its_last_guess_refuses_the_step() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
        small.room = 4;
        let mut drafter = DraftModel::new(&mut small);
        let mut accept = matching;
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let full = StepError::Cache(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 4 });
        same!(speculation.step(&[1, 2], 3, &[END]), Err(full), "a step whose 3 guesses are right, room for 4 tokens");
        same!(speculation.step(&[1, 2], 2, &[END]), Ok(vec![3, 4, 5]), "a step of 2 guesses after the refusal");
        same!((target.read(), small.read()), (&whole[..4], &whole[..4]), "what target and draft model remember then");
    }

    #[test]
    fn task_4_drafts_no_more_than_the_text_may_still_have() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        for max_new_tokens in 0..=6 {
            let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
            target.room = 1 + max_new_tokens;
            let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
            let mut drafter = DraftModel::new(&mut small);
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
            let limits = Limits { max_new_tokens, end_of_text: &[END] };
            let story = speculation.generate(&[1, 2], limits, 4, &mut |_| {});
            same!(story, Ok(whole[2..2 + max_new_tokens].to_vec()), "text with max_new_tokens {max_new_tokens}, k = 4");
        }
    }

    #[test]
    fn task_4_the_first_end_counts_whichever_it_is() {
        const OTHER: u32 = 10;
        let cases: [(&str, [u32; 7], [u32; 7], &[u32]); 5] = [
            ("one end, then another", [1, 2, 3, OTHER, END, 6, 7], [1, 2, 3, OTHER, END, 6, 7], &[3, OTHER]),
            ("the same in the other order", [1, 2, 3, END, OTHER, 6, 7], [1, 2, 3, END, OTHER, 6, 7], &[3, END]),
            ("the end is the bonus token", [1, 2, 3, 4, 5, END, 7], [1, 2, 3, 4, 5, 6, 7], &[3, 4, 5, END]),
            (
                "only the target ends, in the place of a guess",
                [1, 2, 3, END, 5, 6, 7],
                [1, 2, 3, 4, 5, 6, 7],
                &[3, END],
            ),
            ("only the draft ends: a wrong guess", [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, END, 5, 6, 7], &[3, 4]),
        ];
        for (what, whole, drafted, expected) in cases {
            let log = Log::default();
            let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
            let mut small = Script::certain("draft", &log, VOCAB, next_of(&drafted));
            let mut drafter = DraftModel::new(&mut small);
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
            let found = speculation.step(&[1, 2], 3, &[OTHER, END]);
            same!(found, Ok(expected.to_vec()), "{what}: new tokens after 1, 2; {OTHER} and {END} end a text");
            let known = &whole[..2 + expected.len() - 1];
            same!((target.read(), small.read()), (known, known), "{what}: what target and draft model remember");
        }
    }

    #[test]
    fn task_4_a_draft_model_that_fails_fails_the_step() {
        let log = Log::default();
        let whole = [1, 2, 3, 4, 5, 6, 7];
        let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
        let mut small = Script::certain("draft", &log, VOCAB, next_of(&whole));
        small.room = 2;
        let mut drafter = DraftModel::new(&mut small);
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
        let full = StepError::Cache(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 2 });
        let told = "a step of 3 guesses whose draft model has room for 2 tokens";
        same!(speculation.step(&[1, 2], 3, &[END]), Err(full), "{told}");
        same!((target.read(), small.read()), (&whole[..1], &whole[..1]), "{told}: what both remember then");
    }

    /// Drafts as it was told, whatever the text is, and notes what it hears.
    struct Told {
        draft: Vec<u32>,
        settled: Vec<Vec<u32>>,
    }

    impl Drafter for Told {
        fn draft(&mut self, _text: &[u32], k: usize) -> Result<Draft, StepError> {
            let mut draft = Draft::default();
            self.draft.iter().take(k).for_each(|token| draft.push_certain(*token, VOCAB));
            Ok(draft)
        }

        fn settle(&mut self, text: &[u32]) -> Result<(), StepError> {
            self.settled.push(text.to_vec());
            Ok(())
        }
    }

    #[test]
    fn task_4_a_drafter_may_guess_fewer_tokens_or_none() {
        let whole = [1, 2, 3, 4, 5, 6, 7];
        for (draft, n_new) in [(&[][..], 1), (&[9], 1), (&[3], 2), (&[3, 4], 3), (&[3, 9], 2)] {
            let log = Log::default();
            let mut target = Script::certain("target", &log, VOCAB, next_of(&whole));
            let mut drafter = Told { draft: draft.to_vec(), settled: Vec::new() };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
            let found = speculation.step(&[1, 2], 4, &[END]);
            same!(found, Ok(whole[2..2 + n_new].to_vec()), "new tokens after 1, 2 with k = 4, {draft:?} drafted");
            same!(target.read(), &whole[..2 + n_new - 1], "what the target remembers, {draft:?} drafted");
            same!(
                drafter.settled,
                [&whole[..2 + n_new - 1]],
                "what the drafter is told to remember, {draft:?} drafted"
            );
        }
    }

    /// A model that remembers nothing, as that of chapter 1.
    struct Forgetful<'s>(Script<'s>);

    impl LanguageModel for Forgetful<'_> {
        fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
            Ok(self.last_logits(tokens, 1)?.remove(0))
        }
    }

    impl RewindableModel for Forgetful<'_> {
        fn remembered(&self) -> usize {
            0
        }

        fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
            let rows = self.0.last_logits(tokens, n)?;
            self.0.rewind(tokens.len())?;
            Ok(rows)
        }

        fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
            same!(n, 0, "tokens that a model is to forget which remembers nothing");
            Ok(())
        }
    }

    #[test]
    fn task_4_models_that_remember_nothing_take_part() {
        let log = Log::default();
        let (whole, guesses) = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 0, 5, 6, 7, 8, 0]);
        let mut target = Forgetful(Script::certain("target", &log, VOCAB, next_of(&whole)));
        let mut small = Forgetful(Script::certain("draft", &log, VOCAB, next_of(&guesses)));
        let mut drafter = DraftModel::new(&mut small);
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut matching };
        let limits = Limits { max_new_tokens: 7, end_of_text: &[END] };
        let story = speculation.generate(&[1, 2], limits, 3, &mut |_| {});
        same!(story, Ok(whole[2..].to_vec()), "text of two models that remember nothing, k = 3");
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
        let mut drafter = DraftModel::new(&mut small);
        let mut text = vec![1, 2];
        transcript.line(format!("text {text:?}, k = 3, the text ends with {END}"));
        while text.last() != Some(&END) {
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
            let new_tokens = granted(format!("a step after {text:?}, k = 3"), || speculation.step(&text, 3, &[END]));
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
            let (expected, read) = alone(&prompt, limits, next);

            let mut target = Script::certain("target", &log, vocab_size, next);
            let mut small = Script::certain("draft", &log, vocab_size, guess);
            let mut drafter = DraftModel::new(&mut small);
            let mut reported = Vec::new();
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut match_greedy };
            let story = speculation.generate(&prompt, limits, k, &mut |token| reported.push(token));
            same!(story, Ok(expected.clone()), "seed {seed}: text with k = {k}, prompt {prompt:?}");
            same!(reported, expected, "seed {seed}: tokens told, k = {k}");
            let known = &[&prompt[..], &expected].concat()[..read];
            same!(target.read(), known, "seed {seed}: what the target remembers, k = {k}, end of text {end_of_text:?}");
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
            let greedy = sampling == Sampling::GREEDY;
            let picker = || {
                let mut sampler = Sampler::new(sampling);
                move |row: &[f32]| if greedy { likeliest(row) } else { sampler.pick(row) }
            };
            let mut pick = picker();
            let recompute = |text: &[u32]| storyteller.model.step(text, None).expect("a short text fits");
            let (expected, _) = alone(&prompt, limits, |text| pick(&recompute(text)));
            let recomputed = {
                let mut pick = picker();
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| accept_matching(&draft.tokens, rows, &mut pick);
                let (mut target, mut small) = (Recompute::new(&storyteller.model), Recompute::new(&draft_model));
                let mut drafter = DraftModel::new(&mut small);
                let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
                granted("a story of models that remember nothing, k = 3", || {
                    speculation.generate(&prompt, limits, 3, &mut |_| {})
                })
            };
            storyteller.assert_same_story(&recomputed, &expected);
            for (k, kind) in (0..=8).flat_map(|k| (0..4).map(move |kind| (k, kind))) {
                let mut caches =
                    [&storyteller.model, &draft_model].map(|model| cache(kind, model.config().kv_layout()));
                let [target_cache, draft_cache] = &mut caches;
                let mut target = Cached::new(&storyteller.model, &mut **target_cache);
                let mut small = Cached::new(&draft_model, &mut **draft_cache);
                let mut pick = picker();
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| accept_matching(&draft.tokens, rows, &mut pick);
                let mut drafter = DraftModel::new(&mut small);
                let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
                let told = format!("a story of {n} tokens, {}, k = {k}", CACHES[kind]);
                let story = granted(told, || speculation.generate(&prompt, limits, k, &mut |_| {}));
                storyteller.assert_same_story(&story, &expected);
                let lengths = (target.remembered(), small.remembered());
                let all_but_one = prompt.len() + n - 1;
                same!(lengths, (all_but_one, all_but_one), "tokens in the caches of target and draft model, k = {k}");
            }
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
