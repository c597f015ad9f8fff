//! Work for several threads, and an output that they fill together.

use std::marker::PhantomData;
use std::num::NonZero;
use std::sync::OnceLock;

use rayon::prelude::*;

/// Multiply-adds below which other threads cost more than they save, called from the pool: the others may be awake.
const SHARED_WORK: usize = 1 << 15;
/// The limit for a call from outside the pool, which waits until the threads wake up.
const FOREIGN_WORK: usize = 1 << 20;

/// Runs `task` for every element, on several threads if the work (in multiply-adds) is worth it. A thread that is done
/// takes over any element that another has not begun.
pub(crate) fn for_each<T: Send>(items: impl Iterator<Item = T>, work: usize, task: impl Fn(T) + Sync + Send) {
    let worth = if rayon::current_thread_index().is_some() { SHARED_WORK } else { FOREIGN_WORK };
    if work < worth {
        items.for_each(task);
    } else {
        items.collect::<Vec<_>>().into_par_iter().with_max_len(1).for_each(task);
    }
}

/// Threads that share the work: those of the pool that this thread is of, or as many as there are cores.
pub(crate) fn threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    match rayon::current_thread_index() {
        Some(_) => rayon::current_num_threads(),
        None => *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get)),
    }
}

/// An output `[n, width]` that several tasks fill at once, each its own columns.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    _out: PhantomData<&'a mut [f32]>,
}

// SAFETY: `write` is the only access, and its callers keep to columns of their own. The numbers live as long as the
// `PhantomData` borrows them.
unsafe impl Send for Columns<'_> {}
// SAFETY: as above.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    pub(crate) fn new(out: &'a mut [f32], width: usize) -> Self {
        let rows = out.len().checked_div(width).unwrap_or(0);
        Columns { start: out.as_mut_ptr(), rows, width, _out: PhantomData }
    }

    /// Writes `values` into row `row`, from column `column` on.
    ///
    /// # Safety
    /// No other thread touches these places at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, row: usize, column: usize, values: &[f32]) {
        assert!(row < self.rows && column <= self.width && values.len() <= self.width - column);
        // Nothing wraps: by the check, this is inside `rows * width` numbers, and those lie inside the output.
        let at = row * self.width + column;
        // SAFETY: in bounds by the check above, exclusive by the caller's word; `values` cannot overlap an output.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), values.len()) };
    }
}
