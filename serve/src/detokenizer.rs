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
use page_by_page::decode::scoring::Likely;
use page_by_page::model::tokenizer::{TextStream, Tokenizer, TokenizerError};

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
}

/// What follows from a token.
pub enum Output {
    /// Output that can be sent now; it can be empty.
    Piece(Piece),
    /// The last of the output: a stop string follows.
    Stopped(Piece),
}

impl<'t> Detokenizer<'t> {
    /// For a sequence without a token.
    pub fn new(tokenizer: &'t Tokenizer, stops: Vec<String>) -> Self {
        let (stream, stops) = (tokenizer.stream(), Stops::new(stops));
        Detokenizer { stream, stops, sent: 0, sent_chars: 0, tokens: VecDeque::new(), chars: 0, n_tokens: 0 }
    }

    /// Tokens so far.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// What was sent so far.
    pub fn sent(&self) -> &str {
        &self.stream.text()[..self.sent]
    }

    /// Characters sent so far.
    pub fn sent_chars(&self) -> usize {
        self.sent_chars
    }

    /// Takes one token.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn push(&mut self, id: u32, likely: Option<Likely>) -> Result<Output, TokenizerError> {
        self.n_tokens += 1;
        self.tokens.push_back(Token { id, offset: self.chars, likely });
        self.chars += self.stream.push(id)?.chars().count();
        if let Some(end) = self.stops.find(self.stream.text()) {
            return Ok(Output::Stopped(self.take(end)));
        }
        let safe = self.stops.safe(self.stream.text());
        Ok(Output::Piece(self.take(safe)))
    }

    /// Ends the sequence. Returns what was held back, up to a stop string if there is one after all, and whether there is.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn finish(&mut self) -> Result<(Piece, bool), TokenizerError> {
        self.stream.finish()?;
        if let Some(end) = self.stops.find(self.stream.text()) {
            return Ok((self.take(end), true));
        }
        let mut piece = self.take(self.stream.text().len());
        // Tokens that stand for no characters.
        piece.tokens.extend(self.tokens.drain(..));
        Ok((piece, false))
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn storyteller() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller")).unwrap()
    }

    /// The pieces of a sequence, and whether a stop string ended it.
    fn pieces_of(tokens: &[u32], stops: &[&str]) -> (Vec<Piece>, bool) {
        let tokenizer = storyteller();
        let mut voice = Detokenizer::new(&tokenizer, stops.iter().map(ToString::to_string).collect());
        let mut pieces = Vec::new();
        for token in tokens {
            match voice.push(*token, None).unwrap() {
                Output::Piece(piece) => pieces.push(piece),
                Output::Stopped(piece) => {
                    pieces.push(piece);
                    return (pieces, true);
                }
            }
        }
        let (piece, stopped) = voice.finish().unwrap();
        pieces.push(piece);
        (pieces, stopped)
    }

    fn text(pieces: &[Piece]) -> String {
        pieces.iter().map(|piece| piece.text.as_str()).collect()
    }

    fn ids(pieces: &[Piece]) -> Vec<u32> {
        pieces.iter().flat_map(|piece| &piece.tokens).map(|token| token.id).collect()
    }

    #[test]
    fn every_token_is_sent_once_with_whole_characters() {
        let expected = "The dragon 🐉 said: naïve, très cher, 你好!";
        let tokens = storyteller().encode(expected).unwrap();
        let (pieces, stopped) = pieces_of(&tokens, &["never"]);
        assert_eq!((text(&pieces).as_str(), ids(&pieces), stopped), (expected, tokens.clone(), false));
        assert!(pieces.iter().all(|piece| !piece.text.contains('\u{FFFD}')));
        let dragon = pieces.iter().find(|piece| piece.text.contains('🐉')).unwrap();
        assert!(dragon.tokens.len() > 1, "its bytes are tokens of their own");
        let offsets: Vec<usize> = pieces.iter().flat_map(|piece| &piece.tokens).map(|token| token.offset).collect();
        assert!(offsets.is_sorted() && offsets[0] == 0 && *offsets.last().unwrap() < expected.chars().count());
    }

    #[test]
    fn a_character_that_is_never_whole_is_sent_at_the_end() {
        let tokens = storyteller().encode("a🐉").unwrap();
        let cut = &tokens[..tokens.len() - 1];
        let (pieces, _) = pieces_of(cut, &[]);
        assert!(text(&pieces).starts_with("a\u{FFFD}"), "{pieces:?}");
        assert_eq!(ids(&pieces), cut);
    }

    #[test]
    fn neither_a_stop_string_nor_its_tokens_are_sent() {
        let tokenizer = storyteller();
        let whole = "The king had a dragon.\nThe end.";
        let tokens = tokenizer.encode(whole).unwrap();
        for stop in ["dragon", " dragon", "rag", "\nThe", "."] {
            let (pieces, stopped) = pieces_of(&tokens, &[stop]);
            let expected = &whole[..whole.find(stop).unwrap()];
            assert_eq!((text(&pieces).as_str(), stopped), (expected, true), "{stop}");
            let shown = ids(&pieces);
            assert!(tokens.starts_with(&shown), "{stop}");
            let before = tokenizer.decode(&tokens[..shown.len()]).unwrap();
            assert!(before.starts_with(expected), "{stop}: {before} has all that is sent");
            let without = tokenizer.decode(&tokens[..shown.len() - 1]).unwrap();
            assert!(without.len() < expected.len(), "{stop}: and no token more");
        }
    }
}
