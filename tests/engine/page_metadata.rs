//! Our page tables as the arrays that FlashInfer and vLLM read.

use page_by_page::cache::page_metadata::{BlockTables, PagedKv};
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

/// A table of `tokens` tokens in these pages of 4.
fn table(pool: &mut PagePool, pages: &[u32], tokens: usize) -> PageTable {
    // The page freed last goes out first.
    let all = pool.alloc_n(pool.n_free()).unwrap();
    let (mine, others): (Vec<PageId>, Vec<PageId>) = all.into_iter().partition(|page| pages.contains(&page.0));
    assert_eq!(mine.len(), pages.len(), "free pages");
    others
        .iter()
        .chain(pages.iter().rev().map(|page| mine.iter().find(|mine| mine.0 == *page).unwrap()))
        .for_each(|page| pool.free(*page).unwrap());
    let mut table = PageTable::new(4).unwrap();
    table.grow(tokens, pool).unwrap();
    assert_eq!(table.pages().iter().map(|page| page.0).collect::<Vec<_>>(), pages);
    table
}

#[test]
fn two_sequences_and_the_tokens_of_a_step() -> Result<(), CacheError> {
    let mut pool = PagePool::new(9).unwrap();
    let (a, b) = (table(&mut pool, &[2, 0], 6), table(&mut pool, &[3], 4));
    // ANCHOR: example
    // Sequence a: 6 tokens in pages 2 and 0. Sequence b: 4 tokens in page 3. Page size 4.
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

#[test]
fn sequences_without_pages_and_without_new_tokens() {
    let mut pool = PagePool::new(9).unwrap();
    let (a, none) = (table(&mut pool, &[5, 7, 1], 9), PageTable::new(4).unwrap());
    let flashinfer = PagedKv::new(&[&none, &a, &none]);
    assert_eq!(flashinfer.indptr, [0, 0, 3, 3]);
    assert_eq!(flashinfer.indices, [5, 7, 1]);
    assert_eq!(flashinfer.last_page_len, [0, 1, 0]);
    assert_eq!(PagedKv::new(&[]), PagedKv { indptr: vec![0], indices: vec![], last_page_len: vec![] });

    let vllm = BlockTables::new(&[(&none, 0), (&a, 0), (&a, 9)]).unwrap();
    assert_eq!(vllm.block_table, [[0, 0, 0], [5, 7, 1], [5, 7, 1]]);
    assert_eq!(vllm.seq_lens, [0, 9, 9]);
    assert_eq!(vllm.query_start_loc, [0, 0, 0, 9]);
    assert_eq!(vllm.slot_mapping, [20, 21, 22, 23, 28, 29, 30, 31, 4]);
}

#[test]
fn no_more_tokens_are_new_than_there_are() {
    let mut pool = PagePool::new(9).unwrap();
    let a = table(&mut pool, &[2, 0], 6);
    assert_eq!(BlockTables::new(&[(&a, 7)]), Err(CacheError::PastTheStart { n: 7, len: 6 }));
}

/// The arrays of a sequence give all of its rows, in order, at every length.
#[test]
fn the_arrays_name_every_row_once() {
    for tokens in 0..=20 {
        let mut pool = PagePool::new(9).unwrap();
        let pages: Vec<u32> = [8, 2, 5, 0, 7].into_iter().take(usize::div_ceil(tokens, 4)).collect();
        let a = table(&mut pool, &pages, tokens);
        let expected: Vec<usize> = (0..tokens).map(|i| pages[i / 4] as usize * 4 + i % 4).collect();
        let PagedKv { indptr, indices, last_page_len } = PagedKv::new(&[&a]);
        let mut found = Vec::new();
        let pages = &indices[indptr[0]..indptr[1]];
        for (i, page) in pages.iter().enumerate() {
            let rows = if i + 1 == pages.len() { last_page_len[0] } else { 4 };
            found.extend((0..rows).map(|slot| *page as usize * 4 + slot));
        }
        assert_eq!(found, expected, "{tokens} tokens");
        assert_eq!(BlockTables::new(&[(&a, tokens)]).unwrap().slot_mapping, expected, "{tokens} tokens");
    }
}
