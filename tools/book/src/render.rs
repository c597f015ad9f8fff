//! Renders the book with mdBook's own library, so that the result is what stock `mdbook build book` makes, and keeps
//! the warnings that mdBook would only log.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use anyhow::{Context, Result};
use mdbook_driver::MDBook;
use tracing::field::Field;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::repository;

/// A warning or an error that mdBook logged and went on.
pub struct Complaint {
    /// The part of mdBook that complains: `mdbook_html::html::tree`.
    pub from: String,
    pub message: String,
}

/// Renders the book in `root/book` into `to`, with these figures in place of its own, and links to the repository.
pub fn render(
    root: &Path,
    to: &Path,
    figures: &BTreeMap<String, String>,
    repository: Option<&str>,
) -> Result<Vec<Complaint>> {
    let (sender, complaints) = mpsc::channel();
    tracing::subscriber::with_default(Listener(sender), || {
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
    Ok(complaints.try_iter().collect())
}

/// Sends on what mdBook logs at level warn or error.
struct Listener(Sender<Complaint>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("mdbook")
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = String::new();
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            if field.name() == "message" {
                message = format!("{value:?}");
            }
        });
        // Nobody has stopped listening: the receiver lives as long as the rendering.
        let _ = self.0.send(Complaint { from: event.metadata().target().to_string(), message });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
