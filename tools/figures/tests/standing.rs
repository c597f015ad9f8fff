//! The list of the chapters that a figure stands on has all that its file names, and all that these stand on in turn. It is in
//! the order of the book's pages, by which figures are numbered.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use page_by_page_course::figures::STANDS_ON;

/// The names of the Rust files in a folder, and what is in them.
fn files_in(folder: &str) -> Vec<(String, String)> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder)).unwrap();
    let files = files.map(|file| file.unwrap().path()).filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let name = |file: &Path| file.file_stem().unwrap().to_str().unwrap().to_string();
    files.map(|file| (name(&file), fs::read_to_string(&file).unwrap())).collect()
}

#[test]
fn each_figure_stands_on_what_its_code_names() {
    let (figures, solutions) = (files_in("tools/figures/src/figures"), files_in("solutions"));
    for (figure, chapters) in STANDS_ON {
        let is_listed = |name: &str| chapters.iter().any(|number| name.starts_with(&format!("ch{number:02}_")));
        let code = figures.iter().filter(|(name, _)| *name == figure);
        for (file, text) in code.chain(solutions.iter().filter(|(name, _)| is_listed(name))) {
            for name in text.split("chapters::").skip(1).filter(|rest| rest.starts_with("ch")) {
                let name = &name[.."ch01_".len()];
                assert!(is_listed(name), "{figure}: course/src/figures.rs does not list {name}, which {file}.rs names");
            }
        }
    }
    let listed: BTreeSet<String> = STANDS_ON.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(figures.into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>(), listed);
}

#[test]
fn the_list_is_in_the_order_of_the_pages() {
    let read = |path: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src").join(path);
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let summary = read("SUMMARY.md");
    let pages = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(page, _)| page);
    // Each part begins with the map of the engine, which belongs to the page on the model.
    let pages = pages.filter(|page| !page.starts_with("part"));
    let on_pages: Vec<String> = pages
        .flat_map(|page| {
            let text = read(page);
            let includes = text.split("{{#include figures/").skip(1).filter_map(|rest| rest.split_once(".html}}"));
            includes.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(on_pages, STANDS_ON.map(|(name, _)| name));
}
