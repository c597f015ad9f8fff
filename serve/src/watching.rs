//! Those who watch the pages: how many there may be, and what they see.
//!
//! ```text
//!   watcher ── Look(newer than 7) ──► engine      after its next step, or at once if something has changed already
//!   watcher ◄── View, version 12 ──── engine      and 50 ms later the watcher looks again
//! ```
//!
//! The engine shows what is there when it is asked, and at no other time. A watcher has one look under way at most, and looks
//! again when what it saw has been taken from it: one that is slow sees less often, always the newest, and nothing piles up.
//! Where nobody watches, a step costs one look at an empty list.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::Event as SentEvent;
use futures_core::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Sleep, sleep};

use super::refusal::Refusal;
use super::talk::Command;
use page_by_page::serving::view::{EndedView, View};

/// From one look of a watcher to its next. More would be more than an eye sees.
const PACE: Duration = Duration::from_millis(50);
/// Texts that are shown after their end.
const ENDED: usize = 16;
/// After how many seconds somebody else may have gone.
const LATER: u32 = 10;

/// Places for those who watch.
#[derive(Clone, Debug)]
pub struct Places {
    all: usize,
    free: Arc<Semaphore>,
}

impl Places {
    /// So many may watch at the same time.
    pub fn new(all: usize) -> Self {
        let all = all.min(Semaphore::MAX_PERMITS);
        Places { all, free: Arc::new(Semaphore::new(all)) }
    }

    /// Refuses everything that there is to see where nobody may watch.
    ///
    /// # Errors
    /// [`Refusal`]: 404.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.all > 0 {
            return Ok(());
        }
        let message = "nobody may watch the pages of this server; start it with --watchers 8, so that eight may";
        Err(Refusal::new(StatusCode::NOT_FOUND, Some("not_watched"), message))
    }

    /// A place for one, until it is dropped.
    ///
    /// # Errors
    /// [`Refusal`]: 404 where nobody may watch, 429 where as many watch as may.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.check()?;
        self.free.clone().try_acquire_owned().map_err(|_| {
            let all = self.all;
            let message = format!("{all} of {all} places to watch the pages are taken; ask again, or see --watchers");
            Refusal::full(message, LATER)
        })
    }

    /// Whether anybody watches now.
    fn is_watched(&self) -> bool {
        self.free.available_permits() < self.all
    }
}

/// A wish to see what is there, when it is newer than what was seen.
pub struct Look {
    /// The version that was seen, 0 for none.
    pub seen: u64,
    /// Where to.
    pub shown: oneshot::Sender<Arc<View>>,
}

/// What the engine has for those who watch.
pub struct Stage {
    places: Places,
    /// Slots in a page.
    page_size: usize,
    /// Counts up whenever something changes.
    version: u64,
    looks: Vec<Look>,
    /// The newest last.
    ended: VecDeque<EndedView>,
}

impl Stage {
    /// For those who have these places, to see a pool whose pages have `page_size` slots.
    pub fn new(places: Places, page_size: usize) -> Self {
        Stage { places, page_size, version: 1, looks: Vec::new(), ended: VecDeque::new() }
    }

    /// Something is not as it was.
    pub fn note_change(&mut self) {
        self.version += 1;
    }

    /// A text has ended. Nobody hears of it who does not watch now.
    pub fn note_end(&mut self, ended: impl FnOnce() -> EndedView) {
        if self.places.is_watched() {
            self.ended.push_back(EndedView { at: self.version + 1, ..ended() });
            if self.ended.len() > ENDED {
                self.ended.pop_front();
            }
        } else {
            self.ended.clear();
        }
        self.version += 1;
    }

    /// Somebody wants to look.
    pub fn ask(&mut self, look: Look) {
        self.looks.push(look);
    }

    /// Shows `view`, which it hands the slots of a page, to those who have not seen it, if there are any.
    pub fn show(&mut self, view: impl FnOnce(usize) -> View) {
        if self.looks.is_empty() {
            return;
        }
        // Those who have gone are forgotten.
        self.looks.retain(|look| !look.shown.is_closed());
        let version = self.version;
        if self.looks.iter().all(|look| look.seen == version) {
            return;
        }
        let view = Arc::new(View { version, ended: self.ended.iter().cloned().collect(), ..view(self.page_size) });
        for look in self.looks.extract_if(.., |look| look.seen != version) {
            let _ = look.shown.send(view.clone());
        }
    }
}

/// What a watcher sees, one view after the other, until the engine ends or the watcher goes.
pub struct Watching {
    engine: Sender<Command>,
    seen: u64,
    look: Option<oneshot::Receiver<Arc<View>>>,
    pause: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Watching {
    /// Begins with what is there now.
    pub fn new(engine: Sender<Command>, place: OwnedSemaphorePermit) -> Self {
        Watching { engine, seen: 0, look: None, pause: None, _place: place }
    }
}

impl Stream for Watching {
    type Item = Result<SentEvent, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let mut look = match self.look.take() {
            Some(look) => look,
            None => {
                let (shown, look) = oneshot::channel();
                if self.engine.send(Command::Look(Look { seen: self.seen, shown })).is_err() {
                    return Poll::Ready(None);
                }
                look
            }
        };
        let view = match Pin::new(&mut look).poll(context) {
            Poll::Ready(Ok(view)) => view,
            // The engine has ended.
            Poll::Ready(Err(_)) => return Poll::Ready(None),
            Poll::Pending => {
                self.look = Some(look);
                return Poll::Pending;
            }
        };
        let shown = view.since(self.seen);
        self.seen = view.version;
        self.pause = Some(Box::pin(sleep(PACE)));
        Poll::Ready(serde_json::to_string(&shown).ok().map(|json| Ok(SentEvent::default().data(json))))
    }
}
