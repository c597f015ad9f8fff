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

/// What there is to show.
#[derive(Debug, Default)]
pub struct Bought {
    /// None if the report is none.
    pub lines: Vec<String>,
    /// The chapters of which the reader's code was counted.
    pub yours: Vec<usize>,
}

/// Reads the report: which ways are compared, then what each came to.
pub fn read(json: &str) -> Bought {
    let Ok(Report { chapters }) = serde_json::from_str(json) else { return Bought::default() };
    let mut bought = Bought::default();
    for Chapter { before, after, lines: measured, note } in chapters {
        let code = before.code.iter().chain(&after.code);
        bought.yours.extend(code.filter(|code| code.source == "yours").map(|code| code.chapter));
        // The same code on both sides is named once.
        let first = if before.names() == after.names() { before.way.clone() } else { before.told() };
        bought.lines.push(format!("{first} → {}:", after.told()));
        for Measured { what, before, after } in measured {
            let before = before.map_or(String::new(), |before| format!("{} → ", before.shown));
            bought.lines.push(format!("  {what}: {before}{}", after.shown));
        }
        bought.lines.extend(note);
    }
    bought
}

impl Side {
    /// `chapters 1, 2: yours; chapter 3: reference`
    fn names(&self) -> String {
        let mut sources: Vec<&str> = Vec::new();
        for code in &self.code {
            if !sources.contains(&code.source.as_str()) {
                sources.push(&code.source);
            }
        }
        let told = |source: &&str| {
            let of_it = self.code.iter().filter(|code| code.source == **source);
            let numbers: Vec<String> = of_it.map(|code| code.chapter.to_string()).collect();
            let chapters = if numbers.len() == 1 { "chapter" } else { "chapters" };
            format!("{chapters} {}: {source}", numbers.join(", "))
        };
        sources.iter().map(told).collect::<Vec<_>>().join("; ")
    }

    /// `grown by copying (chapter 2: yours)`
    fn told(&self) -> String {
        let names = self.names();
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
        let Bought { lines, yours } = read(json);
        let ways = "recompute (chapter 1: reference) → flat (chapter 1: reference; chapter 2: yours):";
        assert_eq!(lines, [ways, "  rows: 20,900 → 204", "  bytes: 3", "of a story"]);
        assert_eq!(yours, [2]);
        let same = json.replace(r#",{"chapter":2,"source":"yours"}"#, "").replace("reference", "yours");
        let Bought { lines, yours } = read(&same);
        assert_eq!(lines[0], "recompute → flat (chapter 1: yours):");
        assert_eq!(yours, [1, 1]);
        assert!(read("").lines.is_empty() && read("{}").lines.is_empty());
    }
}
