//! A figure as a page of the book includes it: picture, caption, steps and trace in one `<figure>`.
//!
//! No line is blank, as that would end the HTML in Markdown's eyes; no element has an id, as the print page renames
//! those. Whatever has a `data-step` belongs to that step: `<g>` in the picture, `<li>` in the list, and the frame of
//! this number in the trace, counted from 0. `book/stepper.js` builds its controls from them; without it the figure is
//! whole: the last frame, and the list.

use crate::svg::{Svg, escaped};

/// What is drawn from a trace.
pub struct Drawing {
    pub svg: Svg,
    /// For those who cannot see the picture.
    pub label: String,
    /// Under the picture; HTML.
    pub caption: String,
    /// One for each frame of the trace; HTML.
    pub steps: Vec<String>,
}

/// The fragment of a figure. `trace`: JSON on one line, with a list of `frames`.
pub fn fragment(name: &str, drawing: &Drawing, trace: &str) -> String {
    let Drawing { svg, label, caption, steps } = drawing;
    let items: Vec<String> =
        steps.iter().enumerate().map(|(step, text)| format!("<li data-step=\"{step}\">{text}</li>")).collect();
    // A trace that held `</script>` would end the element.
    let trace = trace.replace('<', "\\u003c");
    format!(
        "<figure class=\"pbp-figure\" data-figure=\"{name}\">\n{}\n<figcaption>{caption}</figcaption>\n<details>\n\
         <summary>Step by step</summary>\n<ol class=\"pbp-steps\">\n{}\n</ol>\n</details>\n\
         <script type=\"application/json\">{trace}</script>\n</figure>\n",
        svg.html(&escaped(label)),
        items.join("\n"),
    )
}
