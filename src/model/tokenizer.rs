//! Text to token ids and back, by the Hugging Face `tokenizers` library.
//!
//! A `tokenizer.json` is close to a program, and with some that contradict themselves the library panics. Such a panic
//! ends here, as an error that names the file.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::files::FileError;
use crate::{escape, files, panics};

/// Bytes of a `tokenizer.json`: several times what the largest vocabularies take.
const MAX_BYTES: usize = 64 << 20;

/// Characters of an added token: many times what the longest have. The library takes their square in time.
const MAX_CHARACTERS: usize = 256;

/// The tokenizer of a model folder. Its calls return [`FileError`] if the library fails.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    max_bytes_per_token: usize,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. Its padding and truncation are not followed: a prompt is taken as it is.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let path = dir.join("tokenizer.json");
        let bytes = files::read(&path, MAX_BYTES).map_err(|error| error.to_string());
        Self::parse(path, bytes)
    }

    /// A tokenizer from the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, FileError> {
        Self::parse("tokenizer.json".into(), Ok(bytes))
    }

    fn parse(path: PathBuf, bytes: Result<Vec<u8>, String>) -> Result<Self, FileError> {
        let opened = bytes.and_then(|bytes| {
            check_added_tokens(&bytes)?;
            let mut inner = caught(|| tokenizers::Tokenizer::from_bytes(&bytes))?;
            inner.with_padding(None);
            caught(|| inner.with_truncation(None).map(drop))?;
            // A template that uses what is not there fails with the first text.
            caught(|| inner.encode("", true))?;
            Ok(inner)
        });
        match opened {
            Ok(inner) => Ok(Tokenizer { path, max_bytes_per_token: max_bytes_per_token(&inner), inner }),
            Err(problem) => {
                let advice = "a model folder holds the tokenizer.json that came with the model";
                Err(FileError::new(&path, format!("{problem}; {advice}")))
            }
        }
    }

    /// Bytes of a text that one token stands for, at most: a longer text has more tokens than its bytes divided by
    /// this. `usize::MAX` where the tokenizer drops characters, so that there is no such limit.
    pub fn max_bytes_per_token(&self) -> usize {
        self.max_bytes_per_token
    }

    /// The ids of a text, with the special tokens that the model expects around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, FileError> {
        Ok(self.call(|| self.inner.encode(text, true))?.get_ids().to_vec())
    }

    /// The ids of a text that has the special tokens in it already, as a chat template writes them.
    pub fn encode_without_special_tokens(&self, text: &str) -> Result<Vec<u32>, FileError> {
        Ok(self.call(|| self.inner.encode(text, false))?.get_ids().to_vec())
    }

    /// One token as a text of its own, also a special one. A part of a character is `�`.
    pub fn token(&self, id: u32) -> Result<String, FileError> {
        self.call(|| self.inner.decode(&[id], false))
    }

    /// The text of some ids; special tokens have none.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, FileError> {
        self.call(|| self.inner.decode(tokens, true))
    }

    fn call<T>(&self, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, FileError> {
        let advice = "use the tokenizer.json that came with the model";
        caught(call).map_err(|problem| FileError::new(&self.path, format!("{problem}; {advice}")))
    }

    /// The first id, in order, that stands for a different token in `other` or is missing in one of the two; `None` if
    /// both have the same vocabulary.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<u32> {
        let (ours, theirs) = (self.inner.get_vocab_size(true), other.inner.get_vocab_size(true));
        let ids = 0..ours.max(theirs) as u32;
        ids.into_iter().find(|id| self.inner.id_to_token(*id) != other.inner.id_to_token(*id))
    }

    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, tokens: Vec::new(), shown: 0, text: String::new() }
    }
}

fn max_bytes_per_token(inner: &tokenizers::Tokenizer) -> usize {
    // Composed, characters take a third of their bytes at the least: a Hangul syllable for three letters.
    let shrinks_to = match inner.get_normalizer() {
        None => 1,
        Some(tokenizers::NormalizerWrapper::NFC(_)) => 3,
        Some(_) => return usize::MAX,
    };
    if inner.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip) {
        return usize::MAX;
    }
    let longest = inner.get_vocab(true).keys().map(String::len).max().unwrap_or(1);
    longest.saturating_mul(shrinks_to)
}

/// Refuses an added token that is too long. What else is wrong with the file is left to the library.
fn check_added_tokens(file: &[u8]) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct File {
        added_tokens: Vec<AddedToken>,
    }
    #[derive(serde::Deserialize)]
    struct AddedToken {
        content: String,
    }
    let tokens = serde_json::from_slice::<File>(file).map_or(Vec::new(), |file| file.added_tokens);
    let lengths = tokens.iter().map(|token| (token, token.content.chars().count()));
    match lengths.max_by_key(|(_, length)| *length) {
        Some((token, length)) if length > MAX_CHARACTERS => {
            let token = escape::quoted(&token.content);
            Err(format!("its added token {token} has {length} characters, at most {MAX_CHARACTERS} are expected"))
        }
        _ => Ok(()),
    }
}

