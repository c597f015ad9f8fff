//! `--page-file`: a file for pages that outlive the run or were evicted in it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use page_by_page::disk::file_disk::FileDisk;
use page_by_page::model::Model;
use page_by_page::serving::disk_tier::{DiskTier, TierCounters};

use crate::output::{plural, thousands};

/// The file, and how large it may get.
#[derive(Args)]
pub struct PageFileOptions {
    /// Write every full page to this file, and read from it what it has of a prompt: pages that were evicted, or
    /// computed in an earlier run. It is made if it is not there
    #[arg(long, value_name = "FILE", conflicts_with = "no_prefix_cache")]
    page_file: Option<PathBuf>,
    /// How large the file may get; the pages that were used longest ago are overwritten
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "page_file")]
    page_file_mib: u64,
}

impl PageFileOptions {
    pub fn chapters(&self) -> &'static [usize] {
        if self.page_file.is_some() { &[16] } else { &[] }
    }

    /// Opens the file, if one was named, as the next tier below a prefix cache.
    pub fn open(&self, model: &Model, page_size: usize) -> Result<Option<DiskTier>> {
        let Some(path) = &self.page_file else { return Ok(None) };
        let at = || path.display().to_string();
        let disk = FileDisk::open(path).with_context(at)?;
        let bytes = self.page_file_mib.saturating_mul(1 << 20);
        Ok(Some(DiskTier::open(disk, model, page_size, bytes).with_context(at)?))
    }
}

pub fn describe(tier: &DiskTier) -> String {
    let TierCounters { written, read, restored } = tier.counters();
    let ([restored, written], read) = ([restored, written].map(thousands), plural(read, "page"));
    let index = tier.file().index();
    let [held, most] = [index.n_records(), index.n_places()].map(thousands);
    let error = tier.failed().map_or(String::new(), |error| format!("; then no more: {error}"));
    format!("{restored} of {read} read were brought back, {written} written; it has {held} of {most}{error}")
}
