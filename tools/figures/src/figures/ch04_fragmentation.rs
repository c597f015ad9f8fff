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

/// From a step's memory to the next one's, and from the panel of regions to that of pages.
const LINE: f64 = 56.0;
const BELOW: f64 = 24.0 + 3.0 * LINE + 14.0;

/// The same sequences in both memories, each named by its tokens.
struct Memories {
    regions: Regions,
    pool: PagePool,
    in_regions: Vec<(usize, Range<usize>)>,
    in_pages: Vec<(usize, Vec<PageId>)>,
}

impl Memories {
    /// Returns how many pages the sequence gets.
    fn add(&mut self, tokens: usize) -> Result<usize> {
        let pages = self.pool.alloc_n(tokens.div_ceil(PAGE_SIZE))?;
        let n = pages.len();
        self.in_pages.push((tokens, pages));
        Ok(n)
    }

    /// Draws both memories, regions above pages. `gaps`: what a gap between regions is.
    fn draw(&self, figure: &mut Figure, says: String, titles: [String; 2], gaps: Kind) -> Result<()> {
        let gaps = self.regions.gaps().into_iter().map(|gap| (gaps, String::new(), gap));
        let regions = self.in_regions.iter().map(|(tokens, region)| taken(*tokens, region.clone()));
        let mut owners = [None; PAGES];
        for (tokens, pages) in &self.in_pages {
            pages.iter().for_each(|page| owners[page.index()] = Some(*tokens));
        }
        let (without, free) = (owners.iter().filter(|owner| owner.is_none()).count(), self.pool.n_free());
        ensure!(without == free, "{without} pages have no owner, {free} are free");
        let mut first = 0;
        let pages = owners.chunk_by(|a, b| a == b).map(|run| {
            let place = first..first + run.len();
            first = place.end;
            run[0].map_or((Kind::Free, String::new(), place.clone()), |tokens| taken(tokens, place))
        });
        let mut pages: Vec<Piece> = pages.collect();
        pages.sort_by_key(|(kind, ..)| *kind != Kind::Free);
        let y = 24.0 + figure.steps.len() as f64 * LINE;
        figure.step(says, |svg| {
            svg.text(0.0, y + 14.0, Anchor::Start, &titles[0]);
            draw_memory(svg, y + 20.0, 1.0, gaps.chain(regions));
            svg.text(0.0, BELOW + y + 14.0, Anchor::Start, &titles[1]);
            draw_memory(svg, BELOW + y + 20.0, PAGE_SIZE as f64, pages);
        });
        Ok(())
    }
}

/// What lies in one place, what it is called, and its slots or pages.
type Piece = (Kind, String, Range<usize>);

fn taken(tokens: usize, place: Range<usize>) -> Piece {
    (if tokens == ASKED { Kind::New } else { Kind::Reused }, format!("sequence-{tokens}"), place)
}

const LEGEND: [(Kind, &str); 4] =
    [(Kind::New, "taken now"), (Kind::Reused, "taken"), (Kind::Free, "free"), (Kind::Wasted, "too short")];

