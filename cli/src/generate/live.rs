//! Outputs that grow side by side on a terminal, with their pages.
//!
//! ```text
//!   1 The king had                  26 │ 2 An old woman               11 ended
//!   pages 0 2                          │ 1 page given back
//!   The king had heard the news        │ An old woman had once come to a
//!   that he had heard from the         │ little girl
//!
//!   1·1·······
//!   2 of 10 pages taken, 8 free
//! ```
//!
//! A page that several sequences own is marked `=`. The picture is written over the one before it. The cursor stays visible, below
//! it, so Ctrl-C leaves the terminal as it should be.

use std::fmt::Write;
use std::time::{Duration, Instant};

use console::{
    Alignment, Term, colors_enabled_stderr, measure_text_width, pad_str, truncate_str, user_attended,
    user_attended_stderr,
};

use super::growing::{Growing, Output};
use crate::output::{self, count, thousands};

/// Columns that an output has at least, if there is room for more than one side by side.
const COLUMN: usize = 34;
const GAP: &str = " │ ";
const MOST_WORDS: usize = 8;
const MOST_MAP: usize = 3;
/// On a smaller terminal the outputs follow each other.
const SMALLEST: (usize, usize) = (20, 8);
const BREATH: Duration = Duration::from_millis(20);
/// In place of an owner's number: a page that several sequences own.
const SHARED: usize = usize::MAX;

pub struct Live {
    term: Term,
    paint: Paint,
    places: Vec<usize>,
    lines: usize,
    width: usize,
    drawn: Option<Instant>,
}

/// The colours of the outputs; none where the terminal has none, or should show none.
#[derive(Clone, Copy)]
struct Paint(bool);

struct Shown<'a> {
    number: usize,
    beginning: &'a str,
    words: &'a str,
    /// Tokens, and whether it waits or has ended.
    state: String,
    /// Its pages, or what became of them.
    pages: Vec<usize>,
    given_back: String,
}

impl Live {
    /// A picture of this many outputs; `None` if there is no terminal, or one that it cannot be drawn on.
    pub fn on_terminal(n_outputs: usize) -> Option<Self> {
        let term = Term::stderr();
        let (height, width) = term.size_checked()?;
        let is_large = width as usize >= SMALLEST.0 && height as usize >= SMALLEST.1;
        let watched = user_attended() && user_attended_stderr() && !console::is_dumb();
        let paint = Paint(colors_enabled_stderr());
        let places = (0..n_outputs).collect();
        (watched && is_large).then_some(Live { term, paint, places, lines: 0, width: 0, drawn: None })
    }

