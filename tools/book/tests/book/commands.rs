//! `cargo book commands`: what the pages tell the reader to type must work.

use crate::support::{Book, said};

#[test]
fn commands_run_from_the_top_of_the_repository() {
    let book = Book::good();
    let run =
        "```console\n$ test -f book/book.toml\noutput\n$ echo one \\\n    two > here\n$ echo the reason && false\n```";
    let only_read = "```console,norun\n$ false\n```\n\n```sh\n$ false\n```\n\n```text\n$ false\n```";
    book.write("book/src/preface.md", format!("# Preface\n\n{run}\n\n{only_read}\n"));
    let output = book.cargo_book(&["commands"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("book/src/preface.md:4: test -f book/book.toml … ok"), "{said}");
    assert_eq!(book.read("here"), "one two\n");
    assert!(said.contains("FAILED (exit status: 1)") && said.contains("\n    the reason\n"), "{said}");
    assert!(said.contains("3 commands, 1 failed"), "{said}");
}
