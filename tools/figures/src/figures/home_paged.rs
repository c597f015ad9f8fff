//! The first page: two stories that are generated together, and the pages of their caches.

use anyhow::{Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch05_page_table::Slot;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::decode::Limits;
use page_by_page::decode::sampler::Sampler;
use page_by_page::model::tokenizer::TextStream;
use page_by_page::model::{LogitRows, Model};

use super::Figure;
use crate::layout::Grid;
use crate::models::{STORYTELLER, model, sampler, tokenizer};
use crate::svg::{Anchor, Area, Kind, Svg, WIDTH, cell, rounded, text_width};
use crate::words::{count, escaped, joined, listed, page_numbers, pages};

const PAGE_SIZE: usize = 4;
const PAGES: usize = 12;
/// Steps of the model. In each, every story that has begun computes its new tokens.
const STEPS: usize = 13;
/// The name of a story, its prompt, its seed, and the step that computes the prompt. The seed decides how a story goes on; the
/// first is the one that `generate` uses.
const STORIES: [(char, &str, u64, usize); 2] =
    [('a', "Once upon a time", 23, 0), ('b', "There was once a tailor", 17, 1)];

struct Story<'t> {
    name: char,
    seed: u64,
    begins: usize,
    n_prompt: usize,
    cache: PagedCache,
    sampler: Sampler,
    tokens: Vec<u32>,
    stream: TextStream<'t>,
    /// Of the tokens that are computed.
    rows: Vec<Row>,
}

struct Row {
    step: usize,
    /// What the token reads. The one at the start of a sequence has no letters.
    text: String,
    at: Slot,
}

/// A step of the model: one pass for all stories that have begun.
fn compute(step: usize, model: &Model, stories: &mut [Story]) -> Result<()> {
    let mut running: Vec<&mut Story> = stories.iter_mut().filter(|story| story.begins <= step).collect();
    let mut batch = Vec::new();
    for story in &mut running {
        let held = story.cache.len();
        batch.push(model.chunk(&story.tokens[held..], Some(&mut story.cache), LogitRows::Newest(1))?);
    }
    let logits = model.forward(batch)?;
    for (story, logits) in running.into_iter().zip(logits.chunks_exact(model.config().vocab_size)) {
        for position in story.rows.len()..story.cache.len() {
            let (text, at) = (story.stream.push(story.tokens[position])?, story.cache.table().locate(position)?);
            story.rows.push(Row { step, text, at });
        }
        story.tokens.push(story.sampler.pick(logits));
    }
    Ok(())
}

impl Story<'_> {
    /// Fails unless this story is the one that is generated without a cache, alone.
    fn is_the_same_alone(&self, model: &Model) -> Result<()> {
        let (prompt, output) = self.tokens.split_at(self.n_prompt);
        let limits = Limits { max_new_tokens: output.len(), end_of_text: &[] };
        let mut sampler = sampler(self.seed);
        let mut pick = |row: &[f32]| sampler.pick(row);
        let alone = generate(&mut Recompute::new(model), prompt, limits, &mut pick, &mut |_| {})?;
        ensure!(output == alone, "story {} differs when it is generated alone", self.name);
        Ok(())
    }

    fn of_step(&self, step: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.step == step)
    }

    /// The pages whose first slot is filled in this step.
    fn taken(&self, step: usize) -> Vec<u32> {
        self.of_step(step).filter(|row| row.at.slot == 0).map(|row| row.at.page.0).collect()
    }

    fn pages(&self) -> Vec<u32> {
        page_numbers(self.cache.table().pages())
    }

    /// What a step computes; HTML.
    fn step_text(&self, step: usize) -> String {
        let (name, new) = (self.name, self.taken(step));
        if step == self.begins {
            let tokens = count(self.of_step(step).count(), "token");
            return format!("{name} computes its prompt: {tokens} in {}", pages(&new));
        }
        let says = |Row { text, at, .. }: &Row| {
            let taken = if new.contains(&at.page.0) { ", just taken" } else { "" };
            format!("\u{201c}{}\u{201d} in page {}{taken}", escaped(text.trim_start()), at.page.0)
        };
        format!("{name}: {}", joined(&self.of_step(step).map(says).collect::<Vec<_>>(), ", "))
    }

    fn says(&self) -> String {
        let text: String = self.rows.iter().map(|row| row.text.as_str()).collect();
        format!("\u{201c}{}\u{201d}, in {}", text.trim(), pages(&self.pages()))
    }

    /// The left edge and the line of each token. Lines break before a word.
    fn places(&self) -> Vec<(f64, usize)> {
        let (mut x, mut line) = (0.0, 0);
        let mut places = Vec::new();
        for (index, Row { text, .. }) in self.rows.iter().enumerate() {
            let pieces = self.rows[index + 1..].iter().take_while(|next| !next.text.starts_with(' '));
            let word = text_width(text) + pieces.map(|next| text_width(&next.text)).sum::<f64>();
            if text.starts_with(' ') && x + word > WIDTH {
                (x, line) = (-text_width(" "), line + 1);
            }
            places.push((x, line));
            x += text_width(text);
        }
        places
    }

    fn height(&self) -> f64 {
        self.places().last().map_or(0.0, |(_, line)| 20.0 + (line + 1) as f64 * LINE)
    }

    /// Story b leans, wherever it is.
    fn style(&self) -> &'static str {
        if self.name == STORIES[1].0 { " font-style=\"italic\"" } else { "" }
    }
}

