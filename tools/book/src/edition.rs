//! What a published book has more than a rendered one: links that work away from the repository, a description of each
//! page, its Markdown, and, where the address is known, what search engines and link previews ask for.
//!
//! All of it is added to the rendered pages, so that the book that is read at home stays what stock mdBook makes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use mdbook_driver::config::Config;
use mdbook_markdown::pulldown_cmark::{Event, Tag, TagEnd};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};

use crate::about::description;
use crate::address::Address;
use crate::check::{Build, EXERCISE_LINK, SUMMARY, rendered_name};
use crate::html::{self, Piece};
use crate::markdown;
use crate::publish::files_in;

/// Among the files to add: the picture that link previews show, 1200 pixels wide and 630 high, and the book on paper.
const PREVIEW: &str = "preview.png";
const PAPER: &str = "page-by-page.pdf";
const PREVIEW_SIZE: (u32, u32) = (1200, 630);

/// The stubs, as text: what a browser makes of `.rs` is every server's own affair.
pub const STUBS: &str = "exercises";
pub const STUB_ENDING: &str = ".txt";

/// A part of SUMMARY.md: its name, and the title and file of each of its pages.
type Part = (String, Vec<(String, String)>);

struct Leaf {
    /// `ch06_paged.html`
    file: String,
    title: String,
    description: String,
    /// What its first picture shows.
    picture: Option<String>,
}

/// Makes the rendered book in `build` one to be published, with the files of the folder `extra` in it.
pub fn make(root: &Path, build: &Build, address: Option<&Address>, extra: Option<&Path>) -> Result<()> {
    let folder = build.folder.path();
    if let Some(extra) = extra {
        add(folder, extra)?;
    }
    let has = |file: &str| folder.join(file).is_file();
    let (has_preview, has_paper) = (has(PREVIEW), has(PAPER));

    let config = Config::from_disk(root.join("book/book.toml"))?.book;
    let title = config.title.context("book.toml names no title")?;
    let summary = config.description.context("book.toml has no description")?;
    let titles = titles(root)?;
    let leaves: Vec<Leaf> = (build.pages.iter())
        .map(|(page, _)| {
            let file = rendered_name(page).to_string_lossy().replace('\\', "/");
            let listed = titles.iter().find(|(_, target)| *target == file);
            let title = listed.map_or_else(|| file.clone(), |(title, _)| title.clone());
            let description = description(&page.text);
            Leaf { file, title, description, picture: picture(&page.text) }
        })
        .collect();
    let first = leaves.first().context("the book has no pages")?;

    for (leaf, (page, _)) in leaves.iter().zip(&build.pages) {
        let text = markdown::plain(&page.text, published_link);
        write(&folder.join(format!("{}.md", leaf.file)), &text)?;
    }
    write(&folder.join("llms.txt"), &llms(root, &title, &summary, &leaves, address, has_paper)?)?;
    if let Some(address) = address {
        write(&folder.join("sitemap.xml"), &sitemap(&leaves, address))?;
        // Nobody asks for one below the root of a server.
        if address.path() == "/" {
            let robots = format!("User-agent: *\nAllow: /\n\nSitemap: {}\n", address.of("sitemap.xml"));
            write(&folder.join("robots.txt"), &robots)?;
        }
    }

    let stubs = folder.join(STUBS);
    for file in files_in(&root.join(STUBS))?.iter().filter(|file| file.extension().is_some_and(|end| end == "rs")) {
        let to = stubs.join(format!("{}{STUB_ENDING}", file.display()));
        fs::create_dir_all(&stubs)
            .and_then(|()| fs::copy(root.join(STUBS).join(file), &to))
            .with_context(|| format!("writing {}", to.display()))?;
    }
    for file in files_in(folder)?.iter().filter(|file| file.extension().is_some_and(|end| end == "html")) {
        // Fragments of pages, and no page.
        if file.parent().is_some_and(|parent| parent != Path::new(""))
            && !leaves.iter().any(|l| Path::new(&l.file) == file)
        {
            continue;
        }
        let path = folder.join(file);
        let mut page = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        page = with_stub_links(&page);
        page = match address {
            Some(address) => page.replace("<base href=\"/\">", &format!("<base href=\"{}\">", address.path())),
            // Right at least beside the other pages, wherever those are.
            None => page.replace("        <base href=\"/\">\n", ""),
        };
        if has_paper {
            page = with_paper(&page);
        }
        let name = file.to_string_lossy().replace('\\', "/");
        let leaf = if name == "index.html" { Some(first) } else { leaves.iter().find(|leaf| leaf.file == name) };
        if let Some(leaf) = leaf {
            let is_first = leaf.file == first.file;
            let picture = address.filter(|_| has_preview).map(|_| first.picture.as_deref().unwrap_or(&title));
            let head = head(leaf, is_first, &title, address, picture);
            let general = format!("<meta name=\"description\" content=\"{}\">", escaped(&summary));
            ensure!(
                page.matches(&general).count() == 1,
                "{name} has not one line `{general}`: mdBook writes another head now; tools/book/src/edition.rs follows it"
            );
            page = page.replacen(&general, head.trim_start(), 1);
        }
        write(&path, &page)?;
    }
    Ok(())
}

