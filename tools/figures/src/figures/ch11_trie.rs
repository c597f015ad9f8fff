//! Chapter 11: the trie grows, is hit, and is evicted.

use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::prefix_cache::PrefixCache;

use super::prelude::*;

const PAGE_SIZE: usize = 2;
const PAGES: usize = 6;
/// Of a, b and c. A token is a word's place among [`WORDS`].
const SEQUENCES: [&str; 3] = ["once upon a time there", "once upon a king", "once upon a time"];
const WORDS: [&str; 6] = ["once", "upon", "a", "time", "there", "king"];
/// They return what happened in words; HTML. The first two have run when the figure starts.
const OPERATIONS: [fn(&mut PoolAndTrie) -> Result<String>; 9] = [
    |run| run.insert('a'),
    |run| run.end("a"),
    |run| Ok(run.lookup('b')? + "So b does not compute these two words."),
    |run| Ok(run.insert('b')? + ", which has two children now."),
    |run| Ok(run.lookup('c')? + "Page 1 is left out, because at least the newest token must be computed."),
    |run| Ok(run.compute('c')? + " Page 1 already holds the same two words."),
    |run| Ok(run.insert('c')? + " The copy is freed."),
    |run| Ok(run.end("bc")? + " The trie keeps all of them."),
    |run| Ok(run.evict(1)? + ", the leaf that was used longest ago. Page 0 is no leaf, and c has used page 1 since."),
];
const EARLIER: usize = 2;

#[derive(Clone, PartialEq)]
struct Node {
    page: PageId,
    /// The page before it.
    parent: Option<PageId>,
    words: String,
    owners: u32,
    is_cached: bool,
}

struct PoolAndTrie {
    pool: PagePool,
    trie: PrefixTrie,
    tables: BTreeMap<char, PageTable>,
}

impl PoolAndTrie {
    /// Begins a sequence with the cached pages.
    fn lookup(&mut self, name: char) -> Result<String> {
        let words = words(name);
        let table = self.trie.lookup(&tokens(words, &WORDS), &mut self.pool)?;
        let found = pages(table.pages());
        self.tables.insert(name, table);
        Ok(format!("{name}, \u{201c}{words}\u{201d}, begins, and <code>lookup</code> returns {found}. "))
    }

    /// Takes pages for the tokens that are missing.
    fn compute(&mut self, name: char) -> Result<String> {
        let table = self.tables.entry(name).or_insert(PageTable::new(PAGE_SIZE)?);
        let found = table.pages().len();
        table.grow(tokens(words(name), &WORDS).len() - table.len(), &mut self.pool)?;
        Ok(format!("{name} computes its other words, in {}.", pages(&table.pages()[found..])))
    }

    /// Computes what is missing, and inserts.
    fn insert(&mut self, name: char) -> Result<String> {
        let computed = self.compute(name)?;
        let table = self.tables.get_mut(&name).context("the sequence has begun")?;
        let before = table.pages().to_vec();
        self.trie.insert(&tokens(words(name), &WORDS), table, &mut self.pool)?;
        let own = table.pages();
        Ok(match before.iter().zip(own).find(|(old, new)| old != new) {
            Some((old, new)) => format!(
                "<code>insert</code> finds these tokens in page {new}, so it puts page {new} into {name}\u{2019}s \
                 table, in place of page {old}."
            ),
            None => {
                let [.., parent, last] = own else { return Ok(computed) };
                format!("{computed} <code>insert</code> adds page {last} after page {parent}")
            }
        })
    }

    /// Sequences let their pages go.
    fn end(&mut self, names: &str) -> Result<String> {
        for mut table in names.chars().filter_map(|name| self.tables.remove(&name)) {
            table.release(&mut self.pool)?;
        }
        Ok(format!("{} end, and each gives up its pages.", listed(&Vec::from_iter(names.chars()))))
    }

    /// Says which pages are gone.
    fn evict(&mut self, n: usize) -> Result<String> {
        let before = self.owners()?;
        ensure!(self.trie.evict(n, &mut self.pool)? == n, "{n} pages can be evicted");
        let after = self.owners()?;
        let gone: Vec<usize> = (0..PAGES).filter(|page| before[*page] > 0 && after[*page] == 0).collect();
        Ok(format!("<code>evict({n})</code> frees {}", pages(&gone)))
    }

    /// How many owners each page has.
    fn owners(&self) -> Result<Vec<u32>> {
        Ok((0..PAGES as u32).map(|page| self.pool.owners(PageId(page))).collect::<Result<_, _>>()?)
    }

    /// The pages of the trie, found by looking up every sequence and one more token, then full pages of sequences that
    /// are not in it. That counts as use of them, so the run is over then.
    fn nodes(&mut self) -> Result<Vec<Node>> {
        let owners = self.owners()?;
        let mut nodes: Vec<Node> = Vec::new();
        let mut add = |words: &str, pages: &[PageId], is_cached| {
            let mut parent = None;
            for (page, words) in pages.iter().zip(Vec::from_iter(words.split(' ')).chunks_exact(PAGE_SIZE)) {
                if !nodes.iter().any(|node| node.page == *page) {
                    let (words, owners) = (words.join(" "), owners[page.index()]);
                    nodes.push(Node { page: *page, parent, words, owners, is_cached });
                }
                parent = Some(*page);
            }
        };
        for words in SEQUENCES {
            let table = self.trie.lookup(&[tokens(words, &WORDS), vec![u32::MAX]].concat(), &mut self.pool)?;
            add(words, table.pages(), true);
        }
        self.tables.iter().for_each(|(name, table)| add(words(*name), table.pages(), false));
        let (found, all) = (nodes.iter().filter(|node| node.is_cached).count(), self.trie.n_pages());
        ensure!(found == all, "the sequences lead to {found} of {all} pages");
        Ok(nodes)
    }
}

