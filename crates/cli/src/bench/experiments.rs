//! The benchmarks that put the engine's `experiments` in a table: what the caches of the book cost, counted and timed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use page_by_page::cache::attention::AttentionCache;
use page_by_page::cache::{CacheError, CacheUsage, KvLayout};
use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::chapters::ch03_contiguous::wasted_share;
use page_by_page::experiments::{self, append, bundled, forks, generation, rows};
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::{Model, ModelConfig};
use serde_json::json;

use super::{PAGE_SIZE, Report, Row, Times, turns};
use crate::memory;
use crate::options::{cache_kinds, ensure_in_range};
use crate::output::{plural, rate, thousands};
use crate::requirements;

#[derive(Subcommand)]
pub enum Experiment {
    /// Generate the same sequences with every cache, and compare what that costs
    ///
    /// The story teller generates each sequence from nothing but the token that begins every document. The contiguous
    /// cache reserves room for the longest sequence that the model can generate, as one must who does not know when it
    /// ends.
    #[command(after_help = "\
Example:
  cargo page bench caches --tokens 64,256")]
    Caches {
        /// Tokens in each sequence, separated by commas
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "64,128,256,512")]
        tokens: Vec<usize>,
    },
    /// Count the slots that caches waste
    ///
    /// Reserves the same number of slots for each sequence, or takes pages with --page-size; lets the sequences grow to
    /// their lengths, and counts what stays empty.
    #[command(after_help = "\
Example:
  cargo page bench waste --capacity 1024 --lengths 1024,700,300,224
  cargo page bench waste --page-size 16 --lengths 1024,700,300,224")]
    Waste {
        /// Slots to reserve for each sequence
        #[arg(long, value_name = "N", default_value_t = 1024)]
        capacity: usize,
        /// Take pages of this many slots instead of reserving
        #[arg(long, value_name = "P", conflicts_with = "capacity")]
        page_size: Option<usize>,
        /// Tokens in each sequence, separated by commas
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,700,300,224")]
        lengths: Vec<usize>,
    },
    /// Show free memory that a sequence cannot use, or pages that it can
    ///
    /// In 2,000 slots, sequences of 200, 1,000 and 150 tokens take contiguous regions one after the other. The first
    /// one ends, and one of 800 tokens comes. With --page-size the same happens in the same memory cut into pages.
    #[command(after_help = "\
Example:
  cargo page bench fragmentation
  cargo page bench fragmentation --page-size 16")]
    Fragmentation {
        /// Take pages of this many slots instead of regions
        #[arg(long, value_name = "P")]
        page_size: Option<usize>,
    },
    /// Append tokens to short sequences and to long ones, and compare what a token costs
    ///
    /// Appending makes room for a token and writes its rows in every layer; no model computes. The lengths take turns:
    /// 16 tokens are appended, one by one, and then forgotten again, so that each turn finds the same sequence and
    /// memory that was touched before. The median turn counts; tokens copied are the mean of its 16 tokens.
    #[command(after_help = "\
Example:
  cargo page bench append --tokens 1024,8192,32768
  cargo page bench append --kv flat --tokens 1024,8192")]
    Append {
        /// Tokens that the caches hold before, separated by commas; times are compared with the first
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,32768")]
        tokens: Vec<usize>,
        /// Caches to append to, separated by commas
        #[arg(long, value_name = "CACHE,…", value_delimiter = ',', value_parser = cache_kinds(),
              hide_possible_values = true, default_values_t = CacheKind::WITH_ROWS.to_vec())]
        kv: Vec<CacheKind>,
    },
    /// Forget the newest tokens of sequences, and compare that with copying the others
    ///
    /// A cache that could not rewind would have to be replaced by a new one, to which the rows that stay are written.
    /// From each sequence, 4 tokens are forgotten, and half of them. Rewinding and copying take turns, and the medians
    /// count. The memory of the new cache is there before, but for the flat cache, which takes its own.
    #[command(after_help = "\
