//! What the bundled model writes when its cache is wrong in one place. The book quotes these stories.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

use page_by_page::cache::attention::AttentionCache;
use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind, Usage};
use page_by_page::generation::sampler::{Sampler, Sampling};

use grading::story::Storyteller;
use grading::transcript::{Transcript, assert_transcript};

/// Keys and values of one token in one layer, each at its place.
type Memory = RefCell<HashMap<usize, [Vec<f32>; 2]>>;

/// `(layer, position, tokens held)` → where that row is written, and where it is read.
type Place<'a> = &'a dyn Fn(usize, usize, usize) -> usize;

/// The right place: layers a thousand rows apart.
fn own(layer: usize, position: usize) -> usize {
    layer * 1000 + position
}

/// Nothing is ever written here, so zeros are read.
const NOWHERE: usize = usize::MAX;

struct Misplaced<'a> {
    layout: KvLayout,
    len: usize,
    memory: &'a Memory,
    place: Place<'a>,
}

impl KvCache for Misplaced<'_> {
    fn layout(&self) -> KvLayout {
        self.layout
    }

    fn len(&self) -> usize {
        self.len
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.len += n;
        Ok(())
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let width = self.layout.kv_width();
        let first = self.len - k.len() / width;
        for (position, (k, v)) in (first..).zip(k.chunks(width).zip(v.chunks(width))) {
            let place = (self.place)(layer, position, self.len);
            self.memory.borrow_mut().insert(place, [k.to_vec(), v.to_vec()]);
        }
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let memory = self.memory.borrow();
        let zeros = [vec![0.0; self.layout.kv_width()], vec![0.0; self.layout.kv_width()]];
        let rows = (0..self.len).map(|position| {
            let place = (self.place)(layer, position, self.len);
            memory.get(&place).unwrap_or(&zeros)
        });
        let (k, v): (Vec<_>, Vec<_>) = rows.map(|[k, v]| (&k[..], &v[..])).unzip();
        (k.concat().into(), v.concat().into())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

impl Rewind for Misplaced<'_> {
    fn rewind(&mut self, _: usize) -> Result<(), CacheError> {
        unimplemented!("no test rewinds it")
    }
}

impl AttentionCache for Misplaced<'_> {}

struct Story<'a> {
    storyteller: &'a Storyteller,
    tokens: Vec<u32>,
    cache: Misplaced<'a>,
    sampler: Sampler,
}

/// The story of the set-up page, as far as it goes.
const PROMPT: &str = "Once upon a time";
const SEED: u64 = 23;
const TOKENS: usize = 49;

impl<'a> Story<'a> {
    fn new(storyteller: &'a Storyteller, prompt: &str, seed: u64, memory: &'a Memory, place: Place<'a>) -> Self {
        let sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed };
        let layout = storyteller.model.config().kv_layout();
        Story {
            storyteller,
            tokens: storyteller.tokenizer.encode(prompt).expect("the prompt is text"),
            cache: Misplaced { layout, len: 0, memory, place },
            sampler: Sampler::new(sampling),
        }
    }

    /// Adds the next token.
    fn go_on(&mut self) {
        let new_tokens = &self.tokens[self.cache.len..];
        let logits = self.storyteller.model.step(new_tokens, Some(&mut self.cache)).expect("a short sequence fits");
        self.tokens.push(self.sampler.pick(&logits));
    }

    /// Its text, in lines that fit into the book's terminals.
    fn lines(&self) -> Vec<String> {
        const COLUMNS: usize = 58;
        let text = self.storyteller.tokenizer.decode(&self.tokens).expect("tokens of its own");
        let mut lines = vec![String::new()];
        for word in text.split_whitespace() {
            let line = lines.last_mut().expect("never empty");
            if line.len() + 1 + word.len() > COLUMNS {
                lines.push(word.into());
            } else {
                *line = [line.as_str(), word].join(if line.is_empty() { "" } else { " " });
            }
        }
        lines
    }
}

#[test]
fn broken_stories() {
    let storyteller = Storyteller::open();
    let mut transcript = Transcript::default();
    let mut tell = |title: &str, story: &Story<'_>| {
        transcript.line(title);
        story.lines().iter().for_each(|line| transcript.line(line));
    };

    let memory = Memory::default();
    let mut story = Story::new(&storyteller, PROMPT, SEED, &memory, &|layer, position, _| own(layer, position));
    for _ in 0..TOKENS {
        let newest = &story.tokens[story.tokens.len() - 1..];
        let logits = storyteller.model.step(newest, None).expect("a short sequence fits");
        story.tokens.push(story.sampler.pick(&logits));
    }
    tell("chapter 1: the model gets the newest token only", &story);

    let of_one: [(&str, Place<'_>); 5] = [
        ("no mistake", &|layer, position, _| own(layer, position)),
        ("chapter 2: all layers in one tensor", &|_, position, _| position),
        ("chapter 2: the row of ` queen` is zero", &|layer, position, len| {
            if position == 8 && len > 9 { NOWHERE } else { own(layer, position) }
        }),
        ("chapter 3: layer * len + position", &|layer, position, len| layer * len + position),
        ("chapter 5: a new page of 16 slots comes first", &|layer, position, len| {
            let page = (len - 1) / 16 - position / 16;
            own(layer, page * 16 + position % 16)
        }),
    ];
    for (title, place) in of_one {
        let memory = Memory::default();
        let mut story = Story::new(&storyteller, PROMPT, SEED, &memory, place);
        (0..TOKENS).for_each(|_| story.go_on());
        tell(title, &story);
    }

    // The princess has a memory of her own, or the wolf's second page of eight slots.
    for (title, shared_page) in [("two pages", None), ("one page twice", Some(1))] {
        let memory = Memory::default();
        let wolf: Place<'_> = &|layer, position, _| own(layer, position);
        let princess: Place<'_> = &|layer, position, _| {
            if Some(position / 8) == shared_page { own(layer, position) } else { own(layer, position + 500) }
        };
        let mut wolf = Story::new(&storyteller, "Once upon a time there was a wolf", 7, &memory, wolf);
        let mut princess = Story::new(&storyteller, "Once upon a time there was a princess", 7, &memory, princess);
        for _ in 0..34 {
            wolf.go_on();
            princess.go_on();
        }
        tell(&format!("{title}: the wolf"), &wolf);
        tell(&format!("{title}: the princess"), &princess);
    }
    assert_transcript("broken_stories", &transcript);
}