/// What a book without an address goes without.
pub fn left_out() -> String {
    "Left out, as nothing says where it will be read (--site-url https://host/path/): sitemap.xml, canonical links, the \
     address and the picture of link previews, and a 404 page that works for addresses below the book's own folder"
        .to_string()
}

/// Copies the files of `extra` into the book. They may hide none of its own.
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

/// The pages as SUMMARY.md calls them, with the files that they become.
fn titles(root: &Path) -> Result<Vec<(String, String)>> {
    Ok(parts(root)?.into_iter().flat_map(|(_, pages)| pages).collect())
}

/// The parts of SUMMARY.md, each with its pages: title and file. The first part has no name.
fn parts(root: &Path) -> Result<Vec<Part>> {
    let text = fs::read_to_string(root.join(SUMMARY)).with_context(|| format!("reading {SUMMARY}"))?;
    let mut parts: Vec<Part> = Vec::new();
    let mut said = String::new();
    let mut target = String::new();
    for event in new_cmark_parser(&text, &MarkdownOptions::default()) {
        match event {
            Event::Start(Tag::Heading { .. }) => said.clear(),
            // The first is the list's own.
            Event::End(TagEnd::Heading(_)) if parts.is_empty() => parts.push((String::new(), Vec::new())),
            Event::End(TagEnd::Heading(_)) => parts.push((std::mem::take(&mut said), Vec::new())),
            Event::Start(Tag::Link { dest_url, .. }) => {
                said.clear();
                let name = dest_url.strip_suffix(".md").unwrap_or(&dest_url);
                target = format!("{name}.html").replace("README.html", "index.html");
            }
            Event::End(TagEnd::Link) => {
                if parts.is_empty() {
                    parts.push((String::new(), Vec::new()));
                }
                let pages = parts.last_mut().map(|(_, pages)| pages);
                pages.into_iter().for_each(|pages| pages.push((said.clone(), target.clone())));
            }
            Event::Text(text) | Event::Code(text) => said.push_str(&text),
            _ => {}
        }
    }
    parts.retain(|(_, pages)| !pages.is_empty());
    Ok(parts)
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
    let (path, fragment) =
        target.split_once('#').map_or((target, String::new()), |(path, id)| (path, format!("#{id}")));
    let is_elsewhere = target.contains("://");
    path.strip_suffix(".md").filter(|_| !is_elsewhere).map(|name| format!("{name}.html.md{fragment}"))
}

/// The links of a rendered page to the stubs, which lie in the published folder.
fn with_stub_links(page: &str) -> String {
    let link = format!("href=\"{EXERCISE_LINK}");
    let mut parts = page.split(&link);
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (name, rest) = part.split_once('"').unwrap_or((part, ""));
        let _ = write!(text, "href=\"{STUBS}/{name}{STUB_ENDING}\"{rest}");
    }
    text
}