Example:
  cargo page bench rewind --tokens 1024,32768")]
    Rewind {
        /// Tokens in each sequence, separated by commas
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,8192,32768")]
        tokens: Vec<usize>,
    },
    /// Count what eight samples of one prompt cost, apart and shared
    ///
    /// There are three ways to keep them, all in pages. Each sample has a cache of its own and computes the prompt, or
    /// the prompt is computed once and its rows restored into each cache, or the prompt is computed once and its cache
    /// forked. The prompt has 900 tokens. Then the samples grow by turns, a token each, to 100 new ones. No model
    /// computes; the rows are those that it would have computed. All but the newest token of a sample are read.
    #[command(after_help = "\
Example:
  cargo page bench samples
  cargo page bench samples --page-size 100")]
    Samples {
        /// Slots in a page
        #[arg(long, value_name = "P", default_value_t = 16)]
        page_size: usize,
    },
}

impl Experiment {
    pub fn run(self) -> Result<Report> {
        match self {
            Experiment::Caches { tokens } => caches(&tokens),
            Experiment::Waste { capacity, page_size, lengths } => waste(capacity, page_size, &lengths),
            Experiment::Fragmentation { page_size: None } => in_regions(),
            Experiment::Fragmentation { page_size: Some(page_size) } => in_pages(page_size),
            Experiment::Append { tokens, kv } => append_to_all(&tokens, &kv),
            Experiment::Rewind { tokens } => rewind_all(&tokens),
            Experiment::Samples { page_size } => samples(page_size),
        }
    }
}

fn bundled_layout() -> Result<KvLayout> {
    Ok(ModelConfig::open(&bundled("storyteller"))?.kv_layout())
}

fn filled(kind: CacheKind, layout: KvLayout, tokens: usize, size: CacheSize) -> Result<Box<dyn AttentionCache>> {
    let mut cache = kind.new_cache(layout, size)?.with_context(|| format!("{kind} keeps no rows"))?;
    append(cache.as_mut(), &rows(layout, tokens))?;
    Ok(cache)
}

/// These slots in pages, and as a cell of a table, if the cache has pages.
fn pages_of(kind: CacheKind, slots: usize) -> (Option<usize>, String) {
    let pages = (kind == CacheKind::Paged).then_some(slots / PAGE_SIZE);
    (pages, pages.map_or("–".into(), thousands))
}

fn caches(lengths: &[usize]) -> Result<Report> {
    requirements::ensure_started(&[1, 2, 3, 6])?;
    let model = Model::open(&bundled("storyteller"))?;
    let positions = model.config().max_positions;
    for tokens in lengths {
        ensure_in_range(*tokens as u64, positions as u64 - 1, "--tokens", "the model")?;
    }
    let mut costs = Vec::new();
    for tokens in lengths {
        costs.extend(compare_caches(&model, *tokens)?);
    }
    Report::table(1, CacheKind::ALL.len(), costs)
}

