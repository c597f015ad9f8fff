//! `gains`: what a chapter gains, counted at once on the code that is compiled.

mod limits;
mod measures;

use anyhow::{Result, bail};
use clap::Args;
use page_by_page::chapters::{CompiledChapter, Source, all, chapter};

use crate::output::{Progress, print, thousands};
use crate::requirements;
use limits::{LIMITS, measure_within};
use measures::Gain;

/// Show what a chapter gains: its number without it and with it, counted on your code
///
/// Each chapter ends with a number, such as rows that are no longer computed or slots that are no longer wasted. This
/// counts it, once without the chapter's code and once with it. Both run here and now, on your code where you have
/// started and on the reference elsewhere, if the program was built with --features solution. The counts are the same
/// on every machine, and no time is measured.
///
/// Without a number all chapters are shown whose code is written.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page gains 2
  cargo page gains")]
pub struct GainsCommand {
    /// The chapter, 1 to 16 [default: all whose code is written]
    #[arg(value_name = "CHAPTER")]
    chapter: Option<usize>,
}

impl GainsCommand {
    pub fn run(self) -> Result<()> {
        let gains: Vec<Gain> = match self.chapter {
            Some(number) => vec![written_gain(number)?],
            None => {
                let gains = all().iter().map(|chapter| measures::gain(chapter.number));
                gains.filter(|gain| needed(gain).into_iter().all(requirements::is_written)).collect()
            }
        };
        if gains.is_empty() {
            bail!(
                "no chapter is written from its beginning to its end: write exercises/{}.rs, or add --features \
                 solution",
                chapter(1).name
            );
        }
        for (place, gain) in gains.iter().enumerate() {
            let of = if gains.len() > 1 { format!(" ({} of {})", place + 1, gains.len()) } else { String::new() };
            let progress = Progress::spinner(format!("counting for chapter {}{of}", gain.number));
            let text = describe(gain)?;
            drop(progress);
            print(&format!("{}{text}", if place == 0 { "" } else { "\n" }))?;
        }
        Ok(())
    }
}

/// The gain of a chapter; refuses one that the book does not have, or whose code is not written.
fn written_gain(number: usize) -> Result<Gain> {
    let last = all().len();
    if !(1..=last).contains(&number) {
        bail!("there is no chapter {}; the book has 1 to {last}", thousands(number));
    }
    let gain = measures::gain(number);
    for CompiledChapter { number, title, name, source, .. } in needed(&gain) {
        requirements::ensure_started(&[*number])?;
        if let (Source::Yours, Some((task, what))) = (source, chapter(*number).tasks_left.first()) {
            bail!("chapter {number} ({title}) is not written yet: task {task}: {what} is left in exercises/{name}.rs");
        }
    }
    Ok(gain)
}

/// The chapters whose code runs, on either side, in order.
fn needed(gain: &Gain) -> Vec<&'static CompiledChapter> {
    requirements::with_dependencies(&[gain.before.1, gain.after.1].concat())
}

fn describe(gain: &Gain) -> Result<String> {
    let yours: Vec<&CompiledChapter> =
        needed(gain).into_iter().filter(|chapter| chapter.source == Source::Yours).collect();
    let mut text = format!("chapter {}, {}\n", gain.number, chapter(gain.number).title);
    for line in measure_within(LIMITS, gain.number, &yours, gain.measure)? {
        text.push_str(&format!("  {line}\n"));
    }
    for (name, (way, numbers)) in [("before", gain.before), ("after", gain.after)] {
        let whose = if numbers.is_empty() {
            "of no chapter".into()
        } else {
            format!("chapters {}", requirements::describe(numbers))
        };
        text.push_str(&format!("  {name:<6}  {way} ({whose})\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chapter_has_a_measure_that_runs_its_code() {
        for chapter in all() {
            let gain = measures::gain(chapter.number);
            assert_eq!(gain.number, chapter.number);
            assert!(gain.after.1.contains(&chapter.number), "{}", chapter.title);
            let is_older = |side: &[usize]| side.is_sorted() && side.iter().all(|number| *number <= chapter.number);
            assert!(is_older(gain.before.1) && is_older(gain.after.1), "{}", chapter.title);
        }
    }
}
