//! Views of the pages, for the page at `/`: how many can watch, and what they see.
//!
//! ```text
//!   viewer ── ViewRequest(newer than 7) ──► engine   after its next step, or at once if something has changed
//!   viewer ◄── PoolView, version 12 ──────── engine   and 50 ms later the viewer asks again
//! ```
//!
//! The engine makes a view only when a viewer asks for one. A viewer has at most one request under way, and asks
//! again once its last view has been sent: a slow one sees fewer views, always the newest, and nothing piles up.
//! Without viewers, a step costs one check of an empty list.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::sse::Event as SentEvent;
use futures_util::stream::{self, Stream};
use page_by_page::serving::view::{FinishedView, PoolView};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::api_error::ApiError;
use crate::messages::Command;
use crate::pace::PaceRequest;
use crate::protocol::any_number;

/// The pause between two views of a viewer, short enough to look fluent.
const BETWEEN_VIEWS: Duration = Duration::from_millis(50);
const FINISHED: usize = 16;

#[derive(Debug)]
pub struct Viewers {
    max_viewers: usize,
    min_stay: Duration,
    /// When each viewer came, newest first. The sender is dropped to end its stream.
    taken: Mutex<Vec<(Instant, oneshot::Sender<()>)>>,
}

impl Viewers {
    /// Places for `max_viewers` at the same time. Each keeps its own for as long as `min_stay`, or until it leaves.
    pub fn new(max_viewers: usize, min_stay: Duration) -> Self {
        Viewers { max_viewers, min_stay, taken: Mutex::default() }
    }

    /// Refuses a server's page and views where there are no places at all.
    pub fn ensure_any(&self) -> Result<(), ApiError> {
        if self.max_viewers > 0 {
            return Ok(());
        }
        let message = "this server shows its pages to no viewers; start it with --viewers 8 to allow eight";
        Err(ApiError::new(StatusCode::NOT_FOUND, Some("no_viewers"), message))
    }

    /// A place for one viewer. If all are taken, that of the oldest, whose stream ends.
    pub fn take(&self, engine: Sender<Command>) -> Result<Viewer, ApiError> {
        self.ensure_any()?;
        let mut taken = self.taken.lock().expect("held without a panic");
        taken.retain(|(_, place)| !place.is_closed());
        if taken.len() == self.max_viewers && taken.pop_if(|(came, _)| came.elapsed() >= self.min_stay).is_none() {
            let all = self.max_viewers;
            let message = format!("{all} of {all} places to watch the pages are taken; ask again, or see --viewers");
            return Err(ApiError::too_many_requests(message, 10));
        }
        let (place, lost) = oneshot::channel();
        taken.insert(0, (Instant::now(), place));
        // JavaScript's numbers have 53 bits.
        Ok(Viewer { number: any_number() >> 11, engine, lost })
    }
}

pub struct Viewer {
    number: u64,
    engine: Sender<Command>,
    /// Ends with its place.
    lost: oneshot::Receiver<()>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.engine.send(Command::ViewerLeft(self.number));
    }
}

/// A request for the view of the pages, once there is a newer one than was seen.
pub struct ViewRequest {
    pub viewer: u64,
    /// The version last seen, 0 for none.
    pub seen: u64,
    pub view: oneshot::Sender<(Arc<PoolView>, Option<PaceRequest>)>,
}

pub struct ViewPublisher {
    version: u64,
    requests: Vec<ViewRequest>,
    /// The numbers of those who have asked and not left.
    pub present: HashSet<u64>,
    finished: VecDeque<FinishedView>,
}

impl ViewPublisher {
    pub fn new() -> Self {
        ViewPublisher { version: 1, requests: Vec::new(), present: HashSet::new(), finished: VecDeque::new() }
    }

    pub fn note_change(&mut self) {
        self.version += 1;
    }

    /// Notes the end of a sequence, for those who watch now.
    pub fn note_end(&mut self, finished: impl FnOnce() -> FinishedView) {
        if self.present.is_empty() {
            self.finished.clear();
        } else {
            self.finished.push_back(FinishedView { version: self.version + 1, ..finished() });
            if self.finished.len() > FINISHED {
                self.finished.pop_front();
            }
        }
        self.version += 1;
    }

    pub fn ask(&mut self, request: ViewRequest) {
        self.present.insert(request.viewer);
        self.requests.push(request);
    }

    /// Sends `view` and the pace to those who have not seen this version, if there are any.
    pub fn show(&mut self, pace: Option<PaceRequest>, view: impl FnOnce() -> PoolView) {
        if self.requests.is_empty() {
            return;
        }
        // Viewers that have gone are forgotten.
        self.requests.retain(|request| !request.view.is_closed());
        let version = self.version;
        if self.requests.iter().all(|request| request.seen == version) {
            return;
        }
        let view = Arc::new(PoolView { version, finished: self.finished.iter().cloned().collect(), ..view() });
        for request in self.requests.extract_if(.., |request| request.seen != version) {
            let _ = request.view.send((view.clone(), pace));
        }
    }
}

/// A viewer's stream of views, from the current one until the engine ends, or the viewer goes or loses its place.
pub fn stream(viewer: Viewer) -> impl Stream<Item = Result<SentEvent, Infallible>> {
    stream::unfold((viewer, 0), |(mut viewer, seen)| async move {
        if seen > 0 {
            sleep(BETWEEN_VIEWS).await;
        }
        let (number, (view, answer)) = (viewer.number, oneshot::channel());
        // Either fails once the engine has ended.
        viewer.engine.send(Command::ViewRequest(ViewRequest { viewer: number, seen, view })).ok()?;
        let (view, pace) = tokio::select! {
            answer = answer => answer.ok()?,
            _ = &mut viewer.lost => return None,
        };
        let mut sent = json!(view.since(seen));
        (sent["viewer"], sent["pace"]) = (json!(number), json!(pace));
        Some((Ok(SentEvent::default().data(sent.to_string())), (viewer, view.version)))
    })
}
