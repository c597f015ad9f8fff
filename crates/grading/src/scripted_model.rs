//! Models whose answers are written in advance: what speculation does can then be followed pass by pass.

use std::cell::RefCell;
use std::rc::Rc;

use page_by_page::cache::CacheError;
use page_by_page::generation::{LanguageModel, RewindableModel};
use page_by_page::model::StepError;

use crate::limits;
use crate::words::plural;

/// What happened, in order; shared by the models of one run.
pub type Log = Rc<RefCell<Vec<String>>>;

/// The logits after a sequence.
type Answer<'s> = Box<dyn Fn(&[u32]) -> Vec<f32> + 's>;

/// What a model may say that refuses to read. The last comes after reading.
pub fn refusals() -> Vec<StepError> {
    refusals_to_read(1, 3)
}

/// What a model with room for `room` tokens may say that is to read `n` more, where there is room for all but one.
pub fn refusals_to_read(n: usize, room: usize) -> Vec<StepError> {
    vec![
        CacheError::OutOfSlots { needed: n, free: n - 1, capacity: room }.into(),
        CacheError::OutOfPages { needed: n, free: n - 1 }.into(),
        StepError::TooLong { len: room + 1, max_positions: room },
        StepError::NotFinite { position: 3, token: 1 },
    ]
}

/// One question more ends the check, because a loop that forgets to append asks for ever.
const MAX_QUESTIONS: usize = 1000;

/// A model that knows the logits after every sequence, and caches what it has read.
pub struct ScriptedModel<'s> {
    name: &'static str,
    answer: Answer<'s>,
    /// Tokens that it has read and cached.
    pub read: Vec<u32>,
    pub room: usize,
    /// What it says where there is no room, in place of [`CacheError::OutOfSlots`]. After [`StepError::NotFinite`] it
    /// has cached the tokens all the same, as the engine's models do.
    pub refusal: Option<StepError>,
    /// What it says to the next question, once.
    pub refuses_once: Option<StepError>,
    /// What it says when it is to forget tokens; without it, it forgets them.
    pub stuck: Option<CacheError>,
    questions: usize,
    log: Log,
}

impl<'s> ScriptedModel<'s> {
    /// A model that gives `answer(tokens)`, logits of `[vocab_size]`, after each sequence.
    pub fn new(name: &'static str, log: &Log, answer: impl Fn(&[u32]) -> Vec<f32> + 's) -> Self {
        let (answer, read, log) = (Box::new(answer), Vec::new(), log.clone());
        let (refusal, refuses_once, stuck) = (None, None, None);
        ScriptedModel { name, answer, read, room: usize::MAX, refusal, refuses_once, stuck, questions: 0, log }
    }

    /// A model that always wants one token next: that of `next(tokens)`, out of `vocab_size`.
    pub fn certain(name: &'static str, log: &Log, vocab_size: usize, next: impl Fn(&[u32]) -> u32 + 's) -> Self {
        ScriptedModel::new(name, log, move |tokens| one_hot(next(tokens), vocab_size))
    }
}

/// The next token of a fixed sequence: the one after `tokens`. After its end comes token 11.
pub fn next_of<'t>(whole: &'t [u32]) -> impl Fn(&[u32]) -> u32 + 't {
    |tokens| whole.get(tokens.len()).copied().unwrap_or(11)
}

/// Logits that leave no choice: all the probability is that of one token.
pub fn one_hot(token: u32, vocab_size: usize) -> Vec<f32> {
    (0..vocab_size as u32).map(|id| if id == token { 500.0 } else { 0.0 }).collect()
}

/// Tokens for a message; of very many, the last.
fn ending(tokens: &[u32]) -> String {
    match tokens {
        [.., a, b, c] if tokens.len() > 16 => format!("{} tokens that end in [{a}, {b}, {c}]", tokens.len()),
        _ => format!("{tokens:?}"),
    }
}

impl LanguageModel for ScriptedModel<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        Ok(self.last_logits(tokens, 1)?.remove(0))
    }
}

impl RewindableModel for ScriptedModel<'_> {
    fn cached_len(&self) -> usize {
        self.read.len()
    }

    #[track_caller]
    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        let name = self.name;
        limits::heartbeat();
        self.questions += 1;
        let (questions, len) = (self.questions, tokens.len());
        assert!(
            questions <= MAX_QUESTIONS,
            "the {name} was asked {questions} times, more than any check needs, at last what follows a sequence of {len} \
             tokens"
        );
        if let Some(refusal) = self.refuses_once.take() {
            return Err(refusal);
        }
        let same = self.read.iter().zip(tokens).take_while(|(read, token)| read == token).count();
        let why = match (self.read.get(same), tokens.get(same)) {
            (Some(read), Some(token)) => format!("at position {same}, it has cached {read}, and {token} is given"),
            _ => format!("it has cached {}, and is given {len}", plural(self.read.len(), "token")),
        };
        let told = || format!("the {name} has cached {} and is asked", ending(&self.read));
        assert!(
            same == self.read.len(),
            "{} to go on with {}, which must begin with all that it has cached: {why}",
            told(),
            ending(tokens)
        );
        let new_tokens = &tokens[self.read.len()..];
        let n_new = new_tokens.len();
        assert!(
            n <= n_new && n_new > 0,
            "{} what follows {} of {}, with only {n_new} new to it",
            told(),
            if n == 1 { "the last".into() } else { format!("each of the last {n}") },
            ending(tokens)
        );
        if tokens.len() > self.room {
            if matches!(self.refusal, Some(StepError::NotFinite { .. })) {
                self.read = tokens.to_vec();
            }
            let (free, capacity) = (self.room.saturating_sub(self.read.len()), self.room);
            let full = CacheError::OutOfSlots { needed: new_tokens.len(), free, capacity };
            return Err(self.refusal.clone().unwrap_or(full.into()));
        }
        self.log.borrow_mut().push(format!("{name} reads {new_tokens:?}, answers after the last {n}"));
        self.read = tokens.to_vec();
        Ok((tokens.len() - n..tokens.len()).map(|last| (self.answer)(&tokens[..last + 1])).collect())
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        let len = self.read.len();
        if n > len {
            return Err(CacheError::PastTheStart { n, len });
        }
        if let Some(refusal) = self.stuck.as_ref().filter(|_| n > 0) {
            return Err(refusal.clone());
        }
        self.log.borrow_mut().push(format!("{} forgets {:?}", self.name, &self.read[len - n..]));
        self.read.truncate(len - n);
        Ok(())
    }
}
