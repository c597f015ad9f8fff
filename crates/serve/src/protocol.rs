//! What a request asks for, in OpenAI's protocol: `/v1/completions` and `/v1/chat/completions`.
//!
//! Unknown fields are ignored. A known field with a value that makes no sense is refused by name, and so is one that
//! asks for what this server does not do: an output that looks right and is not would be worse.

use page_by_page::generation::sampler::{SamplingError, SamplingOverrides, SamplingParams};
use page_by_page::serving::StopParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::api_error::ApiError;
use crate::fields::Fields;

/// Sequences of one prompt, at most.
pub const MAX_CHOICES: u64 = 128;
/// Likeliest tokens whose log probabilities are reported, at most.
pub const MAX_LOGPROBS: u64 = 20;
/// Stop strings of a request, at most, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Token ids that end a sequence, at most.
const MAX_STOP_IDS: usize = 256;

/// The fields that both kinds of request have.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationOptions {
    pub model: Option<String>,
    pub n: usize,
    /// Tokens to generate at most, if the client gave a limit.
    pub max_tokens: Option<usize>,
    /// The field that had the limit.
    pub max_tokens_field: &'static str,
    /// How to sample. The first sequence of a prompt has this seed, the next one the next number.
    pub sampling: SamplingParams,
    pub stop_params: StopParams,
    pub stream: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
    /// Report log probabilities: of each token, and of this many of the likeliest.
    pub logprobs: Option<usize>,
    pub return_token_ids: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub prompts: Vec<Prompt>,
    /// Whether the prompt is sent back before the output. With logprobs, its tokens are scored.
    pub echo: bool,
    pub options: GenerationOptions,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages so far, each with a role and its text.
    pub messages: Vec<Value>,
    pub for_template: Map<String, Value>,
    pub options: GenerationOptions,
}

impl Completion {
    /// Reads the body of a request. `defaults`: the model's own sampling, where the request leaves it open.
    pub fn read(body: &[u8], defaults: SamplingOverrides) -> Result<Self, ApiError> {
        let fields = Fields::new(body)?;
        let prompts = prompts(&fields)?;
        let logprobs = fields.whole("logprobs", 0, MAX_LOGPROBS)?;
        let echo = fields.flag("echo")?;
        fields.refuse("suffix", |value| value == "")?;
        fields.refuse("best_of", |value| value.as_u64() == Some(1) || Some(value) == fields.get("n"))?;
        let limit = ("max_tokens", fields.whole("max_tokens", 0, u64::MAX)?);
        Ok(Completion { prompts, echo, options: options(&fields, defaults, limit, logprobs)? })
    }
}

impl Chat {
    /// Reads the body of a request. `defaults`: the model's own sampling, where the request leaves it open.
    pub fn read(body: &[u8], defaults: SamplingOverrides) -> Result<Self, ApiError> {
        let fields = Fields::new(body)?;
        let messages = messages(&fields)?;
        let top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)?;
        let logprobs = fields.flag("logprobs")?;
        if top.is_some() && !logprobs {
            return Err(ApiError::of_field(
                "top_logprobs",
                "top_logprobs is for a request with logprobs: true; add it",
            ));
        }
        fields.refuse("audio", |_| false)?;
        let expected = "an object with variables for the chat template";
        let for_template: Option<_> = fields.read_as("chat_template_kwargs", expected)?;
        // The newer name counts.
        let older = ("max_tokens", fields.whole("max_tokens", 1, u64::MAX)?);
        let newer = ("max_completion_tokens", fields.whole("max_completion_tokens", 1, u64::MAX)?);
        let limit = if newer.1.is_some() { newer } else { older };
        let options = options(&fields, defaults, limit, logprobs.then(|| top.unwrap_or(0)))?;
        Ok(Chat { messages, for_template: for_template.unwrap_or_default(), options })
    }
}

type IsHarmless = fn(&Value) -> bool;

/// Fields of the protocol and of vLLM that change the output and are not supported, and which values change nothing.
const UNSUPPORTED: [(&str, IsHarmless); 9] = [
    ("presence_penalty frequency_penalty min_p", |value| value.as_f64() == Some(0.0)),
    ("repetition_penalty", |value| value.as_f64() == Some(1.0)),
    ("use_beam_search include_stop_str_in_output continue_final_message", |value| value == false),
    ("add_special_tokens add_generation_prompt skip_special_tokens", |value| value == true),
    ("tools functions bad_words logits_processors", |value| value.as_array().is_some_and(Vec::is_empty)),
    ("tool_choice", |value| value == "none" || value == "auto"),
    ("logit_bias", |value| value.as_object().is_some_and(Map::is_empty)),
    ("response_format", |value| value["type"] == "text"),
    (
        "prompt_logprobs chat_template structured_outputs guided_json guided_regex guided_choice guided_grammar \
         allowed_token_ids truncate_prompt_tokens",
        |_| false,
    ),
];

