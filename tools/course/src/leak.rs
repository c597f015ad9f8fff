//! Looks for the answers of a solution in its stub, in code and in comments alike.
//!
//! A line of code is compared by its words and signs, so that neither layout nor comment marks hide anything. What
//! counts as an answer is a run of lines of a function that the reader has to write, or its only line; short lines such
//! as `self.len` or `Ok(())` say nothing by themselves.

use std::collections::BTreeMap;

use proc_macro2::Span;
use quote::ToTokens;
use syn::visit::Visit;
use syn::{Block, ImplItemFn, ItemFn, ItemImpl, ItemTrait, TraitItemFn};

use crate::course::Chapter;
use crate::finding::Report;
use crate::surface;

/// Names, keywords and numbers in a line of which a run can be made.
const WORDS_OF_A_LINE: usize = 3;
/// Words in a run of two lines or more that give an answer away.
const WORDS_OF_A_RUN: usize = 8;
/// Words in the only line of a body that give it away.
const WORDS_OF_AN_ONLY_LINE: usize = 4;

/// A word or a sign, and its line in the file.
struct Lexeme {
    text: String,
    line: usize,
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The words and signs of some lines, without those that only part statements.
fn lexemes(text: &str, first_line: usize) -> Vec<Lexeme> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches('/').trim_start_matches('!');
        let mut rest = line;
        while let Some(next) = rest.chars().next() {
            let end = if next.is_alphanumeric() || next == '_' {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            } else {
                next.len_utf8()
            };
            let (lexeme, after) = rest.split_at(end);
            rest = after;
            if !next.is_whitespace() && !"{};,`".contains(next) {
                found.push(Lexeme { text: lexeme.to_string(), line: first_line + index });
            }
        }
    }
    found
}

/// A function of a file by its name, such as `KvCache for FlatCache::write`.
#[derive(Default)]
struct Functions<'a> {
    owner: String,
    blocks: BTreeMap<String, &'a Block>,
}

impl<'a> Functions<'a> {
    fn of(file: &'a syn::File) -> BTreeMap<String, &'a Block> {
        let mut functions = Functions::default();
        functions.visit_file(file);
        functions.blocks
    }

    fn add(&mut self, name: &syn::Ident, block: &'a Block) {
        self.blocks.insert(format!("{}{name}", self.owner), block);
    }
}

impl<'a> Visit<'a> for Functions<'a> {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        self.add(&function.sig.ident, &function.block);
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        self.owner = format!("{}::", surface::owner(item));
        syn::visit::visit_item_impl(self, item);
        self.owner.clear();
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        self.owner = format!("{}::", item.ident);
        syn::visit::visit_item_trait(self, item);
        self.owner.clear();
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        self.add(&function.sig.ident, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &'a TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig.ident, block);
        }
    }
}

/// True if a task is left in the block.
fn is_open(block: &Block) -> bool {
    struct Seek(bool);
    impl<'ast> Visit<'ast> for Seek {
        fn visit_macro(&mut self, call: &'ast syn::Macro) {
            self.0 |= call.path.is_ident("todo");
        }
    }
    let mut seek = Seek(false);
    seek.visit_block(block);
    seek.0
}

/// What lies between two braces, and the line where it begins.
fn body<'t>(text: &'t str, block: &Block) -> (&'t str, usize) {
    let open: Span = block.brace_token.span.open();
    let close: Span = block.brace_token.span.close();
    (&text[open.byte_range().end..close.byte_range().start], open.start().line)
}

/// The lines of a body that say something, without comments.
fn lines(body: &str, first_line: usize) -> Vec<Vec<Lexeme>> {
    let code = |line: &str| match line.trim_start().starts_with("//") {
        true => String::new(),
        false => line.split(" // ").next().unwrap_or_default().to_string(),
    };
    let lines = body.lines().enumerate().map(|(index, line)| lexemes(&code(line), first_line + index));
    lines.filter(|lexemes| !lexemes.is_empty()).collect()
}

fn words(lexemes: &[Lexeme]) -> usize {
    lexemes.iter().filter(|lexeme| is_word(&lexeme.text)).count()
}

/// Where `needle` occurs.
fn find(haystack: &[Lexeme], needle: &[&Lexeme]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .find(|window| window.iter().zip(needle).all(|(a, b)| a.text == b.text))
        .map(|window| window[0].line)
}

