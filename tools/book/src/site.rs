//! What a published book has more than a rendered one: links that work away from the repository, a description of each
//! page, its Markdown, and, where the address is known, what search engines and link previews ask for.
//!
//! All of it is added to the rendered pages, so that the book that is read at home stays what stock mdBook makes.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;
use page_by_page_course::figures::escaped;
use regex::Regex;

use crate::check::{Build, EXERCISE_LINK, rendered_name};
use crate::description::description;
use crate::html::Piece;
use crate::markdown;
use crate::page::Page;
use crate::publish::{files_ending, files_in};

/// Among the files to add: the picture that link previews show, 1200 pixels wide and 630 high, and the book on paper.
const PREVIEW: &str = "preview.png";
const PAPER: &str = "page-by-page.pdf";
/// Beside the link to the page for printing.
const PAPER_LINK: &str = "<a href=\"page-by-page.pdf\" class=\"pbp-paper\" title=\"The whole book as a PDF\" \
                          aria-label=\"The whole book as a PDF\">PDF</a>";

/// The stubs, as text: each server tells browsers something else about `.rs`.
const STUBS: &str = "exercises";
const STUB_ENDING: &str = ".txt";

static STUB_LINK: LazyLock<Regex> = LazyLock::new(|| {
    let name = "([^\"]*)";
    Regex::new(&format!("href=\"{}{name}\"", regex::escape(EXERCISE_LINK))).expect("valid pattern")
});

struct SitePage<'b> {
    page: &'b Page,
    /// `ch06_paged.html`
    file: String,
    /// The part of SUMMARY.md that lists it, and its title there. The first part has no name.
    part: String,
    title: String,
    description: String,
}

struct Site<'b> {
    folder: &'b Path,
    title: String,
    summary: String,
    /// The pages in order, at least one.
    pages: Vec<SitePage<'b>>,
    address: Option<&'b str>,
    /// What the first picture shows.
    picture: String,
    has_preview: bool,
    has_paper: bool,
}

/// The address of a published book, with a slash at its end.
pub fn site_url(text: &str) -> Result<String, String> {
    let rest = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_folder = rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_alphanumeric())
            && rest.chars().all(|c| c.is_ascii_alphanumeric() || "-._~%:/".contains(c))
            && !rest.ends_with(".html")
    });
    match is_folder {
        true => Ok(format!("{}/", text.trim_end_matches('/'))),
        false => Err("write the folder's address, such as https://example.org/book/".into()),
    }
}

/// Makes the rendered book in `build` one to be published, with the files of the folder `extra` in it.
pub fn make(root: &Path, build: &Build, address: Option<&str>, extra: Option<&Path>) -> Result<()> {
    let folder = build.folder.path();
    if let Some(extra) = extra {
        add(folder, extra)?;
    }
    let book = MDBook::load(root.join("book"))?;
    let site = Site {
        folder,
        pages: pages(&book, build),
        title: book.config.book.title.context("book.toml names no title")?,
        summary: book.config.book.description.context("book.toml has no description")?,
        address,
        picture: build.pages.iter().find_map(picture).unwrap_or_default(),
        has_preview: folder.join(PREVIEW).is_file(),
        has_paper: folder.join(PAPER).is_file(),
    };
    for SitePage { file, page, .. } in &site.pages {
        site.write(&format!("{file}.md"), markdown::plain(&page.expanded.text, published_link))?;
    }
    site.write("llms.txt", site.llms())?;
    if let Some(address) = address {
        site.write("sitemap.xml", site.sitemap(address))?;
    }
    for file in files_ending(&root.join(STUBS), "rs")? {
        let file = format!("{STUBS}/{}", file.display());
        let stub = fs::read(root.join(&file)).with_context(|| format!("reading {file}"))?;
        site.write(&format!("{file}{STUB_ENDING}"), stub)?;
    }
    // Others in folders of their own are fragments of pages.
    let pages = files_ending(folder, "html")?.into_iter().filter(|file| file.components().count() == 1);
    pages.map(|file| file.display().to_string()).try_for_each(|file| site.finish(&file))
}

/// Copies the files of `extra` into the book. They must not hide any of its own.
fn add(folder: &Path, extra: &Path) -> Result<()> {
    for file in files_in(extra).with_context(|| format!("--add {}", extra.display()))? {
        let to = folder.join(&file);
        if to.exists() {
            bail!("--add {}: the book has a file {} of its own", extra.display(), file.display());
        }
        fs::create_dir_all(to.parent().unwrap_or(folder))
            .and_then(|()| fs::copy(extra.join(&file), &to))
            .with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(())
}

/// The pages of the book, with their parts and titles as SUMMARY.md lists them.
fn pages<'b>(book: &MDBook, build: &'b Build) -> Vec<SitePage<'b>> {
    let mut pages = Vec::new();
    let mut part = "";
    for item in book.iter() {
        match item {
            BookItem::PartTitle(title) => part = title,
            BookItem::Chapter(chapter) => {
                let file = chapter.path.clone().unwrap_or_default().with_extension("html");
                pages.extend(build.pages.iter().find(|page| rendered_name(page) == file).map(|page| SitePage {
                    page,
                    file: file.to_string_lossy().replace('\\', "/"),
                    part: part.to_string(),
                    title: chapter.name.clone(),
                    description: description(&page.contents),
                }));
            }
            BookItem::Separator => {}
        }
    }
    pages
}

