//! What the loop knows of a sequence, beside its tokens and pages: how it draws them, when it ends, and its output.

use std::mem;
use std::rc::Rc;

use super::detokenizer::Detokenizer;
use super::{FinishedSequence, OutputDelta, OutputToken, SequenceError, StopParams, view};
use crate::generation::logprobs::{PromptLogprobs, TokenLogprobs, token_logprobs};
use crate::generation::sampler::Sampler;
use crate::model::StepError;
use crate::model::tokenizer::Tokenizer;
use crate::serving::schedule::{FinishReason, Sequence};

/// A prompt, and how the sequences go on that continue it.
pub struct GenerationRequest {
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub samplers: Vec<Sampler>,
    pub stop_params: StopParams,
    /// Report the log-probability of each new token, and of this many of the likeliest.
    pub logprobs: Option<usize>,
    /// Report them of the tokens of the prompt too: its *scores*.
    pub prompt_logprobs: bool,
}

impl GenerationRequest {
    /// A request without log-probabilities, which ends by the model's end-of-text tokens.
    pub fn new(prompt: Vec<u32>, max_new_tokens: usize, samplers: Vec<Sampler>) -> Self {
        let stop_params = StopParams::default();
        GenerationRequest { prompt, max_new_tokens, samplers, stop_params, logprobs: None, prompt_logprobs: false }
    }
}

pub(super) struct ActiveSequence<'t> {
    request: Rc<GenerationRequest>,
    sampler: Sampler,
    /// The scores of its prompt so far; `None` if none are asked for, or once all are.
    pub(super) prompt_logprobs: Option<PromptLogprobs>,
    /// New tokens so far.
    n_new: usize,
    /// The other samples of its prompt, which wait until it has computed that.
    pub(super) siblings: Vec<Sequence>,
    pub(super) error: Option<SequenceError>,
    /// How its prompt begins; empty without a tokenizer.
    prompt_preview: String,
    /// `None` without a tokenizer.
    detokenizer: Option<Detokenizer<'t>>,
    /// Its output since it was last taken.
    pub(super) delta: OutputDelta,
    /// The end-of-text token that a sequence whose prompt is scored reports.
    end_token: Option<OutputToken>,
}

/// What a sequence's logits lead to: its next token, its end, or both.
#[derive(Default)]
pub(super) struct Next {
    pub(super) token: Option<u32>,
    pub(super) end: Option<Result<FinishReason, SequenceError>>,
}

impl<'t> ActiveSequence<'t> {
    pub(super) fn new(request: &Rc<GenerationRequest>, sampler: Sampler, tokenizer: Option<&'t Tokenizer>) -> Self {
        let GenerationRequest { prompt, stop_params, logprobs, prompt_logprobs, .. } = &**request;
        let preview = |tokenizer: &Tokenizer| {
            view::prompt_preview(&tokenizer.decode(view::previewed_tokens(prompt)).unwrap_or_default(), prompt.len())
        };
        ActiveSequence {
            request: request.clone(),
            sampler,
            prompt_logprobs: prompt_logprobs.then(|| PromptLogprobs::new(prompt.clone(), logprobs.unwrap_or(0))),
            n_new: 0,
            siblings: Vec::new(),
            error: None,
            prompt_preview: tokenizer.map_or_else(String::new, preview),
            detokenizer: tokenizer.map(|tokenizer| Detokenizer::new(tokenizer, stop_params)),
            delta: OutputDelta::default(),
            end_token: None,
        }
    }

    /// How its prompt begins, and its output so far.
    pub(super) fn text(&self) -> (&str, &str) {
        (&self.prompt_preview, self.detokenizer.as_ref().map_or("", Detokenizer::output))
    }

    /// Samples its next token from these logits, `[vocab_size]`, and adds it to its output.
    pub(super) fn sample(&mut self, logits: &Result<Vec<f32>, StepError>, end_of_text: &[u32]) -> Next {
        let row = match logits {
            Ok(row) => row,
            Err(error) => return Next { end: Some(Err(error.clone().into())), ..Next::default() },
        };
        if self.n_new == self.request.max_new_tokens {
            // Its prompt was to be scored, and that is all.
            return Next { end: Some(Ok(FinishReason::Length)), ..Next::default() };
        }
        let StopParams { stop_token_ids, ignore_eos, min_tokens, .. } = &self.request.stop_params;
        let (id, is_end) = if self.n_new < *min_tokens {
            (self.sampler.sample_without(row, end_of_text.iter().chain(stop_token_ids)), false)
        } else {
            let id = self.sampler.sample(row);
            (id, (!ignore_eos && end_of_text.contains(&id)) || stop_token_ids.contains(&id))
        };
        self.n_new += 1;
        let logprobs = self.request.logprobs.map(|top| token_logprobs(row, id, top));
        if is_end {
            self.end_token = self.request.prompt_logprobs.then_some(OutputToken { id, offset: 0, logprobs });
            return Next { end: Some(Ok(FinishReason::Stop)), ..Next::default() };
        }
        let end = match self.push(id, logprobs) {
            Ok(is_stopped) => is_stopped.then_some(Ok(FinishReason::Stop)),
            Err(error) => Some(Err(error)),
        };
        Next { token: Some(id), end }
    }

    /// Adds a token to its output. Returns whether a stop string ends it.
    fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Result<bool, SequenceError> {
        let Some(detokenizer) = &mut self.detokenizer else {
            self.delta.tokens.push(OutputToken { id, offset: 0, logprobs });
            return Ok(false);
        };
        let (delta, is_stopped) = detokenizer.push(id, logprobs)?;
        self.delta.append(delta);
        Ok(is_stopped)
    }

    /// Lets its output be that of these tokens, the first of those that it has generated.
    pub(super) fn rewind_to(&mut self, tokens: &[u32], tokenizer: Option<&'t Tokenizer>) {
        self.n_new = tokens.len();
        self.detokenizer = tokenizer.map(|tokenizer| Detokenizer::new(tokenizer, &self.request.stop_params));
        for token in tokens {
            self.push(*token, None).expect("a token that was decoded before");
        }
        self.delta = OutputDelta::default();
    }

    /// Ends it with the rest of its output. A stop string may be found only now.
    pub(super) fn finish(
        mut self,
        sequence: Sequence,
        mut outcome: Result<FinishReason, SequenceError>,
    ) -> FinishedSequence {
        let mut delta = mem::take(&mut self.delta);
        let (mut offset, mut output) = (0, String::new());
        if let Some(mut detokenizer) = self.detokenizer {
            match detokenizer.finish() {
                Ok((rest, is_stopped)) => {
                    delta.append(rest);
                    if is_stopped && outcome.is_ok() {
                        (outcome, self.end_token) = (Ok(FinishReason::Stop), None);
                    }
                }
                Err(error) => outcome = outcome.and(Err(error.into())),
            }
            (offset, output) = (detokenizer.output_chars, detokenizer.output().into());
        }
        delta.end_token = self.end_token.map(|token| OutputToken { offset, ..token });
        FinishedSequence { sequence, text: output, delta, prompt_preview: self.prompt_preview, outcome }
    }
}
