//! Each case puts one fault into a good book: the build must name its file and line, and nothing else.

use std::fs;
use std::process::Command;

use crate::support::{Book, said};

const PAGE: &str = "book/src/ch02_flat.md";
const PREFACE: &str = "book/src/preface.md";

/// Builds a book with one fault and returns what that says of it.
#[track_caller]
fn the_finding(book: &Book) -> String {
    let output = book.cargo_book(&["build"]);
    let said = said(&output);
    assert!(output.status.code() == Some(1) && said.contains("1 problem in the book"), "{said}");
    said
}

#[track_caller]
fn is_in_order(book: &Book) {
    let output = book.cargo_book(&["build"]);
    assert!(output.status.success(), "{}", said(&output));
}

/// A good book in which the page of chapter 2 ends in `text`, and the line on which that begins.
fn ending_in(text: &str) -> (Book, usize) {
    let book = Book::good();
    let page = book.read(PAGE);
    book.write(PAGE, &format!("{page}\n{text}\n"));
    (book, page.lines().count() + 2)
}

/// Each text, at the end of a page: the build must report the problem on its first line, or for mdBook at the page's
/// top.
fn are_found(cases: &[(&str, &str)]) {
    for (text, problem) in cases {
        let (book, line) = ending_in(text);
        let said = the_finding(&book);
        let line = if problem.starts_with("mdBook warns") { 1 } else { line };
        let expected = format!("{PAGE}:{line}: {problem}");
        assert!(said.contains(&expected), "{text}\nexpected {expected:?} in:\n{said}");
    }
}

#[test]
fn build_writes_the_book_and_takes_stale_pages_away() {
    let book = Book::good();
    fs::create_dir_all(book.path("book/html/old")).unwrap();
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
    let places: Vec<&str> = said.lines().filter(|line| line.starts_with("book/")).collect();
    assert_eq!(places.len(), 3, "{said}");
    for (place, expected) in places.iter().zip([PAGE, "book/src/preface.md:3:", "book/src/preface.md:5:"]) {
        assert!(place.starts_with(expected), "{said}");
    }
}

#[test]
fn includes_that_find_nothing() {
    are_found(&[
        ("{{#include ../../src/no.rs}}", "no file `src/no.rs` to include"),
        ("{{#include ../../solutions/ch02_flat.rs:extent}}", "`solutions/ch02_flat.rs`: no anchor `extent`"),
        ("{{#include ../../solutions/ch02_flat.rs:open}}", "`solutions/ch02_flat.rs`: anchor `open` is never closed"),
        (
            "{{#include ../../solutions/ch02_flat.rs:nothing}}",
            "`{{#include ../../solutions/ch02_flat.rs:nothing}}` yields nothing",
        ),
        (
            "{{#rustdoc_include ../../exercises/ch02_flat.rs}}",
            "the page includes `exercises/ch02_flat.rs`, which the reader edits",
        ),
        ("{{#playground ../../src/lib.rs}}", "`{{#playground …}}` is not used"),
    ]);
}

#[test]
fn a_fault_in_an_included_file_is_shown_there() {
    let book = Book::good();
    book.replace("book/src/figures/pages.svg", "  <text x=\"0\" y=\"70\">", "  <text x=\"0\" y=\"70\">TODO ");
    assert!(the_finding(&book).contains("book/src/figures/pages.svg:4: the page still says TODO"));
    book.replace("book/src/figures/pages.svg", "  <text x=\"0\" y=\"70\">TODO ", "\n  <text x=\"0\" y=\"70\">");
    let said = said(&book.cargo_book(&["build"]));
    assert!(said.contains("book/src/figures/pages.svg:4: a blank line inside an inline `<svg>`"), "{said}");
}

#[test]
fn links_that_lead_nowhere() {
    are_found(&[
        ("[x](ch02_flt.md)", "the link `ch02_flt.md` leads nowhere\n    did you mean `ch02_flat.md`?"),
        ("[x](preface.md#way)", "`preface.html` has no heading or id `#way`"),
        ("[x](#problem)", "`ch02_flat.html` has no heading or id `#problem`"),
        ("<a href=\"no.md\">x</a>", "the link `no.md` leads nowhere"),
        ("[x](../../src/cache/mod.rs)", "the link `../../src/cache/mod.rs` leaves the book"),
        ("[x](/preface.html)", "the link `/preface.html` does not work"),
    ]);
}

#[test]
fn names_that_are_not_there() {
    are_found(&[
        ("Edit `exercises/ch02_flt.rs`.", "no file `exercises/ch02_flt.rs`"),
        ("See `tests/snapshots/*.snap`.", "no file `tests/snapshots/*.snap`"),
        ("Write `FlatCache::grow`.", "`FlatCache` has no `grow`"),
        ("Write `KvCache::extent(n)`.", "`KvCache` has no `extent`\n    did you mean `extend`?"),
        ("Write `FlatCach::extend`.", "no type or module `FlatCach`\n    did you mean `FlatCache`?"),
        ("See `ch02_flat::cache_byte`.", "`ch02_flat` has no `cache_byte`"),
        ("See `crate::cash`.", "nothing in the crate is named `cash`"),
        ("Call `generat()`.", "no function `generat`"),
        ("<details><summary>See <code>src/no.rs</code></summary>text</details>", "no file `src/no.rs`"),
    ]);
}

