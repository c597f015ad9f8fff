//! Each case puts one fault into a good book: the build must name its file and line, and nothing else.

use std::process::Command;

use crate::support::{Book, said};

const PAGE: &str = "book/src/ch02_flat.md";
const CITATIONS: &str = "book/citations.toml";
const FIGURE: &str = "book/src/figures/pages.svg";
const PREFACE: &str = "book/src/preface.md";

#[test]
fn build_writes_the_book_and_takes_stale_pages_away() {
    let book = Book::good();
    book.write("book/html/old/page.html", "");
    let mut inside = Command::new(env!("CARGO_BIN_EXE_book-tool"));
    inside.arg("build").current_dir(book.path("book/src/figures"));
    assert!(inside.status().unwrap().success(), "it finds the repository around it");
    assert!(book.read("book/html/ch02_flat.html").contains("longer.extend_from_slice"), "the include is in the page");
    assert!(!book.path("book/html/old").exists());
}

#[test]
fn all_faults_are_shown_in_order() {
    let book = Book::good();
    book.write(PREFACE, "# Preface\n\nSee `src/no.rs`.\n\n[x](no.md)\n");
    book.replace(PAGE, "`FlatCache::extend`", "`FlatCache::extent`");
    let said = said(&book.cargo_book(&["build"]));
    let places = [PAGE, "book/src/preface.md:3:", "book/src/preface.md:5:", "3 problems"].map(|it| said.find(it));
    assert!(places[0].is_some() && places.is_sorted(), "{said}");
}

/// `faults.txt` has texts for the end of a page, and after each what the build says of it: of its lines, and no other.
#[test]
fn a_fault_is_said_with_its_place_and_the_next_step() {
    for case in include_str!("faults.txt").trim_end().split("\n====\n") {
        let (text, expected) = case.split_once("\n----\n").expect("a text and what is said of it");
        let book = Book::good();
        let page = book.read(PAGE);
        book.write(PAGE, format!("{page}\n{text}\n"));
        let output = book.cargo_book(&["build"]);
        let before = page.lines().count() + 1;
        let numbered =
            |said: String, line| said.replace(&format!("{PAGE}:{}: ", before + line), &format!("line {line}: "));
        let said = match output.status.code() {
            Some(0) => "in order".into(),
            _ => (1..=text.lines().count()).fold(said(&output), numbered),
        };
        assert_eq!(said.trim_end(), expected);
    }
}

#[test]
fn code_may_be_half_written_and_use_other_words() {
    let book = Book::good();
    book.write("exercises/ch02_flat.rs", "pub fn cache_bytes( {");
    book.replace(PAGE, "`ch02_flat::cache_bytes` and ", "");
    book.write("src/words.rs", "/// The page behind this one.\nconst ERROR: &str = \"the page behind this one\";\n");
    let output = book.cargo_book(&["build"]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Faults that no text at a page's end can have: what is put in place of what, and what the build must say.
#[test]
fn faults_of_the_book_as_a_whole() {
    for (file, text, by, problem) in [
        (PAGE, "# The flat cache", "The flat cache", "book/src/ch02_flat.md:1: the page has no title"),
        ("book/src/lost.md", "", "# Lost\n", "book/src/lost.md:1: the page is not in the book"),
        (PAGE, "## Build", "## Build\n\n{{#include\nno.rs}}", "mdBook warns: Error updating"),
        ("CONTRIBUTING.md", "", "# How\n\nSee `crates/no.rs`.\n", "CONTRIBUTING.md:3: no file `crates/no.rs`"),
        ("book/src/SUMMARY.md", "(preface.md)", "(prefaze.md)", "book/src/SUMMARY.md:3: no page `book/src/prefaze.md`"),
        (FIGURE, "<text x=\"0\" y=\"70\">", "TODO <text>", "book/src/figures/pages.svg:4: the page still says TODO"),
        (FIGURE, "  <text x=\"0\" y=\"70\">", "\n<text>", "figures/pages.svg:4: a blank line inside an inline `<svg>`"),
        (CITATIONS, "does this", "does that", "book/citations.toml:5: the page `ch02_flat` does not say this"),
        (CITATIONS, "moves = false", "moves = true", "book/citations.toml:5: this is true of `vLLM 0.3.0`"),
    ] {
        let book = Book::good();
        match text {
            "" => book.write(file, by),
            _ => book.replace(file, text, by),
        }
        let output = book.cargo_book(&["build"]);
        let said = said(&output);
        // What links to a missing page is at fault, too, and what follows the end of a figure.
        let has_others = ["no page", "a blank line"].iter().any(|first| problem.contains(first));
        let is_alone = has_others || said.contains("1 problem in the book");
        let is_found = output.status.code() == Some(1) && said.contains(problem);
        assert!(is_found && is_alone, "expected {problem:?} alone in:\n{said}");
    }
}
