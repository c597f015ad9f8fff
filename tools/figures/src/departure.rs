//! A figure from the reader's own code, for the reader's own copy of the book, and where it departs from the
//! reference's, in words: `Step 2 of 3: yours has page 7, the reference page 5`.
//!
//! Both are compared as fragments that a page includes. A step departs if it is drawn differently, or if its text
//! differs.

use std::fs;
use std::panic;
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use page_by_page::chapters::{self, Source};
use page_by_page::panics;
use page_by_page_course::figures::{self as course, with_note};

use crate::figures::{self, Figure};
use crate::words::escaped;
use crate::{committed, path};

/// The outcome for a figure that departs in nothing.
const SAME: &str = "the same as the reference, step by step";

/// From now on, a panic of the reader's code is one line. How much memory it holds is bounded by the allocator that the
/// graders' crate brings along, and how long it runs by whoever starts this process.
pub fn panic_in_a_line() {
    panic::set_hook(Box::new(|panicked| {
        let place = panicked.location().map_or_else(String::new, |place| {
            // As it is compiled, the path of a chapter begins in src/.
            let file = place.file().replace('\\', "/");
            let chapter = ["exercises/", "solutions/"].iter().find_map(|folder| Some(&file[file.find(folder)?..]));
            format!(" ({}:{})", chapter.unwrap_or(&file), place.line())
        });
        let message = panics::message(panicked.payload()).unwrap_or("without a word").replace('\n', " ");
        eprintln!("error: the code panicked{place}: {message}");
    }));
}

/// Records a figure from the chapters that were compiled, and writes it into the folder `to`. Returns the outcome in a
/// line. Fails when the reader has started none of its chapters.
pub fn record(root: &Path, name: &str, to: &Path) -> Result<String> {
    let figure = figures::find(name)?;
    let numbers = course::depends_on(root, name).map_err(Error::msg)?;
    let is_mine = |number: &&usize| chapters::chapter(**number).source == Source::Yours;
    let (mine, others): (Vec<usize>, Vec<usize>) = numbers.iter().partition(is_mine);
    if mine.is_empty() {
        bail!("{name} shows {}, and you have started none of them", course::chapters(&numbers));
    }
    let path = path(name);
    let reference = committed(root, &path).with_context(|| format!("{path} is not there: git checkout {path}"))?;
    let (html, outcome) = compared(figures::run(figure)?, &reference, &mine, &others);
    fs::create_dir_all(to).with_context(|| format!("no folder {}", to.display()))?;
    let file = to.join(format!("{name}.html"));
    fs::write(&file, html).with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(format!("{name}: {outcome}"))
}

/// The fragment of a figure with a note on whose code it shows and where it departs, and the same in a line.
fn compared(mut figure: Figure, reference: &str, mine: &[usize], others: &[usize]) -> (String, String) {
    let html = figure.html();
    let yours = course::chapters(mine);
    let rest =
        if others.is_empty() { String::new() } else { format!("; of the reference: {}", course::chapters(others)) };
    let whose = format!("Recorded from your code: {yours}{rest}.");
    if html == reference {
        return (with_note(&html, &format!("{whose} It is {SAME}.")), SAME.into());
    }
    let (departure, departing) = departure(&html, reference);
    let theirs = steps(reference);
    for step in &departing {
        let text = &mut figure.frames[*step].text;
        let other = match theirs.get(*step) {
            None => "The reference has no such step.".into(),
            Some((other, _)) if other == text => String::new(),
            Some((other, _)) => format!("The reference: {other}"),
        };
        if !text.is_empty() {
            *text = format!("<b class=\"pbp-departs\">Departs.</b> {text} <span class=\"pbp-theirs\">{other}</span>");
        }
    }
    let note = format!("{whose} <b>It departs from the reference. {}.</b>", escaped(&departure));
    // It opens there.
    figure.opens = departing.first().copied().unwrap_or(figure.opens);
    (with_note(&figure.html(), &note), format!("departs from the reference. {departure}"))
}

/// The text of each step in a fragment, and how it is drawn.
fn steps(fragment: &str) -> Vec<(&str, &str)> {
    let frames = fragment.split(" data-step=").skip(1).filter_map(|frame| frame.split_once("</div>"));
    frames
        .map(|(frame, _)| match frame.split_once("</b> ").and_then(|(_, rest)| rest.split_once("</p>\n")) {
            Some(step) => step,
            None => ("", frame),
        })
        .collect()
}

/// The first difference between two fragments, in words, and your steps that differ, counted from 0. There are none if
/// only the words for the whole figure differ.
fn departure(yours: &str, reference: &str) -> (String, Vec<usize>) {
    let (mine, theirs) = (steps(yours), steps(reference));
    let differs: Vec<usize> = (0..mine.len()).filter(|step| theirs.get(*step) != Some(&mine[*step])).collect();
    let (n, of) = (mine.len(), theirs.len());
    let drawn = || "yours is drawn differently".to_string();
    let first = match differs.first() {
        Some(&step) if step < of => {
            let words = difference(mine[step].0, theirs[step].0).or_else(|| difference(mine[step].1, theirs[step].1));
            format!("Step {} of {n}: {}", step + 1, words.unwrap_or_else(drawn))
        }
        Some(_) => format!("Yours has {n} steps, the reference has {of}"),
        None if n < of => format!("Yours ends after step {n}, the reference after step {of}"),
        None => {
            format!("In the words for the whole figure, {}", difference(yours, reference).unwrap_or_else(drawn))
        }
    };
    (first, differs)
}

