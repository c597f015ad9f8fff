//! A text that two write in turns: whoever types, and the model. `tell` and `chat` differ in how the turns become one text.
//!
//! ```text
//!   prompt of turn 1   [ typed 1 ]
//!   prompt of turn 2   [ typed 1 | told 1 | typed 2 ]                        the prefix cache has all but what is new,
//!   prompt of turn 3   [ typed 1 | told 1 | typed 2 | told 2 | typed 3 ]     and the rest of a page that was not full
//! ```
//!
//! Nothing is kept of a text between two turns but the pages that the prefix cache keeps of it. So a turn is taken back by
//! leaving it out of the next prompt.

mod keyboard;
mod word;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::escape;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{FinishReason, SequenceId};
use page_by_page::serving::{Generated, Serving};

use super::choosing::Choosing;
use super::generate::whose_chapters;
use super::interrupt::Interrupt;
use super::kv::{Kv, require_chapters};
use super::reading::Reading;
use super::report::{count, thousands};
use super::sharing::Pool;
use super::{model_dir, print, say};
use keyboard::{Keyboard, Next};
use word::Word;

/// What it runs: greedy choice, the pool, its tables and slab, forks, the prefix cache, the scheduler.
const CHAPTERS: [usize; 7] = [1, 4, 5, 6, 10, 11, 12];

/// Which model talks, and how.
#[derive(Args)]
pub struct Talking {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    pub model: PathBuf,
    #[command(flatten)]
    choosing: Choosing,
    #[command(flatten)]
    pool: Pool,
    #[command(flatten)]
    reading: Reading,
}

/// A turn of a text.
#[derive(Clone)]
pub struct Turn {
    /// What was typed.
    pub typed: String,
    /// What the model said to that, once it has.
    pub told: Option<String>,
    /// Answers to this that were not wanted.
    again: u64,
}

/// How turns become one text.
pub trait Script {
    /// What grows: a story, a chat.
    fn what(&self) -> &'static str;

    /// What to type, in a few words.
    fn hint(&self) -> &'static str;

    /// Whether what was typed is part of what is written, where nobody sees it on a terminal.
    fn shows_typed(&self) -> bool;

    /// All turns as the model reads them. The last one has no answer yet, or they all have one.
    ///
    /// # Errors
    /// If there is no such text.
    fn text(&self, turns: &[Turn]) -> Result<String>;

    /// The tokens of such a text.
    ///
    /// # Errors
    /// If the tokenizer refuses it.
    fn tokens(&self, text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>>;
}

/// A text under way.
struct Session<'m> {
    script: &'m dyn Script,
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    serving: Serving<'m>,
    sampling: Sampling,
    /// New tokens of a turn, at most; `None`: as many as fit.
    max_new_tokens: Option<usize>,
    /// Slots of the pool.
    n_slots: usize,
    interrupt: Interrupt,
    /// Whether somebody types, rather than a file or another program.
    is_typed: bool,
    /// Whether they see what they type where the answers go.
    is_seen: bool,
    turns: Vec<Turn>,
}

/// What is wrong with a turn; all before it is as it was.
type Refused = anyhow::Error;

/// A step of the conversation: it goes on, or ends here.
enum Then {
    More,
    End,
}

impl Talking {
    /// Talks until whoever types has had enough. `begins`: the first turn, if it is known already.
    pub fn run(&self, script: &dyn Script, max_new_tokens: Option<usize>, begins: Option<String>) -> Result<()> {
        require_chapters(&CHAPTERS)?;
        let dir = model_dir(&self.model);
        let (mut model, tokenizer) = (Model::open(&dir)?, Tokenizer::open(&dir)?);
        self.reading.apply(&mut model, Kv::Paged)?;
        let slab = self.pool.slab(&model, 1, "let a step read fewer with --budget")?;
        let (prefixes, limits) = (self.pool.prefixes()?, self.pool.limits(1));
        let serving = Serving::new(&model, &slab, prefixes, limits, &model.config().eos_token_ids)?;
        let is_typed = io::stdin().is_terminal();
        let session = Session {
            script,
            model: &model,
            tokenizer: &tokenizer,
            serving,
            sampling: self.choosing.sampling(model.config())?,
            max_new_tokens,
            n_slots: self.pool.n_slots()?,
            interrupt: Interrupt::watch().context("Ctrl-C cannot be watched for")?,
            is_typed,
            is_seen: is_typed && io::stdout().is_terminal(),
            turns: Vec::new(),
        };
        if is_typed {
            let fit = count(session.most_tokens(), "token");
            say(&format!("{}: {fit} fit. {} /help has more, Ctrl-D ends.", self.model.display(), script.hint()));
        }
        say(&format!("chapters  {}", whose_chapters(&[&CHAPTERS[..], &self.reading.chapters(Kv::Paged)].concat())));
        session.run(begins)
    }
}

