//! Commands between two turns: they begin with a slash, and are for the program, not for the model.

use anyhow::{Result, bail};
use page_by_page::escape;

#[derive(Clone, Copy)]
pub enum Command {
    Again,
    Undo,
    New,
    Show,
    Help,
    Quit,
}

impl Command {
    /// All of them with their names, and what they do, in the order of the help. `{}` is what grows turn by turn.
    const ALL: [(Command, &'static str, &'static str); 6] = [
        (Command::Again, "/again", "another answer to what you typed last, with the next seed"),
        (Command::Undo, "/undo", "take the last turn back, yours and the model's"),
        (Command::New, "/new", "begin another {}"),
        (Command::Show, "/show", "the whole {}, as the model reads it"),
        (Command::Help, "/help", "these commands"),
        (Command::Quit, "/quit", "end; so does Ctrl-D. Ctrl-C stops an answer, or ends if there is none"),
    ];

    /// The command that a line is; `None` if the line is for the model.
    ///
    /// # Errors
    /// If the line begins with a slash and is no command.
    pub fn of(line: &str) -> Result<Option<Self>> {
        let word = line.trim_end();
        let found = Command::ALL.iter().find(|(_, name, _)| *name == word).map(|(command, ..)| *command);
        if found.is_none() && line.starts_with('/') {
            let known = Command::ALL.map(|(_, name, _)| name).join(", ");
            let line = escape::quoted(line);
            bail!("{line} is none of the commands {known}; to say it to the model, begin the line with a space");
        }
        Ok(found)
    }

    /// A line about each. `what` grows turn by turn.
    pub fn help(what: &str) -> impl Iterator<Item = String> {
        Command::ALL.iter().map(move |(_, name, does)| format!("{name:<7} {}", does.replace("{}", what)))
    }
}
