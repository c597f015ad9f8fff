//! The messages between the two sides of the server: the threads that talk to clients, and the one thread that
//! generates.
//!
//! ```text
//!   http ── Submit(request, events) ──────► engine   accepted, or refused with the reason
//!   http ◄── Output, Output, … ──────────── engine   for each sequence of the request
//!   http ── drops its end of events ──────► engine   the client has gone: its sequences are cancelled
//!   http ── Cancel, ViewRequest, SetPace ─► engine   from the page view
//! ```

use std::time::Instant;

use page_by_page::serving::schedule::{FinishReason, SequenceId};
use page_by_page::serving::{EngineError, GenerationRequest, OutputDelta};
use tokio::sync::{mpsc, oneshot};

use crate::api_error::ApiError;
use crate::pace::PaceRequest;
use crate::views::ViewRequest;

pub enum Command {
    Submit(Submission),
    /// The sender receives whether there is such a sequence.
    Cancel(SequenceId, oneshot::Sender<bool>),
    ViewRequest(ViewRequest),
    /// The sender receives whether there is such a viewer.
    SetPace(PaceRequest, oneshot::Sender<bool>),
    /// The viewer with this number has left.
    ViewerLeft(u64),
    /// Accept no more requests, and finish those under way; they are cut off then.
    Stop(Instant),
}

/// What a client asks for: sequences of one prompt, or of several. They are accepted together, or not at all.
pub struct Submission {
    pub requests: Vec<GenerationRequest>,
    pub requester: Requester,
    pub accepted: oneshot::Sender<Result<(), Refusal>>,
}

/// Why no sequence of a request is accepted.
#[derive(Debug)]
pub enum Refusal {
    /// It cannot run now: the server is full, or stopping.
    Now(ApiError),
    /// It could never run.
    Ever(EngineError),
}

pub struct Requester {
    /// Where the output goes. A client that has gone closes it.
    pub events: mpsc::UnboundedSender<Event>,
    pub arrived: Instant,
    /// When the request is cut off.
    pub until: Instant,
}

/// New output of a sequence, or why no sequence of its request goes on.
pub type Event = Result<Output, ApiError>;

#[derive(Debug)]
pub struct Output {
    pub index: usize,
    pub delta: OutputDelta,
    /// There with the last output of a sequence.
    pub end: Option<OutputEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputEnd {
    /// A stop string counts as an end of text.
    pub reason: FinishReason,
    /// Tokens generated, including those of a stop string that is not sent.
    pub new_tokens: usize,
    pub cached: usize,
}
