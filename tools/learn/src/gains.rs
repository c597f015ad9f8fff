//! What a chapter gains, as `page-by-page bought N --json` counts it on the code as it is.

use std::path::Path;

use page_by_page_course::cargo::{Running, Streams};
use serde::Deserialize;

use crate::story::page_by_page;

#[derive(Deserialize)]
struct Report {
    chapters: Vec<Chapter>,
}

#[derive(Deserialize)]
struct Chapter {
    before: Side,
    after: Side,
    lines: Vec<Measured>,
    note: Option<String>,
}

#[derive(Deserialize)]
struct Side {
    way: String,
    #[serde(default)]
    code: Vec<Code>,
}

#[derive(Deserialize)]
struct Code {
    chapter: usize,
    source: String,
}

#[derive(Deserialize)]
struct Measured {
    what: String,
    before: Option<Number>,
    after: Number,
}

#[derive(Deserialize)]
struct Number {
    shown: String,
}

/// What there is to show.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    /// Empty if the program printed something else.
    pub lines: Vec<String>,
    /// The chapters whose code was the reader's.
    pub yours: Vec<usize>,
}

/// Starts counting, and sends the result. It stops when the returned value is dropped.
///
/// # Errors
/// If cargo can't be started.
pub fn count(root: &Path, chapter: usize, send: impl Fn(Gains) + Send + 'static) -> std::io::Result<Running> {
    let command = page_by_page(root, &["bought".into(), chapter.to_string(), "--json".into()]);
    let mut running = Running::start(command, Streams::Apart)?;
    let lines = running.lines();
    std::thread::spawn(move || {
        let json: Vec<String> = lines.filter(|line| !line.is_error).map(|line| line.text).collect();
        send(read(&json.join("\n")));
    });
    Ok(running)
}

/// Reads the report: what is compared, then the numbers.
fn read(json: &str) -> Gains {
    let Ok(Report { chapters }) = serde_json::from_str(json) else { return Gains::default() };
    let mut gains = Gains::default();
    for Chapter { before, after, lines: measured, note } in chapters {
        let code = before.code.iter().chain(&after.code);
        gains.yours.extend(code.filter(|code| code.source == "yours").map(|code| code.chapter));
        // The same code on both sides is named once.
        let first = if before.code_names() == after.code_names() { before.way.clone() } else { before.name() };
        gains.lines.push(format!("{first} → {}:", after.name()));
        for Measured { what, before, after } in measured {
            let before = before.map_or(String::new(), |before| format!("{} → ", before.shown));
            gains.lines.push(format!("  {what}: {before}{}", after.shown));
        }
        gains.lines.extend(note);
    }
    gains
}

impl Side {
    /// `chapters 1, 2: yours; chapter 3: reference`
    fn code_names(&self) -> String {
        let mut sources: Vec<&str> = Vec::new();
        for code in &self.code {
            if !sources.contains(&code.source.as_str()) {
                sources.push(&code.source);
            }
        }
        let of = |source: &&str| {
            let numbers: Vec<String> =
                self.code.iter().filter(|code| code.source == **source).map(|code| code.chapter.to_string()).collect();
            let chapters = if numbers.len() == 1 { "chapter" } else { "chapters" };
            format!("{chapters} {}: {source}", numbers.join(", "))
        };
        sources.iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// `grown by copying (chapter 2: yours)`
    fn name(&self) -> String {
        let names = self.code_names();
        if names.is_empty() { self.way.clone() } else { format!("{} ({names})", self.way) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_below_what_is_compared() {
        let json = r#"{"chapters":[{"number":2,"title":"x","before":{"way":"recompute","code":[{"chapter":1,"source":"reference"}]},
            "after":{"way":"flat","code":[{"chapter":1,"source":"reference"},{"chapter":2,"source":"yours"}]},
            "lines":[{"what":"rows","before":{"value":1,"shown":"20,900"},"after":{"shown":"204"}},
            {"what":"bytes","before":null,"after":{"shown":"3"}}],"note":"of a story"}]}"#;
        let Gains { lines, yours } = read(json);
        let ways = "recompute (chapter 1: reference) → flat (chapter 1: reference; chapter 2: yours):";
        assert_eq!(lines, [ways, "  rows: 20,900 → 204", "  bytes: 3", "of a story"]);
        assert_eq!(yours, [2]);
        let same = json.replace(r#",{"chapter":2,"source":"yours"}"#, "").replace("reference", "yours");
        let Gains { lines, yours } = read(&same);
        assert_eq!(lines[0], "recompute → flat (chapter 1: yours):");
        assert_eq!(yours, [1, 1]);
        assert!(read("").lines.is_empty() && read("{}").lines.is_empty());
    }
}
