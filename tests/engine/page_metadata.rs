//! Page tables in the words of other engines: the arrays that their kernels read.

use page_by_page::cache::CacheError;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

/// What FlashInfer's kernels read ([page functions](https://docs.flashinfer.ai/api/page.html)): the pages of all
/// sequences, one sequence after the other, where those of each begin, and the rows in each one's last page.
#[derive(Default)]
struct PagedKv {
    indptr: Vec<usize>,
    indices: Vec<u32>,
    last_page_len: Vec<usize>,
}

impl PagedKv {
    fn new(tables: &[&PageTable]) -> Self {
        let mut arrays = PagedKv { indptr: vec![0], ..PagedKv::default() };
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
/// ([`gpu/block_table.py`](https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/worker/gpu/block_table.py)): the
/// pages of each sequence, padded with 0; its rows; where its new tokens begin among those of the step; and the slot of
/// each new token.
#[derive(Default)]
struct BlockTables {
    block_table: Vec<Vec<u32>>,
    seq_lens: Vec<usize>,
    query_start_loc: Vec<usize>,
    slot_mapping: Vec<usize>,
}

impl BlockTables {
    /// Of these sequences, and how many of each one's newest tokens are new in this step.
    fn new(sequences: &[(&PageTable, usize)]) -> Result<Self, CacheError> {
        let longest = sequences.iter().map(|(table, _)| table.pages().len()).max().unwrap_or(0);
        let mut arrays = BlockTables { query_start_loc: vec![0], ..BlockTables::default() };
        for (table, n) in sequences {
            let mut line: Vec<u32> = table.pages().iter().map(|page| page.0).collect();
            line.resize(longest, 0);
            arrays.block_table.push(line);
            arrays.seq_lens.push(table.len());
            for position in table.len() - n..table.len() {
                let location = table.locate(position)?;
                arrays.slot_mapping.push(location.page.index() * table.page_size() + location.slot);
            }
            arrays.query_start_loc.push(arrays.slot_mapping.len());
        }
        Ok(arrays)
    }
}

#[test]
fn two_sequences_and_the_tokens_of_a_step() -> Result<(), CacheError> {
    let mut pool = PagePool::new(4)?;
    // Taken one by one, the pages go out in the order in which they are freed here, the last one first.
    let pages = pool.alloc_n(4)?;
    [1, 3, 0, 2].into_iter().for_each(|page| pool.free(pages[page]).unwrap());
    let (mut a, mut b) = (PageTable::new(4)?, PageTable::new(4)?);
    a.grow(6, &mut pool)?;
    b.grow(4, &mut pool)?;
    // ANCHOR: example
    // Page size 4. Sequence a has 6 tokens in pages 2 and 0, b has 4 in page 3.
    let flashinfer = PagedKv::new(&[&a, &b]);
    assert_eq!(flashinfer.indptr, [0, 2, 3]);
    assert_eq!(flashinfer.indices, [2, 0, 3]);
    assert_eq!(flashinfer.last_page_len, [2, 4]);

    // The newest 3 tokens of a and the newest of b are computed in this step.
    let vllm = BlockTables::new(&[(&a, 3), (&b, 1)])?;
    assert_eq!(vllm.block_table, [[2, 0], [3, 0]]);
    assert_eq!(vllm.seq_lens, [6, 4]);
    assert_eq!(vllm.query_start_loc, [0, 3, 4]);
    assert_eq!(vllm.slot_mapping, [11, 0, 1, 15]);
    // ANCHOR_END: example
    Ok(())
}
