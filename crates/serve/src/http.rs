//! The addresses of the server, and what each of them answers.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::response::sse::{KeepAlive, Sse};
use axum::routing::{delete, get, post};
use futures_util::StreamExt;
use page_by_page::escape;
use page_by_page::files::FileError;
use page_by_page::generation::sampler::{Sampler, SamplingOverrides};
use page_by_page::model::StepError;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{ScheduleError, SequenceId};
use page_by_page::serving::{EngineError, GenerationRequest};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::Settings;
use crate::access;
use crate::answer::{Answer, Endpoint, blocking};
use crate::api_error::ApiError;
use crate::live_page;
use crate::messages::{Command, Event, Refusal, Requester, Submission};
use crate::metrics::{self, Metrics};
use crate::pace::PaceRequest;
use crate::protocol::{Chat, Completion, GenerationOptions, Prompt, any_number};
use crate::template::ChatTemplate;
use crate::views::{self, Viewers};

/// How often a comment is sent on a stream without new output, so that the connection stays open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Bytes of a body that is read in a few milliseconds, and so without waiting for the threads that read long ones.
const SHORT_BODY: usize = 4 << 10;

/// Log probabilities of all answers that are not read to their end. As JSON each takes about a hundred bytes.
pub const MAX_OPEN_LOGPROBS: usize = 1 << 19;

pub struct ServerState {
    pub settings: Settings,
    /// How the model is sampled where a request leaves it open.
    pub sampling: SamplingOverrides,
    /// Tokens of a sequence at most, prompt included: limited by the model's positions and the pool's slots.
    pub max_model_len: usize,
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, or why it cannot be used; `None` where the model has none.
    pub template: Option<Result<ChatTemplate, FileError>>,
    /// How many templates are rendered at the same time: fewer than prompts, so that slow ones delay no completion.
    pub renderers: Semaphore,
    /// Log probabilities that can still be asked for.
    pub logprob_permits: Arc<Semaphore>,
    pub metrics: Arc<Metrics>,
    pub commands: Sender<Command>,
    /// True when the server is to end.
    pub stop: watch::Receiver<bool>,
    pub viewers: Viewers,
}

type AppState = State<Arc<ServerState>>;

pub fn router(state: Arc<ServerState>) -> Router {
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/completions", post(|state, request| generate(Endpoint::Completion, state, request)))
        .route("/v1/chat/completions", post(|state, request| generate(Endpoint::Chat, state, request)))
        .route("/metrics", get(show_metrics))
        .route("/pages", get(pages))
        .route("/sequences/{id}", delete(cancel_sequence))
        .route("/pace", post(set_pace))
        .fallback(nothing_here)
        .layer(middleware::from_fn_with_state(state.clone(), authorize));
    let live_page = live_page::FILES
        .into_iter()
        .fold(Router::new(), |router, (path, content_type, content)| {
            router.route(path, get(move || async move { (live_page::headers(content_type), content) }))
        })
        .layer(middleware::from_fn_with_state(state.clone(), guard_live_page));
    let all = Router::new().route("/health", get(health)).merge(live_page).merge(guarded);
    all.method_not_allowed_fallback(wrong_method).with_state(state)
}

async fn authorize(State(state): AppState, request: Request<Body>, next: Next) -> Result<Response<Body>, ApiError> {
    state.settings.access.authorize(request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

/// The page itself shows nothing without the key, and asks for it.
async fn guard_live_page(
    State(state): AppState,
    request: Request<Body>,
    next: Next,
) -> Result<Response<Body>, ApiError> {
    state.settings.access.check_host(request.uri(), request.headers())?;
    state.viewers.ensure_any()?;
    Ok(next.run(request).await)
}

async fn nothing_here(uri: Uri) -> ApiError {
    let path = escape::field(uri.path());
    ApiError::new(StatusCode::NOT_FOUND, None, format!("there is nothing at {path}; the API is under /v1"))
}

async fn wrong_method() -> ApiError {
    let message = "wrong method: use POST for completions and /pace, DELETE to cancel a sequence, GET for the rest";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, None, message)
}

async fn health(State(state): AppState) -> Result<&'static str, ApiError> {
    if *state.stop.borrow() { Err(ApiError::stopping()) } else { Ok("ok\n") }
}

async fn show_metrics(State(state): AppState) -> impl IntoResponse {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], state.metrics.render())
}

