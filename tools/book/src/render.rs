//! Renders the book with mdBook's own library, so that the result is what stock `mdbook build book` makes, and keeps
//! the warnings that mdBook would only log.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use mdbook_driver::MDBook;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::repository;

/// A warning or an error that mdBook logged and went on.
pub struct Complaint {
    /// The part of mdBook that complains: `mdbook_html::html::tree`.
    pub from: String,
    pub message: String,
}

/// Renders the book in `root/book` into the folder `to`, with these figures in place of its own of the same names, and links
/// to the repository if there is one.
pub fn render(
    root: &Path,
    to: &Path,
    figures: &BTreeMap<String, String>,
    repository: Option<&str>,
) -> Result<Vec<Complaint>> {
    let complaints = Complaints::default();
    tracing::subscriber::with_default(complaints.clone(), || {
        let mut book = MDBook::load(root.join("book")).context("mdBook cannot read the book")?;
        book.config.build.build_dir = to.to_path_buf();
        for (key, value) in repository.map_or(Vec::new(), repository::links) {
            book.config.set(format!("output.html.{key}"), value)?;
        }
        book.book.for_each_chapter_mut(|chapter| {
            for (name, figure) in figures {
                let include = format!("{{{{#include figures/{name}.html}}}}");
                chapter.content = chapter.content.replace(&include, figure.trim_end());
            }
        });
        book.build().context("mdBook cannot render the book")
    })?;
    let mut complaints = complaints.0.lock().expect("no thread panics while it holds the lock");
    Ok(std::mem::take(&mut complaints))
}

/// Collects what mdBook logs at level warn or error.
#[derive(Clone, Default)]
struct Complaints(Arc<Mutex<Vec<Complaint>>>);

impl Subscriber for Complaints {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("mdbook")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Message(String::new());
        event.record(&mut text);
        let mut complaints = self.0.lock().expect("no thread panics while it holds the lock");
        complaints.push(Complaint { from: event.metadata().target().to_string(), message: text.0 });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
