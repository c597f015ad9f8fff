//! Where a figure of the reader's code departs from the reference's, in words: `Step 2 of 3: yours has page 7, the reference
//! page 5`.
//!
//! Both are fragments as a page includes them. A step departs if it is drawn differently, or if something else is said of it.

#[derive(Debug, PartialEq)]
pub struct Departure {
    /// The first difference, in words.
    pub says: String,
    /// The reader's steps that differ from the reference's, counted from 0. None if only the words for the whole differ.
    pub steps: Vec<usize>,
}

/// What is said of each frame of a fragment, and how it is drawn.
pub fn steps(fragment: &str) -> Vec<(&str, &str)> {
    let frames = fragment.split("<div class=\"pbp-frame").filter(|frame| frame.contains(" data-step="));
    frames.filter_map(step).collect()
}

fn step(frame: &str) -> Option<(&str, &str)> {
    let frame = frame.split_once('\n')?.1.split_once("</div>")?.0;
    Some(frame.split_once("</b> ").and_then(|(_, rest)| rest.split_once("</p>\n")).unwrap_or(("", frame)))
}

/// What the reader's figure has that the reference's has not; `None` if they are the same.
pub fn departure(yours: &str, reference: &str) -> Option<Departure> {
    if yours == reference {
        return None;
    }
    let (mine, theirs) = (steps(yours), steps(reference));
    let differs: Vec<usize> = (0..mine.len()).filter(|step| theirs.get(*step) != Some(&mine[*step])).collect();
    let (n, of) = (mine.len(), theirs.len());
    let says = match differs.first() {
        Some(&step) if step < of => {
            let said = difference(mine[step].0, theirs[step].0);
            let words = said.or_else(|| difference(mine[step].1, theirs[step].1));
            format!("Step {} of {n}: {}", step + 1, words.unwrap_or("yours is drawn differently".into()))
        }
        Some(_) => format!("Yours has {n} steps, the reference has {of}"),
        None if n < of => format!("Yours ends after step {n}, the reference after step {of}"),
        None => {
            let words = difference(yours, reference).unwrap_or("yours is drawn differently".into());
            format!("In the words for the whole figure, {words}")
        }
    };
    Some(Departure { says, steps: differs })
}

/// The words of HTML, without marks around them.
fn words(html: &str) -> Vec<&str> {
    let texts = html.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text));
    let is_mark = |c: char| !c.is_alphanumeric() && !"()[]%".contains(c);
    texts
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_matches(is_mark))
        .filter(|word| !word.is_empty())
        .collect()
}

/// The first words that differ, each side with the word before them.
fn difference(yours: &str, reference: &str) -> Option<String> {
    const MOST: usize = 4;
    let (mine, theirs) = (words(yours), words(reference));
    let from = (0..mine.len().max(theirs.len())).find(|at| mine.get(*at) != theirs.get(*at))?;
    let end = (from + 1..from + MOST).find(|at| mine.get(*at) == theirs.get(*at)).unwrap_or(from + MOST);
    let [mine, theirs] = [&mine, &theirs].map(|words| match words.get(from.saturating_sub(1)..end.min(words.len())) {
        Some(some) if from < words.len() => some.join(" "),
        _ => "nothing more".into(),
    });
    Some(format!("yours has {mine}, the reference {theirs}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::one;

    #[test]
    fn a_planted_difference_is_found_and_worded() {
        let reference = one("ch05_table").unwrap().html();
        assert_eq!(departure(&reference, &reference), None);
        let last = reference.find("<div class=\"pbp-frame kept\" data-step=\"1\"").unwrap();
        let last = &reference[last..reference.find("</div>\n</div>").unwrap() + "</div>\n".len()];
        for (theirs, yours, says, steps) in [
            (
                "pages 12, 5 and 3, in",
                "pages 12, 7 and 3, in",
                "Step 1 of 2: yours has 12 7, the reference 12 5",
                vec![0],
            ),
            (
                "class=\"m b\">page 9<",
                "class=\"m b\">page 7<",
                "Step 2 of 2: yours has page 7, the reference page 9",
                vec![1],
            ),
            (
                "lists the pages",
                "lists the blocks",
                "In the words for the whole figure, yours has the blocks, the reference the pages",
                vec![],
            ),
            (last, "", "Yours ends after step 1, the reference after step 2", vec![]),
        ] {
            let found = departure(&reference.replacen(theirs, yours, 1), &reference);
            assert_eq!(found, Some(Departure { says: says.into(), steps }));
        }
        let found = departure(&reference, &reference.replacen(last, "", 1)).unwrap();
        assert_eq!((found.says.as_str(), found.steps), ("Yours has 2 steps, the reference has 1", vec![1]));
    }
}
