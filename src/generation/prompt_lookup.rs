//! Prompt lookup: a drafter without a model. It looks for an earlier place where the newest tokens stood.
//!
//! ```text
//!   tokens  The king had a bird . The queen had a
//!                    └──┬─┘                 └─┬─┘
//!           found here ─┘      the newest two tokens, "had a"
//!   draft   bird . The
//! ```
//!
//! It is right where an output repeats its prompt or itself: summaries, edited code, answers that quote. Known as
//! prompt lookup decoding ([Saxena, 2023](https://github.com/apoorvumang/prompt-lookup-decoding)), and in vLLM as
//! n-gram speculation.

use crate::generation::{Draft, Drafter};
use crate::model::StepError;

/// Drafts what followed the same tokens earlier in the sequence.
pub struct PromptLookup {
    vocab_size: usize,
    /// Newest tokens to look for, at most.
    longest: usize,
}

impl PromptLookup {
    /// Looks for the newest `longest` tokens, then for fewer, down to one. `vocab_size` is the target's.
    pub fn new(vocab_size: usize, longest: usize) -> Self {
        PromptLookup { vocab_size, longest }
    }
}

impl Drafter for PromptLookup {
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        let followed = (1..=self.longest).rev().find_map(|n| after_last_occurrence(tokens, n)).unwrap_or(&[]);
        let mut draft = Draft::default();
        followed.iter().take(k).for_each(|token| draft.push_certain(*token, self.vocab_size));
        Ok(draft)
    }

    /// It has no cache.
    fn sync_cache(&mut self, _tokens: &[u32]) -> Result<(), StepError> {
        Ok(())
    }
}

/// What follows the last earlier place where the newest `n` tokens stand; `None` if there is none.
fn after_last_occurrence(tokens: &[u32], n: usize) -> Option<&[u32]> {
    let (earlier, _newest_token) = tokens.split_at(tokens.len().checked_sub(1)?);
    let newest = &tokens[tokens.len().checked_sub(n)?..];
    let index = earlier.windows(n).rposition(|window| window == newest)?;
    Some(&tokens[index + n..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(tokens: &[u32], k: usize) -> Vec<u32> {
        PromptLookup::new(20, 3).draft(tokens, k).expect("a look-up cannot fail").tokens
    }

    #[test]
    fn drafts_what_followed_the_longest_match() {
        // 2 3 stood after 1 and after 9: three tokens match the first place only.
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3, 6, 1, 2, 3], 2), [4, 5]);
        // Of two places that match as well, the later one.
        assert_eq!(drafted(&[2, 3, 4, 7, 2, 3, 6, 8, 2, 3], 1), [6]);
        // One token is enough if more do not match, also just before.
        assert_eq!(drafted(&[5, 6, 7, 5], 4), [6, 7, 5]);
        assert_eq!(drafted(&[1, 4, 4, 4, 4], 3), [4]);
        for (nothing, k) in [(&[1, 2, 3, 4][..], 4), (&[1], 4), (&[1, 2, 1], 0)] {
            assert!(drafted(nothing, k).is_empty());
        }
    }
}
