//! One list of mistakes: each breaks an invariant of a chapter, and a story or its cost shows it.
//!
//! Stories are told by the bundled model with the caches of chapter 6. A [checker](crate::generation::read_checker)
//! misplaces the rows, and knows who wrote each.
//! A cost is counted by a few lines that do a chapter's work wrongly.

use std::ops::Range;

use anyhow::Result;

use super::{bundled, costs};
use crate::cache::{KvCache, Rewind};
use crate::chapters::ch06_paged::{PageSlab, PagedCache};
use crate::generation::read_checker::{CacheFault, ReadChecker, RowAddress};
use crate::generation::sampler::{Sampler, SamplingParams};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;
use crate::simulation::buggy_scheduler::Bug;

/// A mistake that somebody can switch on.
#[derive(Clone, Copy)]
pub struct Mistake {
    pub name: &'static str,
    pub chapter: usize,
    /// What the code does that has it.
    pub about: &'static str,
    pub invariant: &'static str,
    /// The chapters whose code shows it, without those that they use.
    pub chapters: &'static [usize],
    pub effect: Effect,
}

#[derive(Clone, Copy)]
pub enum Effect {
    /// In what the model writes.
    Story(Scenario, CacheFault),
    /// In what the model writes when it sees only the newest token.
    Forgetful(Scenario),
    /// In counters, or in a histogram: first those of the right code.
    Cost(Cost),
    /// In the events to which a simulation shrinks it.
    Events(Bug),
}

#[derive(Clone, Copy)]
pub struct Scenario {
    /// Each with its seed.
    pub prompts: &'static [(&'static str, u64)],
    pub n_new: usize,
    pub page_size: usize,
    /// Whether a sequence begins only when the one before has ended.
    pub one_by_one: bool,
    /// The first sequence forgets as many tokens once it has generated so many: `(17, 4)`.
    pub rewind: Option<(usize, usize)>,
}

impl Scenario {
    /// What each sequence is called: who its prompt is about, unless that is the same for all.
    pub fn names(&self) -> Vec<String> {
        let who = |prompt: &str| ["princess", "wolf"].into_iter().find(|who| prompt.contains(who)).unwrap_or("story");
        let names: Vec<String> = self.prompts.iter().map(|(prompt, _)| format!("the {}", who(prompt))).collect();
        match &names[..] {
            [first, second] if first == second => {
                ["the first request", "the second request"].map(String::from).to_vec()
            }
            _ => names,
        }
    }
}

pub struct ScenarioOutput {
    pub names: Vec<String>,
    pub texts: Vec<String>,
    /// The first wrong read, in words, and how many there were.
    pub wrong: Option<(String, usize)>,
}

/// Slots in a page of most of these stories.
const P: usize = 8;
const QUEEN: Scenario =
    Scenario { prompts: &[("Once upon a time", 23)], n_new: 49, page_size: 16, one_by_one: false, rewind: None };
const TWO: Scenario = Scenario {
    prompts: &[("Once upon a time there was a wolf", 7), ("Once upon a time there was a princess", 7)],
    n_new: 34,
    page_size: P,
    ..QUEEN
};
const YESTERDAY: Scenario = Scenario {
    prompts: &[
        ("Once upon a time there was a princess", 7),
        ("Once upon a time there was a wolf who had only one son, and his wife", 7),
    ],
    one_by_one: true,
    ..TWO
};
/// Two prompts whose second pages have the same tokens, and whose first pages don't.
const SECRET: &str = "The queen had told nobody about the wolf who had only one son, and his wife";
const SAME_PAGE: Scenario = Scenario { prompts: &[(SECRET, 7), YESTERDAY.prompts[1]], ..YESTERDAY };
const SAMPLES: Scenario = Scenario { prompts: &[("The king had", 23), ("The king had", 24)], n_new: 20, ..QUEEN };

fn page_of(address: RowAddress) -> usize {
    address.position / P
}

const SECOND_PAGE_OF_THE_FIRST: CacheFault =
    CacheFault::read_at(
        |address, _| if address.sequence == 1 && page_of(address) == 1 { address.of(0) } else { address },
    );

/// All mistakes, in the order of the book.
pub fn all() -> Vec<Mistake> {
    let bugs = Bug::all().into_iter().map(|bug| Mistake {
        name: bug.name(),
        chapter: 15,
        about: bug.about(),
        invariant: "the rules that chapter 15 checks after every event",
        chapters: &[11, 12, 15],
        effect: Effect::Events(bug),
    });
    let (before, after): (Vec<_>, Vec<_>) = MISTAKES.iter().partition(|mistake| mistake.chapter < 15);
    before.into_iter().copied().chain(bugs).chain(after.into_iter().copied()).collect()
}

