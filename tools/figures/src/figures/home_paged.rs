//! The first page: two stories that are told at once, and the pages that they are kept in.

use anyhow::{Context, Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::decode::Limits;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{bundled, page_numbers};
use crate::svg::{Anchor, Area, Kind, Svg, WIDTH, listed, rounded, text_width};

const MODEL: &str = "storyteller";
const PAGE_SIZE: usize = 4;
const PAGES: usize = 12;
/// Steps of the model. In each, every story that has begun reads its new tokens.
const STEPS: usize = 13;
/// The seed decides how a story goes on; the first is the one that `generate` tells.
const STORIES: [Telling; 2] = [
    Telling { name: 'a', prompt: "Once upon a time", seed: 23, begins: 0 },
    Telling { name: 'b', prompt: "There was once a tailor", seed: 17, begins: 1 },
];

struct Telling {
    name: char,
    prompt: &'static str,
    seed: u64,
    /// The step that reads the prompt.
    begins: usize,
}

#[derive(Serialize)]
pub struct Trace {
    model: &'static str,
    page_size: usize,
    pages: usize,
    stories: Vec<Story>,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Story {
    name: char,
    seed: u64,
    /// At the end.
    table: Vec<u32>,
}

/// A step of the model.
#[derive(Serialize)]
struct Frame {
    reads: Vec<Read>,
    /// Pages without an owner afterwards.
    free: usize,
}

/// What a story reads in a step, and where its rows go.
#[derive(Serialize)]
struct Read {
    story: char,
    /// Whether these are the tokens of the prompt.
    prompt: bool,
    tokens: Vec<Token>,
}

/// The text of a token, and the page and the slot of its rows. The token before a text has no text.
#[derive(Serialize)]
struct Token(String, usize, usize);

/// A story while it is told.
struct Teller<'t> {
    telling: &'static Telling,
    cache: PagedCache,
    sampler: Sampler,
    tokens: Vec<u32>,
    stream: TextStream<'t>,
}

pub fn record() -> Result<Trace> {
    let (model, tokenizer) = (Model::open(&bundled(MODEL))?, Tokenizer::open(&bundled(MODEL))?);
    let slab = PageSlab::new(model.config().kv_layout(), PAGE_SIZE, PAGES)?;
    let mut tellers = Vec::new();
    for telling in &STORIES {
        tellers.push(Teller {
            telling,
            cache: PagedCache::new(&slab)?,
            sampler: sampler(telling),
            tokens: tokenizer.encode(telling.prompt)?,
            stream: tokenizer.stream(),
        });
    }
    let mut frames = Vec::new();
    for step in 0..STEPS {
        let mut telling: Vec<&mut Teller> = tellers.iter_mut().filter(|teller| teller.telling.begins <= step).collect();
        let held: Vec<usize> = telling.iter().map(|teller| teller.cache.len()).collect();
        // One pass of the model for all of them.
        let mut batch = Vec::new();
        for (teller, held) in telling.iter_mut().zip(&held) {
            batch.push(model.chunk(&teller.tokens[*held..], Some(&mut teller.cache), LogitRows::Newest(1))?);
        }
        let logits = model.forward(batch)?;
        let mut reads = Vec::new();
        for ((teller, held), row) in telling.iter_mut().zip(&held).zip(logits.chunks_exact(model.config().vocab_size)) {
            reads.push(teller.read(*held)?);
            teller.tokens.push(teller.sampler.pick(row));
        }
        drop(telling);
        let free = slab.borrow().pool().n_free();
        let owned: usize = tellers.iter().map(|teller| teller.cache.table().pages().len()).sum();
        ensure!(free == PAGES - owned, "{free} pages are free, {owned} have an owner");
        frames.push(Frame { reads, free });
    }
    for teller in &tellers {
        teller.is_what_recomputing_writes(&model, &tokenizer)?;
    }
    let story = |teller: &Teller| Story {
        name: teller.telling.name,
        seed: teller.telling.seed,
        table: page_numbers(teller.cache.table().pages()),
    };
    let stories = tellers.iter().map(story).collect();
    Ok(Trace { model: MODEL, page_size: PAGE_SIZE, pages: PAGES, stories, frames })
}

/// What `generate` draws with when it is told nothing but the seed.
fn sampler(telling: &Telling) -> Sampler {
    Sampler::new(Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: telling.seed })
}

