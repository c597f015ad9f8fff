//! What a person and the model write in turns. `story` and `chat` differ in how the turns become one sequence.
//!
//! ```text
//!   prompt of turn 1   [ typed 1 ]
//!   prompt of turn 2   [ typed 1 | answer 1 | typed 2 ]                          the prefix cache has all but what is new,
//!   prompt of turn 3   [ typed 1 | answer 1 | typed 2 | answer 2 | typed 3 ]     and the rest of a page that was not full
//! ```
//!
//! Between two turns only the prefix cache keeps pages. So a turn is taken back by leaving it out of the next prompt.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use page_by_page::cache_kind::CacheKind;
use page_by_page::escape;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{FinishReason, SequenceId};
use page_by_page::serving::{Engine, FinishedSequence};

use crate::input::{LineReader, Next};
use crate::interrupt::Interrupt;
use crate::options::{KvOptions, ModelOption, PoolOptions, SamplingOptions};
use crate::output::{WordWrap, plural, print, say, thousands};
use crate::requirements::{self, SCHEDULER_AND_ARGMAX};

/// Stands before a line that is typed, and before an answer.
const LABELS: [&str; 2] = ["you>   ", "model> "];

/// What `/help` prints. `{}` is what grows turn by turn.
const HELP: &str = "\
/again  another answer to what you typed last, with the next seed
/undo   take the last turn back, yours and the model's
/new    begin another {}
/show   the whole {}, as the model reads it
/help   these commands
/quit   end; so does Ctrl-D. Ctrl-C stops an answer, or ends if there is none";

/// Which model answers, and how.
#[derive(Args)]
pub struct ConversationOptions {
    #[command(flatten)]
    pub model: ModelOption,
    #[command(flatten, next_help_heading = "Sampling")]
    sampling: SamplingOptions,
    #[command(flatten, next_help_heading = "Memory")]
    pool: PoolOptions,
    #[command(flatten, next_help_heading = "Memory")]
    kv_options: KvOptions,
}

#[derive(Clone)]
pub struct Turn {
    pub typed: String,
    pub answer: Option<String>,
    /// How many answers to this turn were rejected.
    rejected: u64,
}

/// Makes one sequence of turns, as the model gets them. The last one has no answer yet, or they all have one.
type Join = dyn Fn(&[Turn]) -> Result<String>;

pub struct Script {
    /// What grows: a story, a chat.
    pub what: &'static str,
    pub hint: &'static str,
    /// Whether standard output gets what was typed, where it doesn't show on a terminal already.
    pub shows_typed: bool,
    pub text: Box<Join>,
    pub tokens: fn(&str, &Tokenizer) -> Result<Vec<u32>>,
}

struct Conversation<'m> {
    script: &'m Script,
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    engine: Engine<'m>,
    sampling: SamplingParams,
    /// Tokens of an answer, at most; `None`: as many as fit.
    max_new_tokens: Option<usize>,
    max_model_len: usize,
    interrupt: Interrupt,
    /// Whether a person types, rather than a file or another program.
    is_typed: bool,
    /// Whether standard output is the terminal on which the typed lines show.
    is_seen: bool,
    turns: Vec<Turn>,
}

