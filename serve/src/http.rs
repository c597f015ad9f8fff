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

use super::answer::{Answer, Kind};
use super::connections::Patience;
use super::guard::{self, Guard};
use super::metrics::{self, Metrics};
use super::page;
use super::protocol::{Chat, Completion, Prompt, Wish};
use super::refusal::Refusal;
use super::talk::{Asked, Command, Ended, Event, Piece, Submission};
use super::template::{ChatTemplate, TemplateError};
use super::watching::{Places, Watching};
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::SamplingDefaults;
use page_by_page::model::tokenizer::{Tokenizer, TokenizerError};
use page_by_page::serving::schedule::SequenceId;

/// How often a client that waits for its first token hears that it is not forgotten.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Log probabilities that one request gets. As JSON they take some hundred bytes each.
const MOST_PROBABILITIES: usize = 1 << 19;

/// What every answer needs.
pub struct Shared {
    /// The model's name.
    pub model: String,
    /// How it is sampled where a request does not say.
    pub sampling: SamplingDefaults,
    /// Tokens of a text at most, with its prompt: what the model has positions and the pool has slots for.
    pub most_tokens: usize,
    /// Texts that may wait or run at the same time.
    pub most_texts: usize,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text; or why the model's template cannot be used; or nothing, where it has none.
    pub template: Option<Result<ChatTemplate, TemplateError>>,
    /// Who may ask.
    pub guard: Guard,
    /// How much they may ask.
    pub patience: Patience,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// Where texts are asked for.
    pub engine: Sender<Command>,
    /// True when the server is to end.
    pub stop: watch::Receiver<bool>,
    /// Answers so far.
    pub answers: AtomicU64,
    /// For those who watch the pages.
    pub places: Places,
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
        .route("/texts/{text}", delete(end_text))
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
    match shared.guard.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The page itself has no text of anybody in it, and asks for the key.
async fn check_page(State(shared): Shares, request: Request<Body>, next: Next) -> Response<Body> {
    let checked = shared.guard.check_name(request.uri(), request.headers());
    match checked.and_then(|()| shared.places.check()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn nothing_here(uri: Uri) -> Refusal {
    let path = page_by_page::escape::field(uri.path());
    Refusal::new(StatusCode::NOT_FOUND, None, format!("there is nothing at {path}; the protocol begins at /v1"))
}

async fn wrong_method() -> Refusal {
    let message = "this address is asked in another way: POST for completions, DELETE to end a text, GET for the rest";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, None, message)
}

async fn health(State(shared): Shares) -> Result<&'static str, Refusal> {
    if *shared.stop.borrow() { Err(Refusal::stopping()) } else { Ok("ok\n") }
}

async fn show_metrics(State(shared): Shares) -> impl IntoResponse {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], shared.metrics.render())
}

async fn pages(State(shared): Shares, headers: HeaderMap) -> Result<Response<Body>, Refusal> {
    guard::check_site(&headers)?;
    let watching = Watching::new(shared.engine.clone(), shared.places.take()?);
    Ok(Sse::new(watching).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response())
}