impl Teller<'_> {
    /// The tokens that the cache holds beyond the first `held`.
    fn read(&mut self, held: usize) -> Result<Read> {
        let mut tokens = Vec::new();
        for position in held..self.cache.len() {
            let place = self.cache.table().locate(position)?;
            tokens.push(Token(self.stream.push(self.tokens[position])?, place.page.index(), place.slot));
        }
        Ok(Read { story: self.telling.name, prompt: held == 0, tokens })
    }

    /// Fails unless this story is the one that is written without a cache, alone.
    fn is_what_recomputing_writes(&self, model: &Model, tokenizer: &Tokenizer) -> Result<()> {
        let prompt = tokenizer.encode(self.telling.prompt)?;
        let limits = Limits { max_new_tokens: self.tokens.len() - prompt.len(), end_of_text: &[] };
        let mut sampler = sampler(self.telling);
        let mut pick = |row: &[f32]| sampler.pick(row);
        let alone = generate(&mut Recompute::new(model), &prompt, limits, &mut pick, &mut |_| {})?;
        let told = self.tokens.strip_prefix(&prompt[..]).context("the prompt comes first")?;
        ensure!(told == alone, "story {} is another when it is told alone", self.telling.name);
        Ok(())
    }
}

/// How a cell shows the token that has no text.
const START: &str = "(start)";
/// Between the lines of a story.
const LINE: f64 = 20.0;
/// Between the pages.
const PITCH: f64 = 27.0;
const CELL: f64 = 24.0;
/// The first slot, from the left edge of the slab.
const SLOTS: f64 = 42.0;
/// The page table's first number, from the left edge of a story.
const TABLE: f64 = 150.0;
const NUMBER: f64 = 26.0;

pub fn draw(trace: &Trace) -> Drawing {
    let mut y = 0.0;
    let mut heads = Vec::new();
    for story in &trace.stories {
        heads.push(y);
        y += 20.0 + lines(trace, story.name) as f64 * LINE + 8.0;
    }
    let bottom = y + slab_height(trace);
    let mut svg = Svg::new(bottom + 52.0);
    svg.without_bands();
    for (story, top) in trace.stories.iter().zip(&heads) {
        draw_head(&mut svg, 0.0, *top, story);
    }
    draw_slab(&mut svg, 0.0, y, trace);
    for step in 0..trace.frames.len() {
        svg.step(step, |svg| {
            for (story, top) in trace.stories.iter().zip(&heads) {
                draw_words(svg, 0.0, *top, trace, story, step);
            }
            draw_rows(svg, 0.0, y, trace, step);
        });
    }
    draw_marks(&mut svg, 0.0, y, trace);
    svg.legend(Kind::New, 0.0, bottom + 6.0, "written now");
    svg.legend(Kind::Reused, 150.0, bottom + 6.0, "written before");
    svg.legend(Kind::Wasted, 0.0, bottom + 30.0, "taken, empty");
    svg.legend_free(150.0, bottom + 30.0, "free page");

    let told: Vec<String> =
        trace.stories.iter().map(|story| format!("\u{201c}{}\u{201d}", text(trace, story.name).trim())).collect();
    let seeds: Vec<String> = trace.stories.iter().map(|story| story.seed.to_string()).collect();
    Drawing {
        svg,
        label: format!("Two stories are told at once: {}. {}", listed(&told), kept(trace)),
        caption: format!(
            "Two stories, told at once by the <code>{}</code> model and kept in one <code>PagedCache</code> each, over one \
             slab of {} pages of {} slots. A cell is a token; behind it lie its keys and values in all layers. {START} is \
             the token before every text. Recorded from the running code (seeds {}), and checked: computed without any \
             cache, each story is the same.",
            trace.model,
            trace.pages,
            trace.page_size,
            listed(&seeds)
        ),
        steps: trace.frames.iter().enumerate().map(|(step, frame)| step_text(trace, step, frame)).collect(),
    }
}

