//! Text to token ids and back, by the Hugging Face `tokenizers` library.

use std::path::{Path, PathBuf};

/// A tokenizer that cannot be used, or a text that it cannot take.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The folder has no `tokenizer.json`, or it is not one.
    #[error("{}: {problem}; a model folder holds the tokenizer.json that came with the model", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the library said.
        problem: String,
    },
    /// The library refused.
    #[error("tokenizer: {0}")]
    Refused(String),
}

/// The tokenizer of a model folder.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Open`].
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        match tokenizers::Tokenizer::from_file(&path) {
            Ok(inner) => Ok(Tokenizer { inner }),
            Err(problem) => Err(TokenizerError::Open { path, problem: problem.to_string() }),
        }
    }

    /// The ids of a text, with the special tokens that the model expects around it.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode(text, true).map_err(|error| TokenizerError::Refused(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of some ids; special tokens have none.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, true).map_err(|error| TokenizerError::Refused(error.to_string()))
    }

    /// The first id, in order, that stands for another token in `other` or is missing in one of the two; `None` if both have
    /// the same vocabulary.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<u32> {
        let (ours, theirs) = (self.inner.get_vocab_size(true), other.inner.get_vocab_size(true));
        let ids = 0..ours.max(theirs) as u32;
        ids.into_iter().find(|id| self.inner.id_to_token(*id) != other.inner.id_to_token(*id))
    }

    /// The text of tokens that come one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, tokens: Vec::new(), shown: 0, text: String::new() }
    }
}

/// Turns tokens into text as they come, whole characters only: one character may take several tokens.
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    tokens: Vec<u32>,
    /// Tokens whose text is in `text` already.
    shown: usize,
    text: String,
}

/// Tokens before the new ones that are decoded with them, as a token's text may depend on what precedes it.
const CONTEXT: usize = 8;

/// What the library writes for bytes that are not (yet) a character.
const NOT_A_CHARACTER: char = '\u{FFFD}';

impl TextStream<'_> {
    /// Takes one token; returns the text that is now complete, perhaps none.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.tokens.push(token);
        let piece = self.pending()?;
        if piece.ends_with(NOT_A_CHARACTER) {
            return Ok(String::new());
        }
        Ok(self.show(piece))
    }

    /// Ends the stream; returns what is left, with `�` for a character that was never completed.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let piece = self.pending()?;
        Ok(self.show(piece))
    }

    /// All the text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn pending(&self) -> Result<String, TokenizerError> {
        let context = self.shown.saturating_sub(CONTEXT);
        let before = self.tokenizer.decode(&self.tokens[context..self.shown])?;
        let after = self.tokenizer.decode(&self.tokens[context..])?;
        Ok(after.strip_prefix(before.as_str()).unwrap_or(&after).to_string())
    }

    fn show(&mut self, piece: String) -> String {
        self.shown = self.tokens.len();
        self.text.push_str(&piece);
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storyteller() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/storyteller")).unwrap()
    }

    #[test]
    fn a_stream_never_splits_a_character() {
        let tokenizer = storyteller();
        let text = "The dragon 🐉 said: naïve, très cher, 你好!";
        let tokens = tokenizer.encode(text).unwrap();
        assert!(tokens.len() > text.chars().count() / 2, "the emoji takes several tokens");
        let mut stream = tokenizer.stream();
        let mut pieces = String::new();
        for token in tokens {
            let piece = stream.push(token).unwrap();
            assert!(!piece.contains(NOT_A_CHARACTER));
            pieces.push_str(&piece);
        }
        assert_eq!(pieces, text);
        assert_eq!(stream.finish().unwrap(), "");
        assert_eq!(stream.text(), text);
    }

    #[test]
    fn a_character_that_never_ends_is_shown_at_the_end() {
        let tokenizer = storyteller();
        let tokens = tokenizer.encode("🐉").unwrap();
        let mut stream = tokenizer.stream();
        for token in &tokens[..tokens.len() - 1] {
            assert_eq!(stream.push(*token).unwrap(), "");
        }
        assert!(stream.finish().unwrap().contains(NOT_A_CHARACTER));
    }
}
