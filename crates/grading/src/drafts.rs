//! What every draft model must do, whether it is greedy or samples: it drafts with a model that leaves it no choice.

use page_by_page::generation::{Draft, Drafter, LanguageModel, RewindableModel};
use page_by_page::model::StepError;

use crate::calls::{expect_ok, in_call};
use crate::limits::{allocated, assert_allocates};
use crate::scripted_model::{Log, ScriptedModel, one_hot, refusals_to_read};

pub type Make = for<'m> fn(&'m mut dyn RewindableModel) -> Box<dyn Drafter + 'm>;

fn counting(log: &Log) -> ScriptedModel<'static> {
    ScriptedModel::new("draft", log, |tokens| one_hot((tokens[tokens.len() - 1] + 1) % 12, 12))
}

pub fn draft(drafter: &mut dyn Drafter, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
    in_call(format!("a draft of {k} tokens after {tokens:?}"), || drafter.draft(tokens, k))
}

/// What it drafts where there is no reason to refuse.
pub fn drafted(drafter: &mut dyn Drafter, tokens: &[u32], k: usize) -> Draft {
    expect_ok(format!("a draft of {k} tokens after {tokens:?}"), || drafter.draft(tokens, k))
}

pub fn one_after_the_other(make: Make) {
    let log = Log::default();
    let mut small = counting(&log);
    let draft = drafted(&mut *make(&mut small), &[3, 4], 3);
    same!(draft.tokens, [5, 6, 7], "3 tokens drafted by a model that counts, after 3, 4");
    let passes = [
        "draft reads [3, 4], answers after the last 1",
        "draft reads [5], answers after the last 1",
        "draft reads [6], answers after the last 1",
    ];
    same!(*log.borrow(), passes, "passes of the draft model for 3 tokens");
}

pub fn only_what_is_new_is_read(make: Make) {
    let log = Log::default();
    let mut small = counting(&log);
    small.read = vec![3, 4];
    let draft = drafted(&mut *make(&mut small), &[3, 4, 5], 2);
    same!(draft.tokens, [6, 7], "2 tokens drafted by a model that counts, after 3, 4, 5");
    let passes = ["draft reads [5], answers after the last 1", "draft reads [6], answers after the last 1"];
    same!(*log.borrow(), passes, "passes of a draft model that has cached 3, 4, for 2 tokens after 3, 4, 5");
}

pub fn a_long_sequence_is_copied_once(make: Make) {
    // More draft tokens than 8 bits count.
    let (tokens, k) = (vec![1; 10_000], 300);
    let after = |n: u32| [&tokens[..], &(2..2 + n).map(|token| token % 12).collect::<Vec<_>>()].concat();
    let script = || {
        let mut small = counting(&Log::default());
        small.read = tokens[1..].to_vec();
        small
    };
    let (mut alone, questions): (_, Vec<_>) = (script(), (0..k).map(after).collect());
    let ((), by_model) = allocated(|| questions.iter().for_each(|tokens| drop(alone.next_logits(tokens))));
    let mut small = script();
    let mut drafter = make(&mut small);
    let most = by_model + 8 * size_of_val(&tokens[..]);
    let why = "the sequence needs one copy, which grows with the draft";
    let draft =
        assert_allocates(most, "a draft of 300 tokens after 10,000", why, || drafter.draft(&tokens, k as usize));
    let n_drafted = draft.map(|draft| draft.tokens.len());
    same!(n_drafted, Ok(k as usize), "tokens drafted after 10,000 by a model that counts");
}

pub fn a_refusal_is_passed_on(make: Make) {
    // The given tokens are read first, then each draft token.
    for (n, room) in [(2, 1), (1, 2), (1, 3)] {
        for refusal in refusals_to_read(n, room) {
            let mut small = counting(&Log::default());
            (small.room, small.refusal) = (room, Some(refusal.clone()));
            let told = format!("a draft of 4 tokens after 3, 4 by a model that refuses to cache more than {room}");
            same!(draft(&mut *make(&mut small), &[3, 4], 4), Err(refusal), "{told}");
        }
    }
}
