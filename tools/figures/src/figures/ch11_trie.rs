//! Chapter 11: the trie grows, is hit, and is evicted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use page_by_page::cache::PageId;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;

use super::Figure;
use crate::svg::{Area, Kind, Svg, cell};
use crate::words::{count, joined, listed, page_numbers, pages, tokens};

const PAGE_SIZE: usize = 2;
const PAGES: usize = 6;
/// The sequences of the figure. A token is a word's place among [`WORDS`].
const SEQUENCES: [(char, &str); 3] =
    [('a', "once upon a time there"), ('b', "once upon a king"), ('c', "once upon a time")];
const WORDS: [&str; 6] = ["once", "upon", "a", "time", "there", "king"];
/// The operations as they are written and as they run. They return the pages of the sequence, and what happened in words; HTML.
const OPERATIONS: [(&str, Operation); 9] = [
    ("a: insert", |run| run.insert('a')),
    ("end of a", |run| run.end("a")),
    ("b: lookup", |run| run.lookup('b')),
    ("b: insert", |run| run.insert('b')),
    ("c: lookup", |run| run.lookup('c')),
    ("c: insert", |run| run.insert('c')),
    ("end of b and c", |run| run.end("bc")),
    ("evict(1)", |run| run.evict(1)),
    ("evict(2)", |run| run.evict(2)),
];
type Operation = fn(&mut Run) -> Result<(Vec<u32>, String)>;

fn words(name: char) -> &'static str {
    SEQUENCES.iter().find(|(other, _)| *other == name).map_or("", |(_, words)| words)
}

#[derive(Clone, PartialEq)]
struct Node {
    page: u32,
    /// The page before it.
    parent: Option<u32>,
    words: String,
    owners: u32,
}

struct Run {
    pool: PagePool,
    trie: PrefixCache,
    tables: BTreeMap<char, PageTable>,
}

impl Run {
    /// Begins a sequence with the cached pages.
    fn lookup(&mut self, name: char) -> Result<(Vec<u32>, String)> {
        let words = words(name);
        let table = self.trie.lookup(&tokens(words, &WORDS), &mut self.pool)?;
        let own = page_numbers(table.pages());
        self.tables.insert(name, table);
        let found = pages(&own);
        Ok((own, format!("{name} begins, “{words}”: <code>lookup</code> finds {found}, which gains an owner")))
    }

    /// Takes pages for the tokens that are missing, and inserts.
    fn insert(&mut self, name: char) -> Result<(Vec<u32>, String)> {
        let (words, tokens) = (words(name), tokens(words(name), &WORDS));
        let mut table = self.tables.remove(&name).map_or_else(|| PageTable::new(PAGE_SIZE), Ok)?;
        table.grow(tokens.len() - table.len(), &mut self.pool)?;
        let before = page_numbers(table.pages());
        self.trie.insert(&tokens, &mut table, &mut self.pool)?;
        let own = page_numbers(table.pages());
        self.tables.insert(name, table);
        let swaps = before.iter().zip(&own).filter(|(old, new)| old != new);
        let swaps: String = swaps.map(|(old, new)| format!("; for its page {old} it gets page {new}")).collect();
        Ok((own, format!("{name}, “{words}”, has {}: <code>insert</code>{swaps}", pages(&before))))
    }

    /// Sequences let their pages go.
    fn end(&mut self, names: &str) -> Result<(Vec<u32>, String)> {
        for mut table in names.chars().filter_map(|name| self.tables.remove(&name)) {
            table.release(&mut self.pool)?;
        }
        let names: Vec<char> = names.chars().collect();
        Ok((vec![], format!("end of {}: the pages lose an owner", listed(&names))))
    }

    fn evict(&mut self, n: usize) -> Result<(Vec<u32>, String)> {
        ensure!(self.trie.evict(n, &mut self.pool)? == n, "{n} pages can be evicted");
        Ok((vec![], format!("<code>evict({n})</code>")))
    }

