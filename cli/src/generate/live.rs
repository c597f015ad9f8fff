//! Texts that grow side by side on a terminal, with their pages.
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
//! A page that several texts have is marked `=`.
//!
//! The picture is written over the one before it, as a whole and line by line, so that nothing flickers. The cursor stays
//! visible, below it, so Ctrl-C leaves the terminal as it should be.

use std::fmt::Write;
use std::time::{Duration, Instant};

use console::{Term, colors_enabled_stderr, measure_text_width, user_attended, user_attended_stderr};

use super::growing::{Growing, Story};
use super::several::Asked;
use crate::output::{count, thousands};

/// Columns that a text has at least, if there is room for more than one beside it.
const COLUMN: usize = 34;
/// Between two columns.
const GAP: &str = " │ ";
/// Lines of words for each text, at most.
const MOST_WORDS: usize = 8;
/// Lines of the map of all pages, at most.
const MOST_MAP: usize = 3;
/// A terminal that is smaller shows the texts one after the other.
const SMALLEST: (usize, usize) = (20, 8);
/// Between two pictures.
const BREATH: Duration = Duration::from_millis(20);

/// The picture of texts that are told.
pub struct Live<'a> {
    term: Term,
    asked: &'a [Asked<'a>],
    paint: Paint,
    /// The text that each place shows.
    places: Vec<usize>,
    /// Lines on the screen.
    lines: usize,
    width: usize,
    drawn: Option<Instant>,
}

/// In place of a text's number: several have the page.
const SHARED: usize = usize::MAX;

/// How texts are told apart; nothing where the terminal has no colours, or shall not show them.
#[derive(Clone, Copy)]
struct Paint(bool);

/// What there is to show of a text.
struct Shown<'a> {
    number: usize,
    beginning: &'a str,
    words: &'a str,
    tokens: usize,
    pages: Vec<usize>,
    waits: bool,
    /// The pages that it has given back, if it has ended.
    given_back: Option<usize>,
    /// Whether others may still have some of them.
    may_share: bool,
}

impl<'a> Live<'a> {
    /// A picture of these texts; `None` if there is no terminal, or where it could not be drawn.
    pub fn on_terminal(asked: &'a [Asked<'a>]) -> Option<Self> {
        let term = Term::stderr();
        let (height, width) = term.size_checked()?;
        let is_large = width as usize >= SMALLEST.0 && height as usize >= SMALLEST.1;
        let watched = user_attended() && user_attended_stderr() && !console::is_dumb();
        let paint = Paint(colors_enabled_stderr());
        let places = (0..asked.len()).collect();
        (watched && is_large).then_some(Live { term, asked, paint, places, lines: 0, width: 0, drawn: None })
    }

    /// Shows how far the texts are. `n_pages`: of the pool that all share, if they do. `may_share`: whether a page can have
    /// several owners.
    pub fn draw(&mut self, growing: &Growing<'_>, n_pages: Option<usize>, may_share: bool) {
        let stories = &growing.stories;
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < BREATH) && !growing.is_done() {
            return;
        }
        let (height, width) = self.term.size();
        let (height, width) = (height as usize, (width as usize).max(SMALLEST.0));
        if width != self.width {
            // The terminal has broken the old lines in its own way: begin below them.
            (self.lines, self.width) = (0, width);
        }
        let map = n_pages.map(|n_pages| map(stories, n_pages, self.paint, width)).unwrap_or_default();
        let layout = Layout::of(self.places.len(), width, height, map.len());
        self.assign(layout.texts(), stories);
        let shown: Vec<Shown<'_>> = self
            .places
            .iter()
            .take(layout.texts())
            .map(|&place| {
                let (story, asked) = (&stories[place], &self.asked[place]);
                Shown {
                    number: place + 1,
                    beginning: asked.beginning,
                    words: story.stream.text(),
                    tokens: asked.prompt.len() + story.n_new,
                    pages: story.pages.iter().map(|page| page.index()).collect(),
                    waits: !story.runs,
                    given_back: story.generated.as_ref().map(|_| story.pages_at_end()),
                    may_share,
                }
            })
            .collect();
        let mut lines = layout.lines(&shown, self.paint);
        let others = self.places.len() - shown.len();
        if others > 0 {
            lines.push(cut(&format!("and {} more", thousands(others as u64)), width));
        }
        lines.extend(map);
        self.write(&lines);
        self.drawn = Some(Instant::now());
    }

    /// Takes the picture away, so that the texts can follow.
    pub fn clear(mut self) {
        self.write(&[]);
    }

    /// Gives the place of a text that is not told now to one that is and has none.
    fn assign(&mut self, n_places: usize, stories: &[Story<'_>]) {
        let is_told = |place: usize| stories[place].runs;
        let n_places = n_places.min(self.places.len());
        let (here, out) = self.places.split_at_mut(n_places);
        let mut hidden = out.iter_mut().filter(|place| is_told(**place));
        for place in here.iter_mut().filter(|place| !is_told(**place)) {
            match hidden.next() {
                Some(other) => std::mem::swap(place, other),
                None => break,
            }
        }
    }

    fn write(&mut self, lines: &[String]) {
        let mut out = String::new();
        if self.lines > 0 {
            let _ = write!(out, "\x1b[{}A\r", self.lines);
        }
        for line in lines {
            let _ = writeln!(out, "{line}\x1b[K");
        }
        // What an earlier, longer picture has left below.
        out.push_str("\x1b[J");
        self.lines = lines.len();
        // If it cannot be drawn, the outputs follow all the same.
        let _ = self.term.write_str(&out);
    }
}

