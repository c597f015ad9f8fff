//! `gains` counts what the pages say: every number that it prints stands in the page of its chapter.

use crate::program::{ok, run};
use page_by_page::chapters::{all, chapter};
use serde_json::{Value, json};

/// What the pages say: for each line of a chapter the passages with its numbers.
///
/// A passage stands under *What it bought* or *The problem, measured* of the chapter, or under *What it bought* of the one
/// before: where it starts from.
const SAID: [&[&[&str]]; 16] = [
    &[&["the first of the 200 cost 5 rows, the last 204"], &["projected  20,900 rows"]],
    &[
        &["| recompute | 20,900 | 0 | 20,900 |", "| flat | 204 | 20,696 | 20,900 |"],
        &["| recompute | 20,900 | 0 | 20,900 |", "| flat | 204 | 20,696 | 20,900 |"],
    ],
    &[&["| flat | 204 | 20,696 | 20,900 |", "204 tokens in 205 slots, 1 wasted, 0.60 MiB; 0 rows copied"]],
    &[&["850 are free, but the longest gap has 650", "52 pages are 832 slots"]],
    &[
        &["all            16,384   2,248   14,136       86.3", "8 slots are empty, 0.4 %"],
        &["8 slots are empty, 0.4 %, against 86.3 % in reservations of 4,096"],
    ],
    &[
        &["room for   8 sequences like these in 104 pages; with 405 slots reserved for each: 4"],
        &["reserves 1,617 slots and wastes 829. In pages, 28 are wasted"],
    ],
    &[&["| 4 | 0 | 0 | 65,532 |"], &["| 16,384 | 0 | 1,024 | 49,152 |"]],
    &[
        &["Of 400 passes 189 remain with drafts of two"],
        &[
            "0         0          0                        1.00   1.00",
            "2       375        211   56.3 %               0.47",
        ],
    ],
    &[
        &["| match rule | 24.2 % | 0.68 |", "| sample rule | **45.0 %** | **0.53** |"],
        &["| match rule | 24.2 % | 0.68 |", "| sample rule | **45.0 %** | **0.53** |"],
    ],
    &[
        &["| restored from a snapshot | 1,692 | 504 | 6,300 |", "| forked | 1,692 | **112** | **28** |"],
        &["| restored from a snapshot | 1,692 | 504 | 6,300 |", "| forked | 1,692 | **112** | **28** |"],
    ],
    &[
        &["| `shared --no-prefix-cache` | 2,839 | 0 | 0.0 % |", "| `shared` | 1,643 | 852 | 69.9 % |"],
        &["| `shared --no-prefix-cache` | 2,839 | 0 | 0.0 % |", "| `shared` | 1,643 | 852 | 69.9 % |"],
    ],
    &[
        &["One text after the other reads the weights **1,201", "with `--pages 1000`, 264 steps"],
        &["One text after the other reads the weights **1,201", "It says 487 steps"],
    ],
    &[&["| 256 | 2,056 | **0** |"], &["| 1,023 | 8,192 | **0** |"]],
    &[
        &["| f32 | 3,072 |", "| f16 | 1,536 |"],
        &["| f32 | 3,072 | – | – | – | 8 of 8 | – | 26 |", "after 7 of 344 | 3 of 8 | 8 | 93 |"],
    ],
    &[
        &["10 of 10 are noticed. The nine examples from above notice 0 of them"],
        &["115 events, shrunk to 3 in 246 runs"],
    ],
    &[
        &["| first run | 507 | 376 of 791 | 0 | 78 |", "| second run | 103 | 780 of 791 | 54 | 0 |"],
        &["| first run | 507 | 376 of 791 | 0 | 78 |", "| second run | 103 | 780 of 791 | 54 | 0 |"],
    ],
];

