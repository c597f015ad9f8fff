//! The engine beside the pages: there where a page has a place for it, with the reader's chapters where they can be compiled.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Book, said};

const PAGE: &str = "book/src/ch02_flat.md";

/// A good book with a place in a page, and what lies beside it.
fn with_place() -> Book {
    let book = Book::good();
    let page = book.read(PAGE);
    book.write(PAGE, &format!("{page}\n<div class=\"pbp-live\" data-live=\"home\">\n\nPress *Run*.\n\n</div>\n"));
    for file in [
        "crates/wasm/engine.js",
        "crates/wasm/worker.js",
        "crates/serve/src/page/pool.js",
        "crates/serve/src/page/pool.css",
        "assets/engine.wasm",
        "assets/storyteller/config.json",
        "assets/storyteller/generation_config.json",
        "assets/storyteller/tokenizer.json",
        "assets/storyteller/model.safetensors",
        "assets/storyteller-draft/config.json",
        "assets/storyteller-draft/model.safetensors",
    ] {
        fs::create_dir_all(book.path(file).parent().unwrap()).unwrap();
        book.write(file, file);
    }
    book
}

#[test]
fn the_engine_lies_beside_pages_that_have_a_place_for_it() {
    let book = with_place();
    let output = book.cargo_book(&["build"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(book.read("book/html/engine/engine.wasm"), "assets/engine.wasm");
    assert_eq!(book.read("book/html/engine/pool.js"), "crates/serve/src/page/pool.js");
    let about = book.read("book/html/engine/about.json");
    assert!(about.contains("\"engine.wasm\":18") && about.contains("\"says\":\"\""), "{about}");

    let book = Book::good();
    assert!(book.cargo_book(&["build"]).status.success());
    assert!(!book.path("book/html/engine").exists(), "no page has a place");
}

/// Stands for cargo: compiles an engine, or doesn't.
const CARGO: &str = r#"#!/bin/sh
[ "$3" = page-by-page-wasm ] || exit 0
[ ! -f broken ] || { echo "error[E0425]: no rows" >&2; exit 101; }
mkdir -p target/page/wasm32-unknown-unknown/page
echo mine > target/page/wasm32-unknown-unknown/page/page_by_page_wasm.wasm
"#;

/// A copy whose reader has started chapter 4, made where this folder, if there is one, holds the target's library.
fn mine(library: &str, broken: bool) -> (String, String) {
    let book = with_place();
    let stub = book.read("exercises/ch02_flat.rs");
    book.write("exercises/ch04_page_pool.rs", &stub);
    book.write("exercises/untouched.txt", "# hash, chapter\n0123456789abcdef  ch04_page_pool\n");
    book.write("solutions/ch04_page_pool.rs", "");
    for file in ["tools/figures/src/figures/ch04_free_list.rs", "crates/wasm/src/lib.rs"] {
        book.write(file, "use page_by_page::chapters::ch04_page_pool;\n");
    }
    let html = "<figure data-figure=\"ch04_free_list\">\n<figcaption>reference</figcaption>\n</figure>\n";
    book.write("book/src/figures/ch04_free_list.html", html);
    if broken {
        book.write("broken", "");
    }
    for (file, script) in [("cargo", CARGO.to_string()), ("rustc", format!("#!/bin/sh\necho {library}\n"))] {
        book.write(file, &script);
        fs::set_permissions(book.path(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_book-tool"));
    command.args(["build", "--mine"]).current_dir(book.root());
    let output = command.env("CARGO", book.path("cargo")).env("RUSTC", book.path("rustc")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    (book.read("book/mine/engine/engine.wasm"), book.read("book/mine/engine/about.json"))
}

#[test]
fn the_readers_copy_runs_the_readers_chapters() {
    let (module, about) = mine("/", false);
    assert_eq!(module, "mine\n");
    assert!(about.contains("This engine runs your own chapter 4."), "{about}");
}

#[test]
fn where_they_cannot_be_compiled_the_reference_runs_and_the_page_says_why() {
    let (module, about) = mine("/", true);
    assert_eq!(module, "assets/engine.wasm");
    assert!(about.contains("This engine runs the reference, because your code does not compile."), "{about}");
    // Debian's compiler would do as well.
    if std::path::Path::new("/usr/bin/wasm-ld-19").exists() {
        return;
    }
    let (module, about) = mine("/nowhere", false);
    assert_eq!(module, "assets/engine.wasm");
    assert!(
        about.contains("enter rustup target add wasm32-unknown-unknown, and start cargo book --mine again"),
        "{about}"
    );
}
