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

use super::talk::{Ended, Piece};
use page_by_page::decode::scoring::Likely;
use page_by_page::model::tokenizer::Tokenizer;

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
    /// Ids of the prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Whether ids are asked for.
    pub with_ids: bool,
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
            let shown = self.shown(text, &piece);
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

    /// What a stream begins with: the role in a chat, the prompt if it is to be echoed. One that is scored comes with its scores.
    pub fn first_chunk(&self, text: usize) -> Option<Value> {
        let begins = if self.is_scored() { "" } else { self.begins(text) };
        if self.kind == Kind::Completion && begins.is_empty() && !self.with_ids {
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
            Kind::Completion if piece.scores.is_some() => choice.insert("text".into(), self.shown(text, piece).into()),
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
        let is_told = piece.scores.is_some() || !piece.tokens.is_empty() || piece.end.is_some();
        let logprobs = (self.with_logprobs && is_told).then(|| self.logprobs(text, piece));
        choice.insert("logprobs".into(), logprobs.into());
        if self.with_ids {
            let ids: Vec<u32> = piece.tokens.iter().map(|token| token.id).collect();
            choice.insert("token_ids".into(), ids.into());
        }
        choice
    }

    fn add_prompt_ids(&self, text: usize, choice: &mut Map<String, Value>) {
        if let Some(ids) = self.prompts.get(text / self.n).filter(|_| self.with_ids) {
            choice.insert("prompt_token_ids".into(), ids.clone().into());
        }
    }

    /// What a text begins with, if that is shown.
    fn begins(&self, text: usize) -> &str {
        self.echo.get(text / self.n).map_or("", String::as_str)
    }

    /// Whether the tokens of the prompts are told, too.
    fn is_scored(&self) -> bool {
        self.with_logprobs && !self.echo.is_empty()
    }

    /// A text with its beginning. Where that is scored, it is shown if it has its scores: a text may have been ended before.
    fn shown(&self, text: usize, piece: &Piece) -> String {
        let begins = if self.is_scored() && piece.scores.is_none() { "" } else { self.begins(text) };
        begins.to_string() + &piece.text
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

    fn logprobs(&self, text: usize, piece: &Piece) -> Value {
        let tokens = piece.tokens.iter().chain(&piece.end);
        let likely = tokens.filter_map(|token| Some((token, token.likely.as_ref()?)));
        match self.kind {
            Kind::Completion => {
                let before = self.begins(text).chars().count();
                let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                let mut tell = |id: u32, offset: usize, likely: Option<&Likely>| {
                    texts.push(self.text_of(id));
                    logprobs.push(likely.map(|likely| likely.logprob));
                    tops.push(likely.map(|likely| self.told_top(id, likely)));
                    offsets.push(offset);
                };
                if let Some(scores) = &piece.scores {
                    let prompt = self.prompts.get(text / self.n).map_or(&[][..], Vec::as_slice);
                    // The first token follows nothing.
                    let scores = [None].into_iter().chain(scores.iter().map(Some));
                    for ((id, offset), likely) in prompt.iter().zip(self.offsets(prompt)).zip(scores) {
                        tell(*id, offset.min(before), likely);
                    }
                }
                likely.for_each(|(token, likely)| tell(token.id, before + token.offset, Some(likely)));
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

    /// The likeliest tokens, with the token itself, also where it is none of them.
    fn told_top(&self, id: u32, likely: &Likely) -> Value {
        let top = likely.top.iter().copied().rev().chain([(id, likely.logprob)]);
        top.map(|(id, logprob)| (self.text_of(id), json!(logprob))).collect::<Map<_, _>>().into()
    }

    /// For each token of a prompt the characters before it, as far as they are whole.
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

    use super::super::talk::Token;
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
        completion.with_logprobs = true;
        let whole = completion.whole(vec![(piece(&completion, "The king"), END)]);
        let told = &whole["choices"][0]["logprobs"];
        assert_eq!(told["tokens"], json!(["The", " king"]));
        assert_eq!(told["text_offset"], json!([0, 3]));
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
    fn a_scored_prompt_is_told_with_what_follows_it() {
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
        let told = &choice["logprobs"];
        assert_eq!(&chunk["choices"][0]["logprobs"], told);
        let (first, last) = (&told["token_logprobs"][0], &told["token_logprobs"][n_prompt + 1]);
        assert_eq!((first, &told["top_logprobs"][0], last), (&Value::Null, &Value::Null, &json!(-0.1_f32)));
        assert_eq!((&told["tokens"][0], &told["tokens"][n_prompt]), (&json!("The"), &json!(" king")));
        let offsets = told["text_offset"].as_array().unwrap();
        assert_eq!(
            (&offsets[0], &offsets[1], &offsets[n_prompt..]),
            (&json!(0), &json!(3), &[json!(5), json!(10)][..])
        );
        for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(told[key].as_array().unwrap().len(), n_prompt + 2, "{key}");
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
