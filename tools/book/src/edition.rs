//! What a published book has more than a rendered one: links that work away from the repository, a description of each
//! page, its Markdown, and, where the address is known, what search engines and link previews ask for.
//!
//! All of it is added to the rendered pages, so that the book that is read at home stays what stock mdBook makes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use mdbook_driver::config::Config;
use mdbook_markdown::pulldown_cmark::{Event, Tag, TagEnd};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};
use regex::Regex;

use crate::about::description;
use crate::address::Address;
use crate::check::{Build, EXERCISE_LINK, SUMMARY, rendered_name};
use crate::html::{self, Piece};
use crate::markdown;
use crate::publish::files_in;

/// Among the files to add: the picture that link previews show, 1200 pixels wide and 630 high, and the book on paper.
const PREVIEW: &str = "preview.png";
const PAPER: &str = "page-by-page.pdf";
/// Beside the link to the page for printing.
const PAPER_LINK: &str = "<a href=\"page-by-page.pdf\" class=\"pbp-paper\" title=\"The whole book as a PDF\" \
                          aria-label=\"The whole book as a PDF\">PDF</a>";
const PREVIEW_SIZE: (u32, u32) = (1200, 630);

/// The stubs, as text: each server tells browsers something else about `.rs`.
const STUBS: &str = "exercises";
const STUB_ENDING: &str = ".txt";

static STUB_LINK: LazyLock<Regex> = LazyLock::new(|| {
    let name = "([^\"]*)";
    Regex::new(&format!("href=\"{}{name}\"", regex::escape(EXERCISE_LINK))).expect("valid pattern")
});

/// A page of the published book.
struct Leaf {
    /// `ch06_paged.html`
    file: String,
    /// The part of SUMMARY.md that lists it, and its title there. The first part has no name.
    part: String,
    title: String,
    description: String,
    /// What its first picture shows.
    picture: Option<String>,
}

struct Edition<'b> {
    folder: &'b Path,
    title: String,
    summary: String,
    /// The pages in order, at least one.
    leaves: Vec<Leaf>,
    address: Option<&'b Address>,
    has_preview: bool,
    has_paper: bool,
}

/// Makes the rendered book in `build` one to be published, with the files of the folder `extra` in it.
pub fn make(root: &Path, build: &Build, address: Option<&Address>, extra: Option<&Path>) -> Result<()> {
    let folder = build.folder.path();
    if let Some(extra) = extra {
        add(folder, extra)?;
    }
    let config = Config::from_disk(root.join("book/book.toml"))?.book;
    let edition = Edition {
        folder,
        title: config.title.context("book.toml names no title")?,
        summary: config.description.context("book.toml has no description")?,
        leaves: leaves(root, build)?,
        address,
        has_preview: folder.join(PREVIEW).is_file(),
        has_paper: folder.join(PAPER).is_file(),
    };
    for (leaf, (page, _)) in edition.leaves.iter().zip(&build.pages) {
        edition.write(&format!("{}.md", leaf.file), markdown::plain(&page.text, published_link))?;
    }
    edition.write("llms.txt", edition.llms())?;
    if let Some(address) = address {
        edition.write("sitemap.xml", edition.sitemap(address))?;
        // Below the root of a server, no crawler asks for one.
        if address.path() == "/" {
            let robots = format!("User-agent: *\nAllow: /\n\nSitemap: {}\n", address.of("sitemap.xml"));
            edition.write("robots.txt", robots)?;
        }
    }
    for file in with_extension(&root.join(STUBS), "rs")? {
        let stub = fs::read(root.join(STUBS).join(&file)).with_context(|| format!("reading {file}"))?;
        edition.write(&format!("{STUBS}/{file}{STUB_ENDING}"), stub)?;
    }
    for file in with_extension(folder, "html")? {
        // Others in folders of their own are fragments of pages.
        if !file.contains('/') || edition.leaves.iter().any(|leaf| leaf.file == file) {
            edition.finish(&file)?;
        }
    }
    Ok(())
}

/// The files in a folder and the folders in it that end like this, with `/` on every system.
fn with_extension(folder: &Path, extension: &str) -> Result<Vec<String>> {
    let files = files_in(folder)?.into_iter().filter(|file| file.extension().is_some_and(|end| end == extension));
    Ok(files.map(|file| file.to_string_lossy().replace('\\', "/")).collect())
}

