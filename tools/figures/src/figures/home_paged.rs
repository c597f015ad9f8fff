//! The first page: two stories that are generated together, and the pages of their caches.

use anyhow::{Context, Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::decode::Limits;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::model::{LogitRows, Model};

use super::Figure;
use crate::layout::Grid;
use crate::models::{STORYTELLER, model, tokenizer};
use crate::svg::{Anchor, Area, Kind, Svg, WIDTH, cell, rounded, text_width};
use crate::words::{count, escaped, joined, listed, page_numbers, pages};

const PAGE_SIZE: usize = 4;
const PAGES: usize = 12;
/// Steps of the model. In each, every story that has begun computes its new tokens.
const STEPS: usize = 13;
/// The seed decides how a story goes on; the first is the one that `generate` uses.
const STORIES: [Request; 2] = [
    Request { name: 'a', prompt: "Once upon a time", seed: 23, begins: 0 },
    Request { name: 'b', prompt: "There was once a tailor", seed: 17, begins: 1 },
];

struct Request {
    name: char,
    prompt: &'static str,
    seed: u64,
    /// The step that computes the prompt.
    begins: usize,
}

struct Trace {
    stories: Vec<Story>,
    frames: Vec<Frame>,
}

struct Story {
    name: char,
    /// The page table at the end.
    pages: Vec<u32>,
}

/// A step of the model.
struct Frame {
    computed: Vec<Computed>,
    /// Pages without an owner afterwards.
    free: usize,
}

/// The tokens that a story computes in a step, and the places of their rows.
struct Computed {
    story: char,
    is_prompt: bool,
    tokens: Vec<Token>,
}

/// The text of a token, and the page and the slot of its rows. The token at the start of a sequence has no text.
struct Token(String, usize, usize);

/// A story while it is generated.
struct Running<'t> {
    request: &'static Request,
    cache: PagedCache,
    sampler: Sampler,
    tokens: Vec<u32>,
    stream: TextStream<'t>,
}

fn record() -> Result<Trace> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    let slab = PageSlab::new(model.config().kv_layout(), PAGE_SIZE, PAGES)?;
    let mut all = Vec::new();
    for request in &STORIES {
        let (cache, tokens) = (PagedCache::new(&slab)?, tokenizer.encode(request.prompt)?);
        all.push(Running { request, cache, sampler: request.sampler(), tokens, stream: tokenizer.stream() });
    }
    let mut frames = Vec::new();
    for step in 0..STEPS {
        let mut running: Vec<&mut Running> = all.iter_mut().filter(|one| one.request.begins <= step).collect();
        let held: Vec<usize> = running.iter().map(|one| one.cache.len()).collect();
        // One pass of the model for all of them.
        let mut batch = Vec::new();
        for (one, held) in running.iter_mut().zip(&held) {
            batch.push(model.chunk(&one.tokens[*held..], Some(&mut one.cache), LogitRows::Newest(1))?);
        }
        let logits = model.forward(batch)?;
        let mut computed = Vec::new();
        for ((one, held), row) in running.iter_mut().zip(&held).zip(logits.chunks_exact(model.config().vocab_size)) {
            computed.push(one.computed(*held)?);
            one.tokens.push(one.sampler.pick(row));
        }
        let free = slab.borrow().pool().n_free();
        let owned: usize = all.iter().map(|one| one.cache.table().pages().len()).sum();
        ensure!(free == PAGES - owned, "{free} pages are free, {owned} have an owner");
        frames.push(Frame { computed, free });
    }
    all.iter().try_for_each(|one| one.is_the_same_alone(&model, &tokenizer))?;
    let story = |one: &Running| Story { name: one.request.name, pages: page_numbers(one.cache.table().pages()) };
    Ok(Trace { stories: all.iter().map(story).collect(), frames })
}

impl Request {
    /// The sampling of `generate` by default.
    fn sampler(&self) -> Sampler {
        Sampler::new(Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: self.seed })
    }
}

impl Running<'_> {
    /// The tokens that the cache holds after the first `held`.
    fn computed(&mut self, held: usize) -> Result<Computed> {
        let mut tokens = Vec::new();
        for position in held..self.cache.len() {
            let place = self.cache.table().locate(position)?;
            tokens.push(Token(self.stream.push(self.tokens[position])?, place.page.index(), place.slot));
        }
        Ok(Computed { story: self.request.name, is_prompt: held == 0, tokens })
    }

    /// Fails unless this story is the one that is generated without a cache, alone.
    fn is_the_same_alone(&self, model: &Model, tokenizer: &Tokenizer) -> Result<()> {
        let Request { name, prompt, .. } = self.request;
        let prompt = tokenizer.encode(prompt)?;
        let limits = Limits { max_new_tokens: self.tokens.len() - prompt.len(), end_of_text: &[] };
        let mut sampler = self.request.sampler();
        let mut pick = |row: &[f32]| sampler.pick(row);
        let alone = generate(&mut Recompute::new(model), &prompt, limits, &mut pick, &mut |_| {})?;
        let output = self.tokens.strip_prefix(&prompt[..]).context("the prompt comes first")?;
        ensure!(output == alone, "story {name} differs when it is generated alone");
        Ok(())
    }
}

