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

struct Memories {
    regions: Regions,
    pool: PagePool,
    sequences: Vec<Sequence>,
}

struct Sequence {
    tokens: usize,
    /// None if it was refused.
    region: Option<Range<usize>>,
    pages: Vec<PageId>,
}

/// What a sequence has in one place: its tokens, and the slots or the pages.
type Piece = (usize, Range<usize>);

impl Memories {
    /// Returns how many pages the sequence gets.
    fn add(&mut self, tokens: usize, region: Option<Range<usize>>) -> Result<usize> {
        let pages = self.pool.alloc_n(tokens.div_ceil(PAGE_SIZE))?;
        self.sequences.push(Sequence { tokens, region, pages });
        Ok(self.sequences[self.sequences.len() - 1].pages.len())
    }

    /// Draws both memories, regions above pages. `gaps`: what a gap between regions is.
    fn draw(&self, figure: &mut Figure, says: String, titles: [String; 2], gaps: Kind) -> Result<()> {
        let owners: Vec<u32> =
            (0..PAGES as u32).map(|page| self.pool.owners(PageId(page))).collect::<Result<_, _>>()?;
        let (free, n_free) = ((0..PAGES).filter(|page| owners[*page] == 0).collect::<Vec<_>>(), self.pool.n_free());
        ensure!(free.len() == n_free, "{} pages have no owner, {n_free} are free", free.len());
        let (mut in_regions, mut in_pages): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        for Sequence { tokens, region, pages } in &self.sequences {
            in_regions.extend(region.clone().map(|place| (*tokens, place)));
            let mut pages: Vec<usize> = pages.iter().map(|page| page.index()).collect();
            pages.sort_unstable();
            in_pages.extend(runs(&pages).into_iter().map(|place| (*tokens, place)));
        }
        in_pages.sort_by_key(|(_, place)| place.start);
        let y = 24.0 + figure.steps.len() as f64 * LINE;
        figure.step(says, |svg| {
            svg.text(0.0, y + 14.0, Anchor::Start, &titles[0]);
            draw_memory(svg, y + 20.0, 1.0, (gaps, &self.regions.gaps()), &in_regions);
            svg.text(0.0, BELOW + y + 14.0, Anchor::Start, &titles[1]);
            draw_memory(svg, BELOW + y + 20.0, PAGE_SIZE as f64, (Kind::Free, &runs(&free)), &in_pages);
        });
        Ok(())
    }
}

/// Numbers that follow each other, as ranges. `numbers` rise.
fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect()
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure::default();
    figure.svg.heading(&format!("A region for each sequence: {} slots", grouped(SLOTS as u64)), "");
    let same = format!("The same in {PAGES} pages of {PAGE_SIZE} slots");
    figure.svg.bold(0.0, BELOW + 16.0, Anchor::Start, &same);
    let mut memories = Memories { regions: Regions::new(SLOTS), pool: PagePool::new(PAGES)?, sequences: Vec::new() };
    let mut pages_of = Vec::new();
    for tokens in SEQUENCES {
        let region = memories.regions.reserve(tokens)?;
        pages_of.push(memories.add(tokens, Some(region))?);
    }
    let (all, pages_of) = (listed(&SEQUENCES), listed(&pages_of));
    let (slots, pages) = (memories.regions.free(), memories.pool.n_free());
    let says = format!(
        "Sequences of {all} tokens take regions of that many slots, or {pages_of} pages. {slots} slots or {pages} pages are left."
    );
    let titles = [format!("sequences of {all}: {slots} free"), format!("{pages_of} pages: {pages} free")];
    memories.draw(&mut figure, says, titles, Kind::Free)?;

    let first = memories.sequences.remove(0);
    ensure!(first.region.is_some_and(|region| memories.regions.release(&region)), "the region was not taken");
    first.pages.into_iter().try_for_each(|page| memories.pool.free(page))?;
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
    let needed = memories.add(ASKED, None)?;
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
    let legend = [(Kind::New, "taken now"), (Kind::Reused, "taken"), (Kind::Free, "free"), (Kind::Wasted, "too short")];
    figure.svg.legend(&legend);
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
fn draw_memory(svg: &mut Svg, y: f64, slots: f64, gaps: (Kind, &[Range<usize>]), taken: &[Piece]) {
    let scale = (WIDTH - 4.0) / SLOTS as f64 * slots;
    let mut draw = |kind, Range { start, end }: &Range<usize>, key: String| {
        let (x, width) = (2.0 + *start as f64 * scale, (end - start) as f64 * scale - 2.0);
        let word = if width < 14.0 { String::new() } else { grouped((end - start) as u64) };
        svg.cell(Area { x, y, width, height: CELL - 2.0 }, &cell(kind, word).key(key));
    };
    gaps.1.iter().for_each(|gap| draw(gaps.0, gap, String::new()));
    for (tokens, place) in taken {
        draw(if *tokens == ASKED { Kind::New } else { Kind::Reused }, place, format!("sequence-{tokens}"));
    }
    if slots > 1.0 {
        let ticks: String =
            (0..=PAGES).map(|page| format!("M{} {}v4", rounded(1.0 + page as f64 * scale), y + CELL - 2.0)).collect();
        svg.raw(&format!(
            "<path d=\"{ticks}\" fill=\"none\" stroke=\"var(--pbp-line, #5f6672)\" stroke-width=\"0.7\"/>"
        ));
    }
}
