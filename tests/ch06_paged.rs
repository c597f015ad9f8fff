//! Grader of chapter 6: the paged cache.

#[cfg(unstarted = "ch06_paged")]
#[test]
#[ignore = "not started: edit exercises/ch06_paged.rs, or run with --features solution"]
fn ch06_paged() {}

#[cfg(not(unstarted = "ch06_paged"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch06_paged"))]
mod checks {
    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId};
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
    use page_by_page::engine::{Cached, LanguageModel};

    use crate::support::oracle::{Dice, Oracle, seeds};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript};

    const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

    fn slab(page_size: usize, n_pages: usize) -> SharedSlab {
        PageSlab::new(LAYOUT, page_size, n_pages).expect("a slab with pages and slots can be made")
    }

    fn cache(slab: &SharedSlab) -> PagedCache {
        PagedCache::new(slab).expect("a cache over a slab can be made")
    }

    fn n_free(slab: &SharedSlab) -> usize {
        slab.borrow().pool().n_free()
    }

    fn pages(cache: &PagedCache) -> Vec<u32> {
        cache.table().pages().iter().map(|page| page.0).collect()
    }

    // Task 1

    #[test]
    fn task_1_extend_takes_pages_at_boundaries() {
        let slab = slab(4, 5);
        let mut cache = cache(&slab);
        for (n, len, free) in [(3, 3, 4), (1, 4, 4), (1, 5, 3), (0, 5, 3), (7, 12, 2), (8, 20, 0)] {
            same!(cache.extend(n), Ok(()), "extend({n})");
            same!(cache.len(), len, "tokens after extend({n})");
            same!(n_free(&slab), free, "free pages of 5 after extend({n}), page size 4");
        }
    }

    #[test]
    fn task_1_one_page_serves_all_layers() {
        let layout = KvLayout { n_layers: 6, n_kv_heads: 1, head_dim: 2 };
        let slab = PageSlab::new(layout, 4, 3).unwrap();
        let mut cache = cache(&slab);
        cache.extend(4).unwrap();
        same!(n_free(&slab), 2, "free pages of 3 when 4 tokens are held in 6 layers, page size 4");
    }

    #[test]
    fn task_1_out_of_pages_changes_nothing() {
        let slab = slab(4, 3);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let (mut oracle_a, mut oracle_b) = (Oracle::default(), Oracle::default());
        oracle_a.append(&mut a, &[0, 1, 2, 3, 4]);
        oracle_b.append(&mut b, &[100, 101]);
        let expected = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(a.extend(4), expected, "extend(4) on 5 tokens: 3 slots are left, no page is free");
        oracle_a.check(&a);
        oracle_b.check(&b);
        same!(n_free(&slab), 0, "free pages after the refusal");
        same!(a.extend(3), Ok(()), "extend(3) on 5 tokens: 3 slots are left");
    }

    // Task 2 and 3

    #[test]
    fn task_2_rows_land_in_the_slots_of_their_page() {
        let slab = slab(4, 6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let (mut oracle_a, mut oracle_b) = (Oracle::default(), Oracle::default());
        oracle_a.append(&mut a, &[0, 1, 2]);
        oracle_b.append(&mut b, &[100]);
        oracle_a.append(&mut a, &[3, 4]);
        oracle_a.check(&a);
        oracle_b.check(&b);
        same!(pages(&a), [0, 2], "pages of a, which grew before and after b took one");
        same!(pages(&b), [1], "pages of b");
    }

    #[test]
    fn task_2_pieces_may_begin_and_end_anywhere() {
        for page_size in 1..=6 {
            for pieces in [[3, 2, 5], [4, 4, 1], [1, 11, 3], [9, 1, 2], [5, 7, 6]] {
                let slab = slab(page_size, 30);
                let mut cache = cache(&slab);
                let mut oracle = Oracle::default();
                let mut next = 0;
                for n in pieces {
                    oracle.append(&mut cache, &(next..next + n).collect::<Vec<_>>());
                    next += n;
                    oracle.check(&cache);
                }
            }
        }
    }

    #[test]
    fn task_3_an_empty_cache_gathers_nothing() {
        let slab = slab(4, 2);
        let cache = cache(&slab);
        let (k, v) = cache.gather(1);
        same!((k.len(), v.len()), (0, 0), "numbers gathered from an empty cache");
    }

    #[test]
    fn task_3_stale_rows_in_reused_pages_are_not_seen() {
        let slab = slab(4, 2);
        let mut old = cache(&slab);
        Oracle::default().append(&mut old, &[200, 201, 202, 203, 204, 205, 206, 207]);
        drop(old);
        let mut new = cache(&slab);
        let mut oracle = Oracle::default();
        oracle.append(&mut new, &[1, 2, 3, 4, 5]);
        oracle.check(&new);
    }

    #[test]
    fn task_3_gather_goes_in_table_order() {
        let slab = slab(2, 6);
        let mut others: Vec<PagedCache> = (0..3).map(|_| cache(&slab)).collect();
        for other in &mut others {
            other.extend(2).unwrap();
        }
        // Pages 0, 1, 2 come back in this order, so the next ones are 2, 1, 0.
        others.drain(..).for_each(drop);
        let mut cache = cache(&slab);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2, 3, 4, 5]);
        same!(pages(&cache), [2, 1, 0], "pages of the cache");
        oracle.check(&cache);
    }

    // Task 4

    #[test]
    fn task_4_release_gives_the_pages_back_once() {
        let slab = slab(4, 4);
        let mut cache = cache(&slab);
        cache.extend(9).unwrap();
        cache.release();
        same!(n_free(&slab), 4, "free pages of 4 after release");
        same!(cache.len(), 0, "tokens after release");
        cache.release();
        same!(n_free(&slab), 4, "free pages after a second release");
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2, 3]);
        oracle.check(&cache);
        drop(cache);
        same!(n_free(&slab), 4, "free pages when the cache was used again and dropped");
    }

    #[test]
    fn task_4_a_dropped_cache_lets_its_pages_go() {
        let slab = slab(4, 4);
        for _ in 0..10 {
            let mut cache = cache(&slab);
            cache.extend(13).expect("all pages are free again when the cache before was dropped");
        }
        same!(n_free(&slab), 4, "free pages after ten caches came and went");
    }

    #[test]
    fn task_4_what_was_refused_fits_when_another_sequence_ends() {
        let slab = slab(4, 3);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        a.extend(4).unwrap();
        b.extend(8).unwrap();
        same!(a.extend(1), Err(CacheError::OutOfPages { needed: 1, free: 0 }), "extend(1) with no page free");
        drop(b);
        same!(a.extend(1), Ok(()), "the same extend(1) after the other sequence has ended");
    }

    // All tasks

    #[test]
    fn nothing_is_copied_however_long_the_text() {
        let slab = slab(16, 300);
        let mut cache = cache(&slab);
        let mut oracle = Oracle::default();
        for token in 0..2000 {
            oracle.append(&mut cache, &[token]);
        }
        same!(cache.usage().rows_copied, 0, "rows copied by 2,000 appends");
        same!(cache.usage().slots, 2000, "slots of 125 pages of 16");
        oracle.check(&cache);
    }

    #[test]
    fn a_slab_needs_pages_and_slots() {
        same!(PageSlab::new(LAYOUT, 0, 3).err(), Some(CacheError::NoSlots), "page size 0");
        same!(PageSlab::new(LAYOUT, 4, 0).err(), Some(CacheError::NoPages), "no pages");
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab(4, 4);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let mut next = [0, 100];
        for (name, n) in [("a", 3), ("b", 2), ("a", 2), ("b", 5), ("a", 4), ("b", 1)] {
            let (cache, next) = if name == "a" { (&mut a, &mut next[0]) } else { (&mut b, &mut next[1]) };
            let outcome = cache.extend(n);
            if outcome.is_ok() {
                let tokens: Vec<usize> = (*next..*next + n).collect();
                crate::support::oracle::write(cache, &tokens);
                *next += n;
            }
            transcript.line(format!(
                "{name}: extend({n})  {:<36} {:>2} tokens in pages {:<10} {} free",
                format!("{outcome:?}"),
                cache.len(),
                format!("{:?}", pages(cache)),
                n_free(&slab)
            ));
        }
        for (name, cache) in [("a", &a), ("b", &b)] {
            transcript.line(format!("gather of {name}, pages {:?}", pages(cache)));
            transcript.gather(cache);
        }
        drop(b);
        transcript.line(format!("b dropped   {} free", n_free(&slab)));
        assert_transcript("ch06_interleaved", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 3), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 3) };
            let (page_size, n_pages) = (dice.roll(1, 6), dice.roll(3, 16));
            let slab = PageSlab::new(layout, page_size, n_pages).unwrap();
            let mut sequences: Vec<(PagedCache, Oracle)> = Vec::new();
            let mut next = 0;
            for _ in 0..80 {
                match dice.roll(0, 9) {
                    0 if sequences.len() < 4 => sequences.push((cache(&slab), Oracle::default())),
                    1 if !sequences.is_empty() => {
                        sequences.remove(dice.roll(0, sequences.len() - 1));
                    }
                    _ if !sequences.is_empty() => {
                        let index = dice.roll(0, sequences.len() - 1);
                        let (cache, oracle) = &mut sequences[index];
                        let n = dice.roll(0, 2 * page_size + 1);
                        let needed = (cache.len() + n).div_ceil(page_size) - cache.table().pages().len();
                        let free = n_free(&slab);
                        if needed > free {
                            let expected = Err(CacheError::OutOfPages { needed, free });
                            same!(cache.extend(n), expected, "seed {seed}: extend({n}) with {free} pages free");
                            oracle.note(format!("extend({n}) refused"));
                        } else {
                            oracle.append(cache, &(next..next + n).collect::<Vec<_>>());
                            next += n;
                        }
                    }
                    _ => {}
                }
                let held: usize = sequences.iter().map(|(cache, _)| cache.table().pages().len()).sum();
                same!(n_free(&slab), n_pages - held, "seed {seed}: free pages when caches hold {held} of {n_pages}");
                for (cache, oracle) in &sequences {
                    oracle.check(cache);
                }
            }
            let taken: Vec<PageId> = sequences.iter().flat_map(|(cache, _)| cache.table().pages().to_vec()).collect();
            drop(sequences);
            same!(n_free(&slab), n_pages, "seed {seed}: free pages when all is dropped, {} were taken", taken.len());
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let expected = storyteller.recompute(40);
        for page_size in [1, 3, 16, 64] {
            let layout = storyteller.model.config().kv_layout();
            let slab = PageSlab::new(layout, page_size, 100).unwrap();
            // Another sequence takes every other page, so that the story's pages lie scattered.
            let mut other = cache(&slab);
            let mut cache = cache(&slab);
            let mut model = Cached::new(&storyteller.model, &mut cache);
            let story = storyteller.continue_with(40, |text| {
                let _ = other.extend(1);
                model.next_logits(text).expect("the slab has pages enough")
            });
            storyteller.assert_same_story(&story, &expected);
        }
    }
}
