//! The course: one module a chapter, the reader's or the reference's.
//!
//! `build.rs` compares each stub in `exercises/` with its recorded hash. A chapter that the reader has started is taken
//! from `exercises/`. One that is untouched comes from `solutions/` with `--features solution`; without the feature its
//! stub is compiled, and its grader ignored.

use std::ops::Range;

use crate::cache::{KvLayout, PageId};
use crate::kernels::Run;

#[cfg_attr(reference = "ch01_recompute", path = "../solutions/ch01_recompute.rs")]
#[cfg_attr(not(reference = "ch01_recompute"), path = "../exercises/ch01_recompute.rs")]
#[cfg_attr(not(reference = "ch01_recompute"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch01_recompute;

#[cfg_attr(reference = "ch02_flat", path = "../solutions/ch02_flat.rs")]
#[cfg_attr(not(reference = "ch02_flat"), path = "../exercises/ch02_flat.rs")]
#[cfg_attr(not(reference = "ch02_flat"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch02_flat;

#[cfg_attr(reference = "ch03_contiguous", path = "../solutions/ch03_contiguous.rs")]
#[cfg_attr(not(reference = "ch03_contiguous"), path = "../exercises/ch03_contiguous.rs")]
#[cfg_attr(not(reference = "ch03_contiguous"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch03_contiguous;

#[cfg_attr(reference = "ch04_page_pool", path = "../solutions/ch04_page_pool.rs")]
#[cfg_attr(not(reference = "ch04_page_pool"), path = "../exercises/ch04_page_pool.rs")]
#[cfg_attr(not(reference = "ch04_page_pool"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch04_page_pool;

#[cfg_attr(reference = "ch05_page_table", path = "../solutions/ch05_page_table.rs")]
#[cfg_attr(not(reference = "ch05_page_table"), path = "../exercises/ch05_page_table.rs")]
#[cfg_attr(not(reference = "ch05_page_table"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch05_page_table;

#[cfg_attr(reference = "ch06_paged", path = "../solutions/ch06_paged.rs")]
#[cfg_attr(not(reference = "ch06_paged"), path = "../exercises/ch06_paged.rs")]
#[cfg_attr(not(reference = "ch06_paged"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch06_paged;

#[cfg_attr(reference = "ch07_rewind", path = "../solutions/ch07_rewind.rs")]
#[cfg_attr(not(reference = "ch07_rewind"), path = "../exercises/ch07_rewind.rs")]
#[cfg_attr(not(reference = "ch07_rewind"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch07_rewind;

#[cfg_attr(reference = "ch08_speculative", path = "../solutions/ch08_speculative.rs")]
#[cfg_attr(not(reference = "ch08_speculative"), path = "../exercises/ch08_speculative.rs")]
#[cfg_attr(not(reference = "ch08_speculative"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch08_speculative;

#[cfg_attr(reference = "ch09_chance", path = "../solutions/ch09_chance.rs")]
#[cfg_attr(not(reference = "ch09_chance"), path = "../exercises/ch09_chance.rs")]
#[cfg_attr(not(reference = "ch09_chance"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch09_chance;

#[cfg_attr(reference = "ch10_fork", path = "../solutions/ch10_fork.rs")]
#[cfg_attr(not(reference = "ch10_fork"), path = "../exercises/ch10_fork.rs")]
#[cfg_attr(not(reference = "ch10_fork"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch10_fork;

#[cfg_attr(reference = "ch11_prefix_cache", path = "../solutions/ch11_prefix_cache.rs")]
#[cfg_attr(not(reference = "ch11_prefix_cache"), path = "../exercises/ch11_prefix_cache.rs")]
#[cfg_attr(not(reference = "ch11_prefix_cache"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch11_prefix_cache;

#[cfg_attr(reference = "ch12_scheduler", path = "../solutions/ch12_scheduler.rs")]
#[cfg_attr(not(reference = "ch12_scheduler"), path = "../exercises/ch12_scheduler.rs")]
#[cfg_attr(not(reference = "ch12_scheduler"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch12_scheduler;

#[cfg_attr(reference = "ch13_paged_attention", path = "../solutions/ch13_paged_attention.rs")]
#[cfg_attr(not(reference = "ch13_paged_attention"), path = "../exercises/ch13_paged_attention.rs")]
#[cfg_attr(not(reference = "ch13_paged_attention"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch13_paged_attention;

