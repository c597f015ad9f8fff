//! The answer to a client: the output of its sequences as JSON, whole or as a stream of chunks.
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

use super::messages::{Finished, Piece};
use page_by_page::decode::scoring::Likely;
use page_by_page::model::tokenizer::Tokenizer;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

impl Kind {
    /// The field of the request with its prompts.
    pub fn prompt(self) -> &'static str {
        match self {
            Kind::Completion => "prompt",
            Kind::Chat => "messages",
        }
    }
}

/// Builds the answer to a request.
pub struct Answer {
    /// The kind of request.
    pub kind: Kind,
    /// The id of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// For the text of tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens of the prompts, each counted once.
    pub prompt_tokens: usize,
    /// Sequences of each prompt.
    pub n: usize,
    /// The prompts as text; empty without `echo`.
    pub echo: Vec<String>,
    /// The prompts as tokens.
    pub prompts: Vec<Vec<u32>>,
    /// Whether ids are asked for.
    pub with_ids: bool,
    /// Whether log probabilities are asked for.
    pub with_logprobs: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
}

impl Answer {
    /// The whole answer. `outputs`: of each sequence, in order.
    pub fn whole(&self, outputs: Vec<(Piece, Finished)>) -> Value {
        let ends: Vec<Finished> = outputs.iter().map(|(_, end)| *end).collect();
        let choices = outputs.into_iter().enumerate().map(|(index, (piece, end))| {
            let mut choice = self.choice(index, &piece, Some(end.reason));
            let shown = self.output(index, &piece);
            match self.kind {
                Kind::Completion => choice.insert("text".into(), shown.into()),
                Kind::Chat => choice.insert("message".into(), json!({ "role": "assistant", "content": shown })),
            };
            self.add_prompt_ids(index, &mut choice);
            Value::Object(choice)
        });
        let mut object = self.object(false, choices.collect());
        object["usage"] = self.usage(&ends);
        object
    }

    /// The first chunk of a stream: the role in a chat, or the echoed prompt. A scored prompt comes later, with its scores.
    pub fn first_chunk(&self, index: usize) -> Option<Value> {
        let begins = if self.is_scored() { "" } else { self.echoed(index) };
        if self.kind == Kind::Completion && begins.is_empty() && !self.with_ids {
            return None;
        }
        let mut choice = self.choice(index, &Piece::default(), None);
        match self.kind {
            Kind::Completion => choice.insert("text".into(), begins.into()),
            Kind::Chat => choice.insert("delta".into(), json!({ "role": "assistant", "content": "" })),
        };
        self.add_prompt_ids(index, &mut choice);
        Some(self.chunk(vec![choice.into()]))
    }

    /// The next chunk.
    pub fn next_chunk(&self, index: usize, piece: &Piece, end: Option<Finished>) -> Value {
        let mut choice = self.choice(index, piece, end.map(|end| end.reason));
        match self.kind {
            Kind::Completion if piece.scores.is_some() => {
                choice.insert("text".into(), self.output(index, piece).into())
            }
            Kind::Completion => choice.insert("text".into(), piece.text.as_str().into()),
            Kind::Chat if piece.text.is_empty() => choice.insert("delta".into(), json!({})),
            Kind::Chat => choice.insert("delta".into(), json!({ "content": piece.text })),
        };
        self.chunk(vec![choice.into()])
    }

    /// The usage, if it is asked for.
    pub fn usage_chunk(&self, ends: &[Finished]) -> Option<Value> {
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

    fn choice(&self, index: usize, piece: &Piece, reason: Option<&str>) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".into(), index.into());
        choice.insert("finish_reason".into(), reason.into());
        let has_tokens = piece.scores.is_some() || !piece.tokens.is_empty() || piece.end.is_some();
        let logprobs = (self.with_logprobs && has_tokens).then(|| self.logprobs(index, piece));
        choice.insert("logprobs".into(), logprobs.into());
        if self.with_ids {
            let ids: Vec<u32> = piece.tokens.iter().map(|token| token.id).collect();
            choice.insert("token_ids".into(), ids.into());
        }
        choice
    }

    fn add_prompt_ids(&self, index: usize, choice: &mut Map<String, Value>) {
        if let Some(ids) = self.prompts.get(index / self.n).filter(|_| self.with_ids) {
            choice.insert("prompt_token_ids".into(), ids.clone().into());
        }
    }

    /// The echoed prompt of a sequence, empty without `echo`.
    fn echoed(&self, index: usize) -> &str {
        self.echo.get(index / self.n).map_or("", String::as_str)
    }

    /// Whether the tokens of the prompts are scored.
    fn is_scored(&self) -> bool {
        self.with_logprobs && !self.echo.is_empty()
    }

    /// The output with its echoed prompt. A scored prompt is shown only with its scores, which a cancelled sequence may lack.
    fn output(&self, index: usize, piece: &Piece) -> String {
        let begins = if self.is_scored() && piece.scores.is_none() { "" } else { self.echoed(index) };
        begins.to_string() + &piece.text
    }

