//! Chapter 4: free memory in pieces, as regions and as pages.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use page_by_page::cache::PageId;
use page_by_page::cache::first_fit::{NoGap, Regions};
use page_by_page::chapters::ch04_page_pool::PagePool;

use super::Figure;
use crate::layout::CELL;
use crate::svg::{Anchor, Area, Kind, Svg, WIDTH, cell, rounded};
use crate::words::{grouped, joined, listed};

const SLOTS: usize = 2000;
const PAGE_SIZE: usize = 16;
const PAGES: usize = SLOTS / PAGE_SIZE;
const SEQUENCES: [usize; 3] = [200, 1000, 150];
/// Asked for when the first sequence has ended.
const ASKED: usize = 800;

/// The same step in both memories.
struct Frame {
    regions: Memory,
    /// The refusal of a region.
    refused: Option<Refusal>,
    pages: Memory,
}

/// In slots, or in pages.
struct Memory {
    /// What the sequences have, from the first slot or page to the last.
    taken: Vec<Piece>,
    /// First and one past the last.
    gaps: Vec<Range<usize>>,
    free: usize,
}

/// A sequence has one region, but may have pages in several places.
struct Piece {
    tokens: usize,
    place: Range<usize>,
}

struct Refusal {
    free: usize,
    longest_gap: usize,
}

/// A sequence in both memories.
struct Sequence {
    tokens: usize,
    region: Option<Range<usize>>,
    pages: Vec<PageId>,
}

fn record() -> Result<Vec<Frame>> {
    let (mut regions, mut pool) = (Regions::new(SLOTS), PagePool::new(PAGES)?);
    let mut sequences = Vec::new();
    for tokens in SEQUENCES {
        let region = Some(regions.reserve(tokens)?);
        sequences.push(Sequence { tokens, region, pages: pool.alloc_n(tokens.div_ceil(PAGE_SIZE))? });
    }
    let all_came = frame(&regions, &pool, &sequences)?;

    let first = sequences.remove(0);
    ensure!(first.region.is_some_and(|region| regions.release(&region)), "the region was not taken");
    for page in first.pages {
        pool.free(page)?;
    }
    let first_ended = frame(&regions, &pool, &sequences)?;

    let NoGap { free, longest_gap, .. } = regions.reserve(ASKED).err().context("the region was not refused")?;
    sequences.push(Sequence { tokens: ASKED, region: None, pages: pool.alloc_n(ASKED.div_ceil(PAGE_SIZE))? });
    let refused = Some(Refusal { free, longest_gap });
    let asked = Frame { refused, ..frame(&regions, &pool, &sequences)? };
    Ok(vec![all_came, first_ended, asked])
}

fn frame(regions: &Regions, pool: &PagePool, sequences: &[Sequence]) -> Result<Frame> {
    let (mut in_regions, mut in_pages) = (Vec::new(), Vec::new());
    for Sequence { tokens, region, pages } in sequences {
        in_regions.extend(region.clone().map(|place| Piece { tokens: *tokens, place }));
        let mut pages: Vec<usize> = pages.iter().map(|page| page.index()).collect();
        pages.sort_unstable();
        in_pages.extend(runs(&pages).into_iter().map(|place| Piece { tokens: *tokens, place }));
    }
    in_pages.sort_by_key(|piece: &Piece| piece.place.start);
    let owners: Vec<u32> = (0..PAGES).map(|page| pool.owners(PageId(page as u32))).collect::<Result<_, _>>()?;
    let free: Vec<usize> = (0..PAGES).filter(|page| owners[*page] == 0).collect();
    ensure!(free.len() == pool.n_free(), "{} pages have no owner, {} are free", free.len(), pool.n_free());
    Ok(Frame {
        regions: Memory { taken: in_regions, gaps: regions.gaps(), free: regions.free() },
        refused: None,
        pages: Memory { taken: in_pages, gaps: runs(&free), free: free.len() },
    })
}

/// Numbers that follow each other, as ranges. `numbers` rise.
fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect()
}