#[cfg_attr(reference = "ch14_half_the_bytes", path = "../solutions/ch14_half_the_bytes.rs")]
#[cfg_attr(not(reference = "ch14_half_the_bytes"), path = "../exercises/ch14_half_the_bytes.rs")]
#[cfg_attr(not(reference = "ch14_half_the_bytes"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch14_half_the_bytes;

#[cfg_attr(reference = "ch15_simulation", path = "../solutions/ch15_simulation.rs")]
#[cfg_attr(not(reference = "ch15_simulation"), path = "../exercises/ch15_simulation.rs")]
#[cfg_attr(not(reference = "ch15_simulation"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch15_simulation;

#[cfg_attr(reference = "ch16_pages_on_disk", path = "../solutions/ch16_pages_on_disk.rs")]
#[cfg_attr(not(reference = "ch16_pages_on_disk"), path = "../exercises/ch16_pages_on_disk.rs")]
#[cfg_attr(not(reference = "ch16_pages_on_disk"), allow(unused_variables, unused_imports, unused_mut, dead_code))]
pub mod ch16_pages_on_disk;

/// A chapter of the book.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    /// Its number in the book.
    pub number: usize,
    /// Its title in the book.
    pub title: &'static str,
    /// Its file name in `exercises/` and `solutions/`, without `.rs`.
    pub name: &'static str,
    /// Whose code was compiled.
    pub source: Source,
    /// The reader's file as it was when this was compiled; an untouched stub, unless the code is the reader's.
    pub exercise: &'static str,
}

/// Whose code a chapter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The reader's, from `exercises/`.
    Yours,
    /// The reference, from `solutions/`.
    Reference,
    /// Nobody's: the untouched stub.
    Unstarted,
}

impl Chapter {
    /// What is still `todo!()` in the reader's file, by the number of the task: `task 2: gather …`.
    pub fn tasks_left(&self) -> Vec<&'static str> {
        let prefix = format!("todo!(\"ch{:02} ", self.number);
        let messages = self.exercise.split(prefix.as_str()).skip(1);
        let mut tasks: Vec<&str> = messages.filter_map(|rest| rest.split_once('"')).map(|(task, _)| task).collect();
        tasks.sort_by_key(|task| task.split(':').next());
        tasks
    }
}

const CHAPTERS: [Chapter; 16] = [
    Chapter {
        number: 1,
        title: "Recompute everything",
        name: "ch01_recompute",
        source: source(cfg!(reference = "ch01_recompute"), cfg!(unstarted = "ch01_recompute")),
        exercise: include_str!("../exercises/ch01_recompute.rs"),
    },
    Chapter {
        number: 2,
        title: "The flat cache",
        name: "ch02_flat",
        source: source(cfg!(reference = "ch02_flat"), cfg!(unstarted = "ch02_flat")),
        exercise: include_str!("../exercises/ch02_flat.rs"),
    },
    Chapter {
        number: 3,
        title: "The contiguous cache",
        name: "ch03_contiguous",
        source: source(cfg!(reference = "ch03_contiguous"), cfg!(unstarted = "ch03_contiguous")),
        exercise: include_str!("../exercises/ch03_contiguous.rs"),
    },
    Chapter {
        number: 4,
        title: "The page pool",
        name: "ch04_page_pool",
        source: source(cfg!(reference = "ch04_page_pool"), cfg!(unstarted = "ch04_page_pool")),
        exercise: include_str!("../exercises/ch04_page_pool.rs"),
    },
    Chapter {
        number: 5,
        title: "The page table",
        name: "ch05_page_table",
        source: source(cfg!(reference = "ch05_page_table"), cfg!(unstarted = "ch05_page_table")),
        exercise: include_str!("../exercises/ch05_page_table.rs"),
    },
    Chapter {
        number: 6,
        title: "The paged cache",
        name: "ch06_paged",
        source: source(cfg!(reference = "ch06_paged"), cfg!(unstarted = "ch06_paged")),
        exercise: include_str!("../exercises/ch06_paged.rs"),
    },
    Chapter {
        number: 7,
        title: "Rewind",
        name: "ch07_rewind",
        source: source(cfg!(reference = "ch07_rewind"), cfg!(unstarted = "ch07_rewind")),
        exercise: include_str!("../exercises/ch07_rewind.rs"),
    },
    Chapter {
        number: 8,
        title: "Speculative decoding",
        name: "ch08_speculative",
        source: source(cfg!(reference = "ch08_speculative"), cfg!(unstarted = "ch08_speculative")),
        exercise: include_str!("../exercises/ch08_speculative.rs"),
    },
    Chapter {
        number: 9,
        title: "Guessing by chance",
        name: "ch09_chance",
        source: source(cfg!(reference = "ch09_chance"), cfg!(unstarted = "ch09_chance")),
        exercise: include_str!("../exercises/ch09_chance.rs"),
    },
    Chapter {
        number: 10,
        title: "Fork and copy-on-write",
        name: "ch10_fork",
        source: source(cfg!(reference = "ch10_fork"), cfg!(unstarted = "ch10_fork")),
        exercise: include_str!("../exercises/ch10_fork.rs"),
    },
    Chapter {
        number: 11,
        title: "The prefix cache",
        name: "ch11_prefix_cache",
        source: source(cfg!(reference = "ch11_prefix_cache"), cfg!(unstarted = "ch11_prefix_cache")),
        exercise: include_str!("../exercises/ch11_prefix_cache.rs"),
    },
    Chapter {
        number: 12,
        title: "The scheduler",
        name: "ch12_scheduler",
        source: source(cfg!(reference = "ch12_scheduler"), cfg!(unstarted = "ch12_scheduler")),
        exercise: include_str!("../exercises/ch12_scheduler.rs"),
    },
    Chapter {
        number: 13,
        title: "Paged attention",
        name: "ch13_paged_attention",
        source: source(cfg!(reference = "ch13_paged_attention"), cfg!(unstarted = "ch13_paged_attention")),
        exercise: include_str!("../exercises/ch13_paged_attention.rs"),
    },
    Chapter {
        number: 14,
        title: "Half the bytes",
        name: "ch14_half_the_bytes",
        source: source(cfg!(reference = "ch14_half_the_bytes"), cfg!(unstarted = "ch14_half_the_bytes")),
        exercise: include_str!("../exercises/ch14_half_the_bytes.rs"),
    },
    Chapter {
        number: 15,
        title: "Break the scheduler",
        name: "ch15_simulation",
        source: source(cfg!(reference = "ch15_simulation"), cfg!(unstarted = "ch15_simulation")),
        exercise: include_str!("../exercises/ch15_simulation.rs"),
    },
    Chapter {
        number: 16,
        title: "Pages on disk",
        name: "ch16_pages_on_disk",
        source: source(cfg!(reference = "ch16_pages_on_disk"), cfg!(unstarted = "ch16_pages_on_disk")),
        exercise: include_str!("../exercises/ch16_pages_on_disk.rs"),
    },
];

