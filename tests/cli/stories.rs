//! The stories that the program tells on the chapters as they are now, the reader's among them.
//!
//! Each is compared with what the model says when this file asks it for one token after the other: no cache, no draft, no
//! chapter. A failure names the command, so that it can be run again by hand.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page::chapters::{self, Source};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::checkpoints::Folder;

const PROGRAM: &str = crate::program::PROGRAM;

/// A story takes a tenth of a second. One that takes so long does not end.
const LONGEST: Duration = Duration::from_secs(60);

/// The drawn stories; said on every command line, as a model's folder may ask for something else.
const DRAWN: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 23 };

const CACHES: [&[&str]; 6] = [
    &["--kv", "recompute"],
    &["--kv", "flat"],
    &["--kv", "contiguous"],
    &["--kv", "paged", "--page-size", "1"],
    &["--kv", "paged", "--page-size", "3"],
    &["--kv", "paged", "--page-size", "64"],
];

/// A text to continue, and what to expect.
struct Story {
    prompt: &'static str,
    /// Drawn, or always the likeliest token.
    drawn: bool,
    max_new_tokens: usize,
    /// New tokens up to the end, which is none of them.
    expected: Vec<u32>,
    /// The tokens that end a text, and the folder in which a model says so; `None`: the bundled one.
    ends: Option<Folder>,
}

/// The model itself, asked for the whole text again and again.
struct Storyteller {
    model: Model,
    tokenizer: Tokenizer,
}

impl Storyteller {
    fn open() -> Self {
        let dir = crate::support::root().join("assets/storyteller");
        Storyteller { model: Model::open(&dir).unwrap(), tokenizer: Tokenizer::open(&dir).unwrap() }
    }

    /// What must be told, in a folder whose model ends a text with any of these tokens.
    fn story(&self, prompt: &'static str, drawn: bool, max_new_tokens: usize, ends: &[u32]) -> Story {
        let mut text = self.tokenizer.encode(prompt).unwrap();
        let n_prompt = text.len();
        let mut sampler = Sampler::new(DRAWN);
        while text.len() < n_prompt + max_new_tokens {
            let logits = self.model.step(&text, None).unwrap();
            let token = if drawn { sampler.pick(&logits) } else { likeliest(&logits) };
            if ends.contains(&token) {
                break;
            }
            text.push(token);
        }
        let folder = (!ends.is_empty()).then(|| {
            let folder = Folder::copy_of("storyteller");
            folder.set("generation_config.json", "eos_token_id", json!(ends));
            folder
        });
        Story { prompt, drawn, max_new_tokens, expected: text.split_off(n_prompt), ends: folder }
    }

    /// Runs the program with these options; its story must be this one.
    #[track_caller]
    fn assert_told(&self, story: &Story, options: &[&str]) -> Value {
        let new_tokens = story.max_new_tokens.to_string();
        let mut arguments = vec!["generate", story.prompt, "--max-new-tokens", &new_tokens, "--json"];
        match story.drawn {
            true => arguments.extend(["--temperature", "0.8", "--top-k", "0", "--top-p", "0.95", "--seed", "23"]),
            false => arguments.extend(["--temperature", "0"]),
        }
        if let Some(folder) = &story.ends {
            arguments.extend(["--model", folder.path()]);
        }
        arguments.extend(options);
        let told = run(&arguments);
        let found: Vec<u32> = serde_json::from_value(told["tokens"]["generated"].clone()).unwrap();
        if found != story.expected {
            let same = found.iter().zip(&story.expected).take_while(|(a, b)| a == b).count();
            let text = |tokens: &[u32]| format!("{} tokens: {}", tokens.len(), self.tokenizer.decode(tokens).unwrap());
            panic!(
                "{} tells another story behind its first {same} new tokens\n  expected: {}\n  yours:    {}\n{}",
                command(&arguments),
                text(&story.expected),
                text(&found),
                whose_chapters()
            );
        }
        if told["kv"] != "recompute" {
            // The newest token of a text that its budget has ended was never read; of one that has ended, all were.
            let prompt = told["tokens"]["prompt"].as_array().unwrap().len();
            let held = prompt + found.len() - usize::from(found.len() == story.max_new_tokens);
            let kept = told["counters"]["tokens"].as_u64();
            assert!(
                kept == Some(held as u64),
                "{} leaves the wrong tokens in its cache, {prompt} in the prompt and {} new\n  expected: {held}\n  \
                 yours:    {}\n{}",
                command(&arguments),
                found.len(),
                kept.map_or("nothing said".into(), |kept| kept.to_string()),
                whose_chapters()
            );
        }
        told
    }
}

