//! Chapter 12: the schedule of `chapters::ch12_scheduler` as a time line. A column for each step, a row for each
//! sequence, and below them one for each page.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::serving::Engine;
use page_by_page::serving::schedule::{ScheduledChunk, SequenceCounters, SequenceId, StepLimits};
use page_by_page::serving::view::{PoolView, SequenceStatus, SequenceView};

use super::prelude::*;

const PAGE_SIZE: usize = 4;
const PAGES: usize = 7;
const BUDGET: usize = 8;
const RUNNING: usize = 3;
/// The step before which a request comes, tokens of its prompt, new tokens.
const REQUESTS: [(usize, usize, usize); 4] = [(0, 6, 9), (0, 7, 5), (1, 9, 5), (4, 5, 3)];
const NAMES: [char; REQUESTS.len()] = ['a', 'b', 'c', 'd'];

struct Frame {
    /// The cell of each sequence and its height; `None` before it comes and after it has finished.
    sequences: [Option<(Cell, f64)>; REQUESTS.len()],
    tokens: usize,
    /// What has become of each page afterwards.
    pages: Vec<Cell>,
}

fn record() -> Result<(Vec<Frame>, Vec<SequenceCounters>)> {
    let model = model(DRAFT)?;
    let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, PAGES)?;
    let limits = StepLimits { token_budget: BUDGET, max_running: RUNNING };
    let mut engine = Engine::new(&model, &slab, Box::new(PrefixTrie::new(PAGE_SIZE)?), limits, &[])?;
    let (mut frames, mut counters, mut before) = (Vec::new(), Vec::new(), Vec::new());
    // Preempted, and not yet as far as before.
    let mut is_back = [false; REQUESTS.len()];
    // Who computed what lies in each page.
    let mut writers = [None; PAGES];
    for step in 0.. {
        for (place, (_, n_prompt, most)) in REQUESTS.iter().enumerate().filter(|(_, request)| request.0 == step) {
            let prompt = (0..*n_prompt as u32).map(|token| 100 * (place as u32 + 1) + token).collect();
            engine.submit(prompt, *most, sampler(0))?;
        }
        if engine.is_done() {
            break;
        }
        let done = engine.step()?;
        counters.extend(done.finished.iter().map(|finished| finished.sequence.counters));
        let view = PoolView::new(&engine, &done.chunks);
        let mut sequences = [const { None }; REQUESTS.len()];
        for sequence in view.sequences.iter().filter(|sequence| sequence.status != SequenceStatus::Running) {
            let is_victim =
                before.iter().any(|was: &SequenceView| was.id == sequence.id && was.status == SequenceStatus::Running);
            sequences[sequence.id as usize] = Some(if is_victim { (part("P"), CELL) } else { (part(""), 4.0) });
            is_back[sequence.id as usize] |= is_victim;
        }
        for ScheduledChunk { sequence_id: SequenceId(id), n_tokens: tokens, caught_up, .. } in done.chunks {
            let (place, name) = (id as usize, NAMES[id as usize]);
            let has_new = before.iter().any(|was| was.id == id && was.new_tokens > 0);
            sequences[place] = Some(match has_new {
                _ if is_back[place] => (again(name, tokens), CELL),
                true => (held(name, ""), 14.0),
                false => (held(name, tokens), CELL),
            });
            is_back[place] &= !caught_up;
        }
        let page = |(page, writer): (usize, &mut Option<char>)| {
            let own = view.sequences.iter().filter(|sequence| sequence.pages.contains(&(page as u32)));
            let own: Vec<char> = own.map(|sequence| NAMES[sequence.id as usize]).collect();
            let now = own.first().copied().or(*writer).filter(|_| view.owners[page] > 0);
            let was = std::mem::replace(writer, now);
            let name = now.map_or(String::new(), String::from);
            let without = if now.is_some() { cached(&name) } else { free("") };
            owned(&own, &name, without).outlined(was.is_some() && now.is_some() && was != now)
        };
        let pages = writers.iter_mut().enumerate().map(page).collect();
        frames.push(Frame { sequences, tokens: view.scheduled_tokens, pages });
        before = view.sequences;
    }
    Ok((frames, counters))
}

