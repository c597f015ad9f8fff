//! What a client gets: the texts of its request as JSON, in one piece or in the pieces of a stream.
//!
//! A stream is one of [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html), each a JSON object:
//!
//! ```text
//!   data: {"object": "text_completion", "choices": [{"index": 0, "text": " there lived", "finish_reason": null, …}], …}
//!   data: {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length", …}], …}
//!   data: {"choices": [], "usage": {"prompt_tokens": 4, …}, …}                  if the request asks for it
//!   data: [DONE]
//! ```

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::talk::{Ended, Likely, Piece, Token};
use crate::tokenizer::Tokenizer;

/// What kind of request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

impl Kind {
    /// The field of the request that its prompts come from.
    pub fn prompt(self) -> &'static str {
        match self {
            Kind::Completion => "prompt",
            Kind::Chat => "messages",
        }
    }
}

/// Writes the answer to a request.
pub struct Answer {
    /// What kind of request it was.
    pub kind: Kind,
    /// Names the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Says what tokens stand for.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens of the prompts, each counted once.
    pub prompt_tokens: usize,
    /// Texts of each prompt.
    pub n: usize,
    /// For each prompt what a text of it begins with; empty without `echo`.
    pub echo: Vec<String>,
    /// Ids of the prompts, where ids are asked for.
    pub prompt_ids: Option<Vec<Vec<u32>>>,
    /// Whether logarithms of probabilities are asked for.
    pub with_logprobs: bool,
    /// Whether a stream ends with the costs.
    pub include_usage: bool,
}

impl Answer {
    /// The whole answer. `texts`: each as it was written, in order.
    pub fn whole(&self, texts: Vec<(Piece, Ended)>) -> Value {
        let ends: Vec<Ended> = texts.iter().map(|(_, end)| *end).collect();
        let choices = texts.into_iter().enumerate().map(|(text, (piece, end))| {
            let mut choice = self.choice(text, &piece, Some(end.reason));
            let shown = self.begins(text).to_string() + &piece.text;
            match self.kind {
                Kind::Completion => choice.insert("text".into(), shown.into()),
                Kind::Chat => choice.insert("message".into(), json!({ "role": "assistant", "content": shown })),
            };
            self.add_prompt_ids(text, &mut choice);
            Value::Object(choice)
        });
        let mut object = self.object(false, choices.collect());
        object["usage"] = self.usage(&ends);
        object
    }

    /// What a stream begins with: the role in a chat, the prompt if it is to be echoed.
    pub fn first_chunk(&self, text: usize) -> Option<Value> {
        let begins = self.begins(text);
        if self.kind == Kind::Completion && begins.is_empty() && self.prompt_ids.is_none() {
            return None;
        }
        let mut choice = self.choice(text, &Piece::default(), None);
        match self.kind {
            Kind::Completion => choice.insert("text".into(), begins.into()),
            Kind::Chat => choice.insert("delta".into(), json!({ "role": "assistant", "content": "" })),
        };
        self.add_prompt_ids(text, &mut choice);
        Some(self.chunk(vec![choice.into()]))
    }

    /// What comes next.
    pub fn next_chunk(&self, text: usize, piece: &Piece, end: Option<Ended>) -> Value {
        let mut choice = self.choice(text, piece, end.map(|end| end.reason));
        match self.kind {
            Kind::Completion => choice.insert("text".into(), piece.text.as_str().into()),
            Kind::Chat if piece.text.is_empty() => choice.insert("delta".into(), json!({})),
            Kind::Chat => choice.insert("delta".into(), json!({ "content": piece.text })),
        };
        self.chunk(vec![choice.into()])
    }

    /// The costs, if they are asked for.
    pub fn usage_chunk(&self, ends: &[Ended]) -> Option<Value> {
        let mut chunk = self.chunk(Vec::new());
        chunk["usage"] = self.usage(ends);
        self.include_usage.then_some(chunk)
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut object = self.object(true, choices);
        if self.include_usage {
            object["usage"] = Value::Null;
        }
        object
    }

