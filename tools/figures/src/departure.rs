//! Where a trace of the reader's code departs from the reference's, in words: `Step 4 of 9: yours has page 7, the
//! reference page 3`.
//!
//! A trace is JSON, and its names are those of the code. [`WORDS`] says each as a reader would; a test holds the traces
//! of all figures against it.

use serde_json::Value;

/// Where two traces depart from each other.
#[derive(Debug, PartialEq)]
pub struct Departure {
    /// The first of them, in words.
    pub says: String,
    /// The reader's steps that are not the reference's, counted from 0. None: only what holds for all steps differs.
    pub steps: Vec<usize>,
}

/// What the reader's trace has that the reference's has not; `None` if they are the same.
pub fn departure(yours: &Value, reference: &Value) -> Option<Departure> {
    let [your_frames, frames] =
        [yours, reference].map(|trace| trace["frames"].as_array().map_or(&[][..], Vec::as_slice));
    let differs = |step: &usize| frames.get(*step) != Some(&your_frames[*step]);
    let steps: Vec<usize> = (0..your_frames.len()).filter(differs).collect();
    let (n, of) = (your_frames.len(), frames.len());
    let says = match steps.first() {
        Some(&step) if step < of => {
            let words = difference(&your_frames[step], &frames[step])?;
            format!("Step {} of {n}: {words}", step + 1)
        }
        Some(_) => format!("Yours has {n} steps, the reference only the first {of}"),
        None if n < of => format!("Yours ends after step {n}, the reference after step {of}"),
        None => {
            let [yours, reference] = [yours, reference].map(|trace| {
                let mut rest = trace.clone();
                rest.as_object_mut().map(|fields| fields.remove("frames"));
                rest
            });
            capitalised(&difference(&yours, &reference)?)
        }
    };
    Some(Departure { says, steps })
}

/// What a name in a trace means to a reader.
struct Word {
    key: &'static str,
    one: &'static str,
    many: &'static str,
    /// A number is the name of something, not how many there are.
    is_name: bool,
}

const fn name(key: &'static str, one: &'static str, many: &'static str) -> Word {
    Word { key, one, many, is_name: true }
}

const fn count(key: &'static str, one: &'static str, many: &'static str) -> Word {
    Word { key, one, many, is_name: false }
}

