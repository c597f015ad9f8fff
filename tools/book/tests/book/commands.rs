//! `cargo book commands`: what the pages tell the reader to type must work.

use crate::support::Book;

fn with_page(text: &str) -> Book {
    let book = Book::good();
    book.write("book/src/preface.md", &format!("# Preface\n\n{text}\n"));
    book
}

fn commands(book: &Book, arguments: &[&str]) -> (Option<i32>, String) {
    let output = book.cargo_book(&[&["commands"], arguments].concat());
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn commands_run_from_the_top_of_the_repository() {
    let book = with_page("```console\n$ test -f book/book.toml\noutput\n$ echo one \\\n    two > here\n```");
    let (code, said) = commands(&book, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("book/src/preface.md:4: test -f book/book.toml … ok"), "{said}");
    assert_eq!(book.read("here"), "one two\n");
    assert!(said.contains("2 commands, 0 failed"), "{said}");
}

#[test]
fn a_failing_command_shows_its_output() {
    let book = with_page("```console\n$ echo the reason && false\n```");
    let (code, said) = commands(&book, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("FAILED (exit status: 1)"), "{said}");
    assert!(said.contains("\n    the reason\n"), "{said}");
}

#[test]
fn some_blocks_are_only_to_be_read() {
    let book = with_page("```console,norun\n$ false\n```\n\n```sh\n$ false\n```\n\n```text\n$ false\n```");
    assert_eq!(commands(&book, &[]).0, Some(0));
}

#[test]
fn pages_can_be_chosen_and_commands_listed() {
    let book = with_page("```console\n$ false\n```");
    assert_eq!(commands(&book, &["ch02"]).0, Some(0));
    let (code, said) = commands(&book, &["--list", "preface"]);
    assert_eq!(code, Some(0));
    assert_eq!(said, "book/src/preface.md:4: false\n");
}