    /// The pages of the trie, found by looking up every sequence and one more token. That counts as use of them, so the run
    /// is over then.
    fn nodes(mut self) -> Result<Vec<Node>> {
        let owners = (0..PAGES as u32).map(|page| self.pool.owners(PageId(page))).collect::<Result<Vec<_>, _>>()?;
        let mut nodes: Vec<Node> = Vec::new();
        for (_, words) in SEQUENCES {
            let table = self.trie.lookup(&[tokens(words, &WORDS), vec![u32::MAX]].concat(), &mut self.pool)?;
            let words: Vec<&str> = words.split(' ').collect();
            let mut parent = None;
            for (page, words) in page_numbers(table.pages()).into_iter().zip(words.chunks(PAGE_SIZE)) {
                let node = Node { page, parent, words: words.join(" "), owners: owners[page as usize] };
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
                parent = Some(page);
            }
        }
        let all = self.trie.n_pages();
        ensure!(nodes.len() == all, "the sequences lead to {} of {all} pages", nodes.len());
        Ok(nodes)
    }
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure::default();
    figure.svg.y = 4.0;
    let mut before: Vec<Node> = Vec::new();
    for done in 1..=OPERATIONS.len() {
        // A pool and a trie for each line, because reading the trie changes it.
        let mut run = Run { pool: PagePool::new(PAGES)?, trie: PrefixCache::new(PAGE_SIZE)?, tables: BTreeMap::new() };
        let (mut own, mut says) = (vec![], String::new());
        for (_, apply) in &OPERATIONS[..done] {
            (own, says) = apply(&mut run)?;
        }
        let (operation, _) = OPERATIONS[done - 1];
        let (free, nodes) = (run.pool.n_free(), run.nodes()?);
        if operation.starts_with("evict") {
            let stays = |node: &&Node| nodes.iter().any(|other| other.page == node.page);
            let gone = before.iter().filter(|node| !stays(node)).map(|node| node.page);
            says = format!("{says}: {} evicted", pages(&gone.collect::<Vec<_>>()));
        }
        figure.step(format!("{says}. {} free.", count(free, "page")), |svg| {
            let title = format!("{operation} {}", joined(&own, " "));
            let note = match operation.split_once(": ") {
                Some((name, _)) => name.chars().map(words).collect(),
                None => format!("{free} of {PAGES} pages free"),
            };
            svg.heading(&title, &note);
            draw_trie(svg, &nodes, &before);
        });
        figure.svg.y += 6.0;
        before = nodes;
    }
    figure.svg.legend(&[
        (Kind::New, "added now"),
        (Kind::Shared, "also held by a sequence"),
        (Kind::Reused, "held by the trie alone"),
    ]);
    figure.label = format!(
        "The trie after each of {} operations: its pages with their words and reference counts, each page joined to the one before \
         it.",
        OPERATIONS.len(),
    );
    figure.caption = format!(
        "<strong>Sequences come and go, and the trie keeps what they have computed.</strong> Page size {PAGE_SIZE}, {PAGES} pages. \
         Recorded from <code>PrefixCache</code>."
    );
    Ok(figure)
}

fn draw_trie(svg: &mut Svg, nodes: &[Node], before: &[Node]) {
    const WIDTH: f64 = 130.0;
    const COLUMN: f64 = 166.0;
    const ROW: f64 = 47.0;
    let mut row = 0;
    let mut middles: BTreeMap<u32, f64> = BTreeMap::new();
    for node in nodes {
        // A node stands in the row of its parent, unless a sibling stands there already.
        let is_first = nodes.iter().find(|other| other.parent == node.parent) == Some(node);
        row += usize::from(!is_first);
        let x = if node.parent.is_some() { 2.0 + COLUMN } else { 2.0 };
        let area = Area { x, y: svg.y + row as f64 * ROW, width: WIDTH, height: 40.0 };
        let is_new = before.iter().all(|other| other.page != node.page);
        let kind = match node.owners {
            _ if is_new => Kind::New,
            1 => Kind::Reused,
            _ => Kind::Shared,
        };
        let Node { page, words, owners, .. } = node;
        svg.cell(area, &cell(kind, format!("{words}\npage {page}, owners: {owners}")).key(format!("page-{page}")));
        let middle = area.y + area.height / 2.0;
        if let Some(from) = node.parent.and_then(|parent| middles.get(&parent)) {
            svg.line(&format!("M{} {from}H{}V{middle}H{x}", 2.0 + WIDTH, 2.0 + (WIDTH + COLUMN) / 2.0));
        }
        middles.insert(*page, middle);
    }
    let rows = if nodes.is_empty() { 0 } else { row + 1 };
    svg.y += rows as f64 * ROW;
}
