//! Chapter 11: the trie grows, is hit, and is evicted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use page_by_page::cache::PageId;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::page_numbers;
use crate::svg::{Anchor, Area, Kind, Svg, listed};

const PAGE_SIZE: usize = 2;
const PAGES: usize = 6;
/// The texts of the figure. A token is a word's place among all of theirs.
const TEXTS: [(char, &str); 3] =
    [('a', "once upon a time there"), ('b', "once upon a king"), ('c', "once upon a time")];
const OPERATIONS: [Operation; 9] = [
    Operation::Compute('a'),
    Operation::Insert('a'),
    Operation::End("a"),
    Operation::Lookup('b'),
    Operation::Insert('b'),
    Operation::Lookup('c'),
    Operation::Insert('c'),
    Operation::End("bc"),
    Operation::Evict(1),
];
/// And two more pages at the end.
const LAST: Operation = Operation::Evict(2);

#[derive(Clone, Copy)]
enum Operation {
    /// Takes pages for all tokens of a new text.
    Compute(char),
    /// Begins a text with what is found.
    Lookup(char),
    /// Takes pages for the tokens that are missing, and inserts.
    Insert(char),
    /// Texts let their pages go.
    End(&'static str),
    Evict(usize),
}

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    operation: &'static str,
    /// `None` where texts end and pages are evicted.
    text: Option<char>,
    words: &'static str,
    /// The pages of the text when its missing tokens are computed, before they are inserted.
    before: Vec<u32>,
    /// The pages of the text in the end.
    pages: Vec<u32>,
    nodes: Vec<Node>,
    free: usize,
}

/// A page of the trie.
#[derive(Clone, PartialEq, Serialize)]
struct Node {
    page: u32,
    /// The page before it.
    parent: Option<u32>,
    words: String,
    owners: u32,
}

/// The words of a text, as tokens.
fn tokens(words: &str) -> Vec<u32> {
    let mut known: Vec<&str> = Vec::new();
    for word in TEXTS.iter().flat_map(|(_, words)| words.split(' ')) {
        if !known.contains(&word) {
            known.push(word);
        }
    }
    words
        .split(' ')
        .filter_map(|word| known.iter().position(|other| *other == word))
        .map(|place| place as u32)
        .collect()
}

fn words_of(name: char) -> &'static str {
    TEXTS.iter().find(|(other, _)| *other == name).map_or("", |(_, words)| words)
}

/// A pool, a trie and the tables of the texts that run.
struct Run {
    pool: PagePool,
    trie: PrefixCache,
    tables: BTreeMap<char, PageTable>,
}

impl Run {
    fn new() -> Result<Self> {
        Ok(Run { pool: PagePool::new(PAGES)?, trie: PrefixCache::new(PAGE_SIZE)?, tables: BTreeMap::new() })
    }

    fn table(&mut self, name: char) -> Result<PageTable> {
        match self.tables.remove(&name) {
            Some(table) => Ok(table),
            None => Ok(PageTable::new(PAGE_SIZE)?),
        }
    }

    /// The pages of a text that is inserted, before that.
    fn apply(&mut self, operation: Operation) -> Result<Vec<u32>> {
        let mut before = Vec::new();
        match operation {
            Operation::Compute(name) => {
                let mut table = self.table(name)?;
                table.grow(tokens(words_of(name)).len(), &mut self.pool)?;
                self.tables.insert(name, table);
            }
            Operation::Lookup(name) => {
                let table = self.trie.lookup(&tokens(words_of(name)), &mut self.pool)?;
                self.tables.insert(name, table);
            }
            Operation::Insert(name) => {
                let (mut table, text) = (self.table(name)?, tokens(words_of(name)));
                table.grow(text.len() - table.len(), &mut self.pool)?;
                before = page_numbers(table.pages());
                self.trie.insert(&text, &mut table, &mut self.pool)?;
                self.tables.insert(name, table);
            }
            Operation::End(names) => {
                for name in names.chars() {
                    self.table(name)?.release(&mut self.pool)?;
                }
            }
            Operation::Evict(n) => ensure!(self.trie.evict(n, &mut self.pool)? == n, "{n} pages can be evicted"),
        }
        Ok(before)
    }

