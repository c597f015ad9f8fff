//! What every draft model must do, whether it is greedy or samples: it drafts with a model that leaves it no choice.

use page_by_page::decode::{Draft, Drafter, RewindableModel};
use page_by_page::model::StepError;

use super::asking::{asking, granted};
use super::script::{LARGE, LARGE_VOCAB, Log, Script, next_of, refusals_to_read};

/// Makes a drafter of a model.
pub type Make = for<'m> fn(&'m mut dyn RewindableModel) -> Box<dyn Drafter + 'm>;

/// Logits that leave no choice: all the probability is that of one token.
pub fn sure(token: u32, vocab_size: usize) -> Vec<f32> {
    (0..vocab_size as u32).map(|id| if id == token { 500.0 } else { 0.0 }).collect()
}

fn certain<'s>(log: &Log, vocab_size: usize, next: impl Fn(&[u32]) -> u32 + 's) -> Script<'s> {
    Script::new("draft", log, move |tokens| sure(next(tokens), vocab_size))
}

/// What a drafter drafts.
pub fn draft(drafter: &mut dyn Drafter, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
    let _asking = asking(format!("a draft of {k} tokens after {tokens:?}"));
    drafter.draft(tokens, k)
}

/// What it drafts where there is no reason to refuse.
#[track_caller]
pub fn drafted(drafter: &mut dyn Drafter, tokens: &[u32], k: usize) -> Draft {
    granted(format!("a draft of {k} tokens after {tokens:?}"), || drafter.draft(tokens, k))
}

pub fn guesses_one_after_the_other(make: Make) {
    let log = Log::default();
    let mut small = certain(&log, 12, |tokens| tokens[tokens.len() - 1] + 1);
    let draft = drafted(&mut *make(&mut small), &[3, 4], 3);
    same!(draft.tokens, [5, 6, 7], "3 tokens drafted by a model that counts, after 3, 4");
    let passes = [
        "draft reads [3, 4], answers after the last 1",
        "draft reads [5], answers after the last 1",
        "draft reads [6], answers after the last 1",
    ];
    same!(*log.borrow(), passes, "passes of the draft model for 3 tokens");
}

pub fn any_token_can_be_drafted_again(make: Make) {
    let whole = [4, 2, 0, 2, 2, 0];
    let mut small = certain(&Log::default(), 12, next_of(&whole));
    let draft = drafted(&mut *make(&mut small), &[4], 5);
    same!(draft.tokens, whole[1..], "5 tokens drafted after 4, by a model that generates {whole:?}");
}

pub fn many_tokens_can_be_drafted(make: Make) {
    let mut small = certain(&Log::default(), 12, |tokens| tokens.len() as u32 % 7);
    let draft = drafted(&mut *make(&mut small), &[0], 300);
    same!((draft.tokens.len(), draft.probabilities.len()), (300, 300), "tokens and rows of a draft of 300");
    let wrong = (0..300).find(|index| draft.tokens[*index] != (*index as u32 + 1) % 7);
    same!(
        wrong,
        None,
        "the first wrong one of 300 tokens drafted after 0, by a model that counts to 6 again and again"
    );
}

pub fn only_what_is_new_is_read(make: Make) {
    let log = Log::default();
    let mut small = certain(&log, 12, |tokens| tokens[tokens.len() - 1] + 1);
    small.reads(&[3, 4]);
    let draft = drafted(&mut *make(&mut small), &[3, 4, 5], 2);
    same!(draft.tokens, [6, 7], "2 tokens drafted by a model that counts, after 3, 4, 5");
    let passes = ["draft reads [5], answers after the last 1", "draft reads [6], answers after the last 1"];
    same!(*log.borrow(), passes, "passes of a draft model that remembers 3, 4, for 2 tokens after 3, 4, 5");
}

pub fn a_refusal_is_passed_on(make: Make) {
    // The given tokens are read first, then each draft token.
    for (n, room) in [(2, 1), (1, 2), (1, 3)] {
        for refusal in refusals_to_read(n, room) {
            let mut small = certain(&Log::default(), 12, |_| 1);
            (small.room, small.refusal) = (room, Some(refusal.clone()));
            let told = format!("a draft of 4 tokens after 3, 4 by a model that refuses to remember more than {room}");
            same!(draft(&mut *make(&mut small), &[3, 4], 4), Err(refusal), "{told}");
        }
    }
}

pub fn ids_can_be_large(make: Make) {
    let mut small = certain(&Log::default(), LARGE_VOCAB, |tokens| LARGE[tokens.len() % 2]);
    let draft = drafted(&mut *make(&mut small), &[4, LARGE[1]], 2);
    same!(draft.tokens, LARGE, "2 tokens drafted out of a vocabulary of 70,000");
}
