//! The reader's own copy. Cargo and the tool for figures are scripts here: what they really do takes minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::serve::Server;
use page_by_page_course::figures::STANDS_ON;
use page_by_page_course::stub;

use crate::support::Book;

const EXERCISE: &str = "exercises/ch02_flat.rs";
const PAGE: &str = "book/src/ch02_flat.md";

/// The figures that stand on chapter 2, alone or with others.
fn figures() -> impl Iterator<Item = &'static str> {
    STANDS_ON.into_iter().filter(|(_, chapters)| chapters.contains(&2)).map(|(figure, _)| figure)
}

const CARGO: &str = r#"#!/bin/sh
echo "$@" >> calls
case "$1" in
build)
    if [ -f broken ]; then cat broken >&2; exit 101; fi
    echo '{"reason":"compiler-artifact","target":{"name":"figures-tool"},"profile":{"test":false},"executable":"'"$PWD"'/figures-tool"}'
    ;;
test)
    [ ! -f red ]
    ;;
esac
"#;

const FIGURES_TOOL: &str = r#"#!/bin/sh
if [ -f failing ]; then cat failing >&2; exit 1; fi
mkdir -p "$4"
echo "<figure data-figure=\"$2\"><p class=\"pbp-whose\">yours: $2</p></figure>" > "$4/$2.html"
echo "$2: the same as the reference, step by step"
"#;