impl ConversationOptions {
    /// Takes turns until the input ends. `first`: the first line, if the command line has it already.
    pub fn run(&self, script: &Script, max_new_tokens: Option<usize>, first: Option<String>) -> Result<()> {
        requirements::ensure_started(&SCHEDULER_AND_ARGMAX)?;
        let (model, tokenizer) = self.model.open_with_tokenizer(self.kv_options, CacheKind::Paged)?;
        let slab = self.pool.slab(&model, 1)?;
        let (prefix_cache, limits) = (self.pool.prefix_cache()?, self.pool.limits(1));
        let engine =
            Engine::new(&model, &slab, prefix_cache, limits, &model.config().eos_token_ids)?.with_tokenizer(&tokenizer);
        let is_typed = io::stdin().is_terminal();
        let conversation = Conversation {
            script,
            model: &model,
            tokenizer: &tokenizer,
            engine,
            sampling: self.sampling.sampling(model.config())?,
            max_new_tokens,
            // The newest token is never computed, and needs no slot.
            max_model_len: model.config().max_positions.min(self.pool.size(&model)?.n_slots().saturating_add(1)),
            interrupt: Interrupt::listen()?,
            is_typed,
            is_seen: is_typed && io::stdout().is_terminal(),
            turns: Vec::new(),
        };
        if is_typed {
            let fit = plural(conversation.max_model_len, "token");
            say(&format!("{}: {fit} fit. {} /help lists commands, Ctrl-D ends.", self.model.name(), script.hint));
        }
        let chapters = [&SCHEDULER_AND_ARGMAX[..], &self.kv_options.chapters(CacheKind::Paged)].concat();
        say(&format!("chapters  {}", requirements::describe(&chapters)));
        conversation.run(first)
    }
}

