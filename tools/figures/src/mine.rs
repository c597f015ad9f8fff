//! A figure from the reader's own code, for the reader's own copy of the book.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use page_by_page::chapters::{self, Source};
use page_by_page_course::figures::{self as course, with_note};

use crate::departure::{Departure, departure, steps};
use crate::figures::{self, Figure};
use crate::words::escaped;

/// What is said of a figure that departs in nothing.
const SAME: &str = "the same as the reference, step by step";

/// Records a figure from the chapters that were compiled, and writes it into the folder `to`. Returns the outcome in a line.
///
/// # Errors
/// When the reader has started none of its chapters, and the chapters' own.
pub fn record(root: &Path, name: &str, to: &Path) -> Result<String> {
    ensure!(figures::is_one(name), "no figure {name}: the names are those in book/src/figures");
    let numbers = course::stands_on(root, name).map_err(Error::msg)?;
    let is_mine = |number: &&usize| chapters::chapter(**number).source == Source::Yours;
    let (mine, others): (Vec<usize>, Vec<usize>) = numbers.iter().partition(is_mine);
    if mine.is_empty() {
        bail!("{name} shows {}, and you have started none of them", course::chapters(&numbers));
    }
    let reference = reference(root, name)?;
    let (html, outcome) = compared(figures::one(name)?, &reference, &mine, &others);
    fs::create_dir_all(to).with_context(|| format!("no folder {}", to.display()))?;
    let file = to.join(format!("{name}.html"));
    fs::write(&file, html).with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(format!("{name}: {outcome}"))
}

fn reference(root: &Path, name: &str) -> Result<String> {
    let file = format!("book/src/figures/{name}.html");
    let text = fs::read_to_string(root.join(&file));
    Ok(text.with_context(|| format!("{file} is not there: git checkout {file}"))?.replace("\r\n", "\n"))
}

/// The fragment of a figure with a note on whose code it shows and where it departs, and the same in a line.
fn compared(mut figure: Figure, reference: &str, mine: &[usize], others: &[usize]) -> (String, String) {
    let yours = course::chapters(mine);
    let rest = match others {
        [] => String::new(),
        _ => format!("; of the reference: {}", course::chapters(others)),
    };
    let whose = format!("Recorded from your code: {yours}{rest}.");
    let Some(Departure { says, steps: departing }) = departure(&figure.html(), reference) else {
        return (with_note(&figure.html(), &format!("{whose} It is {SAME}.")), SAME.into());
    };
    let reference = steps(reference);
    for step in &departing {
        let text = &mut figure.frames[*step].says;
        let theirs = match reference.get(*step) {
            None => "The reference has no such step.".into(),
            Some((theirs, _)) if theirs == text => String::new(),
            Some((theirs, _)) => format!("The reference: {theirs}"),
        };
        if text.is_empty() {
            continue;
        }
        *text = format!("<b class=\"pbp-departs\">Departs.</b> {text} <span class=\"pbp-theirs\">{theirs}</span>");
    }
    let note = format!("{whose} <b>It departs from the reference. {}.</b>", escaped(&says));
    let html = with_note(&figure.html(), &note);
    // stepper.js opens it there.
    let html = match departing.first() {
        Some(first) => html.replacen(" data-figure=", &format!(" data-opens=\"{first}\" data-figure="), 1),
        None => html,
    };
    (html, format!("departs from the reference. {says}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_reference_is_the_same_as_itself_and_its_figure_gets_one_line() {
        let reference = reference(&root(), "ch05_table").unwrap();
        let (html, outcome) = compared(figures::one("ch05_table").unwrap(), &reference, &[5], &[4]);
        assert_eq!(outcome, SAME);
        let line = "<p class=\"pbp-whose\">Recorded from your code: chapter 5; of the reference: chapter 4. It is the same as the \
                    reference, step by step.</p>\n";
        assert_eq!(html.matches(line).count(), 1);
        assert_eq!(html.replace(line, ""), reference);
    }

    #[test]
    fn a_departure_is_marked_where_it_begins() {
        let reference = reference(&root(), "ch05_table").unwrap();
        // As if the reference had taken another page.
        let other = reference.replace("takes page 9 and", "takes page 7 and");
        let (html, outcome) = compared(figures::one("ch05_table").unwrap(), &other, &[4, 5], &[]);
        assert_eq!(outcome, "departs from the reference. Step 2 of 2: yours has page 9, the reference page 7");
        for part in [
            "<figure class=\"pbp-figure\" data-opens=\"1\" data-figure=\"ch05_table\">\n",
            "Recorded from your code: chapters 4 and 5. <b>It departs from the reference. Step 2 of 2: yours has page 9, ",
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
        let says = |name| record(&root(), name, folder.path()).unwrap_err().to_string();
        assert_eq!(says("ch05_table"), "ch05_table shows chapters 4 and 5, and you have started none of them");
        assert_eq!(says("ch05_tables"), "no figure ch05_tables: the names are those in book/src/figures");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
