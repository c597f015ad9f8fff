//! The results, in the order of the lines, each as soon as all before it are there.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_by_page::files::NewFile;
use serde::Serialize;

use crate::output::print;

/// What became of a line.
#[derive(Serialize)]
pub struct Outcome {
    /// Its number in the file, from 1.
    pub line: usize,
    /// How the text begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Why it ended: `stop`, `length`, `cancelled`, `refused`, `failed`.
    pub finish_reason: &'static str,
    /// Why the line was refused, or what failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What drew the tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// What it has cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Token ids.
#[derive(Serialize)]
pub struct Tokens {
    /// The prompt's.
    pub prompt: Vec<u32>,
    /// The output's.
    pub generated: Vec<u32>,
}

/// As it was used: what the line says, or else the model's folder, or else the defaults.
#[derive(Serialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is no limit.
    pub top_k: usize,
    /// 1 is no limit.
    pub top_p: f32,
    /// Same seed, same output.
    pub seed: u64,
}

/// What a request has cost.
#[derive(Serialize)]
pub struct Counters {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the output.
    pub generated_tokens: usize,
    /// Tokens of the prompt that the prefix cache held when the request first ran.
    pub cached: usize,
    /// Tokens that it held when the request ran again after a preemption.
    pub cached_again: usize,
    /// Tokens that went through the model.
    pub computed: u64,
    /// Of these, tokens that were computed a second time after a preemption.
    pub recomputed: u64,
    /// How often it was preempted.
    pub preemptions: u64,
    /// Steps from when its line was read to its first token.
    pub steps_to_first_token: Option<u64>,
}

/// How long a request took.
#[derive(Serialize)]
pub struct Timings {
    /// From when its line was read to its first token.
    pub first_token_ms: Option<f64>,
    /// From one token to the next, on average.
    pub ms_per_token: Option<f64>,
}

/// Whether a request that ended so is complete.
pub fn is_complete(finish_reason: &str) -> bool {
    matches!(finish_reason, "stop" | "length")
}

/// How requests have ended, in a few words.
pub fn describe(finish_reason: &'static str) -> &'static str {
    match finish_reason {
        "stop" => "ended by themselves",
        "length" => "reached their limit",
        other => other,
    }
}

impl Outcome {
    /// A line that was not taken in.
    pub fn refused(line: usize, prompt: Option<String>, error: String) -> Self {
        let (text, tokens, sampling, counters, timings) = (None, None, None, None, None);
        Outcome {
            line,
            prompt,
            text,
            tokens,
            finish_reason: "refused",
            error: Some(error),
            sampling,
            counters,
            timings,
        }
    }
}

/// Where the results go.
pub struct Results {
    out: Out,
    /// Those that are waiting for an earlier one, by their place among all.
    ahead: BTreeMap<usize, Outcome>,
    /// The place that is written next.
    next: usize,
    /// How many ended in each way.
    pub ends: BTreeMap<&'static str, usize>,
}

enum Out {
    Stdout,
    File(PathBuf, NewFile),
    /// Kept, to be part of one JSON object.
    Kept(Vec<Outcome>),
}

impl Results {
    /// Results for standard output, a line each.
    pub fn to_stdout() -> Self {
        Results { out: Out::Stdout, ahead: BTreeMap::new(), next: 0, ends: BTreeMap::new() }
    }

    /// Results that are kept, and not written.
    pub fn kept() -> Self {
        Results { out: Out::Kept(Vec::new()), ..Self::to_stdout() }
    }

    /// Results for a file, a line each. It takes the place of the one that is there when all are written. Refuses the file that
    /// the lines are read from.
    pub fn to_file(file: &Path, input: &Path) -> Result<Self> {
        let name = file.display();
        let (same, there) = (|path: &Path| path.canonicalize().ok(), file.exists());
        ensure!(
            !there || same(file) != same(input),
            "{name}: the lines are read from it; name another file with --out"
        );
        let out = NewFile::begin(file)
            .with_context(|| format!("{name}: name a file in a folder that exists and may be written to"))?;
        Ok(Results { out: Out::File(file.into(), out), ..Self::to_stdout() })
    }

    /// Takes the result of a place. Writes it and those that waited for it, if all before it are written.
    pub fn put(&mut self, place: usize, outcome: Outcome) -> Result<()> {
        *self.ends.entry(outcome.finish_reason).or_default() += 1;
        self.ahead.insert(place, outcome);
        while let Some(outcome) = self.ahead.remove(&self.next) {
            self.next += 1;
            if let Out::Kept(kept) = &mut self.out {
                kept.push(outcome);
                continue;
            }
            let line = serde_json::to_string(&outcome)? + "\n";
            match &mut self.out {
                Out::File(path, file) => {
                    file.write_all(line.as_bytes()).with_context(|| path.display().to_string())?;
                }
                _ => print(&line)?,
            }
        }
        Ok(())
    }

    /// Puts the file in its place, if there is one; the results that were kept.
    pub fn finish(self) -> Result<Vec<Outcome>> {
        match self.out {
            Out::Stdout => Ok(Vec::new()),
            Out::Kept(kept) => Ok(kept),
            Out::File(path, file) => {
                file.finish().with_context(|| path.display().to_string())?;
                Ok(Vec::new())
            }
        }
    }
}