impl Conversation<'_> {
    fn run(mut self, mut first: Option<String>) -> Result<()> {
        let lines = LineReader::read(io::stdin())?;
        loop {
            let next = match first.take() {
                Some(line) => Some(Ok(line)),
                None => self.next_line(&lines)?,
            };
            let Some(line) = next else { return Ok(()) };
            match line.and_then(|line| self.obey(&line)) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // A file doesn't read what is wrong with it and then write another line.
                Err(error) if self.is_typed && !error.is::<io::Error>() => say(&format!("error: {error:#}")),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next line, or what is wrong with it; `None` at the end, or when a person presses Ctrl-C.
    fn next_line(&self, lines: &LineReader) -> Result<Option<Result<String>>> {
        self.label(LABELS[0]);
        match lines.next(true, &self.interrupt).context("standard input")? {
            Next::Line(line) => Ok(Some(line.text.map_err(|problem| anyhow!("line {}: {problem}", line.number)))),
            Next::Nothing if !self.is_typed => bail!("interrupted"),
            _ => {
                self.label("\n");
                Ok(None)
            }
        }
    }

    /// Writes to standard error who is next, if a person types there.
    fn label(&self, label: &str) {
        if self.is_typed {
            let _ = io::Write::write_all(&mut io::stderr(), label.as_bytes());
        }
    }

    /// Takes a line: a command, or text for the model. Returns whether the conversation goes on.
    fn obey(&mut self, line: &str) -> Result<bool> {
        let what = self.script.what;
        match line.trim_end() {
            "/again" => {
                let Some(last) = self.turns.pop() else { bail!("there is no answer yet") };
                let again = Turn { answer: None, rejected: last.rejected + 1, ..last.clone() };
                self.take(again).inspect_err(|_| self.turns.push(last))?;
            }
            "/undo" => match self.turns.pop() {
                Some(turn) if turn.typed.is_empty() => say("taken back: the model's last answer"),
                Some(turn) => say(&format!("taken back: {}, and the answer", escape::quoted(&turn.typed))),
                None => bail!("there is nothing to take back"),
            },
            "/new" => {
                self.turns.clear();
                say(&format!("a new {what}"));
            }
            "/show" if self.turns.is_empty() => bail!("the {what} has not begun"),
            "/show" => print(&((self.script.text)(&self.turns)? + "\n"))?,
            "/help" => HELP.replace("{}", what).lines().for_each(say),
            "/quit" => return Ok(false),
            typed if typed.starts_with('/') => bail!(
                "{} is none of the commands that /help lists; to say it to the model, begin the line with a space",
                escape::quoted(typed)
            ),
            typed => self.take(Turn { typed: typed.into(), answer: None, rejected: 0 })?,
        }
        Ok(true)
    }

    /// Has the model answer a turn. Without an answer the turn is left out.
    fn take(&mut self, turn: Turn) -> Result<()> {
        self.turns.push(turn);
        let answer = self.answer().inspect_err(|_| drop(self.turns.pop()))?;
        self.turns.last_mut().expect("the turn").answer = Some(answer);
        Ok(())
    }

    fn answer(&mut self) -> Result<String> {
        let (id, n_prompt) = self.submit()?;
        if self.script.shows_typed && !self.is_seen {
            let typed = self.turns.last().filter(|turn| turn.rejected == 0);
            print(typed.map_or("", |turn| turn.typed.trim_start()))?;
        }
        let finished = self.generate(id)?;
        let n_generated = finished.sequence.new_tokens().len();
        let end = match finished.outcome? {
            FinishReason::Stop => ", end of text",
            FinishReason::Length | FinishReason::Error => "",
            FinishReason::Abort => ", stopped",
        };
        let cached = finished.sequence.counters.cached_tokens;
        let computed = (n_prompt - cached).min(finished.sequence.counters.computed_tokens as usize);
        let [cached, computed, generated] = [cached, computed, n_generated].map(thousands);
        let prompt = plural(n_prompt, "prompt token");
        say(&format!("{prompt}: {cached} from the prefix cache, {computed} computed; {generated} generated{end}"));
        if self.interrupt.is_pressed() {
            ensure!(self.is_typed, "interrupted");
            self.interrupt.clear();
        }
        Ok(whole_characters(&finished.text).into())
    }

    /// Hands the turns to the scheduler. Returns the id of the request, and the tokens of its prompt.
    fn submit(&mut self) -> Result<(SequenceId, usize)> {
        let text = (self.script.text)(&self.turns)?;
        let prompt = (self.script.tokens)(&text, self.tokenizer)?;
        let (n_prompt, most, what) = (prompt.len(), self.max_model_len, self.script.what);
        let room = most.saturating_sub(n_prompt);
        if room == 0 && self.max_new_tokens != Some(0) {
            let why = match most == self.model.config().max_positions {
                true => "the model has no more positions",
                false => "the pool has no more slots; give it more with --pages",
            };
            bail!(
                "the {what} would have {} before the answer, and {} fit ({why}). Nothing is lost: this turn is left out; type \
                 less, take turns back with /undo, or begin another {what} with /new",
                plural(n_prompt, "token"),
                thousands(most)
            );
        }
        let max_new_tokens = self.max_new_tokens.map_or(room, |most| most.min(room));
        let rejected = self.turns.last().map_or(0, |turn| turn.rejected);
        let sampling = SamplingParams { seed: self.sampling.seed.wrapping_add(rejected), ..self.sampling };
        Ok((self.engine.submit(prompt, max_new_tokens, Sampler::new(sampling))?, n_prompt))
    }

    /// Writes an answer as it is generated, as far as its characters are whole; up to its end, or to Ctrl-C.
    fn generate(&mut self, id: SequenceId) -> Result<FinishedSequence> {
        self.label(LABELS[1]);
        let mut prose = WordWrap::to_stdout_after(if self.is_seen { LABELS[1].len() } else { 0 });
        let (mut is_first, is_seen) = (true, self.is_seen);
        let mut write = |text: &str| {
            // At the start of a line, a space between two words is left out.
            let text = if is_first && is_seen { text.trim_start() } else { text };
            is_first &= text.is_empty();
            prose.print(text)
        };
        loop {
            let step = self.engine.step()?;
            for (_, delta) in &step.deltas {
                write(&delta.text)?;
            }
            let mut finished = step.finished.into_iter().next();
            if finished.is_none() && self.interrupt.is_pressed() {
                finished = Some(self.engine.cancel(id)?);
            }
            if let Some(finished) = finished {
                write(&(whole_characters(&finished.delta.text).to_string() + "\n"))?;
                return Ok(finished);
            }
        }
    }
}

/// An answer without the bytes at its end that never became a character.
fn whole_characters(answer: &str) -> &str {
    answer.trim_end_matches('\u{FFFD}')
}
