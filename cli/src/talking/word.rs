//! Words that are for the program, not for the model: they begin with a slash.

use anyhow::{Result, bail};
use page_by_page::escape;

/// What the program can be told between two turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Another answer to what was typed last.
    Again,
    /// Forget the last turn.
    Undo,
    /// Forget all turns.
    New,
    /// Write all turns as the model reads them.
    Show,
    /// Say what the words are.
    Help,
    /// End.
    Quit,
}

impl Word {
    /// All of them, as the help has them.
    pub const ALL: [Word; 6] = [Word::Again, Word::Undo, Word::New, Word::Show, Word::Help, Word::Quit];

    /// The word that a line is; `None` if it is for the model.
    ///
    /// # Errors
    /// If it begins as a word and is none.
    pub fn of(line: &str) -> Result<Option<Self>> {
        if !line.starts_with('/') {
            return Ok(None);
        }
        let found = Word::ALL.into_iter().find(|word| word.name() == line.trim_end());
        if found.is_none() {
            let known = Word::ALL.map(Word::name).join(", ");
            let line = escape::quoted(line);
            bail!("{line} is none of the words {known}; to say it to the model, begin the line with a space");
        }
        Ok(found)
    }

    fn name(self) -> &'static str {
        match self {
            Word::Again => "/again",
            Word::Undo => "/undo",
            Word::New => "/new",
            Word::Show => "/show",
            Word::Help => "/help",
            Word::Quit => "/quit",
        }
    }

    /// A line about it. `what` grows turn by turn.
    pub fn help(self, what: &str) -> String {
        let does = match self {
            Word::Again => "another answer to what you typed last, with the next seed".into(),
            Word::Undo => "take the last turn back, yours and the model's".into(),
            Word::New => format!("begin another {what}"),
            Word::Show => format!("the whole {what}, as the model reads it"),
            Word::Help => "these words".into(),
            Word::Quit => "end; Ctrl-D does too. Ctrl-C stops an answer; when there is none, it ends".to_string(),
        };
        format!("{:<7} {does}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_whole_line_that_begins_with_a_slash() {
        for word in Word::ALL {
            assert_eq!(Word::of(word.name()).unwrap(), Some(word));
            assert_eq!(Word::of(&format!("{} \r", word.name())).unwrap(), Some(word));
            assert_eq!(Word::of(&format!(" {}", word.name())).unwrap(), None);
        }
        assert_eq!((Word::of("").unwrap(), Word::of("a /undo").unwrap()), (None, None));
        let problem = Word::of("/undo it").unwrap_err().to_string();
        assert!(problem.contains("\"/undo it\" is none of the words /again, /undo, "), "{problem}");
    }
}
