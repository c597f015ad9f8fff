//! `gains` counts what the pages say: every number that it prints stands in the page of its chapter.

use page_by_page::chapters::{all, chapter};

use crate::program::{ok, run};

/// The page of a chapter and the one before it: a chapter starts from what the one before gained.
fn pages(number: usize) -> String {
    let page = |number| {
        let file = grading::root().join(format!("book/src/{}.md", chapter(number).name));
        std::fs::read_to_string(file).unwrap()
    };
    (number.max(2) - 1..=number).map(page).collect()
}

#[test]
fn every_number_stands_in_the_page() {
    let shown = ok(&["gains"]).stdout;
    let chapters: Vec<&str> = shown.split("\n\n").collect();
    assert_eq!(chapters.len(), all().len());
    for (shown, chapter) in chapters.iter().zip(all()) {
        assert!(shown.starts_with(&format!("chapter {}, {}\n", chapter.number, chapter.title)), "{shown}");
        let pages = pages(chapter.number);
        let words = pages.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
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
