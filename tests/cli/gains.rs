//! `gains` counts what the pages say: every number that it prints stands in the page of its chapter.

use page_by_page::chapters::{all, chapter};
use serde_json::{Value, json};

use crate::commands::keys_are_documented;
use crate::program::{ok, run};

/// The passages that may hold numbers of a chapter. It starts from what the one before bought.
fn sections(number: usize) -> String {
    let section = |number: usize, title: &str| {
        let file = crate::support::root().join(format!("book/src/{}.md", chapter(number).name));
        let page = std::fs::read_to_string(file).unwrap().replace("\r\n", "\n");
        let (_, section) = page.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("{title}"));
        section.split("\n## ").next().unwrap().to_string()
    };
    let before = if number > 1 { section(number - 1, "What it bought") } else { String::new() };
    before + &section(number, "The problem, measured") + &section(number, "What it bought")
}

#[test]
fn every_number_stands_in_the_page() {
    let report = ok(&["gains", "--json"]).json();
    let chapters = report["chapters"].as_array().unwrap();
    assert_eq!(chapters.len(), all().len());
    for (object, chapter) in chapters.iter().zip(all()) {
        assert_eq!((&object["number"], &object["title"]), (&json!(chapter.number), &json!(chapter.title)));
        let sections = sections(chapter.number);
        let words = sections.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
        let written: Vec<&str> = words.map(|word| word.trim_matches([',', '.'])).collect();
        for line in object["lines"].as_array().unwrap() {
            for side in [&line["before"], &line["after"]].into_iter().filter(|side| !side.is_null()) {
                let shown = side["shown"].as_str().unwrap();
                let is_written = written.contains(&shown.trim_end_matches(" %"));
                assert!(is_written, "chapter {}, {}: the page does not say {shown}", chapter.number, line["what"]);
            }
        }
    }
}

#[test]
fn a_chapter_takes_a_few_lines() {
    let page = std::fs::read_to_string(crate::support::root().join("book/src/how_to_use.md")).unwrap();
    let shown = ok(&["gains", "2"]);
    assert_eq!(shown.stderr, "");
    assert!(page.contains(&shown.stdout), "book/src/how_to_use.md does not show:\n{}", shown.stdout);
    let report = ok(&["gains", "6", "--json"]);
    keys_are_documented("gains", &report);
    let report = report.json();
    let [chapter] = &report["chapters"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&chapter["number"], &chapter["name"]), (&json!(6), &json!("ch06_paged")));
    let code: Vec<&Value> = chapter["after"]["code"].as_array().unwrap().iter().map(|code| &code["chapter"]).collect();
    assert_eq!(code, [4, 5, 6]);
    let after = &chapter["lines"][0]["after"];
    assert_eq!((&after["value"], &after["is"], &after["shown"]), (&json!(8.0), &json!("count"), &json!("8")));
    assert_eq!(run(&["gains", "two"]).code, Some(2));
}