/// A link to the book on paper, beside the one to the page for printing.
fn with_paper(page: &str) -> String {
    let Some(at) = page.find("<a href=\"print.html\"") else {
        return page.to_string();
    };
    let link = format!(
        "<a href=\"{PAPER}\" class=\"pbp-paper\" title=\"The whole book as a PDF\" aria-label=\"The whole book as a PDF\">PDF</a>\n                        "
    );
    format!("{}{link}{}", &page[..at], &page[at..])
}

/// The lines of a page's head that are its own.
fn head(leaf: &Leaf, is_first: bool, book: &str, address: Option<&Address>, picture: Option<&str>) -> String {
    let mut lines = String::new();
    let mut line = |text: String| {
        let _ = writeln!(lines, "        {text}");
    };
    let title = if is_first { book } else { &leaf.title };
    line(format!("<meta name=\"description\" content=\"{}\">", escaped(&leaf.description)));
    line(format!("<link rel=\"alternate\" type=\"text/markdown\" href=\"{}.md\">", leaf.file));
    line(format!("<meta property=\"og:title\" content=\"{}\">", escaped(title)));
    line(format!("<meta property=\"og:description\" content=\"{}\">", escaped(&leaf.description)));
    line(format!("<meta property=\"og:site_name\" content=\"{}\">", escaped(book)));
    line(format!("<meta property=\"og:type\" content=\"{}\">", if is_first { "website" } else { "article" }));
    if let Some(address) = address {
        let url = escaped(&place(leaf, is_first, address));
        line(format!("<link rel=\"canonical\" href=\"{url}\">"));
        line(format!("<meta property=\"og:url\" content=\"{url}\">"));
        if let Some(shows) = picture {
            let (width, height) = PREVIEW_SIZE;
            line(format!("<meta property=\"og:image\" content=\"{}\">", escaped(&address.of(PREVIEW))));
            line(format!("<meta property=\"og:image:width\" content=\"{width}\">"));
            line(format!("<meta property=\"og:image:height\" content=\"{height}\">"));
            line(format!("<meta property=\"og:image:alt\" content=\"{}\">", escaped(shows)));
        }
    }
    let card = if picture.is_some() { "summary_large_image" } else { "summary" };
    line(format!("<meta name=\"twitter:card\" content=\"{card}\">"));
    lines.trim_end().to_string()
}

/// The first page is the book's own address.
fn place(leaf: &Leaf, is_first: bool, address: &Address) -> String {
    if is_first { address.to_string() } else { address.of(&leaf.file) }
}

fn sitemap(leaves: &[Leaf], address: &Address) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n",
    );
    for (at, leaf) in leaves.iter().enumerate() {
        let _ = writeln!(text, "<url><loc>{}</loc></url>", escaped(&place(leaf, at == 0, address)));
    }
    text + "</urlset>\n"
}

/// The book for a language model that is asked about it, as <https://llmstxt.org> proposes: what it is, and the pages as
/// Markdown, each with a line.
fn llms(
    root: &Path,
    title: &str,
    summary: &str,
    leaves: &[Leaf],
    address: Option<&Address>,
    has_paper: bool,
) -> Result<String> {
    let at = |file: &str| address.map_or_else(|| file.to_string(), |address| address.of(file));
    let first = leaves.first().map_or("", |leaf| &leaf.description);
    let mut text = format!("# {title}\n\n> {summary}. {first}\n\n");
    text += "The pages below are the book's own Markdown, with the code that they show. A figure is told in words.\n";
    for (part, pages) in parts(root)? {
        let _ = writeln!(text, "\n## {}\n", if part.is_empty() { "Begin" } else { &part });
        for (_, file) in pages {
            if let Some(leaf) = leaves.iter().find(|leaf| leaf.file == file) {
                let _ = writeln!(text, "- [{}]({}): {}", leaf.title, at(&format!("{file}.md")), leaf.description);
            }
        }
    }
    if has_paper {
        let _ = writeln!(text, "\n## Optional\n\n- [The whole book]({}): for paper, as a PDF", at(PAPER));
    }
    Ok(text)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
