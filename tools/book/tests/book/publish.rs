//! The book in a folder of its own: what is in it, and what it must leave alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::{Book, said};

const SITE: [&str; 2] = ["--site-url", "https://example.org/page-by-page"];

fn built(book: &Book, arguments: &[&str]) -> String {
    let output = book.cargo_book(&[&["build", "--out", "site"], arguments].concat());
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn refused(book: &Book, arguments: &[&str]) -> String {
    let output = book.cargo_book(&[&["build"], arguments].concat());
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

/// Every file in a folder, with what it holds.
fn contents(folder: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let files = walkdir::WalkDir::new(folder).into_iter().map(Result::unwrap);
    let files = files.filter(|entry| entry.file_type().is_file());
    files.map(|entry| (entry.path().display().to_string(), fs::read(entry.path()).unwrap())).collect()
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let sizes = [width.to_be_bytes(), height.to_be_bytes()].concat();
    [b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec(), sizes, vec![8, 2, 0, 0, 0]].concat()
}

#[test]
fn a_folder_needs_nothing_of_the_repository() {
    let book = Book::good();
    let page = book.read("book/src/ch02_flat.md");
    book.write("book/src/ch02_flat.md", &format!("{page}\nOpen [the stub](../../exercises/ch02_flat.rs).\n"));
    let said = built(&book, &[]);
    assert!(said.contains("Left out") && said.contains("--site-url"), "{said}");

    let page = book.read("site/ch02_flat.html");
    assert!(page.contains("href=\"exercises/ch02_flat.rs.txt\"") && !page.contains("../"), "{page}");
    assert_eq!(book.read("site/exercises/ch02_flat.rs.txt"), book.read("exercises/ch02_flat.rs"));
    assert!(book.read("site/print.html").contains("href=\"exercises/ch02_flat.rs.txt\""));
    assert!(!book.read("site/404.html").contains("<base"), "beside the pages it works without");
    for absent in ["site/sitemap.xml", "site/robots.txt"] {
        assert!(!book.path(absent).exists(), "{absent} needs an address");
    }
    for absent in ["canonical", "og:url", "og:image"] {
        assert!(!page.contains(absent), "{absent} needs an address");
    }
    assert!(!book.path("book/html").exists(), "--out is in place of book/html");
}

#[test]
fn each_page_is_described_and_told_as_markdown() {
    let book = Book::good();
    built(&book, &[]);
    for page in ["preface", "ch02_flat"] {
        let html = book.read(&format!("site/{page}.html"));
        let (_, rest) = html.split_once("<meta name=\"description\" content=\"").unwrap();
        let description = rest.split_once('"').unwrap().0;
        assert!(!description.is_empty() && description.chars().count() <= 160, "{description}");
        assert!(!description.contains("Build a paged KV cache"), "{page} has the description of the whole book");
        assert!(html.contains(&format!("<meta property=\"og:description\" content=\"{description}\">")), "{page}");
        assert!(html.contains(&format!("type=\"text/markdown\" href=\"{page}.html.md\"")), "{page}");
        assert!(book.read("site/llms.txt").contains(&format!("({page}.html.md): ")), "{page}");
    }
    let markdown = book.read("site/ch02_flat.html.md");
    assert!(markdown.contains("longer.extend_from_slice"), "the include is not in place: {markdown}");
    assert!(!markdown.contains("{{#") && !markdown.contains("<svg"), "{markdown}");
    assert!(!book.path("site/print.html.md").exists());
}

#[test]
fn with_an_address_it_can_be_found() {
    let book = Book::good();
    built(&book, &SITE);
    let page = book.read("site/ch02_flat.html");
    assert!(page.contains("<link rel=\"canonical\" href=\"https://example.org/page-by-page/ch02_flat.html\">"));
    assert!(page.contains("<meta property=\"og:url\" content=\"https://example.org/page-by-page/ch02_flat.html\">"));
    assert!(!page.contains("og:image"), "there is no picture");
    for first in ["index", "preface"] {
        let page = book.read(&format!("site/{first}.html"));
        assert!(page.contains("<link rel=\"canonical\" href=\"https://example.org/page-by-page/\">"), "{first}");
    }
    let sitemap = book.read("site/sitemap.xml");
    let places: Vec<&str> = sitemap.split("<loc>").skip(1).map(|rest| rest.split_once('<').unwrap().0).collect();
    assert_eq!(
        places,
        ["https://example.org/page-by-page/", "https://example.org/page-by-page/ch02_flat.html"],
        "each page once, none that is not to be found"
    );
    assert!(book.read("site/llms.txt").contains("(https://example.org/page-by-page/ch02_flat.html.md)"));
    assert!(book.read("site/404.html").contains("<base href=\"/page-by-page/\">"));
    assert!(!book.path("site/robots.txt").exists(), "it is asked for at the root of a server only");

    built(&book, &["--site-url", "https://example.org"]);
    assert!(book.read("site/robots.txt").contains("Sitemap: https://example.org/sitemap.xml"));
    built(&book, &[]);
    for stale in ["site/robots.txt", "site/sitemap.xml"] {
        assert!(!book.path(stale).exists(), "{stale} of an earlier build");
    }
}

#[test]
fn files_are_added_and_linked() {
    let book = Book::good();
    fs::create_dir(book.path("extra")).unwrap();
    fs::write(book.path("extra/preview.png"), png(1200, 630)).unwrap();
    book.write("extra/page-by-page.pdf", "%PDF-1.4");
    built(&book, &[&SITE[..], &["--add", "extra"]].concat());
    let page = book.read("site/ch02_flat.html");
    assert!(page.contains("<meta property=\"og:image\" content=\"https://example.org/page-by-page/preview.png\">"));
    assert!(page.contains("<meta property=\"og:image:alt\" content=\"") && page.contains("summary_large_image"));
    assert!(page.contains("<a href=\"page-by-page.pdf\""));
    assert!(book.path("site/preview.png").is_file() && book.path("site/page-by-page.pdf").is_file());

    fs::write(book.path("extra/preview.png"), png(600, 315)).unwrap();
    let problem = refused(&book, &["--out", "other", "--add", "extra"]);
    assert!(problem.contains("600 by 315") && !book.path("other").exists(), "{problem}");
    fs::remove_file(book.path("extra/preview.png")).unwrap();
    book.write("extra/index.html", "mine");
    let problem = refused(&book, &["--out", "other", "--add", "extra"]);
    assert!(problem.contains("index.html of its own") && !book.path("other").exists(), "{problem}");
    assert!(refused(&book, &["--out", "other", "--add", "nowhere"]).contains("nowhere"));
}

#[test]
fn a_folder_that_holds_other_files_is_left_as_it_is() {
    let book = Book::good();
    fs::create_dir_all(book.path("mine/deep")).unwrap();
    book.write("mine/deep/letter.txt", "dear");
    let before = contents(book.root());
    for (folder, problem) in [
        (".", "holds"),
        ("mine", "holds 1 file or folder"),
        ("mine/deep", "letter.txt holds"),
        ("mine/deep/../..", "holds"),
        ("book", "sources"),
        ("book/src/site", "sources"),
        ("book/html", "sources"),
        ("mine/../book/site", "sources"),
        ("mine/deep/letter.txt", "is a file"),
        ("mine/deep/letter.txt/site", "reached"),
        ("new/../mine", "climbs"),
        ("/", "holds"),
    ] {
        let said = refused(&book, &["--out", folder]);
        let problem = if problem == "letter.txt holds" { "mine/deep holds" } else { problem };
        let is_file = problem == "reached" && (said.contains("Not a directory") || said.contains("is a file"));
        assert!(said.contains(problem) || is_file, "{folder}: {said}");
        assert!(contents(book.root()) == before, "{folder}: something was changed");
    }
    for wrong in [&["--site-url", "https://example.org/"][..], &["--add", "mine"], &["--out", "x", "--site-url", "/x/"]]
    {
        refused(&book, wrong);
        assert!(contents(book.root()) == before, "{wrong:?}: something was changed");
    }
}

#[test]
fn a_later_build_takes_away_its_own_files_and_no_other() {
    let book = Book::good();
    fs::create_dir(book.path("site")).unwrap();
    book.write("exercises/ch99_last.rs", "");
    built(&book, &[]);
    assert!(book.path("site/exercises/ch99_last.rs.txt").is_file());
    assert!(book.path("site/figures/pages.svg").is_file());
    fs::create_dir(book.path("site/.git")).unwrap();
    book.write("site/.git/HEAD", "ref");
    book.write("site/CNAME", "example.org");
    book.write("site/figures/mine.svg", "<svg/>");
    // The record was edited: nothing outside the folder is the book's.
    book.write("outside.txt", "outside");
    let record = book.read("site/.page-by-page-files");
    let outside = book.path("outside.txt").display().to_string();
    let here = "./CNAME";
    book.write("site/.page-by-page-files", &format!("{record}old/page.html\n../outside.txt\n{outside}\n{here}\n"));
    fs::create_dir(book.path("site/old")).unwrap();
    book.write("site/old/page.html", "an old page");

    fs::remove_file(book.path("exercises/ch99_last.rs")).unwrap();
    built(&book, &[]);
    for stale in ["site/exercises/ch99_last.rs.txt", "site/old"] {
        assert!(!book.path(stale).exists(), "{stale} stays");
    }
    for theirs in ["site/.git/HEAD", "site/CNAME", "site/figures/mine.svg", "outside.txt"] {
        assert!(book.path(theirs).is_file(), "{theirs} is gone");
    }
    let record = book.read("site/.page-by-page-files");
    assert!(record.contains("index.html\n") && !record.contains("CNAME") && !record.contains("old/"), "{record}");
    let left: Vec<String> = fs::read_dir(book.path("site"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".fresh") || name.ends_with(".new"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_book_with_a_fault_is_not_published() {
    let book = Book::good();
    built(&book, &[]);
    let before = contents(&book.path("site"));
    book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    let said = refused(&book, &["--out", "site"]);
    assert!(said.contains("problem"), "{said}");
    assert!(contents(&book.path("site")) == before, "the old book has changed");
    refused(&book, &["--out", "other"]);
    assert!(!book.path("other").exists());
}

#[cfg(unix)]
#[test]
fn a_book_folder_that_leads_elsewhere_is_left_alone() {
    let book = Book::good();
    fs::create_dir(book.path("elsewhere")).unwrap();
    book.write("elsewhere/letter.txt", "not the book's");
    std::os::unix::fs::symlink(book.path("elsewhere"), book.path("book/html")).unwrap();
    let says = refused(&book, &[]);
    assert!(says.contains("is a symbolic link: remove it"), "{says}");
    assert_eq!(contents(&book.path("elsewhere")).len(), 1, "nothing was written there, nothing removed");
}
