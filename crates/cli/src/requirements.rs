//! Which chapters a command runs, and whose code they are.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use page_by_page::chapters::{CompiledChapter, Source, chapter};

/// Several sequences in one pool of pages, with the prefix cache.
pub const SCHEDULER: [usize; 2] = [11, 12];
pub const SCHEDULER_AND_ARGMAX: [usize; 3] = [1, 11, 12];
/// The scheduler, and what looks at it.
pub const SIMULATION: [usize; 3] = [11, 12, 15];

/// Chapters that give a trait to several caches. Whoever uses them names the cache.
const OF_SEVERAL_CACHES: [usize; 2] = [7, 13];

/// These chapters and those whose code they use, in order. What a command needs is listed without the latter.
pub fn with_dependencies(numbers: &[usize]) -> Vec<&'static CompiledChapter> {
    let (mut found, mut to_follow) = (BTreeSet::new(), numbers.to_vec());
    while let Some(number) = to_follow.pop() {
        if found.insert(number) && !OF_SEVERAL_CACHES.contains(&number) {
            to_follow.extend(chapter(number).uses);
        }
    }
    found.into_iter().map(chapter).collect()
}

/// Refuses, unless each of these chapters and of those that they use is begun or the reference.
pub fn ensure_started(numbers: &[usize]) -> Result<()> {
    for CompiledChapter { number, title, name, source, .. } in with_dependencies(numbers) {
        ensure!(
            *source != Source::Stub,
            "chapter {number} ({title}) is not started: edit exercises/{name}.rs, or add --features solution"
        );
    }
    Ok(())
}

/// Refuses, unless each of these chapters and of those that they use has no task left or is the reference.
pub fn ensure_written(numbers: &[usize]) -> Result<()> {
    ensure_started(numbers)?;
    for chapter @ CompiledChapter { number, title, name, .. } in with_dependencies(numbers) {
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
    let described = |chapter: &CompiledChapter| format!("{} {}", chapter.number, whose(chapter.source));
    with_dependencies(needed).into_iter().map(described).collect::<Vec<_>>().join(", ")
}

fn whose(source: Source) -> &'static str {
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