/// The names in the traces, the most telling first: of several differences in a step, that one is told.
const WORDS: &[Word] = &[
    name("refused", "refusal", "refusals"),
    name("pages", "page", "pages"),
    name("page", "page", "pages"),
    name("table", "page", "pages"),
    name("tables", "table", "tables"),
    name("handed_out", "page", "pages"),
    name("free_list", "page", "pages"),
    name("places", "place", "places"),
    name("located", "place", "places"),
    name("position", "position", "positions"),
    name("slot", "slot", "slots"),
    name("row", "row", "rows"),
    name("tensor", "row", "rows"),
    name("after_extend", "row", "rows"),
    name("after_write", "row", "rows"),
    name("filled", "row", "rows"),
    count("rows", "row", "rows"),
    name("new_token", "token", "tokens"),
    count("new_tokens", "new token", "new tokens"),
    name("drafted", "guess", "guesses"),
    name("choices", "choice", "choices"),
    count("accepted", "guess kept", "guesses kept"),
    count("forgotten", "token forgotten", "tokens forgotten"),
    count("remembered", "token remembered", "tokens remembered"),
    name("kept", "token kept", "tokens kept"),
    name("unread", "unread token", "unread tokens"),
    count("read", "token read", "tokens read"),
    count("passes", "pass", "passes"),
    count("rows_copied", "row copied", "rows copied"),
    count("gather_copies", "row copied by gather", "rows copied by gather"),
    count("copied", "row copied", "rows copied"),
    count("moved", "move in memory", "moves in memory"),
    count("rows_projected", "row projected", "rows projected"),
    count("recompute", "row projected by recomputing", "rows projected by recomputing"),
    count("cached", "row projected with a cache", "rows projected with a cache"),
    count("owners", "owner", "owners"),
    name("owner", "owner", "owners"),
    count("tokens", "token", "tokens"),
    count("slots", "slot", "slots"),
    count("slots_in_all", "slot in all", "slots in all"),
    count("held", "token held", "tokens held"),
    count("empty", "empty slot", "empty slots"),
    count("most", "empty slot at most", "empty slots at most"),
    count("wasted", "wasted slot", "wasted slots"),
    count("wasted_in_all", "wasted slot in all", "wasted slots in all"),
    name("wasted_share", "a wasted share of", "wasted shares of"),
    count("pages_needed", "page needed", "pages needed"),
    count("needed", "needed", "needed"),
    count("longest_gap", "slot in the longest gap", "slots in the longest gap"),
    name("gaps", "gap", "gaps"),
    name("taken", "piece", "pieces"),
    name("start", "start", "starts"),
    name("end", "end", "ends"),
    name("regions", "contiguous memory", "contiguous memory"),
    count("free", "free", "free"),
    count("evictable", "evictable page", "evictable pages"),
    count("budget_used", "token of the budget used", "tokens of the budget used"),
    count("computed", "token computed", "tokens computed"),
    count("found_again", "token found again", "tokens found again"),
    count("found", "token found", "tokens found"),
    count("scheduled_tokens", "token scheduled", "tokens scheduled"),
    count("cached_tokens", "token cached", "tokens cached"),
    count("recomputed_tokens", "token recomputed", "tokens recomputed"),
    count("preemptions", "preemption", "preemptions"),
    count("prompt_tokens", "token of the prompt", "tokens of the prompt"),
    name("does", "move", "moves"),
    name("state", "state", "states"),
    name("reason", "end by", "ends by"),
    name("ended", "ended text", "ended texts"),
    name("runs", "run", "runs"),
    name("scores", "score", "scores"),
    name("weights", "weight", "weights"),
    name("sum", "sum", "sums"),
    name("first", "first position", "first positions"),
    name("query", "number", "numbers"),
    count("bytes", "byte", "bytes"),
    name("scale", "scale", "scales"),
    name("errors", "error", "errors"),
    name("format", "format", "formats"),
    name("key", "number", "numbers"),
    count("smaller", "smaller case", "smaller cases"),
    name("story", "story", "stories"),
    name("rule", "broken rule", "broken rules"),
    name("events", "event", "events"),
    name("number", "place", "places"),
    name("parent", "parent", "parents"),
    name("nodes", "node", "nodes"),
    name("words", "words", "words"),
    name("before", "page", "pages"),
    count("is_whole", "whole record", "whole records"),
    count("is_known", "known record", "known records"),
    count("is_read", "record read", "records read"),
    name("chats", "a hit rate of", "hit rates of"),
    name("documents", "a hit rate of", "hit rates of"),
    name("documents_heads_first", "a hit rate of", "hit rates of"),
    name("residual", "a chance of", "chances of"),
    name("replaced", "a chance of", "chances of"),
    name("p", "a chance of", "chances of"),
    name("q", "a chance of", "chances of"),
    name("share_to_expect", "a share of", "shares of"),
    name("to_expect", "an expectation of", "expectations of"),
    name("matched", "matching", "matching"),
    name("sampled", "sampling", "sampling"),
    name("flat", "flat cache", "flat cache"),
    name("contiguous", "contiguous cache", "contiguous cache"),
    name("paged", "paged cache", "paged cache"),
    name("target", "target", "targets"),
    name("draft", "draft", "drafts"),
    name("models", "model", "models"),
    name("step", "step", "steps"),
    name("slab", "page", "pages"),
    name("large", "large case", "large cases"),
    name("stories", "story", "stories"),
    name("reads", "reading", "readings"),
    name("counts", "counters", "counters"),
    name("texts", "text", "texts"),
    name("sequences", "sequence", "sequences"),
    name("text", "text", "texts"),
    name("newest", "newest token", "newest tokens"),
    name("prompts", "prompt", "prompts"),
    name("prompt", "prompt", "prompts"),
    name("asked", "request", "requests"),
    name("did", "call", "calls"),
    name("operation", "call", "calls"),
    name("is_rewind", "rewind", "rewinds"),
    name("moment", "moment", "moments"),
    count("grown", "token of room", "tokens of room"),
    count("extend", "token of room", "tokens of room"),
    name("name", "name", "names"),
    name("id", "number", "numbers"),
    count("new", "new piece", "new pieces"),
    name("page_size", "page size", "page sizes"),
    count("n_pages", "page in the pool", "pages in the pool"),
    count("budget", "token of budget", "tokens of budget"),
    count("most_running", "text at most", "texts at most"),
    count("max_new_tokens", "new token at most", "new tokens at most"),
    count("layers", "layer", "layers"),
    count("longest", "token at most", "tokens at most"),
    count("steps", "step", "steps"),
    name("version", "version", "versions"),
    name("model", "model", "models"),
    name("seed", "seed", "seeds"),
    name("temperature", "temperature", "temperatures"),
    name("k", "k", "k"),
    name("bug", "planted fault", "planted faults"),
    name("reported", "report", "reports"),
];

