//! `--page-file`: a file for pages that outlive the run or were evicted in it.

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

use crate::output::{count, thousands};

/// The file, and how large it may get.
#[derive(Args)]
pub struct PageFileOptions {
    /// Write every full page to this file, and read from it what it has of a prompt: pages that were evicted, or computed in
    /// an earlier run. It is made if it is not there
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
        if self.page_file.is_some() { &[16] } else { &[] }
    }

    /// Opens the file, if one was named, as the next tier below `prefixes`, which keeps pages of this slab.
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

    /// For a report.
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
    /// In a line.
    pub fn describe(&self) -> String {
        let error = self.error.as_ref().map_or(String::new(), |error| format!("; then no more: {error}"));
        format!(
            "{} of {} read were brought back, {} written; it has {} of {}{error}",
            thousands(self.brought_back),
            count(self.read, "page"),
            thousands(self.written),
            thousands(self.pages),
            thousands(self.most_pages)
        )
    }
}
