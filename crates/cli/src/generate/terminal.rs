//! Outputs that grow together on a terminal, two lines each, above a map of their pages.
//!
//! ```text
//! 1: 26 tokens, pages 0 2
//!   The king had heard the news that he had heard from the
//! 2: 11 tokens, ended, 1 page given back
//!   An old woman had once come to a little girl
//!
//! 1·1·······
//! 2 of 10 pages taken, 8 free
//! ```
//!
//! A page that several sequences own is marked `=`. The picture is written over the one before it. The cursor stays
//! visible, below it, so Ctrl-C leaves the terminal as it should be.

use std::fmt::Write;
use std::time::{Duration, Instant};

use console::{Color, Style, Term, measure_text_width, truncate_str, user_attended, user_attended_stderr};

use super::outputs::{Output, OutputSet};
use crate::output::{plural, thousands};

/// Lines of the map of all pages, at most.
const MAX_MAP_LINES: usize = 3;
/// On a smaller terminal the outputs follow each other.
const SMALLEST: (usize, usize) = (20, 8);
const BREATH: Duration = Duration::from_millis(20);
/// In place of an owner's number: a page that several sequences own.
const SHARED: usize = usize::MAX;

pub struct Live {
    term: Term,
    lines: usize,
    width: usize,
    drawn: Option<Instant>,
}

impl Live {
    /// `None` if there is no terminal, or one that the picture cannot be drawn on.
    pub fn on_terminal() -> Option<Self> {
        let term = Term::stderr();
        let (height, width) = term.size_checked()?;
        let is_large = width as usize >= SMALLEST.0 && height as usize >= SMALLEST.1;
        let is_interactive = user_attended() && user_attended_stderr() && !console::is_dumb();
        (is_interactive && is_large).then_some(Live { term, lines: 0, width: 0, drawn: None })
    }

    pub fn draw(&mut self, set: &OutputSet<'_>) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < BREATH) && !set.engine.is_done() {
            return;
        }
        let OutputSet { outputs, pool, .. } = set;
        let (height, width) = self.term.size();
        let (height, width) = (height as usize, (width as usize).max(SMALLEST.0));
        if width != self.width {
            // The terminal has broken the old lines in its own way: begin below them.
            (self.lines, self.width) = (0, width);
        }
        let map = map(outputs, pool.n_pages, width);
        // The cursor needs a line, and "and 7 more" may.
        let places = height.saturating_sub(map.len() + 2) / 2;
        let mut shown: Vec<(usize, &Output<'_>)> = (1..).zip(outputs).collect();
        shown.sort_by_key(|(_, output)| !output.runs);
        shown.truncate(places.max(1));
        shown.sort_by_key(|(number, _)| *number);
        let mut lines = Vec::new();
        for (number, output) in &shown {
            let text = format!("{}{}", output.request.prompt_text, output.text);
            let state = format!("{number}: {}", state(output, set.are_forks()));
            lines.extend(block(*number, &state, &text, width));
        }
        if shown.len() < outputs.len() {
            lines.push(format!("and {} more", thousands(outputs.len() - shown.len())));
        }
        lines.extend(map);
        self.write(&lines);
        self.drawn = Some(Instant::now());
    }

    /// Takes the picture away, so that the outputs can follow.
    pub fn clear(mut self) {
        self.write(&[]);
    }

    fn write(&mut self, lines: &[String]) {
        let mut out = String::new();
        if self.lines > 0 {
            let _ = write!(out, "\x1b[{}A\r", self.lines);
        }
        for line in lines {
            let _ = writeln!(out, "{line}\x1b[K");
        }
        // Clears what an earlier, longer picture has left below.
        out.push_str("\x1b[J");
        self.lines = lines.len();
        // If it cannot be drawn, the outputs follow all the same.
        let _ = self.term.write_str(&out);
    }
}

/// Text in the colour of an output; in none where the terminal has none, or should show none.
fn colored(number: usize, text: &str) -> String {
    const COLORS: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];
    Style::new().for_stderr().fg(COLORS[(number - 1) % COLORS.len()]).apply_to(text).to_string()
}