/// The mistakes that aren't bugs of engines.
const MISTAKES: &[Mistake] = &[
    mistake(1, "newest-token-only", "the model gets the newest token only").shows(
        "each token is computed from all tokens before it",
        &[6, 7],
        Effect::Forgetful(QUEEN),
    ),
    mistake(2, "one-tensor", "all layers are kept in one tensor").breaks(
        "each layer reads its own rows",
        QUEEN,
        CacheFault::at(|address, _| RowAddress { layer: 0, ..address }),
    ),
    mistake(2, "unwritten-row", "the row of ` queen` is never written").breaks(
        "the row of every token is written before it is read",
        QUEEN,
        CacheFault::read_at(
            |address, len| if address.position == 8 && len > 9 { RowAddress::NOWHERE } else { address },
        ),
    ),
    mistake(3, "layer-times-len", "a row lies at layer * len + position").breaks(
        "a row stays where it was written while the sequence grows",
        QUEEN,
        CacheFault::at(|address, len| RowAddress {
            layer: 0,
            position: address.layer * len + address.position,
            ..address
        }),
    ),
    mistake(4, "one-page-twice", "the princess is given the wolf's second page").breaks(
        "a page has one owner, unless it is shared on purpose",
        TWO,
        CacheFault::at(|address, _| if page_of(address) == 1 { address.of(0) } else { address }),
    ),
    mistake(
        4,
        "refused-call-keeps-pages",
        "a call for more pages than there are takes those that it finds, and then fails",
    )
    .costs("a call that fails changes nothing", costs::refused_calls, &[4]),
    mistake(5, "new-page-first", "a new page of 16 slots comes first").breaks(
        "a table lists its pages in the order of the tokens",
        QUEEN,
        CacheFault::at(|address, len| {
            address.at(((len - 1) / 16 - address.position / 16) * 16 + address.position % 16)
        }),
    ),
    mistake(5, "page-too-few", "17 tokens are thought to need one page of 16 slots").breaks(
        "a table has a slot for each of its tokens",
        QUEEN,
        CacheFault::at(|address, len| {
            address.at((address.position / 16).min((len / 16).max(1) - 1) * 16 + address.position % 16)
        }),
    ),
    mistake(6, "whole-pages", "whole pages of 16 slots are gathered, also the slots that are still empty").breaks(
        "attention reads exactly the rows of the sequence's tokens",
        QUEEN,
        CacheFault {
            rows: |_, len| len.next_multiple_of(16),
            ..CacheFault::read_at(|address, len| if address.position < len { address } else { RowAddress::NOWHERE })
        },
    ),
    mistake(
        6,
        "by-page-number",
        "pages are gathered in the order of their numbers, and the second one has the lower number",
    )
    .breaks(
        "rows are gathered in the order of the tokens",
        Scenario { page_size: P, ..QUEEN },
        CacheFault::read_at(|address, len| match address.position {
            _ if len <= P => address,
            position if position < P && P + position >= len => RowAddress::NOWHERE,
            position if position < P => address.at(P + position),
            position if position < 2 * P => address.at(position - P),
            _ => address,
        }),
    ),
    mistake(6, "stale-rows", "whole pages are gathered, and the princess had them before").breaks(
        "what an earlier owner left in a page is never read",
        Scenario { prompts: const { &[TWO.prompts[1], TWO.prompts[0]] }, one_by_one: true, ..TWO },
        CacheFault {
            rows: |sequence, len| if sequence == 1 { len.next_multiple_of(P) } else { len },
            ..CacheFault::read_at(|address, len| if address.position < len { address } else { address.of(0) })
        },
    ),
    mistake(7, "page-back-too-early", "a rewind gives back a page that is half full, and the princess takes it")
        .breaks(
            "a page goes back when none of its rows is needed any more",
            Scenario { rewind: Some((17, 4)), ..TWO },
            CacheFault::at(|address, _| {
                if address.sequence == 1 && page_of(address) == 4 {
                    address.of(0).at(address.position - 2 * P)
                } else {
                    address
                }
            }),
        ),
    mistake(7, "page-never-freed", "a rewind drops pages from the table and does not free them").costs(
        "a page that holds no token goes back to its pool",
        costs::rewinds,
        &[6, 7],
    ),
    mistake(8, "draft-remembers", "the draft model's cache keeps the tokens that the target rejected").costs(
        "both caches hold the same tokens after a step",
        costs::drafts,
        &[1, 3, 7, 8],
    ),
    mistake(
        9,
        "target-as-it-is",
        "after a rejection, the next token is drawn from the target's probabilities as they are",
    )
    .costs("the output has the target's distribution", costs::rejections, &[9]),
    mistake(10, "write-without-copy", "a fork writes into the page that it shares").breaks(
        "a page with several owners is never written",
        SAMPLES,
        CacheFault::at(|address, _| if address.position < 16 { address.of(0) } else { address }),
    ),
    mistake(11, "key-without-parent", "a page is found by its own tokens, whatever came before them").breaks(
        "a page is found only by its tokens and all those before them",
        SAME_PAGE,
        SECOND_PAGE_OF_THE_FIRST,
    ),
    mistake(11, "cached-before-full", "a page is cached after one token of eight, and found by that token").breaks(
        "only full pages are cached",
        Scenario {
            prompts: const { &[YESTERDAY.prompts[0], ("Once upon a time there was a princess whose father", 7)] },
            ..YESTERDAY
        },
        SECOND_PAGE_OF_THE_FIRST,
    ),
    mistake(
        12,
        "victim-in-plan",
        "the plan contains a victim: the wolf is given the princess's page while she computes",
    )
    .breaks(
        "the plan never contains a victim",
        TWO,
        CacheFault::at(|address, _| {
            if address.sequence == 0 && page_of(address) == 3 {
                address.of(1).at(address.position - P)
            } else {
                address
            }
        }),
    ),
    mistake(12, "oldest-victim", "when pages run out, the oldest sequence gives way").costs(
        "the oldest sequence always advances",
        costs::victims,
        &[11, 12],
    ),
    mistake(13, "merged-runs", "two pages are read as one run, and the second is not the next one in memory").breaks(
        "runs are merged only where pages lie side by side",
        Scenario { prompts: const { &[TWO.prompts[1], TWO.prompts[0]] }, ..TWO },
        CacheFault::read_at(
            |address, _| if address.sequence == 1 && page_of(address) == 2 { address.of(0) } else { address },
        ),
    ),
    mistake(14, "one-scale", "all rows of a page are kept in eight bits with the scale of its first head").breaks(
        "each head of each row has its own scale",
        QUEEN,
        CacheFault {
            store: |row, first, dim| {
                let scale = scale(&first[..dim.min(first.len())]);
                row.iter_mut().for_each(|number| *number = (*number / scale).round().clamp(-127.0, 127.0) * scale);
            },
            ..CacheFault::NONE
        },
    ),
    mistake(14, "no-scale", "rows are read back as whole numbers, without their scales").breaks(
        "a number that is read is the one that was written, as nearly as eight bits allow",
        QUEEN,
        CacheFault {
            store: |row, _, dim| {
                for head in row.chunks_mut(dim) {
                    let scale = scale(head);
                    head.iter_mut().for_each(|number| *number = (*number / scale).round());
                }
            },
            ..CacheFault::NONE
        },
    ),
    mistake(
        16,
        "overwritten-parent",
        "a page is found after a parent whose place in the file has a different page by now",
    )
    .breaks(
        "a record is found only through all tokens before it",
        Scenario { prompts: const { &[SAME_PAGE.prompts[1], SAME_PAGE.prompts[0]] }, ..SAME_PAGE },
        SECOND_PAGE_OF_THE_FIRST,
    ),
    mistake(
        16,
        "no-checksum",
        "a page whose writing was cut off is read all the same, and half of its layers are yesterday's",
    )
    .breaks(
        "a row that is used has the bits that were computed",
        YESTERDAY,
        CacheFault::read_at(|address, _| {
            if address.sequence == 1 && page_of(address) == 1 && address.layer >= 3 { address.of(0) } else { address }
        }),
    ),
];

