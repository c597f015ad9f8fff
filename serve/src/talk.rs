//! What the two sides of the server tell each other: those who answer clients, and the one thread that writes the texts.
//!
//! ```text
//!   http ── Submit(texts, events) ──► engine      accepted, or refused with the reason
//!   http ◄── Piece, Piece, …, End ─── engine      for each text of the request
//!   http ── drops its end of events ► engine      the client has gone: its texts end before the next step
//!   http ── End, Look ──────────────► engine      somebody watches the pages
//! ```

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::refusal::Refusal;
use super::watching::Look;
use page_by_page::decode::sampler::Sampling;
use page_by_page::decode::scoring::Likely;
use page_by_page::serving::schedule::SequenceId;

/// What the engine is told.
pub enum Command {
    /// Write these texts.
    Submit(Submission),
    /// End this text, whoever asked for it.
    End {
        /// Which.
        text: SequenceId,
        /// Whether there is such a text.
        is_known: oneshot::Sender<bool>,
    },
    /// Show what is there.
    Look(Look),
    /// Take no more texts; end those that are there by then.
    Stop {
        /// When the last one has to end.
        until: Instant,
    },
}

/// The texts of a request. They are taken in together, or not at all.
pub struct Submission {
    /// The texts.
    pub texts: Vec<Asked>,
    /// Where they go. Whoever closes it wants no more of them.
    pub events: mpsc::UnboundedSender<Event>,
    /// Whether they were taken in.
    pub accepted: oneshot::Sender<Result<(), Refusal>>,
    /// When they were asked for.
    pub came: Instant,
    /// When they have to be written.
    pub until: Instant,
}

/// A text that is asked for.
pub struct Asked {
    /// How it begins: at least one token.
    pub prompt: Vec<u32>,
    /// New tokens at most.
    pub max_new_tokens: usize,
    /// How its tokens are chosen.
    pub sampling: Sampling,
    /// Strings that end it.
    pub stops: Vec<String>,
    /// Tell how likely each token was, and so many of the likeliest.
    pub logprobs: Option<usize>,
    /// Tell it of the tokens of the prompt, too.
    pub is_scored: bool,
}

/// What becomes of the texts of a request. `text`: which one, by its place in the request.
#[derive(Debug)]
pub enum Event {
    /// A text goes on.
    Piece {
        /// Which.
        text: usize,
        /// What is new.
        piece: Piece,
    },
    /// A text has ended.
    End {
        /// Which.
        text: usize,
        /// The last of it.
        piece: Piece,
        /// Why, and what it has cost.
        end: Ended,
    },
    /// None of the texts goes on.
    Failed(Refusal),
}

/// Whole characters, and the tokens that begin in them.
#[derive(Debug, Default)]
pub struct Piece {
    /// With the first piece of a text whose prompt is scored: the scores of each token of the prompt but the first.
    pub scores: Option<Vec<Likely>>,
    /// The characters.
    pub text: String,
    /// The tokens. One that stands for a part of a character comes with the whole of it.
    pub tokens: Vec<Token>,
    /// With the last piece of a text whose prompt is scored: the token that has ended it, if one has. It is no part of the text.
    pub end: Option<Token>,
}

impl Piece {
    /// True if there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.scores.is_none() && self.text.is_empty() && self.tokens.is_empty() && self.end.is_none()
    }

    /// Adds what follows.
    pub fn append(&mut self, next: Piece) {
        self.scores = self.scores.take().or(next.scores);
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.end = next.end;
    }
}

/// A token of a text.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Characters of the text before it.
    pub offset: usize,
    /// How likely it was, if that was asked.
    pub likely: Option<Likely>,
}

/// How a text has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `stop` if it ended by itself or with one of its stops, `length` if it has all tokens that were asked for, `abort` if
    /// somebody who watched the pages has ended it.
    pub reason: &'static str,
    /// Tokens that were written, with those of a stop that is not shown.
    pub new_tokens: usize,
    /// Tokens of the prompt that the prefix cache held.
    pub cached: usize,
}