    fn object(&self, is_chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.kind, is_chunk) {
            (Kind::Completion, _) => "text_completion",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
            "system_fingerprint": concat!("page-by-page-", env!("CARGO_PKG_VERSION")),
        })
    }

    fn choice(&self, text: usize, piece: &Piece, reason: Option<&str>) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".into(), text.into());
        choice.insert("finish_reason".into(), reason.into());
        let logprobs = (self.with_logprobs && !piece.tokens.is_empty()).then(|| self.logprobs(text, &piece.tokens));
        choice.insert("logprobs".into(), logprobs.into());
        if self.prompt_ids.is_some() {
            let ids: Vec<u32> = piece.tokens.iter().map(|token| token.id).collect();
            choice.insert("token_ids".into(), ids.into());
        }
        choice
    }

    fn add_prompt_ids(&self, text: usize, choice: &mut Map<String, Value>) {
        if let Some(ids) = self.prompt_ids.as_ref().and_then(|ids| ids.get(text / self.n)) {
            choice.insert("prompt_token_ids".into(), ids.clone().into());
        }
    }

    /// What a text begins with, if that is shown.
    fn begins(&self, text: usize) -> &str {
        self.echo.get(text / self.n).map_or("", String::as_str)
    }

    fn usage(&self, ends: &[Ended]) -> Value {
        let new_tokens: usize = ends.iter().map(|end| end.new_tokens).sum();
        // Of each prompt as its first text has found it: the others find what that one has computed.
        let cached: usize = ends.iter().step_by(self.n).map(|end| end.cached).sum();
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": self.prompt_tokens + new_tokens,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    fn logprobs(&self, text: usize, tokens: &[Token]) -> Value {
        let likely = tokens.iter().filter_map(|token| Some((token, token.likely.as_ref()?)));
        match self.kind {
            Kind::Completion => {
                let before = self.begins(text).chars().count();
                let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                for (token, Likely { logprob, top }) in likely {
                    texts.push(self.text_of(token.id));
                    logprobs.push(*logprob);
                    // With the token itself, also where it is none of the likeliest.
                    let top = top.iter().copied().rev().chain([(token.id, *logprob)]);
                    tops.push(top.map(|(id, logprob)| (self.text_of(id), json!(logprob))).collect::<Map<_, _>>());
                    offsets.push(before + token.offset);
                }
                json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
            }
            Kind::Chat => {
                let content = likely.map(|(token, Likely { logprob, top })| {
                    let mut told = self.told(token.id, *logprob);
                    told["top_logprobs"] = top.iter().map(|(id, logprob)| self.told(*id, *logprob)).collect();
                    told
                });
                json!({ "content": content.collect::<Vec<_>>() })
            }
        }
    }

    fn told(&self, id: u32, logprob: f32) -> Value {
        let text = self.text_of(id);
        // Of a part of a character the bytes are not known.
        let bytes = (!text.contains('\u{FFFD}')).then(|| text.as_bytes().to_vec());
        json!({ "token": text, "logprob": logprob, "bytes": bytes })
    }

    fn text_of(&self, id: u32) -> String {
        self.tokenizer.token(id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn answer(kind: Kind) -> Answer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/storyteller");
        Answer {
            kind,
            id: "cmpl-1".into(),
            created: 7,
            model: "storyteller".into(),
            tokenizer: Arc::new(Tokenizer::open(&dir).unwrap()),
            prompt_tokens: 9,
            n: 2,
            echo: Vec::new(),
            prompt_ids: None,
            with_logprobs: false,
            include_usage: false,
        }
    }

    fn piece(answer: &Answer, text: &str) -> Piece {
        let mut offset = 0;
        let tokens = answer.tokenizer.encode_as_it_is(text).unwrap().into_iter().map(|id| {
            let likely = Some(Likely { logprob: -0.5, top: vec![(id, -0.5), (0, -1.5)] });
            let token = Token { id, offset, likely };
            offset += answer.text_of(id).chars().count();
            token
        });
        Piece { text: text.into(), tokens: tokens.collect() }
    }

    const END: Ended = Ended { reason: "stop", new_tokens: 3, cached: 4 };

    #[test]
    fn a_whole_answer_has_all_texts_and_their_costs() {
        let mut completion = answer(Kind::Completion);
        completion.echo = vec!["One day".into(), "The king".into()];
        let texts = ["a", "b", "c", "d"].map(|text| (piece(&completion, text), END));
        let whole = completion.whole(texts.into());
        let shown: Vec<&str> =
            whole["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(shown, ["One daya", "One dayb", "The kingc", "The kingd"]);
        assert_eq!((&whole["object"], &whole["choices"][3]["index"]), (&json!("text_completion"), &json!(3)));
        assert_eq!(
            (&whole["choices"][0]["finish_reason"], &whole["choices"][0]["logprobs"]),
            (&json!("stop"), &Value::Null)
        );
        let usage = json!({
            "prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21, "prompt_tokens_details": { "cached_tokens": 8 },
        });
        assert_eq!(whole["usage"], usage);
        let chat = answer(Kind::Chat);
        let whole = chat.whole(vec![(piece(&chat, "a"), END)]);
        assert_eq!(whole["object"], "chat.completion");
        assert_eq!(whole["choices"][0]["message"], json!({ "role": "assistant", "content": "a" }));
    }

    #[test]
    fn logprobs_are_told_as_each_kind_has_them() {
        let mut completion = answer(Kind::Completion);
        (completion.with_logprobs, completion.echo) = (true, vec!["é ".into()]);
        let whole = completion.whole(vec![(piece(&completion, "The king"), END)]);
        let told = &whole["choices"][0]["logprobs"];
        assert_eq!(told["tokens"], json!(["The", " king"]));
        assert_eq!(told["text_offset"], json!([2, 5]));
        assert_eq!(told["token_logprobs"], json!([-0.5, -0.5]));
        assert_eq!(told["top_logprobs"][1], json!({ " king": -0.5, "<|endoftext|>": -1.5 }));
        let mut chat = answer(Kind::Chat);
        chat.with_logprobs = true;
        let whole = chat.whole(vec![(piece(&chat, "The"), END)]);
        let token = &whole["choices"][0]["logprobs"]["content"][0];
        assert_eq!((&token["token"], &token["bytes"]), (&json!("The"), &json!([84, 104, 101])));
        assert_eq!(token["top_logprobs"][1]["token"], "<|endoftext|>");
    }

    #[test]
    fn a_stream_says_in_pieces_what_the_whole_answer_says() {
        let mut completion = answer(Kind::Completion);
        assert_eq!(completion.first_chunk(0), None);
        assert_eq!(completion.usage_chunk(&[END]), None);
        (completion.include_usage, completion.echo) = (true, vec!["One day".into()]);
        assert_eq!(completion.first_chunk(1).unwrap()["choices"][0]["text"], "One day");
        let chunk = completion.next_chunk(1, &piece(&completion, "a"), None);
        assert_eq!((&chunk["choices"][0]["text"], &chunk["choices"][0]["index"]), (&json!("a"), &json!(1)));
        assert_eq!((&chunk["usage"], &chunk["choices"][0]["finish_reason"]), (&Value::Null, &Value::Null));
        let usage = completion.usage_chunk(&[END, END]).unwrap();
        assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(6)));
        let chat = answer(Kind::Chat);
        let delta = |chunk: Value| (chunk["object"].clone(), chunk["choices"][0]["delta"].clone());
        let chunk = json!("chat.completion.chunk");
        assert_eq!(delta(chat.first_chunk(0).unwrap()), (chunk.clone(), json!({ "role": "assistant", "content": "" })));
        assert_eq!(delta(chat.next_chunk(0, &piece(&chat, "a"), None)), (chunk.clone(), json!({ "content": "a" })));
        assert_eq!(delta(chat.next_chunk(0, &Piece::default(), Some(END))), (chunk, json!({})));
    }
}