/// The passages that may hold numbers of a chapter.
fn sections(number: usize) -> String {
    let page = |number: usize| {
        let name = chapter(number).name;
        let file = crate::support::root().join(format!("book/src/{name}.md"));
        std::fs::read_to_string(file).unwrap().replace("\r\n", "\n")
    };
    let section = |page: &str, title: &str| {
        let from = page.find(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("{title}"));
        let section = &page[from + 1..];
        section.find("\n## ").map_or(section, |to| &section[..to]).to_string()
    };
    let mut text = section(&page(number), "The problem, measured") + &section(&page(number), "What it bought");
    if number > 1 {
        text.push_str(&section(&page(number - 1), "What it bought"));
    }
    // A passage may go on in the next line.
    text.lines().collect::<Vec<_>>().join("\n")
}

/// The numbers of a passage as they are written: `20,900`, `86.3`.
fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
    words.map(|word| word.trim_matches([',', '.'])).filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_number_stands_in_the_page() {
    let report = ok(&["gains", "--json"]).json();
    let chapters = report["chapters"].as_array().unwrap();
    assert_eq!(chapters.len(), all().len());
    for ((object, chapter), said) in chapters.iter().zip(all()).zip(SAID) {
        assert_eq!((&object["number"], &object["title"]), (&json!(chapter.number), &json!(chapter.title)));
        let sections = sections(chapter.number);
        let lines = object["lines"].as_array().unwrap();
        assert_eq!(lines.len(), said.len(), "the lines of chapter {}", chapter.number);
        for (line, passages) in lines.iter().zip(said) {
            for passage in *passages {
                assert!(sections.contains(passage), "chapter {}: the page does not say: {passage}", chapter.number);
            }
            let written: Vec<&str> = passages.iter().flat_map(|passage| numbers(passage)).collect();
            for side in [&line["before"], &line["after"]].into_iter().filter(|side| !side.is_null()) {
                let shown = side["shown"].as_str().unwrap();
                let number = shown.trim_end_matches(" %");
                let what = &line["what"];
                let number_of = chapter.number;
                assert!(written.contains(&number), "chapter {number_of}, {what}: {shown} is not in {passages:?}");
            }
        }
    }
}

#[test]
fn a_chapter_takes_a_few_lines() {
    let shown = ok(&["gains", "2"]);
    assert_eq!(shown.stderr, "");
    let expected = "\
chapter 2, The flat cache
  rows projected for a story of 200 tokens: 20,900 → 204
  rows copied for it: 0 → 20,696
  before  the whole text again for each token (reference: chapter 1)
  after   the flat cache (reference: chapters 1, 2)
";
    assert_eq!(shown.stdout, expected);
    let report = ok(&["gains", "6", "--json"]).json();
    let [chapter] = &report["chapters"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&chapter["number"], &chapter["name"]), (&json!(6), &json!("ch06_paged")));
    let code: Vec<&Value> = chapter["after"]["code"].as_array().unwrap().iter().map(|code| &code["chapter"]).collect();
    assert_eq!(code, [4, 5, 6]);
    let after = &chapter["lines"][0]["after"];
    assert_eq!((&after["value"], &after["is"], &after["shown"]), (&json!(8.0), &json!("count"), &json!("8")));
}

#[test]
fn a_chapter_that_the_book_does_not_have_is_refused() {
    for number in ["0", "17", "18446744073709551615"] {
        let run = run(&["gains", number]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        assert!(run.stderr.contains("; the book has 1 to 16"), "{}", run.stderr);
    }
    assert_eq!(run(&["gains", "two"]).code, Some(2));
}

#[test]
fn every_key_is_documented() {
    fn collect(value: &Value, keys: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(object) => object.iter().for_each(|(key, value)| {
                keys.insert(key.clone());
                collect(value, keys);
            }),
            Value::Array(values) => values.iter().for_each(|value| collect(value, keys)),
            _ => {}
        }
    }
    let help = ok(&["gains", "--help"]).stdout;
    let documented = help.split_once("What the JSON object holds:").expect("a list of keys").1;
    let mut keys = std::collections::BTreeSet::new();
    collect(&ok(&["gains", "1", "--json"]).json(), &mut keys);
    assert!(keys.len() > 12, "{keys:?}");
    for key in keys {
        let is_named = documented.split(|c: char| !c.is_alphanumeric()).any(|word| word == key);
        assert!(is_named, "{key} is not in the help:{documented}");
    }
}
