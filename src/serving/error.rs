//! Why the loop refuses a sequence, or cannot make a step.

use crate::files::FileError;
use crate::model::StepError;
use crate::serving::schedule::{ScheduleError, SequenceId};

/// Why a sequence was not taken in, or why no step could be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] StepError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(
        "the plan is empty, but {expected} sequences have not finished ({waiting} wait, {running} run); run the checks \
         of chapter 12"
    )]
    EmptyPlan { expected: usize, waiting: usize, running: usize },
    #[error(
        "in {steps} steps no sequence has got a token, and the longest has {tokens} to compute: the oldest sequence must \
         go on in every step; run the checks of chapter 12"
    )]
    NoProgress { steps: usize, tokens: usize },
    /// The scheduler plans a sequence that it was not handed, that has finished, or that does not run.
    #[error("sequence {0} is in the plan, but neither waiting nor running; run the checks of chapter 12")]
    UnknownSequence(SequenceId),
    #[error("sequence {0} is in the plan, but not among the inputs of the model; run the checks of chapter 12")]
    NotAmongInputs(SequenceId),
}

impl EngineError {
    /// The error of a plan or of settling it: only the scheduler itself has named a sequence.
    pub(crate) fn from_step(error: ScheduleError) -> Self {
        match error {
            ScheduleError::UnknownSequence(id) => EngineError::UnknownSequence(id),
            error => EngineError::Schedule(error),
        }
    }
}

/// Why a sequence that was taken in has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SequenceError {
    /// The model has no next token for it.
    #[error(transparent)]
    Model(#[from] StepError),
    /// The tokenizer has no characters for its tokens.
    #[error(transparent)]
    Text(#[from] FileError),
}
