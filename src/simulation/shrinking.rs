//! A list of events that gets shorter and smaller while a rule is still broken.

use std::ops::Range;

use super::Event;

/// Some of the events of a case, and the index that each has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub events: Vec<Event>,
    /// Their indices in the case, in order: `[events.len()]`.
    pub indices: Vec<usize>,
}

/// The shortest list so far in which the rule is broken. Each question runs a whole case.
pub struct Shrinking<'a> {
    kept: Candidate,
    is_broken: &'a mut dyn FnMut(&Candidate) -> bool,
    /// Questions since the list last changed.
    in_vain: usize,
}

impl<'a> Shrinking<'a> {
    /// Begins with all events. `is_broken` returns whether the same rule is still broken. With all events, it is.
    pub fn new(events: &[Event], is_broken: &'a mut dyn FnMut(&Candidate) -> bool) -> Self {
        let kept = Candidate { events: events.to_vec(), indices: (0..events.len()).collect() };
        Shrinking { kept, is_broken, in_vain: 0 }
    }

    pub fn events(&self) -> &[Event] {
        &self.kept.events
    }

    /// Tries the list without the events at these indices, and keeps that if the rule is still broken.
    ///
    /// # Panics
    /// If the range is empty or goes beyond the end, or if question after question changes nothing.
    pub fn leave_out(&mut self, range: Range<usize>) -> bool {
        let n = self.kept.events.len();
        assert!(
            range.start < range.end && range.end <= n,
            "leave_out({range:?}) of {n} events leaves out nothing, or more than there is"
        );
        let mut fewer = self.kept.clone();
        fewer.events.drain(range.clone());
        fewer.indices.drain(range);
        self.try_list(fewer)
    }

    /// Tries the list with a different event at this index, and keeps that if the rule is still broken.
    ///
    /// # Panics
    /// If there is no such event, or if question after question changes nothing.
    pub fn replace(&mut self, index: usize, event: Event) -> bool {
        let n = self.kept.events.len();
        assert!(index < n, "replace({index}, …) of {n} events: there is no such event");
        let mut smaller = self.kept.clone();
        smaller.events[index] = event;
        self.try_list(smaller)
    }

    fn try_list(&mut self, list: Candidate) -> bool {
        // Two rounds of pieces, single events and smaller numbers, and some.
        let most = 30 * (self.kept.events.len() + 4);
        self.in_vain += 1;
        assert!(
            self.in_vain <= most,
            "{most} questions in a row have changed nothing: does a loop of shrink never end?"
        );
        let broken = (self.is_broken)(&list);
        if broken {
            self.kept = list;
            self.in_vain = 0;
        }
        broken
    }
}