fn compare_caches(model: &Model, tokens: usize) -> Result<Vec<Row>> {
    /// A sequence is generated again until this much time was spent on it, and the fastest counts.
    const PATIENCE: Duration = Duration::from_millis(500);
    let config = model.config();
    // The token that ends a text also begins the next. No sequence is cut short here: all are compared at one length.
    let prompt = &config.eos_token_ids[..1];
    let mut times = CacheKind::ALL.map(|_| Times::default());
    let mut runs = Vec::new();
    for _ in turns("generating", 1..usize::MAX, PATIENCE) {
        runs.clear();
        for (kind, times) in CacheKind::ALL.into_iter().zip(&mut times) {
            let mut sampler = Sampler::new(SamplingParams { seed: 1, ..SamplingParams::DEFAULT });
            let mut pick = |logits: &[f32]| sampler.sample(logits);
            let cache = (kind, config.max_positions);
            runs.push(times.measure(|| generation::generate(model, cache, prompt, tokens, &mut pick))?);
        }
    }
    let shortest = times.iter().map(Times::best).fold(f64::INFINITY, f64::min);
    let mut costs = Vec::new();
    for ((kind, run), times) in CacheKind::ALL.into_iter().zip(&runs).zip(&times) {
        ensure!(
            run.tokens == runs[0].tokens,
            "{kind} generates other tokens than {}: its cache does not hold what was written to it",
            CacheKind::ALL[0]
        );
        let bytes_held = run.usage.bytes / run.usage.slots.max(1) * run.usage.tokens;
        let [held, reserved] = [bytes_held, run.usage.bytes].map(|bytes| bytes as f64 / (1 << 20) as f64);
        let (ms, over_fastest) = (times.best() * 1e3, times.best() / shortest);
        costs.push(
            Row::default()
                .text("cache", kind)
                .count("tokens", tokens)
                .count("tokens computed", run.computed_tokens)
                .count("tokens copied", run.usage.copied_tokens)
                .cell("MiB held", held, format!("{held:.2}"))
                .cell("MiB reserved", reserved, format!("{reserved:.2}"))
                .cell("ms", ms, format!("{ms:.1}"))
                .cell("× fastest", over_fastest, format!("{over_fastest:.1}")),
        );
    }
    Ok(costs)
}

fn waste(capacity: usize, page_size: Option<usize>, lengths: &[usize]) -> Result<Report> {
    requirements::ensure_started(if page_size.is_some() { &[3, 6] } else { &[3] })?;
    let layout = bundled_layout()?;
    let usages = match page_size {
        None => {
            memory::ensure_slots(layout, capacity.saturating_mul(lengths.len()))?;
            experiments::memory::usage_if_reserved(layout, lengths.iter().map(|length| (capacity, *length)))?
        }
        Some(page_size) => {
            let pages = lengths.iter().map(|length| length.div_ceil(page_size.max(1)));
            memory::ensure_pages(layout, page_size, pages.fold(0, usize::saturating_add).max(1))?;
            experiments::memory::usage_of_caches(layout, page_size, lengths)?
        }
    };
    let row = |name: String, usages: &[CacheUsage]| {
        let sum = |of: fn(&CacheUsage) -> usize| usages.iter().map(of).sum::<usize>();
        let percent = 100.0 * wasted_share(usages);
        Row::default()
            .text("sequence", name)
            .count("slots reserved", sum(|usage| usage.slots))
            .count("used", sum(|usage| usage.tokens))
            .count("wasted", sum(CacheUsage::wasted))
            .cell("wasted %", percent, format!("{percent:.1}"))
    };
    let each = usages.iter().zip(1..).map(|(usage, number)| row(number.to_string(), &[*usage]));
    let rows: Vec<Row> = each.chain([row("all".into(), &usages)]).collect();
    Report::table(1, rows.len(), rows)
}

/// Slots of the memory, the sequences that take it, and the one that comes when the first has ended.
const CAPACITY: usize = 2000;
const LENGTHS: [usize; 3] = [200, 1000, 150];
const REQUEST: usize = 800;

fn joined(numbers: &[usize]) -> String {
    numbers.iter().map(|number| thousands(*number)).collect::<Vec<_>>().join(", ")
}

fn in_regions() -> Result<Report> {
    let left = experiments::memory::free_in_regions(CAPACITY, &LENGTHS, REQUEST)?;
    let text = format!(
        "{}, sequences of {} tokens\nthe first finishes: {} are free, in gaps of {}\na request for {} arrives:\n{}\n",
        plural(CAPACITY, "slot"),
        joined(&LENGTHS),
        thousands(left.free),
        joined(&left.gaps),
        plural(REQUEST, "token"),
        left.outcome.as_ref().map_or_else(|error| error.to_string().replace("; ", ";\n"), |()| "taken".into()),
    );
    let json = json!({ "free": left.free, "gaps": left.gaps, "taken": left.outcome.is_ok() });
    Ok(Report { text, json })
}

