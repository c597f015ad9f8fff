//! Commands that are compiled with the feature `serve` only. Without it: how to run them.

use anyhow::{Result, bail};
use clap::Args;

/// Whatever a command was given.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Missing {
    /// What it was given
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Says what to do.
    pub fn run(self, command: &str) -> Result<()> {
        let features = if cfg!(feature = "solution") { "solution,serve" } else { "serve" };
        let arguments: String = self.arguments.iter().map(|argument| format!(" {}", in_a_shell(argument))).collect();
        bail!(
            "this program was built without the feature `serve`, which {command} needs; run it so: \
             cargo run --release --features {features} -- {command}{arguments}"
        )
    }
}

/// An argument as a shell takes it.
fn in_a_shell(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.into();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_reaches_the_program_as_it_was() {
        assert_eq!(in_a_shell("--port=80"), "--port=80");
        assert_eq!(in_a_shell(""), "''");
        assert_eq!(in_a_shell("it's $HOME"), r"'it'\''s $HOME'");
    }
}
