//! Each test puts one fault into a good book: the check must name its file and line, and nothing else.

use crate::support::Book;

const PAGE: &str = "book/src/ch02_flat.md";

/// Runs the check on a book with one fault and returns what it says of it.
fn the_finding(book: &Book) -> String {
    let output = book.cargo_book(&["check"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 problem in the book"), "{said}");
    said
}

/// The page ends in `text`: the check must say `problem` of the first line of it.
fn finds_at_the_end(text: &str, problem: &str) {
    let book = Book::good();
    let page = book.read(PAGE);
    let line = page.lines().count() + 2;
    book.write(PAGE, &format!("{page}\n{text}\n"));
    let said = the_finding(&book);
    let expected = format!("{PAGE}:{line}: {problem}");
    assert!(said.contains(&expected), "expected {expected:?} in:\n{said}");
}

/// `old` becomes `new`: the check must say `problem` of the line.
fn finds_in_place_of(old: &str, new: &str, problem: &str) {
    let book = Book::good();
    let text = book.read(PAGE);
    let line = text[..text.find(old).unwrap()].matches('\n').count() + 1;
    book.replace(PAGE, old, new);
    let said = the_finding(&book);
    let expected = format!("{PAGE}:{line}: {problem}");
    assert!(said.contains(&expected), "expected {expected:?} in:\n{said}");
}

#[test]
fn a_good_book_is_in_order() {
    let book = Book::good();
    let output = book.cargo_book(&["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!book.path("book/html").exists(), "check must leave book/html alone");
}

#[test]
fn build_writes_the_book_and_takes_stale_pages_away() {
    let book = Book::good();
    std::fs::create_dir_all(book.path("book/html/old")).unwrap();
    book.write("book/html/old/page.html", "");
    let output = book.cargo_book(&["build"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = book.read("book/html/ch02_flat.html");
    assert!(page.contains("longer.extend_from_slice"), "the include is in the page");
    assert!(!book.path("book/html/old").exists());
}

#[test]
fn build_with_a_fault_leaves_the_old_book() {
    let book = Book::good();
    book.cargo_book(&["build"]);
    let before = book.read("book/html/preface.html");
    book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    let output = book.cargo_book(&["build"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(book.read("book/html/preface.html"), before);
}

#[test]
fn works_from_a_folder_inside_the_repository() {
    let book = Book::good();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_book-tool"))
        .arg("check")
        .current_dir(book.path("book/src/figures"))
        .output()
        .unwrap();
    assert!(output.status.success());
}

#[test]
fn all_faults_are_shown_in_order() {
    let book = Book::good();
    book.write("book/src/preface.md", "# Preface\n\nSee `src/no.rs`.\n\n[x](no.md)\n");
    book.replace(PAGE, "`FlatCache::extend`", "`FlatCache::extent`");
    let said = String::from_utf8(book.cargo_book(&["check"]).stderr).unwrap();
    let places: Vec<&str> = said.lines().filter(|line| line.starts_with("book/")).collect();
    assert_eq!(places.len(), 3, "{said}");
    assert!(places[0].starts_with(PAGE), "{said}");
    assert!(places[1].starts_with("book/src/preface.md:3:"), "{said}");
    assert!(places[2].starts_with("book/src/preface.md:5:"), "{said}");
}

// Includes.

#[test]
fn an_included_file_is_missing() {
    finds_at_the_end("{{#include ../../src/no.rs}}", "no file `src/no.rs` to include");
}

#[test]
fn an_anchor_is_missing() {
    finds_at_the_end(
        "{{#include ../../solutions/ch02_flat.rs:extent}}",
        "`solutions/ch02_flat.rs`: no anchor `extent`\n    did you mean `extend`?",
    );
}

#[test]
fn an_anchor_is_not_closed() {
    finds_at_the_end(
        "{{#include ../../solutions/ch02_flat.rs:open}}",
        "`solutions/ch02_flat.rs`: anchor `open` is never closed",
    );
}

#[test]
fn an_anchor_is_empty() {
    finds_at_the_end(
        "{{#include ../../solutions/ch02_flat.rs:nothing}}",
        "`{{#include ../../solutions/ch02_flat.rs:nothing}}` yields nothing",
    );
}

#[test]
fn an_include_from_the_exercises() {
    finds_at_the_end(
        "{{#rustdoc_include ../../exercises/ch02_flat.rs}}",
        "the page includes `exercises/ch02_flat.rs`, which the reader edits",
    );
}

#[test]
fn an_unknown_directive() {
    finds_at_the_end("{{#playground ../../src/lib.rs}}", "`{{#playground …}}` is not used");
}

#[test]
fn an_escaped_directive_is_text() {
    let book = Book::good();
    let page = book.read(PAGE);
    book.write(PAGE, &format!("{page}\nWrite `\\{{{{#include file.rs}}}}`.\n"));
    assert!(book.cargo_book(&["check"]).status.success());
}

#[test]
fn a_fault_in_an_included_file_is_shown_there() {
    let book = Book::good();
    book.replace("book/src/figures/pages.svg", "  <text x=\"0\" y=\"70\">", "\n  <text x=\"0\" y=\"70\">");
    let output = book.cargo_book(&["check"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("book/src/figures/pages.svg:7: a blank line inside an inline `<svg>`"), "{said}");
}

// Links.

#[test]
fn a_link_to_a_missing_page() {
    finds_at_the_end("[x](ch02_flt.md)", "the link `ch02_flt.md` leads nowhere\n    did you mean `ch02_flat.md`?");
}

#[test]
fn a_link_to_a_missing_heading() {
    finds_at_the_end("[x](preface.md#way)", "`preface.html` has no heading or id `#way`");
    finds_at_the_end(
        "[x](#the-problem-mesured)",
        "`ch02_flat.html` has no heading or id `#the-problem-mesured`\n    did you mean `the-problem-measured`?",
    );
}

#[test]
fn a_link_in_html() {
    finds_at_the_end("<a href=\"no.md\">x</a>", "the link `no.md` leads nowhere");
}

#[test]
fn a_link_out_of_the_book() {
    finds_at_the_end("[x](../../src/cache/mod.rs)", "the link `../../src/cache/mod.rs` leaves the book");
}

#[test]
fn a_link_to_an_exercise() {
    finds_at_the_end("[x](../../exercises/ch99.rs)", "the link `../../exercises/ch99.rs` leads nowhere");
}

#[test]
fn a_link_from_the_root() {
    finds_at_the_end("[x](/preface.html)", "the link `/preface.html` does not work");
}

#[test]
fn a_link_that_is_no_address() {
    finds_at_the_end("[x](https:///page)", "`https:///page` is not a web address");
}

// Names.

#[test]
fn a_named_file_is_missing() {
    finds_at_the_end(
        "Edit `exercises/ch02_flt.rs`.",
        "no file `exercises/ch02_flt.rs`\n    did you mean `exercises/ch02_flat.rs`?",
    );
    finds_at_the_end("See `tests/snapshots/*.snap`.", "no file `tests/snapshots/*.snap`");
}

#[test]
fn a_named_method_is_missing() {
    finds_at_the_end("Write `FlatCache::grow`.", "`FlatCache` has no `grow`");
    finds_at_the_end("Write `KvCache::extent(n)`.", "`KvCache` has no `extent`\n    did you mean `extend`?");
}

#[test]
fn a_named_type_is_missing() {
    finds_at_the_end("Write `FlatCach::extend`.", "no type or module `FlatCach`\n    did you mean `FlatCache`?");
}

#[test]
fn a_named_item_of_a_module_is_missing() {
    finds_at_the_end("See `ch02_flat::cache_byte`.", "module `ch02_flat` has no `cache_byte`");
    finds_at_the_end("See `crate::cash`.", "nothing in the crate is named `cash`");
}

#[test]
fn a_named_function_is_missing() {
    finds_at_the_end("Call `generat()`.", "no function `generat`");
}

#[test]
fn names_in_details_are_checked_too() {
    finds_at_the_end("<details><summary>See <code>src/no.rs</code></summary>text</details>", "no file `src/no.rs`");
}

#[test]
fn names_of_other_projects_are_theirs() {
    let book = Book::good();
    let page = book.read(PAGE);
    book.write(
        PAGE,
        &format!(
            "{page}\nllama.cpp has [`src/llama-kv-cache.cpp`](https://github.com/ggml-org/llama.cpp); \
             `std::mem::take` and `Vec::push` are Rust's, `PagedCache<'a>` and `cargo test` no claims.\n"
        ),
    );
    let output = book.cargo_book(&["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_half_written_exercise_breaks_nothing() {
    let book = Book::good();
    book.write("exercises/ch02_flat.rs", "pub fn cache_bytes( {");
    book.replace(PAGE, "`ch02_flat::cache_bytes` and ", "");
    let output = book.cargo_book(&["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// Markup.

#[test]
fn an_image_without_words() {
    finds_at_the_end("![](figures/pages.svg)", "the image has no alternative text");
    finds_at_the_end("<img src=\"figures/pages.svg\">", "the image has no alternative text");
}

#[test]
fn a_figure_without_words() {
    finds_at_the_end("<figure><svg viewBox=\"0 0 1 1\"><path d=\"M0 0\"/></svg></figure>", "the figure has no words");
}

#[test]
fn a_figure_with_a_title_has_words() {
    let book = Book::good();
    let page = book.read(PAGE);
    let svg = "<figure><svg role=\"img\"><title>A page</title><svg><path d=\"M0 0\"/></svg></svg></figure>";
    book.write(PAGE, &format!("{page}\n{svg}\n"));
    let output = book.cargo_book(&["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_figure_that_refers_to_an_id() {
    finds_at_the_end(
        "<figure><svg role=\"img\" aria-label=\"x\"><path marker-end=\"url(#arrow)\"/></svg></figure>",
        "`<path>` in a figure refers to an id",
    );
}

#[test]
fn a_heading_that_skips_a_level() {
    finds_at_the_end("#### Deep", "the heading skips from level 2 to level 4");
}

#[test]
fn a_second_title() {
    finds_at_the_end("# Again", "the page has a second title");
}

#[test]
fn a_page_without_a_title() {
    finds_in_place_of("# The flat cache", "The flat cache", "the page has no title");
}

#[test]
fn an_id_used_twice() {
    finds_at_the_end("<b id=\"build\">x</b>", "the id `build` is used twice");
}

#[test]
fn an_asset_from_the_network() {
    finds_at_the_end(
        "<img alt=\"x\" src=\"https://example.com/x.png\">",
        "the page fetches `https://example.com/x.png`",
    );
    finds_at_the_end("<script src=\"//example.com/x.js\"></script>", "the page fetches `//example.com/x.js`");
}

#[test]
fn a_stylesheet_from_the_network() {
    let book = Book::good();
    book.write("book/book.css", "body {}\n@import \"https://example.com/x.css\";\n");
    let said = the_finding(&book);
    assert!(said.contains("book/book.css:2: every page fetches `https://example.com/x.css`"), "{said}");
}

#[test]
fn an_unfinished_passage() {
    finds_at_the_end("TODO: more", "the page still says TODO");
}

#[test]
fn details_without_a_summary() {
    finds_at_the_end("<details>\n\ntext\n\n</details>", "`<details>` has no `<summary>`");
}

#[test]
fn details_that_are_not_closed() {
    finds_at_the_end("<details>\n<summary>x</summary>", "`<details>` is not closed");
}

#[test]
fn an_end_tag_too_many() {
    finds_at_the_end("</details>", "`</details>` closes nothing");
}

#[test]
fn details_closed_outside_their_list() {
    finds_at_the_end(
        "- <details><summary>x</summary>\n\n</details>\n",
        "`<details>` and `</details>` lie at different depths",
    );
}

#[test]
fn markdown_that_would_be_shown_raw() {
    finds_at_the_end(
        "<details><summary>What does `extend` do?</summary>\n\ntext\n\n</details>",
        "Markdown inside HTML is shown as it is written",
    );
}

#[test]
fn inline_html_in_running_text_is_no_fault() {
    let book = Book::good();
    let page = book.read(PAGE);
    let text = "- <b>a</b> and <span class=\"cell-new\">new\n  text</span> **<i>b</i>** `code`<br>\n\n| a | b |\n|---|---|\n| <b>x</b> | <b>`y`</b> |";
    book.write(PAGE, &format!("{page}\n{text}\n"));
    let output = book.cargo_book(&["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// The book as a whole.

#[test]
fn a_page_that_is_not_listed() {
    let book = Book::good();
    book.write("book/src/lost.md", "# Lost\n");
    assert!(the_finding(&book).contains("book/src/lost.md:1: the page is not in the book"));
}

#[test]
fn a_listed_page_that_is_not_there() {
    let book = Book::good();
    book.replace("book/src/SUMMARY.md", "[Preface](preface.md)", "[Preface](prefaze.md)");
    let said = String::from_utf8(book.cargo_book(&["check"]).stderr).unwrap();
    assert!(said.contains("book/src/SUMMARY.md:3: no page `book/src/prefaze.md`"), "{said}");
}

#[test]
fn a_footnote_that_nothing_refers_to() {
    finds_at_the_end("[^lonely]: text", "mdBook warns: footnote `lonely`");
}

#[test]
fn a_page_that_does_not_say_what_it_is_about() {
    let book = Book::good();
    book.write("book/src/preface.md", "# Preface\n\n```text\nonly code\n```\n");
    let said = the_finding(&book);
    assert!(said.contains("book/src/preface.md:1: no sentence says what the page is about"), "{said}");
}

#[test]
fn a_page_that_begins_like_another() {
    let book = Book::good();
    let words = "The same words at the top of two pages say of neither of them what it is about, and that is a pity.";
    book.write("book/src/preface.md", &format!("# Preface\n\n{words}\n"));
    let page = book.read(PAGE);
    let title = page.lines().next().unwrap();
    book.write(PAGE, &page.replacen(title, &format!("{title}\n\n{words}"), 1));
    let said = the_finding(&book);
    assert!(said.contains(&format!("{PAGE}:1: the page begins with the words of `book/src/preface.md`")), "{said}");
}