/// The words for the first picture of a page.
fn picture(page: &Page) -> Option<String> {
    page.contents.html.iter().find_map(|(_, piece)| match piece {
        Piece::Open(element) if element.name == "svg" => element.says("aria-label").map(str::to_string),
        Piece::Open(element) if element.name == "img" => element.says("alt").map(str::to_string),
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

impl Site<'_> {
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
        let path = self.address.and_then(|address| Some(&address[address.find("://")? + 3..]));
        let mut page = match path.and_then(|address| Some(&address[address.find('/')?..])) {
            Some(path) => page.replace("<base href=\"/\">", &format!("<base href=\"{path}\">")),
            // Right at least beside the other pages, wherever those are.
            None => page.replace("        <base href=\"/\">\n", ""),
        };
        if self.has_paper {
            let print = "<a href=\"print.html\"";
            page = page.replacen(print, &format!("{PAPER_LINK}\n                        {print}"), 1);
        }
        let is_this = |page: &&SitePage<'_>| page.file == name || name == "index.html";
        if let Some(this) = self.pages.iter().find(is_this) {
            let general = format!("<meta name=\"description\" content=\"{}\">", escaped(&self.summary));
            ensure!(
                page.matches(&general).count() == 1,
                "{name} has not one line `{general}`: mdBook writes another head now; tools/book/src/site.rs follows it"
            );
            page = page.replacen(&general, self.head(this).trim(), 1);
        }
        self.write(name, page)
    }

    /// The lines of a page's head that are its own.
    fn head(&self, page: &SitePage<'_>) -> String {
        let is_first = page.file == self.pages[0].file;
        let meta = |kind: &str, name: &str, content: &str| {
            format!("        <meta {kind}=\"{name}\" content=\"{}\">\n", escaped(content))
        };
        let mut head = meta("name", "description", &page.description);
        head += &format!("        <link rel=\"alternate\" type=\"text/markdown\" href=\"{}.md\">\n", page.file);
        head += &meta("property", "og:title", if is_first { &self.title } else { &page.title });
        head += &meta("property", "og:description", &page.description);
        head += &meta("property", "og:site_name", &self.title);
        head += &meta("property", "og:type", if is_first { "website" } else { "article" });
        let mut card = "summary";
        if let Some(address) = self.address {
            let url = self.place(page, address);
            head += &format!("        <link rel=\"canonical\" href=\"{url}\">\n");
            head += &meta("property", "og:url", &url);
            if self.has_preview {
                head += &meta("property", "og:image", &format!("{address}{PREVIEW}"));
                head += &meta("property", "og:image:width", "1200");
                head += &meta("property", "og:image:height", "630");
                head += &meta("property", "og:image:alt", &self.picture);
                card = "summary_large_image";
            }
        }
        head + &meta("name", "twitter:card", card)
    }

    /// The first page is the book's own address.
    fn place(&self, page: &SitePage<'_>, address: &str) -> String {
        if page.file == self.pages[0].file { address.to_string() } else { format!("{address}{}", page.file) }
    }

    fn sitemap(&self, address: &str) -> String {
        let places = self.pages.iter().map(|page| self.place(page, address));
        let urls: String = places.map(|place| format!("<url><loc>{place}</loc></url>\n")).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n{urls}</urlset>\n"
        )
    }

    /// The book for a language model, as <https://llmstxt.org> proposes: what it is, and a line for each page.
    fn llms(&self) -> String {
        let address = self.address.unwrap_or_default();
        let mut text = format!("# {}\n\n> {}. {}\n\n", self.title, self.summary, self.pages[0].description);
        text +=
            "The pages below are the book's own Markdown, with the code that they show. A figure is told in words.\n";
        for pages in self.pages.chunk_by(|a, b| a.part == b.part) {
            let part = if pages[0].part.is_empty() { "Begin" } else { &pages[0].part };
            text += &format!("\n## {part}\n\n");
            for SitePage { file, title, description, .. } in pages {
                text += &format!("- [{title}]({address}{file}.md): {description}\n");
            }
        }
        if self.has_paper {
            text += &format!("\n## Optional\n\n- [The whole book]({address}{PAPER}): for paper, as a PDF\n");
        }
        text
    }
}
