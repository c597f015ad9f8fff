//! The streaming detokenizer: from tokens to whole characters, up to a stop string.
//!
//! ```text
//!   tokens   "The"  " end"  "."  "\n"  "\n"     stop "\n\n"
//!   output   "The"  " end"  "."  –     the sequence ends; neither "\n" nor its token is output
//! ```
//!
//! A token is output with the characters that hold its first one, so that tokens and characters never contradict each
//! other.

use std::collections::VecDeque;

use super::stop_strings::StopStrings;
use super::{OutputDelta, OutputToken, StopParams};
use crate::files::FileError;
use crate::generation::logprobs::TokenLogprobs;
use crate::model::tokenizer::{TextStream, Tokenizer};

/// Turns the tokens of one sequence into its output.
pub(super) struct Detokenizer<'t> {
    stream: TextStream<'t>,
    stops: StopStrings,
    /// A stop string among this many first tokens ends nothing.
    min_tokens: usize,
    n_tokens: usize,
    /// Characters of all tokens, as far as they are whole.
    chars: usize,
    held_back: VecDeque<OutputToken>,
    output_bytes: usize,
    pub(super) output_chars: usize,
    is_stopped: bool,
}

impl<'t> Detokenizer<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, rules: &StopParams) -> Self {
        Detokenizer {
            stream: tokenizer.stream(),
            stops: StopStrings::new(rules.stop_strings.clone()),
            min_tokens: rules.min_tokens,
            n_tokens: 0,
            chars: 0,
            held_back: VecDeque::new(),
            output_bytes: 0,
            output_chars: 0,
            is_stopped: false,
        }
    }

    pub(super) fn output(&self) -> &str {
        &self.stream.text()[..self.output_bytes]
    }

    /// Takes one token. Returns the new output, perhaps none, and whether a stop string ends it.
    pub(super) fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Result<(OutputDelta, bool), FileError> {
        self.n_tokens += 1;
        self.held_back.push_back(OutputToken { id, offset: self.chars, logprobs });
        self.chars += self.stream.push(id)?.chars().count();
        let stop = self.find_stop();
        let end = stop.unwrap_or_else(|| self.stops.safe(self.stream.text()));
        Ok((self.output_up_to(end), self.is_stopped))
    }

    /// Ends the sequence. Returns what was held back, up to a stop string found only now, and whether one has ended it.
    pub(super) fn finish(&mut self) -> Result<(OutputDelta, bool), FileError> {
        if self.is_stopped {
            return Ok((OutputDelta::default(), true));
        }
        self.stream.finish()?;
        if let Some(end) = self.find_stop() {
            return Ok((self.output_up_to(end), true));
        }
        let mut rest = self.output_up_to(self.stream.text().len());
        // Tokens that stand for no characters.
        rest.tokens.extend(self.held_back.drain(..));
        Ok((rest, false))
    }

    /// Where a stop string begins that ends in what is new, in bytes.
    fn find_stop(&mut self) -> Option<usize> {
        let stop = self.stops.find(self.stream.text()).filter(|_| self.n_tokens > self.min_tokens);
        self.is_stopped = stop.is_some();
        stop
    }

    /// What the output has up to byte `end` and had not before.
    fn output_up_to(&mut self, end: usize) -> OutputDelta {
        let text = self.stream.text().get(self.output_bytes..end).unwrap_or_default().to_string();
        self.output_bytes += text.len();
        self.output_chars += text.chars().count();
        let n_tokens = self.held_back.partition_point(|token| token.offset < self.output_chars);
        OutputDelta { text, tokens: self.held_back.drain(..n_tokens).collect(), ..OutputDelta::default() }
    }
}