async fn pages(State(state): AppState, headers: HeaderMap) -> Result<Response<Body>, ApiError> {
    access::check_site(&headers)?;
    let views = views::stream(state.viewers.take(state.commands.clone())?);
    Ok(Sse::new(views).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Cancels a sequence; its client gets the output so far. Open to everyone who can watch.
async fn cancel_sequence(
    State(state): AppState,
    text: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    state.viewers.ensure_any()?;
    let Ok(Path(text)) = text else { return Err(nothing_here(uri).await) };
    let unknown = || {
        let message = format!("no sequence {} runs or waits; it may have finished", escape::quoted(&text));
        ApiError::new(StatusCode::NOT_FOUND, Some("unknown_sequence"), message)
    };
    let id = text.parse().map(SequenceId).map_err(|_| unknown())?;
    let is_known = state.ask(|is_known| Command::Cancel(id, is_known)).await?;
    if is_known { Ok(StatusCode::NO_CONTENT) } else { Err(unknown()) }
}

/// Sets how fast the engine steps, until the viewer who asks for it leaves.
async fn set_pace(State(state): AppState, request: Request<Body>) -> Result<StatusCode, ApiError> {
    state.viewers.ensure_any()?;
    access::check_site(request.headers())?;
    let body = access::body(request, &state.settings.client_limits).await?;
    let invalid = |error| format!("not a pace: {error}; send \"viewer\", as in its views, and \"steps_per_second\"");
    let pace: PaceRequest =
        serde_json::from_slice(&body).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, None, invalid(error)))?;
    if state.ask(|is_known| Command::SetPace(pace, is_known)).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    let message = format!("no viewer {} is there; the pace is its own to set while it watches /pages", pace.viewer);
    Err(ApiError::new(StatusCode::NOT_FOUND, Some("unknown_viewer"), message))
}

async fn models(State(state): AppState) -> Response<Body> {
    let model = json!({
        "id": state.settings.model, "object": "model", "created": 0, "owned_by": "page-by-page",
        "max_model_len": state.max_model_len,
    });
    json_response(json!({ "object": "list", "data": [model] }).to_string())
}

/// A request whose fields are checked, with its prompts as tokens.
pub struct TokenizedRequest {
    pub options: GenerationOptions,
    pub prompts: Vec<Vec<u32>>,
    /// The prompts as text; empty without `echo`.
    pub echo: Vec<String>,
}

/// Reads a request, submits its sequences, and answers with their output.
async fn generate(
    endpoint: Endpoint,
    State(state): AppState,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let arrived = Instant::now();
    let body = access::body(request, &state.settings.client_limits).await?;
    let parsed = state.clone().parse(endpoint, body).await?;
    let n_sequences = parsed.prompts.len() * parsed.options.n;
    let is_stream = parsed.options.stream;
    let requests = state.requests(endpoint, &parsed)?;
    let logprob_permits = state.take_logprob_permits(&requests)?;
    let events = state.submit(requests, arrived).await?.map_err(|refusal| match refusal {
        Refusal::Now(error) => error,
        Refusal::Ever(error) => refusal_of(&error, endpoint.prompt(), parsed.options.max_tokens_field),
    })?;
    let name = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let answer = Answer {
        endpoint,
        id: format!("{name}-{:016x}", any_number()),
        created: jiff::Timestamp::now().as_second(),
        model: state.settings.model.clone(),
        tokenizer: state.tokenizer.clone(),
        request: parsed,
    };
    if is_stream {
        let stream = answer.stream(events, n_sequences);
        let sent = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
        return Ok(until_read(sent, logprob_permits));
    }
    Ok(until_read(json_response(answer.whole(events, n_sequences).await?), logprob_permits))
}

/// Holds what the answer has taken until its client has read it, or has gone.
fn until_read(answer: Response<Body>, taken: OwnedSemaphorePermit) -> Response<Body> {
    if taken.num_permits() == 0 {
        return answer;
    }
    answer.map(|body| {
        Body::from_stream(body.into_data_stream().inspect(move |_| {
            let _ = &taken;
        }))
    })
}

impl ServerState {
    /// Reads a request; a long prompt takes time.
    async fn parse(self: Arc<Self>, endpoint: Endpoint, body: Vec<u8>) -> Result<TokenizedRequest, ApiError> {
        let this = self.clone();
        match endpoint {
            Endpoint::Completion if body.len() <= SHORT_BODY => this.read_completion(&body),
            Endpoint::Completion => blocking(move || this.read_completion(&body)).await,
            Endpoint::Chat => {
                let _place = self.renderers.acquire().await;
                blocking(move || this.read_chat(&body)).await
            }
        }
    }

    fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let model = &self.settings.model;
        let Some(unknown) = name.filter(|name| name != model) else { return Ok(()) };
        let message = format!("there is no model {}; this server runs {model}", escape::quoted(unknown));
        let (status, code) = (StatusCode::NOT_FOUND, Some("model_not_found"));
        Err(ApiError { status, code, ..ApiError::of_field("model", message) })
    }

    /// Refuses more sequences than there are places for, before any work: a small body can ask for millions.
    fn check_places(&self, prompts: usize, n: usize) -> Result<(), ApiError> {
        let (n_sequences, most) = (prompts.saturating_mul(n), self.settings.max_open());
        if n_sequences <= most {
            return Ok(());
        }
        let message = format!("{n_sequences} sequences are more than the {most} places of this server; ask for fewer");
        Err(ApiError::of_field(if n == 1 { "prompt" } else { "n" }, message))
    }

    /// Refuses a prompt that has too many bytes to fit, before time is spent on turning it into tokens.
    fn check_bytes(&self, endpoint: Endpoint, prompt: &str) -> Result<(), ApiError> {
        let most = self.max_model_len.saturating_mul(self.tokenizer.max_bytes_per_token());
        if prompt.len() <= most {
            return Ok(());
        }
        let (bytes, tokens) = (prompt.len(), self.max_model_len);
        let message = format!(
            "the prompt has {bytes} bytes, and the {tokens} tokens that fit here stand for {most} at most; shorten the prompt"
        );
        Err(ApiError::too_long(endpoint.prompt(), message))
    }

    /// Takes the log probabilities that a request asks for out of those that are left for all answers; each of its
    /// sequences has some for each token. They are given back when this is dropped.
    fn take_logprob_permits(&self, requests: &[GenerationRequest]) -> Result<OwnedSemaphorePermit, ApiError> {
        let of = |request: &GenerationRequest| {
            let prompt = if request.prompt_logprobs { request.prompt.len() } else { 0 };
            let each = request.logprobs.map_or(0, |top| top + 1);
            prompt.saturating_add(request.max_new_tokens).saturating_mul(each).saturating_mul(request.samplers.len())
        };
        let wanted = requests.iter().map(of).fold(0, usize::saturating_add);
        if wanted > MAX_OPEN_LOGPROBS {
            let message = format!(
                "the request asks for {wanted} log probabilities, and one request gets {MAX_OPEN_LOGPROBS} at most; \
                 ask for fewer sequences, fewer logprobs or fewer tokens"
            );
            return Err(ApiError::of_field("logprobs", message));
        }
        self.logprob_permits.clone().try_acquire_many_owned(wanted as u32).map_err(|_| {
            let left = self.logprob_permits.available_permits();
            let message = format!(
                "the request asks for {wanted} log probabilities, and {left} are left until clients have read others; \
                 ask again in a second"
            );
            ApiError::too_many_requests(message, 1)
        })
    }

    fn read_completion(&self, body: &[u8]) -> Result<TokenizedRequest, ApiError> {
        let Completion { prompts, echo: is_echoed, options } = Completion::read(body, self.sampling)?;
        self.check_model(options.model.as_deref())?;
        self.check_places(prompts.len(), options.n)?;
        let untokenizable = |error: FileError| ApiError::of_field("prompt", error.to_string());
        let (mut tokens, mut echo) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let (ids, text) = match prompt {
                Prompt::Text(text) => {
                    self.check_bytes(Endpoint::Completion, &text)?;
                    (self.tokenizer.encode(&text).map_err(untokenizable)?, Ok(text))
                }
                Prompt::Tokens(ids) => {
                    let text = self.tokenizer.decode(&ids);
                    (ids, text)
                }
            };
            // Before time is spent on the next one.
            self.room(Endpoint::Completion, ids.len(), options.max_tokens)?;
            tokens.push(ids);
            if is_echoed {
                echo.push(text.map_err(untokenizable)?);
            }
        }
        Ok(TokenizedRequest { options, prompts: tokens, echo })
    }

    fn read_chat(&self, body: &[u8]) -> Result<TokenizedRequest, ApiError> {
        let Chat { messages, for_template, options } = Chat::read(body, self.sampling)?;
        self.check_model(options.model.as_deref())?;
        self.check_places(1, options.n)?;
        let refused = |message: String| ApiError::of_field("messages", message);
        let Some(template) = &self.template else {
            let name = &self.settings.model;
            let message = format!("{name} has no chat template: it continues a text; send a prompt to /v1/completions");
            return Err(ApiError { code: Some("no_chat_template"), ..refused(message) });
        };
        let template = template.as_ref().map_err(|problem| refused(problem.to_string()))?;
        let text = template.render(&messages, &for_template).map_err(|error| refused(error.to_string()))?;
        self.check_bytes(Endpoint::Chat, &text)?;
        let tokens = self.tokenizer.encode_without_special_tokens(&text).map_err(|error| refused(error.to_string()))?;
        Ok(TokenizedRequest { options, prompts: vec![tokens], echo: Vec::new() })
    }

    /// How many tokens can follow a prompt of so many. `max_tokens`: what the client asks for.
    fn room(&self, endpoint: Endpoint, prompt: usize, max_tokens: Option<usize>) -> Result<usize, ApiError> {
        let most = self.max_model_len;
        let room = most.checked_sub(prompt).filter(|room| *room > 0 || max_tokens == Some(0));
        room.ok_or_else(|| {
            let message = format!(
                "the prompt has {prompt} tokens, and a sequence holds {most} here, so no token can follow; \
                 shorten the prompt"
            );
            ApiError::too_long(endpoint.prompt(), message)
        })
    }

    /// The limit of generated tokens. A limit that the client gave is kept, and refused later if it does not fit.
    fn max_new_tokens(
        &self,
        endpoint: Endpoint,
        options: &GenerationOptions,
        prompt: usize,
    ) -> Result<usize, ApiError> {
        let room = self.room(endpoint, prompt, options.max_tokens)?;
        // The protocol's default: 16 tokens, or all that fit.
        let default = if endpoint == Endpoint::Chat { room } else { room.min(16) };
        let max_new_tokens = options.max_tokens.unwrap_or(default);
        let min_tokens = options.stop_params.min_tokens;
        if min_tokens > max_new_tokens {
            let message = format!(
                "min_tokens is {min_tokens}, and at most {max_new_tokens} tokens are generated; \
                 lower it or raise {}",
                options.max_tokens_field
            );
            return Err(ApiError::of_field("min_tokens", message));
        }
        Ok(max_new_tokens)
    }

    /// What a request asks for: `n` sequences of each prompt.
    fn requests(&self, endpoint: Endpoint, request: &TokenizedRequest) -> Result<Vec<GenerationRequest>, ApiError> {
        let TokenizedRequest { options, prompts, echo } = request;
        let new = |tokens: &Vec<u32>| {
            Ok(GenerationRequest {
                prompt: tokens.clone(),
                samplers: (0..options.n as u64)
                    .map(|sample| Sampler::new(options.sampling.for_sample(sample)))
                    .collect(),
                max_new_tokens: self.max_new_tokens(endpoint, options, tokens.len())?,
                stop_params: options.stop_params.clone(),
                logprobs: options.logprobs,
                prompt_logprobs: options.logprobs.is_some() && !echo.is_empty(),
            })
        };
        prompts.iter().map(new).collect()
    }

    /// Asks the engine something. `command`: with a sender for the answer.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, ApiError> {
        let (sender, answer) = oneshot::channel();
        self.commands.send(command(sender)).map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())
    }

    async fn submit(
        &self,
        requests: Vec<GenerationRequest>,
        arrived: Instant,
    ) -> Result<Result<mpsc::UnboundedReceiver<Event>, Refusal>, ApiError> {
        let (events, received) = mpsc::unbounded_channel();
        let requester = Requester { events, arrived, until: arrived + self.settings.client_limits.request };
        let accepted = self.ask(|accepted| Command::Submit(Submission { requests, requester, accepted })).await?;
        Ok(accepted.map(|()| received))
    }

    /// Why the engine sends no answer.
    fn gone(&self) -> ApiError {
        if *self.stop.borrow() { ApiError::stopping() } else { ApiError::engine_gone() }
    }
}

/// `prompt` and `max_tokens`: the fields of the request that hold these.
fn refusal_of(error: &EngineError, prompt: &'static str, max_tokens: &'static str) -> ApiError {
    let message = error.to_string();
    match error {
        EngineError::Model(StepError::UnknownToken { .. } | StepError::NoTokens)
        | EngineError::Schedule(ScheduleError::NoPrompt) => ApiError::of_field(prompt, message),
        EngineError::Model(StepError::TooLong { .. }) | EngineError::Schedule(ScheduleError::NeverFits { .. }) => {
            ApiError::too_long(max_tokens, message)
        }
        _ => ApiError::failed(message),
    }
}

fn json_response(json: String) -> Response<Body> {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}
