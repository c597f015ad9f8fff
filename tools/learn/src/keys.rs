//! What the keys do.

use std::time::Instant;

use anyhow::{Context, Result};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use page_by_page_course::chapters::State;

use crate::app::{App, Jump, View};
use crate::reset;
use crate::run::Ending;
use crate::terminal::Screen;

impl App {
    /// A key as the terminal reports it.
    pub fn key(&mut self, key: KeyEvent, screen: &mut Screen) -> Result<()> {
        if key.kind == KeyEventKind::Release {
            return Ok(());
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, is_control) {
            (KeyCode::Char('c'), true) => self.is_over = true,
            (KeyCode::Char('z'), true) => screen.suspend().context("the terminal cannot be drawn on")?,
            (KeyCode::Char('l'), true) => screen.redraw().context("the terminal cannot be drawn on")?,
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
        if !self.pressed_in_view(code) {
            self.stop_story_view();
            self.pressed_anywhere(code);
        }
    }

    /// Keys that mean something else in a view; true if this was one.
    fn pressed_in_view(&mut self, code: KeyCode) -> bool {
        match (self.view.clone(), code) {
            (View::Reset(_), KeyCode::Char('y')) => self.reset(),
            (View::Reset(_), _) => self.turn_to(View::Main),
            (View::Question(at, false), KeyCode::Enter | KeyCode::Char('c')) => self.turn_to(View::Question(at, true)),
            (View::Question(at, true), KeyCode::Enter | KeyCode::Char('c')) => {
                let next = at + 1;
                let is_there = next < self.current.n_questions();
                self.turn_to(if is_there { View::Question(next, false) } else { View::Main });
            }
            (View::Main, KeyCode::Char('q')) => self.is_over = true,
            (_, KeyCode::Esc | KeyCode::Char('q')) => {
                self.stop_story_view();
                self.turn_to(View::Main);
            }
            (View::Task, KeyCode::Char('t')) => {
                self.turn_to(View::Page);
                self.jump = Some(Jump::Mark);
            }
            (View::Failures, KeyCode::Char('a')) | (View::Help, KeyCode::Char('?')) => self.turn_to(View::Main),
            _ => return false,
        }
        true
    }

    fn stop_story_view(&mut self) {
        if self.view == View::Story {
            self.stop_story();
        }
    }

    fn pressed_anywhere(&mut self, code: KeyCode) {
        let KeyCode::Char(key) = code else { return };
        match key {
            'h' => self.hint(),
            'a' if !self.current.is_started() => self.note = Some(self.not_begun("nothing is red yet")),
            'a' => self.turn_to(View::Failures),
            't' => self.turn_to(View::Task),
            's' => self.start_story(),
            'o' => self.open(),
            'v' => self.compare(),
            'c' => self.question(),
            'x' => self.ask_to_reset(),
            'n' if self.at + 1 < self.chapters.len() => self.go_to(self.at + 1),
            'n' => self.note = Some("this is the last chapter".into()),
            'p' if self.at > 0 => self.go_to(self.at - 1),
            'p' => self.note = Some("this is the first chapter".into()),
            'r' if !self.current.is_started() => self.note = Some(self.not_begun("there is nothing to check")),
            'r' => {
                // The text is the same, so a green chapter stays green until the checks find something else.
                let is_green = self.current.is_green();
                self.check(Instant::now());
                self.current.is_whole = is_green;
            }
            '?' => self.turn_to(View::Help),
            _ => {}
        }
    }

    fn not_begun(&self, what: &str) -> String {
        format!("{what}: edit {} to begin", self.current.chapter.exercise())
    }

    /// Scrolls; false if the key is not one for that.
    fn scrolled(&mut self, code: KeyCode) -> bool {
        let (rows, room) = self.extent;
        let last = rows.saturating_sub(room);
        let page = room.saturating_sub(1).max(1);
        self.scroll = match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll + page,
            KeyCode::PageUp | KeyCode::Char('b') => self.scroll.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return false,
        }
        .min(last);
        true
    }

    /// Shows the hints seen so far; there, one more.
    fn hint(&mut self) {
        let Some(task) = self.current.current_task() else {
            self.note = Some(match self.current.is_green() {
                true => "all is green, so there are no hints".into(),
                false => "hints are for tasks, and every task is green".into(),
            });
            return;
        };
        let n_hints = self.current.n_hints(task);
        if n_hints == 0 {
            self.note = Some(format!("the page has no hint for task {task}"));
            return;
        }
        let before = self.hints.get(&task).copied().unwrap_or(0).min(n_hints);
        let now = if before == 0 || self.view == View::Hints { (before + 1).min(n_hints) } else { before };
        if self.view == View::Hints && now == before {
            self.note = Some("that was the last hint; t shows the task's section of the page".into());
        }
        self.turn_to(View::Hints);
        // The newest hint is at the end.
        self.jump = (now > 1).then_some(Jump::End);
        if now != before {
            self.hints.insert(task, now);
            let name = self.current.chapter.name.clone();
            self.keep(|record| {
                record.chapter_mut(&name).hints.insert(task, now);
            });
        }
    }

    fn compare(&mut self) {
        if self.current.is_green() {
            return self.turn_to(View::Compare);
        }
        let total = self.current.verdict.total();
        self.note = Some(match (&self.current.ending, self.current.is_started()) {
            (_, false) => self.not_begun("the reference is shown beside your code once that is green"),
            (Ending::Checks, true) if self.current.is_whole => {
                format!("the reference is shown once all is green; {} of {} checks are", total.green, total.of)
            }
            _ => "the reference is shown once all is green".into(),
        });
    }

    fn question(&mut self) {
        match (self.current.is_green(), self.current.n_questions()) {
            (false, _) => {
                self.note = Some("the chapter's questions come once all is green; they are on the page".into())
            }
            (true, 0) => self.note = Some("the page has no questions".into()),
            (true, _) => self.turn_to(View::Question(0, false)),
        }
    }

    fn ask_to_reset(&mut self) {
        let file = self.current.chapter.exercise();
        match (&self.current.exercise, reset::handed_out(&self.current.root, &self.current.chapter)) {
            (Ok(exercise), _) if exercise.state == State::Untouched => {
                self.note = Some(format!("{file} is untouched: there is nothing to reset"));
            }
            (_, Err(problem)) => self.note = Some(format!("{problem:#}")),
            (Err(_), Ok(stub)) if !self.current.root.join(&file).exists() => {
                self.current.stub = Some(stub);
                self.reset();
            }
            (mine, Ok(stub)) => {
                let lost = mine.as_ref().map_or(0, |mine| reset::lost(&mine.text, &stub));
                self.current.stub = Some(stub);
                self.turn_to(View::Reset(lost));
            }
        }
    }

    fn reset(&mut self) {
        let Some(stub) = self.current.stub.clone() else { return };
        self.turn_to(View::Main);
        let file = self.current.chapter.exercise();
        self.note = Some(match reset::reset(&self.current.root, &self.current.chapter, &stub) {
            Ok(Some(kept)) => format!("{file} is the stub again; your text is in {kept}"),
            Ok(None) => format!("{file} is back"),
            Err(problem) => format!("{problem:#}"),
        });
        self.stop_checking();
        self.current.forget();
        self.current.exercise = self.current.chapter.read(&self.current.root);
    }
}