/// Reports every run of the solution's answers that the stub holds.
pub fn check(
    chapter: &Chapter,
    (stub_text, stub): (&str, &syn::File),
    (solution_text, solution): (&str, &syn::File),
    report: &mut Report,
) {
    let stub_lexemes = lexemes(stub_text, 1);
    let open: Vec<String> =
        Functions::of(stub).into_iter().filter(|(_, block)| is_open(block)).map(|(name, _)| name).collect();
    for (name, block) in Functions::of(solution) {
        if !open.contains(&name) {
            continue;
        }
        let (text, first_line) = body(solution_text, block);
        let lines = lines(text, first_line);
        let telling: Vec<usize> = (0..lines.len()).filter(|index| words(&lines[*index]) >= WORDS_OF_A_LINE).collect();
        let mut add = |line: usize, from: usize, to: usize| {
            let (from, to) = (lines[from][0].line, lines[to][0].line);
            let which = if from == to { format!("line {from}") } else { format!("lines {from} to {to}") };
            let problem = format!("gives away {which} of {}, the answer in `{name}`", chapter.solution());
            report.add(chapter.stub(), line, problem);
        };
        if let [only] = telling[..] {
            let needle: Vec<&Lexeme> = lines[only].iter().collect();
            if words(&lines[only]) >= WORDS_OF_AN_ONLY_LINE
                && let Some(line) = find(&stub_lexemes, &needle)
            {
                add(line, only, only);
            }
        }
        // From each line the longest run; then on behind it.
        let mut start = 0;
        while start + 1 < telling.len() {
            let mut longest = None;
            for end in start + 1..telling.len() {
                let needle: Vec<&Lexeme> = lines[telling[start]..=telling[end]].iter().flatten().collect();
                let Some(line) = find(&stub_lexemes, &needle) else { break };
                let words = needle.iter().filter(|lexeme| is_word(&lexeme.text)).count();
                longest = Some((end, line, words));
            }
            start = match longest {
                Some((end, line, words)) if words >= WORDS_OF_A_RUN => {
                    add(line, telling[start], telling[end]);
                    end
                }
                _ => start + 1,
            };
        }
    }
}

/// Functions that the stub gives ready, but not as the solution has them: somebody has begun to solve the chapter.
///
/// A function is given if it holds no task; then its code is the solution's, whatever the comments and the layout.
pub fn written(stub: &syn::File, solution: &syn::File) -> Vec<String> {
    let code = |block: &Block| block.to_token_stream().to_string();
    let solved = Functions::of(solution);
    let given = Functions::of(stub).into_iter().filter(|(_, block)| !is_open(block));
    given
        .filter(|(name, block)| solved.get(name).map(|solved| code(solved)) != Some(code(block)))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn an_answer_in_code_is_found() {
        let sample = Sample::new();
        sample.replace(
            "exercises/ch01_sum.rs",
            "    todo!(\"ch01 task 1",
            "    let mut total = 0;\n    for number in numbers.iter() {\n    }\n    todo!(\"ch01 task 1",
        );
        sample.record();
        sample.expect("exercises/ch01_sum.rs:7: gives away lines 8 to 9 of solutions/ch01_sum.rs, the answer in `sum`");
    }

    #[test]
    fn an_answer_in_a_comment_is_found_whatever_its_layout() {
        for leak in [
            "/// `for number in numbers.iter() { total += number % 7; }`\n",
            "// Hint:\n//   for number in numbers.iter() {\n//       total += number % 7;\n",
        ] {
            let sample = Sample::new();
            sample.append("exercises/ch01_sum.rs", leak);
            if leak.starts_with("///") {
                sample.append("exercises/ch01_sum.rs", "struct Documented;\n");
            }
            sample.record();
            sample.expect("gives away lines 9 to 10 of solutions/ch01_sum.rs, the answer in `sum`");
        }
    }

    #[test]
    fn the_only_line_of_an_answer_is_found() {
        let sample = Sample::new();
        sample.replace(
            "exercises/ch01_sum.rs",
            "/// Holds numbers.",
            "/// Holds numbers: `Total { of: sum(numbers) }`.",
        );
        sample.record();
        sample.expect(
            "exercises/ch01_sum.rs:10: gives away line 24 of solutions/ch01_sum.rs, the answer in `Total::new`",
        );
    }

    #[test]
    fn a_function_that_somebody_wrote_is_found() {
        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "        self.of\n", "        // The same.\n        self.of + 0\n");
        sample.record_anyway();
        sample.expect("exercises/ch01_sum.rs: `Total::get` has no todo!, but is not as in solutions/ch01_sum.rs");

        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "        self.of\n", "        // The same.\n        self . of\n");
        sample.record();
        sample.expect_nothing();
    }

    #[test]
    fn what_both_are_given_is_no_answer() {
        // `self.of` is the body of a given method and appears in both; one line of a longer answer is a hint.
        let sample = Sample::new();
        sample.append("exercises/ch01_sum.rs", "// Begin with `let mut total = 0;`.\n");
        sample.record();
        sample.expect_nothing();
    }
}
