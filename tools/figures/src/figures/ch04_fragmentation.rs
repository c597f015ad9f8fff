//! Chapter 4: free memory in pieces, as regions and as pages.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use page_by_page::cache::PageId;
use page_by_page::cache::regions::{NoGap, Regions};
use page_by_page::chapters::ch04_page_pool::PagePool;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::svg::{Anchor, Area, Kind, Svg, grouped, listed, rounded};

const SLOTS: usize = 2000;
const PAGE_SIZE: usize = 16;
const TEXTS: [usize; 3] = [200, 1000, 150];
/// Asked for when the first text has ended.
const ASKED: usize = 800;

#[derive(Serialize)]
pub struct Trace {
    slots: usize,
    page_size: usize,
    n_pages: usize,
    frames: Vec<Frame>,
}

/// The same step in both memories.
#[derive(Serialize)]
struct Frame {
    /// Tokens of the texts that ask for memory.
    asked: Vec<usize>,
    /// Tokens of the text that ends.
    ended: Option<usize>,
    regions: Memory,
    /// The refusal of a region.
    refused: Option<Refusal>,
    pages: Memory,
}

/// In slots, or in pages.
#[derive(Serialize)]
struct Memory {
    /// What the texts have, from the first slot or page to the last.
    taken: Vec<Piece>,
    /// First and one past the last.
    gaps: Vec<(usize, usize)>,
    free: usize,
}

/// A text has one region, but may have pages in several places.
#[derive(Clone, Serialize)]
struct Piece {
    tokens: usize,
    start: usize,
    end: usize,
    new: bool,
}

#[derive(Serialize)]
struct Refusal {
    needed: usize,
    free: usize,
    longest_gap: usize,
}

/// A text, its region and its pages.
struct Text {
    tokens: usize,
    region: Option<Range<usize>>,
    /// Came when others were there.
    new: bool,
    pages: Vec<PageId>,
}

pub fn record() -> Result<Trace> {
    let mut regions = Regions::new(SLOTS);
    let mut pool = PagePool::new(SLOTS / PAGE_SIZE)?;
    let mut texts = Vec::new();
    for tokens in TEXTS {
        let region = Some(regions.reserve(tokens)?);
        texts.push(Text { tokens, region, new: false, pages: pool.alloc_n(tokens.div_ceil(PAGE_SIZE))? });
    }
    let all_came = frame(&regions, &pool, &texts, TEXTS.to_vec(), None)?;

    let first = texts.remove(0);
    ensure!(first.region.is_some_and(|region| regions.release(&region)), "the region was not taken");
    for page in first.pages {
        pool.free(page)?;
    }
    let first_ended = frame(&regions, &pool, &texts, vec![], Some(first.tokens))?;

    let NoGap { needed, free, longest_gap } = regions.reserve(ASKED).err().context("the region was not refused")?;
    texts.push(Text { tokens: ASKED, region: None, new: true, pages: pool.alloc_n(ASKED.div_ceil(PAGE_SIZE))? });
    let mut asked = frame(&regions, &pool, &texts, vec![ASKED], None)?;
    asked.refused = Some(Refusal { needed, free, longest_gap });

    Ok(Trace {
        slots: SLOTS,
        page_size: PAGE_SIZE,
        n_pages: pool.n_pages(),
        frames: vec![all_came, first_ended, asked],
    })
}

