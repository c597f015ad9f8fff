//! Stop strings: they end a sequence before they are sent.
//!
//! A stop string can arrive in pieces, over several tokens. So what might be its beginning is held back until it is
//! clear that it isn't:
//!
//! ```text
//!   stop "\n\n"        text            shown           held back
//!                      "The end.\n"    "The end."      "\n"
//!                      "The end.\nA"   "The end.\nA"
//!                      "The end.\n\n"  "The end."      the sequence ends here
//! ```
//!
//! Where several stop strings occur, the one that is complete first counts; of those complete at the same place, the
//! one that was named first. [vLLM](https://github.com/vllm-project/vllm) 0.33.0 decides the same.

/// The stop strings of a sequence, and how far its text was searched.
#[derive(Clone, Debug, Default)]
pub(super) struct StopStrings {
    stops: Vec<String>,
    searched: usize,
}

impl StopStrings {
    /// For a sequence without text. None of the strings is empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        StopStrings { stops, searched: 0 }
    }

    /// Finds a stop string in a text that has grown since the last call. Returns where it begins, in bytes.
    pub(super) fn find(&mut self, text: &str) -> Option<usize> {
        let searched = std::mem::replace(&mut self.searched, text.len());
        let found = self.stops.iter().filter_map(|stop| {
            // It ends in what is new, so it begins after this.
            let mut from = (searched + 1).saturating_sub(stop.len()).min(text.len());
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            let start = from + text[from..].find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        // The first of those that end at the same place.
        found.min_by_key(|(end, _)| *end).map(|(_, start)| start)
    }

    /// The number of bytes that are not, and cannot become, part of a stop string.
    pub(super) fn safe(&self, text: &str) -> usize {
        let held = self.stops.iter().map(|stop| {
            let beginnings = stop.char_indices().map(|(end, _)| end).rev();
            beginnings.into_iter().find(|end| text.ends_with(&stop[..*end])).unwrap_or(0)
        });
        text.len() - held.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown after each piece, and how the text ends.
    fn shown<T: AsRef<str>>(stops: &[&str], pieces: &[T]) -> (Vec<String>, Option<String>) {
        let mut stops = StopStrings::new(stops.iter().map(ToString::to_string).collect());
        let (mut text, mut shown) = (String::new(), Vec::new());
        for piece in pieces {
            text.push_str(piece.as_ref());
            if let Some(end) = stops.find(&text) {
                return (shown, Some(text[..end].into()));
            }
            shown.push(text[..stops.safe(&text)].into());
        }
        (shown, None)
    }

    #[test]
    fn the_stop_that_is_complete_first_counts() {
        assert_eq!(shown(&["abcd", "bc"], &["xabcd"]).1.as_deref(), Some("xa"));
        assert_eq!(shown(&["b", "ab"], &["xa", "b"]).1.as_deref(), Some("xa"));
        assert_eq!(shown(&["ab", "b"], &["xa", "b"]).1.as_deref(), Some("x"));
        // Text that might begin a stop string is held back, and released as a whole.
        assert_eq!(shown(&["abcd"], &["xabc", "e"]).0, ["x", "xabce"]);
    }

    #[test]
    fn a_stop_never_shows_however_the_text_is_cut() {
        let text = "aab🐉cabcdéb";
        let chars: Vec<char> = text.chars().collect();
        for stop in ["abcd", "abc", "ab", "b", "aa", "déb", text, "cd", "🐉", "b🐉c", "é"] {
            let end = text.find(stop).unwrap();
            for size in 1..=chars.len() {
                let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
                let (shown, found) = shown(&[stop], &pieces);
                assert_eq!(found.as_deref(), Some(&text[..end]), "{stop} in pieces of {size}");
                for shown in shown {
                    assert!(shown.len() <= end && text.starts_with(&shown), "{stop} in pieces of {size}: {shown}");
                }
            }
        }
    }
}
