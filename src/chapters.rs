//! The course: one module a chapter, the reader's or the reference's.
//!
//! `build.rs` compares each stub in `exercises/` with its recorded hash. A chapter that the reader has started is taken
//! from `exercises/`. One that is untouched comes from `solutions/` with `--features solution`; without the feature its
//! stub is compiled, and its grader ignored. It also writes the table of the chapters, from `exercises/chapters.txt`.

#[cfg_attr(reference = "ch01_recompute", path = "../solutions/ch01_recompute.rs")]
#[cfg_attr(not(reference = "ch01_recompute"), path = "../exercises/ch01_recompute.rs", allow(unused))]
pub mod ch01_recompute;
#[cfg_attr(reference = "ch02_flat", path = "../solutions/ch02_flat.rs")]
#[cfg_attr(not(reference = "ch02_flat"), path = "../exercises/ch02_flat.rs", allow(unused))]
pub mod ch02_flat;
#[cfg_attr(reference = "ch03_contiguous", path = "../solutions/ch03_contiguous.rs")]
#[cfg_attr(not(reference = "ch03_contiguous"), path = "../exercises/ch03_contiguous.rs", allow(unused))]
pub mod ch03_contiguous;
#[cfg_attr(reference = "ch04_page_pool", path = "../solutions/ch04_page_pool.rs")]
#[cfg_attr(not(reference = "ch04_page_pool"), path = "../exercises/ch04_page_pool.rs", allow(unused))]
pub mod ch04_page_pool;
#[cfg_attr(reference = "ch05_page_table", path = "../solutions/ch05_page_table.rs")]
#[cfg_attr(not(reference = "ch05_page_table"), path = "../exercises/ch05_page_table.rs", allow(unused))]
pub mod ch05_page_table;
#[cfg_attr(reference = "ch06_paged", path = "../solutions/ch06_paged.rs")]
#[cfg_attr(not(reference = "ch06_paged"), path = "../exercises/ch06_paged.rs", allow(unused))]
pub mod ch06_paged;
#[cfg_attr(reference = "ch07_rewind", path = "../solutions/ch07_rewind.rs")]
#[cfg_attr(not(reference = "ch07_rewind"), path = "../exercises/ch07_rewind.rs", allow(unused))]
pub mod ch07_rewind;
#[cfg_attr(reference = "ch08_speculative", path = "../solutions/ch08_speculative.rs")]
#[cfg_attr(not(reference = "ch08_speculative"), path = "../exercises/ch08_speculative.rs", allow(unused))]
pub mod ch08_speculative;
#[cfg_attr(reference = "ch09_rejection", path = "../solutions/ch09_rejection.rs")]
#[cfg_attr(not(reference = "ch09_rejection"), path = "../exercises/ch09_rejection.rs", allow(unused))]
pub mod ch09_rejection;
#[cfg_attr(reference = "ch10_fork", path = "../solutions/ch10_fork.rs")]
#[cfg_attr(not(reference = "ch10_fork"), path = "../exercises/ch10_fork.rs", allow(unused))]
pub mod ch10_fork;
#[cfg_attr(reference = "ch11_prefix_cache", path = "../solutions/ch11_prefix_cache.rs")]
#[cfg_attr(not(reference = "ch11_prefix_cache"), path = "../exercises/ch11_prefix_cache.rs", allow(unused))]
pub mod ch11_prefix_cache;
#[cfg_attr(reference = "ch12_scheduler", path = "../solutions/ch12_scheduler.rs")]
#[cfg_attr(not(reference = "ch12_scheduler"), path = "../exercises/ch12_scheduler.rs", allow(unused))]
pub mod ch12_scheduler;
#[cfg_attr(reference = "ch13_paged_attention", path = "../solutions/ch13_paged_attention.rs")]
#[cfg_attr(not(reference = "ch13_paged_attention"), path = "../exercises/ch13_paged_attention.rs", allow(unused))]
pub mod ch13_paged_attention;
#[cfg_attr(reference = "ch14_kv_quantization", path = "../solutions/ch14_kv_quantization.rs")]
#[cfg_attr(not(reference = "ch14_kv_quantization"), path = "../exercises/ch14_kv_quantization.rs", allow(unused))]
pub mod ch14_kv_quantization;
#[cfg_attr(reference = "ch15_simulation", path = "../solutions/ch15_simulation.rs")]
#[cfg_attr(not(reference = "ch15_simulation"), path = "../exercises/ch15_simulation.rs", allow(unused))]
pub mod ch15_simulation;
#[cfg_attr(reference = "ch16_pages_on_disk", path = "../solutions/ch16_pages_on_disk.rs")]
#[cfg_attr(not(reference = "ch16_pages_on_disk"), path = "../exercises/ch16_pages_on_disk.rs", allow(unused))]
pub mod ch16_pages_on_disk;

/// A chapter of the book, as it was compiled.
#[derive(Clone, Copy, Debug)]
pub struct CompiledChapter {
    pub number: usize,
    pub title: &'static str,
    /// Its file name in `exercises/` and `solutions/`, without `.rs`.
    pub name: &'static str,
    pub source: Source,
    /// The numbers of the chapters that its code names in a `use`.
    pub uses: &'static [usize],
    /// The numbers of the chapters whose code its checks run, its own last.
    pub depends_on: &'static [usize],
    /// The reader's file as it was when this was compiled; an untouched stub, unless the code is the reader's.
    pub exercise: &'static str,
    /// What is still `todo!()` in that file, in the order of the tasks: the task, and its words.
    pub tasks_left: &'static [(u32, &'static str)],
}

/// Whose code a chapter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The reader's, from `exercises/`.
    Yours,
    /// The reference, from `solutions/`.
    Reference,
    /// The stub as it was handed out.
    Stub,
}

include!(concat!(env!("OUT_DIR"), "/chapters.rs"));

/// All chapters that have an exercise, in order.
pub fn all() -> &'static [CompiledChapter] {
    &CHAPTERS
}

/// The chapter of this number. Panics if the book has none.
pub fn chapter(number: usize) -> &'static CompiledChapter {
    all().iter().find(|chapter| chapter.number == number).expect("a chapter of the book")
}
