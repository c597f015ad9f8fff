//! How results look: numbers as people read them, tables, named lines, text that wraps at words, a progress bar.
//!
//! Results go to standard output, everything else to standard error. Whatever file or name a part of a message is from,
//! a terminal obeys none of it.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use console::{Term, measure_text_width};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub use page_by_page::english::{plural, thousands};
use page_by_page::generation::sampler::SamplingParams;
use page_by_page::serving::EngineTotals;
use page_by_page::{escape, files};
use serde::Serialize;
use serde_json::{Value, json};

/// Writes a line to standard error, broken between words on a terminal. It doesn't matter if that is closed.
pub fn say(line: &str) {
    let mut prose = WordWrap { width: width(&Term::stderr()), ..WordWrap::default() };
    let text = prose.push(&(escape::message(line) + "\n"));
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes text to standard output at once: as it is, or on a terminal with control characters escaped.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { escape::text(text) } else { Cow::from(text) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => error.into(),
        _ => anyhow::anyhow!("standard output: {error}"),
    })
}

pub fn print_json(results: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string(results)? + "\n"))
}

pub fn add(object: &mut Value, key: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        object[key] = json!(value);
    }
}

/// Refuses a file that could not be written, before its content is there.
pub fn ensure_writable(file: &Path) -> Result<()> {
    let checked = if is_stream(file) { Ok(()) } else { files::check_writable(file) };
    checked.with_context(|| format!("cannot write {}", file.display()))
}

/// Writes results to a file, whole or not at all; to standard output or another stream as they come.
pub fn write_file(file: &Path, bytes: &[u8]) -> Result<()> {
    let written = if is_stream(file) { std::fs::write(file, bytes) } else { files::write_whole(file, bytes) };
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// A file in /dev takes bytes as they come: standard output, or what a shell puts in place of `>(command)`.
fn is_stream(file: &Path) -> bool {
    file.starts_with("/dev") && !file.is_dir()
}

pub type ReportLines = Vec<(&'static str, String)>;

/// The lines of a report as text: names, and values in a column beside them. What follows a semicolon goes on a line of
/// its own, so that a narrow window shows every number.
pub fn named_lines(lines: &ReportLines) -> String {
    let line = |(name, text): &(&str, String)| format!("{name:<9}  {}\n", text.replace("; ", "\n           "));
    lines.iter().map(line).collect()
}

/// Writes the lines of a report to standard error, after an empty line and after the table if there is one.
pub fn say_report(table: Option<&Table>, lines: &ReportLines) {
    say("");
    if let Some(table) = table {
        table.render().lines().for_each(say);
        say("");
    }
    named_lines(lines).lines().for_each(say);
}

/// Columns of a terminal; `None` where there is no terminal, or where it does not say.
fn width(term: &Term) -> Option<usize> {
    term.is_term().then(|| term.size_checked()).flatten().map(|(_, columns)| usize::from(columns))
}

/// Text that is written piece by piece. On a terminal its lines break between words, so a word waits for its end.
#[derive(Default)]
pub struct WordWrap {
    width: Option<usize>,
    column: usize,
    /// Spaces, and what follows them so far.
    word: String,
}

impl WordWrap {
    /// Text for standard output, in a line whose first columns are in use.
    pub fn to_stdout_after(column: usize) -> Self {
        WordWrap { width: width(&Term::stdout()), column, ..WordWrap::default() }
    }

    /// Writes a piece, as far as its words are whole.
    pub fn print(&mut self, piece: &str) -> Result<()> {
        match self.width {
            Some(_) => print(&self.push(&escape::text(piece))),
            None => print(piece),
        }
    }

    /// What can be written now that this piece has come.
    fn push(&mut self, piece: &str) -> String {
        let mut ready = String::new();
        for c in piece.chars() {
            let wide = measure_text_width(c.encode_utf8(&mut [0; 4])) > 1;
            let begins = c.is_whitespace() && !self.word.ends_with(char::is_whitespace);
            // Scripts without spaces have wide characters, and may break before and after each.
            if begins || wide {
                ready += &self.end_word();
            }
            if c == '\n' {
                ready.push('\n');
                (self.column, self.word) = (0, String::new());
                continue;
            }
            self.word.push(c);
            if wide {
                ready += &self.end_word();
            }
        }
        ready
    }

    /// The word that was waiting, in this line or in the next.
    fn end_word(&mut self) -> String {
        let word = std::mem::take(&mut self.word);
        let columns = measure_text_width(&word);
        match self.width {
            Some(width) if self.column > 0 && self.column + columns > width => {
                let word = word.trim_start();
                self.column = measure_text_width(word) % width;
                format!("\n{word}")
            }
            _ => {
                self.column += columns;
                word
            }
        }
    }
}

pub fn describe_sampling(sampling: SamplingParams) -> String {
    if sampling.temperature == 0.0 {
        return "greedy".into();
    }
    let mut text = format!("temperature {}", sampling.temperature);
    if sampling.top_k > 0 {
        text.push_str(&format!(", top-k {}", sampling.top_k));
    }
    if sampling.top_p < 1.0 {
        text.push_str(&format!(", top-p {}", sampling.top_p));
    }
    format!("{text}, seed {}", sampling.seed)
}

/// Bytes as MiB, with more digits where there is little.
pub fn mib(bytes: usize) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    if mib < 100.0 { format!("{mib:.2} MiB") } else { format!("{} MiB", thousands(mib.round() as u64)) }
}

/// A rate to three digits or more: `0.52`, `17.3`, `2,310`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => thousands(rate.round() as u64),
    }
}

pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

pub fn per_second(events: usize, duration: Duration) -> f64 {
    if events == 0 { 0.0 } else { events as f64 / duration.as_secs_f64().max(1e-9) }
}

/// A share from 0 to 1, as a percentage: `86.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

pub fn prompts_cached(totals: &EngineTotals) -> String {
    let (cached, prompts) = (thousands(totals.cached_tokens), plural(totals.prompt_tokens, "prompt token"));
    let share = percent(totals.cached_tokens as f64 / totals.prompt_tokens.max(1) as f64);
    format!(
        "{cached} of {prompts} cached, {share}; {} more after a preemption",
        thousands(totals.cached_after_preemption)
    )
}

/// Lines of cells in aligned columns: text to the left, numbers to the right.
pub struct Table {
    lines: Vec<Vec<String>>,
    text_columns: usize,
}

impl Table {
    pub fn new(text_columns: usize, heading: &[&str]) -> Self {
        let mut table = Table { lines: Vec::new(), text_columns };
        table.line(heading.iter().copied());
        table
    }

    pub fn line<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.lines.iter().filter_map(move |line| line.get(column));
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column < self.text_columns { format!("{cell:<width$}   ") } else { format!("{cell:>width$}   ") }
            });
            text += cells.collect::<String>().trim_end();
            text.push('\n');
        }
        text
    }
}

/// A progress bar: on a terminal only, and only for what takes longer than two seconds.
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new(what: &'static str, steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden()).with_message(what);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} %, {eta} left");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        Progress(bar)
    }

    /// For work whose steps are not known: says what is done, and for how long already, from the beginning.
    pub fn spinner(what: String) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("a valid template");
        let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    pub fn advance(&self, steps: u64) {
        self.0.inc(steps);
        self.show_in_time();
    }

    pub fn reach(&self, steps: u64) {
        self.0.set_position(steps);
        self.show_in_time();
    }

    fn show_in_time(&self) {
        if self.0.is_hidden() && self.0.elapsed() > Duration::from_secs(2) {
            self.0.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_however_the_pieces_come() {
        let text = "Once upon a time, him go\nto 你好你好 averyveryverylongword\n";
        let broken = "Once upon\na time,\nhim go\nto 你好你\n好\naveryveryverylongword\n";
        for size in 1..8 {
            let mut prose = WordWrap { width: Some(10), ..WordWrap::default() };
            let chars: Vec<char> = text.chars().collect();
            let pieces = chars.chunks(size).map(|piece| prose.push(&piece.iter().collect::<String>()));
            assert_eq!(pieces.collect::<String>(), broken, "pieces of {size}");
        }
    }
}