    fn usage(&self, ends: &[Finished]) -> Value {
        let new_tokens: usize = ends.iter().map(|end| end.new_tokens).sum();
        // Counted for the first sequence of each prompt: the others reuse what that one computed.
        let cached: usize = ends.iter().step_by(self.n).map(|end| end.cached).sum();
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": self.prompt_tokens + new_tokens,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    fn logprobs(&self, index: usize, piece: &Piece) -> Value {
        let tokens = piece.tokens.iter().chain(&piece.end);
        let likely = tokens.filter_map(|token| Some((token, token.likely.as_ref()?)));
        match self.kind {
            Kind::Completion => {
                let before = self.echoed(index).chars().count();
                let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                let mut add = |id: u32, offset: usize, likely: Option<&Likely>| {
                    texts.push(self.text_of(id));
                    logprobs.push(likely.map(|likely| likely.logprob));
                    tops.push(likely.map(|likely| self.top_of(id, likely)));
                    offsets.push(offset);
                };
                if let Some(scores) = &piece.scores {
                    let prompt = self.prompts.get(index / self.n).map_or(&[][..], Vec::as_slice);
                    // The first token has no score: nothing comes before it.
                    let scores = [None].into_iter().chain(scores.iter().map(Some));
                    for ((id, offset), likely) in prompt.iter().zip(self.offsets(prompt)).zip(scores) {
                        add(*id, offset.min(before), likely);
                    }
                }
                likely.for_each(|(token, likely)| add(token.id, before + token.offset, Some(likely)));
                json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
            }
            Kind::Chat => {
                let content = likely.map(|(token, Likely { logprob, top })| {
                    let mut one = self.logprob_of(token.id, *logprob);
                    one["top_logprobs"] = top.iter().map(|(id, logprob)| self.logprob_of(*id, *logprob)).collect();
                    one
                });
                json!({ "content": content.collect::<Vec<_>>() })
            }
        }
    }

    /// The likeliest tokens and the token itself, even where it is not among them.
    fn top_of(&self, id: u32, likely: &Likely) -> Value {
        let top = likely.top.iter().copied().rev().chain([(id, likely.logprob)]);
        top.map(|(id, logprob)| (self.text_of(id), json!(logprob))).collect::<Map<_, _>>().into()
    }

    /// For each token of a prompt, the number of whole characters before it.
    fn offsets(&self, prompt: &[u32]) -> Vec<usize> {
        let mut stream = self.tokenizer.stream();
        let mut chars = 0;
        let offset = |id: &u32| {
            let new = stream.push(*id).map_or(0, |text| text.chars().count());
            chars += new;
            chars - new
        };
        prompt.iter().map(offset).collect()
    }

    fn logprob_of(&self, id: u32, logprob: f32) -> Value {
        let text = self.text_of(id);
        // The bytes of a part of a character are unknown.
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

    use super::super::messages::Token;
    use super::*;

    fn answer(kind: Kind) -> Answer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller");
        Answer {
            kind,
            id: "cmpl-1".into(),
            created: 7,
            model: "storyteller".into(),
            tokenizer: Arc::new(Tokenizer::open(&dir).unwrap()),
            prompt_tokens: 9,
            n: 2,
            echo: Vec::new(),
            prompts: Vec::new(),
            with_ids: false,
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
        Piece { text: text.into(), tokens: tokens.collect(), ..Piece::default() }
    }

    const END: Finished = Finished { reason: "stop", new_tokens: 3, cached: 4 };

    #[test]
    fn a_whole_answer_has_all_outputs_and_their_usage() {
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
    fn logprobs_are_reported_as_each_kind_has_them() {
        let mut completion = answer(Kind::Completion);
        completion.with_logprobs = true;
        let whole = completion.whole(vec![(piece(&completion, "The king"), END)]);
        let logprobs = &whole["choices"][0]["logprobs"];
        assert_eq!(logprobs["tokens"], json!(["The", " king"]));
        assert_eq!(logprobs["text_offset"], json!([0, 3]));
        assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5]));
        assert_eq!(logprobs["top_logprobs"][1], json!({ " king": -0.5, "<|endoftext|>": -1.5 }));
        let mut chat = answer(Kind::Chat);
        chat.with_logprobs = true;
        let whole = chat.whole(vec![(piece(&chat, "The"), END)]);
        let token = &whole["choices"][0]["logprobs"]["content"][0];
        assert_eq!((&token["token"], &token["bytes"]), (&json!("The"), &json!([84, 104, 101])));
        assert_eq!(token["top_logprobs"][1]["token"], "<|endoftext|>");
    }

    #[test]
    fn a_scored_prompt_comes_with_what_follows_it() {
        let mut completion = answer(Kind::Completion);
        let prompt = completion.tokenizer.encode_as_it_is("The é").unwrap();
        let n_prompt = prompt.len();
        (completion.with_logprobs, completion.echo) = (true, vec!["The é".into()]);
        let mut whole = piece(&completion, " king");
        whole.scores = Some(prompt[1..].iter().map(|id| Likely { logprob: -2.0, top: vec![(*id, -2.0)] }).collect());
        whole.end = Some(Token { id: 0, offset: 5, likely: Some(Likely { logprob: -0.1, top: vec![] }) });
        completion.prompts = vec![prompt];
        assert_eq!(completion.first_chunk(0), None, "the prompt comes when it has its scores");
        let chunk = completion.next_chunk(0, &whole, Some(END));
        let answer = completion.whole(vec![(whole, END)]);
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &chunk["choices"][0]["text"]), (&json!("The é king"), &json!("The é king")));
        let logprobs = &choice["logprobs"];
        assert_eq!(&chunk["choices"][0]["logprobs"], logprobs);
        let (first, last) = (&logprobs["token_logprobs"][0], &logprobs["token_logprobs"][n_prompt + 1]);
        assert_eq!((first, &logprobs["top_logprobs"][0], last), (&Value::Null, &Value::Null, &json!(-0.1_f32)));
        assert_eq!((&logprobs["tokens"][0], &logprobs["tokens"][n_prompt]), (&json!("The"), &json!(" king")));
        let offsets = logprobs["text_offset"].as_array().unwrap();
        assert_eq!(
            (&offsets[0], &offsets[1], &offsets[n_prompt..]),
            (&json!(0), &json!(3), &[json!(5), json!(10)][..])
        );
        for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[key].as_array().unwrap().len(), n_prompt + 2, "{key}");
        }
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
