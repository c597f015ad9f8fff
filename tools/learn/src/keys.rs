//! What the keys do.

use std::io;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use page_by_page_course::chapters::ExerciseState;

use crate::app::{App, View};
use crate::terminal::Screen;
use crate::text::{BOLD, PLAIN, Paragraph, blank, plain, prose};
use crate::view::{reading, verdict};
use crate::{list, reset};

/// What a key does. One that shows something closes it, too.
enum Action {
    Act(fn(&mut App)),
    Show(fn(&App) -> Vec<Paragraph>),
    /// Once all is green.
    ShowIfGreen(fn(&App) -> Vec<Paragraph>),
}

use Action::{Act, Show, ShowIfGreen};

/// The keys that mean the same everywhere: each with what it does, in words and in code. Taken before these are j, k, b
/// and space (they scroll), q (it leaves) and y (it confirms a reset).
const KEYS: &[(char, &str, Action)] = &[
    ('h', "the hints for the current task, one by one", Act(App::hint)),
    ('a', "all failures, not only the first", Show(|app| verdict::failures(&app.current))),
    ('t', "the task's section of the page; press it again for the whole page", Act(|app| app.show(View::Task))),
    ('o', "open the page in the browser; the book is built first if it isn't served", Act(App::open_page)),
    ('s', "start the page's command with your code", Act(App::start_program)),
    ('r', "run the checks again", Act(|app| app.check(Instant::now()))),
    ('x', "reset the file to the stub; asks first, and keeps a copy", Act(App::ask_to_reset)),
    ('v', "compare your code with the reference, once all is green", ShowIfGreen(|app| reading::compare(&app.current))),
    ('c', "the chapter's questions, once all is green", Act(|app| app.show_if_green(View::Question(0, false)))),
    ('n', "next chapter", Act(|app| app.open_chapter((app.at + 1).min(app.chapters.len() - 1)))),
    ('p', "previous chapter", Act(|app| app.open_chapter(app.at.saturating_sub(1)))),
    ('l', "all chapters: whose code, the last runs, and what to do next", Show(list::shown)),
    ('?', "these keys, and back", Show(|_| help())),
];

fn help() -> Vec<Paragraph> {
    let keys = KEYS.iter().map(|(key, words, _)| (key.to_string(), *words));
    let others = [
        ("↓ ↑", "scroll, like j and k; space and b by a page, home and end"),
        ("esc", "back to the verdict"),
        ("^Z", "suspend; fg in the shell comes back"),
        ("q  ^C", "quit; your place is kept"),
    ];
    let keys = keys.chain(others.map(|(key, words)| (key.to_string(), words)));
    let keys = keys.map(|(key, words)| prose(format!("{key:<7}"), BOLD).and(words, PLAIN));
    let mut lines = vec![prose("Keys", BOLD), blank()];
    lines.extend(keys);
    lines.push(blank());
    lines.push(plain(
        "Edit the chapter's file in your own editor. On each save the checks of the current task run first, then all \
         others. The current task is the first one with a red check.",
    ));
    lines.push(plain("A check that needs a later task waits for it: it is neither green nor red."));
    lines
}

/// What the view of a key shows.
pub fn shown(app: &App, key: char) -> Vec<Paragraph> {
    match KEYS.iter().find(|(name, ..)| *name == key) {
        Some((.., Show(lines) | ShowIfGreen(lines))) => lines(app),
        _ => Vec::new(),
    }
}

