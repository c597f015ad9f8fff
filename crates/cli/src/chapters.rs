//! Which chapters a command runs, and whose code they are.

use anyhow::{Result, ensure};
use page_by_page::chapters::{CompiledChapter, Source, all, chapter};

/// The scheduler, and what it depends on: the pool, its tables and slab, forks, the prefix cache.
pub const SCHEDULER: [usize; 6] = [4, 5, 6, 10, 11, 12];
/// The scheduler, and what looks at it.
pub const SIMULATION: [usize; 7] = [4, 5, 6, 10, 11, 12, 15];
/// The scheduler, with greedy choice.
pub const SCHEDULER_AND_ARGMAX: [usize; 7] = [1, 4, 5, 6, 10, 11, 12];

pub fn ensure_started(numbers: &[usize]) -> Result<()> {
    for CompiledChapter { number, title, name, source, .. } in numbers.iter().map(|number| chapter(*number)) {
        ensure!(
            *source != Source::Stub,
            "chapter {number} ({title}) is not started: edit exercises/{name}.rs, or add --features solution"
        );
    }
    Ok(())
}

/// The same, and no task of theirs is left.
pub fn ensure_written(numbers: &[usize]) -> Result<()> {
    ensure_started(numbers)?;
    for chapter @ CompiledChapter { number, title, name, .. } in numbers.iter().map(|number| chapter(*number)) {
        ensure!(
            is_written(chapter),
            "chapter {number} ({title}) is begun and not done: this runs on your code, so finish its tasks first, or set \
             exercises/{name}.rs aside"
        );
    }
    Ok(())
}

/// Whose code the chapters are that a command runs: `1 yours, 3 reference`.
pub fn describe(needed: &[usize]) -> String {
    let needed = all().iter().filter(|chapter| needed.contains(&chapter.number));
    let chapters: Vec<String> = needed.map(|chapter| format!("{} {}", chapter.number, whose(chapter.source))).collect();
    chapters.join(", ")
}

pub fn whose(source: Source) -> &'static str {
    match source {
        Source::Yours => "yours",
        Source::Reference => "reference",
        Source::Stub => "not started",
    }
}

/// Whether all of it is there, of a reader or of the reference.
pub fn is_written(chapter: &CompiledChapter) -> bool {
    match chapter.source {
        Source::Reference => true,
        Source::Yours => chapter.tasks_left.is_empty(),
        Source::Stub => false,
    }
}
