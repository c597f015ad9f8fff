//! Stands in for `serve.rs` in a program without the feature `serve`: the commands are there, and say how to run them.

use anyhow::{Result, bail};
use clap::Args;

/// Serve the model to programs that speak OpenAI's protocol (needs the feature `serve`)
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Serve {
    /// Arguments of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// Chat with a model that was trained to (needs the feature `serve`)
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Chat {
    /// Arguments of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        refuse("serve", &self.arguments)
    }
}

impl Chat {
    pub fn run(self) -> Result<()> {
        refuse("chat", &self.arguments)
    }
}

fn refuse(command: &str, arguments: &[String]) -> Result<()> {
    bail!(
        "this program was built without the feature `serve`, which {command} needs; run cargo {command} {}",
        arguments.join(" ")
    )
}