/// The last frame as a picture of its own: stories on the left, pages on the right.
pub fn draw_alone(trace: &Trace) -> (Svg, String) {
    const GAP: f64 = 40.0;
    const MARGIN: f64 = 16.0;
    let right = MARGIN + WIDTH + GAP;
    let height = slab_height(trace) + 2.0 * MARGIN;
    let mut svg = Svg::with_width(right + WIDTH + MARGIN, height);
    let last = trace.frames.len() - 1;
    let mut top = MARGIN + 30.0;
    for story in &trace.stories {
        draw_head(&mut svg, MARGIN, top, story);
        for step in 0..=last {
            draw_words(&mut svg, MARGIN, top, trace, story, step);
        }
        top += 20.0 + lines(trace, story.name) as f64 * LINE + 22.0;
    }
    svg.legend(Kind::New, MARGIN, top + 10.0, "written now");
    svg.legend(Kind::Reused, MARGIN + 150.0, top + 10.0, "written before");
    svg.legend(Kind::Wasted, MARGIN, top + 34.0, "taken, empty");
    svg.legend_free(MARGIN + 150.0, top + 34.0, "free page");
    draw_slab(&mut svg, right, MARGIN, trace);
    for step in 0..=last {
        draw_rows(&mut svg, right, MARGIN, trace, step);
    }
    (svg, kept(trace))
}

fn slab_height(trace: &Trace) -> f64 {
    24.0 + trace.pages as f64 * PITCH
}

/// Where the stories are in the end.
fn kept(trace: &Trace) -> String {
    let tables: Vec<String> =
        trace.stories.iter().map(|story| format!("story {} has pages {}", story.name, listed(&story.table))).collect();
    let free = trace.frames[trace.frames.len() - 1].free;
    format!(
        "Below them the memory, {} pages of {} slots: {}, and {} are free. The last page of each story is not full.",
        trace.pages,
        trace.page_size,
        listed(&tables),
        free
    )
}

/// All that a story has read, in order, each token with its step.
fn tokens(trace: &Trace, story: char) -> Vec<(usize, &Token)> {
    let mut found = Vec::new();
    for (step, frame) in trace.frames.iter().enumerate() {
        for read in frame.reads.iter().filter(|read| read.story == story) {
            found.extend(read.tokens.iter().map(|token| (step, token)));
        }
    }
    found
}

fn text(trace: &Trace, story: char) -> String {
    tokens(trace, story).into_iter().map(|(_, token)| token.0.as_str()).collect()
}

/// The left edge and the line of each token of a story. Lines break before a word.
fn places(trace: &Trace, story: char) -> Vec<(f64, usize)> {
    let tokens = tokens(trace, story);
    let is_word = |token: &Token| token.0.starts_with(' ');
    let (mut x, mut line) = (0.0, 0);
    let mut places = Vec::new();
    for (index, (_, token)) in tokens.iter().enumerate() {
        let pieces = tokens[index + 1..].iter().take_while(|(_, next)| !is_word(next));
        let word: f64 = text_width(&token.0) + pieces.map(|(_, next)| text_width(&next.0)).sum::<f64>();
        if is_word(token) && x + word > WIDTH {
            (x, line) = (-text_width(" "), line + 1);
        }
        places.push((x, line));
        x += text_width(&token.0);
    }
    places
}

fn lines(trace: &Trace, story: char) -> usize {
    places(trace, story).last().map_or(0, |(_, line)| line + 1)
}

/// Story b leans, wherever it is.
fn style(story: char) -> &'static str {
    if story == STORIES[1].name { " font-style=\"italic\"" } else { "" }
}

fn draw_head(svg: &mut Svg, x: f64, y: f64, story: &Story) {
    svg.bold(x, y + 15.0, Anchor::Start, &format!("Story {}", story.name));
    svg.text(x + TABLE - 12.0, y + 15.0, Anchor::End, "in pages");
}

/// What a step adds to a story: its words, and the pages that it takes.
fn draw_words(svg: &mut Svg, x: f64, y: f64, trace: &Trace, story: &Story, step: usize) {
    for ((at, token), (left, line)) in tokens(trace, story.name).into_iter().zip(places(trace, story.name)) {
        let word = token.0.trim_start();
        if at == step && !word.is_empty() {
            let left = x + left + text_width(&token.0) - text_width(word);
            svg.fitted(left, y + 35.0 + line as f64 * LINE, style(story.name), word);
        }
    }
    for page in taken(trace, story.name, step) {
        let index = story.table.iter().position(|number| *number as usize == page).unwrap_or_default();
        let number = page.to_string();
        svg.text(x + TABLE + index as f64 * NUMBER + NUMBER / 2.0, y + 15.0, Anchor::Middle, &number);
    }
}

/// The pages whose first slot a story fills in this step.
fn taken(trace: &Trace, story: char, step: usize) -> Vec<usize> {
    let reads = trace.frames[step].reads.iter().filter(|read| read.story == story);
    reads.flat_map(|read| &read.tokens).filter(|token| token.2 == 0).map(|token| token.1).collect()
}