/// What the library answers. A panic in it is an error too, and is not printed.
fn caught<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    thread_local!(static CALLING: Cell<bool> = const { Cell::new(false) });
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !CALLING.get() {
                print(panic);
            }
        }));
    });
    let before = CALLING.replace(true);
    // After a panic only the library's own caches may be half done, and they only save time.
    let answer = panic::catch_unwind(AssertUnwindSafe(call));
    CALLING.set(before);
    match answer {
        Ok(answer) => answer.map_err(|error| escape::field(&error.to_string())),
        Err(payload) => {
            let message = panics::message(&*payload).unwrap_or("no reason given");
            Err(format!("the tokenizers library fails with it ({})", escape::field(message)))
        }
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
    pub fn push(&mut self, token: u32) -> Result<String, FileError> {
        self.tokens.push(token);
        let piece = self.pending()?;
        if piece.ends_with(NOT_A_CHARACTER) {
            return Ok(String::new());
        }
        Ok(self.show(piece))
    }

    /// Ends the stream; returns what is left, with `�` for a character that was never completed.
    pub fn finish(&mut self) -> Result<String, FileError> {
        let piece = self.pending()?;
        Ok(self.show(piece))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    fn pending(&self) -> Result<String, FileError> {
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
    use serde_json::Value;

    use super::*;

    fn storyteller() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/storyteller")).unwrap()
    }

    #[test]
    fn a_stream_never_splits_a_character() {
        let tokenizer = storyteller();
        let text = "The dragon 🐉 said: naïve, très cher, 你好!";
        let mut stream = tokenizer.stream();
        for token in tokenizer.encode(text).unwrap() {
            assert!(!stream.push(token).unwrap().contains(NOT_A_CHARACTER));
        }
        assert_eq!((stream.finish().unwrap().as_str(), stream.text()), ("", text));
        // A character that never ends is shown at the end.
        let tokens = tokenizer.encode("🐉").unwrap();
        let mut stream = tokenizer.stream();
        for token in &tokens[..tokens.len() - 1] {
            assert_eq!(stream.push(*token).unwrap(), "");
        }
        assert!(stream.finish().unwrap().contains(NOT_A_CHARACTER));
    }

    fn changed(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Result<Tokenizer, FileError>) {
        let dir = tempfile::tempdir().unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/storyteller/tokenizer.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(ours).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let opened = Tokenizer::open(dir.path());
        (dir, opened)
    }

    #[test]
    fn what_the_library_fails_with_is_refused_when_it_is_opened() {
        let piece = |piece: Value| move |json: &mut Value| json["post_processor"]["single"][0] = piece;
        let undefined = serde_json::json!({ "SpecialToken": { "id": "<|begin|>", "type_id": 0 } });
        let second = serde_json::json!({ "Sequence": { "id": "B", "type_id": 0 } });
        // The prefix is longer than the second half of every merge, which the library cuts off by that much.
        let prefix = |json: &mut Value| json["model"]["continuing_subword_prefix"] = "123456789".repeat(9).into();
        let long = |json: &mut Value| json["added_tokens"][0]["content"] = "x".repeat(1 << 20).into();
        let fails = "tokenizer.json: the tokenizers library fails with it (";
        for ((dir, opened), says) in [
            (changed(piece(undefined)), fails),
            (changed(piece(second)), fails),
            (changed(prefix), fails),
            (changed(long), " has 1048576 characters, at most 256 are expected"),
        ] {
            let error = opened.err().expect("it is refused").to_string();
            assert!(error.starts_with(&dir.path().display().to_string()) && error.contains(says), "{error}");
            assert!(error.len() < 600, "{error}");
        }
        assert!(caught(|| -> tokenizers::Result<()> { panic!("{}", "x".repeat(1 << 20)) }).unwrap_err().len() < 400);
    }

    #[test]
    fn a_prompt_is_neither_padded_nor_cut() {
        let expected = storyteller().encode("The king had a dragon").unwrap();
        let (_dir, tokenizer) = changed(|json| {
            json["padding"] = serde_json::json!({
                "strategy": { "Fixed": 1u64 << 40 }, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "<|endoftext|>"
            });
            json["truncation"] = serde_json::json!({
                "max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
            });
        });
        assert_eq!(tokenizer.unwrap().encode("The king had a dragon").unwrap(), expected);
    }
}
