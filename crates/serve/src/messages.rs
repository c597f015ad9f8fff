//! The messages between the two sides of the server: the threads that talk to clients, and the one thread that generates.
//!
//! ```text
//!   http ── Submit(request, events) ──► engine    accepted, or refused with the reason
//!   http ◄── Output, Output, … ────────── engine   for each sequence of the request
//!   http ── drops its end of events ──► engine    the client has gone: its sequences are cancelled before the next step
//!   http ── Cancel, ViewRequest ─────────────► engine    from the page view
//! ```

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::refusal::Refusal;
use super::views::ViewRequest;
use page_by_page::decode::sampler::Sampling;
use page_by_page::decode::scoring::TokenLogprobs;
use page_by_page::serving::StopRules;
use page_by_page::serving::schedule::{FinishReason, SequenceId};

pub enum Command {
    Submit(NewRequest),
    Cancel {
        sequence: SequenceId,
        /// Receives whether there is such a sequence.
        is_known: oneshot::Sender<bool>,
    },
    ViewRequest(ViewRequest),
    /// Accept no more requests, and finish those under way, `until` they are cut off.
    Stop {
        until: Instant,
    },
}

/// The prompts of a request, and the sequences that continue them. They are accepted together, or not at all.
pub struct NewRequest {
    pub prompts: Vec<NewPrompt>,
    /// Where their output goes. A client that has gone closes it.
    pub events: mpsc::UnboundedSender<Event>,
    pub accepted: oneshot::Sender<Result<(), Refusal>>,
    pub arrived: Instant,
    /// When it is cut off.
    pub until: Instant,
}

/// A prompt, and how its sequences go on. Unless it is scored, it is computed once for all of them.
#[derive(Clone)]
pub struct NewPrompt {
    /// At least one token.
    pub tokens: Vec<u32>,
    /// How each of its sequences is sampled.
    pub samples: Vec<Sampling>,
    /// New tokens of each, at most.
    pub max_new_tokens: usize,
    pub stops: Vec<String>,
    pub stop_rules: StopRules,
    /// Report the log probability of each token, and of this many of the likeliest.
    pub logprobs: Option<usize>,
    /// Also report them for the tokens of the prompt.
    pub is_scored: bool,
}

impl NewRequest {
    pub fn n_sequences(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.samples.len()).sum()
    }
}

/// New output of a sequence, or why no sequence of its request goes on.
pub type Event = Result<Output, Refusal>;

#[derive(Debug)]
pub struct Output {
    /// The place of the sequence in its request.
    pub index: usize,
    pub piece: Piece,
    /// With the last piece of a sequence.
    pub end: Option<Finished>,
}

/// New output: whole characters, and the tokens that begin in them.
#[derive(Debug, Default)]
pub struct Piece {
    /// With the first piece of a sequence whose prompt is scored: the score of each token of the prompt but the first.
    pub scores: Option<Vec<TokenLogprobs>>,
    pub text: String,
    /// The tokens. One that stands for a part of a character comes with the whole of it.
    pub tokens: Vec<Token>,
    /// With the last piece of a sequence whose prompt is scored: the token that ended it, if one did. It is not part of the output.
    pub end: Option<Token>,
}

impl Piece {
    pub fn is_empty(&self) -> bool {
        self.scores.is_none() && self.text.is_empty() && self.tokens.is_empty() && self.end.is_none()
    }

    pub fn append(&mut self, next: Piece) {
        self.scores = self.scores.take().or(next.scores);
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.end = next.end;
    }
}

#[derive(Clone, Debug)]
pub struct Token {
    pub id: u32,
    /// Characters of the output before it.
    pub offset: usize,
    /// Its log probability and the likeliest others, if they were asked for.
    pub likely: Option<TokenLogprobs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// A stop string counts as an end of text.
    pub reason: FinishReason,
    /// Tokens generated, including those of a stop string that is not sent.
    pub new_tokens: usize,
    pub cached: usize,
}