impl Trace {
    /// All tokens that a story has computed, each with its step.
    fn tokens(&self, story: char) -> impl Iterator<Item = (usize, &Token)> {
        self.frames.iter().enumerate().flat_map(move |(step, frame)| {
            let own = frame.computed.iter().filter(move |computed| computed.story == story);
            own.flat_map(|computed| &computed.tokens).map(move |token| (step, token))
        })
    }

    fn tokens_of_step(&self, story: char, step: usize) -> impl Iterator<Item = &Token> {
        self.tokens(story).filter(move |(at, _)| *at == step).map(|(_, token)| token)
    }

    /// The pages whose first slot a story fills in this step.
    fn taken(&self, story: char, step: usize) -> Vec<usize> {
        self.tokens_of_step(story, step).filter(|token| token.2 == 0).map(|token| token.1).collect()
    }

    /// The left edge and the line of each token of a story. Lines break before a word.
    fn places(&self, story: char) -> Vec<(f64, usize)> {
        let tokens: Vec<&str> = self.tokens(story).map(|(_, token)| token.0.as_str()).collect();
        let (mut x, mut line) = (0.0, 0);
        let mut places = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            let pieces = tokens[index + 1..].iter().take_while(|next| !next.starts_with(' '));
            let word = text_width(token) + pieces.map(|next| text_width(next)).sum::<f64>();
            if token.starts_with(' ') && x + word > WIDTH {
                (x, line) = (-text_width(" "), line + 1);
            }
            places.push((x, line));
            x += text_width(token);
        }
        places
    }

    /// The height of a story: its name, and its lines.
    fn height(&self, story: char) -> f64 {
        self.places(story).last().map_or(0.0, |(_, line)| 20.0 + (line + 1) as f64 * LINE)
    }

    /// The stories, their tables, and the rest.
    fn says(&self) -> String {
        let says = |story: &Story| {
            let text: String = self.tokens(story.name).map(|(_, token)| token.0.as_str()).collect();
            format!("\u{201c}{}\u{201d}, in {}", text.trim(), pages(&story.pages))
        };
        let stories: Vec<String> = self.stories.iter().map(says).collect();
        format!(
            "Two stories that are generated together: {}. The pool has {PAGES} pages of {PAGE_SIZE} slots, and {} are free. The \
             last page of each story is not full.",
            listed(&stories),
            self.frames[self.frames.len() - 1].free
        )
    }
}

/// How a cell shows the token that has no text.
const START: &str = "(start)";
/// Between the lines of a story.
const LINE: f64 = 20.0;
const SLAB_HEIGHT: f64 = 24.0 + PAGES as f64 * 27.0;
const LEGEND: [(Kind, &str); 4] = [
    (Kind::New, "written now"),
    (Kind::Reused, "written before"),
    (Kind::Wasted, "taken, empty"),
    (Kind::Free, "free page"),
];

pub fn figure() -> Result<Figure> {
    let trace = &record()?;
    let mut svg = Svg::new();
    svg.without_bands();
    let mut tops = Vec::new();
    for story in &trace.stories {
        tops.push(svg.y);
        draw_head(&mut svg, story);
        svg.y += trace.height(story.name) + 8.0;
    }
    let slab = svg.y;
    draw_slab(&mut svg);
    for step in 0..trace.frames.len() {
        svg.step(|svg| {
            for (story, top) in trace.stories.iter().zip(&tops) {
                svg.y = *top;
                draw_words(svg, trace, story, step);
            }
            svg.y = slab;
            draw_rows(svg, trace, step);
        });
    }
    // What the pointer finds of each page, over all that is drawn in it.
    (0..PAGES).for_each(|page| svg.mark(page_area(&svg, page), &format!("page-{page}")));
    svg.y += SLAB_HEIGHT;
    svg.legend(&LEGEND);
    Ok(Figure {
        svg,
        label: trace.says(),
        caption: format!(
            "<strong>Two stories share one pool of pages.</strong> The <code>{STORYTELLER}</code> model generates both together, \
             with one <code>PagedCache</code> each over one slab of {PAGES} pages of {PAGE_SIZE} slots. A cell is a token, with its \
             keys and values in all layers; {START} is the token before every sequence. Recorded from the running code (seeds {}), \
             and checked: computed without any cache, each story is the same.",
            listed(&STORIES.map(|story| story.seed))
        ),
        steps: (0..trace.frames.len()).map(|step| step_text(trace, step)).collect(),
        alone: Some(draw_alone(trace)),
        ..Figure::default()
    })
}

/// The last frame as a picture of its own: stories on the left, pages on the right.
fn draw_alone(trace: &Trace) -> Svg {
    const MARGIN: f64 = 16.0;
    let mut svg = Svg::with_width(2.0 * WIDTH + 40.0 + 2.0 * MARGIN);
    (svg.left, svg.y) = (MARGIN, MARGIN + 30.0);
    for story in &trace.stories {
        draw_head(&mut svg, story);
        (0..STEPS).for_each(|step| draw_words(&mut svg, trace, story, step));
        svg.y += trace.height(story.name) + 22.0;
    }
    svg.legend(&LEGEND);
    (svg.left, svg.y) = (MARGIN + WIDTH + 40.0, MARGIN);
    draw_slab(&mut svg);
    (0..STEPS).for_each(|step| draw_rows(&mut svg, trace, step));
    svg.y += SLAB_HEIGHT + MARGIN;
    svg
}