#[test]
fn markup_that_some_cannot_read() {
    are_found(&[
        ("![](figures/pages.svg)", "the image has no alternative text"),
        ("<img src=\"figures/pages.svg\">", "the image has no alternative text"),
        ("<figure><svg viewBox=\"0 0 1 1\"><path d=\"M0 0\"/></svg></figure>", "the figure has no words"),
        (
            "<figure><svg role=\"img\" aria-label=\"x\"><path marker-end=\"url(#arrow)\"/></svg></figure>",
            "`<path>` in a figure refers to an id",
        ),
        ("#### Deep", "the heading skips from level 2 to level 4"),
        ("# Again", "the page has a second title"),
        ("<b id=\"build\">x</b>", "the id `build` is used twice"),
        ("<details>\n\ntext\n\n</details>", "`<details>` has no `<summary>`"),
        ("<details>\n<summary>x</summary>", "mdBook warns: unclosed HTML tag `<details>`"),
        ("<details><summary>`x`</summary>\n\ntext\n\n</details>", "Markdown inside HTML is shown as it is written"),
        ("[^lonely]: text", "mdBook warns: footnote `lonely`"),
    ]);
}

#[test]
fn what_only_looks_like_a_fault_is_none() {
    for text in [
        "Write `\\{{#include file.rs}}`.",
        "llama.cpp has [`src/llama-kv-cache.cpp`](https://github.com/ggml-org/llama.cpp); `std::mem::take` and \
         `Vec::push` are Rust's, `PagedCache<'a>` and `cargo test` no claims.",
        "- <b>a</b> and <span class=\"cell-new\">new\n  text</span> **<i>b</i>** `code`<br>\n\n| a | b |\n|---|---|\n\
         | <b>x</b> | <b>`y`</b> |",
    ] {
        is_in_order(&ending_in(text).0);
    }
    let book = Book::good();
    book.write("exercises/ch02_flat.rs", "pub fn cache_bytes( {");
    book.replace(PAGE, "`ch02_flat::cache_bytes` and ", "");
    is_in_order(&book);
}

/// Faults that no text at the end of a page can have: where a text is put in place of another, and what the build must
/// say.
#[test]
fn faults_of_the_book_as_a_whole() {
    for (file, text, by, problem) in [
        (PAGE, "# The flat cache", "The flat cache", "book/src/ch02_flat.md:1: the page has no title"),
        ("book/src/lost.md", "", "# Lost\n", "book/src/lost.md:1: the page is not in the book"),
        ("CONTRIBUTING.md", "", "# How\n\nSee `crates/no.rs`.\n", "CONTRIBUTING.md:3: no file `crates/no.rs`"),
        (
            "book/src/SUMMARY.md",
            "[Preface](preface.md)",
            "[Preface](prefaze.md)",
            "book/src/SUMMARY.md:3: no page `book/src/prefaze.md`",
        ),
    ] {
        let book = Book::good();
        match text {
            "" => book.write(file, by),
            _ => book.replace(file, text, by),
        }
        let output = book.cargo_book(&["build"]);
        let said = said(&output);
        // What links to a missing page is at fault, too.
        let is_alone = said.contains("1 problem in the book") || problem.contains("no page");
        let is_found = output.status.code() == Some(1) && said.contains(problem);
        assert!(is_found && is_alone, "expected {problem:?} alone in:\n{said}");
    }
}

#[test]
fn words_that_the_book_has_replaced() {
    are_found(&[
        ("The tokens behind the prompt are new.", "the paragraph has `behind`"),
        ("The table tells how long it takes.", "the paragraph has `table tells`"),
        ("- Every text owns its pages.", "the paragraph has `Every text`"),
    ]);
    for fine in [
        "> He stood behind it.",
        "They call it \u{201c}behind\u{201d} and `behind`. Nobody minds.",
        "```text\nThe table tells it.\n```",
        "It is slow: it copies. It is simple: it appends. It grows. It waits. It ends. (All of it.)",
    ] {
        is_in_order(&ending_in(fine).0);
    }
    // What the code says is not the book's.
    let book = Book::good();
    book.write("src/words.rs", "/// The page behind this one.\nconst ERROR: &str = \"the page behind this one\";\n");
    is_in_order(&book);
}

#[test]
fn claims_about_other_engines() {
    are_found(&[
        ("vLLM 0.4.0 shares pages.", "no claim of this page is of release 0.4.0"),
        ("[It](https://github.com/vllm-project/x)", "no claim has the source `https://github.com/vllm-project/x`"),
    ]);
    for (old, new, problem) in [
        ("vLLM does this", "vLLM does that", "the page `ch02_flat` does not say this"),
        ("moves = false", "moves = true", "this is true of `vLLM 0.3.0`, and the book follows a different release"),
    ] {
        let book = Book::good();
        book.replace("book/citations.toml", old, new);
        let (said, expected) = (the_finding(&book), format!("book/citations.toml:6: {problem}"));
        assert!(said.contains(&expected), "{said}");
    }
    is_in_order(&ending_in("vLLM 0.3.0 shares pages, on 127.0.0.1 and Rust 1.89.").0);
}