impl Session<'_> {
    fn run(mut self, begins: Option<String>) -> Result<()> {
        let mut begins = begins.map(Ok);
        let keyboard = Keyboard::start(self.is_typed)?;
        loop {
            let line = match begins.take() {
                Some(line) => line,
                None => match keyboard.next(&self.interrupt)? {
                    Next::Line(line) => line,
                    Next::Interrupt if !self.is_typed => bail!("interrupted"),
                    Next::Interrupt | Next::End => return Ok(()),
                },
            };
            let heeded = match line {
                Ok(line) => self.heed(&line)?,
                Err(problem) => Err(anyhow!(problem)),
            };
            match heeded {
                Ok(Then::More) => {}
                Ok(Then::End) => return Ok(()),
                // A file does not read what is wrong with it, and write another line.
                Err(problem) if !self.is_typed => return Err(problem),
                Err(problem) => say(&format!("error: {problem:#}")),
            }
        }
    }

    /// Does what a line says.
    fn heed(&mut self, line: &str) -> Result<Result<Then, Refused>> {
        let word = match Word::of(line) {
            Ok(word) => word,
            Err(problem) => return Ok(Err(problem)),
        };
        let what = self.script.what();
        match word {
            None => {
                let turn = Turn { typed: line.trim_end().into(), told: None, again: 0 };
                return Ok(self.take(turn)?.map(|()| Then::More));
            }
            Some(Word::Again) => {
                let Some(last) = self.turns.pop() else { return Ok(Err(anyhow!("there is no answer yet"))) };
                if self.sampling.temperature == 0.0 {
                    say("note: at temperature 0 nothing is drawn: the answer is the same");
                }
                let taken = self.take(Turn { told: None, again: last.again + 1, ..last.clone() })?;
                if taken.is_err() {
                    self.turns.push(last);
                }
                return Ok(taken.map(|()| Then::More));
            }
            Some(Word::Undo) => match self.turns.pop() {
                Some(turn) if turn.typed.is_empty() => say("taken back: what the model said last"),
                Some(turn) => {
                    say(&format!("taken back: {}, and what the model said to it", escape::quoted(&turn.typed)))
                }
                None => return Ok(Err(anyhow!("there is nothing to take back"))),
            },
            Some(Word::New) => {
                self.turns.clear();
                say(&format!("a new {what}"));
            }
            Some(Word::Show) => match self.turns.is_empty() {
                true => return Ok(Err(anyhow!("the {what} has not begun"))),
                false => match self.script.text(&self.turns) {
                    Ok(text) => print(&(text + "\n"))?,
                    Err(problem) => return Ok(Err(problem)),
                },
            },
            Some(Word::Help) => Word::ALL.iter().for_each(|word| say(&word.help(what))),
            Some(Word::Quit) => return Ok(Ok(Then::End)),
        }
        Ok(Ok(Then::More))
    }

    /// Has the model answer to a turn. Without an answer the turn is none.
    fn take(&mut self, turn: Turn) -> Result<Result<(), Refused>> {
        self.turns.push(turn);
        match self.answer() {
            Ok(Ok(told)) => {
                if let Some(turn) = self.turns.last_mut() {
                    turn.told = Some(told);
                }
                Ok(Ok(()))
            }
            Ok(Err(problem)) => {
                self.turns.pop();
                Ok(Err(problem))
            }
            Err(error) => Err(error),
        }
    }

    /// Tokens of the text at most. The newest is never read, and needs no slot.
    fn most_tokens(&self) -> usize {
        self.model.config().max_positions.min(self.n_slots.saturating_add(1))
    }

    /// What the model says to the last turn.
    fn answer(&mut self) -> Result<Result<String, Refused>> {
        let (id, n_prompt) = match self.submit() {
            Ok(submitted) => submitted,
            Err(problem) => return Ok(Err(problem)),
        };
        self.show_typed()?;
        let (answer, told) = self.write(id)?;
        print("\n")?;
        let n_new = told.sequence.new_tokens().len();
        let end = match told.end {
            Ok(FinishReason::EndOfText) => ", the end",
            Ok(FinishReason::Limit) => "",
            Ok(FinishReason::Cancelled) => ", stopped",
            Err(error) => return Ok(Err(error.into())),
        };
        let computed = (n_prompt - told.sequence.counters.cached).min(told.sequence.counters.computed as usize);
        say(&format!(
            "{}: {} found, {} computed; {}{end}",
            count(n_prompt, "prompt token"),
            thousands(told.sequence.counters.cached as u64),
            thousands(computed as u64),
            count(n_new, "new token"),
        ));
        if n_prompt + n_new >= self.most_tokens() {
            let (what, most) = (self.script.what(), count(self.most_tokens(), "token"));
            say(&format!(
                "note: the {what} is full, {most}: /undo takes the last turn back, /new begins another {what}"
            ));
        }
        match self.interrupt.is_asked() {
            true if !self.is_typed => bail!("interrupted"),
            true => self.interrupt.clear(),
            false => {}
        }
        Ok(Ok(answer))
    }

    /// Hands the turns to the scheduler; which text they are, and of how many tokens.
    fn submit(&mut self) -> Result<(SequenceId, usize), Refused> {
        let text = self.script.text(&self.turns)?;
        let prompt = self.script.tokens(&text, self.tokenizer)?;
        let (n_prompt, most, what) = (prompt.len(), self.most_tokens(), self.script.what());
        let room = most.saturating_sub(n_prompt);
        if room == 0 && self.max_new_tokens != Some(0) {
            let why = match most == self.model.config().max_positions {
                true => "the model has no more positions",
                false => "the pool has no more slots; give it more with --pages",
            };
            bail!(
                "the {what} would have {} and have to go on, and {} fit ({why}). Nothing is lost: this turn is left out; \
                 type less, take turns back with /undo, or begin another {what} with /new",
                count(n_prompt, "token"),
                thousands(most as u64)
            );
        }
        let max_new_tokens = self.max_new_tokens.map_or(room, |most| most.min(room));
        let again = self.turns.last().map_or(0, |turn| turn.again);
        let sampling = Sampling { seed: self.sampling.seed.wrapping_add(again), ..self.sampling };
        Ok((self.serving.submit(prompt, max_new_tokens, Sampler::new(sampling))?, n_prompt))
    }

    /// Writes what was typed where the answers go, if it is to be there and is not.
    fn show_typed(&self) -> Result<()> {
        if self.is_seen || !self.script.shows_typed() {
            return Ok(());
        }
        let Some((last, before)) = self.turns.split_last() else { return Ok(()) };
        let (before, all) = (self.script.text(before)?, self.script.text(&self.turns)?);
        let typed = if last.again == 0 { all.strip_prefix(before.as_str()).unwrap_or_default() } else { "" };
        print(typed.trim_start())
    }

    /// Writes an answer as it is made, as far as its characters are whole; up to its end, or to Ctrl-C.
    fn write(&mut self, id: SequenceId) -> Result<(String, Generated)> {
        let mut stream = self.tokenizer.stream();
        let mut is_cancelled = false;
        loop {
            let step = self.serving.step()?;
            for pick in step.new_tokens {
                let is_first = stream.text().is_empty();
                let piece = stream.push(pick.token)?;
                // After the end of a line, a space between two words is none.
                print(if is_first && self.is_seen { piece.trim_start() } else { &piece })?;
            }
            if let Some(generated) = step.generated.into_iter().find(|generated| generated.sequence.id == id) {
                return Ok((stream.text().into(), generated));
            }
            if self.interrupt.is_asked() && !is_cancelled {
                self.serving.cancel(id)?;
                is_cancelled = true;
            }
        }
    }
}