fn frame(regions: &Regions, pool: &PagePool, texts: &[Text], asked: Vec<usize>, ended: Option<usize>) -> Result<Frame> {
    let piece = |text: &Text, range: Range<usize>| Piece {
        tokens: text.tokens,
        start: range.start,
        end: range.end,
        new: text.new,
    };
    let taken = texts.iter().filter_map(|text| text.region.clone().map(|region| piece(text, region))).collect();
    let gaps = regions.gaps().into_iter().map(|gap| (gap.start, gap.end)).collect();
    let in_regions = Memory { taken, gaps, free: regions.free() };

    let mut taken = Vec::new();
    for text in texts {
        let mut pages: Vec<usize> = text.pages.iter().map(|page| page.index()).collect();
        pages.sort_unstable();
        taken.extend(runs(&pages).into_iter().map(|run| piece(text, run)));
    }
    taken.sort_by_key(|piece: &Piece| piece.start);
    let mut free = Vec::new();
    for page in 0..pool.n_pages() {
        let held = taken.iter().any(|piece| (piece.start..piece.end).contains(&page));
        let owners = pool.owners(PageId(page as u32))?;
        ensure!(owners == u32::from(held), "page {page} has {owners} owners");
        if owners == 0 {
            free.push(page);
        }
    }
    ensure!(free.len() == pool.n_free(), "{} pages have no owner, {} are free", free.len(), pool.n_free());
    let gaps = runs(&free).into_iter().map(|run| (run.start, run.end)).collect();
    let in_pages = Memory { taken, gaps, free: pool.n_free() };
    Ok(Frame { asked, ended, regions: in_regions, refused: None, pages: in_pages })
}

/// Numbers that follow each other, as ranges. `numbers` rise.
fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    let run = |run: &[usize]| run[0]..run[run.len() - 1] + 1;
    numbers.chunk_by(|a, b| a + 1 == *b).map(run).collect()
}