/// Ends a text for whoever waits for it. Who may watch may do that.
async fn end_text(
    State(shared): Shares,
    text: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<StatusCode, Refusal> {
    shared.places.check()?;
    let Ok(Path(text)) = text else { return Err(nothing_here(uri).await) };
    let unknown = || {
        let message = format!("no text {} runs or waits; it has ended, perhaps", page_by_page::escape::quoted(&text));
        Refusal::new(StatusCode::NOT_FOUND, Some("unknown_text"), message)
    };
    let id = text.parse().map(SequenceId).map_err(|_| unknown())?;
    let (is_known, answer) = oneshot::channel();
    shared.engine.send(Command::End { text: id, is_known }).map_err(|_| shared.gone())?;
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
    // Bytes that are no text.
    let Ok(Path(name)) = name else { return Err(nothing_here(uri).await) };
    shared.check_model(Some(&name))?;
    Ok(json_response(&shared.model_object()))
}

async fn completions(State(shared): Shares, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let came = Instant::now();
    let Patience { body_bytes, body, .. } = shared.patience;
    let body = guard::body(request, body_bytes, body).await?;
    let this = shared.clone();
    // A long prompt takes its time: not that of the others.
    let ready = off_the_road(move || {
        let Completion { prompts, echo, wish } = Completion::read(&body, this.sampling)?;
        this.check_model(wish.model.as_deref())?;
        this.check_places(prompts.len(), wish.n)?;
        let tokens = prompts.iter().map(|prompt| this.tokens(prompt)).collect::<Result<Vec<_>, _>>()?;
        let begins = prompts.iter().zip(&tokens).map(|(prompt, tokens)| match prompt {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Tokens(_) => this.tokenizer.decode(tokens).map_err(|error| refused_text(Kind::Completion, &error)),
        });
        let echo = if echo { begins.collect::<Result<_, _>>()? } else { Vec::new() };
        Ok((wish, tokens, echo))
    });
    let (wish, prompts, echo) = ready.await?;
    shared.answer(Kind::Completion, wish, prompts, echo, came).await
}

async fn chat(State(shared): Shares, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let came = Instant::now();
    let Patience { body_bytes, body, .. } = shared.patience;
    let body = guard::body(request, body_bytes, body).await?;
    let this = shared.clone();
    let ready = off_the_road(move || {
        let Chat { messages, for_template, wish } = Chat::read(&body, this.sampling)?;
        this.check_model(wish.model.as_deref())?;
        let refused = |message: String| Refusal::of_field("messages", message);
        let text = match &this.template {
            Some(Ok(template)) => {
                template.render(&messages, &for_template).map_err(|error| refused(error.to_string()))?
            }
            Some(Err(problem)) => return Err(refused(problem.to_string())),
            None => {
                let name = &this.model;
                let message =
                    format!("{name} has no chat template: it continues texts; ask /v1/completions with a prompt");
                return Err(Refusal { code: Some("no_chat_template"), ..refused(message) });
            }
        };
        this.check_bytes(Kind::Chat, &text)?;
        let tokens = this.tokenizer.encode_as_it_is(&text).map_err(|error| refused_text(Kind::Chat, &error))?;
        Ok((wish, vec![tokens]))
    });
    let (wish, prompts) = ready.await?;
    shared.answer(Kind::Chat, wish, prompts, Vec::new(), came).await
}

/// Does what takes its time on a thread of its own.
async fn off_the_road<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Refusal::failed("the request could not be read or answered; the server's log says why"))
    })
}

fn refused_text(kind: Kind, error: &TokenizerError) -> Refusal {
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
                let message =
                    format!("there is no model {}; this server has {}", page_by_page::escape::quoted(name), self.model);
                let refusal = Refusal::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
                Err(Refusal { param: Some("model"), ..refusal })
            }
            _ => Ok(()),
        }
    }

    /// Refuses more texts than there can be, before anything is done for them: a small body can ask for millions.
    fn check_places(&self, prompts: usize, n: usize) -> Result<(), Refusal> {
        let (n_texts, most) = (prompts.saturating_mul(n), self.most_texts);
        if n_texts <= most {
            return Ok(());
        }
        let message =
            format!("{n_texts} texts are more than the {most} that this server has places for; ask for fewer");
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
    fn check_logprobs(&self, texts: &[Asked]) -> Result<(), Refusal> {
        let of = |asked: &Asked| {
            let prompt = if asked.is_scored { asked.prompt.len() } else { 0 };
            let each = asked.logprobs.map_or(0, |top| top + 1);
            prompt.saturating_add(asked.max_new_tokens).saturating_mul(each)
        };
        let asked = texts.iter().map(of).fold(0, usize::saturating_add);
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
                self.tokenizer.encode(text).map_err(|error| refused_text(Kind::Completion, &error))
            }
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// New tokens of a text at most. What was asked for stays, and is refused if it does not fit.
    fn max_new_tokens(&self, kind: Kind, wish: &Wish, prompt: usize) -> Result<usize, Refusal> {
        let most = self.most_tokens;
        let room = most.checked_sub(prompt).filter(|room| *room > 0 || wish.max_tokens == Some(0));
        let Some(room) = room else {
            let message = format!(
                "the prompt has {prompt} tokens, and a text can have {most} here: no room for a new one; shorten the prompt"
            );
            return Err(Refusal::too_long(kind.prompt(), message));
        };
        Ok(match wish.max_tokens {
            Some(most) if wish.is_max_asked => most,
            Some(most) => most.min(room),
            None => room,
        })
    }

    /// Has the texts written, and answers with them.
    async fn answer(
        self: Arc<Self>,
        kind: Kind,
        wish: Wish,
        prompts: Vec<Vec<u32>>,
        echo: Vec<String>,
        came: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let n_texts = prompts.len() * wish.n;
        self.check_places(prompts.len(), wish.n)?;
        let mut texts = Vec::new();
        for prompt in &prompts {
            let max_new_tokens = self.max_new_tokens(kind, &wish, prompt.len())?;
            for sample in 0..wish.n as u64 {
                // As `generate --samples` does.
                let sampling = Sampling { seed: wish.sampling.seed.wrapping_add(sample), ..wish.sampling };
                let (prompt, stops, logprobs) = (prompt.clone(), wish.stops.clone(), wish.logprobs);
                let is_scored = logprobs.is_some() && !echo.is_empty();
                texts.push(Asked { prompt, max_new_tokens, sampling, stops, logprobs, is_scored });
            }
        }
        self.check_logprobs(&texts)?;
        let events = self.submit(texts, came).await?;
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
            n: wish.n,
            echo,
            prompts,
            with_ids: wish.return_token_ids,
            with_logprobs: wish.logprobs.is_some(),
            include_usage: wish.include_usage,
        };
        if wish.stream {
            let stream = AnswerStream::new(answer, events, n_texts);
            return Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response());
        }
        let texts = whole(events, n_texts).await?;
        // A long prompt with its scores takes its time, too.
        let answered = off_the_road(move || Ok(answer.whole(texts))).await?;
        Ok(json_response(&answered))
    }

    /// Hands texts to the engine, if it takes them.
    async fn submit(&self, texts: Vec<Asked>, came: Instant) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        let (events, received) = mpsc::unbounded_channel();
        let (accepted, answer) = oneshot::channel();
        let until = came + self.patience.request;
        let submission = Submission { texts, events, accepted, came, until };
        self.engine.send(Command::Submit(submission)).map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())??;
        Ok(received)
    }

    /// Why the engine does not answer.
    fn gone(&self) -> Refusal {
        if *self.stop.borrow() { Refusal::stopping() } else { Refusal::engine_gone() }
    }
}