/// What a book without an address goes without.
pub const LEFT_OUT: &str = "Left out, as nothing says where it will be read (--site-url https://host/path/): sitemap.xml, canonical links, the \
     address and the picture of link previews, and a 404 page that works for addresses below the book's own folder";

/// Copies the files of `extra` into the book. They must not hide any of its own.
fn add(folder: &Path, extra: &Path) -> Result<()> {
    for file in files_in(extra).with_context(|| format!("--add {}", extra.display()))? {
        let to = folder.join(&file);
        if to.exists() {
            bail!("--add {}: the book has a file {} of its own", extra.display(), file.display());
        }
        let from = extra.join(&file);
        if file == Path::new(PREVIEW) {
            let size = png_size(&fs::read(&from).with_context(|| format!("reading {}", from.display()))?);
            ensure!(
                size == Some(PREVIEW_SIZE),
                "{}: link previews take a PNG of 1200 by 630 pixels, this is {}",
                from.display(),
                size.map_or("no PNG".to_string(), |(width, height)| format!("one of {width} by {height}"))
            );
        }
        fs::create_dir_all(to.parent().unwrap_or(folder))
            .and_then(|()| fs::copy(&from, &to))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

/// Width and height, from the first chunk of the file.
fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_png = bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.get(12..16)? == b"IHDR";
    let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    is_png.then_some((number(16)?, number(20)?))
}

/// The pages of the book, as SUMMARY.md lists them.
fn leaves(root: &Path, build: &Build) -> Result<Vec<Leaf>> {
    let text = fs::read_to_string(root.join(SUMMARY)).with_context(|| format!("reading {SUMMARY}"))?;
    let mut listed: HashMap<String, (String, String)> = HashMap::new();
    let (mut said, mut target, mut headings) = (String::new(), String::new(), Vec::new());
    for event in new_cmark_parser(&text, &MarkdownOptions::default()) {
        match event {
            Event::Start(Tag::Heading { .. }) => said.clear(),
            Event::End(TagEnd::Heading(_)) => headings.push(std::mem::take(&mut said)),
            Event::Start(Tag::Link { dest_url, .. }) => {
                said.clear();
                let name = dest_url.strip_suffix(".md").unwrap_or(&dest_url);
                target = format!("{name}.html").replace("README.html", "index.html");
            }
            Event::End(TagEnd::Link) => {
                // The first heading is the list's own.
                let part = headings.iter().skip(1).next_back().cloned().unwrap_or_default();
                listed.insert(std::mem::take(&mut target), (part, said.clone()));
            }
            Event::Text(text) | Event::Code(text) => said.push_str(&text),
            _ => {}
        }
    }
    let leaves = build.pages.iter().map(|(page, _)| {
        let file = rendered_name(page).to_string_lossy().replace('\\', "/");
        let (part, title) = listed.remove(&file).unwrap_or_else(|| (String::new(), file.clone()));
        Leaf { file, part, title, description: description(&page.text), picture: picture(&page.text) }
    });
    let leaves: Vec<Leaf> = leaves.collect();
    ensure!(!leaves.is_empty(), "the book has no pages");
    Ok(leaves)
}

/// The words for the first picture of a page.
fn picture(text: &str) -> Option<String> {
    html::pieces(text).iter().find_map(|(_, piece)| match piece {
        Piece::Open(element) if element.name == "svg" => element.says("aria-label").map(str::to_string),
        _ => None,
    })
}

/// Where a link of a page's source leads in the published Markdown, if elsewhere.
fn published_link(target: &str) -> Option<String> {
    if let Some(stub) = target.strip_prefix(EXERCISE_LINK) {
        return Some(format!("{STUBS}/{stub}{STUB_ENDING}"));
    }
    let (path, fragment) = target.find('#').map_or((target, ""), |at| target.split_at(at));
    let name = path.strip_suffix(".md").filter(|_| !target.contains("://"))?;
    Some(format!("{name}.html.md{fragment}"))
}

impl Edition<'_> {
    fn write(&self, file: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.folder.join(file);
        fs::create_dir_all(path.parent().unwrap_or(self.folder))
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Gives a rendered page its links and its head.
    fn finish(&self, name: &str) -> Result<()> {
        let page = fs::read_to_string(self.folder.join(name)).with_context(|| format!("reading {name}"))?;
        let page = STUB_LINK.replace_all(&page, format!("href=\"{STUBS}/$1{STUB_ENDING}\""));
        let mut page = match self.address {
            Some(address) => page.replace("<base href=\"/\">", &format!("<base href=\"{}\">", address.path())),
            // Right at least beside the other pages, wherever those are.
            None => page.replace("        <base href=\"/\">\n", ""),
        };
        if self.has_paper {
            let print = "<a href=\"print.html\"";
            page = page.replacen(print, &format!("{PAPER_LINK}\n                        {print}"), 1);
        }
        let is_this = |leaf: &&Leaf| leaf.file == name;
        let first = &self.leaves[0];
        if let Some(leaf) = if name == "index.html" { Some(first) } else { self.leaves.iter().find(is_this) } {
            let general = format!("<meta name=\"description\" content=\"{}\">", escaped(&self.summary));
            ensure!(
                page.matches(&general).count() == 1,
                "{name} has not one line `{general}`: mdBook writes another head now; tools/book/src/edition.rs follows it"
            );
            page = page.replacen(&general, self.head(leaf).trim(), 1);
        }
        self.write(name, page)
    }

    /// The lines of a page's head that are its own.
    fn head(&self, leaf: &Leaf) -> String {
        let is_first = leaf.file == self.leaves[0].file;
        let meta = |kind: &str, name: &str, content: &str| {
            format!("        <meta {kind}=\"{name}\" content=\"{}\">\n", escaped(content))
        };
        let mut head = meta("name", "description", &leaf.description);
        head += &format!("        <link rel=\"alternate\" type=\"text/markdown\" href=\"{}.md\">\n", leaf.file);
        head += &meta("property", "og:title", if is_first { &self.title } else { &leaf.title });
        head += &meta("property", "og:description", &leaf.description);
        head += &meta("property", "og:site_name", &self.title);
        head += &meta("property", "og:type", if is_first { "website" } else { "article" });
        let mut card = "summary";
        if let Some(address) = self.address {
            let url = self.place(leaf, address);
            head += &format!("        <link rel=\"canonical\" href=\"{}\">\n", escaped(&url));
            head += &meta("property", "og:url", &url);
            if self.has_preview {
                let (width, height) = PREVIEW_SIZE;
                head += &meta("property", "og:image", &address.of(PREVIEW));
                head += &meta("property", "og:image:width", &width.to_string());
                head += &meta("property", "og:image:height", &height.to_string());
                head += &meta("property", "og:image:alt", self.leaves[0].picture.as_ref().unwrap_or(&self.title));
                card = "summary_large_image";
            }
        }
        head + &meta("name", "twitter:card", card)
    }

    /// The first page is the book's own address.
    fn place(&self, leaf: &Leaf, address: &Address) -> String {
        if leaf.file == self.leaves[0].file { address.to_string() } else { address.of(&leaf.file) }
    }

    fn sitemap(&self, address: &Address) -> String {
        let places = self.leaves.iter().map(|leaf| escaped(&self.place(leaf, address)));
        let urls: String = places.map(|place| format!("<url><loc>{place}</loc></url>\n")).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n{urls}</urlset>\n"
        )
    }

    /// The book for a language model that is asked about it, as <https://llmstxt.org> proposes: what it is, and the pages as
    /// Markdown, each with a line.
    fn llms(&self) -> String {
        let at = |file: &str| self.address.map_or_else(|| file.to_string(), |address| address.of(file));
        let mut text = format!("# {}\n\n> {}. {}\n\n", self.title, self.summary, self.leaves[0].description);
        text +=
            "The pages below are the book's own Markdown, with the code that they show. A figure is told in words.\n";
        for pages in self.leaves.chunk_by(|a, b| a.part == b.part) {
            let part = if pages[0].part.is_empty() { "Begin" } else { &pages[0].part };
            text += &format!("\n## {part}\n\n");
            for Leaf { file, title, description, .. } in pages {
                text += &format!("- [{title}]({}): {description}\n", at(&format!("{file}.md")));
            }
        }
        if self.has_paper {
            text += &format!("\n## Optional\n\n- [The whole book]({}): for paper, as a PDF\n", at(PAPER));
        }
        text
    }
}

/// As HTML, in running text and in attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
