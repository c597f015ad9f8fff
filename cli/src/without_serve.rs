//! Commands that are compiled with the feature `serve` only. Without it: how to run them.

use anyhow::{Result, bail};
use clap::Args;

/// Any arguments.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Missing {
    /// Arguments of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Fails, and says how to run the command.
    pub fn run(self, command: &str) -> Result<()> {
        let features = if cfg!(feature = "solution") { "solution,serve" } else { "serve" };
        bail!(
            "this program was built without the feature `serve`, which {command} needs; run \
             cargo run --release --features {features} -- {command} {}",
            self.arguments.join(" ")
        )
    }
}