/// Story b leans, wherever it is.
fn style(story: char) -> &'static str {
    if story == STORIES[1].name { " font-style=\"italic\"" } else { "" }
}

fn draw_head(svg: &mut Svg, story: &Story) {
    svg.bold(svg.left, svg.y + 15.0, Anchor::Start, &format!("Story {}", story.name));
    svg.text(svg.left + 138.0, svg.y + 15.0, Anchor::End, "in pages");
}

/// What a step adds to a story: its words, and the pages that it takes.
fn draw_words(svg: &mut Svg, trace: &Trace, story: &Story, step: usize) {
    for ((at, token), (left, line)) in trace.tokens(story.name).zip(trace.places(story.name)) {
        let word = token.0.trim_start();
        if at == step && !word.is_empty() {
            let left = svg.left + left + text_width(&token.0) - text_width(word);
            svg.fitted(left, svg.y + 35.0 + line as f64 * LINE, style(story.name), word);
        }
    }
    for page in trace.taken(story.name, step) {
        let index = story.pages.iter().position(|number| *number as usize == page).unwrap_or_default();
        svg.text(svg.left + 163.0 + index as f64 * 26.0, svg.y + 15.0, Anchor::Middle, &page.to_string());
    }
}

fn slot(svg: &Svg, page: usize, slot: usize) -> Area {
    let grid = Grid::between(svg.left + 42.0, svg.left + WIDTH, PAGE_SIZE, PAGE_SIZE);
    Area { height: 24.0, ..grid.cell(slot, svg.y + 24.0 + page as f64 * 27.0) }
}

/// All slots of a page.
fn page_area(svg: &Svg, page: usize) -> Area {
    let [first, last] = [0, PAGE_SIZE - 1].map(|index| slot(svg, page, index));
    Area { width: last.x + last.width - first.x, ..first }
}

/// All pages, empty.
fn draw_slab(svg: &mut Svg) {
    svg.bold(svg.left, svg.y + 15.0, Anchor::Start, &format!("{PAGES} pages of {PAGE_SIZE} slots"));
    for page in 0..PAGES {
        let area = page_area(svg, page);
        svg.text(svg.left + 20.0, area.baseline(), Anchor::End, &page.to_string());
        svg.cell(area, &cell(Kind::Free, ""));
        let edge = |index| format!("M{} {}v24", rounded(slot(svg, page, index).x - 1.25), rounded(area.y));
        svg.line(&(1..PAGE_SIZE).map(edge).collect::<String>());
    }
}

/// What a step changes in the slab: pages taken, slots written; the step before wrote cells that are no longer new.
fn draw_rows(svg: &mut Svg, trace: &Trace, step: usize) {
    for story in &trace.stories {
        let style = style(story.name);
        for page in trace.taken(story.name, step) {
            let at = slot(svg, page, 0).baseline();
            let bold = format!(" font-weight=\"700\"{style}");
            svg.words(svg.left + 27.0, at, Anchor::Start, &bold, &story.name.to_string());
            let is_new =
                |index| trace.tokens_of_step(story.name, step).any(|token| (token.1, token.2) == (page, index));
            for index in (0..PAGE_SIZE).filter(|index| !is_new(*index)) {
                svg.cell(slot(svg, page, index).shrunk(0.25), &cell(Kind::Wasted, ""));
            }
        }
        // A new cell is drawn within the border of the one that covers it in the next step.
        for (kind, at, shrunk) in [(Kind::Reused, step.checked_sub(1), 0.0), (Kind::New, Some(step), 0.75)] {
            for Token(text, page, index) in at.into_iter().flat_map(|at| trace.tokens_of_step(story.name, at)) {
                let word = if text.is_empty() { START } else { text.trim_start() };
                svg.cell(slot(svg, *page, *index).shrunk(shrunk), &cell(kind, word).styled(style));
            }
        }
    }
}

fn step_text(trace: &Trace, step: usize) -> String {
    let Frame { computed, free } = &trace.frames[step];
    let says = |Computed { story, is_prompt, tokens }: &Computed| {
        let new = trace.taken(*story, step);
        if *is_prompt {
            return format!("{story} computes its prompt: {} in {}", count(tokens.len(), "token"), pages(&new));
        }
        let says = |Token(text, page, _): &Token| {
            let taken = if new.contains(page) { ", just taken" } else { "" };
            format!("\u{201c}{}\u{201d} in page {page}{taken}", escaped(text.trim_start()))
        };
        format!("{story}: {}", joined(&tokens.iter().map(says).collect::<Vec<_>>(), ", "))
    };
    format!("{}. {} free.", joined(&computed.iter().map(says).collect::<Vec<_>>(), "; "), count(*free, "page"))
}
