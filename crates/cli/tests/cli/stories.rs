//! Whatever the cache, the drafts, the pool and the company, the program generates the tokens that the model chooses.
//!
//! Here the model is asked for one token after the other: no cache, no draft, no chapter. What beams find is compared
//! with a search without a cache in `tests/engine/beams.rs`.

use grading::story::Storyteller;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use serde_json::{Value, json};

use crate::program::{Run, limited, ok, run_with};
use crate::script::names;

const SEED: u64 = 23;
const DRAWN: [&str; 6] = ["--temperature=0.8", "--top-k=0", "--top-p=0.95", "--seed=23", "--json", "--max-new-tokens"];
const GREEDY: [&str; 3] = ["--temperature=0", "--json", "--max-new-tokens"];

const RECOMPUTE: &[&str] = &["--kv=recompute"];
const FLAT: &[&str] = &["--kv=flat"];
const CONTIGUOUS: &[&str] = &["--kv=contiguous"];
const SMALL_PAGES: &[&str] = &["--kv=paged", "--page-size=3"];
const KEEPING: [&[&str]; 5] =
    [FLAT, CONTIGUOUS, SMALL_PAGES, &["--kv=paged", "--page-size=1"], &["--kv=paged", "--page-size=64"]];

const MODEL: &str = "--draft=storyteller-draft";
const LOOKUP: &str = "--draft=prompt-lookup";

/// `n` new tokens, sampled with a seed or always the likeliest, without any cache.
fn alone(storyteller: &Storyteller, prompt: &str, seed: Option<u64>, n: usize) -> Vec<u32> {
    let mut tokens = storyteller.tokenizer.encode(prompt).unwrap();
    let n_prompt = tokens.len();
    let drawn = |seed| SamplingParams { seed, ..SamplingParams::DEFAULT };
    let mut sampler = Sampler::new(seed.map_or(SamplingParams::GREEDY, drawn));
    for _ in 0..n {
        tokens.push(sampler.sample(&storyteller.model.step(&tokens, None).unwrap()));
    }
    tokens.split_off(n_prompt)
}

/// Runs a command that prints JSON; its outputs must have these new tokens.
#[track_caller]
fn check(arguments: &[&str], input: &str, expected: &[Vec<u32>]) -> Vec<Value> {
    let run = run_with(arguments, input.as_bytes());
    assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.stderr);
    let lines = run.json_lines();
    let outputs = lines[0]["outputs"].as_array().unwrap_or(&lines);
    let found = outputs.iter().map(|output| serde_json::from_value(output["tokens"]["new"].clone()).unwrap());
    assert_eq!(found.collect::<Vec<Vec<u32>>>(), expected, "{arguments:?}");
    lines
}

struct Story {
    prompt: &'static str,
    drawn: bool,
    expected: Vec<u32>,
}

impl Story {
    fn of(storyteller: &Storyteller, prompt: &'static str, drawn: bool, n: usize) -> Self {
        Story { prompt, drawn, expected: alone(storyteller, prompt, drawn.then_some(SEED), n) }
    }

    /// Generates it with these options, and looks at what is left in the cache.
    #[track_caller]
    fn check(&self, options: &[&str]) -> Value {
        let n = self.expected.len();
        let most = n.to_string();
        let sampling = if self.drawn { &DRAWN[..] } else { &GREEDY };
        let arguments = [&["generate", self.prompt], sampling, &[&most[..]], options].concat();
        let json = check(&arguments, "", std::slice::from_ref(&self.expected)).remove(0);
        if json["kv"] != "recompute" {
            // The newest token was never computed.
            let held = json["tokens"]["prompt"].as_array().unwrap().len() + n - 1;
            assert_eq!(json["counters"]["tokens"], held, "{arguments:?}: tokens left in the cache");
        }
        json
    }
}

#[test]
fn every_cache_with_and_without_drafts() {
    let storyteller = Storyteller::open();
    let caches = [&[RECOMPUTE][..], &KEEPING].concat();
    for drawn in [true, false] {
        let story = Story::of(&storyteller, "The king and the queen and the king", drawn, 25);
        for cache in &caches {
            story.check(cache);
        }
        let drafts =
            [(MODEL, "--draft-len=4"), (LOOKUP, "--draft-len=3"), (MODEL, "--draft-len=1"), (LOOKUP, "--draft-len=9")];
        for (cache, (draft, len)) in caches.iter().zip(drafts.iter().cycle().skip(usize::from(!drawn))) {
            story.check(&[cache, &[*draft, *len][..]].concat());
        }
    }
    // Greedy leaves nothing to chance, whichever rule accepts; and drafts are cut where the output ends.
    for (most, options) in [(25, "--accept=sample"), (1, "--draft-len=8"), (3, "--draft-len=8")] {
        let story = Story::of(&storyteller, "Once upon a time", false, most);
        for (cache, draft) in [(RECOMPUTE, MODEL), (SMALL_PAGES, MODEL), (CONTIGUOUS, LOOKUP)] {
            story.check(&[cache, &[draft, options]].concat());
        }
    }
}

