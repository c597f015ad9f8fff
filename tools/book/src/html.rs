//! HTML as a list of tokens with line numbers, read by the tokenizer that mdBook itself uses.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer};

pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
}

impl Element {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The attribute's value, unless it is missing or blank.
    pub fn says(&self, name: &str) -> Option<&str> {
        self.attribute(name).filter(|value| !value.trim().is_empty())
    }
}

pub enum Piece {
    Open(Element),
    Close(String),
    Text(String),
}

/// The pieces of `html`, each with the line (counted from 1) on which it ends.
pub fn pieces(html: &str) -> Vec<(usize, Piece)> {
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(html));
    let tokenizer = Tokenizer::new(Collector::default(), Default::default());
    let _ = tokenizer.feed(&input);
    tokenizer.end();
    tokenizer.sink.pieces.take()
}

#[derive(Default)]
struct Collector {
    pieces: RefCell<Vec<(usize, Piece)>>,
}

impl TokenSink for Collector {
    type Handle = ();

    fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<()> {
        let mut then = TokenSinkResult::Continue;
        let piece = match token {
            Token::TagToken(tag) if tag.kind == TagKind::EndTag => Piece::Close(tag.name.to_string()),
            Token::TagToken(tag) => {
                // Inside these, `<` opens nothing.
                match &*tag.name {
                    "script" => then = TokenSinkResult::RawData(RawKind::ScriptData),
                    "style" => then = TokenSinkResult::RawData(RawKind::Rawtext),
                    _ => {}
                }
                let attributes = tag.attrs.into_iter();
                let attributes = attributes.map(|it| (it.name.local.to_string(), it.value.to_string())).collect();
                Piece::Open(Element { name: tag.name.to_string(), attributes })
            }
            Token::CharacterTokens(text) => Piece::Text(text.to_string()),
            _ => return then,
        };
        self.pieces.borrow_mut().push((line as usize, piece));
        then
    }
}
