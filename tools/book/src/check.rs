//! The strict build: renders the book and holds every check against it. What mdBook forgives is a finding here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use page_by_page_course::includes::normalised;
use tempfile::TempDir;
use walkdir::WalkDir;

use crate::contents::Contents;
use crate::finding::{Findings, Place};
use crate::names::Names;
use crate::page::Page;
use crate::render::{Complaint, render};
use crate::rendered::RenderedBook;
use crate::{citations, claims, house_style, markup};

const SOURCE: &str = "book/src";
const SUMMARY: &str = "book/src/SUMMARY.md";
/// Guides beside the book: what they name must be there, too.
const GUIDES: [&str; 3] = ["README.md", "CONTRIBUTING.md", "tests/PROMISES.md"];

/// A rendered book and all that is wrong with it.
pub struct Build {
    pub folder: TempDir,
    pub findings: Findings,
    /// The pages that it was rendered from, in order.
    pub pages: Vec<Page>,
}

/// Renders the book in `root/book` into a temporary folder and checks it. It is an error only when there is no book to
/// show. These figures take the place of the book's own of the same names; a repository is linked to.
pub fn build(root: &Path, figures: &BTreeMap<String, String>, repository: Option<&str>) -> Result<Build> {
    let folder = tempfile::tempdir().context("no temporary folder to render into")?;
    let mut findings = Findings::default();
    let listed = read_summary(root, &mut findings)?;
    let is_whole = findings.is_empty();
    let pages = read_pages(root, &listed, &mut findings);

    let names = Names::read(root);
    let guides: Vec<Page> =
        GUIDES.iter().filter_map(|file| Page::read(root, Path::new(file), &mut findings).ok()).collect();
    let texts: Vec<&Page> = pages.iter().chain(&guides).collect();
    for page in &texts {
        claims::check(root, page, &names, &mut findings);
    }
    for page in &pages {
        markup::check(page, &mut findings);
        house_style::check(page, &mut findings);
    }
    citations::check(root, &texts, &mut findings)?;
    if !is_whole {
        // mdBook stops at a page that is not there: say with it what else has been found.
        bail!("{findings}");
    }
    let complaints = render(root, folder.path(), figures, repository)?;
    let rendered = RenderedBook::read(folder.path())?;
    check_links(root, &pages, &rendered, &mut findings);
    check_rendered(&pages, &rendered, &mut findings);
    for complaint in complaints {
        report(&complaint, &pages, &mut findings);
    }
    Ok(Build { folder, findings, pages })
}

/// The pages of the book, from the repository root, in order.
pub fn read_summary(root: &Path, findings: &mut Findings) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string(root.join(SUMMARY))
        .with_context(|| format!("{SUMMARY} lists the pages of the book; it cannot be read"))?;
    let mut pages = Vec::new();
    for (line, target) in Contents::read(&text).links {
        if target.is_empty() {
            continue;
        }
        let page = normalised(&Path::new(SOURCE).join(&target));
        if root.join(&page).is_file() {
            pages.push(page);
        } else {
            let problem = format!("no page `{}`", page.display());
            findings.add(Place::new(SUMMARY, line), problem, "write the page, or take the line out");
        }
    }
    Ok(pages)
}

pub fn read_pages(root: &Path, listed: &[PathBuf], findings: &mut Findings) -> Vec<Page> {
    let pages: Vec<Page> = listed.iter().filter_map(|file| Page::read(root, file, findings).ok()).collect();
    for entry in WalkDir::new(root.join(SOURCE)).into_iter().flatten() {
        let file = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        let is_known = file == Path::new(SUMMARY)
            || file.ends_with("404.md")
            || listed.iter().any(|page| page == file)
            || pages.iter().any(|page| page.expanded.files.iter().any(|included| included == file));
        if is_page && !is_known {
            let next_step = format!("list it in {SUMMARY}, or take the file away");
            findings.add(Place::new(file, 1), "the page is not in the book", next_step);
        }
    }
    pages
}

/// How a page links to the file that the reader edits. It leads there from the page's source, from the rendered page in
/// its place in the repository, and from the server.
pub const EXERCISE_LINK: &str = "../../exercises/";

fn check_links(root: &Path, pages: &[Page], rendered: &RenderedBook, findings: &mut Findings) {
    for page in pages {
        let from = rendered_name(page);
        for (line, target) in &page.contents.links {
            let checked = match target.strip_prefix(EXERCISE_LINK).filter(|name| !name.contains('/')) {
                Some(name) if root.join("exercises").join(name).is_file() => Ok(()),
                Some(_) => Err((format!("the link `{target}` leads nowhere"), "link to a stub in exercises/".into())),
                None => rendered.check_link(&from, target),
            };
            if let Err((problem, next_step)) = checked {
                findings.add(page.place_of_line(*line), problem, next_step);
            }
        }
    }
}

fn check_rendered(pages: &[Page], rendered: &RenderedBook, findings: &mut Findings) {
    for page in pages {
        let Some(html) = rendered.pages.get(&rendered_name(page)) else { continue };
        for id in &html.repeated_ids {
            // A heading that mdBook gave its id has none of these spellings.
            let spellings = [format!("id=\"{id}\""), format!("#{id}}}")];
            let last = spellings.iter().filter_map(|spelling| page.expanded.text.rfind(spelling)).max();
            let problem = format!("the id `{id}` is used twice in this page");
            let next_step = "give each its own; several headings with one text get a number by themselves";
            findings.add(page.expanded.place(last.unwrap_or(0)), problem, next_step);
        }
        for image in &html.wordless_images {
            let next_step = "say in `![…]` or `alt=\"…\"` what it shows";
            let last = page.expanded.text.rfind(image);
            findings.add(page.expanded.place(last.unwrap_or(0)), "the image has no alternative text", next_step);
        }
    }
}

/// Adds a warning of mdBook's own. What its includes lack, a check above has said in better words.
fn report(complaint: &Complaint, pages: &[Page], findings: &mut Findings) {
    let message = &complaint.message;
    if complaint.from.ends_with("links") && !findings.is_empty() {
        return;
    }
    let page = pages.iter().map(|page| &page.file).find(|file| {
        let name = file.strip_prefix(SOURCE).unwrap_or(file).display();
        message.contains(&format!("`{name}`")) || message.contains(&format!("in {name} "))
    });
    let (problem, next_step) = message.split_once('\n').unwrap_or((message, ""));
    let file = page.map_or(Path::new("book/book.toml"), PathBuf::as_path);
    findings.add(Place::new(file, 1), format!("mdBook warns: {problem}"), next_step.trim());
}

/// `book/src/part1/ch02.md` → `part1/ch02.html`
pub fn rendered_name(page: &Page) -> PathBuf {
    page.file.strip_prefix(SOURCE).unwrap_or(&page.file).with_extension("html")
}