const PROMPTS: [&str; 5] = [
    "Once upon a time there was a king",
    "Once upon a time there was a queen",
    "An old woman",
    "Once upon a time there was a king",
    "One day",
];

#[test]
fn several_prompts_and_samples_of_one_in_every_memory() {
    let storyteller = Storyteller::open();
    let several = PROMPTS.map(|prompt| alone(&storyteller, prompt, Some(SEED), 20)).to_vec();
    let samples = (0..4).map(|n| alone(&storyteller, PROMPTS[2], Some(SEED + n), 20)).collect();
    for (asked, expected) in [(&PROMPTS[..], several), (&[PROMPTS[2], "--samples=4"][..], samples)] {
        // In these 8 pages of 3, and 12 for longer prompts, sequences are preempted.
        let few_pages = if asked == PROMPTS { "--pages=12" } else { "--pages=8" };
        for memory in [&[][..], RECOMPUTE, FLAT, CONTIGUOUS, &["--page-size=3", few_pages]] {
            check(&[&["generate"][..], asked, &DRAWN, &["20"], memory].concat(), "", &expected);
        }
    }
}

#[test]
fn requests_of_a_batch_in_every_pool() {
    let storyteller = Storyteller::open();
    let asked = [(0, 20, None), (0, 30, Some(7)), (2, 20, None), (1, 25, Some(1)), (4, 0, Some(1)), (3, 12, Some(9))];
    let lines = asked.map(|(prompt, most, seed)| {
        let (temperature, seed) = (if seed.is_some() { 0.8 } else { 0.0 }, seed.unwrap_or(0));
        json!({ "prompt": PROMPTS[prompt], "max_new_tokens": most, "temperature": temperature, "top_k": 0, "top_p": 0.95,
            "seed": seed })
    });
    let expected = asked.map(|(prompt, most, seed)| alone(&storyteller, PROMPTS[prompt], seed, most));
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let pools: [&[&str]; 4] = [
        &["--pages=4"],
        &["--pages=4", "--no-prefix-cache", "--token-budget=8"],
        &["--pages=16", "--page-size=3", "--token-budget=5", "--max-running=3"],
        &["--pages=55", "--page-size=1", "--token-budget=1", "--max-running=1"],
    ];
    let mut preempted = 0;
    for pool in pools {
        let results = check(&[&["batch", "-"], pool].concat(), &input, &expected);
        for (result, expected) in results.iter().zip(&expected) {
            let (counters, n_new) = (&result["counters"], expected.len());
            preempted += counters["preemptions"].as_u64().unwrap();
            assert_eq!(counters["new_tokens"], n_new, "{pool:?}: {result}");
        }
    }
    assert!(preempted > 5, "{preempted} preemptions: this has shown little");
}

#[test]
fn a_story_goes_on_where_it_was_left_and_nothing_saved_is_computed_again() {
    let (storyteller, place) = (Storyteller::open(), tempfile::tempdir().unwrap());
    let file = place.path().join("story.cache").to_str().unwrap().to_string();
    let story = Story::of(&storyteller, "Once upon a time", true, 30);
    story.check(&["--save-cache", &file]);
    let prompt = format!("Once upon a time{}", storyteller.tokenizer.decode(&story.expected).unwrap());
    let more = alone(&storyteller, &prompt, Some(SEED), 15);
    for cache in KEEPING {
        let options = [&["15", "--load-cache", &file][..], cache].concat();
        let ran = check(&[&["generate", &prompt], &DRAWN[..], &options].concat(), "", std::slice::from_ref(&more));
        assert_eq!(ran[0]["restored"], json!({ "saved": 34, "kept": 34 }), "{cache:?}");
    }
}

/// A limit on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_story_is_generated_even_if_its_cache_cannot_be_saved() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("story.cache");
    std::fs::write(&file, "precious").unwrap();
    let story = ["generate", "--max-new-tokens", "30"];
    let whole = ok(&story).stdout;
    let says = format!("error: the output is complete, but its cache was not saved: {}: ", file.display());
    for json in [&["--json"][..], &[]] {
        let mut program = limited("-f 8");
        let run = Run::of(program.args(story).args(json).arg("--save-cache").arg(&file).output().unwrap());
        assert_eq!(run.code, Some(1));
        let shown = match json.is_empty() {
            false => format!("Once upon a time{}\n", run.json()["text"].as_str().unwrap()),
            true => run.stdout,
        };
        assert_eq!(shown, whole);
        assert!(run.stderr.lines().last().unwrap().starts_with(&says), "{}", run.stderr);
        assert_eq!(!json.is_empty(), run.stderr.lines().count() == 1, "the costs are reported: {}", run.stderr);
        assert_eq!(
            (names(place.path()), std::fs::read(&file).unwrap()),
            (vec!["story.cache".into()], b"precious".into())
        );
    }
}