    /// The pages of the trie, found by looking up every text and a token more. That uses them: the run is over then.
    fn nodes(mut self) -> Result<Vec<Node>> {
        let owners = |pool: &PagePool, page: u32| pool.owners(PageId(page));
        let all: Vec<u32> = (0..PAGES as u32).map(|page| owners(&self.pool, page)).collect::<Result<_, _>>()?;
        let mut nodes: Vec<Node> = Vec::new();
        for (_, words) in TEXTS {
            let found = self.trie.lookup(&[tokens(words), vec![u32::MAX]].concat(), &mut self.pool)?;
            let words: Vec<&str> = words.split(' ').collect();
            let mut parent = None;
            for (page, words) in page_numbers(found.pages()).into_iter().zip(words.chunks(PAGE_SIZE)) {
                let node = Node { page, parent, words: words.join(" "), owners: all[page as usize] };
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
                parent = Some(page);
            }
        }
        ensure!(
            nodes.len() == self.trie.n_pages(),
            "the texts lead to {} of {} pages",
            nodes.len(),
            self.trie.n_pages()
        );
        Ok(nodes)
    }
}

pub fn record() -> Result<Trace> {
    let operations: Vec<Operation> = OPERATIONS.into_iter().chain([LAST]).collect();
    // Computing a is told together with its insertion.
    let frames: Result<Vec<Frame>> = (2..=operations.len()).map(|done| frame(&operations[..done])).collect();
    Ok(Trace { page_size: PAGE_SIZE, frames: frames? })
}

/// The state after these operations, in a pool of their own.
fn frame(operations: &[Operation]) -> Result<Frame> {
    let (mut run, mut before) = (Run::new()?, Vec::new());
    for operation in operations {
        before = run.apply(*operation)?;
    }
    let (operation, text) = match operations[operations.len() - 1] {
        Operation::Compute(name) => ("compute", Some(name)),
        Operation::Lookup(name) => ("lookup", Some(name)),
        Operation::Insert(name) => ("insert", Some(name)),
        Operation::End("a") => ("a ends", None),
        Operation::End(_) => ("b and c end", None),
        Operation::Evict(1) => ("evict(1)", None),
        Operation::Evict(_) => ("evict(2)", None),
    };
    let table = text.and_then(|name| run.tables.get(&name));
    let pages = table.map_or(Vec::new(), |table| page_numbers(table.pages()));
    let free = run.pool.n_free();
    Ok(Frame { operation, text, words: text.map_or("", words_of), before, pages, nodes: run.nodes()?, free })
}

const WIDTH: f64 = 128.0;
const HEIGHT: f64 = 40.0;
const COLUMN: f64 = 166.0;
const ROW: f64 = 47.0;
const TITLE: f64 = 27.0;
const GAP: f64 = 10.0;

