//! The addresses of the server, and what each of them answers.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::response::sse::{Event as SentEvent, KeepAlive, Sse};
use axum::routing::{delete, get, post};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;

use super::access::{self, Access};
use super::answer::{Answer, Kind};
use super::connections::ClientLimits;
use super::messages::{Command, Event, Finished, NewRequest, NewSequence, Piece};
use super::metrics::{self, Metrics};
use super::page;
use super::protocol::{Chat, Completion, GenerationOptions, Prompt};
use super::refusal::Refusal;
use super::template::{ChatTemplate, TemplateError};
use super::views::{ViewStream, Watchers};
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::SamplingDefaults;
use page_by_page::model::tokenizer::{Tokenizer, TokenizerError};
use page_by_page::serving::schedule::SequenceId;

/// How often a comment is sent on a stream without new output, so that the connection stays open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Log probabilities that one request gets. As JSON they take some hundred bytes each.
const MOST_PROBABILITIES: usize = 1 << 19;

/// What every answer needs.
pub struct Shared {
    /// The model's name.
    pub model: String,
    /// How it is sampled where a request leaves it open.
    pub sampling: SamplingDefaults,
    /// Tokens of a sequence at most, prompt included: limited by the model's positions and the pool's slots.
    pub most_tokens: usize,
    /// Sequences that can wait or run at the same time.
    pub most_sequences: usize,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, or why it cannot be used; `None` where the model has none.
    pub template: Option<Result<ChatTemplate, TemplateError>>,
    /// Which requests are answered.
    pub access: Access,
    /// Limits and time-outs.
    pub client_limits: ClientLimits,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The engine's commands.
    pub engine: Sender<Command>,
    /// True when the server is to end.
    pub stop: watch::Receiver<bool>,
    /// Requests answered so far.
    pub answers: AtomicU64,
    /// Places for watchers.
    pub watchers: Watchers,
}

type Shares = State<Arc<Shared>>;

/// All addresses.
pub fn router(shared: Arc<Shared>) -> Router {
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/metrics", get(show_metrics))
        .route("/pages", get(pages))
        .route("/sequences/{id}", delete(cancel_sequence))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(shared.clone(), check));
    let page = Router::new()
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/icon.svg", get(page::icon))
        .layer(middleware::from_fn_with_state(shared.clone(), check_page));
    Router::new().route("/health", get(health)).merge(page).merge(guarded).with_state(shared)
}

async fn check(State(shared): Shares, request: Request<Body>, next: Next) -> Response<Body> {
    match shared.access.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The page itself shows nothing without the key, and asks for it.
async fn check_page(State(shared): Shares, request: Request<Body>, next: Next) -> Response<Body> {
    let checked = shared.access.check_name(request.uri(), request.headers());
    match checked.and_then(|()| shared.watchers.check()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn nothing_here(uri: Uri) -> Refusal {
    let path = page_by_page::escape::field(uri.path());
    Refusal::new(StatusCode::NOT_FOUND, None, format!("there is nothing at {path}; the API is under /v1"))
}

async fn wrong_method() -> Refusal {
    let message = "wrong method: use POST for completions, DELETE to cancel a sequence, GET for the rest";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, None, message)
}

async fn health(State(shared): Shares) -> Result<&'static str, Refusal> {
    if *shared.stop.borrow() { Err(Refusal::stopping()) } else { Ok("ok\n") }
}

async fn show_metrics(State(shared): Shares) -> impl IntoResponse {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], shared.metrics.render())
}

