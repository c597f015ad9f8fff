//! `--attention` and `--kv-dtype`: how the rows of a cache are read, and how their numbers are stored.

use anyhow::Result;
use clap::{Args, ValueEnum};
use page_by_page::cache::in_place::Attention;
use page_by_page::chapters::{Chapter, Source, chapter};
use page_by_page::kernels::RowFormat;
use page_by_page::model::Model;

use super::kv::{Kv, require_chapters};

/// How the rows of a cache are stored and read.
#[derive(Args, Clone, Copy)]
pub struct Reading {
    /// How attention reads keys and values: gather (copied together first), paged (where they lie) or plain (where they
    /// lie, with the loops of chapter 13) [default: paged, once chapter 13 is written]
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
    attention: Option<AttentionName>,
    /// How the numbers of keys and values are stored: f32, f16, bf16 or int8
    #[arg(long, value_name = "TYPE", value_enum, hide_possible_values = true, default_value_t = KvDtype::F32)]
    kv_dtype: KvDtype,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AttentionName {
    Gather,
    Paged,
    Plain,
}

/// The formats by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Bytes, and a scale for each head of a row.
    Int8,
}

impl KvDtype {
    /// What the engine calls it.
    pub fn format(self) -> RowFormat {
        match self {
            KvDtype::F32 => RowFormat::F32,
            KvDtype::F16 => RowFormat::F16,
            KvDtype::Bf16 => RowFormat::Bf16,
            KvDtype::Int8 => RowFormat::Int8,
        }
    }
}

impl Reading {
    /// How attention reads a cache. Without a word, in place if chapter 13 is written.
    fn attention(self) -> Attention {
        match self.attention {
            Some(AttentionName::Gather) => Attention::Gather,
            Some(AttentionName::Paged) => Attention::Paged,
            Some(AttentionName::Plain) => Attention::Plain,
            None if is_written(chapter(13)) => Attention::Paged,
            None => Attention::Gather,
        }
    }

    /// The chapters whose code it runs with this cache.
    pub fn chapters(self, kv: Kv) -> Vec<usize> {
        let mut chapters = Vec::new();
        let is_in_place = kv == Kv::Paged && self.attention() == Attention::Paged;
        if is_in_place || self.attention() == Attention::Plain {
            chapters.push(13);
        }
        if self.kv_dtype != KvDtype::F32 {
            chapters.push(14);
        }
        chapters
    }

    /// Tells the model.
    ///
    /// # Errors
    /// If a chapter that this needs is not started.
    pub fn apply(self, model: &mut Model, kv: Kv) -> Result<()> {
        require_chapters(&self.chapters(kv))?;
        model.set_attention(self.attention());
        model.set_row_format(self.kv_dtype.format());
        Ok(())
    }
}

fn is_written(chapter: &Chapter) -> bool {
    match chapter.source {
        Source::Reference => true,
        Source::Yours => chapter.tasks_left().is_empty(),
        Source::Unstarted => false,
    }
}
