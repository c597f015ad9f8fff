//! `--page-file`: pages that outlive the run, and those that were evicted in it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::Args;
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::disk::PageShape;
use page_by_page::disk::file::FileDisk;
use page_by_page::disk::tier::{SharedPrefixes, Tier};
use page_by_page::model::Model;
use page_by_page::prefixes::Prefixes;
use serde::Serialize;

use super::report::{count, thousands};

/// Where pages go that memory has no room for.
#[derive(Args)]
pub struct PageFileOptions {
    /// Write every full page to this file, and read from it what it has of a prompt: what was evicted, or computed in another
    /// run. It is made if it is not there
    #[arg(long, value_name = "FILE", conflicts_with = "no_prefix_cache")]
    page_file: Option<PathBuf>,
    /// How large the file may get; the pages that were used longest ago are overwritten
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "page_file")]
    page_file_mib: u64,
}

/// What went to the file, and came from it.
#[derive(Serialize)]
pub struct PageFileReport {
    file: PathBuf,
    /// Pages that were read.
    read: u64,
    /// Of these, pages that the prefix cache got.
    brought_back: u64,
    /// Pages that were written; where a page could not be, those before it are not counted.
    written: u64,
    /// Pages in the file.
    pages: usize,
    /// Pages that it has room for.
    most_pages: usize,
    /// Why nothing was written from some step on.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl PageFileOptions {
    /// The chapters whose code it runs.
    pub fn chapters(&self) -> &'static [usize] {
        if self.is_asked() { &[16] } else { &[] }
    }

    /// Whether a file was named.
    pub fn is_asked(&self) -> bool {
        self.page_file.is_some()
    }

    /// Opens the file, if one was named, and puts it behind `prefixes`, which keeps pages of this slab.
    pub fn open(
        &self,
        prefixes: Box<dyn Prefixes>,
        model: &Model,
        page_size: usize,
        slab: &SharedSlab,
    ) -> Result<(Box<dyn Prefixes>, Option<Tier>)> {
        let Some(path) = &self.page_file else { return Ok((prefixes, None)) };
        let at = || path.display().to_string();
        let disk = FileDisk::open(path).with_context(at)?;
        let (shape, bytes) = (PageShape::of(model, page_size), self.page_file_mib.saturating_mul(1 << 20));
        let prefixes: SharedPrefixes = Rc::new(RefCell::new(prefixes));
        let tier = Tier::open(disk, shape, bytes, prefixes.clone(), slab).with_context(at)?;
        Ok((Box::new(prefixes), Some(tier)))
    }

    /// What came of it.
    pub fn report(&self, tier: Option<&Tier>) -> Option<PageFileReport> {
        let (tier, counters) = (tier?, tier?.counters());
        Some(PageFileReport {
            file: self.page_file.clone()?,
            read: counters.read,
            brought_back: counters.brought_back,
            written: counters.written,
            pages: tier.file().n_records(),
            most_pages: tier.file().n_places(),
            error: tier.failed().map(ToString::to_string),
        })
    }
}

impl PageFileReport {
    /// A line for people.
    pub fn in_words(&self) -> String {
        let PageFileReport { read, brought_back, written, pages, most_pages, error, .. } = self;
        let brought_back = thousands(*brought_back);
        let read = count(*read as usize, "page");
        let (written, pages, most_pages) =
            (thousands(*written), thousands(*pages as u64), thousands(*most_pages as u64));
        let error = error.as_ref().map_or(String::new(), |error| format!("; then no more: {error}"));
        format!(
            "{brought_back} of {read} read were brought back, {written} written; it has {pages} of {most_pages}{error}"
        )
    }
}
