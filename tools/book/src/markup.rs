//! What a page must have so that every reader can read it: one heading at the top and no level skipped, words for every
//! picture, and hand-written HTML that works on the page and in print.

use std::sync::LazyLock;

use regex::Regex;

use crate::finding::Findings;
use crate::html::{Element, Piece};
use crate::page::Page;

static UNFINISHED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(TODO|FIXME)\b").expect("valid pattern"));

pub fn check(page: &Page, findings: &mut Findings) {
    check_lines(page, findings);
    check_headings(page, findings);
    check_html(page, findings);
}

fn check_lines(page: &Page, findings: &mut Findings) {
    let mut in_svg = false;
    for (line, text) in (1..).zip(page.expanded.text.lines()) {
        if let Some(mark) = UNFINISHED.find(text) {
            let problem = format!("the page still says {}", mark.as_str());
            findings.add(page.place_of_line(line), problem, "finish the passage or take it out");
        }
        in_svg = (in_svg || text.trim_start().starts_with("<svg")) && !text.contains("</svg>");
        if in_svg && text.trim().is_empty() {
            let problem = "a blank line inside an inline `<svg>` ends it: the rest is shown as text";
            findings.add(page.place_of_line(line), problem, "take the blank line out");
        }
    }
}

fn check_headings(page: &Page, findings: &mut Findings) {
    let mut titles = page.contents.headings.iter().filter(|(_, level)| *level == 1);
    if titles.next().is_none() {
        findings.add(page.place_of_line(1), "the page has no title", "begin it with one `# Title`");
    }
    for (line, _) in titles {
        let next_step = "a page has one `#` heading; use `##` here";
        findings.add(page.place_of_line(*line), "the page has a second title", next_step);
    }
    for pair in page.contents.headings.windows(2) {
        let [(_, above), (line, level)] = pair else { continue };
        if *level > above + 1 {
            let problem = format!("the heading skips from level {above} to level {level}");
            let next_step = format!("use {} here", "#".repeat(usize::from(*above) + 1));
            findings.add(page.place_of_line(*line), problem, next_step);
        }
    }
}

/// Whether each element is closed is for mdBook to say.
fn check_html(page: &Page, findings: &mut Findings) {
    let (mut in_svg, mut in_verbatim) = (0_usize, 0_usize);
    let mut unnamed_fold = None;
    for (line, piece) in &page.contents.html {
        let (name, element) = match piece {
            Piece::Text(text) => {
                // Markdown does not look inside a block of HTML: what is written there is shown as it stands.
                let looks_like_markdown = ["`", "**", "](", "\n- "].iter().any(|mark| text.contains(mark));
                if looks_like_markdown && in_verbatim == 0 {
                    let next_step = "leave a blank line between the tag and the text; in `<summary>` and `<figcaption>` write <code> and <em>";
                    let problem = "Markdown inside HTML is shown as it is written";
                    findings.add(page.place_of_line(*line), problem, next_step);
                }
                continue;
            }
            Piece::Open(element) => (element.name.as_str(), Some(element)),
            Piece::Close(name) => (name.as_str(), None),
        };
        if let Some(start) = unnamed_fold.take().filter(|_| name != "summary") {
            let next_step = "begin it with the line that stays visible: `<summary>Hint 1</summary>`";
            findings.add(page.place_of_line(start), "`<details>` has no `<summary>`", next_step);
        }
        let depth = match name {
            "svg" => &mut in_svg,
            "script" | "style" | "pre" | "code" => &mut in_verbatim,
            _ => &mut 0,
        };
        *depth = if element.is_some() { *depth + 1 } else { depth.saturating_sub(1) };
        if let Some(element) = element {
            unnamed_fold = (name == "details").then_some(*line);
            check_element(page, *line, element, in_svg, findings);
        }
    }
}

/// `in_svg`: how many are open with this element.
fn check_element(page: &Page, line: usize, element: &Element, in_svg: usize, findings: &mut Findings) {
    let name = element.name.as_str();
    let mut add = |problem: &str, next_step| findings.add(page.place_of_line(line), problem, next_step);
    let is_hidden = element.attribute("aria-hidden") == Some("true");
    let is_named = element.attribute("role") == Some("img") && element.says("aria-label").is_some();
    if name == "svg" && in_svg == 1 && !is_hidden && !is_named {
        let next_step = "give the `<svg>` role=\"img\" and aria-label=\"what it shows\"";
        add("the figure has no words for those who cannot see it", next_step);
    }
    let refers = element.attributes.iter().any(|(_, value)| value.contains("url(#"))
        || element.attribute("aria-labelledby").is_some()
        || (name == "use" && element.attribute("href").is_some());
    if in_svg > 0 && refers {
        let next_step =
            "the print page renames ids: draw the shape in place, style by class, name the figure by `aria-label`";
        add(&format!("`<{name}>` in a figure refers to an id"), next_step);
    }
}