/// All pages, empty.
fn draw_slab(svg: &mut Svg, x: f64, y: f64, trace: &Trace) {
    svg.bold(x, y + 15.0, Anchor::Start, &format!("{} pages of {} slots", trace.pages, trace.page_size));
    for page in 0..trace.pages {
        let first = slot(x, y, trace, page, 0);
        svg.text(x + 20.0, first.y + 17.0, Anchor::End, &page.to_string());
        svg.free(whole(x, y, trace, page), "", "");
        let edges = (1..trace.page_size).map(|index| {
            let x = rounded(slot(x, y, trace, page, index).x - 1.5);
            format!("M{x} {}v{}", rounded(first.y), first.height)
        });
        svg.line(&edges.collect::<String>());
    }
}

/// What the pointer finds of each page, over all that is drawn in it.
fn draw_marks(svg: &mut Svg, x: f64, y: f64, trace: &Trace) {
    for page in 0..trace.pages {
        svg.mark(whole(x, y, trace, page), &format!("page-{page}"));
    }
}

/// All slots of a page.
fn whole(x: f64, y: f64, trace: &Trace, page: usize) -> Area {
    let [first, last] = [0, trace.page_size - 1].map(|index| slot(x, y, trace, page, index));
    Area { width: last.x + last.width - first.x, ..first }
}

fn slot(x: f64, y: f64, trace: &Trace, page: usize, slot: usize) -> Area {
    let pitch = (WIDTH - SLOTS) / trace.page_size as f64;
    Area { x: x + SLOTS + slot as f64 * pitch, y: y + 24.0 + page as f64 * PITCH, width: pitch - 3.0, height: CELL }
}

/// What a step changes in the slab: pages taken, slots written; what the step before wrote is new no more.
fn draw_rows(svg: &mut Svg, x: f64, y: f64, trace: &Trace, step: usize) {
    for story in &trace.stories {
        let style = style(story.name);
        for page in taken(trace, story.name, step) {
            let first = slot(x, y, trace, page, 0);
            svg.word(x + 27.0, first.y + 17.0, &format!(" font-weight=\"700\"{style}"), &story.name.to_string());
            let new: Vec<usize> =
                reads(trace, story.name, step).filter(|token| token.1 == page).map(|token| token.2).collect();
            for index in (0..trace.page_size).filter(|index| !new.contains(index)) {
                svg.cell(Kind::Wasted, shrunk(slot(x, y, trace, page, index), 0.25), "", "");
            }
        }
        for (kind, at) in [(Kind::Reused, step.checked_sub(1)), (Kind::New, Some(step))] {
            let Some(at) = at else { continue };
            for Token(text, page, index) in reads(trace, story.name, at) {
                let word = if text.is_empty() { START } else { text.trim_start() };
                // Each covers the border of the one that it is drawn on.
                let area = shrunk(slot(x, y, trace, *page, *index), if kind == Kind::New { 0.75 } else { 0.0 });
                svg.styled_cell(kind, area, style, word);
            }
        }
    }
}

fn reads(trace: &Trace, story: char, step: usize) -> impl Iterator<Item = &Token> {
    trace.frames[step].reads.iter().filter(move |read| read.story == story).flat_map(|read| &read.tokens)
}

fn shrunk(area: Area, by: f64) -> Area {
    Area { x: area.x + by, y: area.y + by, width: area.width - 2.0 * by, height: area.height - 2.0 * by }
}

fn step_text(trace: &Trace, step: usize, frame: &Frame) -> String {
    let told: Vec<String> = frame.reads.iter().map(|read| read_text(trace, step, read)).collect();
    let free = if frame.free == 1 { "1 page is free".into() } else { format!("{} pages are free", frame.free) };
    format!("{}. {free}.", told.join("; "))
}

fn read_text(trace: &Trace, step: usize, read: &Read) -> String {
    let new = taken(trace, read.story, step);
    if read.prompt {
        let pages: Vec<String> = new.iter().map(|page| format!("page {page}")).collect();
        return format!("{} reads its beginning: {} tokens, in {}", read.story, read.tokens.len(), listed(&pages));
    }
    let tokens = read.tokens.iter().map(|Token(text, page, _)| {
        let taken = if new.contains(page) { ", just taken" } else { "" };
        format!("\u{201c}{}\u{201d} in page {page}{taken}", crate::svg::escaped(text.trim_start()))
    });
    format!("{}: {}", read.story, tokens.collect::<Vec<_>>().join(", "))
}