/// A mistake, but for what it breaks and how that shows.
struct Named(usize, &'static str, &'static str);

const fn mistake(chapter: usize, name: &'static str, about: &'static str) -> Named {
    Named(chapter, name, about)
}

impl Named {
    const fn shows(self, invariant: &'static str, chapters: &'static [usize], effect: Effect) -> Mistake {
        let Named(chapter, name, about) = self;
        Mistake { name, chapter, about, invariant, chapters, effect }
    }

    const fn breaks(self, invariant: &'static str, scenario: Scenario, fault: CacheFault) -> Mistake {
        self.shows(invariant, &[6, 7], Effect::Story(scenario, fault))
    }

    const fn costs(self, invariant: &'static str, cost: Cost, chapters: &'static [usize]) -> Mistake {
        self.shows(invariant, chapters, Effect::Cost(cost))
    }
}

type Cost = fn() -> Result<[Vec<String>; 2]>;

/// The scale of a head that is stored in eight bits.
fn scale(head: &[f32]) -> f32 {
    let largest = head.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    if largest == 0.0 { 1.0 } else { largest / 127.0 }
}

/// How the stories of all mistakes are sampled.
pub fn sampling(seed: u64) -> SamplingParams {
    SamplingParams { seed, ..SamplingParams::DEFAULT }
}

