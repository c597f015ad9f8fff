//! The answer to a client: the output of its sequences as JSON, whole or as a stream of chunks.
//!
//! A stream is one of [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html), each a JSON
//! object:
//!
//! ```text
//!   data: {"object": "text_completion", "choices": [{"index": 0, "text": " there lived", "finish_reason": null, …}], …}
//!   data: {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length", …}], …}
//!   data: {"choices": [], "usage": {"prompt_tokens": 4, …}, …}                  if the request asks for it
//!   data: [DONE]
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Poll, ready};

use axum::response::sse::Event as SentEvent;
use futures_util::stream::{self, Stream};
use page_by_page::generation::logprobs::TokenLogprobs;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::OutputDelta;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_blocking;

use crate::api_error::ApiError;
use crate::http::TokenizedRequest;
use crate::messages::{Event, Output, OutputEnd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Completion,
    Chat,
}

impl Endpoint {
    /// The field of the request with its prompts.
    pub fn prompt(self) -> &'static str {
        match self {
            Endpoint::Completion => "prompt",
            Endpoint::Chat => "messages",
        }
    }
}

pub struct Answer {
    pub endpoint: Endpoint,
    pub id: String,
    /// Seconds since 1970.
    pub created: i64,
    pub model: String,
    pub tokenizer: Arc<Tokenizer>,
    pub request: TokenizedRequest,
}

impl Answer {
    /// The whole answer, once all of its sequences are finished.
    pub async fn whole(self, mut events: UnboundedReceiver<Event>, n_sequences: usize) -> Result<String, ApiError> {
        let mut outputs: Vec<(OutputDelta, Option<OutputEnd>)> = (0..n_sequences).map(|_| Default::default()).collect();
        let mut open = n_sequences;
        while open > 0 {
            let Output { index, delta, end } = events.recv().await.ok_or_else(ApiError::engine_gone)??;
            outputs[index].0.append(delta);
            outputs[index].1 = end;
            open -= usize::from(end.is_some());
        }
        // A long prompt with its scores is slow to serialize.
        let outputs: Vec<_> = outputs.into_iter().filter_map(|(delta, end)| Some((delta, end?))).collect();
        blocking(move || Ok(self.object_of(&outputs).to_string())).await
    }

    /// The answer as a stream of chunks. `events`: those of its sequences.
    pub fn stream(
        self,
        mut events: UnboundedReceiver<Event>,
        n_sequences: usize,
    ) -> impl Stream<Item = Result<SentEvent, Infallible>> {
        let first = (0..n_sequences).filter_map(|index| self.first_chunk(index));
        let mut chunks: VecDeque<String> = first.map(|chunk| chunk.to_string()).collect();
        let mut ends = vec![None; n_sequences];
        let mut is_done = n_sequences == 0;
        stream::poll_fn(move |context| {
            if chunks.is_empty() && !is_done {
                let event = ready!(events.poll_recv(context)).unwrap_or(Err(ApiError::engine_gone()));
                is_done = self.add_chunks(event, &mut ends, &mut chunks);
                if is_done {
                    events.close();
                }
            }
            Poll::Ready(chunks.pop_front().map(|data| Ok(SentEvent::default().data(data))))
        })
    }

    /// Adds the chunks of an event. Returns whether it is the last one.
    fn add_chunks(&self, event: Event, ends: &mut [Option<OutputEnd>], chunks: &mut VecDeque<String>) -> bool {
        let Output { index, delta, end } = match event {
            Ok(output) => output,
            // The status has been sent long ago, so the failure is the last chunk.
            Err(refusal) => {
                chunks.push_back(refusal.object().to_string());
                return true;
            }
        };
        ends[index] = end;
        chunks.push_back(self.next_chunk(index, &delta, end).to_string());
        let Some(ends) = ends.iter().copied().collect::<Option<Vec<OutputEnd>>>() else { return false };
        if self.request.options.include_usage {
            chunks.push_back(self.object(true, Vec::new(), Some(self.usage(&ends))).to_string());
        }
        chunks.push_back("[DONE]".into());
        true
    }

    /// The object of the whole answer. `outputs`: of each sequence, in order.
    fn object_of(&self, outputs: &[(OutputDelta, OutputEnd)]) -> Value {
        let choices = outputs.iter().enumerate().map(|(index, (delta, end))| {
            let output = self.output(index, delta);
            let content = match self.endpoint {
                Endpoint::Completion => ("text", json!(output)),
                Endpoint::Chat => ("message", json!({ "role": "assistant", "content": output })),
            };
            self.with_prompt_ids(index, self.choice(index, delta, Some(*end), content))
        });
        let ends: Vec<OutputEnd> = outputs.iter().map(|(_, end)| *end).collect();
        self.object(false, choices.collect(), Some(self.usage(&ends)))
    }

    /// The first chunk of a stream: the role in a chat, or the echoed prompt, unless that comes later with its scores.
    fn first_chunk(&self, index: usize) -> Option<Value> {
        let begins = if self.is_scored() { "" } else { self.echoed(index) };
        if self.endpoint == Endpoint::Completion && begins.is_empty() && !self.request.options.return_token_ids {
            return None;
        }
        let content = match self.endpoint {
            Endpoint::Completion => ("text", json!(begins)),
            Endpoint::Chat => ("delta", json!({ "role": "assistant", "content": "" })),
        };
        Some(self.chunk(self.with_prompt_ids(index, self.choice(index, &OutputDelta::default(), None, content))))
    }