fn in_pages(page_size: usize) -> Result<Report> {
    requirements::ensure_started(&[4])?;
    let left = experiments::memory::free_in_pages(CAPACITY, page_size, &LENGTHS, REQUEST)?;
    let taken = |n_left: &usize| format!("{} taken, {} left", plural(left.needed, "page"), thousands(*n_left));
    let text = format!(
        "{} of {}, sequences of {} pages\nthe first finishes: {} are free\na request for {} arrives:\n{}\n",
        plural(left.n_pages, "page"),
        plural(page_size, "slot"),
        joined(&left.held),
        plural(left.free, "page"),
        plural(REQUEST, "token"),
        left.outcome.as_ref().map_or_else(ToString::to_string, taken),
    );
    let json = json!({ "free": left.free, "needed": left.needed, "taken": left.outcome.is_ok() });
    Ok(Report { text, json })
}

/// Tokens that are appended in a turn.
const TURN: usize = 16;

fn append_to_all(lengths: &[usize], kinds: &[CacheKind]) -> Result<Report> {
    // Chapter 7 takes the tokens off again.
    let of_caches = kinds.iter().flat_map(|kind| kind.chapters()).copied().filter(|chapter| *chapter > 1);
    requirements::ensure_started(&of_caches.chain([7]).collect::<Vec<_>>())?;
    ensure!(
        !kinds.contains(&CacheKind::Recompute),
        "recompute keeps no rows to append to; choose from {}",
        CacheKind::names(CacheKind::WITH_ROWS)
    );
    let layout = bundled_layout()?;
    let size = |tokens: &usize| CacheSize::for_tokens(tokens.saturating_add(TURN), PAGE_SIZE);
    let sizes = lengths.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    // Tensors that grow are there twice.
    let slots = sizes.iter().map(|size| size.slots()).fold(0, usize::saturating_add);
    memory::ensure_slots(layout, slots.saturating_mul(2))?;
    let mut costs = Vec::new();
    for kind in kinds {
        costs.extend(append_in_turns(*kind, layout, lengths, &sizes)?);
    }
    Report::table(1, lengths.len(), costs)
}

/// Appends to caches of one kind, one of each length, in turns.
fn append_in_turns(kind: CacheKind, layout: KvLayout, lengths: &[usize], sizes: &[CacheSize]) -> Result<Vec<Row>> {
    // Each cache, and what it held before the newest turn and after it.
    let mut cases = Vec::new();
    for (tokens, size) in lengths.iter().zip(sizes) {
        cases.push((filled(kind, layout, *tokens, *size)?, Times::default(), [CacheUsage::default(); 2]));
    }
    let row = rows(layout, 1);
    for _ in turns("appending", 5..50, Duration::from_secs(2)) {
        for (cache, times, [before, after]) in &mut cases {
            *before = cache.usage();
            times.measure(|| (0..TURN).try_for_each(|_| append(cache.as_mut(), &row)))?;
            *after = cache.usage();
            cache.rewind(TURN)?;
        }
    }
    let first = cases.first().map_or(0.0, |(_, times, _)| times.median());
    let costs = cases.iter().zip(lengths).map(|((_, times, [before, after]), tokens)| {
        let (pages, shown) = pages_of(kind, after.slots - before.slots);
        let (micros, over_first) = (times.median() / TURN as f64 * 1e6, times.median() / first);
        Row::default()
            .text("cache", kind)
            .count("tokens held", *tokens)
            .count("tokens copied for each", (after.copied_tokens - before.copied_tokens) / TURN as u64)
            .cell("pages taken for 16", pages, shown)
            .cell("µs for each", micros, rate(micros))
            .cell("× first", over_first, format!("{over_first:.1}"))
    });
    Ok(costs.collect())
}