pub struct ScenarioRunner {
    model: Model,
    tokenizer: Tokenizer,
}

struct Sequence {
    id: u64,
    tokens: Vec<u32>,
    cache: PagedCache,
    sampler: Sampler,
}

impl ScenarioRunner {
    pub fn open() -> Result<Self> {
        let dir = bundled("storyteller");
        Ok(ScenarioRunner { model: Model::open(&dir)?, tokenizer: Tokenizer::open(&dir)? })
    }

    /// What the sequences of a scenario tell, with a mistake or without.
    pub fn run(&self, scenario: &Scenario, fault: Option<CacheFault>) -> Result<ScenarioOutput> {
        let checker = ReadChecker::new(fault);
        let mut sequences = self.begin(scenario)?;
        let n = sequences.len();
        // In each step one sequence computes its newest token, or all do in one pass of the model.
        let steps: Vec<Range<usize>> = match scenario.one_by_one {
            true => (0..n).flat_map(|index| vec![index..index + 1; scenario.n_new]).collect(),
            false => vec![0..n; scenario.n_new],
        };
        for (step, indices) in (1..).zip(steps) {
            self.step(&checker, &mut sequences[indices])?;
            if let Some((_, n)) = scenario.rewind.filter(|(at, _)| *at == step) {
                let Sequence { tokens, cache, .. } = &mut sequences[0];
                tokens.truncate(tokens.len() - n);
                cache.rewind(cache.len() + 1 - tokens.len())?;
            }
        }
        let (names, wrong) = (scenario.names(), checker.take_wrong_reads());
        let texts = sequences.iter().map(|sequence| self.tokenizer.decode(&sequence.tokens));
        let first = wrong.first().map(|first| first.describe(|id| names[id as usize].clone()));
        Ok(ScenarioOutput {
            texts: texts.collect::<Result<_, _>>()?,
            names,
            wrong: first.map(|first| (first, wrong.len())),
        })
    }

    fn step(&self, checker: &ReadChecker, sequences: &mut [Sequence]) -> Result<()> {
        let parts = sequences.iter_mut().map(|Sequence { id, tokens, cache, .. }| {
            let new_tokens = &tokens[cache.len()..];
            (new_tokens, checker.checked(*id, tokens, cache))
        });
        let mut parts: Vec<_> = parts.collect();
        let chunks = parts.iter_mut().map(|(new_tokens, cache)| self.model.prepare_chunk(new_tokens, Some(cache), 1));
        let logits = self.model.forward(chunks.collect::<Result<_, _>>()?)?;
        drop(parts);
        for (Sequence { tokens, sampler, .. }, row) in
            sequences.iter_mut().zip(logits.chunks_exact(self.model.config().vocab_size))
        {
            tokens.push(sampler.sample(row));
        }
        Ok(())
    }

    /// What the first sequence tells if the model gets the newest token only.
    pub fn run_forgetful(&self, scenario: &Scenario) -> Result<ScenarioOutput> {
        let mut sequences = self.begin(scenario)?;
        let Sequence { tokens, sampler, .. } = &mut sequences[0];
        for _ in 0..scenario.n_new {
            tokens.push(sampler.sample(&self.model.step(&tokens[tokens.len() - 1..], None)?));
        }
        Ok(ScenarioOutput { texts: vec![self.tokenizer.decode(tokens)?], names: scenario.names(), wrong: None })
    }

    fn begin(&self, scenario: &Scenario) -> Result<Vec<Sequence>> {
        let slab = PageSlab::new(self.model.cache_layout(), scenario.page_size, 64)?;
        let begin = |((prompt, seed), id): (&(&str, u64), u64)| {
            let (tokens, cache) = (self.tokenizer.encode(prompt)?, PagedCache::new(&slab)?);
            Ok(Sequence { id, tokens, cache, sampler: Sampler::new(sampling(*seed)) })
        };
        scenario.prompts.iter().zip(0..).map(begin).collect()
    }
}
