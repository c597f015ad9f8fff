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
const OPERATIONS: [Operation; 9] = [
    Operation::Insert('a'),
    Operation::End("a"),
    Operation::Lookup('b'),
    Operation::Insert('b'),
    Operation::Lookup('c'),
    Operation::Insert('c'),
    Operation::End("bc"),
    Operation::Evict(1),
    Operation::Evict(2),
];

#[derive(Clone, Copy)]
enum Operation {
    /// Begins a sequence with the cached pages.
    Lookup(char),
    /// Takes pages for the tokens that are missing, and inserts.
    Insert(char),
    /// Sequences let their pages go.
    End(&'static str),
    Evict(usize),
}

/// A page of the trie.
#[derive(Clone, PartialEq)]
struct Node {
    page: u32,
    /// The page before it.
    parent: Option<u32>,
    words: String,
    owners: u32,
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Lookup(name) => format!("{name}: lookup"),
            Operation::Insert(name) => format!("{name}: insert"),
            Operation::End(names) => format!("end of {}", listed(&names.chars().collect::<Vec<_>>())),
            Operation::Evict(n) => format!("evict({n})"),
        }
    }

    /// The words of its sequence.
    fn words(self) -> Option<&'static str> {
        let (Operation::Lookup(name) | Operation::Insert(name)) = self else { return None };
        SEQUENCES.iter().find(|(other, _)| *other == name).map(|(_, words)| *words)
    }
}

/// A pool, a trie and the tables of the sequences that run.
struct Run {
    pool: PagePool,
    trie: PrefixCache,
    tables: BTreeMap<char, PageTable>,
}

impl Run {
    /// Returns the pages of the sequence after the operation, and what happened in words; HTML.
    fn apply(&mut self, operation: Operation) -> Result<(Vec<u32>, String)> {
        let words = operation.words().unwrap_or_default();
        let tokens = tokens(words, &WORDS);
        match operation {
            Operation::Lookup(name) => {
                let table = self.trie.lookup(&tokens, &mut self.pool)?;
                let own = page_numbers(table.pages());
                let found = pages(&own);
                self.tables.insert(name, table);
                Ok((own, format!("{name} begins, “{words}”: <code>lookup</code> finds {found}, which gains an owner")))
            }
            Operation::Insert(name) => {
                let mut table = self.tables.remove(&name).map_or_else(|| PageTable::new(PAGE_SIZE), Ok)?;
                table.grow(tokens.len() - table.len(), &mut self.pool)?;
                let before = page_numbers(table.pages());
                self.trie.insert(&tokens, &mut table, &mut self.pool)?;
                let own = page_numbers(table.pages());
                self.tables.insert(name, table);
                let swaps = before.iter().zip(&own).filter(|(old, new)| old != new);
                let swaps: String =
                    swaps.map(|(old, new)| format!("; for its page {old} it gets page {new}")).collect();
                Ok((own, format!("{name}, “{words}”, has {}: <code>insert</code>{swaps}", pages(&before))))
            }
            Operation::End(names) => {
                for mut table in names.chars().filter_map(|name| self.tables.remove(&name)) {
                    table.release(&mut self.pool)?;
                }
                Ok((vec![], format!("{}: the pages lose an owner", operation.name())))
            }
            Operation::Evict(n) => {
                ensure!(self.trie.evict(n, &mut self.pool)? == n, "{n} pages can be evicted");
                Ok((vec![], format!("<code>{}</code>", operation.name())))
            }
        }
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
        for operation in &OPERATIONS[..done] {
            (own, says) = run.apply(*operation)?;
        }
        let operation = OPERATIONS[done - 1];
        let (free, nodes) = (run.pool.n_free(), run.nodes()?);
        if let Operation::Evict(_) = operation {
            let stays = |node: &&Node| nodes.iter().any(|other| other.page == node.page);
            let gone = before.iter().filter(|node| !stays(node)).map(|node| node.page);
            says = format!("{says}: {} evicted", pages(&gone.collect::<Vec<_>>()));
        }
        figure.step(format!("{says}. {} free.", count(free, "page")), |svg| {
            let title = format!("{} {}", operation.name(), joined(&own, " "));
            svg.heading(&title, operation.words().unwrap_or(&format!("{free} of {PAGES} pages free")));
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
