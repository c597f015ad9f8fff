//! A text on its way out: from tokens to whole characters, up to a stop.
//!
//! ```text
//!   tokens   "The"  " end"  "."  "\n"  "\n"     stop "\n\n"
//!   told     "The"  " end"  "."  –     the text ends; neither "\n" is told, nor its token
//! ```
//!
//! A token is told with the piece in which its first character is, so that tokens and characters never contradict each other.

use std::collections::VecDeque;

use super::stops::Stops;
use super::talk::{Piece, Token};
use page_by_page::decode::scoring::Likely;
use page_by_page::model::tokenizer::{TextStream, Tokenizer, TokenizerError};

/// The new part of a text, as far as it may be told.
pub struct Voice<'t> {
    stream: TextStream<'t>,
    stops: Stops,
    /// Bytes and characters that were told.
    told: usize,
    told_chars: usize,
    /// Tokens that were not told yet.
    tokens: VecDeque<Token>,
    /// Characters of the text, as far as they are whole.
    chars: usize,
    n_tokens: usize,
}

/// What a token brings.
pub enum Heard {
    /// What may be told now, perhaps nothing.
    Piece(Piece),
    /// The last of the text: a stop follows.
    Stopped(Piece),
}

impl<'t> Voice<'t> {
    /// A text with no new token yet.
    pub fn new(tokenizer: &'t Tokenizer, stops: Vec<String>) -> Self {
        let (stream, stops) = (tokenizer.stream(), Stops::new(stops));
        Voice { stream, stops, told: 0, told_chars: 0, tokens: VecDeque::new(), chars: 0, n_tokens: 0 }
    }

    /// Tokens so far.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// What was told so far.
    pub fn told(&self) -> &str {
        &self.stream.text()[..self.told]
    }

    /// Characters of what was told so far.
    pub fn told_chars(&self) -> usize {
        self.told_chars
    }

    /// Takes one token.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn push(&mut self, id: u32, likely: Option<Likely>) -> Result<Heard, TokenizerError> {
        self.n_tokens += 1;
        self.tokens.push_back(Token { id, offset: self.chars, likely });
        self.chars += self.stream.push(id)?.chars().count();
        if let Some(end) = self.stops.find(self.stream.text()) {
            return Ok(Heard::Stopped(self.tell(end)));
        }
        let safe = self.stops.safe(self.stream.text());
        Ok(Heard::Piece(self.tell(safe)))
    }

    /// The text gets no more tokens: what was held back of it, up to a stop if there is one after all; and whether there is.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn finish(&mut self) -> Result<(Piece, bool), TokenizerError> {
        self.stream.finish()?;
        if let Some(end) = self.stops.find(self.stream.text()) {
            return Ok((self.tell(end), true));
        }
        let mut piece = self.tell(self.stream.text().len());
        // Those that stand for nothing.
        piece.tokens.extend(self.tokens.drain(..));
        Ok((piece, false))
    }

    /// What lies between what was told and `end`, in bytes.
    fn tell(&mut self, end: usize) -> Piece {
        let text = self.stream.text().get(self.told..end).unwrap_or_default().to_string();
        self.told += text.len();
        self.told_chars += text.chars().count();
        let n_tokens = self.tokens.partition_point(|token| token.offset < self.told_chars);
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

    /// The pieces of a text, its end, and whether a stop ended it.
    fn told(tokens: &[u32], stops: &[&str]) -> (Vec<Piece>, bool) {
        let tokenizer = storyteller();
        let mut voice = Voice::new(&tokenizer, stops.iter().map(ToString::to_string).collect());
        let mut pieces = Vec::new();
        for token in tokens {
            match voice.push(*token, None).unwrap() {
                Heard::Piece(piece) => pieces.push(piece),
                Heard::Stopped(piece) => {
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
    fn every_token_is_told_once_with_whole_characters() {
        let expected = "The dragon 🐉 said: naïve, très cher, 你好!";
        let tokens = storyteller().encode(expected).unwrap();
        let (pieces, stopped) = told(&tokens, &["never"]);
        assert_eq!((text(&pieces).as_str(), ids(&pieces), stopped), (expected, tokens.clone(), false));
        assert!(pieces.iter().all(|piece| !piece.text.contains('\u{FFFD}')));
        let dragon = pieces.iter().find(|piece| piece.text.contains('🐉')).unwrap();
        assert!(dragon.tokens.len() > 1, "its bytes are tokens of their own");
        let offsets: Vec<usize> = pieces.iter().flat_map(|piece| &piece.tokens).map(|token| token.offset).collect();
        assert!(offsets.is_sorted() && offsets[0] == 0 && *offsets.last().unwrap() < expected.chars().count());
    }

    #[test]
    fn a_character_that_is_never_whole_is_told_at_the_end() {
        let tokens = storyteller().encode("a🐉").unwrap();
        let cut = &tokens[..tokens.len() - 1];
        let (pieces, _) = told(cut, &[]);
        assert!(text(&pieces).starts_with("a\u{FFFD}"), "{pieces:?}");
        assert_eq!(ids(&pieces), cut);
    }

    #[test]
    fn neither_a_stop_nor_its_tokens_are_told() {
        let tokenizer = storyteller();
        let whole = "The king had a dragon.\nThe end.";
        let tokens = tokenizer.encode(whole).unwrap();
        for stop in ["dragon", " dragon", "rag", "\nThe", "."] {
            let (pieces, stopped) = told(&tokens, &[stop]);
            let expected = &whole[..whole.find(stop).unwrap()];
            assert_eq!((text(&pieces).as_str(), stopped), (expected, true), "{stop}");
            let shown = ids(&pieces);
            assert!(tokens.starts_with(&shown), "{stop}");
            let before = tokenizer.decode(&tokens[..shown.len()]).unwrap();
            assert!(before.starts_with(expected), "{stop}: {before} has all that is told");
            let without = tokenizer.decode(&tokens[..shown.len() - 1]).unwrap();
            assert!(without.len() < expected.len(), "{stop}: and no token more");
        }
    }
}
