//! A list of events that gets shorter and smaller while a rule is still broken.

use std::ops::Range;

use super::Event;

/// Some of the events of a case, and the place that each has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The events.
    pub events: Vec<Event>,
    /// Their places in the case, in order: `[events.len()]`.
    pub places: Vec<usize>,
}

/// The shortest list so far in which the rule is broken. Each question runs a whole case.
pub struct Shrinking<'a> {
    kept: Kept,
    is_broken: &'a mut dyn FnMut(&Kept) -> bool,
    /// Questions since the list last changed.
    in_vain: usize,
}

impl<'a> Shrinking<'a> {
    /// Begins with all events. `is_broken` returns whether the same rule is still broken. With all events, it is.
    pub fn new(events: &[Event], is_broken: &'a mut dyn FnMut(&Kept) -> bool) -> Self {
        let kept = Kept { events: events.to_vec(), places: (0..events.len()).collect() };
        Shrinking { kept, is_broken, in_vain: 0 }
    }

    /// The events that are left.
    pub fn events(&self) -> &[Event] {
        &self.kept.events
    }

    /// Tries the list without the events at these places of it. If the rule is still broken, that is the list from now
    /// on.
    ///
    /// # Panics
    /// If the range is empty or goes beyond the end, or if question after question changes nothing.
    pub fn leave_out(&mut self, places: Range<usize>) -> bool {
        let n = self.kept.events.len();
        assert!(
            places.start < places.end && places.end <= n,
            "leave_out({places:?}) of {n} events leaves out nothing, or more than there is: does a loop go too far?"
        );
        let mut fewer = self.kept.clone();
        fewer.events.drain(places.clone());
        fewer.places.drain(places);
        self.try_list(fewer)
    }

    /// Tries the list with a different event at this place. If the rule is still broken, that is the list from now on.
    ///
    /// # Panics
    /// If there is no such place, or if question after question changes nothing.
    pub fn replace(&mut self, place: usize, event: Event) -> bool {
        let n = self.kept.events.len();
        assert!(place < n, "replace({place}, …) of {n} events: does a loop go too far?");
        let mut smaller = self.kept.clone();
        smaller.events[place] = event;
        self.try_list(smaller)
    }

    fn try_list(&mut self, list: Kept) -> bool {
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