/// Places for texts, each as wide and as high as the others.
struct Layout {
    width: usize,
    columns: usize,
    rows: usize,
    /// Lines of words in each.
    words: usize,
}

impl Layout {
    /// For a number of outputs in a terminal of this size, `below` lines of which are needed for something else.
    fn of(n_texts: usize, width: usize, height: usize, below: usize) -> Self {
        let gap = measure_text_width(GAP);
        let columns = ((width + gap) / (COLUMN + gap)).clamp(1, n_texts.max(1));
        let column = (width - (columns - 1) * gap) / columns;
        // The cursor needs a line, and "and 7 more" may.
        let height = height.saturating_sub(below + 2);
        let rows = n_texts.div_ceil(columns).clamp(1, (height / 4).max(1));
        let words = (height / rows).saturating_sub(3).clamp(1, MOST_WORDS);
        // The last column is left free: a line that fills it may go on to the next.
        Layout { width: column.saturating_sub(1), columns, rows, words }
    }

    /// How many texts it shows.
    fn texts(&self) -> usize {
        self.columns * self.rows
    }

    fn lines(&self, texts: &[Shown<'_>], paint: Paint) -> Vec<String> {
        let mut lines = Vec::new();
        for row in texts.chunks(self.columns) {
            let blocks: Vec<Vec<String>> = row.iter().map(|text| self.block(text, paint)).collect();
            for line in 0..self.words + 2 {
                let cells: Vec<&str> = blocks.iter().map(|block| block[line].as_str()).collect();
                lines.push(cells.join(GAP).trim_end().to_string());
            }
            lines.push(String::new());
        }
        lines
    }

    /// The lines of one text: what it is, its pages, its newest words.
    fn block(&self, text: &Shown<'_>, paint: Paint) -> Vec<String> {
        let tokens = thousands(text.tokens as u64);
        let state = match text.given_back {
            None if text.waits => format!("{tokens} waits"),
            None => tokens,
            Some(_) => format!("{tokens} ended"),
        };
        let left = self.width.saturating_sub(state.len() + 1);
        let head = fill(&cut(&format!("{} {}", text.number, text.beginning), left), left) + " " + &state;
        let pages = match text.given_back {
            _ if !text.pages.is_empty() => numbers(&text.pages, self.width),
            Some(pages) if pages > 0 => {
                let what = if text.may_share { "let go" } else { "given back" };
                cut(&format!("{} {what}", count(pages, "page")), self.width)
            }
            _ => String::new(),
        };
        let mut lines = vec![
            paint.bold(text.number, &fill(&cut(&head, self.width), self.width)),
            paint.color(text.number, &fill(&pages, self.width)),
        ];
        let words = wrap(&format!("{}{}", text.beginning, text.words), self.width);
        let newest = &words[words.len().saturating_sub(self.words)..];
        for index in 0..self.words {
            lines.push(fill(newest.get(index).map_or("", String::as_str), self.width));
        }
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

/// All pages of the pool, each as the text that has it, and how many are free.
fn map(stories: &[Story<'_>], n_pages: usize, paint: Paint, width: usize) -> Vec<String> {
    let mut owners = vec![0; n_pages];
    for (story, number) in stories.iter().zip(1..) {
        for page in &story.pages {
            let owner = &mut owners[page.index()];
            *owner = if *owner == 0 { number } else { SHARED };
        }
    }
    let pages = |owner: usize| thousands(owners.iter().filter(|found| **found == owner).count() as u64);
    let (free, shared) = (pages(0), pages(SHARED));
    let taken = thousands(owners.iter().filter(|owner| **owner > 0).count() as u64);
    let shared = if shared == "0" { String::new() } else { format!(", {shared} of them by several texts (=)") };
    let sum = format!("{taken} of {} pages taken{shared}, {free} free", thousands(n_pages as u64));
    let sum = cut(&sum, width - 1);
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
    lines.push(sum);
    lines
}

/// A text in one character: 1 to 9, then a to z, then +.
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

/// Lines of whole words. What no terminal should see of a text is a space.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let long = measure_text_width(word);
        if used > 0 && used + 1 + long > width {
            lines.push(String::new());
            used = 0;
        }
        if used > 0 {
            lines.last_mut().expect("there is a line").push(' ');
            used += 1;
        }
        // A word that is longer than a line, or a text without spaces.
        for c in word.chars() {
            let long = measure_text_width(c.encode_utf8(&mut [0; 4]));
            if used + long > width {
                lines.push(String::new());
                used = 0;
            }
            lines.last_mut().expect("there is a line").push(c);
            used += long;
        }
    }
    lines
}

/// The beginning of a text that fits.
fn cut(text: &str, width: usize) -> String {
    let mut line = String::new();
    let mut used = 0;
    for c in text.chars().filter(|c| !c.is_control()) {
        used += measure_text_width(c.encode_utf8(&mut [0; 4]));
        if used > width {
            break;
        }
        line.push(c);
    }
    line
}

/// The text with spaces behind it.
fn fill(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(measure_text_width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORY: &str = " heard the news \u{1b}[2J that he\n\nhad 你好你好你好你好你好你好你好你好 averyverylongwordthatfitsintonoline 🐉";

    fn shown(number: usize, words: &str) -> Shown<'_> {
        let pages = (0..40).map(|page| 7 * page).collect();
        Shown {
            number,
            beginning: "The king had",
            words,
            tokens: 1234,
            pages,
            waits: false,
            given_back: None,
            may_share: false,
        }
    }

    #[test]
    fn every_picture_fits_its_terminal() {
        for (width, height) in [(20, 8), (40, 24), (80, 24), (81, 10), (200, 50), (1000, 300)] {
            for n_texts in [1, 2, 3, 4, 7, 30, 500] {
                for map in [0, 1, 4] {
                    let layout = Layout::of(n_texts, width, height, map);
                    let texts: Vec<Shown<'_>> =
                        (1..=n_texts.min(layout.texts())).map(|number| shown(number, STORY)).collect();
                    let lines = layout.lines(&texts, Paint(false));
                    let more = usize::from(texts.len() < n_texts);
                    let at = format!("{n_texts} texts in {width} by {height}");
                    // The smallest terminals show one text, whatever is below it.
                    assert!(
                        lines.len() + more + map < height || texts.len() == layout.columns,
                        "{at}: {}",
                        lines.len()
                    );
                    for line in lines {
                        assert!(measure_text_width(&line) < width && !line.contains(char::is_control), "{at}: {line}");
                    }
                }
            }
        }
    }

    #[test]
    fn wide_terminals_show_texts_side_by_side_and_narrow_ones_below_each_other() {
        let columns = |width| Layout::of(4, width, 40, 2).columns;
        assert_eq!([200, 80, 40].map(columns), [4, 2, 1]);
        assert!(Layout::of(4, 40, 24, 3).texts() == 4, "each has its place");
        assert!(Layout::of(99, 80, 24, 3).texts() < 99, "not all have");
    }

    #[test]
    fn a_block_shows_the_newest_words_and_pages() {
        let layout = Layout { width: 24, columns: 1, rows: 1, words: 2 };
        let lines = layout.lines(&[shown(3, " heard the news that he had heard")], Paint(false));
        assert_eq!(
            lines,
            [
                "3 The king had     1,234",
                "pages … 252 259 266 273",
                "The king had heard the",
                "news that he had heard",
                ""
            ]
        );
        let ended = Shown { pages: Vec::new(), given_back: Some(9), ..shown(3, "") };
        let lines = layout.lines(&[ended], Paint(true));
        assert!(lines[0].starts_with("\u{1b}[1m\u{1b}[35m3 The king") && lines[0].contains("1,234 ended"), "{lines:?}");
        assert!(lines[1].contains("9 pages given back"), "{lines:?}");
        let ended = Shown { pages: Vec::new(), given_back: Some(9), may_share: true, ..shown(3, "") };
        let lines = layout.lines(&[ended], Paint(false));
        assert!(lines[1].contains("9 pages let go"), "{lines:?}");
        assert_eq!(numbers(&[5, 12], 24), "pages 5 12");
        assert_eq!([1, 9, 10, 35, 36].map(mark), ['1', '9', 'a', 'z', '+']);
    }
}
