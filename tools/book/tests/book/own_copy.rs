//! The reader's own copy. Cargo is a script here: what it really does takes minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use page_by_page_course::source;

use crate::engine::add_place;
use crate::serve::Server;
use crate::support::Book;

const EXERCISE: &str = "exercises/ch02_flat.rs";
const PAGE: &str = "book/src/ch02_flat.md";

/// The figures that depend on chapter 2.
const FIGURES: [&str; 3] = ["ch01_bill", "ch02_bill", "ch02_copy"];

/// Stands for cargo and for the tool for figures.
const CARGO: &str = include_str!("cargo.sh");

/// A good book with three figures and an exercise that is started.
fn started() -> Book {
    let book = Book::good();
    for figure in FIGURES {
        let html = format!("<figure data-figure=\"{figure}\">\n<figcaption>the reference's</figcaption>\n</figure>\n");
        book.write(&format!("book/src/figures/{figure}.html"), html);
        book.write(&format!("tools/figures/src/figures/{figure}.rs"), "use page_by_page::chapters::ch02_flat;\n");
        let page = book.read(PAGE);
        book.write(PAGE, format!("{page}\n{{{{#include figures/{figure}.html}}}}\n"));
    }
    book.write("tools/figures/src/figures/model_layer.rs", "// It depends on nothing.\n");
    book.write("exercises/chapters.txt", "# hash, chapter\n0123456789abcdef  ch02_flat\n");
    begin(&book, "");
    write_program(&book, "cargo", CARGO);
    book
}

fn write_program(book: &Book, name: &str, script: &str) {
    book.write(name, script);
    fs::set_permissions(book.path(name), fs::Permissions::from_mode(0o755)).unwrap();
}

fn begin(book: &Book, code: &str) {
    let stub = book.read(EXERCISE).replace("todo!", "unimplemented!");
    book.write(EXERCISE, format!("{stub}\n{code}"));
}

/// Makes the copy; returns its page of chapter 2 and what the terminal says.
fn copy(book: &Book) -> (String, String) {
    let before = book.read("book/src/figures/ch02_copy.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_book-tool"));
    command.args(["build", "--mine"]).current_dir(book.root());
    command.env("CARGO", book.path("cargo")).env("RUSTC", book.path("rustc"));
    let output = command.output().unwrap();
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
    for figure in FIGURES {
        assert!(page.contains(&format!("yours: {figure}")), "{page}");
    }
    assert!(!page.contains("the reference's</figcaption>"), "{page}");
    let line = format!(
        "Your copy of the book, with chapter 2. Figures recorded from your code: {}; unlike the reference: 0. Figures that are still \
         the reference’s, and say why: 0.",
        FIGURES.len()
    );
    assert!(page.contains(&line) && said.contains(&line), "{said}");
    assert!(book.read("book/mine/preface.html").contains(&line), "every page says so");
    let calls = calls(&book);
    assert_eq!(calls[..2], ["build --package figures-tool", "test --features solution --test ch02_flat"]);
    assert_eq!(calls.len(), 2 + FIGURES.len(), "{calls:?}");
}

#[test]
fn a_chapter_that_is_not_finished_is_not_even_compiled() {
    let book = started();
    begin(&book, "fn a() { todo!(\"ch02 task 1: a\") }\nfn b() { todo!(\"ch02 task 2: b\") } // todo!(3)\n");
    let (page, _) = copy(&book);
    assert!(page.contains("From the reference: chapter 2 is not finished, todo! left: 2 ("), "{page}");

    let hash = source::fingerprint(&book.read(EXERCISE));
    book.write("exercises/chapters.txt", format!("{hash}  ch02_flat\n"));
    let (page, _) = copy(&book);
    assert!(page.contains("You have started no chapter yet: all figures are the reference’s."), "{page}");
    assert!(!page.contains("pbp-whose"), "{page}");
    assert_eq!(calls(&book), [""; 0]);
}

/// What stands in the way, and how the page says so.
#[test]
fn a_figure_that_stays_the_references_says_why() {
    const FIGURES_TOOL: &str = "cargo run --package figures-tool -- mine ch02_copy";
    for (file, text, why, command) in [
        ("red", "", "chapter 2 is red", "cargo test --features solution --test ch02_flat"),
        ("broken", "error[E0425]: no `rows`\n", "your code does not compile", "cargo build --package figures-tool"),
        (
            "failing",
            "error: the code panicked (exercises/ch02_flat.rs:9): no <room>\n",
            "recording it from your code failed: the code panicked (exercises/ch02_flat.rs:9): no &lt;room&gt;",
            FIGURES_TOOL,
        ),
        (
            "failing",
            "memory allocation of 8589934592 bytes failed\n",
            "recording it from your code failed: it asks for ever more memory (memory allocation of 8589934592 bytes failed)",
            FIGURES_TOOL,
        ),
    ] {
        let book = started();
        book.write(file, text);
        let (page, said) = copy(&book);
        let note = format!("<p class=\"pbp-whose\">From the reference: {why} (<code>{command}</code>).</p>");
        assert!(page.contains(&format!("<figcaption>the reference's</figcaption>\n{note}")), "{page}");
        assert!(said.contains(text.strip_prefix("error: ").unwrap_or(text).trim_end()), "{said}");
    }
}

#[test]
fn edits_of_the_exercises_are_followed() {
    let book = started();
    book.write("red", "");
    let cargo = book.path("cargo");
    let server = Server::run(book, |tool| tool.args(["--mine", "--port", "0"]).env("CARGO", cargo));
    server.wait_for("/ch02_flat.html", "From the reference: chapter 2 is red");
    fs::remove_file(server.book.path("red")).unwrap();
    begin(&server.book, "// mended\n");
    server.wait_for("/ch02_flat.html", "yours: ch02_copy");
    let before = calls(&server.book).len();
    // Nothing that a figure depends on.
    server.book.write("book/src/preface.md", "# Preface\n\nOnce more.\n");
    server.wait_for("/preface.html", "Once more.");
    assert_eq!(calls(&server.book).len(), before, "{:?}", calls(&server.book));
}

#[test]
fn the_engine_runs_the_readers_chapters_where_they_can_be_compiled() {
    const REFERENCE: &str = "assets/engine.wasm";
    // The folder in which rustc looks for the target's library, what cargo says of the code, and what the page says.
    for (library, error, module, says) in [
        ("/", None, "mine\n", "This engine runs your own chapter 2."),
        ("/", Some("error[E0425]: no rows\n"), REFERENCE, "the reference, because your code does not compile."),
        ("/nowhere", None, REFERENCE, "enter rustup target add wasm32-unknown-unknown, and start cargo book"),
    ] {
        // Debian's compiler would do as well.
        if library == "/nowhere" && Path::new("/usr/bin/wasm-ld-19").exists() {
            continue;
        }
        let book = started();
        add_place(&book);
        book.write("crates/wasm/src/lib.rs", "use page_by_page::chapters::ch02_flat;\n");
        write_program(&book, "rustc", &format!("#!/bin/sh\necho {library}\n"));
        if let Some(error) = error {
            book.write("broken", error);
        }
        copy(&book);
        let about = book.read("book/mine/engine/about.json");
        assert!(about.contains(says), "{about}");
        assert_eq!(book.read("book/mine/engine/engine.wasm"), module, "{says}");
    }
}