/// Rows of nodes in a frame: as many as there are leaves.
fn rows(frame: &Frame) -> usize {
    frame.nodes.iter().filter(|node| frame.nodes.iter().all(|other| other.parent != Some(node.page))).count()
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let mut tops = vec![4.0];
    for frame in frames {
        tops.push(tops[tops.len() - 1] + TITLE + rows(frame) as f64 * ROW + GAP);
    }
    let bottom = tops[frames.len()];
    let mut svg = Svg::new(bottom + 24.0);
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_trie(svg, tops[step], frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom, "added now");
    svg.legend(Kind::Shared, 106.0, bottom, "a text has it, too");
    svg.legend(Kind::Reused, 252.0, bottom, "the trie's alone");
    let told: Vec<String> = frames.iter().map(told).collect();
    Drawing {
        svg,
        label: format!(
            "The trie after each of {} operations, page size {}: {}. At the end {} pages are in the trie, and {} of \
             {PAGES} are free.",
            frames.len(),
            trace.page_size,
            told.join("; "),
            frames[frames.len() - 1].nodes.len(),
            frames[frames.len() - 1].free,
        ),
        caption: format!(
            "Texts come and go, and the trie keeps what they have computed. Page size {}, {PAGES} pages. Recorded from \
             <code>PrefixCache</code>.",
            trace.page_size
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// `b: lookup finds 0`
fn told(frame: &Frame) -> String {
    let pages: Vec<String> = frame.pages.iter().map(u32::to_string).collect();
    let pages = pages.join(" ");
    match (frame.text, frame.operation) {
        (Some(name), "lookup") => format!("{name}: lookup finds {pages}"),
        (Some(name), "insert") => format!("{name}: insert {pages}"),
        (_, operation) => operation.into(),
    }
}

fn draw_trie(svg: &mut Svg, top: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, top + 17.0, Anchor::Start, &told(frame));
    if frame.text.is_some() {
        svg.text(360.0, top + 17.0, Anchor::End, frame.words);
    } else {
        svg.text(360.0, top + 17.0, Anchor::End, &format!("{} of {PAGES} pages free", frame.free));
    }
    let mut row = 0;
    let mut places: BTreeMap<u32, f64> = BTreeMap::new();
    for node in &frame.nodes {
        // A node stands in the row of its parent, unless a brother stands there already.
        let column = if node.parent.is_some() { COLUMN } else { 0.0 };
        let is_first = frame.nodes.iter().find(|other| other.parent == node.parent) == Some(node);
        if !is_first {
            row += 1;
        }
        let area = Area { x: 2.0 + column, y: top + TITLE + row as f64 * ROW, width: WIDTH, height: HEIGHT };
        let is_new = before.is_none_or(|before| before.nodes.iter().all(|other| other.page != node.page));
        let kind = match node.owners {
            _ if is_new => Kind::New,
            1 => Kind::Reused,
            _ => Kind::Shared,
        };
        svg.cell(kind, area, &format!("page-{}", node.page), "");
        svg.text(area.x + WIDTH / 2.0, area.y + 16.0, Anchor::Middle, &node.words);
        let owners = format!("page {}, owners: {}", node.page, node.owners);
        svg.text(area.x + WIDTH / 2.0, area.y + 33.0, Anchor::Middle, &owners);
        let middle = area.y + HEIGHT / 2.0;
        if let Some(from) = node.parent.and_then(|parent| places.get(&parent)) {
            let (start, bend) = (2.0 + WIDTH, 2.0 + (WIDTH + COLUMN) / 2.0);
            svg.line(&format!("M{start} {from}H{bend}V{middle}H{}", area.x));
        }
        places.insert(node.page, middle);
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let (pages, words) = (listed(&frame.pages), frame.words);
    let free = match frame.free {
        1 => "1 page is free".into(),
        n => format!("{n} pages are free"),
    };
    match (frame.text, frame.operation) {
        (Some(name), "lookup") => {
            format!(
                "{name} begins, “{words}”: <code>lookup</code> finds page {pages}, which has an owner more. {free}."
            )
        }
        (Some(name), "insert") => {
            let pairs = frame.before.iter().zip(&frame.pages).filter(|(own, page)| own != page);
            let swap: String = pairs.map(|(own, page)| format!(" For its page {own} it gets page {page}.")).collect();
            format!("{name}, “{words}”, has pages {}: <code>insert</code>.{swap} {free}.", listed(&frame.before))
        }
        (_, operation) if !operation.starts_with("evict") => {
            format!("{operation}: the pages have an owner less. {free}.")
        }
        (_, operation) => {
            let stays = |node: &&Node| frame.nodes.iter().any(|other| other.page == node.page);
            let gone: Vec<u32> =
                frames[step - 1].nodes.iter().filter(|node| !stays(node)).map(|node| node.page).rev().collect();
            let word = if gone.len() == 1 { "page" } else { "pages" };
            format!("<code>{operation}</code>: {word} {} evicted. {free}.", listed(&gone))
        }
    }
}
