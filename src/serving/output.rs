//! What a step gives: the new output of its sequences, and those that have finished.

use super::SequenceError;
use crate::generation::logprobs::TokenLogprobs;
use crate::serving::schedule::{FinishReason, NextToken, ScheduledChunk, Sequence, SequenceId};

#[derive(Default)]
pub struct StepOutput {
    /// Which sequences computed how many tokens: the plan.
    pub chunks: Vec<ScheduledChunk>,
    /// The new tokens, in the order of the plan; those of the other samples follow the first sample's. Each token of a
    /// sequence is reported once. An end of text is not reported.
    pub new_tokens: Vec<NextToken>,
    /// The new output of sequences, if they have any. What an end releases comes with [`finished`](Self::finished).
    pub deltas: Vec<(SequenceId, OutputDelta)>,
    pub finished: Vec<FinishedSequence>,
}

/// New output of a sequence: whole characters, and the tokens that begin in them. Without a tokenizer: its new tokens.
#[derive(Debug, Default)]
pub struct OutputDelta {
    /// Once, if the prompt is scored: the score of each of its tokens but the first.
    pub prompt_logprobs: Option<Vec<TokenLogprobs>>,
    pub text: String,
    /// The tokens. One that stands for a part of a character comes with the whole of it.
    pub tokens: Vec<OutputToken>,
    /// In the end, if the prompt is scored: the token that ended the sequence, if any. It is no part of the output.
    pub end_token: Option<OutputToken>,
}

impl OutputDelta {
    pub fn is_empty(&self) -> bool {
        self.prompt_logprobs.is_none() && self.text.is_empty() && self.tokens.is_empty() && self.end_token.is_none()
    }

    pub fn append(&mut self, next: OutputDelta) {
        self.prompt_logprobs = self.prompt_logprobs.take().or(next.prompt_logprobs);
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.end_token = next.end_token;
    }
}

#[derive(Clone, Debug)]
pub struct OutputToken {
    pub id: u32,
    /// Characters of the output before it.
    pub offset: usize,
    /// Its log-probability and the likeliest tokens, if they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

pub struct FinishedSequence {
    /// Its tokens and counters. The tokens of a stop string are among them.
    pub sequence: Sequence,
    /// The output in characters, up to a stop string. Empty without a tokenizer.
    pub text: String,
    pub delta: OutputDelta,
    /// How its prompt begins, for [views](super::view). Empty without a tokenizer.
    pub prompt_preview: String,
    pub outcome: Result<FinishReason, SequenceError>,
}

impl FinishedSequence {
    pub fn reason(&self) -> FinishReason {
        *self.outcome.as_ref().unwrap_or(&FinishReason::Error)
    }
}