fn likeliest(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32
}

/// As one would type it.
fn command(arguments: &[&str]) -> String {
    let quoted = |word: &&str| if word.contains(' ') { format!("{word:?}") } else { word.to_string() };
    format!("page-by-page {}", arguments.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

fn whose_chapters() -> String {
    let yours: Vec<String> = chapters::all()
        .iter()
        .filter(|chapter| chapter.source == Source::Yours)
        .map(|chapter| format!("exercises/{}.rs", chapter.name))
        .collect();
    let yours = if yours.is_empty() { "none".into() } else { yours.join(", ") };
    format!("it ran on the reference, and on these files of yours: {yours}")
}

/// What a run that must succeed prints as JSON.
#[track_caller]
fn run(arguments: &[&str]) -> Value {
    let child = Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let told = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let said = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let code = ended(&mut child, arguments);
    let said = said.join().unwrap().unwrap();
    assert!(
        code == Some(0),
        "{} ends with exit code {code:?}, not 0, and says:\n{}\n{}",
        command(arguments),
        said.trim(),
        whose_chapters()
    );
    serde_json::from_str(&told.join().unwrap().unwrap()).unwrap()
}

/// The exit code of a run that comes to an end.
#[track_caller]
fn ended(child: &mut Child, arguments: &[&str]) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > LONGEST {
            child.kill().unwrap();
            let seconds = LONGEST.as_secs();
            panic!("{} has not ended after {seconds} seconds\n{}", command(arguments), whose_chapters());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_cache_tells_what_the_model_says() {
    let storyteller = Storyteller::open();
    for drawn in [true, false] {
        let story = storyteller.story("Once upon a time", drawn, 30, &[]);
        assert_eq!(story.expected.len(), 30);
        for cache in if drawn { &CACHES[..] } else { &CACHES[2..5] } {
            storyteller.assert_told(&story, cache);
        }
    }
}

/// Stories that end early, with more than one token to end them.
fn with_several_ends(storyteller: &Storyteller, drawn: bool) -> Vec<Story> {
    let whole = storyteller.story("Once upon a time", drawn, 30, &[]).expected;
    // Where a token comes for the first time.
    let places: Vec<usize> = (0..whole.len()).filter(|place| !whole[..*place].contains(&whole[*place])).collect();
    let place = |quarters: usize| places[(places.len() - 1) * quarters / 4];
    let ended = |max_new_tokens: usize, ends: &[u32], at: usize| {
        let story = storyteller.story("Once upon a time", drawn, max_new_tokens, ends);
        assert_eq!(story.expected, whole[..at], "the story that the model tells with the ends {ends:?}");
        story
    };
    let prompt = storyteller.tokenizer.encode("Once upon a time").unwrap();
    vec![
        ended(30, &[whole[0], 0], 0),
        ended(30, &[0, whole[place(1)], whole[place(2)]], place(1)),
        ended(30, &[whole[place(4)], whole[place(2)]], place(2)),
        ended(30, &[whole[place(4)], whole[place(3)]], place(3)),
        // On the last token that is asked for.
        ended(place(3) + 1, &[0, whole[place(3)]], place(3)),
        // An end in the prompt ends nothing.
        storyteller.story("Once upon a time", drawn, 12, &[prompt[prompt.len() - 1], 0]),
    ]
}

#[test]
fn a_text_ends_at_the_first_of_several_ends() {
    let storyteller = Storyteller::open();
    for (story, cache) in with_several_ends(&storyteller, true).iter().zip(CACHES) {
        storyteller.assert_told(story, cache);
    }
}

mod with_drafts {
    use super::*;

    const MODEL: [&str; 2] = ["--draft", "storyteller-draft"];
    const LOOKUP: [&str; 2] = ["--draft", "prompt-lookup"];

    #[test]
    fn every_cache_tells_the_same_with_drafts() {
        let storyteller = Storyteller::open();
        let drafts = [(MODEL, "4"), (LOOKUP, "3"), (MODEL, "1"), (LOOKUP, "9")];
        for (drawn, first) in [(true, 0), (false, 1)] {
            let story = storyteller.story("The king and the queen and the king", drawn, 25, &[]);
            for (cache, (drafter, k)) in CACHES[..5].iter().zip(drafts.iter().cycle().skip(first)) {
                storyteller.assert_told(&story, &[cache, &drafter[..], &["--draft-len", k]].concat());
            }
        }
    }

    #[test]
    fn a_draft_is_cut_where_the_budget_ends() {
        let storyteller = Storyteller::open();
        for n in [1, 3] {
            let story = storyteller.story("Once upon a time", false, n, &[]);
            for (cache, drafter) in [(CACHES[0], MODEL), (CACHES[4], MODEL), (CACHES[2], LOOKUP)] {
                storyteller.assert_told(&story, &[cache, &drafter[..], &["--draft-len", "8"]].concat());
            }
        }
    }

    #[test]
    fn nothing_may_be_guessed() {
        let storyteller = Storyteller::open();
        let story = storyteller.story("Once upon a time", true, 4, &[]);
        for cache in [CACHES[0], CACHES[4]] {
            // No token comes twice in so short a text.
            let told = storyteller.assert_told(&story, &[cache, &LOOKUP].concat());
            assert_eq!((&told["draft"]["drafted"], &told["draft"]["target_passes"]), (&json!(0), &json!(4)));
            let told = storyteller.assert_told(&story, &[cache, &MODEL[..], &["--draft-len", "0"]].concat());
            assert_eq!(told["draft"]["drafted"], 0);
        }
    }

    #[test]
    fn a_text_ends_at_the_first_of_several_ends_with_drafts() {
        let storyteller = Storyteller::open();
        // The likeliest token is guessed more often: so an end comes among guesses that are right.
        for story in with_several_ends(&storyteller, false) {
            for (cache, drafter) in [(CACHES[0], LOOKUP), (CACHES[4], MODEL)] {
                storyteller.assert_told(&story, &[cache, &drafter[..], &["--draft-len", "8"]].concat());
            }
        }
    }

    #[test]
    fn greedy_leaves_nothing_to_chance() {
        let storyteller = Storyteller::open();
        let story = storyteller.story("Once upon a time", false, 25, &[]);
        for (cache, drafter) in [(CACHES[0], MODEL), (CACHES[4], MODEL), (CACHES[2], LOOKUP)] {
            storyteller.assert_told(&story, &[cache, &drafter[..], &["--accept", "sample"]].concat());
        }
    }
}

mod with_forks {
    use page_by_page::decode::beams::log_softmax;

    use super::*;

    const PAGES: [&str; 4] = ["1", "3", "16", "256"];

    /// The new tokens that the model chooses with this seed.
    fn drawn(storyteller: &Storyteller, prompt: &[u32], max_new_tokens: usize, seed: u64) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { seed, ..DRAWN });
        let mut text = prompt.to_vec();
        for _ in 0..max_new_tokens {
            text.push(sampler.pick(&storyteller.model.step(&text, None).unwrap()));
        }
        text.split_off(prompt.len())
    }

    #[track_caller]
    fn assert_same(arguments: &[&str], what: &str, found: &Value, expected: &[u32]) {
        let found: Vec<u32> = serde_json::from_value(found.clone()).unwrap();
        let same = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
        assert!(
            found == expected,
            "{} tells another {what} behind its first {same} new tokens\n  expected: {expected:?}\n  yours:    \
             {found:?}\n{}",
            command(arguments),
            whose_chapters()
        );
    }

    #[test]
    fn each_sample_is_the_text_that_its_seed_tells() {
        let storyteller = Storyteller::open();
        let beginning = "Once upon a time";
        let prompt = storyteller.tokenizer.encode(beginning).unwrap();
        let expected: Vec<Vec<u32>> = (23..26).map(|seed| drawn(&storyteller, &prompt, 12, seed)).collect();
        for page_size in PAGES {
            let arguments = [
                &["generate", beginning, "--samples", "3", "--max-new-tokens", "12", "--json", "--seed", "23"],
                &["--temperature", "0.8", "--top-k", "0", "--top-p", "0.95", "--page-size", page_size][..],
            ];
            let arguments = arguments.concat();
            let told = run(&arguments);
            for (place, expected) in expected.iter().enumerate() {
                let new = &told["outputs"][place]["tokens"]["generated"];
                assert_same(&arguments, &format!("sample {}", place + 1), new, expected);
            }
        }
    }

    #[test]
    fn texts_that_begin_alike_are_told_as_alone_with_a_prefix_cache() {
        let storyteller = Storyteller::open();
        let beginnings =
            ["Once upon a time there was a king", "Once upon a time there was a queen", "Once upon a time"];
        for pages in [["--page-size", "1"], ["--page-size", "3"], ["--pages", "3"]] {
            let options = ["--max-new-tokens", "12", "--json", "--seed", "23", "--temperature", "0.8"];
            let filters = ["--top-k", "0", "--top-p", "0.95", "--prefix-cache"];
            let arguments = [&["generate"], &beginnings[..], &options, &filters, &pages].concat();
            let told = run(&arguments);
            for (place, beginning) in beginnings.iter().enumerate() {
                let prompt = storyteller.tokenizer.encode(beginning).unwrap();
                let new = &told["outputs"][place]["tokens"]["generated"];
                let expected = drawn(&storyteller, &prompt, 12, 23);
                assert_same(&arguments, &format!("text {}", place + 1), new, &expected);
            }
        }
    }

    /// The best text of so many beams, looked for without a cache.
    fn best(storyteller: &Storyteller, prompt: &[u32], width: usize, max_new_tokens: usize) -> Vec<u32> {
        let mut beams = vec![(prompt.to_vec(), 0.0)];
        for _ in 0..max_new_tokens {
            let mut candidates = Vec::new();
            for (place, (text, score)) in beams.iter().enumerate() {
                let row = log_softmax(&storyteller.model.step(text, None).unwrap());
                candidates
                    .extend((0..).zip(row).map(|(token, log): (u32, f32)| (score + f64::from(log), place, token)));
            }
            candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
            let kept = candidates.iter().take(width);
            beams = kept.map(|(score, place, token)| ([&beams[*place].0[..], &[*token]].concat(), *score)).collect();
        }
        beams[0].0[prompt.len()..].to_vec()
    }

    #[test]
    fn beams_find_the_text_that_a_search_without_a_cache_finds() {
        let storyteller = Storyteller::open();
        let beginning = "The king and the queen";
        let prompt = storyteller.tokenizer.encode(beginning).unwrap();
        // Nothing ends a text, so that scores are compared at one length.
        let folder = Folder::copy_of("storyteller");
        let never = storyteller.model.config().vocab_size - 1;
        folder.set("generation_config.json", "eos_token_id", json!([never]));
        for (width, page_size) in ["1", "2", "3", "5"].iter().zip(PAGES) {
            let expected = best(&storyteller, &prompt, width.parse().unwrap(), 12);
            assert!(!expected.contains(&(never as u32)));
            let arguments = [
                &["generate", beginning, "--beams", width, "--max-new-tokens", "12", "--json"],
                &["--page-size", page_size, "--model", folder.path()][..],
            ];
            let arguments = arguments.concat();
            assert_same(&arguments, "text", &run(&arguments)["tokens"]["generated"], &expected);
        }
    }
}