pub fn figure() -> Result<Figure> {
    let mut figure = Figure::default();
    figure.svg.heading(&format!("A region for each sequence: {} slots", grouped(SLOTS as u64)), "");
    let same = format!("The same in {PAGES} pages of {PAGE_SIZE} slots");
    figure.svg.bold(0.0, BELOW + 16.0, Anchor::Start, &same);
    let (regions, pool) = (Regions::new(SLOTS), PagePool::new(PAGES)?);
    let mut memories = Memories { regions, pool, in_regions: Vec::new(), in_pages: Vec::new() };
    let mut pages_of = Vec::new();
    for tokens in SEQUENCES {
        memories.in_regions.push((tokens, memories.regions.reserve(tokens)?));
        pages_of.push(memories.add(tokens)?);
    }
    let (all, pages_of) = (listed(&SEQUENCES), listed(&pages_of));
    let (slots, pages) = (memories.regions.free(), memories.pool.n_free());
    let says = format!(
        "Sequences of {all} tokens take regions of that many slots, or {pages_of} pages. {slots} slots or {pages} pages are left."
    );
    let titles = [format!("sequences of {all}: {slots} free"), format!("{pages_of} pages: {pages} free")];
    memories.draw(&mut figure, says, titles, Kind::Free)?;

    let (_, region) = memories.in_regions.remove(0);
    ensure!(memories.regions.release(&region), "the region was not taken");
    let (_, pages_back) = memories.in_pages.remove(0);
    pages_back.into_iter().try_for_each(|page| memories.pool.free(page))?;
    let gaps = joined(&memories.regions.gaps().iter().map(Range::len).collect::<Vec<_>>(), " and ");
    let (slots, free) = (memories.regions.free(), memories.pool.n_free());
    let ended = SEQUENCES[0];
    let says = format!(
        "The sequence of {ended} ends. The free slots are in gaps of {gaps}, {slots} in all. Free pages: {free}."
    );
    let back = format!("{} pages come back: {free} free", free - pages);
    memories.draw(&mut figure, says, [format!("the sequence of {ended} ends: {slots} free"), back], Kind::Free)?;

    let refused = memories.regions.reserve(ASKED).err().context("the region was not refused")?;
    let NoGap { free: slots, longest_gap: longest, .. } = refused;
    let needed = memories.add(ASKED)?;
    let left = memories.pool.n_free();
    let says = format!(
        "A sequence of {ASKED} tokens comes. No region can be reserved for it: {slots} slots are free, but the longest gap has \
         {longest}. <code>alloc_n({needed})</code> takes pages in two places; {left} are left."
    );
    let titles = [
        format!("{ASKED} asked for, {slots} free: refused, longest gap {longest}"),
        format!("{needed} pages asked for: taken, {left} free"),
    ];
    memories.draw(&mut figure, says, titles, Kind::Wasted)?;
    figure.svg.y = 2.0 * BELOW;
    figure.svg.legend(&LEGEND);
    figure.label = format!(
        "Two panels of three bars, to scale. Above, {} slots with one region for each sequence: in the end gaps of {gaps} slots are \
         free. Below, the same memory as {PAGES} pages, and the pages of one sequence in two places.",
        grouped(SLOTS as u64),
    );
    figure.caption = format!(
        "<strong>Memory can be free and of no use.</strong> {slots} slots are free, but no gap is longer than {longest}, so a \
         sequence of {ASKED} tokens has no place. In pages of {PAGE_SIZE} it needs {needed}, wherever they lie: {free} are free. \
         Recorded from <code>Regions</code> and <code>PagePool</code>."
    );
    Ok(figure)
}

/// Pieces and gaps, to scale. `slots`: in one unit of the memory.
fn draw_memory(svg: &mut Svg, y: f64, slots: f64, pieces: impl IntoIterator<Item = Piece>) {
    let scale = (WIDTH - 4.0) / SLOTS as f64 * slots;
    for (kind, key, Range { start, end }) in pieces {
        let (x, width) = (2.0 + start as f64 * scale, (end - start) as f64 * scale - 2.0);
        // No number fits into a narrow piece.
        let word = if width < 14.0 { String::new() } else { grouped((end - start) as u64) };
        svg.cell(Area { x, y, width, height: CELL - 2.0 }, &cell(kind, word).key(key));
    }
    if slots > 1.0 {
        let ticks: String =
            (0..=PAGES).map(|page| format!("M{} {}v4", rounded(1.0 + page as f64 * scale), y + CELL - 2.0)).collect();
        svg.raw(&format!(
            "<path d=\"{ticks}\" fill=\"none\" stroke=\"var(--pbp-line, #5f6672)\" stroke-width=\"0.7\"/>"
        ));
    }
}
