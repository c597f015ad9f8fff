//! Views of the pages, for the page at `/`: how many can watch, and what they see.
//!
//! ```text
//!   watcher ── ViewRequest(newer than 7) ──► engine   after its next step, or at once if something has changed
//!   watcher ◄── PoolView, version 12 ──────── engine   and 50 ms later the watcher asks again
//! ```
//!
//! The engine makes a view only when a watcher asks for one. A watcher has at most one request under way, and asks
//! again once its last view has been sent: a slow one sees fewer views, always the newest, and nothing piles up.
//! Without watchers, a step costs one check of an empty list.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::sse::Event as SentEvent;
use futures_util::stream::{self, Stream};
use page_by_page::serving::view::{EndedView, PoolView};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::messages::Command;
use crate::pace::PaceRequest;
use crate::protocol::any_number;
use crate::refusal::Refusal;

/// The pause between two views of a watcher, short enough to look fluent.
const BETWEEN_VIEWS: Duration = Duration::from_millis(50);
/// Finished sequences that are shown.
const ENDED: usize = 16;

#[derive(Debug)]
pub struct Watchers {
    all: usize,
    least: Duration,
    /// When each watcher came, newest first. The sender is dropped to end its stream.
    taken: Mutex<Vec<(Instant, oneshot::Sender<()>)>>,
}

impl Watchers {
    /// Places for `all` watchers at the same time. Each keeps its own for as long as `least`, or until it leaves.
    pub fn new(all: usize, least: Duration) -> Self {
        Watchers { all, least, taken: Mutex::default() }
    }

    /// Refuses a server's page and views where there are no places at all.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.all > 0 {
            return Ok(());
        }
        let message = "this server shows its pages to no watchers; start it with --watchers 8 to allow eight";
        Err(Refusal::new(StatusCode::NOT_FOUND, Some("not_watched"), message))
    }

    /// A place for one watcher. If all are taken, that of the oldest, whose stream ends.
    pub fn take(&self, engine: Sender<Command>) -> Result<Watcher, Refusal> {
        self.check()?;
        let mut taken = self.taken.lock().expect("held without a panic");
        taken.retain(|(_, place)| !place.is_closed());
        if taken.len() == self.all && taken.pop_if(|(came, _)| came.elapsed() >= self.least).is_none() {
            let all = self.all;
            let message = format!("{all} of {all} places to watch the pages are taken; ask again, or see --watchers");
            return Err(Refusal::too_many_requests(message, 10));
        }
        let (place, lost) = oneshot::channel();
        taken.insert(0, (Instant::now(), place));
        // JavaScript's numbers have 53 bits.
        Ok(Watcher { number: any_number() >> 11, engine, lost })
    }
}

/// A watcher, who takes a place.
pub struct Watcher {
    number: u64,
    engine: Sender<Command>,
    /// Ends with its place.
    lost: oneshot::Receiver<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.engine.send(Command::WatcherLeft(self.number));
    }
}

/// A request for the view of the pages, once there is a newer one than was seen.
pub struct ViewRequest {
    pub watcher: u64,
    /// The version last seen, 0 for none.
    pub seen: u64,
    pub view: oneshot::Sender<(Arc<PoolView>, Option<PaceRequest>)>,
}

/// What the engine keeps for watchers.
pub struct ViewPublisher {
    version: u64,
    requests: Vec<ViewRequest>,
    /// The numbers of those who have asked and not left.
    pub present: HashSet<u64>,
    ended: VecDeque<EndedView>,
}

impl ViewPublisher {
    /// Nothing is published yet.
    pub fn new() -> Self {
        ViewPublisher { version: 1, requests: Vec::new(), present: HashSet::new(), ended: VecDeque::new() }
    }

    pub fn note_change(&mut self) {
        self.version += 1;
    }

    /// Notes the end of a sequence, for those who watch now.
    pub fn note_end(&mut self, ended: impl FnOnce() -> EndedView) {
        if self.present.is_empty() {
            self.ended.clear();
        } else {
            self.ended.push_back(EndedView { version: self.version + 1, ..ended() });
            if self.ended.len() > ENDED {
                self.ended.pop_front();
            }
        }
        self.version += 1;
    }

    pub fn ask(&mut self, request: ViewRequest) {
        self.present.insert(request.watcher);
        self.requests.push(request);
    }

    /// Sends `view` and the pace to those who have not seen this version, if there are any.
    pub fn show(&mut self, pace: Option<PaceRequest>, view: impl FnOnce() -> PoolView) {
        if self.requests.is_empty() {
            return;
        }
        // Watchers that have gone are forgotten.
        self.requests.retain(|request| !request.view.is_closed());
        let version = self.version;
        if self.requests.iter().all(|request| request.seen == version) {
            return;
        }
        let view = Arc::new(PoolView { version, ended: self.ended.iter().cloned().collect(), ..view() });
        for request in self.requests.extract_if(.., |request| request.seen != version) {
            let _ = request.view.send((view.clone(), pace));
        }
    }
}

/// A watcher's stream of views, from the current one until the engine ends, or the watcher goes or loses its place.
pub fn stream(watcher: Watcher) -> impl Stream<Item = Result<SentEvent, Infallible>> {
    stream::unfold((watcher, 0), |(mut watcher, seen)| async move {
        if seen > 0 {
            sleep(BETWEEN_VIEWS).await;
        }
        let (number, (view, answer)) = (watcher.number, oneshot::channel());
        // Either fails once the engine has ended.
        watcher.engine.send(Command::ViewRequest(ViewRequest { watcher: number, seen, view })).ok()?;
        let (view, pace) = tokio::select! {
            answer = answer => answer.ok()?,
            _ = &mut watcher.lost => return None,
        };
        let mut sent = json!(view.since(seen));
        (sent["watcher"], sent["pace"]) = (json!(number), json!(pace));
        Some((Ok(SentEvent::default().data(sent.to_string())), (watcher, view.version)))
    })
}
