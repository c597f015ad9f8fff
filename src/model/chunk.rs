//! What a step computes for one sequence, and why it is refused.

use crate::cache::in_place::CacheRef;
use crate::cache::{CacheError, KvLayout};

/// Why a step was refused. Nothing has changed, in the cache or elsewhere, unless it says so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A step needs at least one token.
    #[error("no tokens: a step needs at least one; give a prompt")]
    NoTokens,
    /// A token id outside the vocabulary.
    #[error("token id {token} is outside the vocabulary: ids go from 0 to {}", vocab_size - 1)]
    UnknownToken {
        /// The id.
        token: u32,
        /// How many ids there are.
        vocab_size: usize,
    },
    /// More tokens than the model has positions.
    #[error(
        "{len} tokens are more than the model's {max_positions} positions; shorten the prompt or ask for fewer tokens"
    )]
    TooLong {
        /// Tokens in the sequence with this step.
        len: usize,
        /// What the model was made for.
        max_positions: usize,
    },
    /// More rows of logits were asked for than the step has tokens.
    #[error(
        "the logits after the newest {wanted} tokens were asked for, but the step has {tokens}; ask for at most {tokens}"
    )]
    TooFewTokens {
        /// Rows asked for.
        wanted: usize,
        /// Tokens of the step.
        tokens: usize,
    },
    /// The cache was made for a different model.
    #[error("the cache holds rows of {found:?}, the model makes rows of {expected:?}")]
    WrongLayout {
        /// The cache's layout.
        found: KvLayout,
        /// The model's layout.
        expected: KvLayout,
    },
    /// The step was computed, and gave logits that no token can be chosen from. The caches of the step hold its tokens, and
    /// rows that are worth nothing: rewind them, or drop them.
    #[error(
        "the logits after position {position} (token id {token}) are not finite: on the way to them the numbers have \
         left the range of 32-bit floats; the weights are too large, or not those of this config.json"
    )]
    NotFinite {
        /// Position of the token in its sequence, from 0.
        position: usize,
        /// The token.
        token: u32,
    },
    /// The cache has no room.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Which rows of a chunk are turned into logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a piece of a prompt that is not yet complete.
    None,
    /// One for each of the newest tokens; `Newest(1)` is what follows the whole sequence.
    ///
    /// A chunk with fewer tokens is refused with [`StepError::TooFewTokens`].
    Newest(usize),
    /// Every row: what follows each token.
    All,
}

/// The new tokens of one sequence, with room made for them in its cache.
///
/// [`Model::chunk`](super::Model::chunk) makes it after checking everything that can be wrong before the numbers are known.
pub struct Chunk<'a> {
    pub(super) tokens: &'a [u32],
    /// Tokens before these.
    pub(super) start: usize,
    /// `None`: the tokens are the whole sequence, and their keys and values are forgotten after the step.
    pub(super) cache: Option<CacheRef<'a>>,
    pub(super) logits: LogitRows,
}

impl Chunk<'_> {
    /// How many of the newest tokens are turned into logits.
    pub(super) fn rows(&self) -> usize {
        match self.logits {
            LogitRows::None => 0,
            LogitRows::Newest(n) => n,
            LogitRows::All => self.tokens.len(),
        }
    }

    /// Position and id of each token that is turned into logits.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (usize, u32)> {
        (self.start..).zip(self.tokens.iter().copied()).skip(self.tokens.len() - self.rows())
    }
}