/// A good book with three figures and an exercise that is started.
fn started() -> Book {
    let book = Book::good();
    for figure in figures() {
        let html = format!("<figure data-figure=\"{figure}\">\n<figcaption>the reference's</figcaption>\n</figure>\n");
        book.write(&format!("book/src/figures/{figure}.html"), &html);
        let page = book.read(PAGE);
        book.write(PAGE, &format!("{page}\n{{{{#include figures/{figure}.html}}}}\n"));
    }
    book.write("exercises/untouched.txt", "# hash, chapter\n0123456789abcdef  ch02_flat\n");
    begin(&book, "");
    for (file, text) in [("cargo", CARGO), ("figures-tool", FIGURES_TOOL)] {
        book.write(file, text);
        fs::set_permissions(book.path(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
    book
}

/// Adds to the exercise.
fn begin(book: &Book, code: &str) {
    let stub = book.read(EXERCISE).replace("todo!", "unimplemented!");
    book.write(EXERCISE, &format!("{stub}\n{code}"));
}

fn run(book: &Book, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_book-tool"));
    command.args(arguments).current_dir(book.root()).env("CARGO", book.path("cargo")).output().unwrap()
}

/// Makes the copy; returns its page of chapter 2 and what the terminal says.
fn copy(book: &Book) -> (String, String) {
    let before = book.read("book/src/figures/ch02_copy.html");
    let output = run(book, &["build", "--mine"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(!book.path("book/html").exists(), "the book itself is not rendered");
    assert_eq!(book.read("book/src/figures/ch02_copy.html"), before, "the reference's figures stay");
    let page = book.read("book/mine/ch02_flat.html");
    assert_eq!(page.matches("class=\"pbp-copy\"").count(), 1, "each page says once that it is a copy");
    (page, said)
}

fn calls(book: &Book) -> Vec<String> {
    let calls = fs::read_to_string(book.path("calls")).unwrap_or_default();
    calls.lines().map(str::to_string).collect()
}

#[test]
fn green_chapters_are_in_the_figures() {
    let book = started();
    let (page, said) = copy(&book);
    for figure in figures() {
        assert!(page.contains(&format!("yours: {figure}")), "{page}");
    }
    assert!(!page.contains("the reference's</figcaption>"), "{page}");
    let line = format!(
        "Your copy of the book, with chapter 2. {} figures are recorded from your code, the same as the reference step by step.",
        figures().count()
    );
    assert!(page.contains(&line) && said.contains(&line), "{said}");
    assert!(book.read("book/mine/preface.html").contains(&line), "every page says so");
    let calls = calls(&book);
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[0].contains("--test ch02_flat --bin figures-tool"), "{calls:?}");
    assert_eq!(calls[1], "test --features solution --test ch02_flat");
}

#[test]
fn an_untouched_chapter_leaves_the_book_as_it_is() {
    let book = started();
    let hash = stub::fingerprint(&book.read(EXERCISE));
    book.write("exercises/untouched.txt", &format!("{hash}  ch02_flat\n"));
    let (page, _) = copy(&book);
    assert!(page.contains("You have started no chapter yet: all figures are the reference’s."), "{page}");
    assert!(!page.contains("pbp-whose"), "{page}");
    assert_eq!(calls(&book), [""; 0]);
}

#[test]
fn a_red_chapter_is_named_with_its_command() {
    let book = started();
    book.write("red", "");
    let (page, said) = copy(&book);
    let note = "<figcaption>the reference's</figcaption>\n<p class=\"pbp-whose\">From the reference: chapter 2 is red \
                (<code>cargo test --features solution --test ch02_flat</code>).</p>";
    assert_eq!(page.matches(note).count(), figures().count(), "{page}");
    assert!(said.contains("Chapter 2 is red: cargo test --features solution --test ch02_flat"), "{said}");
    let kept = format!("{} figures are still the reference’s, and say why.", figures().count());
    assert!(page.contains(&format!("0 figures are recorded from your code. {kept}")), "{page}");
}

#[test]
fn an_unfinished_chapter_is_not_even_compiled() {
    let book = started();
    begin(&book, "fn a() { todo!(\"ch02 task 1: a\") }\nfn b() { todo!(\"ch02 task 2: b\") } // todo!(3)\n");
    let (page, _) = copy(&book);
    assert!(page.contains("From the reference: chapter 2 is not finished, 2 pieces left to write ("), "{page}");
    assert_eq!(calls(&book), [""; 0]);
}

#[test]
fn code_that_does_not_compile_is_shown_and_its_file_named() {
    let book = started();
    let error =
        "   Compiling page-by-page\nerror[E0425]: cannot find value `rows`\n  --> src/../exercises/ch02_flat.rs:7:9\n";
    book.write("broken", error);
    let (page, said) = copy(&book);
    assert!(said.contains("cannot find value `rows`\n  --> src/../exercises/ch02_flat.rs:7:9"), "{said}");
    let what = "exercises/ch02_flat.rs:7 does not compile (<code>cargo build --package figures-tool</code>).";
    assert!(page.contains(&format!("From the reference: {what}")), "{page}");

    let error = "error[E0599]: no method named `slots`\n  --> tools/figures/src/figures/ch02_copy.rs:70:9\n";
    book.write("broken", error);
    let (page, _) = copy(&book);
    assert!(page.contains("tools/figures/src/figures/ch02_copy.rs:70 does not compile with your code"), "{page}");
}

#[test]
fn a_figure_that_cannot_be_recorded_says_why() {
    let book = started();
    for (says, expected) in [
        (
            "error: the code panicked (exercises/ch02_flat.rs:9): no <room>\n",
            "the code panicked (exercises/ch02_flat.rs:9): no &lt;room&gt;",
        ),
        (
            "memory allocation of 8589934592 bytes failed\n",
            "it asks for ever more memory (memory allocation of 8589934592 bytes failed)",
        ),
    ] {
        book.write("failing", says);
        let (page, said) = copy(&book);
        let note = format!(
            "From the reference: recording it from your code failed: {expected} \
             (<code>cargo run --package figures-tool -- mine ch02_copy</code>)."
        );
        assert!(page.contains(&note), "{page}");
        assert!(said.contains("ch02_copy: not recorded: "), "{said}");
    }
}

#[test]
fn only_what_is_shown_can_be_a_copy() {
    let book = started();
    let output = run(&book, &["--mine", "check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cargo book build --mine"));
    assert!(run(&book, &["--mine", "build"]).status.success());
    assert!(book.path("book/mine/index.html").exists());
}

#[test]
fn edits_of_the_exercises_are_followed() {
    let book = started();
    book.write("red", "");
    let mut tool = Command::new(env!("CARGO_BIN_EXE_book-tool"));
    tool.args(["--mine", "--port", "0"]).env("CARGO", book.path("cargo"));
    let server = Server::run(book, tool);
    server.wait_for("/ch02_flat.html", "From the reference: chapter 2 is red");
    fs::remove_file(server.book.path("red")).unwrap();
    begin(&server.book, "// mended\n");
    server.wait_for("/ch02_flat.html", "yours: ch02_copy");
    let before = calls(&server.book).len();
    // Nothing that a figure stands on.
    server.book.write("book/src/preface.md", "# Preface\n\nOnce more.\n");
    server.wait_for("/preface.html", "Once more.");
    assert_eq!(calls(&server.book).len(), before, "{:?}", calls(&server.book));
    server.wait_for("/ch02_flat.html", "yours: ch02_copy");
}