fn word(key: &str) -> (usize, Option<&'static Word>) {
    match WORDS.iter().position(|word| word.key == key) {
        Some(rank) => (rank, Some(&WORDS[rank])),
        None => (WORDS.len(), None),
    }
}

/// A step on the way to a value.
#[derive(Clone, Copy)]
enum Part<'v> {
    Key(&'v str),
    /// With what is there, of either side.
    Index(usize, &'v Value),
}

/// Two values that are not the same, and how one comes to them.
struct Pair<'v> {
    path: Vec<Part<'v>>,
    yours: &'v Value,
    reference: &'v Value,
}

impl<'v> Pair<'v> {
    /// The last name on the way.
    fn key(&self) -> &'v str {
        let keys = self.path.iter().rev().find_map(|part| match part {
            Part::Key(key) => Some(*key),
            Part::Index(..) => None,
        });
        keys.unwrap_or_default()
    }

    /// `in page 3, slot 1, yours has row a5, the reference no row`
    fn says(&self) -> String {
        let [yours, reference] = [self.yours, self.reference].map(|value| phrase(self.key(), value));
        let places = self.places();
        let place = if places.is_empty() { String::new() } else { format!("in {}, ", places.join(", ")) };
        format!("{place}yours has {yours}, the reference {reference}")
    }

    /// What the value is in, from outside to inside. A list of plain values is no place, nor is a frame.
    fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        for (at, part) in self.path.iter().enumerate() {
            let Part::Key(key) = part else { continue };
            let noun = word(key).1.map_or(*key, |word| word.one);
            match self.path.get(at + 1) {
                Some(Part::Index(index, value)) if value.is_object() || value.is_array() => {
                    places.push(format!("{noun} {}", own_name(value).unwrap_or_else(|| index.to_string())));
                }
                // Each page has so many owners.
                Some(Part::Index(index, _)) if *key == "owners" => places.push(format!("page {index}")),
                Some(Part::Key(_)) => places.push(format!("the {noun}")),
                _ => {}
            }
        }
        places
    }
}

/// What something is called by itself: `a`, of a text.
fn own_name(value: &Value) -> Option<String> {
    let own = ["name", "story"].iter().find_map(|key| value.get(key)).or_else(|| value.get(0))?;
    own.as_str().map(str::to_string)
}

/// The most telling difference in words, if there is one.
fn difference(yours: &Value, reference: &Value) -> Option<String> {
    let mut found = Vec::new();
    differences(yours, reference, &mut Vec::new(), &mut found);
    // The first of those that are equally telling.
    let pair = found.into_iter().min_by_key(|pair| word(pair.key()).0)?;
    Some(pair.says())
}

