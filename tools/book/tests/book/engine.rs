//! The engine beside the pages, if a page has a place for it. Whose chapters it runs is for own_copy.rs.

use crate::support::{Book, said};

const PAGE: &str = "book/src/ch02_flat.md";

/// Gives a page a place for the engine. What that is made of is in the small book: each file says its own name.
pub fn add_place(book: &Book) {
    let page = book.read(PAGE);
    book.write(PAGE, format!("{page}\n<div class=\"pbp-live\" data-live=\"home\">\n\nPress *Run*.\n\n</div>\n"));
}

#[test]
fn the_engine_lies_beside_pages_that_have_a_place_for_it() {
    let book = Book::good();
    add_place(&book);
    let output = book.cargo_book(&["build"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(book.read("book/html/engine/engine.wasm"), "assets/engine.wasm");
    assert_eq!(book.read("book/html/engine/pool.js"), "crates/serve/src/live_page/pool.js");
    let about = book.read("book/html/engine/about.json");
    assert!(about.contains("\"engine.wasm\":18") && about.contains("\"says\":\"\""), "{about}");

    let book = Book::good();
    assert!(book.cargo_book(&["build"]).status.success());
    assert!(!book.path("book/html/engine").exists(), "no page has a place");
}