const fn source(reference: bool, unstarted: bool) -> Source {
    match (reference, unstarted) {
        (true, _) => Source::Reference,
        (false, true) => Source::Unstarted,
        (false, false) => Source::Yours,
    }
}

/// Where [`PageSlab::range`](ch06_paged::PageSlab) of chapter 6 looks for rows in a slab of this layout and page size, however
/// many pages it would have. Nothing lies there: such a slab may be larger than any memory.
#[doc(hidden)]
pub fn range_in_a_hollow_slab(
    layout: KvLayout,
    page_size: usize,
    page: PageId,
    layer: usize,
    slots: Range<usize>,
) -> Range<usize> {
    let smallest = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };
    let slab = ch06_paged::PageSlab::new(smallest, 1, 1).expect("a slab of one slot");
    let mut slab = slab.borrow_mut();
    (slab.layout, slab.page_size) = (layout, page_size);
    slab.range(page, layer, slots)
}

/// What [`PagedCache::runs`](ch06_paged::PagedCache::runs) of chapter 13 says of a text in these pages of such a slab.
#[doc(hidden)]
pub fn runs_in_a_hollow_slab(
    layout: KvLayout,
    page_size: usize,
    pages: &[PageId],
    tokens: usize,
    layer: usize,
) -> Vec<Run> {
    let smallest = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };
    let slab = ch06_paged::PageSlab::new(smallest, 1, 1).expect("a slab of one slot");
    let mut cache = ch06_paged::PagedCache::new(&slab).expect("a cache of its slab");
    cache.table = ch05_page_table::PageTable::new(page_size).expect("pages with slots");
    (cache.table.pages, cache.table.len) = (pages.to_vec(), tokens);
    {
        let mut slab = slab.borrow_mut();
        (slab.layout, slab.page_size) = (layout, page_size);
    }
    let runs = cache.runs(layer);
    // They are nobody's pages, so they must not be given back.
    cache.table.pages.clear();
    runs
}

/// All chapters that have an exercise, in order.
pub fn all() -> &'static [Chapter] {
    &CHAPTERS
}

/// The chapter of this number.
///
/// # Panics
/// If there is none.
pub fn chapter(number: usize) -> &'static Chapter {
    all().iter().find(|chapter| chapter.number == number).expect("a chapter of the book")
}