fn options(
    fields: &Fields,
    defaults: SamplingOverrides,
    (max_tokens_field, max_tokens): (&'static str, Option<usize>),
    logprobs: Option<usize>,
) -> Result<GenerationOptions, ApiError> {
    for (names, is_harmless) in UNSUPPORTED {
        names.split(' ').try_for_each(|name| fields.refuse(name, is_harmless))?;
    }
    let stream = fields.flag("stream")?;
    let expected = "an object, and its include_usage true or false";
    let include_usage =
        fields.take("stream_options", expected, |options| match options.as_object()?.get("include_usage") {
            None | Some(Value::Null) => Some(false),
            Some(include_usage) => include_usage.as_bool(),
        })?;
    if include_usage.is_some() && !stream {
        let message = "stream_options is for a request with stream: true; leave it out, or add that";
        return Err(ApiError::of_field("stream_options", message));
    }
    Ok(GenerationOptions {
        model: fields.read_as("model", "the name of a model")?,
        n: fields.whole("n", 1, MAX_CHOICES)?.unwrap_or(1),
        max_tokens,
        max_tokens_field,
        sampling: sampling(fields, defaults)?,
        stop_params: stop_params(fields)?,
        stream,
        include_usage: include_usage.unwrap_or(false),
        logprobs,
        return_token_ids: fields.flag("return_token_ids")?,
    })
}

/// The request's sampling; else that of the model's folder; else the protocol's: temperature 1.
fn sampling(fields: &Fields, defaults: SamplingOverrides) -> Result<SamplingParams, ApiError> {
    // vLLM's value for all tokens.
    let top_k = fields.take("top_k", "a whole number, -1 or 0 for all tokens", |value| match value.as_i64() {
        Some(-1) => Some(0),
        Some(top_k) => usize::try_from(top_k).ok(),
        None => None,
    })?;
    // Clients use 64 bits, signed or unsigned.
    let seed = fields.take("seed", "a whole number of 64 bits", |value| {
        value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
    })?;
    let given = SamplingOverrides { temperature: fields.number("temperature")?, top_k, top_p: fields.number("top_p")? };
    let plain = SamplingParams { temperature: 1.0, seed: seed.unwrap_or_else(any_number), ..SamplingParams::GREEDY };
    given.over(defaults.over(plain)).validate().map_err(|error| match error {
        SamplingError::Temperature(_) => ApiError::of_field("temperature", error.to_string()),
        SamplingError::TopP(_) => ApiError::of_field("top_p", error.to_string()),
    })
}

/// A different number each time.
pub fn any_number() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// One or several. One comes first, so that a list of token ids is one prompt.
fn several<T: DeserializeOwned>(value: &Value) -> Option<Vec<T>> {
    T::deserialize(value).map(|one| vec![one]).or_else(|_| Vec::deserialize(value)).ok()
}

fn stop_params(fields: &Fields) -> Result<StopParams, ApiError> {
    let expected = format!("a string, or at most {MAX_STOPS} of them, each of 1 to {MAX_STOP_BYTES} bytes");
    let stop_strings = fields.take("stop", &expected, |value| {
        let stops: Vec<String> = several(value)?;
        let fit = stops.len() <= MAX_STOPS && stops.iter().all(|stop| (1..=MAX_STOP_BYTES).contains(&stop.len()));
        fit.then_some(stops)
    })?;
    let expected = format!("a list of at most {MAX_STOP_IDS} token ids");
    let stop_token_ids = fields.take("stop_token_ids", &expected, |value| {
        Vec::deserialize(value).ok().filter(|ids: &Vec<u32>| ids.len() <= MAX_STOP_IDS)
    })?;
    Ok(StopParams {
        stop_token_ids: stop_token_ids.unwrap_or_default(),
        stop_strings: stop_strings.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?,
        min_tokens: fields.whole("min_tokens", 0, u64::MAX)?.unwrap_or(0),
    })
}

fn prompts(fields: &Fields) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let prompts: Vec<Prompt> = fields.take("prompt", expected, several)?.unwrap_or_default();
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        let message = "the prompt is missing or empty; send one, such as \"Once upon a time\"";
        return Err(ApiError::of_field("prompt", message));
    }
    Ok(prompts)
}