fn rewind_all(lengths: &[usize]) -> Result<Report> {
    /// Tokens forgotten: a few, as when a draft of this length was wrong.
    const FEW: usize = 4;
    requirements::ensure_started(&[2, 3, 6, 7])?;
    let layout = bundled_layout()?;
    for tokens in lengths {
        ensure!(
            *tokens >= FEW,
            "a sequence of {}: expected at least {FEW}, as {FEW} are forgotten",
            plural(*tokens, "token")
        );
        // Two caches, and tensors that grow are there twice.
        memory::ensure_slots(layout, CacheSize::for_tokens(*tokens, PAGE_SIZE)?.slots().saturating_mul(4))?;
    }
    let mut costs = Vec::new();
    for tokens in lengths {
        for kind in CacheKind::WITH_ROWS {
            for forgotten in [FEW, tokens / 2] {
                costs.push(rewind_or_copy(*kind, layout, *tokens, forgotten)?);
            }
        }
    }
    Report::table(1, 2 * CacheKind::WITH_ROWS.len(), costs)
}

/// Forgets tokens of one sequence in both ways, in turns.
fn rewind_or_copy(kind: CacheKind, layout: KvLayout, tokens: usize, forgotten: usize) -> Result<Row> {
    const TURNS: usize = 7;
    let size = CacheSize::for_tokens(tokens, PAGE_SIZE)?;
    let (mut cache, mut other) = (filled(kind, layout, tokens, size)?, filled(kind, layout, tokens, size)?);
    let again = rows(layout, forgotten);
    let (mut rewinds, mut copies) = (Times::default(), Times::default());
    let (mut copied_tokens, mut rows_to_copy, mut slots_returned) = (0, 0, 0);
    for _ in turns("forgetting", TURNS..TURNS, Duration::ZERO) {
        other.rewind(other.len())?;
        let left = tokens - forgotten;
        rows_to_copy = copies.measure(|| experiments::rewind::copy_rows(cache.as_ref(), left, other.as_mut()))?;
        let before = cache.usage();
        rewinds.measure(|| cache.rewind(forgotten))?;
        let after = cache.usage();
        (copied_tokens, slots_returned) = (after.copied_tokens - before.copied_tokens, before.slots - after.slots);
        append(cache.as_mut(), &again)?;
    }
    let (pages, shown) = pages_of(kind, slots_returned);
    let [rewind, copy] = [&rewinds, &copies].map(|times| times.median() * 1e6);
    let over_rewind = copy / rewind.max(1e-3);
    Ok(Row::default()
        .text("cache", kind)
        .count("tokens", tokens)
        .count("forgotten", forgotten)
        .cell("pages returned", pages, shown)
        .count("tokens copied", copied_tokens)
        .cell("µs", rewind, rate(rewind))
        .count("rows to copy instead", rows_to_copy)
        .cell("µs instead", copy, rate(copy))
        .cell("× rewind", over_rewind, rate(over_rewind)))
}

fn samples(page_size: usize) -> Result<Report> {
    requirements::ensure_started(&[10])?;
    ensure!(page_size > 0, CacheError::NoSlots);
    let layout = bundled_layout()?;
    let samples = forks::Samples { samples: 8, prompt_tokens: 900, new_tokens: 100, page_size, layout };
    // The saved cache holds the prompt once more.
    let slots = samples.n_pages().saturating_mul(page_size).saturating_add(samples.prompt_tokens);
    memory::ensure_slots(layout, slots)?;
    let row = |cost: forks::SamplesCost| {
        Row::default()
            .text("way", cost.way)
            .count("tokens computed", cost.computed_tokens)
            .count("pages held", cost.pages_held)
            .count("tokens copied", cost.copied_tokens)
    };
    Report::table(1, 3, [samples.apart()?, samples.restored()?, samples.forked()?].map(row).into())
}