async fn pages(State(shared): Shares, headers: HeaderMap) -> Result<Response<Body>, Refusal> {
    access::check_site(&headers)?;
    let watching = ViewStream::new(shared.engine.clone(), shared.watchers.take()?);
    Ok(Sse::new(watching).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Cancels a sequence; its client gets the output so far. Open to everyone who can watch.
async fn cancel_sequence(
    State(shared): Shares,
    text: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<StatusCode, Refusal> {
    shared.watchers.check()?;
    let Ok(Path(text)) = text else { return Err(nothing_here(uri).await) };
    let unknown = || {
        let message =
            format!("no sequence {} runs or waits; it may have finished", page_by_page::escape::quoted(&text));
        Refusal::new(StatusCode::NOT_FOUND, Some("unknown_sequence"), message)
    };
    let id = text.parse().map(SequenceId).map_err(|_| unknown())?;
    let (is_known, answer) = oneshot::channel();
    shared.engine.send(Command::Cancel { sequence: id, is_known }).map_err(|_| shared.gone())?;
    if answer.await.map_err(|_| shared.gone())? { Ok(StatusCode::NO_CONTENT) } else { Err(unknown()) }
}

async fn models(State(shared): Shares) -> Response<Body> {
    json_response(&json!({ "object": "list", "data": [shared.model_object()] }))
}

async fn model(
    State(shared): Shares,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response<Body>, Refusal> {
    // The name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(nothing_here(uri).await) };
    shared.check_model(Some(&name))?;
    Ok(json_response(&shared.model_object()))
}

async fn completions(State(shared): Shares, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let arrived = Instant::now();
    let ClientLimits { body_bytes, body, .. } = shared.client_limits;
    let body = access::body(request, body_bytes, body).await?;
    let this = shared.clone();
    // A long prompt takes time, which must not delay other clients.
    let ready = blocking(move || {
        let Completion { prompts, echo, options } = Completion::read(&body, this.sampling)?;
        this.check_model(options.model.as_deref())?;
        this.check_places(prompts.len(), options.n)?;
        let tokens = prompts.iter().map(|prompt| this.tokens(prompt)).collect::<Result<Vec<_>, _>>()?;
        let begins = prompts.iter().zip(&tokens).map(|(prompt, tokens)| match prompt {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Tokens(_) => this.tokenizer.decode(tokens).map_err(|error| untokenizable(Kind::Completion, &error)),
        });
        let echo = if echo { begins.collect::<Result<_, _>>()? } else { Vec::new() };
        Ok((options, tokens, echo))
    });
    let (options, prompts, echo) = ready.await?;
    shared.answer(Kind::Completion, options, prompts, echo, arrived).await
}

async fn chat(State(shared): Shares, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let arrived = Instant::now();
    let ClientLimits { body_bytes, body, .. } = shared.client_limits;
    let body = access::body(request, body_bytes, body).await?;
    let this = shared.clone();
    let ready = blocking(move || {
        let Chat { messages, for_template, options } = Chat::read(&body, this.sampling)?;
        this.check_model(options.model.as_deref())?;
        let refused = |message: String| Refusal::of_field("messages", message);
        let text = match &this.template {
            Some(Ok(template)) => {
                template.render(&messages, &for_template).map_err(|error| refused(error.to_string()))?
            }
            Some(Err(problem)) => return Err(refused(problem.to_string())),
            None => {
                let name = &this.model;
                let message =
                    format!("{name} has no chat template: it continues a text; send a prompt to /v1/completions");
                return Err(Refusal { code: Some("no_chat_template"), ..refused(message) });
            }
        };
        this.check_bytes(Kind::Chat, &text)?;
        let tokens = this.tokenizer.encode_as_it_is(&text).map_err(|error| untokenizable(Kind::Chat, &error))?;
        Ok((options, vec![tokens]))
    });
    let (options, prompts) = ready.await?;
    shared.answer(Kind::Chat, options, prompts, Vec::new(), arrived).await
}

/// Does slow work on a thread for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Result<T, Refusal> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Refusal::failed("the request could not be read or answered; the server's log says why"))
    })
}

fn untokenizable(kind: Kind, error: &TokenizerError) -> Refusal {
    Refusal::of_field(kind.prompt(), error.to_string())
}

impl Shared {
    fn model_object(&self) -> Value {
        json!({
            "id": self.model, "object": "model", "created": 0, "owned_by": "page-by-page",
            "max_model_len": self.most_tokens,
        })
    }

    fn check_model(&self, name: Option<&str>) -> Result<(), Refusal> {
        match name {
            Some(name) if name != self.model => {
                let message = format!(
                    "there is no model {}; this server runs {}",
                    page_by_page::escape::quoted(name),
                    self.model
                );
                let refusal = Refusal::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
                Err(Refusal { param: Some("model"), ..refusal })
            }
            _ => Ok(()),
        }
    }

    /// Refuses more sequences than there are places for, before any work: a small body can ask for millions.
    fn check_places(&self, prompts: usize, n: usize) -> Result<(), Refusal> {
        let (n_sequences, most) = (prompts.saturating_mul(n), self.most_sequences);
        if n_sequences <= most {
            return Ok(());
        }
        let message = format!("{n_sequences} sequences are more than the {most} places of this server; ask for fewer");
        Err(Refusal::of_field(if n == 1 { "prompt" } else { "n" }, message))
    }

    /// Refuses a prompt that has too many bytes to fit, before time is spent on turning it into tokens.
    fn check_bytes(&self, kind: Kind, prompt: &str) -> Result<(), Refusal> {
        let most = self.most_tokens.saturating_mul(self.tokenizer.most_bytes_per_token());
        if prompt.len() <= most {
            return Ok(());
        }
        let message = format!(
            "the prompt has {} bytes, and the {} tokens that fit here stand for {most} at most; shorten the prompt",
            prompt.len(),
            self.most_tokens
        );
        Err(Refusal::too_long(kind.prompt(), message))
    }

    /// Refuses a request whose probabilities would fill the memory: each of its sequences has some for each token.
    fn check_logprobs(&self, sequences: &[NewSequence]) -> Result<(), Refusal> {
        let of = |asked: &NewSequence| {
            let prompt = if asked.is_scored { asked.prompt.len() } else { 0 };
            let each = asked.logprobs.map_or(0, |top| top + 1);
            prompt.saturating_add(asked.max_new_tokens).saturating_mul(each)
        };
        let asked = sequences.iter().map(of).fold(0, usize::saturating_add);
        if asked <= MOST_PROBABILITIES {
            return Ok(());
        }
        let message = format!(
            "the request asks for {asked} log probabilities, and one request gets {MOST_PROBABILITIES} at most; \
             ask for fewer sequences, fewer logprobs or fewer tokens"
        );
        Err(Refusal::of_field("logprobs", message))
    }

    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, Refusal> {
        match prompt {
            Prompt::Text(text) => {
                self.check_bytes(Kind::Completion, text)?;
                self.tokenizer.encode(text).map_err(|error| untokenizable(Kind::Completion, &error))
            }
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// The limit of generated tokens. A limit that the client gave is kept, and refused later if it does not fit.
    fn max_new_tokens(&self, kind: Kind, options: &GenerationOptions, prompt: usize) -> Result<usize, Refusal> {
        let most = self.most_tokens;
        let room = most.checked_sub(prompt).filter(|room| *room > 0 || options.max_tokens == Some(0));
        let Some(room) = room else {
            let message = format!(
                "the prompt has {prompt} tokens, and a sequence holds {most} here, so no token can follow; shorten the prompt"
            );
            return Err(Refusal::too_long(kind.prompt(), message));
        };
        Ok(match options.max_tokens {
            Some(most) if options.is_max_explicit => most,
            Some(most) => most.min(room),
            None => room,
        })
    }

    /// Submits the sequences and answers with their output.
    async fn answer(
        self: Arc<Self>,
        kind: Kind,
        options: GenerationOptions,
        prompts: Vec<Vec<u32>>,
        echo: Vec<String>,
        arrived: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let n_sequences = prompts.len() * options.n;
        self.check_places(prompts.len(), options.n)?;
        let mut sequences = Vec::new();
        for prompt in &prompts {
            let max_new_tokens = self.max_new_tokens(kind, &options, prompt.len())?;
            for sample in 0..options.n as u64 {
                // The seeds of `generate --samples`.
                let sampling = Sampling { seed: options.sampling.seed.wrapping_add(sample), ..options.sampling };
                let (prompt, stops, logprobs) = (prompt.clone(), options.stops.clone(), options.logprobs);
                let is_scored = logprobs.is_some() && !echo.is_empty();
                sequences.push(NewSequence { prompt, max_new_tokens, sampling, stops, logprobs, is_scored });
            }
        }
        self.check_logprobs(&sequences)?;
        let events = self.submit(sequences, arrived).await?;
        let name = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let answer = Answer {
            kind,
            id: format!("{name}-{:x}-{number}", since_1970.as_micros()),
            created: since_1970.as_secs(),
            model: self.model.clone(),
            tokenizer: self.tokenizer.clone(),
            prompt_tokens: prompts.iter().map(Vec::len).sum(),
            n: options.n,
            echo,
            prompts,
            with_ids: options.return_token_ids,
            with_logprobs: options.logprobs.is_some(),
            include_usage: options.include_usage,
        };
        if options.stream {
            let stream = AnswerStream::new(answer, events, n_sequences);
            return Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response());
        }
        let outputs = whole(events, n_sequences).await?;
        // A long prompt with its scores is slow to serialize.
        let answered = blocking(move || Ok(answer.whole(outputs))).await?;
        Ok(json_response(&answered))
    }

    /// Submits sequences to the engine.
    async fn submit(
        &self,
        sequences: Vec<NewSequence>,
        arrived: Instant,
    ) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        let (events, received) = mpsc::unbounded_channel();
        let (accepted, answer) = oneshot::channel();
        let until = arrived + self.client_limits.request;
        let request = NewRequest { sequences, events, accepted, arrived, until };
        self.engine.send(Command::Submit(request)).map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())??;
        Ok(received)
    }

    /// Why the engine sends no answer.
    fn gone(&self) -> Refusal {
        if *self.stop.borrow() { Refusal::stopping() } else { Refusal::engine_gone() }
    }
}

