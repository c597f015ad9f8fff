//! `gains` counts what the pages say: every number that it prints stands in the page of its chapter.

use page_by_page::chapters::{all, chapter};

use crate::program::{ok, run};

/// The passages that may hold numbers of a chapter. It starts from what the one before gained.
fn sections(number: usize) -> String {
    let section = |number: usize, title: &str| {
        let file = grading::root().join(format!("book/src/{}.md", chapter(number).name));
        let page = std::fs::read_to_string(file).unwrap().replace("\r\n", "\n");
        let (_, section) = page.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("{title}"));
        section.split("\n## ").next().unwrap().to_string()
    };
    let before = if number > 1 { section(number - 1, "What you gained") } else { String::new() };
    before + &section(number, "The problem, measured") + &section(number, "What you gained")
}

#[test]
fn every_number_stands_in_the_page() {
    let shown = ok(&["gains"]).stdout;
    let chapters: Vec<&str> = shown.split("\n\n").collect();
    assert_eq!(chapters.len(), all().len());
    for (shown, chapter) in chapters.iter().zip(all()) {
        assert!(shown.starts_with(&format!("chapter {}, {}\n", chapter.number, chapter.title)), "{shown}");
        let sections = sections(chapter.number);
        let words = sections.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
        let written: Vec<&str> = words.map(|word| word.trim_matches([',', '.'])).collect();
        let sides = shown.lines().filter_map(|line| line.rsplit_once(": ")).flat_map(|(_, sides)| sides.split(" → "));
        let numbers: Vec<&str> = sides.filter(|side| side.starts_with(|c: char| c.is_ascii_digit())).collect();
        assert!(!numbers.is_empty(), "{shown}");
        for number in numbers {
            let is_written = written.contains(&number.trim_end_matches(" %"));
            assert!(is_written, "chapter {}: the page does not say {number}:\n{shown}", chapter.number);
        }
    }
}

#[test]
fn a_chapter_takes_a_few_lines() {
    let page = std::fs::read_to_string(grading::root().join("book/src/tools.md")).unwrap();
    let shown = ok(&["gains", "2"]);
    assert_eq!(shown.stderr, "");
    assert!(page.contains(&shown.stdout), "book/src/tools.md does not show:\n{}", shown.stdout);
    assert_eq!(run(&["gains", "two"]).code, Some(2));
}