/// The messages as the template reads them, with all their other fields.
fn messages(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let expected = "a list of messages, such as [{\"role\": \"user\", \"content\": \"…\"}]";
    let messages: Vec<Value> = fields.read_as("messages", expected)?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::of_field("messages", format!("messages is missing or empty, expected {expected}")));
    }
    messages.into_iter().enumerate().map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, mut message: Value) -> Result<Value, ApiError> {
    let refused = |problem: &str| Err(ApiError::of_field("messages", format!("messages[{index}]: {problem}")));
    if !message["role"].is_string() {
        return refused("it has no role; give one, such as \"user\"");
    }
    let text = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text"));
            match texts.collect::<Option<Vec<_>>>() {
                Some(texts) => texts.concat(),
                None => return refused("only parts of type \"text\" are read"),
            }
        }
        // An answer that consists of tool calls.
        Value::Null if message["role"] == "assistant" => String::new(),
        _ => return refused("its content is not a string, nor a list of parts"),
    };
    message["content"] = text.into();
    Ok(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MODEL: SamplingOverrides = SamplingOverrides { temperature: Some(0.8), top_k: None, top_p: Some(0.95) };

    /// Reads a completion with these fields, and a prompt if they have none.
    fn completion(mut fields: Value) -> Result<Completion, ApiError> {
        fields.as_object_mut().unwrap().entry("prompt").or_insert("a".into());
        Completion::read(fields.to_string().as_bytes(), MODEL)
    }

    /// Reads a chat with these fields, and a message if they have none.
    fn chat(mut fields: Value) -> Result<Chat, ApiError> {
        fields.as_object_mut().unwrap().entry("messages").or_insert(json!([{ "role": "user", "content": "hello" }]));
        Chat::read(fields.to_string().as_bytes(), MODEL)
    }

    #[test]
    fn a_message_is_a_role_and_its_text() {
        let content = |content: Value| chat(json!({ "messages": [{ "role": "assistant", "content": content }] }));
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(content(parts).unwrap().messages[0]["content"], "ab");
        assert_eq!(content(json!(null)).unwrap().messages[0]["content"], "");
    }

    #[test]
    fn what_is_left_out_is_as_the_model_and_the_protocol_say() {
        let options = completion(json!({ "seed": 7 })).unwrap().options;
        assert_eq!((options.n, options.max_tokens, &options.stop_params), (1, None, &StopParams::default()));
        assert_eq!(options.sampling, SamplingParams { seed: 7, ..SamplingParams::DEFAULT });
        assert_eq!((options.stream, options.logprobs), (false, None));
        let nulls = json!({ "n": null, "temperature": null, "stop": null, "logprobs": null, "seed": 7, "new": [1] });
        assert_eq!(completion(nulls).unwrap().options, options, "null is missing, and unknown fields are ignored");
        assert_eq!(chat(json!({})).unwrap().options.max_tokens, None);
        let seeds: Vec<u64> = (0..4).map(|_| chat(json!({})).unwrap().options.sampling.seed).collect();
        assert!(seeds.windows(2).any(|pair| pair[0] != pair[1]), "{seeds:?}");
    }

    #[test]
    fn every_field_is_read() {
        let all = json!({
            "model": "m", "n": 3, "max_tokens": 0, "temperature": 0, "top_p": 0.5, "top_k": 4, "seed": -1,
            "stop": ["x", "yz"], "stream": true, "stream_options": { "include_usage": true }, "logprobs": 5,
            "return_token_ids": true, "best_of": 3, "stop_token_ids": [7, 9], "ignore_eos": true, "min_tokens": 0,
        });
        let options = completion(all).unwrap().options;
        let expected = GenerationOptions {
            model: Some("m".into()),
            n: 3,
            max_tokens: Some(0),
            max_tokens_field: "max_tokens",
            sampling: SamplingParams { temperature: 0.0, top_k: 4, top_p: 0.5, seed: u64::MAX },
            stop_params: StopParams {
                stop_token_ids: vec![7, 9],
                stop_strings: vec!["x".into(), "yz".into()],
                ignore_eos: true,
                min_tokens: 0,
            },
            stream: true,
            include_usage: true,
            logprobs: Some(5),
            return_token_ids: true,
        };
        assert_eq!(options, expected);
        assert_eq!(completion(json!({ "stop": "x", "top_k": -1 })).unwrap().options.stop_params.stop_strings, ["x"]);
        let asked = json!({ "max_tokens": 5, "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 2, "stop_token_ids": [7] });
        let options = chat(asked).unwrap().options;
        assert_eq!((options.max_tokens_field, options.max_tokens), ("max_completion_tokens", Some(7)));
        assert_eq!(options.logprobs, Some(2));
        assert_eq!(options.stop_params.stop_token_ids, [7]);
        assert_eq!(chat(json!({ "logprobs": true, "max_tokens": 5.0 })).unwrap().options.logprobs, Some(0));
    }

    #[test]
    fn a_request_has_not_too_many_stops_nor_too_long_ones() {
        for (fields, says) in [
            (json!({ "stop": "x".repeat(257) }), "stop is \"xxx"),
            (json!({ "stop_token_ids": vec![7; 257] }), "stop_token_ids is [7,7,"),
        ] {
            let refusal = completion(fields).unwrap_err();
            assert!(refusal.message.starts_with(says) && refusal.message.len() < 600, "{}", refusal.message);
        }
    }
}