/// Waits until all sequences are finished.
async fn whole(
    mut events: mpsc::UnboundedReceiver<Event>,
    n_sequences: usize,
) -> Result<Vec<(Piece, Finished)>, Refusal> {
    let mut sequences: Vec<(Piece, Option<Finished>)> = Vec::new();
    sequences.resize_with(n_sequences, Default::default);
    let mut open = n_sequences;
    while open > 0 {
        match poll_fn(|context| events.poll_recv(context)).await {
            Some(Event::Piece { index, piece }) => sequences[index].0.append(piece),
            Some(Event::Finished { index, piece, end }) => {
                sequences[index].0.append(piece);
                sequences[index].1 = Some(end);
                open -= 1;
            }
            Some(Event::Failed(refusal)) => return Err(refusal),
            None => return Err(Refusal::engine_gone()),
        }
    }
    Ok(sequences.into_iter().filter_map(|(piece, end)| Some((piece, end?))).collect())
}

/// The output as it is generated.
struct AnswerStream {
    answer: Answer,
    events: mpsc::UnboundedReceiver<Event>,
    /// Chunks to send before the next event is taken, in reverse.
    next: Vec<String>,
    ends: Vec<Option<Finished>>,
    is_done: bool,
}

impl AnswerStream {
    fn new(answer: Answer, events: mpsc::UnboundedReceiver<Event>, n_sequences: usize) -> Self {
        let firsts = (0..n_sequences).rev().filter_map(|index| answer.first_chunk(index));
        let next = firsts.map(|chunk| chunk.to_string()).collect();
        AnswerStream { answer, events, next, ends: vec![None; n_sequences], is_done: n_sequences == 0 }
    }