/// Waits for all of the texts.
async fn whole(mut events: mpsc::UnboundedReceiver<Event>, n_texts: usize) -> Result<Vec<(Piece, Ended)>, Refusal> {
    let mut texts: Vec<(Piece, Option<Ended>)> = Vec::new();
    texts.resize_with(n_texts, Default::default);
    let mut open = n_texts;
    while open > 0 {
        match poll_fn(|context| events.poll_recv(context)).await {
            Some(Event::Piece { text, piece }) => texts[text].0.append(piece),
            Some(Event::End { text, piece, end }) => {
                texts[text].0.append(piece);
                texts[text].1 = Some(end);
                open -= 1;
            }
            Some(Event::Failed(refusal)) => return Err(refusal),
            None => return Err(Refusal::engine_gone()),
        }
    }
    Ok(texts.into_iter().filter_map(|(piece, end)| Some((piece, end?))).collect())
}

/// The texts as they are written.
struct AnswerStream {
    answer: Answer,
    events: mpsc::UnboundedReceiver<Event>,
    /// What is to be sent before the next event is looked at, last first.
    next: Vec<String>,
    ends: Vec<Option<Ended>>,
    is_done: bool,
}

impl AnswerStream {
    fn new(answer: Answer, events: mpsc::UnboundedReceiver<Event>, n_texts: usize) -> Self {
        let firsts = (0..n_texts).rev().filter_map(|text| answer.first_chunk(text));
        let next = firsts.map(|chunk| chunk.to_string()).collect();
        AnswerStream { answer, events, next, ends: vec![None; n_texts], is_done: n_texts == 0 }
    }

    /// Notes what is to be sent now.
    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Piece { text, piece }) => {
                self.next.push(self.answer.next_chunk(text, &piece, None).to_string())
            }
            Some(Event::End { text, piece, end }) => {
                self.ends[text] = Some(end);
                let ends: Option<Vec<Ended>> = self.ends.iter().copied().collect();
                if let Some(ends) = ends {
                    self.is_done = true;
                    self.next.push("[DONE]".into());
                    self.next.extend(self.answer.usage_chunk(&ends).map(|chunk| chunk.to_string()));
                }
                self.next.push(self.answer.next_chunk(text, &piece, Some(end)).to_string());
            }
            Some(Event::Failed(refusal)) => self.fail(&refusal),
            None => self.fail(&Refusal::engine_gone()),
        }
    }

    /// The status was sent long ago: what has failed is told as the last event.
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
