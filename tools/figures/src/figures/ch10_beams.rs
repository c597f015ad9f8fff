//! Chapter 10: a beam search as a tree, and the pages that its beams share. They are forks by `chapters::ch10_fork`.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::generation::StopConditions;
use page_by_page::generation::beams::search;

use super::prelude::*;

const PROMPT: &str = "There was once a";
const WIDTH: usize = 3;
const STEPS: usize = 5;
const PAGE_SIZE: usize = 4;
const PAGES: usize = 12;
/// From a row of beams to the next.
const LINE: f64 = 40.0;

/// The beams of each step, best first, and the pages of those of the last.
#[derive(Default)]
struct Recorded {
    prompt: Vec<u32>,
    steps: Vec<Vec<Vec<u32>>>,
    tables: Vec<Vec<PageId>>,
    /// Tokens that have rows.
    computed: usize,
    copied_tokens: u64,
}

/// A beam in the tree: its step, its place among the beams of the step, the place of the beam that it was forked from,
/// and its cell.
type Node = (usize, usize, Option<usize>, Cell);

fn record() -> Result<Recorded> {
    let (model, prompt) = (model(STORYTELLER)?, tokenizer()?.encode(PROMPT)?);
    let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, PAGES)?;
    let stop = StopConditions { max_new_tokens: STEPS, end_of_text: &model.config().eos_token_ids };
    let mut run = Recorded { prompt, ..Recorded::default() };
    let (_, work) = search(&model, &slab, &run.prompt, WIDTH, stop, &mut |beams| {
        run.steps.push(beams.iter().map(|beam| beam.tokens.clone()).collect());
        run.tables = beams.iter().map(|beam| beam.cache.table().pages().to_vec()).collect();
        run.computed = beams[0].cache.len();
    })?;
    ensure!(run.steps.len() == STEPS, "the search ends after {} steps", run.steps.len());
    run.copied_tokens = work.copied_tokens;
    Ok(run)
}

impl Recorded {
    /// The beams of the last step of which `is_part` is true, as letters.
    fn beams(&self, is_part: impl Fn(usize) -> bool) -> Vec<char> {
        ('a'..).zip(0..WIDTH).filter(|(_, beam)| is_part(*beam)).map(|(letter, _)| letter).collect()
    }
}

pub fn figure() -> Result<Figure> {
    let (run, tokenizer) = (record()?, tokenizer()?);
    let words = |tokens: &[u32]| tokenizer.decode(tokens).map(|words| words.trim().to_string());
    let mut nodes = Vec::new();
    for (step, beams) in run.steps.iter().enumerate() {
        for (place, tokens) in beams.iter().enumerate() {
            let (newest, before) = tokens.split_last().context("a beam has a token")?;
            let parent = step.checked_sub(1).and_then(|step| run.steps[step].iter().position(|beam| beam == before));
            let word = words(&[*newest])?;
            let continued = run.beams(|beam| run.steps[STEPS - 1][beam].starts_with(tokens));
            nodes.push((step, place, parent, owned(&continued, &word, stale(None, &word))));
        }
    }
    let n_pages = run.tables[0].len();
    let mut pages = Vec::new();
    for place in 0..n_pages {
        for beam in 0..WIDTH {
            let page = run.tables[beam][place];
            let owners = run.beams(|other| run.tables[other][place] == page);
            if owners[0] != char::from(b'a' + beam as u8) {
                continue;
            }
            let sequence = [&run.prompt[..], &run.steps[STEPS - 1][beam]].concat();
            let content = words(&sequence[place * PAGE_SIZE..run.computed.min((place + 1) * PAGE_SIZE)])?;
            pages.push((place, beam, owned(&owners, format!("page {page}\n{content}"), blank()), owners.len()));
        }
    }
    let (n, n_apart) = (pages.len(), WIDTH * n_pages);
    let copied_tokens = run.copied_tokens;
    let figure = Figure {
        label: format!(
            "A tree of {STEPS} steps with {WIDTH} beams in each, joined to the beams they were forked from. Below, the \
             {n} pages of the last beams, each as high as the beams that share it."
        ),
        headline: format!("The last {WIDTH} beams hold {n} pages, where separate caches would hold {n_apart}."),
        setup: format!(
            "Each step keeps the {WIDTH} likeliest continuations of \u{201c}{PROMPT}\u{201d}, the best at the top, in pages of \
             {PAGE_SIZE} slots. (Page 0 begins with <em>start</em>, the mark that begins every sequence.) By step {STEPS}, \
             {copied_tokens} tokens have been copied."
        ),
        legend: vec![(shared(&['a', 'b'], ""), "shared by several beams"), (stale(None, ""), "dropped")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        draw_tree(picture, &nodes);
        picture.y += 8.0;
        picture.heading("pages of the last beams", "");
        let width = (picture.width - 2.0) / n_pages as f64;
        for (place, beam, cell, rows) in &pages {
            let (x, y) = (picture.left + 1.0 + *place as f64 * width, picture.y + *beam as f64 * LINE);
            picture.cell(Area { x, y, width: width - 4.0, height: *rows as f64 * LINE - 4.0 }, cell.clone());
        }
        picture.y += WIDTH as f64 * LINE;
    }))
}

/// A column for each step; each beam is joined to the one that it was forked from.
fn draw_tree(picture: &mut Picture, nodes: &[Node]) {
    let between = if picture.is_wide() { 40.0 } else { 14.0 };
    let width = (picture.width - 2.0 - (STEPS - 1) as f64 * between) / STEPS as f64;
    let x = |step: usize| 1.0 + step as f64 * (width + between);
    for step in 0..STEPS {
        picture.text(x(step) + width / 2.0, picture.y + 15.0, Anchor::Middle, format!("step {}", step + 1));
    }
    picture.y += 24.0;
    for (step, place, parent, cell) in nodes {
        let (x, top) = (x(*step), picture.y);
        let middle = |place: usize| top + place as f64 * LINE + CELL / 2.0;
        picture.cell(Area { x, y: middle(*place) - CELL / 2.0, width, height: CELL }, cell.clone());
        if let Some(parent) = parent {
            picture.arrow((x - between + 1.0, middle(*parent)), (x - 2.0, middle(*place)));
        }
    }
    picture.y += WIDTH as f64 * LINE;
}
