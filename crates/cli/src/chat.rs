//! `chat`: messages and answers, in the words of the model's own template.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use page_by_page_serve::template::{ChatTemplate, this_program};
use serde_json::{Map, Value, json};

use crate::conversation::{ConversationOptions, Script, Turn};
use crate::model_dir;

/// Chat with a model that was trained to
///
/// Each line is a message, and the model answers. It reads the whole chat in each turn, in the words of the template
/// that came with it, and the prefix cache has the pages of all but what is new. A model without a template, such as
/// the bundled one, goes on with stories: see `story`.
///
/// The answers go to standard output as they are generated. After each one standard error says how many tokens of the
/// prompt came from the prefix cache and how many were computed. Ctrl-C stops an answer, and what there is of it stays
/// part of the chat. /help lists a few commands for the rest.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo chat --model path/to/Qwen3-0.6B
  cargo chat --model path/to/Qwen3-0.6B --system \"Be brief.\" --chat-template-kwargs '{\"enable_thinking\": false}'
  echo 'Who are you?' | cargo chat --model path/to/Qwen3-0.6B")]
pub struct Chat {
    /// The first message
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
    /// The system prompt, which comes before the first message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Variables for the template, as a JSON object such as {"enable_thinking":false}
    #[arg(long, value_name = "TEXT")]
    chat_template_kwargs: Option<String>,
    /// Tokens of an answer, at most [default: as many as fit]
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    #[command(flatten)]
    conversation: ConversationOptions,
}

impl Chat {
    pub fn run(self) -> Result<()> {
        let model = &self.conversation.model;
        let Some(template) = ChatTemplate::open(&model_dir(&model.dir), &this_program())? else {
            bail!("{0} has no chat template: it was trained to continue a text; use `story --model {0}`", model.name());
        };
        let for_template = match &self.chat_template_kwargs {
            Some(text) => serde_json::from_str(text)
                .context("--chat-template-kwargs: expected a JSON object, such as {\"enable_thinking\": false}")?,
            None => Map::new(),
        };
        let system = self.system;
        let text = move |turns: &[Turn]| Ok(template.render(&messages(system.as_deref(), turns)?, &for_template)?);
        let script = Script {
            what: "chat",
            hint: "Type a message.",
            shows_typed: false,
            text: Box::new(text),
            tokens: |text, tokenizer| Ok(tokenizer.encode_without_special_tokens(text)?),
        };
        self.conversation.run(&script, self.max_new_tokens, self.message)
    }
}

/// The turns of a chat are messages of a user and of an assistant.
fn messages(system: Option<&str>, turns: &[Turn]) -> Result<Vec<Value>> {
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let mut messages: Vec<Value> = system.iter().map(|system| message("system", system)).collect();
    for Turn { typed, answer, .. } in turns {
        ensure!(!typed.is_empty(), "the message is empty; type one");
        messages.push(message("user", typed));
        messages.extend(answer.iter().map(|answer| message("assistant", answer)));
    }
    Ok(messages)
}
