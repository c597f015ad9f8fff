//! Page tables in the words of other engines: the arrays that their kernels read.
//!
//! A kernel on a GPU cannot follow a `Vec` of `Vec`s. It gets flat arrays of numbers: for every
//! sequence, which pages are its own, and how many rows it has. Engines use two forms. Here they are for two sequences of
//! 6 and 4 tokens in pages of 4, the first in pages 2 and 0, the second in page 3:
//!
//! ```text
//!   FlashInfer   paged_kv_indptr          0 2 3      sequence i has the pages indptr[i]..indptr[i + 1]
//!                paged_kv_indices         2 0 3      of this list
//!                paged_kv_last_page_len   2 4        rows in its last page
//!
//!   vLLM         block_table              2 0        a line for each sequence, as long as the longest
//!                                         3 0        what follows a sequence's own pages is not read
//!                seq_lens                 6 4        rows of each sequence
//! ```

use crate::cache::CacheError;
use crate::chapters::ch05_page_table::PageTable;

/// What FlashInfer's kernels read: [`append_paged_kv_cache` and others](https://docs.flashinfer.ai/api/page.html). There
/// they are 32-bit integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedKv {
    /// `[sequences + 1]`: where the pages of each sequence begin in `indices`, and where the last ones end.
    pub indptr: Vec<usize>,
    /// The pages of all sequences, one sequence after the other.
    pub indices: Vec<u32>,
    /// `[sequences]`: rows in the last page of each sequence; 0 if it has no page.
    pub last_page_len: Vec<usize>,
}

impl PagedKv {
    /// Of these sequences, in this order.
    pub fn new(tables: &[&PageTable]) -> Self {
        let mut arrays = PagedKv { indptr: vec![0], indices: Vec::new(), last_page_len: Vec::new() };
        for table in tables {
            let pages = table.pages();
            arrays.indices.extend(pages.iter().map(|page| page.0));
            arrays.indptr.push(arrays.indices.len());
            arrays.last_page_len.push(table.len() - pages.len().saturating_sub(1) * table.page_size());
        }
        arrays
    }
}

/// What vLLM's workers hand to their kernels
/// ([`gpu/block_table.py`](https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/worker/gpu/block_table.py)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTables {
    /// The pages of each sequence, padded with 0 to the same length.
    pub block_table: Vec<Vec<u32>>,
    /// `[sequences]`: rows of each sequence, including the new ones.
    pub seq_lens: Vec<usize>,
    /// `[sequences + 1]`: where the new tokens of each sequence begin among the rows of the step, and where the last ones end.
    pub query_start_loc: Vec<usize>,
    /// `[new tokens]`: where the row of each new token is written: page times page size plus slot.
    pub slot_mapping: Vec<usize>,
}

impl BlockTables {
    /// Of these sequences, in this order, and how many of each one's newest tokens are new in this step.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if more tokens are new than a sequence has.
    pub fn new(sequences: &[(&PageTable, usize)]) -> Result<Self, CacheError> {
        let longest = sequences.iter().map(|(table, _)| table.pages().len()).max().unwrap_or(0);
        let mut arrays = BlockTables {
            block_table: Vec::new(),
            seq_lens: Vec::new(),
            query_start_loc: vec![0],
            slot_mapping: Vec::new(),
        };
        for (table, n) in sequences.iter().copied() {
            let len = table.len();
            let first = len.checked_sub(n).ok_or(CacheError::PastTheStart { n, len })?;
            let mut line: Vec<u32> = table.pages().iter().map(|page| page.0).collect();
            line.resize(longest, 0);
            arrays.block_table.push(line);
            arrays.seq_lens.push(len);
            for position in first..len {
                let place = table.locate(position)?;
                arrays.slot_mapping.push(place.page.index() * table.page_size() + place.slot);
            }
            arrays.query_start_loc.push(arrays.slot_mapping.len());
        }
        Ok(arrays)
    }
}
