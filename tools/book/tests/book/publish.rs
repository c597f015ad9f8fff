//! The book in a folder of its own: what is in it, and what it must leave alone.

use std::fs;

use crate::support::{Book, contents, said};

const SITE: [&str; 2] = ["--site-url", "https://example.org/page-by-page"];

fn built(book: &Book, arguments: &[&str]) {
    let output = book.cargo_book(&[&["build", "--out", "site"], arguments].concat());
    assert!(output.status.success(), "{}", said(&output));
}

fn refused(book: &Book, arguments: &[&str]) -> String {
    let output = book.cargo_book(&[&["build"], arguments].concat());
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

#[test]
fn a_folder_needs_nothing_of_the_repository() {
    let book = Book::good();
    let page = book.read("book/src/ch02_flat.md");
    book.write("book/src/ch02_flat.md", format!("{page}\nOpen [the stub](../../exercises/ch02_flat.rs).\n"));
    built(&book, &[]);

    let page = book.read("site/ch02_flat.html");
    assert!(page.contains("href=\"exercises/ch02_flat.rs.txt\"") && !page.contains("../"), "{page}");
    assert_eq!(book.read("site/exercises/ch02_flat.rs.txt"), book.read("exercises/ch02_flat.rs"));
    assert!(!book.read("site/404.html").contains("<base"), "beside the pages it works without");
    assert!(!book.path("site/sitemap.xml").exists(), "it needs an address");
    for absent in ["canonical", "og:url", "og:image"] {
        assert!(!page.contains(absent), "{absent} needs an address");
    }
    assert!(!book.path("book/html").exists(), "--out is in place of book/html");

    for page in ["preface", "ch02_flat"] {
        let html = book.read(&format!("site/{page}.html"));
        let (_, rest) = html.split_once("<meta name=\"description\" content=\"").unwrap();
        let description = rest.split_once('"').unwrap().0;
        assert!(!description.contains("Build a paged KV cache"), "{page} has the description of the whole book");
        assert!(html.contains(&format!("type=\"text/markdown\" href=\"{page}.html.md\"")), "{page}");
        assert!(book.read("site/llms.txt").contains(&format!("({page}.html.md): {description}")), "{page}");
    }
    let markdown = book.read("site/ch02_flat.html.md");
    assert!(markdown.contains("longer.extend_from_slice"), "the include is not in place: {markdown}");
    assert!(!markdown.contains("{{#") && !markdown.contains("<svg"), "{markdown}");
}

#[test]
fn with_an_address_it_can_be_found() {
    let book = Book::good();
    book.write("extra/preview.png", "PNG");
    book.write("extra/page-by-page.pdf", "%PDF-1.4");
    built(&book, &[&SITE[..], &["--add", "extra"]].concat());
    let page = book.read("site/ch02_flat.html");
    let head = include_str!("published/head.html");
    assert!(page.contains(head) && page.contains("<a href=\"page-by-page.pdf\""), "{page}");
    for first in ["index", "preface"] {
        let page = book.read(&format!("site/{first}.html"));
        assert!(page.contains("<link rel=\"canonical\" href=\"https://example.org/page-by-page/\">"), "{first}");
    }
    assert_eq!(book.read("site/sitemap.xml"), include_str!("published/sitemap.xml"));
    assert_eq!(book.read("site/llms.txt"), include_str!("published/llms.txt"));
    assert!(book.read("site/404.html").contains("<base href=\"/page-by-page/\">"));
    assert!(book.path("site/preview.png").is_file() && book.path("site/page-by-page.pdf").is_file());

    book.write("extra/index.html", "mine");
    let problem = refused(&book, &["--out", "other", "--add", "extra"]);
    assert!(problem.contains("index.html of its own") && !book.path("other").exists(), "{problem}");
    for wrong in ["", "/book/", "ftp://example.org/", "https:///book/", "https://me@x.org/", "https://x.org/a.html"] {
        assert!(refused(&book, &["--out", "other", "--site-url", wrong]).contains("such as https://"), "{wrong}");
    }
}

#[test]
fn a_folder_that_holds_other_files_is_left_as_it_is() {
    let book = Book::good();
    book.write("mine/deep/letter.txt", "dear");
    let before = contents(book.root());
    for (folder, problem) in
        [("mine", "holds files"), ("mine/../book", "holds files"), ("mine/deep/letter.txt", "no folder")]
    {
        let said = refused(&book, &["--out", folder]);
        assert!(said.contains(problem), "{folder}: {said}");
        assert!(contents(book.root()) == before, "{folder}: something was changed");
    }
}

#[test]
fn a_later_build_takes_away_its_own_files_and_no_other() {
    let book = Book::good();
    book.write("exercises/ch99_last.rs", "");
    built(&book, &[]);
    assert!(book.path("site/exercises/ch99_last.rs.txt").is_file());
    book.write("site/.git/HEAD", "ref");
    book.write("site/figures/mine.svg", "<svg/>");
    // The record was edited: nothing outside the folder is the book's.
    book.write("outside.txt", "outside");
    let record = book.read("site/.page-by-page-files");
    let outside = book.path("outside.txt").display().to_string();
    book.write("site/.page-by-page-files", format!("{record}old/page.html\n../outside.txt\n{outside}\n"));
    book.write("site/old/page.html", "an old page");

    fs::remove_file(book.path("exercises/ch99_last.rs")).unwrap();
    built(&book, &[]);
    for stale in ["site/exercises/ch99_last.rs.txt", "site/old"] {
        assert!(!book.path(stale).exists(), "{stale} stays");
    }
    for theirs in ["site/.git/HEAD", "site/figures/mine.svg", "outside.txt"] {
        assert!(book.path(theirs).is_file(), "{theirs} is gone");
    }
    let before = contents(&book.path("site"));
    book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    assert!(refused(&book, &["--out", "site"]).contains("problem"));
    assert!(contents(&book.path("site")) == before, "a book with a fault has changed the old one");
}

#[cfg(unix)]
#[test]
fn a_book_folder_that_leads_elsewhere_is_left_alone() {
    let book = Book::good();
    book.write("elsewhere/letter.txt", "not the book's");
    std::os::unix::fs::symlink(book.path("elsewhere"), book.path("book/html")).unwrap();
    let says = refused(&book, &[]);
    assert!(says.contains("is a symbolic link: remove it"), "{says}");
    assert_eq!(contents(&book.path("elsewhere")).len(), 1, "nothing was written there, nothing removed");
}

#[test]
fn it_links_to_the_repository_of_the_flag_or_of_the_remote() {
    let book = Book::good();
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        assert!(git.args(arguments).current_dir(book.root()).output().unwrap().status.success(), "{arguments:?}");
    };
    let links = |arguments: &[&str], address: &str| {
        built(&book, arguments);
        book.read("site/ch02_flat.html").contains(&format!("href=\"{address}\""))
    };
    git(&["init", "--quiet"]);
    git(&["remote", "add", "origin", "/some/folder"]);
    built(&book, &[]);
    let page = book.read("site/ch02_flat.html");
    assert!(!page.contains("/some/folder") && !page.contains("/edit/main/"), "{page}");
    git(&["remote", "set-url", "origin", "git@github.com:owner/name.git"]);
    assert!(links(&[], "https://github.com/owner/name"));
    assert!(links(&[], "https://github.com/owner/name/edit/main/book/src/ch02_flat.md"));
    let other = "https://gitlab.com/a/b";
    assert!(links(&["--repository", other], &format!("{other}/-/edit/main/book/src/ch02_flat.md")));
    assert!(refused(&book, &["--out", "site", "--repository", "/some/folder"]).contains("write a public address"));
}
