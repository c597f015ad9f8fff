//! What a chapter gains, as `page-by-page gains N` counts it on the code as it is.

use std::path::Path;

use page_by_page_course::cargo::{Running, Streams};

use crate::story::page_by_page;

/// What there is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gains {
    /// The report without its heading.
    pub lines: Vec<String>,
    /// The chapters whose code was the reader's.
    pub yours: Vec<usize>,
}

/// Starts counting, and sends the result. It stops when the returned value is dropped.
///
/// # Errors
/// If cargo can't be started.
pub fn count(root: &Path, chapter: usize, send: impl Fn(Gains) + Send + 'static) -> std::io::Result<Running> {
    let mut running = Running::start(page_by_page(root, &["gains".into(), chapter.to_string()]), Streams::Apart)?;
    let lines = running.lines();
    std::thread::spawn(move || {
        send(read(lines.filter(|line| !line.is_error).map(|line| line.text).skip(1)));
    });
    Ok(running)
}

fn read(lines: impl Iterator<Item = String>) -> Gains {
    let mut gains = Gains::default();
    for line in lines {
        // `before  the contiguous cache (yours: chapters 1, 3; reference: chapter 2)`
        for part in line.split("yours: chapter").skip(1) {
            let part = part.split([')', ';']).next().unwrap_or_default();
            gains
                .yours
                .extend(part.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<usize>().ok()));
        }
        gains.lines.push(line.trim().to_string());
    }
    gains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chapters_whose_code_was_the_readers_are_found() {
        let report = "  rows: 20,900 → 204\n  before  flat (yours: chapter 2)\n  after   paged (yours: chapters 1, 12; reference: chapter 3)";
        let gains = read(report.lines().map(String::from));
        assert_eq!(gains.lines[..2], ["rows: 20,900 → 204", "before  flat (yours: chapter 2)"]);
        assert_eq!(gains.yours, [2, 1, 12]);
    }
}