impl Memory {
    /// What a sequence has, in slots or pages.
    fn of(&self, tokens: usize) -> usize {
        self.taken.iter().filter(|piece| piece.tokens == tokens).map(|piece| piece.place.len()).sum()
    }
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    const LINE: f64 = 56.0;
    const BELOW: f64 = 24.0 + 3.0 * LINE + 14.0;
    let pages_of = SEQUENCES.map(|tokens| frames[0].pages.of(tokens));
    let [needed, free_before, free_after] = [frames[2].pages.of(ASKED), frames[1].pages.free, frames[2].pages.free];
    let (slots, longest) = refused(frames);
    let region_titles = region_titles(frames);
    let page_titles = [
        format!("{} pages: {} free", listed(&pages_of), frames[0].pages.free),
        format!("{} pages come back: {free_before} free", free_before - frames[0].pages.free),
        format!("{needed} pages asked for: taken, {free_after} free"),
    ];
    let mut svg = Svg::new();
    svg.heading(&format!("A region for each sequence: {} slots", grouped(SLOTS as u64)), "");
    svg.bold(0.0, BELOW + 16.0, Anchor::Start, &format!("The same in {PAGES} pages of {PAGE_SIZE} slots"));
    for (step, frame) in frames.iter().enumerate() {
        let y = 24.0 + step as f64 * LINE;
        svg.step(|svg| {
            svg.text(0.0, y + 14.0, Anchor::Start, &region_titles[step]);
            let gaps = if frame.refused.is_some() { Kind::Wasted } else { Kind::Free };
            draw_memory(svg, y + 20.0, 1.0, &frame.regions, gaps);
            svg.text(0.0, BELOW + y + 14.0, Anchor::Start, &page_titles[step]);
            draw_memory(svg, BELOW + y + 20.0, PAGE_SIZE as f64, &frame.pages, Kind::Free);
        });
    }
    svg.y = 2.0 * BELOW;
    svg.legend(&[(Kind::New, "taken now"), (Kind::Reused, "taken"), (Kind::Free, "free"), (Kind::Wasted, "too short")]);
    let gaps = joined(&frames[1].regions.gaps.iter().map(|gap| gap.len()).collect::<Vec<_>>(), " and ");
    Ok(Figure {
        svg,
        label: format!(
            "Two panels of three bars, to scale. Above, {} slots with one region for each sequence: in the end gaps of {gaps} \
             slots are free. Below, the same memory as {PAGES} pages, and the pages of one sequence in two places.",
            grouped(SLOTS as u64),
        ),
        caption: format!(
            "<strong>Memory can be free and of no use.</strong> {slots} slots are free, but no gap is longer than {longest}, so a \
             sequence of {ASKED} tokens has no place. In pages of {PAGE_SIZE} it needs {needed}, wherever they lie: {free_before} \
             are free. Recorded from <code>Regions</code> and <code>PagePool</code>."
        ),
        steps: vec![
            format!(
                "Sequences of {} tokens take regions of that many slots, or {} pages. {} slots or {} pages are left.",
                listed(&SEQUENCES),
                listed(&pages_of),
                frames[0].regions.free,
                frames[0].pages.free
            ),
            format!(
                "The sequence of {} ends. The free slots are in gaps of {gaps}, {} in all. Free pages: {free_before}.",
                SEQUENCES[0], frames[1].regions.free
            ),
            format!(
                "A sequence of {ASKED} tokens comes. No region can be reserved for it: {slots} slots are free, but the longest gap \
                 has {longest}. <code>alloc_n({needed})</code> takes pages in two places; {free_after} are left."
            ),
        ],
        ..Figure::default()
    })
}

/// Free slots, and those of the longest gap, when no region could be reserved.
fn refused(frames: &[Frame]) -> (usize, usize) {
    frames[2].refused.as_ref().map(|refused| (refused.free, refused.longest_gap)).unwrap_or_default()
}

fn region_titles(frames: &[Frame]) -> [String; 3] {
    let (slots, longest) = refused(frames);
    [
        format!("sequences of {}: {} free", listed(&SEQUENCES), frames[0].regions.free),
        format!("the sequence of {} ends: {} free", SEQUENCES[0], frames[1].regions.free),
        format!("{ASKED} asked for, {slots} free: refused, longest gap {longest}"),
    ]
}

/// Pieces and gaps, to scale. `slots`: in one unit of the memory.
fn draw_memory(svg: &mut Svg, y: f64, slots: f64, memory: &Memory, gaps: Kind) {
    let scale = (WIDTH - 4.0) / SLOTS as f64 * slots;
    let mut draw = |kind, Range { start, end }: &Range<usize>, key: String| {
        let (x, width) = (2.0 + *start as f64 * scale, (end - start) as f64 * scale - 2.0);
        // No number fits into a narrow piece.
        let word = if width < 14.0 { String::new() } else { grouped((end - start) as u64) };
        svg.cell(Area { x, y, width, height: CELL - 2.0 }, &cell(kind, word).key(key));
    };
    memory.gaps.iter().for_each(|gap| draw(gaps, gap, String::new()));
    for Piece { tokens, place } in &memory.taken {
        draw(if *tokens == ASKED { Kind::New } else { Kind::Reused }, place, format!("sequence-{tokens}"));
    }
    // A tick for each page.
    if slots > 1.0 {
        let ticks: String =
            (0..=PAGES).map(|page| format!("M{} {}v4", rounded(1.0 + page as f64 * scale), y + CELL - 2.0)).collect();
        svg.raw(&format!(
            "<path d=\"{ticks}\" fill=\"none\" stroke=\"var(--pbp-line, #5f6672)\" stroke-width=\"0.7\"/>"
        ));
    }
}
