//! Commands between two turns: they begin with a slash, and are for the program, not for the model.

use anyhow::{Result, bail, ensure};
use page_by_page::escape;

/// What can be asked of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Another answer to what was typed last.
    Again,
    /// Forget the last turn.
    Undo,
    /// Forget all turns.
    New,
    /// Write all turns as the model reads them.
    Show,
    /// List the commands.
    Help,
    /// End.
    Quit,
}

impl Command {
    /// All of them, in the order of the help.
    pub const ALL: [Command; 6] =
        [Command::Again, Command::Undo, Command::New, Command::Show, Command::Help, Command::Quit];

    /// The command that a line is; `None` if the line is for the model.
    ///
    /// # Errors
    /// If the line begins with a slash and is no command; or at a terminal, if it is a command without its slash.
    pub fn of(line: &str, is_typed: bool) -> Result<Option<Self>> {
        let (word, escape) = (line.trim_end(), "to say it to the model, begin the line with a space");
        if let Some(command) = Command::ALL.into_iter().find(|command| command.name() == word) {
            return Ok(Some(command));
        }
        if line.starts_with('/') {
            let known = Command::ALL.map(Command::name).join(", ");
            bail!("{} is none of the commands {known}; {escape}", escape::quoted(line));
        }
        let meant = match word.to_lowercase().as_str() {
            "exit" => Some(Command::Quit),
            word => Command::ALL.into_iter().find(|command| command.name()[1..] == *word),
        };
        let meant = meant.filter(|_| is_typed);
        ensure!(meant.is_none(), "did you mean {}? {escape}", meant.map_or("", Command::name));
        Ok(None)
    }

    fn name(self) -> &'static str {
        match self {
            Command::Again => "/again",
            Command::Undo => "/undo",
            Command::New => "/new",
            Command::Show => "/show",
            Command::Help => "/help",
            Command::Quit => "/quit",
        }
    }

    /// A line about it. `what` grows turn by turn.
    pub fn help(self, what: &str) -> String {
        let does = match self {
            Command::Again => "another answer to what you typed last, with the next seed".into(),
            Command::Undo => "take the last turn back, yours and the model's".into(),
            Command::New => format!("begin another {what}"),
            Command::Show => format!("the whole {what}, as the model reads it"),
            Command::Help => "these commands".into(),
            Command::Quit => "end; so does Ctrl-D. Ctrl-C stops an answer, or ends if there is none".to_string(),
        };
        format!("{:<7} {does}", self.name())
    }
}
