//! `story`: a story that a person and the model write in turns.

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::model::tokenizer::Tokenizer;

use crate::conversation::{ConversationOptions, Script, Turn};

/// Write a story together with the model, turn by turn
///
/// What you type is added to the story, and the model goes on from there; an empty line only lets it go on. The model
/// reads the whole story in each turn, and the prefix cache has the pages of all but what is new. Each turn is what
/// `generate` writes when the story so far is its prompt.
///
/// The story goes to standard output as it is generated. After each turn standard error says how many tokens of the
/// prompt came from the prefix cache and how many were computed. Ctrl-C stops the model, and what it has written stays
/// part of the story. /help lists a few commands for the rest.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page story
  cargo page story \"Once upon a time\" --temperature 1.2
  printf 'Once upon a time\\nThe king said\\n' | cargo page story > story.txt")]
pub struct Story {
    /// How the story begins
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Tokens that the model adds in a turn, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    max_new_tokens: usize,
    #[command(flatten)]
    conversation: ConversationOptions,
}

impl Story {
    pub fn run(self) -> Result<()> {
        let script = Script {
            what: "story",
            hint: "Type how the story goes on, or nothing.",
            shows_typed: true,
            text: Box::new(text),
            tokens,
        };
        self.conversation.run(&script, Some(self.max_new_tokens), self.prompt)
    }
}

/// The turns of a story follow each other.
fn text(turns: &[Turn]) -> Result<String> {
    let mut story = String::new();
    for Turn { typed, answer, .. } in turns {
        add(&mut story, typed);
        story.push_str(answer.as_deref().unwrap_or_default());
    }
    Ok(story)
}

fn tokens(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    // Some tokenizers turn an empty text into the token that begins every text.
    ensure!(!text.is_empty(), "the story has no beginning yet; type one");
    Ok(tokenizer.encode(text)?)
}

/// Adds what is typed as a new word, unless it begins with a space or a sign that follows a word.
fn add(story: &mut String, typed: &str) {
    let goes_on = |c: char| c.is_whitespace() || ",.;:!?)”".contains(c);
    let is_apart = story.is_empty() || story.ends_with(char::is_whitespace);
    if !is_apart && !typed.is_empty() && !typed.starts_with(goes_on) {
        story.push(' ');
    }
    story.push_str(typed);
}
