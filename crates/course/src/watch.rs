//! Notices edits by looking at files again and again, which works on every drive.
//!
//! An editor that saves may leave a file empty for a moment, or write it several times. So a change counts when two
//! looks find the same.

use std::collections::{BTreeMap, BTreeSet};

/// Some files as they were seen last. `look` finds them by name, each with its text or its date, to see changes.
pub struct Watch<V, Look> {
    look: Look,
    /// What the caller knows of.
    known: BTreeMap<String, V>,
    last: BTreeMap<String, V>,
}

impl<V: Clone + PartialEq, Look: Fn() -> BTreeMap<String, V>> Watch<V, Look> {
    /// No edit from now on is missed.
    pub fn start(look: Look) -> Self {
        let known = look();
        Watch { look, last: known.clone(), known }
    }

    /// The names of the files that have changed, come or gone, and are the same as in the last look.
    pub fn changed(&mut self) -> Vec<String> {
        let now = (self.look)();
        let all: BTreeSet<&String> = now.keys().chain(self.known.keys()).collect();
        let is_changed =
            |name: &&String| now.get(*name) == self.last.get(*name) && now.get(*name) != self.known.get(*name);
        let changed: Vec<String> = all.into_iter().filter(is_changed).cloned().collect();
        for name in &changed {
            self.known.remove(name);
            self.known.extend(now.get_key_value(name).map(|(name, found)| (name.clone(), found.clone())));
        }
        self.last = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_change_counts_when_two_looks_find_the_same() {
        let files = RefCell::new(BTreeMap::from([("a".to_string(), "one"), ("c".to_string(), "one")]));
        let save = |name: &str, text| files.borrow_mut().insert(name.to_string(), text);
        let mut watch = Watch::start(|| files.borrow().clone());
        save("a", "one");
        assert_eq!([watch.changed(), watch.changed()], [[""; 0]; 2], "saved, but the same");
        save("a", "");
        assert_eq!(watch.changed(), [""; 0]);
        save("a", "two");
        save("b", "new");
        assert_eq!([watch.changed(), watch.changed(), watch.changed()], [vec![], vec!["a", "b"], vec![]]);
        files.borrow_mut().remove("c");
        assert_eq!([watch.changed(), watch.changed()], [vec![], vec!["c"]]);
    }
}
