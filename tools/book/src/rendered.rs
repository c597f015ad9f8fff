//! The rendered book: which pages and ids there are for links to point at.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use percent_encoding::percent_decode_str;

use crate::contents::is_web_address;
use crate::finding::did_you_mean;
use crate::html::{self, Piece};
use crate::publish::files_ending;

pub struct RenderedBook {
    folder: PathBuf,
    /// By path in the rendered book: `part1/ch02.html`.
    pub pages: BTreeMap<PathBuf, RenderedPage>,
}

#[derive(Default)]
pub struct RenderedPage {
    pub ids: HashSet<String>,
    pub repeated_ids: Vec<String>,
    /// The addresses of images without alternative text.
    pub wordless_images: Vec<String>,
}

impl RenderedBook {
    pub fn read(folder: &Path) -> Result<Self> {
        let pages = files_ending(folder, "html")?.into_iter().map(|file| {
            let text = fs::read_to_string(folder.join(&file)).with_context(|| format!("reading {}", file.display()))?;
            Ok((file, RenderedPage::read(&text)))
        });
        Ok(Self { folder: folder.to_path_buf(), pages: pages.collect::<Result<_>>()? })
    }

    /// Nothing if `target`, as written in the page `from`, leads somewhere; or what is wrong and what to do.
    pub fn check_link(&self, from: &Path, target: &str) -> Result<(), (String, String)> {
        if is_web_address(target) || target.starts_with("mailto:") || target.starts_with("data:") {
            return Ok(());
        }
        if target.starts_with('/') || target.contains("://") || target.starts_with("file:") {
            let problem = format!("the link `{target}` does not work from every place that the book is read from");
            return Err((problem, "write it relative to the page, or as https://…".into()));
        }

        let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
        let path = percent_decode_str(path.split('?').next().unwrap_or("")).decode_utf8_lossy();
        let path = match path.strip_suffix(".md") {
            Some(stem) => format!("{stem}.html"),
            None => path.into_owned(),
        };
        let file = match path.as_str() {
            "" => from.to_path_buf(),
            path => page_by_page_course::includes::normalised(&from.parent().unwrap_or(Path::new("")).join(path)),
        };
        if matches!(file.components().next(), Some(Component::ParentDir)) {
            let next_step =
                "who reads the rendered page has no such file: name it in backticks, from the repository root";
            return Err((format!("the link `{target}` leaves the book"), next_step.into()));
        }
        if !self.folder.join(&file).is_file() {
            let pages = self.pages.keys().map(|page| page.to_string_lossy().replace(".html", ".md"));
            let pages: Vec<String> = pages.collect();
            let otherwise = "a page must be listed in SUMMARY.md, another file must lie under book/src";
            let next_step = did_you_mean(target, pages.iter().map(String::as_str), otherwise);
            return Err((format!("the link `{target}` leads nowhere"), next_step));
        }
        let Some(page) = self.pages.get(&file) else {
            return Ok(());
        };
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        if fragment.is_empty() || page.ids.contains(&*fragment) {
            return Ok(());
        }
        let otherwise = "a heading's id is its text in lower case with hyphens; set your own with `## Heading {#id}`";
        let next_step = did_you_mean(&fragment, page.ids.iter().map(String::as_str), otherwise);
        Err((format!("`{}` has no heading or id `#{fragment}`", file.display()), next_step))
    }
}

impl RenderedPage {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        for (_, piece) in html::pieces(text) {
            let Piece::Open(element) = piece else { continue };
            if let Some(id) = element.attribute("id")
                && !page.ids.insert(id.to_string())
            {
                page.repeated_ids.push(id.to_string());
            }
            if element.name == "img" && element.says("alt").is_none() {
                page.wordless_images.extend(element.attribute("src").map(str::to_string));
            }
        }
        page
    }
}
