//! The list of the chapters that a figure stands on has all that its file names, and all that these stand on in turn.

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
