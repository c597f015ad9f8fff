//! The streaming detokenizer: from tokens to whole characters, up to a stop string.
//!
//! ```text
//!   tokens   "The"  " end"  "."  "\n"  "\n"     stop "\n\n"
//!   sent     "The"  " end"  "."  –     the sequence ends; neither "\n" nor its token is sent
//! ```
//!
//! A token is sent with the piece that holds its first character, so that tokens and characters never contradict each other.

use std::collections::VecDeque;

use super::messages::{Piece, Token};
use super::stops::Stops;
use page_by_page::decode::scoring::TokenLogprobs;
use page_by_page::files::FileError;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};

/// Turns the tokens of one sequence into pieces that can be sent.
pub struct Detokenizer<'t> {
    stream: TextStream<'t>,
    stops: Stops,
    /// Bytes and characters that were sent.
    sent: usize,
    sent_chars: usize,
    /// Tokens that were not sent yet.
    tokens: VecDeque<Token>,
    /// Characters of the output, as far as they are whole.
    chars: usize,
    n_tokens: usize,
    /// A stop string among this many first tokens ends nothing.
    min_tokens: usize,
}

impl<'t> Detokenizer<'t> {
    pub fn new(tokenizer: &'t Tokenizer, stops: Vec<String>, min_tokens: usize) -> Self {
        let (stream, stops, tokens) = (tokenizer.stream(), Stops::new(stops), VecDeque::new());
        Detokenizer { stream, stops, sent: 0, sent_chars: 0, tokens, chars: 0, n_tokens: 0, min_tokens }
    }

    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    pub fn sent(&self) -> &str {
        &self.stream.text()[..self.sent]
    }

    pub fn sent_chars(&self) -> usize {
        self.sent_chars
    }

    /// Takes one token. Returns what can be sent now, perhaps nothing, and whether a stop string follows it.
    pub fn push(&mut self, id: u32, likely: Option<TokenLogprobs>) -> Result<(Piece, bool), FileError> {
        self.n_tokens += 1;
        self.tokens.push_back(Token { id, offset: self.chars, likely });
        self.chars += self.stream.push(id)?.chars().count();
        let stop = self.find_stop();
        let end = stop.unwrap_or_else(|| self.stops.safe(self.stream.text()));
        Ok((self.take(end), stop.is_some()))
    }

    /// Ends the sequence. Returns what was held back, up to a stop string if there is one after all, and whether there is.
    pub fn finish(&mut self) -> Result<(Piece, bool), FileError> {
        self.stream.finish()?;
        if let Some(end) = self.find_stop() {
            return Ok((self.take(end), true));
        }
        let mut piece = self.take(self.stream.text().len());
        // Tokens that stand for no characters.
        piece.tokens.extend(self.tokens.drain(..));
        Ok((piece, false))
    }

    /// Where a stop string begins that ends in what is new, in bytes.
    fn find_stop(&mut self) -> Option<usize> {
        self.stops.find(self.stream.text()).filter(|_| self.n_tokens > self.min_tokens)
    }

    /// The output from what was sent up to byte `end`.
    fn take(&mut self, end: usize) -> Piece {
        let text = self.stream.text().get(self.sent..end).unwrap_or_default().to_string();
        self.sent += text.len();
        self.sent_chars += text.chars().count();
        let n_tokens = self.tokens.partition_point(|token| token.offset < self.sent_chars);
        Piece { text, tokens: self.tokens.drain(..n_tokens).collect(), ..Piece::default() }
    }
}
