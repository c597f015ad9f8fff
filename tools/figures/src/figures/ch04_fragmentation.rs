//! Chapter 4: free memory in pieces, as regions and as pages.

use std::ops::Range;

use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::experiments::first_fit::{FirstFit, Fragmented};

use super::prelude::*;

const SLOTS: usize = 2000;
const PAGE_SIZE: usize = 16;
const PAGES: usize = SLOTS / PAGE_SIZE;
const SEQUENCES: [usize; 3] = [200, 1000, 150];
/// Asked for by `d` when the first sequence has ended.
const ASKED: usize = 800;

/// The same sequences in both memories.
struct Memories {
    regions: FirstFit,
    pool: PagePool,
    in_regions: Vec<(char, Range<usize>)>,
    in_pages: Vec<(char, Vec<PageId>)>,
}

/// Slots or pages, and the sequence that has them.
type Piece = (Option<char>, Range<usize>);

impl Memories {
    fn region_pieces(&self) -> Vec<Piece> {
        let gaps = self.regions.gaps().into_iter().map(|gap| (None, gap));
        gaps.chain(self.in_regions.iter().map(|(name, region)| (Some(*name), region.clone()))).collect()
    }

    /// Pages of one owner that lie together.
    fn page_pieces(&self) -> Vec<Piece> {
        let owner = |page| self.in_pages.iter().find(|(_, pages)| pages.contains(&page)).map(|(name, _)| *name);
        let owners: Vec<Option<char>> = (0..PAGES as u32).map(PageId).map(owner).collect();
        let mut end = 0;
        let piece = |run: &[Option<char>]| {
            end += run.len();
            (run[0], end - run.len()..end)
        };
        owners.chunk_by(|a, b| a == b).map(piece).collect()
    }

    /// `outcome`: what became of the request for more, in both memories.
    fn draw(&self, picture: &mut Picture, outcome: [&str; 2]) {
        let [slots, pages] = [self.regions.free(), self.pool.n_free()].map(|free| format!("{free} free"));
        let memories = [
            (format!("a region for each: {} slots", grouped(SLOTS as u64)), slots, self.region_pieces(), 1),
            (format!("{PAGES} pages of {PAGE_SIZE} slots"), pages, self.page_pieces(), PAGE_SIZE),
        ];
        for ((title, free, pieces, unit), outcome) in memories.iter().zip(outcome) {
            picture.heading(title, free);
            draw_memory(picture, *unit, pieces);
            picture.text(picture.left, picture.y + 10.0, Anchor::Start, outcome);
            picture.y += 26.0;
        }
        let x = 8.0 + ASKED as f64 * (picture.width - 2.0) / SLOTS as f64;
        let when = if outcome[0].is_empty() { "is still to come" } else { "arrives in this step" };
        picture.text(x, picture.y + 19.5, Anchor::Start, when);
        draw_memory(picture, 1, &[(Some('d'), 0..ASKED)]);
    }
}

/// Pieces, to scale. `unit`: slots in what is counted; pages are cut from each other.
fn draw_memory(picture: &mut Picture, unit: usize, pieces: &[Piece]) {
    let scale = (picture.width - 2.0) / SLOTS as f64 * unit as f64;
    for (owner, Range { start, end }) in pieces {
        let (x, width) = (picture.left + 1.0 + *start as f64 * scale, (end - start) as f64 * scale - 2.0);
        let n = grouped((end - start) as u64);
        let words = owner.map_or([n.clone(), String::new()], |owner| [format!("{owner} {n}"), owner.to_string()]);
        // No number fits into a narrow piece.
        let word = words.into_iter().find(|word| text_width(word) < width - 2.0).unwrap_or_default();
        let cell: Cell = owner.map_or_else(|| free(&word), |owner| held(owner, &word));
        let area = Area { x, y: picture.y, width, height: CELL };
        picture.cell(area, cell);
        if unit > 1 {
            // Not through the word, nor through one that was there before.
            let half = text_width(&word) / 2.0 + 9.0;
            let cuts =
                (1..end - start).map(|n| x - 1.0 + n as f64 * scale).filter(|at| (at - area.middle()).abs() > half);
            let cuts = cuts.map(|at| format!("M{at:.1} {:.1}v{:.1}", area.y + 1.0, CELL - 2.0)).collect();
            picture.path(if owner.is_some() { "cut" } else { "tick" }, cuts);
        }
    }
    picture.y += CELL + 4.0;
}

pub fn figure() -> Result<Figure> {
    let (regions, pool) = (FirstFit::new(SLOTS), PagePool::new(PAGES)?);
    let mut memories = Memories { regions, pool, in_regions: Vec::new(), in_pages: Vec::new() };
    let mut figure = Figure { headline: "Memory can be free and of no use.".into(), ..Figure::default() };
    figure.starts_from(|picture| memories.draw(picture, ["", ""]));
    for (name, tokens) in ('a'..).zip(SEQUENCES) {
        memories.in_regions.push((name, memories.regions.reserve(tokens)?));
        memories.in_pages.push((name, memories.pool.alloc_n(tokens.div_ceil(PAGE_SIZE))?));
    }
    let text = format!(
        "Sequences a, b and c of {} tokens arrive. Above, each reserves a region of its size. Below, they take {} pages.",
        listed(&SEQUENCES.map(|tokens| grouped(tokens as u64))),
        listed(&memories.in_pages.iter().map(|(_, pages)| pages.len()).collect::<Vec<_>>())
    );
    figure.frame(text, |picture| memories.draw(picture, ["", ""]));

    memories.regions.release(&memories.in_regions.remove(0).1);
    memories.in_pages.remove(0).1.into_iter().try_for_each(|page| memories.pool.free(page))?;
    let gaps = joined(&memories.regions.gaps().iter().map(Range::len).collect::<Vec<_>>(), " and ");
    let text = format!(
        "Sequence a ends. Above, that leaves gaps of {gaps}. Below, it doesn\u{2019}t matter where the free pages are."
    );
    figure.frame(text, |picture| memories.draw(picture, ["", ""]));

    let refused = memories.regions.reserve(ASKED).err();
    let Fragmented { free: slots, longest_gap: longest, .. } = refused.context("the region was not refused")?;
    memories.in_pages.push(('d', memories.pool.alloc_n(ASKED.div_ceil(PAGE_SIZE))?));
    let of_d = memories.page_pieces().into_iter().filter(|(owner, _)| *owner == Some('d'));
    let of_d: Vec<usize> = of_d.map(|(_, run)| run.len()).collect();
    let (n, places, runs) = (of_d.iter().sum::<usize>(), of_d.len(), joined(&of_d, " and "));
    let text = format!(
        "Sequence d of {ASKED} tokens arrives. Above, no gap is that long. Below, it gets its {n} pages in {places} places, {runs} of \
         them. That\u{2019}s fine, because a list of page numbers can lead to each token, wherever its page lies."
    );
    let outcomes = [format!("d does not fit: the longest gap has {longest}"), format!("d fits: {runs} pages")];
    figure.frame(text, |picture| memories.draw(picture, outcomes.each_ref().map(String::as_str)));
    figure.label = format!(
        "Two bars, to scale. Above, a region for each sequence: in the end gaps of {gaps} slots are free. Below, the same \
         memory as {PAGES} pages, and the pages of one sequence in two places."
    );
    figure.setup = format!(
        "The same sequences in regions and in pages of {PAGE_SIZE} slots: {slots} slots are free, but {ASKED} tokens \
         fit only if they can be cut into pages."
    );
    Ok(figure)
}