const START: &str = "(start)";
const LINE: f64 = 20.0;
const SLAB_HEIGHT: f64 = 24.0 + PAGES as f64 * 27.0;
const LEGEND: [(Kind, &str); 4] = [
    (Kind::New, "written now"),
    (Kind::Reused, "written before"),
    (Kind::Wasted, "taken, empty"),
    (Kind::Free, "free page"),
];

pub fn figure() -> Result<Figure> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    let slab = PageSlab::new(model.config().kv_layout(), PAGE_SIZE, PAGES)?;
    let mut stories = Vec::new();
    for (name, prompt, seed, begins) in STORIES {
        let (cache, tokens) = (PagedCache::new(&slab)?, tokenizer.encode(prompt)?);
        let (n_prompt, sampler, stream) = (tokens.len(), sampler(seed), tokenizer.stream());
        stories.push(Story { name, seed, begins, n_prompt, cache, sampler, tokens, stream, rows: Vec::new() });
    }
    let (mut steps, mut free) = (Vec::new(), PAGES);
    for step in 0..STEPS {
        compute(step, &model, &mut stories)?;
        free = slab.borrow().pool().n_free();
        let owned: usize = stories.iter().map(|story| story.pages().len()).sum();
        ensure!(free == PAGES - owned, "{free} pages are free, {owned} have an owner");
        let running = stories.iter().filter(|story| story.begins <= step);
        let says: Vec<String> = running.map(|story| story.step_text(step)).collect();
        steps.push(format!("{}. {} free.", joined(&says, "; "), count(free, "page")));
    }
    stories.iter().try_for_each(|story| story.is_the_same_alone(&model))?;
    Ok(Figure {
        svg: draw(&stories),
        label: format!(
            "Two stories that are generated together: {}. The pool has {PAGES} pages of {PAGE_SIZE} slots, and {free} are free. The \
             last page of each story is not full.",
            listed(&stories.iter().map(Story::says).collect::<Vec<_>>()),
        ),
        caption: format!(
            "<strong>Two stories share one pool of pages.</strong> The <code>{STORYTELLER}</code> model generates both together, \
             with one <code>PagedCache</code> each over one slab of {PAGES} pages of {PAGE_SIZE} slots. A cell is a token, with its \
             keys and values in all layers; {START} is the token before every sequence. Recorded from the running code (seeds {}), \
             and checked: computed without any cache, each story is the same.",
            listed(&STORIES.map(|(_, _, seed, _)| seed))
        ),
        steps,
        alone: Some(draw_alone(&stories)),
        ..Figure::default()
    })
}

/// Each step of the stories, one below the other, and of their pages. Where they stand depends on how long the stories get.
fn draw(stories: &[Story]) -> Svg {
    let mut svg = Svg::default();
    svg.without_bands();
    let mut tops = Vec::new();
    for story in stories {
        tops.push(svg.y);
        draw_head(&mut svg, story);
        svg.y += story.height() + 8.0;
    }
    let slab = svg.y;
    draw_slab(&mut svg);
    for step in 0..STEPS {
        svg.step(|svg| {
            for (story, top) in stories.iter().zip(&tops) {
                svg.y = *top;
                draw_words(svg, story, step);
            }
            svg.y = slab;
            draw_rows(svg, stories, step);
        });
    }
    // What the pointer finds of each page, over all that is drawn in it.
    (0..PAGES).for_each(|page| svg.mark(page_area(&svg, page), &format!("page-{page}")));
    svg.y += SLAB_HEIGHT;
    svg.legend(&LEGEND);
    svg
}