    /// Queues the chunks of an event.
    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Piece { index, piece }) => {
                self.next.push(self.answer.next_chunk(index, &piece, None).to_string())
            }
            Some(Event::Finished { index, piece, end }) => {
                self.ends[index] = Some(end);
                let ends: Option<Vec<Finished>> = self.ends.iter().copied().collect();
                if let Some(ends) = ends {
                    self.is_done = true;
                    self.next.push("[DONE]".into());
                    self.next.extend(self.answer.usage_chunk(&ends).map(|chunk| chunk.to_string()));
                }
                self.next.push(self.answer.next_chunk(index, &piece, Some(end)).to_string());
            }
            Some(Event::Failed(refusal)) => self.fail(&refusal),
            None => self.fail(&Refusal::engine_gone()),
        }
    }

    /// The status has been sent long ago, so the failure is the last chunk.
    fn fail(&mut self, refusal: &Refusal) {
        self.is_done = true;
        self.next.push(refusal.object().to_string());
        self.events.close();
    }
}

impl Stream for AnswerStream {
    type Item = Result<SentEvent, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.next.is_empty() && !self.is_done {
            let event = ready!(self.events.poll_recv(context));
            self.take(event);
        }
        Poll::Ready(self.next.pop().map(|data| Ok(SentEvent::default().data(data))))
    }
}

fn json_response(value: &Value) -> Response<Body> {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
