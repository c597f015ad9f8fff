//! Grader of chapter 8: speculative decoding.

grading::grader!();

#[cfg(not(stub = "ch08_speculative"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch01_recompute::Recompute;
    use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation, accept_matching, sync_cache, verify};
    use page_by_page::generation::sampler::{Sampler, SamplingParams};
    use page_by_page::generation::{Draft, Drafter, RewindableModel, StopConditions};
    use page_by_page::model::{Model, StepError};

    use grading::caches::assert_stories;
    use grading::drafts::{self, draft, drafted};
    use grading::prelude::*;
    use grading::scripted_model::{Log, ScriptedModel, next_of, one_hot, refusals};
    use grading::story::assets;

    const VOCAB: usize = 12;
    const END: u32 = 11;

    /// The likeliest token; written here so that the check does not depend on chapter 1.
    fn likeliest(logits: &[f32]) -> u32 {
        (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32
    }

    /// The match rule, greedy; written here: what task 4 does then does not depend on task 2.
    fn matching(draft: &Draft, rows: &[Vec<f32>]) -> Vec<u32> {
        let n = draft.tokens.len();
        let n_rows = plural(rows.len(), "row");
        assert!(
            rows.len() == n + 1,
            "the rule is given a draft of {n} and {n_rows} of the target: there is one row more"
        );
        let choices: Vec<u32> = rows.iter().map(|row| likeliest(row)).collect();
        let right = draft.tokens.iter().zip(&choices).take_while(|(drafted, choice)| drafted == choice).count();
        choices[..right + 1].to_vec()
    }

    /// The output of a target alone, and how many tokens it has read then. Written here: the checks do not depend on
    /// the loop of chapter 1.
    fn alone(prompt: &[u32], stop: StopConditions<'_>, mut next: impl FnMut(&[u32]) -> u32) -> (Vec<u32>, usize) {
        let (mut tokens, mut read) = (prompt.to_vec(), 0);
        while tokens.len() < prompt.len() + stop.max_new_tokens {
            read = tokens.len();
            match next(&tokens) {
                end if stop.end_of_text.contains(&end) => break,
                token => tokens.push(token),
            }
        }
        (tokens.split_off(prompt.len()), read)
    }

    /// A model that generates `whole`, and what it notes goes to a log.
    fn noting<'t>(name: &'static str, log: &Log, whole: &'t [u32]) -> ScriptedModel<'t> {
        ScriptedModel::certain(name, log, VOCAB, next_of(whole))
    }

    /// The same, and no one looks at the log.
    fn script<'t>(name: &'static str, whole: &'t [u32]) -> ScriptedModel<'t> {
        noting(name, &Log::default(), whole)
    }

    // Task 1

    /// The target's rows after `tokens` and each token of `drafted`.
    fn verified(target: &mut ScriptedModel<'_>, tokens: &[u32], drafted: &[u32]) -> Result<Vec<Vec<f32>>, StepError> {
        in_call(format!("verify {drafted:?} after {tokens:?}"), || verify(target, tokens, drafted))
    }

    tests_on! {
        |small| Box::new(DraftModel::new(small));
        task_1_draft_makes_one_token_after_the_other = drafts::one_after_the_other,
        task_1_very_long_sequence_is_copied_once = drafts::a_long_sequence_is_copied_once,
        task_1_draft_reads_only_what_is_new_to_the_draft_model = drafts::only_what_is_new_is_read,
        task_1_draft_passes_a_refusal_on = drafts::a_refusal_is_passed_on,
    }

    #[test]
    fn task_1_draft_takes_the_likeliest_token() {
        let rows = [vec![-3.0, -1.0, -1.0, -2.0], vec![0.5, 0.25, 2.0, 1.0]];
        let mut small = ScriptedModel::new("draft", &Log::default(), |tokens| rows[(tokens.len() - 2).min(1)].clone());
        let draft = drafted(&mut DraftModel::new(&mut small), &[3, 0], 12);
        let expected = [&[1][..], &[2; 11]].concat();
        same!(draft.tokens, expected, "12 tokens drafted where the logits are {:?}, then {:?}", rows[0], rows[1]);
        let certain = [vec![0.0, 1.0, 0.0, 0.0], vec![0.0, 0.0, 1.0, 0.0]];
        let found = draft.probabilities.get(..2);
        same!(found, Some(&certain[..]), "probabilities of the first two that were drafted: nothing was drawn");
    }

    #[test]
    fn task_1_draft_of_nothing_asks_nothing() {
        let log = Log::default();
        let mut small = noting("draft", &log, &[]);
        same!(draft(&mut DraftModel::new(&mut small), &[3, 4], 0), Ok(Draft::default()), "a draft of 0 tokens");
        same!(log.borrow().len(), 0, "passes of the draft model for 0 tokens");
    }

    /// What the target has cached, the tokens, what was drafted, and what the target reads.
    #[test]
    fn task_1_verify_is_one_pass_with_a_row_for_each_draft_token_and_one_more() {
        for (read, tokens, drafted, pass) in [
            (&[][..], [4, 4], &[5, 7, 2][..], "target reads [4, 4, 5, 7, 2], answers after the last 4"),
            (&[3], [3, 4], &[], "target reads [4], answers after the last 1"),
            (&[3], [3, 4], &[6, 7], "target reads [4, 6, 7], answers after the last 3"),
        ] {
            let log = Log::default();
            let mut target = ScriptedModel::certain("target", &log, VOCAB, |tokens| tokens[tokens.len() - 1] + 1);
            target.read = read.to_vec();
            let told = format!("verify {drafted:?} after {tokens:?}, by a target that has cached {read:?}");
            let rows = expect_ok(&told, || verified(&mut target, &tokens, drafted));
            same!(*log.borrow(), [pass], "passes of the target: {told}");
            let followers = [&tokens[1..], drafted].concat();
            let answers: Vec<_> = followers.iter().map(|token| one_hot(token + 1, VOCAB)).collect();
            same!(rows.len(), answers.len(), "rows of logits: {told}");
            for (index, row) in rows.iter().enumerate() {
                let found = answers.iter().position(|answer| answer == row);
                same!(found, Some(index), "which of the target's rows is row {index}, counted from 0: {told}");
            }
        }
        // More tokens and more draft tokens than 8 bits count.
        let (tokens, drafted) = ([4; 1_500], [5; 300]);
        let mut target = script("target", &[]);
        let rows = expect_ok("verify 300 draft tokens after 1,500", || verify(&mut target, &tokens, &drafted));
        same!(rows.len(), 301, "rows of logits of 300 draft tokens after 1,500");
    }

    #[test]
    fn task_1_verify_passes_a_refusal_on() {
        for refusal in refusals() {
            let log = Log::default();
            let mut target = noting("target", &log, &[]);
            target.read = vec![3];
            (target.room, target.refusal) = (4, Some(refusal.clone()));
            let told = "verify 5, 9, 2 after 3, 4, by a target that has cached 3 and refuses more than 4 tokens";
            same!(verified(&mut target, &[3, 4], &[5, 9, 2]), Err(refusal.clone()), "{told}");
            same!(*log.borrow(), [""; 0], "{told}: what the target did besides");
            if !matches!(refusal, StepError::NotFinite { .. }) {
                same!(target.read, [3], "{told}: what its cache holds then");
            }
        }
    }

    // Task 2

    /// The target's row after this many draft tokens. Nothing in it says which token `pick` chooses.
    fn row(n_drafted: usize) -> Vec<f32> {
        vec![-0.5, n_drafted as f32 + 0.25, 0.75 - n_drafted as f32, 0.0]
    }

    /// The new tokens where `pick` chooses `choices`, each from its row; and the rows that it was asked about.
    fn matched(drafted: &[u32], choices: &[u32]) -> (Vec<u32>, Vec<usize>) {
        let what = format!("{} drafted, `pick` chooses {}", shown(drafted), shown(choices));
        let rows: Vec<Vec<f32>> = (0..=drafted.len()).map(row).collect();
        let mut asked = Vec::new();
        let mut pick = |of: &[f32]| {
            let row = rows.iter().position(|row| row == of);
            let row = row.unwrap_or_else(|| panic!("{what}: `pick` is asked about {of:?}, which is none of the rows"));
            assert!(asked.len() < 1000, "{what}: `pick` was asked 1000 times: does a loop of yours never end?");
            asked.push(row);
            choices[row]
        };
        let new_tokens = in_call(&what, || accept_matching(drafted, &rows, &mut pick));
        (new_tokens, asked)
    }

    #[test]
    fn task_2_keeps_what_the_target_would_have_chosen_and_adds_its_own() {
        // What happens, what was drafted, what `pick` would choose, what is new.
        type Tokens<'t> = &'t [u32];
        let cases: [(&str, Tokens<'_>, Tokens<'_>, Tokens<'_>); 8] = [
            ("the first draft token is wrong", &[5, 9, 2], &[7, 9, 2, 4], &[7]),
            ("one in the middle is wrong", &[5, 9, 2], &[5, 8, 2, 4], &[5, 8]),
            ("the last is wrong", &[5, 9, 2], &[5, 9, 3, 4], &[5, 9, 3]),
            ("all are right", &[5, 0, 2], &[5, 0, 2, 4], &[5, 0, 2, 4]),
            ("the first is wrong, later ones happen to match", &[5, 5, 5], &[6, 5, 5, 5], &[6]),
            ("the choices are draft tokens of other places", &[5, 9, 2], &[9, 5, 2, 5], &[9]),
            ("one token was drafted, and is right", &[5], &[5, 5], &[5, 5]),
            ("nothing was drafted", &[], &[4], &[4]),
        ];
        for (what, drafted, choices, expected) in cases {
            let (found, asked) = matched(drafted, choices);
            same!(found, expected, "{what}: new tokens, {drafted:?} drafted, `pick` would choose {choices:?}");
            let told = "rows that `pick` is asked about, counted from 0, each once and one for each new token";
            let rows: Vec<usize> = (0..expected.len()).collect();
            same!(asked, rows, "{what}: {told}, {drafted:?} drafted, new tokens {expected:?}");
        }
        // More tokens than 8 bits count.
        let choices: Vec<u32> = (0..301).collect();
        let what = "300 draft tokens, counted from 0, are all right: new tokens";
        same_list(&matched(&choices[..300], &choices).0, &choices, what);
    }

    // Task 3

    #[test]
    fn task_3_sync_cache_reads_or_rewinds_to_just_this_sequence() {
        let tokens = [3, 4, 5, 6];
        // Tokens that its cache holds, tokens that it is to hold, and what the model does for that.
        let cases: [(usize, usize, &[&str]); 8] = [
            (4, 3, &["model forgets [6]"]),
            (4, 1, &["model forgets [4, 5, 6]"]),
            (4, 0, &["model forgets [3, 4, 5, 6]"]),
            (3, 4, &["model reads [6], answers after the last 0"]),
            (1, 4, &["model reads [4, 5, 6], answers after the last 0"]),
            (0, 4, &["model reads [3, 4, 5, 6], answers after the last 0"]),
            (3, 3, &[]),
            (0, 0, &[]),
        ];
        for (read, wanted, expected) in cases {
            let log = Log::default();
            let mut model = noting("model", &log, &[]);
            model.read = tokens[..read].to_vec();
            let (held, goal) = (&tokens[..read], &tokens[..wanted]);
            let told = format!("sync_cache(model, {goal:?}), whose cache holds {held:?}");
            same!(sync_cache(&mut model, goal), Ok(()), "{told}");
            same!(*log.borrow(), expected, "{told}: what it does");
            same!(model.read, goal, "{told}: what its cache holds then");
        }
        // More tokens than 8 bits count.
        for (read, wanted) in [(0, 2_000), (1_000, 400)] {
            let log = Log::default();
            let mut model = noting("model", &log, &[]);
            model.read = vec![3; read];
            let told = format!("sync_cache of {wanted} tokens with a model whose cache holds {read}");
            same!(sync_cache(&mut model, &vec![3; wanted]), Ok(()), "{told}");
            same!(
                (log.borrow().len(), model.read.len()),
                (1, wanted),
                "{told}: passes and rewinds, and tokens held then"
            );
        }
    }

    #[test]
    fn task_3_sync_cache_tells_of_a_refusal() {
        for refusal in refusals() {
            let mut model = script("model", &[]);
            model.read = vec![3, 4];
            (model.room, model.refusal) = (3, Some(refusal.clone()));
            let told = "sync_cache(model, [3, 4, 5, 6]), whose cache holds [3, 4] and has room for 3 tokens";
            same!(sync_cache(&mut model, &[3, 4, 5, 6]), Err(refusal.clone()), "{told}");
            if !matches!(refusal, StepError::NotFinite { .. }) {
                same!(model.read, [3, 4], "{told}: what its cache holds after the refusal");
            }
        }
        let mut model = script("model", &[]);
        model.read = vec![3, 4, 5];
        model.stuck = Some(STUCK);
        let told = "sync_cache(model, [3]), whose cache holds [3, 4, 5] and cannot rewind";
        same!(sync_cache(&mut model, &[3]), Err(STUCK.into()), "{told}");
    }

    // Task 4

    /// What a cache says that cannot rewind.
    const STUCK: CacheError = CacheError::DoubleFree(PageId(7));

    /// The new tokens of a step.
    fn step(
        target: &mut ScriptedModel<'_>,
        drafter: &mut dyn Drafter,
        tokens: &[u32],
        k: usize,
        end_of_text: &[u32],
    ) -> Result<Vec<u32>, StepError> {
        let mut speculation = Speculation { target, drafter, accept: &mut matching };
        in_call(format!("a step after {}, k = {k}", shown(tokens)), || speculation.step(tokens, k, end_of_text))
    }

    /// A step after two tokens of a target that generates `whole`, where a draft model drafts from `drafted`: the new
    /// tokens, and what target and draft model hold then.
    fn step_of(
        whole: &[u32],
        drafted: &[u32],
        k: usize,
        end_of_text: &[u32],
    ) -> (Result<Vec<u32>, StepError>, Vec<u32>, Vec<u32>) {
        let (mut target, mut small) = (script("target", whole), script("draft", drafted));
        let new_tokens = step(&mut target, &mut DraftModel::new(&mut small), &whole[..2], k, end_of_text);
        (new_tokens, target.read.to_vec(), small.read.to_vec())
    }

    /// The sequence of the steps, and drafts that are right, or wrong at one place.
    const WHOLE: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];
    const WRONG: [[u32; 7]; 3] = [[1, 2, 9, 4, 5, 6, 7], [1, 2, 3, 9, 5, 6, 7], [1, 2, 3, 4, 9, 6, 7]];

    #[test]
    fn task_4_both_cache_all_but_the_newest_token() {
        const ENDS_EARLY: [u32; 7] = [1, 2, 3, END, 5, 6, 7];
        const BEGINS_WITH_AN_END: [u32; 7] = [END, 2, 3, 4, 5, 6, 7];
        const ENDS_AND_GOES_ON: [u32; 7] = [1, END, 3, 4, 5, 6, 7];
        // What the target generates, what is drafted, k, and how many tokens are new.
        let cases = [
            ("the first draft token is wrong", WHOLE, WRONG[0], 3, 1),
            ("one in the middle is wrong", WHOLE, WRONG[1], 3, 2),
            ("the last is wrong", WHOLE, WRONG[2], 3, 3),
            ("all are right", WHOLE, WHOLE, 3, 4),
            ("one token was drafted, and is right", WHOLE, WHOLE, 1, 2),
            ("nothing was drafted", WHOLE, WHOLE, 0, 1),
            ("only the draft ends: a wrong draft token", WHOLE, ENDS_EARLY, 3, 2),
            ("the sequence begins with an end", BEGINS_WITH_AN_END, BEGINS_WITH_AN_END, 3, 4),
            ("the sequence ends with one, and goes on", ENDS_AND_GOES_ON, ENDS_AND_GOES_ON, 3, 4),
        ];
        for (what, whole, drafted, k, n_new) in cases {
            let (new_tokens, target, small) = step_of(&whole, &drafted, k, &[10, END]);
            let told = format!("{:?} drafted after {:?}", &drafted[2..2 + k], &whole[..2]);
            same!(new_tokens, Ok(whole[2..2 + n_new].to_vec()), "{what}: new tokens, {told}");
            same!(target, whole[..2 + n_new - 1], "{what}: what the target holds, k = {k}, {told}");
            same!(small, whole[..2 + n_new - 1], "{what}: what the draft model holds, k = {k}, {told}");
        }
    }

    #[test]
    fn task_4_is_a_draft_a_pass_of_the_target_and_what_both_forget() {
        let log = Log::default();
        let (mut target, mut small) = (noting("target", &log, &WHOLE), noting("draft", &log, &WRONG[1]));
        let told = "a step after 1, 2 with k = 3, the second draft token is wrong";
        same!(step(&mut target, &mut DraftModel::new(&mut small), &[1, 2], 3, &[END]), Ok(vec![3, 4]), "{told}");
        let expected = [
            "draft reads [1, 2], answers after the last 1",
            "draft reads [3], answers after the last 1",
            "draft reads [9], answers after the last 1",
            "target reads [1, 2, 3, 9, 5], answers after the last 4",
            "target forgets [9, 5]",
            "draft forgets [9]",
        ];
        same!(*log.borrow(), expected, "{told}: what both models do");
    }

    #[test]
    fn task_4_first_end_counts_whichever_it_is() {
        // In no order.
        const ENDS: [u32; 3] = [END, 9, 10];
        for (end, other) in ENDS.iter().flat_map(|end| ENDS.map(|other| (*end, other))) {
            for place in 0..4 {
                let mut whole = [1, 2, 3, 4, 5, 6, 7];
                (whole[2 + place], whole[3 + place]) = (end, other);
                let mut wrong = whole;
                wrong[2 + place] = 0;
                let expected = &whole[2..2 + place + 1];
                let known = &whole[..2 + place];
                for drafted in [whole, wrong] {
                    let (new_tokens, target, small) = step_of(&whole, &drafted, 3, &ENDS);
                    let told = format!("{:?} drafted, the target generates {:?}", &drafted[2..5], &whole[2..6]);
                    same!(new_tokens, Ok(expected.to_vec()), "{told}: new tokens after 1, 2; {ENDS:?} are ends");
                    same!((&target[..], &small[..]), (known, known), "{told}: what target and draft model hold");
                }
            }
        }
    }

    #[test]
    fn task_4_long_drafts_after_long_sequences() {
        let (len, k) = (1_500, 300);
        let whole: Vec<u32> = (0..len as u32 + 301).map(|position| position % 10).collect();
        let mut drafted = whole.clone();
        drafted[len + 3] = 10;
        let (mut target, mut small) = (script("target", &whole), script("draft", &drafted));
        let new_tokens = step(&mut target, &mut DraftModel::new(&mut small), &whole[..len], k, &[END]);
        let told = "a step after 1,500 tokens with k = 300, the fourth draft token is wrong";
        same!(new_tokens, Ok(whole[len..len + 4].to_vec()), "{told}: new tokens");
        let held = (target.read.len(), small.read.len());
        same!(held, (len + 3, len + 3), "{told}: tokens that target and draft model hold");
    }

    /// Drafts what the script says, whatever the sequence is, and records its calls.
    #[derive(Default)]
    struct FixedDrafter {
        draft: Draft,
        /// What it says to the next question instead.
        refuses_to_draft: Option<StepError>,
        refuses_to_sync: Option<StepError>,
        asked: Vec<(Vec<u32>, usize)>,
        synced: Vec<Vec<u32>>,
    }

    impl FixedDrafter {
        /// Drafts these tokens, certain of each.
        fn certain(tokens: &[u32]) -> Self {
            let mut told = FixedDrafter::default();
            tokens.iter().for_each(|token| told.draft.push_certain(*token, VOCAB));
            told
        }
    }

    impl Drafter for FixedDrafter {
        fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
            self.asked.push((tokens.to_vec(), k));
            if let Some(refusal) = self.refuses_to_draft.take() {
                return Err(refusal);
            }
            let mut draft = self.draft.clone();
            draft.tokens.truncate(k);
            draft.probabilities.truncate(k);
            Ok(draft)
        }

        fn sync_cache(&mut self, tokens: &[u32]) -> Result<(), StepError> {
            self.synced.push(tokens.to_vec());
            self.refuses_to_sync.take().map_or(Ok(()), Err)
        }
    }

    #[test]
    fn task_4_drafter_may_draft_fewer_tokens_or_none() {
        let cases: [(&[u32], usize, usize); 6] =
            [(&[], 4, 1), (&[9], 4, 1), (&[3], 4, 2), (&[3, 4], 4, 3), (&[3, 9], 4, 2), (&[3, 4], 0, 1)];
        for (tokens, k, n_new) in cases {
            let mut target = script("target", &WHOLE);
            let mut drafter = FixedDrafter::certain(tokens);
            let told = format!("a step after 1, 2 with k = {k}, of a drafter that has {tokens:?}");
            let found = step(&mut target, &mut drafter, &[1, 2], k, &[END]);
            same!(found, Ok(WHOLE[2..2 + n_new].to_vec()), "{told}: new tokens");
            same!(target.read, &WHOLE[..2 + n_new - 1], "{told}: what the target holds");
            let asked = "tokens that the drafter is asked to continue, once, and by how many tokens";
            same!(drafter.asked, [(vec![1, 2], k)], "{told}: {asked}");
            same!(drafter.synced, [&WHOLE[..2 + n_new - 1]], "{told}: tokens given to the drafter's sync_cache");
        }
    }

    #[test]
    fn task_4_rule_hears_the_draft_and_the_rows_of_the_target() {
        let mut drawn = Draft::default();
        drawn.push(3, vec![0.25, 0.0, 0.125, 0.625]);
        drawn.push(1, vec![0.0, 0.75, 0.125, 0.125]);
        let answer = |tokens: &[u32]| vec![tokens.len() as f32 - 2.5, 0.75, -1.25, 0.5];
        for draft in [drawn, Draft::default()] {
            let mut target = ScriptedModel::new("target", &Log::default(), answer);
            let mut drafter = FixedDrafter { draft: draft.clone(), ..FixedDrafter::default() };
            let mut heard = Vec::new();
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                heard.push((draft.clone(), rows.to_vec()));
                vec![2]
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let told = format!("a step after 1, 2, {:?} drafted, the rule says [2]", draft.tokens);
            same!(speculation.step(&[1, 2], 2, &[0]), Ok(vec![2]), "{told}: new tokens");
            same!(heard.len(), 1, "{told}: times that the rule is asked");
            let tokens = [&[1, 2], &draft.tokens[..]].concat();
            let rows: Vec<Vec<f32>> = (2..=tokens.len()).map(|len| answer(&tokens[..len])).collect();
            same!(heard[0].0, draft, "{told}: the draft that the rule is given");
            same!(heard[0].1, rows, "{told}: the rows that the rule is given");
            let held = (&target.read[..], &drafter.synced[..]);
            same!(held, (&[1, 2][..], &[vec![1, 2]][..]), "{told}: what both hold");
        }
        // It is `generate` that names such a rule.
        let mut none = |_: &Draft, _: &[Vec<f32>]| Vec::new();
        let (mut target, mut drafter) = (script("target", &WHOLE), FixedDrafter::certain(&[3]));
        let mut faulty = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut none };
        let told = "a step after 1, 2, [3] drafted, of a faulty rule that returns no token";
        same!(in_call(told, || faulty.step(&[1, 2], 1, &[END])), Ok(vec![]), "{told}: new tokens");
        same!(target.read, [1], "{told}: what the target holds");
    }

    #[test]
    fn task_4_refusal_of_the_drafter_is_that_of_the_step() {
        for (refusal, to_draft) in
            refusals().into_iter().flat_map(|refusal| [true, false].map(|to| (refusal.clone(), to)))
        {
            let mut target = script("target", &WHOLE);
            let mut drafter = FixedDrafter::certain(&[3, 4]);
            let refuses = if to_draft { &mut drafter.refuses_to_draft } else { &mut drafter.refuses_to_sync };
            *refuses = Some(refusal.clone());
            target.room = if to_draft { 1 } else { 9 };
            let told = if to_draft { "draft, of a target that has room for 1 token" } else { "sync its cache" };
            let told = format!("a step after 1, 2 whose drafter refuses to {told}");
            same!(step(&mut target, &mut drafter, &[1, 2], 2, &[END]), Err(refusal), "{told}");
            same!(target.read, [1], "{told}: what the target holds then");
            if to_draft {
                same!(drafter.synced, [[1]], "{told}: tokens given to the drafter's sync_cache then");
            }
            target.room = 9;
            let again = step(&mut target, &mut drafter, &[1, 2], 2, &[END]);
            same!(again, Ok(vec![3, 4, 5]), "{told}: the same step again, which the drafter does not refuse");
        }
    }

    #[test]
    fn task_4_refusal_of_the_target_is_that_of_the_step() {
        for refusal in refusals() {
            let (mut target, mut small) = (script("target", &WHOLE), script("draft", &WHOLE));
            (target.room, target.refusal) = (4, Some(refusal.clone()));
            let told = "a step after 1, 2 with k = 3 of a target that refuses more than 4 tokens";
            let refused = step(&mut target, &mut DraftModel::new(&mut small), &[1, 2], 3, &[END]);
            same!(refused, Err(refusal), "{told}");
            let held = (&target.read[..], &small.read[..]);
            same!(held, (&[1][..], &[1][..]), "{told}: what target and draft model hold then");
            target.room = 5;
            let again = step(&mut target, &mut DraftModel::new(&mut small), &[1, 2], 3, &[END]);
            same!(again, Ok(vec![3, 4, 5, 6]), "the same step again, of a target with room for 5 tokens");
            let held = (&target.read[..], &small.read[..]);
            same!(held, (&WHOLE[..5], &WHOLE[..5]), "what target and draft model hold then");
        }
        let mut target = script("target", &WHOLE);
        target.stuck = Some(STUCK);
        let told = "a step after 1, 2 whose draft token is wrong, of a target that cannot rewind";
        same!(step(&mut target, &mut FixedDrafter::certain(&[9]), &[1, 2], 1, &[END]), Err(STUCK.into()), "{told}");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let log = Log::default();
        let mut transcript = Transcript::default();
        let whole = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, END];
        let drafted = [1, 2, 3, 4, 0, 6, 7, 8, 0, 10, END];
        let (mut target, mut small) = (noting("target", &log, &whole), noting("draft", &log, &drafted));
        let mut drafter = DraftModel::new(&mut small);
        let mut tokens = vec![1, 2];
        transcript.line(format!("tokens {tokens:?}, k = 3, token {END} is the end"));
        while tokens.last() != Some(&END) {
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| accept_matching(&draft.tokens, rows, &mut likeliest);
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let new_tokens =
                expect_ok(format!("a step after {tokens:?}, k = 3"), || speculation.step(&tokens, 3, &[END]));
            tokens.extend(&new_tokens);
            transcript.line("step");
            for line in log.borrow_mut().drain(..) {
                transcript.line(format!("  {line}"));
            }
            transcript.line(format!("  new tokens {new_tokens:?}"));
        }
        transcript.line(format!("target has cached {:?}", target.read));
        transcript.line(format!("draft  has cached {:?}", small.read));
        assert_transcript("ch08_speculative", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(60) {
            let vocab_size = rng.roll(2, 9);
            let (k, max_new_tokens, agree) = (rng.roll(0, 8), rng.roll(0, 30), rng.roll(1, 10));
            let end_of_text = [rng.roll(0, 2 * vocab_size) as u32];
            let prompt: Vec<u32> = (0..rng.roll(1, 5)).map(|_| rng.roll(0, vocab_size - 1) as u32).collect();
            // Any function of the tokens will do; the draft model gives the same answer to most sequences.
            let mix = |tokens: &[u32], salt: u64| {
                let mixed = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
                tokens.iter().fold(seed ^ salt, mixed) >> 7
            };
            let next = |tokens: &[u32]| (mix(tokens, 1) % vocab_size as u64) as u32;
            let draft_token = |tokens: &[u32]| if mix(tokens, 2) % 10 < agree as u64 { next(tokens) } else { 0 };
            let stop = StopConditions { max_new_tokens, end_of_text: &end_of_text };
            let (expected, read) = alone(&prompt, stop, next);

            let log = Log::default();
            let mut target = ScriptedModel::certain("target", &log, vocab_size, next);
            // No draft is longer than what the output may still have.
            target.room = prompt.len() + max_new_tokens - usize::from(max_new_tokens > 0);
            let mut small = ScriptedModel::certain("draft", &log, vocab_size, draft_token);
            let mut drafter = DraftModel::new(&mut small);
            let told = format!("seed {seed}: output with k = {k}, prompt {prompt:?}, end of text {end_of_text:?}");
            let mut accept = |draft: &Draft, rows: &[Vec<f32>]| accept_matching(&draft.tokens, rows, &mut likeliest);
            let mut reported = Vec::new();
            let mut on_token = |token| {
                reported.push(token);
                let passes = log.borrow().iter().filter(|line| line.starts_with("target reads")).count();
                let n = reported.len();
                let late = format!("token {n} of the output is reported after {passes} passes of the target");
                assert!(passes <= n, "{told}\n  {late}, each of which gives one or more");
            };
            let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
            let found = in_call(&told, || speculation.generate(&prompt, stop, k, &mut on_token));
            same!(found, Ok(expected.clone()), "{told}");
            same!(reported, expected, "{told}: tokens that are reported");
            let known = &[&prompt[..], &expected].concat()[..read];
            same!((&target.read[..], &small.read[..]), (known, known), "{told}: what target and draft model hold");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let draft_model = Model::open(&assets().join("storyteller-draft")).expect("the bundled draft model opens");
        let stop = StopConditions { max_new_tokens: 16, end_of_text: &[] };
        let prompt = storyteller.prompt();
        for sampling in [SamplingParams::GREEDY, SAMPLING] {
            let greedy = sampling == SamplingParams::GREEDY;
            let picker = || {
                let mut sampler = Sampler::new(sampling);
                move |row: &[f32]| if greedy { likeliest(row) } else { sampler.sample(row) }
            };
            let story = |told: &str, target: &mut dyn RewindableModel, small: &mut dyn RewindableModel, k| {
                let mut pick = picker();
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| accept_matching(&draft.tokens, rows, &mut pick);
                let drafter = &mut DraftModel::new(small);
                let mut speculation = Speculation { target, drafter, accept: &mut accept };
                expect_ok(told, || speculation.generate(&prompt, stop, k, &mut |_| {}))
            };
            let mut pick = picker();
            let recompute = |tokens: &[u32]| storyteller.model.step(tokens, None).expect("a short sequence fits");
            let (expected, _) = alone(&prompt, stop, |tokens| pick(&recompute(tokens)));
            let (mut target, mut small) = (Recompute::new(&storyteller.model), Recompute::new(&draft_model));
            let told = "a story of models that remember nothing, k = 3";
            storyteller.assert_same_story(&story(told, &mut target, &mut small, 3), &expected);
            assert_stories(&storyteller, greedy, (&prompt, &expected), story);
        }
    }
}
