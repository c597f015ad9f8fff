//! `tell`: a story that goes on turn by turn.

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::model::tokenizer::Tokenizer;

use super::talking::{Script, Talking, Turn};

/// Tell a story together with the model, turn by turn
///
/// What you type is added to the story, and the model goes on from there; a line with nothing in it only lets it go on. The
/// model reads the whole story in each turn, and the prefix cache has the pages of all but what is new. Each turn is what
/// `generate` tells when the story so far is its prompt.
///
/// The story goes to standard output as it is made. After each turn standard error says what was found and what was computed.
/// Ctrl-C stops the model, and what it has said stays part of the story. /help lists a few words for the rest.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page tell
  page-by-page tell \"Once upon a time\" --temperature 1.2
  printf 'Once upon a time\\nThe king said\\n' | page-by-page tell > story.txt")]
pub struct Tell {
    /// How the story begins
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Tokens that the model adds in a turn, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    max_new_tokens: usize,
    #[command(flatten)]
    talking: Talking,
}

/// The turns of a story follow each other.
struct Story;

impl Tell {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.talking.run(&Story, Some(self.max_new_tokens), self.prompt)
    }
}

impl Script for Story {
    fn what(&self) -> &'static str {
        "story"
    }

    fn hint(&self) -> &'static str {
        "Type how the story goes on, or nothing."
    }

    fn shows_typed(&self) -> bool {
        true
    }

    fn text(&self, turns: &[Turn]) -> Result<String> {
        let mut story = String::new();
        for Turn { typed, told, .. } in turns {
            add(&mut story, typed);
            story.push_str(told.as_deref().unwrap_or_default());
        }
        Ok(story)
    }

    fn tokens(&self, text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        // Some tokenizers make a token of nothing: the one that begins a text.
        ensure!(!text.is_empty(), "the story has no beginning yet; type one");
        Ok(tokenizer.encode(text)?)
    }
}

/// What is typed begins with a new word, unless it says otherwise.
fn add(story: &mut String, typed: &str) {
    let goes_on = |c: char| c.is_whitespace() || ",.;:!?)”".contains(c);
    let is_apart = story.is_empty() || story.ends_with(char::is_whitespace);
    if !is_apart && !typed.is_empty() && !typed.starts_with(goes_on) {
        story.push(' ');
    }
    story.push_str(typed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_a_word_of_its_own() {
        let story = |parts: &[&str]| {
            let mut story = String::new();
            parts.iter().for_each(|part| add(&mut story, part));
            story
        };
        assert_eq!(story(&["Once", "upon a", "", " time", ", there", "was"]), "Once upon a time, there was");
        assert_eq!(story(&["The end.\n", "And", "?"]), "The end.\nAnd?");
    }
}
