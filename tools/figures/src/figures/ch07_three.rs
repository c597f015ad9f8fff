//! Chapter 7: the same rewind in all three caches, by `chapters::ch07_rewind`.

use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

use super::prelude::*;
use crate::rows::{LAYOUT, layer_rows};
use crate::slab::Operation;

const PAGE_SIZE: usize = 4;
const PAGES: [PageId; 3] = [PageId(12), PageId(5), PageId(3)];
/// Slots that are shown: the contiguous cache's reservation, and all three pages.
const SHOWN: usize = 12;
const OPERATIONS: [Operation; 3] = [Operation::Extend('t', 9), Operation::Rewind(3), Operation::Extend('n', 1)];

struct CachesState {
    tokens: usize,
    caches: [Content; 3],
    pages: Vec<PageId>,
}

/// What a cache holds in one layer; the others look the same.
struct Content {
    /// The rows in the order of the tokens, and after them the content of the slots that follow; `None`: nothing.
    rows: Vec<Option<String>>,
    slots: usize,
    copied_tokens: usize,
}

impl CachesState {
    fn after(operations: &[Operation]) -> Result<Self> {
        // A slab that hands out these pages next; the others are taken.
        let slab = PageSlab::new(LAYOUT, PAGE_SIZE, 16)?;
        let mut others = (0..16).map(|_| PagedCache::new(&slab)).collect::<Result<Vec<_>, _>>()?;
        others.iter_mut().try_for_each(|other| other.extend(1))?;
        PAGES.iter().rev().for_each(|page| others.retain(|other| other.table().pages()[0] != *page));

        let (mut flat, mut contiguous) = (FlatCache::new(LAYOUT), ContiguousCache::new(LAYOUT, SHOWN));
        let mut paged = PagedCache::new(&slab)?;
        let caches: [&mut dyn Rewind; 3] = [&mut flat, &mut contiguous, &mut paged];
        for cache in caches {
            operations.iter().try_for_each(|operation| operation.run(cache))?;
        }
        let (tokens, pages) = (flat.len(), paged.table().pages().to_vec());
        ensure!([contiguous.len(), paged.len()] == [tokens; 2], "all hold the same tokens");
        let flat_slots = flat.usage().slots;
        let caches = [content(flat, flat_slots)?, content(contiguous, SHOWN)?, content(paged, SHOWN)?];
        Ok(CachesState { tokens, caches, pages })
    }

    /// What the last operation did to the caches, and what to notice.
    fn text(&self, operation: Operation) -> String {
        let CachesState { tokens, caches: [flat, contiguous, _], pages: own } = self;
        let stale: Vec<&String> = contiguous.rows[*tokens..].iter().flatten().collect();
        let [flat_slots, slots] = [flat, contiguous].map(|cache| plural(cache.slots, "slot"));
        let free: Vec<PageId> = PAGES.into_iter().filter(|page| !own.contains(page)).collect();
        let (own, free) = (pages(own), pages(&free));
        match operation {
            Operation::Extend(..) if stale.is_empty() => format!(
                "the flat cache has {flat_slots} for its {tokens} tokens, the contiguous one has reserved {slots}, and \
                 the paged one has taken {own}."
            ),
            Operation::Extend(..) => {
                let (held, copied) = (plural(*tokens, "token"), plural(flat.copied_tokens, "token"));
                format!(
                    "to hold {held}, the flat cache copies {copied}. The other two write the new row over a stale one."
                )
            }
            Operation::Rewind(n) => {
                let (rows, stale) = (plural(n, "row"), listed(&stale));
                let copied: usize = self.caches.iter().map(|cache| cache.copied_tokens).sum();
                format!(
                    "the flat cache shortens its tensors by {rows}, but the memory stays allocated. In all three \
                     caches, {stale} stay where they are, now stale, and {free} is free for others. Tokens copied: \
                     {copied}."
                )
            }
        }
    }
}

/// Reads a cache as far as `shown` slots: those without a token are taken with `extend`, and nothing is written there.
/// What `gather` then shows was there before.
fn content(mut cache: impl Rewind, shown: usize) -> Result<Content> {
    let usage = cache.usage();
    cache.extend(shown - cache.len())?;
    Ok(Content { rows: layer_rows(&cache, 0)?, slots: usage.slots, copied_tokens: usage.copied_tokens as usize })
}

pub fn figure() -> Result<Figure> {
    let mut figure =
        Figure { headline: "A rewind copies no row in any of the three caches.".into(), ..Figure::default() };
    let mut copied = String::new();
    let mut before = CachesState::after(&[])?;
    for done in 1..=OPERATIONS.len() {
        let (operation, state) = (OPERATIONS[done - 1], CachesState::after(&OPERATIONS[..done])?);
        copied = plural(state.caches[0].copied_tokens, "token");
        let text = format!("<code>{}</code>: {}", operation.call(), state.text(operation));
        figure.frame(text, |picture| draw(picture, &state, &before));
        before = state;
    }
    figure.label =
        "The same tokens in the flat, the contiguous and the paged cache. After the rewind, rows of forgotten tokens \
                    still lie in the slots that the next token takes."
            .into();
    figure.setup = format!(
        "Only the flat cache copies, {copied} in all, and not to rewind but to grow again. Pages have {PAGE_SIZE} \
         slots."
    );
    Ok(figure)
}

/// `before`: the state before the last operation, which tells what the flat cache has cut off.
fn draw(picture: &mut Picture, state: &CachesState, before: &CachesState) {
    for ((name, content), was) in ["flat", "contiguous", "paged"].into_iter().zip(&state.caches).zip(&before.caches) {
        let row = |of: &Content, slot: usize| of.rows.get(slot).cloned().flatten();
        // Cut off, but the memory is still the flat cache's.
        let cut = |slot| row(was, slot).filter(|_| name == "flat" && slot < content.slots);
        let cell = |slot: usize| match row(content, slot).or_else(|| cut(slot)) {
            // Copied into a new tensor, with the new row.
            Some(name) if slot < state.tokens => held('a', name).outlined(content.copied_tokens > was.copied_tokens),
            Some(name) if slot < content.slots => stale(Some('a'), name),
            Some(name) => stale(None, name),
            None if slot < content.slots => empty('a'),
            // The flat cache is exactly as long as its sequence.
            None if name == "flat" => blank(),
            None => free(""),
        };
        let cells = (0..SHOWN).map(cell);
        let copied = plural(content.copied_tokens, "token");
        picture.heading(name, &if name == "flat" { format!("{copied} copied so far") } else { String::new() });
        if name == "paged" {
            let free = |page| if state.pages.contains(page) { "" } else { ", free" };
            picture.pages(|place| format!("page {}{}", PAGES[place], free(&PAGES[place])), PAGE_SIZE, cells);
        } else {
            picture.row("", "", SHOWN, cells);
            picture.y += 4.0;
        }
    }
}