pub fn figure() -> Result<Figure> {
    let (frames, counters) = record()?;
    let computed: u64 = counters.iter().map(|counters| counters.computed_tokens).sum();
    let once: usize = REQUESTS.iter().map(|(_, n_prompt, most)| n_prompt + most - 1).sum();
    let kept: usize = counters.iter().map(|counters| counters.cached_after_preemption).sum();
    let asked = listed(&REQUESTS.map(|(_, n_prompt, most)| format!("{n_prompt} + {most}")));
    let (n, steps) = (REQUESTS.len(), frames.len());
    // A page that the cache had, and nobody has after a step, was taken and given back within it.
    let was_cached = |(step, page): &(usize, usize)| {
        [step - 1, *step].map(|step| frames[step].pages[*page].kind) == [Kind::Cached, Kind::Free]
    };
    let (taken_in, taken) = (1..steps)
        .flat_map(|step| (0..PAGES).map(move |page| (step, page)))
        .find(was_cached)
        .context("no page is taken and given back in one step")?;
    let (others, recomputed) = (REQUESTS[2].1 - kept, computed - once as u64);
    let figure = Figure {
        label: format!(
            "A time line of {steps} steps with a row for each of {n} sequences: when it computes its prompt, decodes, \
             waits, is preempted and recomputes. Below, the {PAGES} pages after each step: whose they are, which of \
             them only the prefix cache keeps, and which are free."
        ),
        headline: "When no page is left, the newest sequence gives up its own.".into(),
        setup: format!(
            "{n} requests of {asked} tokens, prompt + output, share {PAGES} pages of {PAGE_SIZE} slots. A step \
             computes at most {BUDGET} tokens. When c comes back, {kept} tokens of its prompt are still cached; of \
             the other {others}, {recomputed} are computed for the second time. In step {}, c takes page {taken} from \
             the cache, ends, and gives it back.",
            taken_in + 1,
        ),
        legend: vec![
            (held('a', "5"), "computes 5 tokens of its prompt"),
            (held('a', ""), "decodes"),
            (again('c', ""), "recomputes"),
            (part("P"), "is preempted"),
            (part(""), "waits"),
            (cached("c"), "kept by the prefix cache, in nobody\u{2019}s use"),
            (free(""), "a free page"),
        ],
        outline: Some("changes hands"),
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, &frames)))
}

fn draw(picture: &mut Picture, frames: &[Frame]) {
    let n = frames.len();
    // Areas of one height for all steps, after a label.
    let row = |picture: &mut Picture, label: &str, height: f64, draw: &dyn Fn(&mut Picture, usize, Area)| {
        picture.text(picture.left, picture.y + height / 2.0 + 4.5, Anchor::Start, label);
        for step in 0..n {
            let area = picture.grid(n, n).cell(step);
            draw(picture, step, Area { height, ..area });
        }
        picture.y += height + 4.0;
    };
    let number = |picture: &mut Picture, area: Area, number: usize| {
        picture.text(area.middle(), area.baseline(), Anchor::Middle, number);
    };
    picture.labelled("page 0");
    picture.heading("what each sequence does", "");
    row(picture, "step", 20.0, &|picture, step, area| number(picture, area, step + 1));
    for (place, name) in NAMES.iter().enumerate() {
        row(picture, &name.to_string(), CELL, &|picture, step, area| {
            if let Some((cell, height)) = &frames[step].sequences[place] {
                let y = area.y + (CELL - height) / 2.0;
                picture.cell(Area { y, height: *height, ..area }, cell.clone());
            }
        });
    }
    row(picture, "tokens", 20.0, &|picture, step, area| number(picture, area, frames[step].tokens));
    picture.y += 6.0;
    picture.heading("who has each page, after the step", "");
    for page in 0..PAGES {
        row(picture, &format!("page {page}"), 22.0, &|picture, step, area| {
            picture.cell(area, frames[step].pages[page].clone());
        });
    }
}