fn differences<'v>(yours: &'v Value, reference: &'v Value, path: &mut Vec<Part<'v>>, found: &mut Vec<Pair<'v>>) {
    match (yours, reference) {
        _ if yours == reference => {}
        (Value::Object(mine), Value::Object(theirs)) => {
            for (key, value) in mine {
                path.push(Part::Key(key));
                differences(value, theirs.get(key).unwrap_or(&Value::Null), path, found);
                path.pop();
            }
        }
        (Value::Array(mine), Value::Array(theirs)) => {
            let before = found.len();
            for (index, (mine, theirs)) in mine.iter().zip(theirs).enumerate() {
                path.push(Part::Index(index, mine));
                differences(mine, theirs, path, found);
                path.pop();
            }
            // One is the beginning of the other.
            if found.len() == before {
                found.push(Pair { path: path.clone(), yours, reference });
            }
        }
        _ => found.push(Pair { path: path.clone(), yours, reference }),
    }
}

/// `page 7`, `3 free`, `no row`
fn phrase(key: &str, value: &Value) -> String {
    let (one, many, is_name) = word(key).1.map_or((key, key, true), |word| (word.one, word.many, word.is_name));
    match value {
        Value::Null | Value::Bool(false) => format!("no {one}"),
        Value::Bool(true) => format!("a {one}"),
        Value::Number(number) if is_name => format!("{one} {number}"),
        Value::Number(number) if number.as_u64() == Some(1) => format!("1 {one}"),
        Value::Number(number) => format!("{number} {many}"),
        Value::String(text) if is_plain(text) => format!("{one} {text}"),
        Value::String(text) => format!("{one} \u{201c}{}\u{201d}", text.trim()),
        Value::Array(values) if values.is_empty() => format!("no {many}"),
        Value::Array(values) if values.iter().any(|value| value.is_object() || value.is_array()) => {
            match values.len() {
                1 => format!("1 {one}"),
                n => format!("{n} {many}"),
            }
        }
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(bare).collect();
            format!("{} {}", if values.len() == 1 { one } else { many }, values.join(", "))
        }
        Value::Object(_) => format!("a {one}"),
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric())
}

fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_string())
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// The committed traces, by name.
    fn traces() -> Vec<(String, Value)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src/figures/traces");
        let traces = fs::read_dir(folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            (name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
        });
        traces.collect()
    }

    fn trace(name: &str) -> Value {
        traces().into_iter().find(|(other, _)| other == name).unwrap().1
    }

    /// What is said when one place of a trace is another.
    fn says(name: &str, place: &str, value: Value) -> (String, Vec<usize>) {
        let (mut yours, reference) = (trace(name), trace(name));
        *yours.pointer_mut(place).unwrap() = value;
        let Departure { says, steps } = departure(&yours, &reference).unwrap();
        (says, steps)
    }

    #[test]
    fn a_planted_difference_is_found_and_worded() {
        for (name, place, value, words, steps) in [
            (
                "ch05_table",
                "/frames/1/pages/1",
                json!(7),
                "Step 2 of 3: yours has page 7, the reference page 5",
                vec![1],
            ),
            (
                "ch05_table",
                "/frames/2/pages",
                json!([12, 5]),
                "Step 3 of 3: yours has pages 12, 5, the reference pages 12, 5, 3",
                vec![2],
            ),
            (
                "ch04_free_list",
                "/frames/0/refused",
                json!("DoubleFree(PageId(0))"),
                "Step 1 of 10: yours has refusal \u{201c}DoubleFree(PageId(0))\u{201d}, the reference no refusal",
                vec![0],
            ),
            (
                "ch02_copy",
                "/frames/2/rows_copied",
                json!(1),
                "Step 3 of 5: yours has 1 row copied, the reference 3 rows copied",
                vec![2],
            ),
            (
                "ch06_interleaved",
                "/frames/3/slab/1/owner",
                Value::Null,
                "Step 4 of 6: in page 1, yours has no owner, the reference owner b",
                vec![3],
            ),
            (
                "ch07_three",
                "/frames/2/flat/rows_copied",
                json!(9),
                "Step 3 of 3: in the flat cache, yours has 9 rows copied, the reference 6 rows copied",
                vec![2],
            ),
            ("ch05_table", "/page_size", json!(8), "Yours has page size 8, the reference page size 4", vec![]),
        ] {
            assert_eq!(says(name, place, value), (words.to_string(), steps), "{name} {place}");
        }
    }

    #[test]
    fn the_most_telling_of_several_is_told() {
        let reference = trace("ch05_table");
        let mut yours = reference.clone();
        yours["frames"][1]["grown"] = json!(5);
        yours["frames"][1]["slots"] = json!(16);
        yours["frames"][1]["pages"][1] = json!(9);
        yours["frames"][2]["pages"][1] = json!(9);
        let found = departure(&yours, &reference).unwrap();
        assert_eq!(found.says, "Step 2 of 3: yours has page 9, the reference page 5");
        assert_eq!(found.steps, [1, 2]);
    }

    #[test]
    fn steps_that_are_missing_or_too_many_are_counted() {
        let reference = trace("ch05_table");
        let mut longer = reference.clone();
        let again = longer["frames"][2].clone();
        longer["frames"].as_array_mut().unwrap().push(again);
        let found = departure(&longer, &reference).unwrap();
        assert_eq!((found.says.as_str(), found.steps), ("Yours has 4 steps, the reference only the first 3", vec![3]));
        let found = departure(&reference, &longer).unwrap();
        assert_eq!((found.says.as_str(), found.steps), ("Yours ends after step 3, the reference after step 4", vec![]));
    }

    /// Calls `look` with the way to every plain value.
    fn each_value(value: &Value, way: &str, look: &mut dyn FnMut(&str, &Value)) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(key, value)| each_value(value, &format!("{way}/{key}"), look))
            }
            Value::Array(values) => {
                values.iter().enumerate().for_each(|(index, value)| each_value(value, &format!("{way}/{index}"), look));
            }
            _ => look(way, value),
        }
    }

    #[test]
    fn no_difference_is_missed_wherever_it_is() {
        for (name, reference) in traces() {
            assert_eq!(departure(&reference, &reference), None, "{name}");
            let mut ways = Vec::new();
            each_value(&reference, "", &mut |way, value| ways.push((way.to_string(), value.clone())));
            for (way, value) in ways {
                let other = match value {
                    Value::Bool(value) => json!(!value),
                    Value::Number(number) => json!(number.as_f64().unwrap() + 1000.5),
                    Value::String(text) => json!(format!("{text}x")),
                    _ => json!("x"),
                };
                let mut yours = reference.clone();
                *yours.pointer_mut(&way).unwrap() = other;
                let Departure { says, steps } = departure(&yours, &reference).unwrap();
                let step: Option<usize> =
                    way.strip_prefix("/frames/").map(|rest| rest.split('/').next().unwrap().parse().unwrap());
                assert_eq!(steps, Vec::from_iter(step), "{name} {way}");
                let (mine, theirs) = says.split_once("ours has ").unwrap().1.split_once(", the reference ").unwrap();
                assert_ne!(mine, theirs, "{name} {way}: {says}");
            }
        }
    }

    #[test]
    fn every_name_in_a_trace_has_a_word() {
        let mut unknown = BTreeSet::new();
        for (name, trace) in traces() {
            each_value(&trace, "", &mut |way, _| {
                for key in way.split('/').filter(|key| !key.is_empty() && *key != "frames") {
                    if key.parse::<usize>().is_err() && word(key).1.is_none() {
                        unknown.insert(format!("{name}: {key}"));
                    }
                }
            });
        }
        assert_eq!(unknown, BTreeSet::new(), "WORDS does not say what these are");
        let keys: BTreeSet<&str> = WORDS.iter().map(|word| word.key).collect();
        assert_eq!(keys.len(), WORDS.len(), "a name has two words");
    }
}