fn words(name: char) -> &'static str {
    SEQUENCES[name as usize - 'a' as usize]
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: format!(
            "The trie after each of {} operations: its pages with their words and reference counts, each page joined \
             to the one before it.",
            OPERATIONS.len() - EARLIER,
        ),
        headline: "Later sequences reuse what earlier ones have computed.".into(),
        setup: format!("{PAGES} pages of {PAGE_SIZE} slots. Sequence a, \u{201c}{}\u{201d}, has ended.", words('a')),
        legend: vec![
            (held('b', ""), "a sequence also owns it"),
            (shared(&['b', 'c'], ""), "several sequences also own it"),
            (stale(None, ""), "given up for the trie\u{2019}s page"),
        ],
        // The swap.
        middle: Some(4),
        ..Figure::default()
    };
    let mut before: Vec<Node> = Vec::new();
    for done in EARLIER + 1..=OPERATIONS.len() {
        // A pool and a trie for each frame, because reading the trie changes it.
        let mut run =
            PoolAndTrie { pool: PagePool::new(PAGES)?, trie: PrefixTrie::new(PAGE_SIZE)?, tables: BTreeMap::new() };
        let mut text = String::new();
        for apply in &OPERATIONS[..done] {
            text = apply(&mut run)?;
        }
        let free = run.pool.n_free();
        let nodes = run.nodes()?;
        // With pages of sequences that have made room for the trie's.
        let mut drawn = nodes.clone();
        let is_gone = |node: &&Node| !node.is_cached && run.pool.owners(node.page) == Ok(0);
        drawn.extend(before.iter().filter(is_gone).map(|node| Node { owners: 0, ..node.clone() }));
        figure.frame(text, |picture| {
            picture.labelled("table of b");
            picture.beside(2, |picture, place| {
                let name = ['b', 'c'][place];
                let own = run.tables.get(&name).map_or(&[][..], PageTable::pages);
                let cell = |place| own.get(place).map_or(blank(), |page| held(name, page));
                picture.row(&format!("table of {name}"), "", 1, (0..3).map(cell));
                picture.y -= 6.0;
            });
            picture.labels = 0.0;
            picture.y += 12.0;
            picture.heading("the trie", &format!("{free} of {PAGES} pages free"));
            draw(picture, &drawn, &run.tables);
        });
        before = nodes;
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, nodes: &[Node], tables: &BTreeMap<char, PageTable>) {
    const ROW: f64 = 64.0;
    const BETWEEN: f64 = 30.0;
    /// For the arrow of a swap.
    const MARGIN: f64 = 24.0;
    let (top, left, full) = (picture.y, picture.left, picture.width);
    picture.width = (full - BETWEEN - MARGIN) / 2.0;
    let mut row = 0;
    let mut areas: Vec<Area> = Vec::new();
    for node in nodes {
        let Node { page, parent, words, owners, is_cached } = node;
        // A node stands in the row of its parent, unless a sibling stands there already.
        let is_first = nodes.iter().find(|other| other.parent == *parent) == Some(node);
        row += usize::from(!is_first);
        picture.left = left + if parent.is_some() { picture.width + BETWEEN } else { 0.0 };
        picture.y = top + row as f64 * ROW;
        let with = tables.iter().filter(|(_, table)| table.pages().contains(page));
        let of: Vec<char> = with.map(|(name, _)| *name).collect();
        let without = |word| if *owners == 0 { stale(None, word) } else { cached(word) };
        let number = if *owners == 0 { "free".into() } else { plural(*owners as usize, "owner") };
        let cells = words.split(' ').map(|word| owned(&of, word, without(word)));
        let area = picture.pages(|_| format!("page {page}: {number}"), PAGE_SIZE, cells).group(0);
        let (middle, right) = (area.y + area.height / 2.0, area.x + area.width + 1.0);
        let of_cached = |is_it: &dyn Fn(&Node) -> bool| {
            areas.iter().zip(nodes).find(|(_, other)| other.is_cached && is_it(other)).map(|(area, _)| *area)
        };
        if *is_cached {
            if let Some(from) = of_cached(&|other| Some(other.page) == *parent) {
                let (start, bend) = (from.x + from.width + 1.0, area.x - BETWEEN / 2.0);
                let (from, end) = (from.y + CELL / 2.0, area.x - 1.0);
                picture.path("line", format!("M{start:.1} {from:.1}H{bend:.1}V{middle:.1}H{end:.1}"));
            }
        } else if *owners > 0 {
            let text = format!("{}\u{2019}s own:", joined(&of, ", "));
            picture.text(area.x - BETWEEN / 2.0, middle + 4.5, Anchor::End, text);
        } else if let Some(by) = of_cached(&|other| other.parent == *parent && other.words == *words) {
            let (bend, to) = (right + MARGIN - 8.0, by.y + by.height / 2.0);
            picture.path("line", format!("M{right:.1} {middle:.1}H{bend:.1}V{to:.1}"));
            picture.arrow((bend, to), (right + 2.0, to));
        }
        areas.push(area);
    }
    (picture.left, picture.width, picture.y) = (left, full, top + (row + 1) as f64 * ROW);
}