    pub fn draw(&mut self, growing: &Growing<'_>) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < BREATH) && !growing.is_done() {
            return;
        }
        let Growing { outputs, plan, .. } = growing;
        let (height, width) = self.term.size();
        let (height, width) = (height as usize, (width as usize).max(SMALLEST.0));
        if width != self.width {
            // The terminal has broken the old lines in its own way: begin below them.
            (self.lines, self.width) = (0, width);
        }
        let map = plan.pages.as_ref().map_or(Vec::new(), |pages| map(outputs, pages.n_pages, self.paint, width));
        let layout = Layout::of(self.places.len(), width, height, map.len());
        self.assign(layout.places(), outputs);
        let shown = self.places.iter().take(layout.places());
        let shown = shown.map(|&place| Shown::of(&outputs[place], place + 1, plan.shares_pages()));
        let shown: Vec<Shown<'_>> = shown.collect();
        let mut lines = layout.lines(&shown, self.paint);
        let others = self.places.len() - shown.len();
        if others > 0 {
            lines.push(truncate_str(&format!("and {} more", thousands(others)), width, "").into());
        }
        lines.extend(map);
        self.write(&lines);
        self.drawn = Some(Instant::now());
    }

    pub fn clear(mut self) {
        self.write(&[]);
    }

    /// Gives the place of an output that doesn't run now to one that runs and has no place.
    fn assign(&mut self, n_places: usize, outputs: &[Output<'_>]) {
        let n_places = n_places.min(self.places.len());
        let (here, out) = self.places.split_at_mut(n_places);
        let free = here.iter_mut().filter(|place| !outputs[**place].runs);
        let hidden = out.iter_mut().filter(|place| outputs[**place].runs);
        free.zip(hidden).for_each(|(place, hidden)| std::mem::swap(place, hidden));
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

impl<'a> Shown<'a> {
    /// `may_share`: whether other sequences may still own some of its pages.
    fn of(output: &'a Output<'_>, number: usize, may_share: bool) -> Self {
        let suffix = match &output.generated {
            Some(_) => " ended",
            None if output.runs => "",
            None => " waits",
        };
        let what = if may_share { "let go" } else { "given back" };
        let given_back = match output.pages_at_end() {
            0 => String::new(),
            pages => format!("{} {what}", count(pages, "page")),
        };
        Shown {
            number,
            beginning: output.request.beginning,
            words: output.stream.text(),
            state: thousands(output.request.prompt.len() + output.n_new) + suffix,
            pages: output.pages.iter().map(|page| page.index()).collect(),
            given_back,
        }
    }
}

struct Layout {
    width: usize,
    columns: usize,
    rows: usize,
    words: usize,
}

impl Layout {
    /// For a number of outputs in a terminal of this size, `below` lines of which are needed for something else.
    fn of(n_outputs: usize, width: usize, height: usize, below: usize) -> Self {
        let gap = measure_text_width(GAP);
        let columns = ((width + gap) / (COLUMN + gap)).clamp(1, n_outputs.max(1));
        let column = (width - (columns - 1) * gap) / columns;
        // The cursor needs a line, and "and 7 more" may.
        let height = height.saturating_sub(below + 2);
        let rows = n_outputs.div_ceil(columns).clamp(1, (height / 4).max(1));
        let words = (height / rows).saturating_sub(3).clamp(1, MOST_WORDS);
        // The last column is left free: a line that fills it may go on to the next.
        Layout { width: column.saturating_sub(1), columns, rows, words }
    }

    fn places(&self) -> usize {
        self.columns * self.rows
    }

    fn lines(&self, outputs: &[Shown<'_>], paint: Paint) -> Vec<String> {
        let mut lines = Vec::new();
        for row in outputs.chunks(self.columns) {
            let blocks: Vec<Vec<String>> = row.iter().map(|output| self.block(output, paint)).collect();
            for line in 0..self.words + 2 {
                let cells: Vec<&str> = blocks.iter().map(|block| block[line].as_str()).collect();
                lines.push(cells.join(GAP).trim_end().to_string());
            }
            lines.push(String::new());
        }
        lines
    }

    /// The lines of one output: what it is, its pages, its newest words.
    fn block(&self, output: &Shown<'_>, paint: Paint) -> Vec<String> {
        let fill = |text: &str, width| pad_str(text, width, Alignment::Left, Some("")).into_owned();
        let printable: String = output.beginning.chars().filter(|c| !c.is_control()).collect();
        let left = self.width.saturating_sub(output.state.len() + 1);
        let head = fill(&format!("{} {printable}", output.number), left) + " " + &output.state;
        let pages = match output.pages.is_empty() {
            true => output.given_back.clone(),
            false => numbers(&output.pages, self.width),
        };
        let mut lines = vec![
            paint.bold(output.number, &fill(&head, self.width)),
            paint.color(output.number, &fill(&pages, self.width)),
        ];
        let words = wrap(&format!("{}{}", output.beginning, output.words), self.width);
        let newest = &words[words.len().saturating_sub(self.words)..];
        lines.extend((0..self.words).map(|line| fill(newest.get(line).map_or("", String::as_str), self.width)));
        lines
    }
}

impl Paint {
    fn color(self, number: usize, text: &str) -> String {
        const COLORS: [u8; 6] = [36, 33, 35, 32, 34, 31];
        if self.0 { format!("\x1b[{}m{text}\x1b[0m", COLORS[(number - 1) % COLORS.len()]) } else { text.into() }
    }

    fn bold(self, number: usize, text: &str) -> String {
        if self.0 { format!("\x1b[1m{}", self.color(number, text)) } else { text.into() }
    }
}

/// All pages of the pool, each as the sequence that owns it, and how many are free.
fn map(outputs: &[Output<'_>], n_pages: usize, paint: Paint, width: usize) -> Vec<String> {
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
    let sum = format!("{taken} of {} pages taken{shared}, {} free", thousands(n_pages), pages(0));
    let mut lines: Vec<String> = Vec::new();
    if n_pages.div_ceil(width - 1) <= MOST_MAP {
        for pages in owners.chunks(width - 1) {
            let marks = pages.iter().map(|owner| match *owner {
                0 => "·".to_string(),
                SHARED => "=".to_string(),
                number => paint.color(number, mark(number).encode_utf8(&mut [0; 4])),
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

/// As many of the newest page numbers as fit into a line.
fn numbers(pages: &[usize], width: usize) -> String {
    let mut line = String::new();
    for (left, page) in pages.iter().enumerate().rev() {
        let longer = format!(" {page}{line}");
        let more = if left > 0 { measure_text_width(" …") } else { 0 };
        if "pages".len() + longer.len() + more > width {
            return format!("pages …{line}");
        }
        line = longer;
    }
    format!("pages{line}")
}

/// Lines of whole words; a word that is longer than a line is broken. Control characters count as spaces.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut lines = Vec::new();
    for line in output::wrap(&words.collect::<Vec<_>>().join(" "), width, 0) {
        let mut rest = line.as_str();
        while !rest.is_empty() {
            let part = truncate_str(rest, width, "").into_owned();
            rest = rest[part.len()..].trim_start();
            lines.push(part);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORY: &str = " heard the news \u{1b}[2J that he\n\nhad 你好你好你好你好你好你好你好你好 averyverylongwordthatfitsintonoline 🐉";

    fn shown(number: usize, words: &str) -> Shown<'_> {
        let pages = (0..40).map(|page| 7 * page).collect();
        Shown { number, beginning: "The king had", words, state: "1,234".into(), pages, given_back: String::new() }
    }

    #[test]
    fn every_picture_fits_its_terminal() {
        for (width, height) in [(20, 8), (40, 24), (80, 24), (81, 10), (200, 50), (1000, 300)] {
            for (n_outputs, map) in [1, 2, 3, 4, 7, 30, 500].into_iter().flat_map(|n| [(n, 0), (n, 1), (n, 4)]) {
                let layout = Layout::of(n_outputs, width, height, map);
                let outputs: Vec<Shown<'_>> =
                    (1..=n_outputs.min(layout.places())).map(|number| shown(number, STORY)).collect();
                let lines = layout.lines(&outputs, Paint(false));
                let more = usize::from(outputs.len() < n_outputs);
                let at = format!("{n_outputs} outputs in {width} by {height}");
                // The smallest terminals show one output, whatever is below it.
                let fits = lines.len() + more + map < height || outputs.len() == layout.columns;
                assert!(fits, "{at}: {}", lines.len());
                for line in lines {
                    assert!(measure_text_width(&line) < width && !line.contains(char::is_control), "{at}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_block_shows_the_newest_words_and_pages() {
        let layout = Layout { width: 24, columns: 1, rows: 1, words: 2 };
        let lines = layout.lines(&[shown(3, " heard the news that he had heard")], Paint(false));
        let expected = [
            "3 The king had     1,234",
            "pages … 252 259 266 273",
            "The king had heard the",
            "news that he had heard",
            "",
        ];
        assert_eq!(lines, expected);
        assert_eq!(numbers(&[5, 12], 24), "pages 5 12");
        assert_eq!([1, 9, 10, 35, 36].map(mark), ['1', '9', 'a', 'z', '+']);
    }
}