const LEFT: f64 = 2.0;
const WIDTH: f64 = 356.0;
const LINE: f64 = 58.0;
const BAR: f64 = 26.0;
const TITLE: f64 = 24.0;
/// No number fits into less.
const NARROW: f64 = 14.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { slots, page_size, n_pages, frames } = trace;
    let panel = TITLE + frames.len() as f64 * LINE;
    let pages_top = panel + 16.0;
    let bottom = pages_top + panel;
    let mut svg = Svg::new(bottom + 30.0);
    svg.bold(0.0, 15.0, Anchor::Start, &format!("A region for each text: {} slots", grouped(*slots as u64)));
    svg.bold(0.0, pages_top + 15.0, Anchor::Start, &format!("The same in {n_pages} pages of {page_size} slots"));
    for (step, frame) in frames.iter().enumerate() {
        let y = TITLE + step as f64 * LINE;
        svg.step(step, |svg| {
            svg.text(0.0, y + 14.0, Anchor::Start, &regions_text(frame));
            let gap = if frame.refused.is_some() { Gap::TooShort } else { Gap::Free };
            draw_memory(svg, y + 20.0, *slots as f64 / WIDTH, &frame.regions, gap);
            svg.text(0.0, pages_top + y + 14.0, Anchor::Start, &pages_text(frames, step));
            // The pages fill all but the slots that are left over.
            let scale = *slots as f64 / WIDTH / *page_size as f64;
            draw_memory(svg, pages_top + y + 20.0, scale, &frame.pages, Gap::Free);
            draw_ruler(svg, pages_top + y + 20.0 + BAR, *n_pages, scale);
        });
    }
    svg.legend(Kind::New, 0.0, bottom + 10.0, "taken now");
    svg.legend(Kind::Reused, 104.0, bottom + 10.0, "taken");
    svg.legend_free(180.0, bottom + 10.0, "free");
    svg.legend(Kind::Wasted, 246.0, bottom + 10.0, "too short");

    let (first, ended, last) = (&frames[0], &frames[1], &frames[frames.len() - 1]);
    let asked = listed(&last.asked);
    let refused = last.refused.as_ref().map(|refused| (refused.free, refused.longest_gap)).unwrap_or_default();
    let gaps: Vec<usize> = ended.regions.gaps.iter().map(|(start, end)| end - start).collect();
    let needed = new_pages(last);
    Drawing {
        svg,
        label: format!(
            "Two panels of three bars, to scale. Above, {} slots with one region for each text: {} slots are taken, \
             the first region is released, and gaps of {} slots are free; a request for {asked} is refused. Below, \
             the same memory as {n_pages} pages of {page_size}: the texts take {} pages, {} are free when the first \
             has ended, and {needed} pages for {asked} tokens are taken in two places.",
            grouped(*slots as u64),
            listed(&grouped_all(&first.asked)),
            listed(&gaps),
            listed(&pages_of(first)),
            ended.pages.free,
        ),
        caption: format!(
            "{} slots are free, but no gap is longer than {}, so a text of {asked} tokens has no place. In pages of \
             {page_size} it needs {needed}, and it does not matter where they lie: {} are free. Recorded from the \
             running code.",
            refused.0, refused.1, ended.pages.free
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// What a gap is to the text that asks.
#[derive(Clone, Copy, PartialEq)]
enum Gap {
    Free,
    TooShort,
}

fn draw_memory(svg: &mut Svg, y: f64, scale: f64, memory: &Memory, gap: Gap) {
    let area = |start: usize, end: usize| Area {
        x: rounded(LEFT + start as f64 / scale),
        y,
        width: rounded((end - start) as f64 / scale - 2.0),
        height: BAR,
    };
    for &(start, end) in &memory.gaps {
        let area = area(start, end);
        let word = if area.width < NARROW { String::new() } else { grouped((end - start) as u64) };
        match gap {
            Gap::Free => svg.free(area, "", &word),
            Gap::TooShort => svg.cell(Kind::Wasted, area, "", &word),
        }
    }
    for Piece { tokens, start, end, new } in &memory.taken {
        let kind = if *new { Kind::New } else { Kind::Reused };
        svg.cell(kind, area(*start, *end), &format!("text-{tokens}"), &grouped((end - start) as u64));
    }
}

/// A tick for each page.
fn draw_ruler(svg: &mut Svg, y: f64, n_pages: usize, scale: f64) {
    let ticks: String =
        (0..=n_pages).map(|page| format!("M{} {y}v4", rounded(LEFT - 1.0 + page as f64 / scale))).collect();
    svg.raw(&format!("<path d=\"{ticks}\" fill=\"none\" stroke=\"var(--pbp-line, #5f6672)\" stroke-width=\"0.7\"/>"));
}

fn grouped_all(numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|number| grouped(*number as u64)).collect()
}

fn new_pages(frame: &Frame) -> usize {
    frame.pages.taken.iter().filter(|piece| piece.new).map(|piece| piece.end - piece.start).sum()
}

/// Pages of each text, in the order of their places.
fn pages_of(frame: &Frame) -> Vec<usize> {
    frame.pages.taken.iter().map(|piece| piece.end - piece.start).collect()
}

fn regions_text(frame: &Frame) -> String {
    let free = grouped(frame.regions.free as u64);
    match (&frame.refused, frame.ended) {
        (Some(Refusal { needed, free, longest_gap }), _) => {
            format!("{needed} asked for, {free} free: refused, longest gap {longest_gap}")
        }
        (None, Some(tokens)) => format!("the text of {tokens} ends: {free} free"),
        (None, None) => format!("texts of {}: {free} free", listed(&grouped_all(&frame.asked))),
    }
}

fn pages_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let free = frame.pages.free;
    match frame.ended {
        Some(_) => format!("{} pages come back: {free} free", free - frames[step - 1].pages.free),
        None if step == 0 => format!("{} pages: {free} free", listed(&pages_of(frame))),
        None => format!("{} pages asked for: taken, {free} free", new_pages(frame)),
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let pages = new_pages(frame);
    let free = frame.pages.free;
    match (&frame.refused, frame.ended) {
        (Some(Refusal { needed, free: slots, longest_gap }), _) => format!(
            "A text of {needed} tokens comes. No region can be reserved for it: {slots} slots are free, but the longest \
             gap has {longest_gap}. <code>alloc_n({pages})</code> takes pages in two places; {free} are left."
        ),
        (None, Some(tokens)) => {
            let gaps: Vec<String> =
                frame.regions.gaps.iter().map(|(start, end)| format!("{start} to {}", end - 1)).collect();
            format!(
                "The text of {tokens} ends. Free slots: {}, {} in all. Free pages: {free}.",
                listed(&gaps),
                frame.regions.free
            )
        }
        (None, None) => format!(
            "Texts of {} tokens take regions of that many slots, or {} pages. {} slots or {free} pages are left.",
            listed(&grouped_all(&frame.asked)),
            listed(&pages_of(frame)),
            frame.regions.free
        ),
    }
}