/// The last frame as a picture of its own: stories on the left, pages on the right.
fn draw_alone(stories: &[Story]) -> Svg {
    const MARGIN: f64 = 16.0;
    let mut svg = Svg::with_width(2.0 * WIDTH + 40.0 + 2.0 * MARGIN);
    (svg.left, svg.y) = (MARGIN, MARGIN + 30.0);
    for story in stories {
        draw_head(&mut svg, story);
        (0..STEPS).for_each(|step| draw_words(&mut svg, story, step));
        svg.y += story.height() + 22.0;
    }
    svg.legend(&LEGEND);
    (svg.left, svg.y) = (MARGIN + WIDTH + 40.0, MARGIN);
    draw_slab(&mut svg);
    (0..STEPS).for_each(|step| draw_rows(&mut svg, stories, step));
    svg.y += SLAB_HEIGHT + MARGIN;
    svg
}

fn draw_head(svg: &mut Svg, story: &Story) {
    svg.bold(svg.left, svg.y + 15.0, Anchor::Start, &format!("Story {}", story.name));
    svg.text(svg.left + 138.0, svg.y + 15.0, Anchor::End, "in pages");
}

/// What a step adds to a story: its words, and the pages that it takes.
fn draw_words(svg: &mut Svg, story: &Story, step: usize) {
    for (row, (left, line)) in story.rows.iter().zip(story.places()) {
        let word = row.text.trim_start();
        if row.step == step && !word.is_empty() {
            let left = svg.left + left + text_width(&row.text) - text_width(word);
            svg.fitted(left, svg.y + 35.0 + line as f64 * LINE, story.style(), word);
        }
    }
    for page in story.taken(step) {
        let index = story.pages().iter().position(|number| *number == page).unwrap_or_default();
        svg.text(svg.left + 163.0 + index as f64 * 26.0, svg.y + 15.0, Anchor::Middle, &page.to_string());
    }
}

fn slots(svg: &Svg) -> Grid {
    Grid::between(svg.left + 42.0, svg.left + WIDTH, PAGE_SIZE, PAGE_SIZE)
}

fn top(svg: &Svg, page: usize) -> f64 {
    svg.y + 24.0 + page as f64 * 27.0
}

fn slot(svg: &Svg, page: usize, slot: usize) -> Area {
    Area { height: 24.0, ..slots(svg).cell(slot, top(svg, page)) }
}

fn page_area(svg: &Svg, page: usize) -> Area {
    Area { height: 24.0, ..slots(svg).group(0, top(svg, page)) }
}

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
fn draw_rows(svg: &mut Svg, stories: &[Story], step: usize) {
    for story in stories {
        let style = story.style();
        for page in story.taken(step) {
            let page = page as usize;
            let at = slot(svg, page, 0).baseline();
            let bold = format!(" font-weight=\"700\"{style}");
            svg.words(svg.left + 27.0, at, Anchor::Start, &bold, &story.name.to_string());
            let is_new = |index| story.of_step(step).any(|row| (row.at.page.index(), row.at.slot) == (page, index));
            for index in (0..PAGE_SIZE).filter(|index| !is_new(*index)) {
                svg.cell(slot(svg, page, index).shrunk(0.25), &cell(Kind::Wasted, ""));
            }
        }
        // A new cell is drawn within the border of the one that covers it in the next step.
        for (kind, at, shrunk) in [(Kind::Reused, step.checked_sub(1), 0.0), (Kind::New, Some(step), 0.75)] {
            for Row { text, at, .. } in at.into_iter().flat_map(|at| story.of_step(at)) {
                let word = if text.is_empty() { START } else { text.trim_start() };
                svg.cell(slot(svg, at.page.index(), at.slot).shrunk(shrunk), &cell(kind, word).styled(style));
            }
        }
    }
}