/// The first words that differ, each side with the word before them.
fn difference(yours: &str, reference: &str) -> Option<String> {
    const MAX_WORDS: usize = 4;
    let (mine, theirs) = (words(yours), words(reference));
    let from = (0..mine.len().max(theirs.len())).find(|at| mine.get(*at) != theirs.get(*at))?;
    let end = (from + 1..from + MAX_WORDS).find(|at| mine.get(*at) == theirs.get(*at)).unwrap_or(from + MAX_WORDS);
    let [mine, theirs] = [&mine, &theirs].map(|words| match words.get(from.saturating_sub(1)..end.min(words.len())) {
        Some(some) if from < words.len() => some.join(" "),
        _ => "nothing more".into(),
    });
    Some(format!("yours has {mine}, the reference {theirs}"))
}

/// The words of HTML, without tags, and without signs around them.
fn words(html: &str) -> Vec<&str> {
    let texts = html.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text));
    let is_sign = |c: char| !c.is_alphanumeric() && !"()[]%".contains(c);
    let words = texts.flat_map(str::split_whitespace).map(|word| word.trim_matches(is_sign));
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    fn figure() -> Figure {
        figures::run(figures::find("ch05_table").unwrap()).unwrap()
    }

    #[test]
    fn the_reference_is_the_same_as_itself_and_its_figure_gets_one_line() {
        let reference = committed(&root(), &path("ch05_table")).unwrap();
        let (html, outcome) = compared(figure(), &reference, &[5], &[4]);
        assert_eq!(outcome, SAME);
        let line = "<p class=\"pbp-whose\">Recorded from your code: chapter 5; of the reference: chapter 4. It is the \
                    same as the reference, step by step.</p>\n";
        assert_eq!(html.matches(line).count(), 1);
        assert_eq!(html.replace(line, ""), reference);
    }

    #[test]
    fn a_departure_is_worded_and_the_steps_that_depart_are_known() {
        let reference = committed(&root(), &path("ch05_table")).unwrap();
        let last = reference.find("<div class=\"pbp-frame kept\" data-step=\"1\"").unwrap();
        let last = &reference[last..reference.find("</div>\n</div>").unwrap() + "</div>\n".len()];
        for (theirs, yours, words, steps) in [
            ("12, 5 and 3, in", "12, 7 and 3, in", "Step 1 of 2: yours has 12 7, the reference 12 5", &[0][..]),
            ("\"m b\">page 9<", "\"m b\">page 7<", "Step 2 of 2: yours has page 7, the reference page 9", &[1]),
            (
                "lists the pages",
                "lists the blocks",
                "In the words for the whole figure, yours has the blocks, the reference the pages",
                &[],
            ),
            (last, "", "Yours ends after step 1, the reference after step 2", &[]),
        ] {
            let found = departure(&reference.replacen(theirs, yours, 1), &reference);
            assert_eq!(found, (words.to_string(), steps.to_vec()));
        }
        let found = departure(&reference, &reference.replacen(last, "", 1));
        assert_eq!(found, ("Yours has 2 steps, the reference has 1".to_string(), vec![1]));
    }

    #[test]
    fn a_departure_is_marked_where_it_begins() {
        let reference = committed(&root(), &path("ch05_table")).unwrap();
        // As if the reference had taken another page.
        let other = reference.replace("takes page 9 and", "takes page 7 and");
        let (html, outcome) = compared(figure(), &other, &[4, 5], &[]);
        assert_eq!(outcome, "departs from the reference. Step 2 of 2: yours has page 9, the reference page 7");
        for part in [
            "<figure class=\"pbp-figure\" data-opens=\"1\" data-figure=\"ch05_table\">\n",
            "Recorded from your code: chapters 4 and 5. <b>It departs from the reference. Step 2 of 2: yours has page \
             9, ",
            "<b>2 of 2</b> <b class=\"pbp-departs\">Departs.</b> <code>grow(3)</code> fills page 3, takes page 9",
            "<span class=\"pbp-theirs\">The reference: <code>grow(3)</code> fills page 3, takes page 7 and",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert_eq!(html.matches("pbp-departs").count(), 1, "{html}");
    }

    #[test]
    fn a_figure_without_the_reader_s_code_is_not_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |name| record(&root(), name, folder.path()).unwrap_err().to_string();
        assert_eq!(refusal("ch05_table"), "ch05_table shows chapters 4 and 5, and you have started none of them");
        assert_eq!(refusal("ch05_tables"), "no figure ch05_tables: the names are those in book/src/figures");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
