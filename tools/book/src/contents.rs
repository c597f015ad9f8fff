//! What a page is made of: headings, links, pictures, code and hand-written HTML, each with its line. Markdown is read
//! by mdBook's own parser, so that an example in a code block is never taken for the thing itself.

use mdbook_markdown::pulldown_cmark::{CodeBlockKind, Event, LinkType, Tag, TagEnd};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};

use crate::html::{self, Piece};

/// Lines are those of the text with includes expanded, counted from 1.
#[derive(Default)]
pub struct Contents {
    pub headings: Vec<(usize, u8)>,
    /// Inline code, except inside a link to a different site: those names belong to that project.
    pub code_spans: Vec<(usize, String)>,
    pub code_blocks: Vec<CodeBlock>,
    pub links: Vec<(usize, String)>,
    /// Running text outside of block quotes and tables, an item of a list as well. Inline code keeps its backticks.
    pub paragraphs: Vec<(usize, String)>,
    pub html: Vec<(usize, Piece)>,
}

pub struct CodeBlock {
    /// The line of the opening fence.
    pub line: usize,
    /// What stands after the fence, such as `console,norun`.
    pub info: String,
    pub text: String,
}

impl Contents {
    pub fn read(text: &str) -> Self {
        let line_starts: Vec<usize> =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let line_of = |offset: usize| line_starts.partition_point(|start| *start <= offset);

        let mut contents = Self::default();
        // As many bytes and lines as the text has.
        let mut only_html: Vec<u8> = text.bytes().map(|byte| if byte == b'\n' { byte } else { b' ' }).collect();
        let mut in_foreign_link = false;
        let mut block: Option<CodeBlock> = None;
        let (mut in_quote, mut paragraph) = (false, None::<(usize, String)>);

        for (event, range) in new_cmark_parser(text, &MarkdownOptions::default()).into_offset_iter() {
            let line = line_of(range.start);
            match (&event, paragraph.as_mut().map(|(_, words)| words)) {
                (Event::Start(Tag::BlockQuote(_)), _) => in_quote = true,
                (Event::End(TagEnd::BlockQuote(_)), _) => in_quote = false,
                (Event::Start(Tag::Paragraph | Tag::Item), _) if !in_quote => paragraph = Some((line, String::new())),
                (Event::End(TagEnd::Paragraph | TagEnd::Item) | Event::Start(Tag::List(_) | Tag::CodeBlock(_)), _) => {
                    contents.paragraphs.extend(paragraph.take());
                }
                (Event::SoftBreak | Event::HardBreak, Some(words)) => words.push(' '),
                (Event::Text(text), Some(words)) => words.push_str(text),
                (Event::Code(code), Some(words)) => words.push_str(&format!("`{code}`")),
                _ => {}
            }
            match event {
                Event::Start(Tag::Heading { level, .. }) => contents.headings.push((line, level as u8)),
                Event::Start(Tag::Link { dest_url, link_type, .. }) if link_type != LinkType::Email => {
                    in_foreign_link = is_web_address(&dest_url);
                    contents.links.push((line, dest_url.to_string()));
                }
                Event::End(TagEnd::Link) => in_foreign_link = false,
                Event::Start(Tag::Image { dest_url, .. }) => contents.links.push((line, dest_url.to_string())),
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    block = Some(CodeBlock { line, info: info.to_string(), text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => contents.code_blocks.extend(block.take()),
                Event::Text(text) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&text);
                    }
                }
                Event::Code(code) if !in_foreign_link => contents.code_spans.push((line, code.to_string())),
                Event::Html(_) | Event::InlineHtml(_) => {
                    only_html[range.clone()].copy_from_slice(&text.as_bytes()[range]);
                }
                _ => {}
            }
        }
        let only_html = String::from_utf8(only_html).expect("whole events replace whole characters");
        contents.html = html::pieces(&only_html);
        contents.read_html();
        contents
    }

    /// Adds what the hand-written HTML has in the way of headings, links and inline code.
    fn read_html(&mut self) {
        let mut in_code = false;
        for (line, piece) in &self.html {
            match piece {
                Piece::Open(element) => {
                    in_code = element.name == "code";
                    if let [b'h', level @ b'1'..=b'6'] = element.name.as_bytes() {
                        self.headings.push((*line, level - b'0'));
                    }
                    let target = match element.name.as_str() {
                        "a" => element.attribute("href"),
                        "img" | "source" | "video" | "audio" | "script" | "iframe" => element.attribute("src"),
                        _ => None,
                    };
                    let target = target.filter(|target| element.name == "a" || !target.starts_with("//"));
                    self.links.extend(target.map(|target| (*line, target.to_string())));
                }
                Piece::Close(_) => in_code = false,
                Piece::Text(text) if in_code => self.code_spans.push((*line, text.clone())),
                Piece::Text(_) => {}
            }
        }
        self.headings.sort_unstable();
    }
}

pub fn is_web_address(target: &str) -> bool {
    target.starts_with("http://") || target.starts_with("https://")
}
