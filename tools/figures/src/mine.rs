//! A figure from the reader's own code, for the reader's own copy of the book.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use page_by_page::chapters::{self, Source};
use page_by_page_course::figures::{self as course, stands_on, with_note};
use serde_json::Value;

use crate::departure::{Departure, departure};
use crate::figures::{self, Figure};
use crate::svg::escaped;

/// Said of a figure that departs in nothing.
const SAME: &str = "the same as the reference, step by step";

/// The reference's figure, as it was committed.
struct Reference {
    trace: Value,
    fragment: String,
}

/// Records a figure from the chapters that were compiled and writes it, with its trace, into the folder `to`. Returns the
/// outcome in a line.
///
/// # Errors
/// When the reader has started none of its chapters, and what these refuse.
pub fn record(root: &Path, name: &str, to: &Path) -> Result<String> {
    let numbers =
        stands_on(name).with_context(|| format!("no figure {name}: the names are those in book/src/figures"))?;
    let is_mine = |number: &&usize| chapters::chapter(**number).source == Source::Yours;
    let (mine, others): (Vec<usize>, Vec<usize>) = numbers.iter().partition(is_mine);
    if mine.is_empty() {
        bail!("{name} shows {}, and you have started none of them", course::chapters(numbers));
    }
    let reference = Reference::read(root, name)?;
    let figure = figures::one(name)?;
    let json = figure.json();
    let (html, outcome) = told(figure, &reference, &mine, &others)?;
    fs::create_dir_all(to).with_context(|| format!("no folder {}", to.display()))?;
    for (extension, text) in [("json", json), ("html", html)] {
        let file = to.join(format!("{name}.{extension}"));
        fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(format!("{name}: {outcome}"))
}

/// The fragment of a figure with what is to be said of it, and the same in a line.
fn told(mut figure: Figure, reference: &Reference, mine: &[usize], others: &[usize]) -> Result<(String, String)> {
    let yours = course::chapters(mine);
    let rest = match others.len() {
        0 => String::new(),
        1 => format!("; {} is the reference's", course::chapters(others)),
        _ => format!("; {} are the reference's", course::chapters(others)),
    };
    let whose = format!("Recorded from your code: {yours}{rest}.");
    let trace = serde_json::from_str(figure.trace())?;
    let Some(Departure { says, steps }) = departure(&trace, &reference.trace) else {
        let note = format!("{whose} It is {SAME}.");
        return Ok((with_note(&figure.html(), &note), SAME.into()));
    };
    for step in &steps {
        let text = &mut figure.steps_mut()[*step];
        let theirs = match reference.step(*step) {
            None => "The reference has no such step.".into(),
            Some(theirs) if theirs == *text => String::new(),
            Some(theirs) => format!("The reference: {theirs}"),
        };
        *text = format!("<b class=\"pbp-departs\">Departs.</b> {text} <span class=\"pbp-theirs\">{theirs}</span>");
    }
    let note = format!("{whose} <b>It departs from the reference. {}.</b>", escaped(&says));
    let html = with_note(&figure.html(), &note);
    // stepper.js opens it there.
    let html = match steps.first() {
        Some(first) => html.replacen(" data-figure=", &format!(" data-opens=\"{first}\" data-figure="), 1),
        None => html,
    };
    Ok((html, format!("departs from the reference. {says}")))
}

impl Reference {
    fn read(root: &Path, name: &str) -> Result<Self> {
        let read = |file: String| {
            let text = fs::read_to_string(root.join(&file));
            text.map(|text| text.replace("\r\n", "\n"))
                .with_context(|| format!("{file} is not there: git checkout {file}"))
        };
        let trace = read(format!("book/src/figures/traces/{name}.json"))?;
        Ok(Reference { trace: serde_json::from_str(&trace)?, fragment: read(format!("book/src/figures/{name}.html"))? })
    }

    /// What it says of a step; HTML.
    fn step(&self, step: usize) -> Option<&str> {
        let open = format!("<li data-step=\"{step}\">");
        let line = self.fragment.lines().find_map(|line| line.strip_prefix(&open))?;
        line.strip_suffix("</li>")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_reference_is_the_same_as_itself_and_its_figure_gets_one_line() {
        for name in ["ch02_copy", "ch05_table", "ch06_interleaved"] {
            let reference = Reference::read(&root(), name).unwrap();
            let (html, outcome) = told(figures::one(name).unwrap(), &reference, &[5], &[4]).unwrap();
            assert_eq!(outcome, SAME, "{name}");
            let line = "<p class=\"pbp-whose\">Recorded from your code: chapter 5; chapter 4 is the reference's. It is the same \
                        as the reference, step by step.</p>\n";
            assert_eq!(html.matches(line).count(), 1, "{name}");
            assert_eq!(html.replace(line, ""), reference.fragment, "{name}");
        }
    }

    #[test]
    fn a_departure_is_marked_where_it_begins() {
        let mut reference = Reference::read(&root(), "ch05_table").unwrap();
        // As if the reference had taken another page.
        reference.trace["frames"][1]["pages"][1] = json!(7);
        reference.fragment = reference.fragment.replace("takes page 5:", "takes page 7:");
        let (html, outcome) = told(figures::one("ch05_table").unwrap(), &reference, &[4, 5], &[]).unwrap();
        assert_eq!(outcome, "departs from the reference. Step 2 of 3: yours has page 5, the reference page 7");
        assert!(
            html.starts_with("<figure class=\"pbp-figure\" data-opens=\"1\" data-figure=\"ch05_table\">\n"),
            "{html}"
        );
        let line = "Recorded from your code: chapters 4 and 5. <b>It departs from the reference. Step 2 of 3: yours has page 5, \
                    the reference page 7.</b></p>\n";
        assert!(html.contains(line), "{html}");
        assert_eq!(html.matches("pbp-departs").count(), 1, "{html}");
        let step = html.lines().find(|line| line.starts_with("<li data-step=\"1\">")).unwrap();
        assert!(
            step.starts_with(
                "<li data-step=\"1\"><b class=\"pbp-departs\">Departs.</b> <code>grow(4)</code> takes page 5"
            ),
            "{step}"
        );
        assert!(
            step.contains("<span class=\"pbp-theirs\">The reference: <code>grow(4)</code> takes page 7:"),
            "{step}"
        );
        assert!(html.lines().all(|line| !line.trim().is_empty()), "a blank line ends the HTML");
    }

    #[test]
    fn nobody_s_figure_is_not_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let says = |name| record(&root(), name, folder.path()).unwrap_err().to_string();
        assert_eq!(says("ch05_table"), "ch05_table shows chapters 4 and 5, and you have started none of them");
        assert_eq!(says("ch05_tables"), "no figure ch05_tables: the names are those in book/src/figures");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
