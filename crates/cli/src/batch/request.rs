//! A line of a batch: one request as a JSON object.

use page_by_page::escape;
use page_by_page::generation::sampler::number;
use serde::Deserialize;

/// What a line asks for. All but the prompt may be missing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    #[serde(skip)]
    pub line: usize,
    pub prompt: String,
    pub max_new_tokens: Option<usize>,
    /// 0 is greedy.
    #[serde(default, deserialize_with = "number")]
    pub temperature: Option<f32>,
    /// 0 is no limit.
    pub top_k: Option<usize>,
    /// 1 is no limit.
    #[serde(default, deserialize_with = "number")]
    pub top_p: Option<f32>,
    pub seed: Option<u64>,
}

impl BatchRequest {
    /// Reads a line; or says what is wrong with it, in a few words without control characters.
    pub fn read(number: usize, line: &str) -> Result<Self, String> {
        // Else a list of values would pass for an object.
        if !line.trim_start().starts_with('{') {
            return Err("it is not a JSON object; write one, such as {\"prompt\": \"Once upon a time\"}".into());
        }
        let request: BatchRequest = serde_json::from_str(line).map_err(|error| {
            let (column, text) = (error.column(), error.to_string());
            // It counts the lines of what it was given: always one.
            let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
            format!("column {column}: {}", escape::field(problem))
        })?;
        if request.prompt.is_empty() {
            return Err("the prompt is empty; give the text a beginning, such as \"Once upon a time\"".into());
        }
        Ok(BatchRequest { line: number, ..request })
    }
}
