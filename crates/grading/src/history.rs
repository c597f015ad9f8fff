//! What happened before a failure; and refusals, after which everything must be as it was.

use std::fmt::Debug;

use crate::calls::in_call;

/// What happened in one run, and what every failure says about the run: its seed, say, or the rule that it checks.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub about: String,
    events: Vec<String>,
}

impl History {
    pub fn new(about: impl Into<String>) -> Self {
        History { about: about.into(), events: Vec::new() }
    }

    pub fn record(&mut self, event: impl Into<String>) {
        self.events.push(event.into());
    }

    /// Adds to what was recorded last.
    pub fn add(&mut self, words: &str) {
        self.events.last_mut().expect("something was recorded").push_str(words);
    }

    pub fn last_event(&self) -> &str {
        self.events.last().map_or("", String::as_str)
    }

    /// Where we are, for a failure: about the run, and the newest events.
    pub fn at(&self) -> String {
        let newest = &self.events[self.events.len().saturating_sub(6)..];
        let before = (!newest.is_empty()).then(|| format!("before: {}", newest.join("; ")));
        let about = (!self.about.is_empty()).then(|| self.about.clone());
        about.into_iter().chain(before).collect::<Vec<_>>().join("\n  ")
    }

    /// Records a call. Returns it with what a failure has to say: `evict(2), page size 4 … before: …`
    pub fn call(&mut self, call: impl Into<String>) -> String {
        let call = call.into();
        let told = format!("{call}, {}", self.at());
        self.record(call);
        told
    }
}

/// What is seen of something, and its value.
pub type Fact = (&'static str, String);

pub fn fact(what: &'static str, value: impl Debug) -> Fact {
    (what, format!("{value:?}"))
}

/// Makes a call that must be refused, with this error, and must change no fact.
#[track_caller]
pub fn assert_refused<W, T: Debug, E: PartialEq + Debug>(
    world: &mut W,
    call: &str,
    error: E,
    mut facts: impl FnMut(&mut W) -> Vec<Fact>,
    make: impl FnOnce(&mut W) -> Result<T, E>,
) {
    let before = facts(world);
    let found = in_call(call, || make(world));
    for ((what, before), (_, after)) in before.into_iter().zip(facts(world)) {
        let is_same = found.is_ok() || before == after;
        assert!(is_same, "{what} after the refused {call}\n  expected: {before}\n  yours:    {after}");
    }
    let is_right = found.as_ref().is_err_and(|found| *found == error);
    assert!(is_right, "{call}\n  expected: {:?}\n  yours:    {found:?}", Err::<(), _>(error));
}
