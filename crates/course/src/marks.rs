//! Makes a chapter's stub from its solution.
//!
//! The stub is the solution with the bodies of the reader's functions taken out. A comment that begins with chapter and
//! task marks where the reader's part of a body begins:
//!
//! ```text
//! solutions/ch06_paged.rs                               exercises/ch06_paged.rs
//!
//!   fn write(&mut self, k: &[f32]) {                      fn write(&mut self, k: &[f32]) {
//!       let rows = self.layout().rows(k);                     let rows = self.layout().rows(k);
//!       // ch06 task 2: scatter the new rows                  todo!("ch06 task 2: scatter the new rows")
//!       for row in 0..rows {                              }
//!           …
//!       }
//!   }
//! ```
//!
//! - `// ch06 task 2: scatter the new rows` becomes a `todo!` of these words; the rest of its block goes.
//! - `// stub: let rows = 3;` becomes `let rows = 3;`, right above the next `todo!`. Such a line stands only in the stub: a
//!   hint as a comment, or given code that the solution writes in another way. It stands above its function, outside
//!   what a page includes.
//! - Lines with `ANCHOR:` and `ANCHOR_END:`, which the book's pages include by, go.
//! - The docs of the module get a last line that names the command of the chapter's checks.
//!
//! Everything else is the same in both. `cargo course stubs` writes the stubs. `cargo course check` makes each again
//! and compares it with the one that was handed out.

use crate::chapters::task_label;

/// The stub of the chapter `name`, such as `ch06_paged`.
///
/// # Errors
/// The line of the solution, from 1, and what is wrong with it.
pub fn stub_of(name: &str, solution: &str) -> Result<String, (usize, String)> {
    let chapter = name.split('_').next().unwrap_or(name);
    let mut stub = String::new();
    let mut only_in_stub = Vec::new();
    let mut lines = (1..).zip(solution.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if code.starts_with("// ANCHOR: ") || code.starts_with("// ANCHOR_END: ") {
            continue;
        }
        if let Some(given) = code.strip_prefix("// stub: ") {
            only_in_stub.push((number, given));
            continue;
        }
        let Some(words) = mark(code, chapter).map_err(|problem| (number, problem))? else {
            stub.push_str(&format!("{line}\n"));
            let is_last_of_docs = line.starts_with("//!") && lines.peek().is_none_or(|next| !next.1.starts_with("//!"));
            if is_last_of_docs {
                let command = format!("cargo test --features solution --test {name}");
                stub.push_str(&format!("//!\n//! Check your work with `{command}`.\n"));
            }
            continue;
        };
        for (_, given) in only_in_stub.drain(..) {
            stub.push_str(&format!("{indent}{given}\n"));
        }
        stub.push_str(&format!("{indent}todo!(\"{words}\")\n"));
        let mut taken = 0;
        while lines.next_if(|(_, next)| next.starts_with(indent) || next.is_empty()).is_some() {
            taken += 1;
        }
        if taken == 0 || indent.is_empty() {
            let problem = "no code follows this mark: it stands in a body, above what the reader writes";
            return Err((number, problem.into()));
        }
    }
    match only_in_stub.first() {
        Some((number, _)) => Err((*number, "no mark of a task follows this line of the stub".into())),
        None => Ok(stub),
    }
}

/// `// ch06 task 2: scatter the new rows` → `ch06 task 2: scatter the new rows`
fn mark<'a>(code: &'a str, chapter: &str) -> Result<Option<&'a str>, String> {
    let Some(words) = code.strip_prefix("// ") else { return Ok(None) };
    let Some((number, _, what)) = task_label(words) else { return Ok(None) };
    let of = format!("ch{number:02}");
    if of != chapter {
        return Err(format!("a mark of {of} in {chapter}"));
    }
    if what.contains(['"', '\\', '{', '}']) {
        return Err("the words of a mark become a string of `todo!`: no quotes, backslashes or braces".into());
    }
    Ok(Some(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_cannot_become_a_todo_is_refused_with_its_line() {
        for (solution, line, says) in [
            ("fn a() {\n    // ch07 task 1: x\n    1\n}\n", 2, "a mark of ch07 in ch06"),
            ("fn a() {\n    // ch06 task 1: x\n}\n", 2, "no code follows this mark"),
            ("// ch06 task 1: x\nfn a() {}\n", 1, "no code follows this mark"),
            ("// stub: // Begin here.\nfn a() {}\n", 1, "no mark of a task follows"),
            ("fn a() {\n    // ch06 task 1: a \"b\"\n    1\n}\n", 2, "the words of a mark become a string"),
        ] {
            let (at, problem) = stub_of("ch06_paged", solution).unwrap_err();
            assert_eq!(at, line, "{solution}");
            assert!(problem.starts_with(says), "{problem}");
        }
    }
}