/// Tokens and pages of an output, and whether it waits or has ended.
fn state(output: &Output<'_>, may_share: bool) -> String {
    let tokens = plural(output.request.prompt.len() + output.n_new, "token");
    let pages: String = output.pages.iter().map(|page| format!(" {page}")).collect();
    let pages = if pages.is_empty() { pages } else { format!(", pages{pages}") };
    match (output.pages_at_end(), &output.finished) {
        (0, None) if !output.runs => format!("{tokens}, waits"),
        (0, Some(_)) => format!("{tokens}, ended"),
        (_, None) => format!("{tokens}{pages}"),
        (held, Some(_)) => {
            let what = if may_share { "let go" } else { "given back" };
            format!("{tokens}, ended, {} {what}", plural(held, "page"))
        }
    }
}

/// What an output is, and its newest text. The last column stays free: a line that fills it may go on to the next.
fn block(number: usize, state: &str, text: &str, width: usize) -> [String; 2] {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let newest = last_columns(&words.join(" "), width - 3).to_string();
    [colored(number, &truncate_str(state, width - 1, "…")), format!("  {newest}")]
}

/// The end of a text in whole words, as much as fits into so few columns.
fn last_columns(text: &str, width: usize) -> &str {
    let starts = text.char_indices().rev().map(|(start, _)| &text[start..]);
    let end = starts.take_while(|end| measure_text_width(end) <= width).last().unwrap_or_default();
    match end.split_once(' ') {
        Some((_, words)) if end.len() < text.len() => words,
        _ => end,
    }
}

/// All pages of the pool, each as the sequence that owns it, and how many are free.
fn map(outputs: &[Output<'_>], n_pages: usize, width: usize) -> Vec<String> {
    let mut owners = vec![0; n_pages];
    for (output, number) in outputs.iter().zip(1..) {
        for page in &output.pages {
            let owner = &mut owners[page.index()];
            *owner = if *owner == 0 { number } else { SHARED };
        }
    }
    let pages = |owner: usize| thousands(owners.iter().filter(|found| **found == owner).count());
    let taken = thousands(owners.iter().filter(|owner| **owner != 0).count());
    let shared = match owners.contains(&SHARED) {
        true => format!(", {} of them by several sequences (=)", pages(SHARED)),
        false => String::new(),
    };
    let sum = format!("{taken} of {} taken{shared}, {} free", plural(n_pages, "page"), pages(0));
    let mut lines: Vec<String> = Vec::new();
    if n_pages.div_ceil(width - 1) <= MAX_MAP_LINES {
        for pages in owners.chunks(width - 1) {
            let marks = pages.iter().map(|owner| match *owner {
                0 => "·".to_string(),
                SHARED => "=".to_string(),
                number => colored(number, mark(number).encode_utf8(&mut [0; 4])),
            });
            lines.push(marks.collect());
        }
    }
    lines.push(truncate_str(&sum, width - 1, "").into());
    lines
}

/// An output in one character: 1 to 9, then a to z, then +.
fn mark(number: usize) -> char {
    "123456789abcdefghijklmnopqrstuvwxyz".chars().nth(number - 1).unwrap_or('+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_shows_the_newest_words_and_fits_its_terminal() {
        let text = "The king\u{1b}[2J had heard\n\nthe 你好你好你好你好 news 🐉";
        let state = "3: 1,234 tokens, pages 0 2 5 7 9 11 13 15 17 19 21 23 25";
        console::set_colors_enabled_stderr(false);
        for width in [20, 40, 81, 200] {
            for line in block(3, state, text, width) {
                assert!(measure_text_width(&line) < width && !line.contains(char::is_control), "{width}: {line}");
            }
        }
        let expected = ["3: 1,234 tokens, pages…", "  heard the 你好你好你好你好 news 🐉"];
        assert_eq!(block(3, state, text, 24)[0], expected[0]);
        assert!(expected[1].ends_with(block(3, state, text, 24)[1].trim_start()));
        console::set_colors_enabled_stderr(true);
        assert!(block(3, state, text, 24)[0].starts_with("\u{1b}[35m3: 1,234"));
        assert_eq!([1, 9, 10, 35, 36].map(mark), ['1', '9', 'a', 'z', '+']);
    }
}