impl App {
    pub fn key(&mut self, key: KeyEvent, screen: &mut Screen) -> io::Result<()> {
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            _ if key.kind == KeyEventKind::Release => {}
            (KeyCode::Char('c'), true) => self.is_over = true,
            (KeyCode::Char('z'), true) => screen.suspend()?,
            (KeyCode::Char('l'), true) => screen.redraw()?,
            (_, true) => {}
            (code, false) => self.pressed(code),
        }
        Ok(())
    }

    pub fn pressed(&mut self, code: KeyCode) {
        if self.scrolled(code) {
            return;
        }
        self.note = None;
        match (self.view, code) {
            (View::Reset, KeyCode::Char('y')) => self.reset(),
            (View::Reset, _) => self.show(View::Main),
            (View::Question(at, false), KeyCode::Enter | KeyCode::Char('c')) => self.show(View::Question(at, true)),
            (View::Question(at, true), KeyCode::Enter | KeyCode::Char('c')) => {
                let is_there = at + 1 < self.current.n_questions();
                self.show(if is_there { View::Question(at + 1, false) } else { View::Main });
            }
            (View::Main, KeyCode::Char('q')) => self.is_over = true,
            (_, KeyCode::Esc | KeyCode::Char('q')) => self.show(View::Main),
            (View::Task, KeyCode::Char('t')) => self.show(View::Page),
            (View::Overlay(open), KeyCode::Char(key)) if open == key => self.show(View::Main),
            (_, KeyCode::Char(key)) => match KEYS.iter().find(|(name, ..)| *name == key) {
                Some((.., Act(act))) => act(self),
                Some((.., Show(_))) => self.show(View::Overlay(key)),
                Some((.., ShowIfGreen(_))) => self.show_if_green(View::Overlay(key)),
                None => {}
            },
            _ => {}
        }
    }

    /// Scrolls; false if the key is not one for that.
    fn scrolled(&mut self, code: KeyCode) -> bool {
        let (rows, room) = self.extent;
        let page = room.saturating_sub(1).max(1);
        self.scroll = match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll + page,
            KeyCode::PageUp | KeyCode::Char('b') => self.scroll.saturating_sub(page),
            KeyCode::Home => 0,
            KeyCode::End => rows,
            _ => return false,
        }
        .min(rows.saturating_sub(room));
        true
    }

    pub fn hints_seen(&self) -> usize {
        let seen = self.current.task.map_or(0, |task| self.record.hints_seen(&self.current.chapter.name, task));
        seen.min(self.current.n_hints())
    }

    /// Shows the hints seen so far; there, one more.
    fn hint(&mut self) {
        let (n_hints, before) = (self.current.n_hints(), self.hints_seen());
        let (Some(task), true) = (self.current.task, n_hints > 0) else {
            self.note = Some("the page has no hint for this".into());
            return;
        };
        let now = if before == 0 || self.view == View::Hints { before + 1 } else { before };
        if now > n_hints {
            self.note = Some("that was the last hint; t shows the task's section of the page".into());
            return;
        }
        self.show(View::Hints);
        // The newest hint is at the end.
        self.scroll = if now > 1 { usize::MAX } else { 0 };
        self.record(|current, record| {
            record.chapter_mut(&current.chapter.name).hints.insert(task, now);
        });
    }

    fn show_if_green(&mut self, view: View) {
        match self.current.is_green() {
            true => self.show(view),
            false => self.note = Some("the reference and the questions come once all is green".into()),
        }
    }

    fn ask_to_reset(&mut self) {
        let file = self.current.chapter.exercise();
        match &self.current.exercise {
            Ok(exercise) if exercise.state == ExerciseState::Untouched => {
                self.note = Some(format!("{file} is untouched: there is nothing to reset"));
            }
            Err(_) if !self.current.root.join(&file).exists() => self.reset(),
            _ => self.show(View::Reset),
        }
    }

    fn reset(&mut self) {
        let reset = reset::reset(&self.current.root, &self.current.chapter);
        self.read_exercise();
        let file = self.current.chapter.exercise();
        self.note = Some(match reset {
            Ok(Some(kept)) => format!("{file} is the stub again; your text is in {kept}"),
            Ok(None) => format!("{file} is back"),
            Err(problem) => format!("{problem:#}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_book_has_every_key() {
        let page = include_str!("../../../book/src/tools.md").lines().skip_while(|line| !line.starts_with("|---"));
        let rows = page.skip(1).take_while(|line| line.starts_with('|'));
        let keys = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2));
        let (table, all) = (keys.collect::<String>(), KEYS.iter().map(|(key, ..)| *key).collect::<String>());
        assert_eq!(table, all, "book/src/tools.md has a table of the keys: its keys, and those of KEYS");
    }
}