    fn next_chunk(&self, index: usize, delta: &OutputDelta, end: Option<OutputEnd>) -> Value {
        let content = match self.endpoint {
            Endpoint::Completion if delta.prompt_logprobs.is_some() => ("text", json!(self.output(index, delta))),
            Endpoint::Completion => ("text", json!(delta.text)),
            Endpoint::Chat if delta.text.is_empty() => ("delta", json!({})),
            Endpoint::Chat => ("delta", json!({ "content": delta.text })),
        };
        self.chunk(self.choice(index, delta, end, content))
    }

    fn chunk(&self, choice: Value) -> Value {
        self.object(true, vec![choice], self.request.options.include_usage.then_some(Value::Null))
    }

    fn object(&self, is_chunk: bool, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let object = match (self.endpoint, is_chunk) {
            (Endpoint::Completion, _) => "text_completion",
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
        };
        let mut object = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
            "system_fingerprint": concat!("page-by-page-", env!("CARGO_PKG_VERSION")),
        });
        if let Some(usage) = usage {
            object["usage"] = usage;
        }
        object
    }

    /// One sequence in an answer or a chunk. `shown`: what is shown of it, after the field for that.
    fn choice(&self, index: usize, delta: &OutputDelta, end: Option<OutputEnd>, shown: (&str, Value)) -> Value {
        let (reason, (field, content)) = (end.map(|end| end.reason.as_str()), shown);
        let has_tokens = delta.prompt_logprobs.is_some() || !delta.tokens.is_empty() || delta.end_token.is_some();
        let logprobs = (self.request.options.logprobs.is_some() && has_tokens).then(|| self.logprobs(index, delta));
        let mut choice = json!({ "index": index, "finish_reason": reason, "logprobs": logprobs });
        choice[field] = content;
        if self.request.options.return_token_ids {
            choice["token_ids"] = delta.tokens.iter().map(|token| token.id).collect();
        }
        choice
    }

    fn with_prompt_ids(&self, index: usize, mut choice: Value) -> Value {
        if self.request.options.return_token_ids {
            choice["prompt_token_ids"] = json!(self.request.prompts[index / self.request.options.n]);
        }
        choice
    }

    /// The echoed prompt of a sequence, empty without `echo`.
    fn echoed(&self, index: usize) -> &str {
        self.request.echo.get(index / self.request.options.n).map_or("", String::as_str)
    }

    fn is_scored(&self) -> bool {
        self.request.options.logprobs.is_some() && !self.request.echo.is_empty()
    }

    /// The output after its echoed prompt. A scored prompt is left out without scores, as when a sequence is cancelled.
    fn output(&self, index: usize, delta: &OutputDelta) -> String {
        let begins = if self.is_scored() && delta.prompt_logprobs.is_none() { "" } else { self.echoed(index) };
        begins.to_string() + &delta.text
    }

    fn usage(&self, ends: &[OutputEnd]) -> Value {
        let prompt_tokens: usize = self.request.prompts.iter().map(Vec::len).sum();
        let new_tokens: usize = ends.iter().map(|end| end.new_tokens).sum();
        // Counted for the first sequence of each prompt: the others reuse what that one computed.
        let cached: usize = ends.iter().step_by(self.request.options.n).map(|end| end.cached).sum();
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    fn logprobs(&self, index: usize, delta: &OutputDelta) -> Value {
        let tokens = delta.tokens.iter().chain(&delta.end_token);
        let reported = tokens.filter_map(|token| Some((token, token.logprobs.as_ref()?)));
        match self.endpoint {
            Endpoint::Completion => {
                let before = self.echoed(index).chars().count();
                let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                let mut add = |id: u32, offset: usize, found: Option<&TokenLogprobs>| {
                    texts.push(self.text_of(id));
                    logprobs.push(found.map(|found| found.logprob));
                    tops.push(found.map(|found| self.top_of(id, found)));
                    offsets.push(offset);
                };
                if let Some(scores) = &delta.prompt_logprobs {
                    let prompt = &self.request.prompts[index / self.request.options.n];
                    // The first token has no score: nothing comes before it.
                    let scores = [None].into_iter().chain(scores.iter().map(Some));
                    for ((id, offset), score) in prompt.iter().zip(self.offsets(prompt)).zip(scores) {
                        add(*id, offset.min(before), score);
                    }
                }
                reported.for_each(|(token, found)| add(token.id, before + token.offset, Some(found)));
                json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
            }
            Endpoint::Chat => {
                let content = reported.map(|(token, TokenLogprobs { logprob, top })| {
                    let mut one = self.logprob_of(token.id, *logprob);
                    one["top_logprobs"] = top.iter().map(|(id, logprob)| self.logprob_of(*id, *logprob)).collect();
                    one
                });
                json!({ "content": content.collect::<Vec<_>>() })
            }
        }
    }

    /// The likeliest tokens and the token itself, even where it is not among them.
    fn top_of(&self, id: u32, logprobs: &TokenLogprobs) -> Value {
        let top = logprobs.top.iter().copied().rev().chain([(id, logprobs.logprob)]);
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

/// Runs slow work on a thread for blocking work, so that no client has to wait for it.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(ApiError::failed("the request could not be read or answered; the server's log says why"))
    })
}
