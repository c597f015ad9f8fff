//! What a chapter bought, as `page-by-page bought N --json` counts it on the code that is compiled.

use serde::Deserialize;

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

/// The lines to show; none if it is no such report.
pub fn lines(json: &str) -> Vec<String> {
    let Ok(Report { chapters }) = serde_json::from_str(json) else { return Vec::new() };
    let mut lines = Vec::new();
    for Chapter { before, after, lines: measured, note } in chapters {
        for Measured { what, before, after } in measured {
            let before = before.map_or(String::new(), |before| format!("{} → ", before.shown));
            lines.push(format!("{what}: {before}{}", after.shown));
        }
        lines.extend(note);
        lines.extend([("before", before), ("after", after)].map(|(name, side)| format!("{name}: {}", side.told())));
    }
    lines
}

impl Side {
    /// `grown by copying (chapter 2: yours)`
    fn told(&self) -> String {
        let code: Vec<String> =
            self.code.iter().map(|code| format!("chapter {}: {}", code.chapter, code.source)).collect();
        if code.is_empty() { self.way.clone() } else { format!("{} ({})", self.way, code.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_before_and_after() {
        let json = r#"{"chapters":[{"number":2,"title":"x","before":{"way":"recompute","code":[{"chapter":1,"source":"reference"}]},
            "after":{"way":"flat","code":[]},"lines":[{"what":"rows","before":{"value":1,"shown":"20,900"},"after":{"shown":"204"}},
            {"what":"bytes","before":null,"after":{"shown":"3"}}],"note":"of a story"}]}"#;
        let expected =
            ["rows: 20,900 → 204", "bytes: 3", "of a story", "before: recompute (chapter 1: reference)", "after: flat"];
        assert_eq!(lines(json), expected);
        assert!(lines("").is_empty() && lines("{}").is_empty());
    }
}
