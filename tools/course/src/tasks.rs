//! The tasks of a stub: its `todo!("ch06 task 2: gather walks the page table")`.
//!
//! The failure message of an unsolved task is this text, and `page-by-page status` lists it: it must name the chapter
//! and a number that the pages and the graders use too.

use std::collections::BTreeSet;

use proc_macro2::TokenTree;
use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::course::Chapter;
use crate::finding::Report;

/// A `todo!` or `unimplemented!` in the code.
pub struct Todo {
    pub name: String,
    pub line: usize,
    /// None if it is not one plain string.
    pub message: Option<String>,
}

/// All of them, in order. Comments do not count.
pub fn todos(file: &syn::File) -> Vec<Todo> {
    struct Collect(Vec<Todo>);
    impl<'ast> Visit<'ast> for Collect {
        fn visit_macro(&mut self, call: &'ast syn::Macro) {
            let Some(name) = call.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
            if name == "todo" || name == "unimplemented" {
                let message = call.parse_body::<syn::LitStr>().ok().map(|text| text.value());
                self.0.push(Todo { name, line: call.span().start().line, message });
            } else {
                inside(call.tokens.clone(), &mut self.0);
            }
        }
    }
    /// Finds them in the arguments of another macro, such as `vec![todo!(…)]`.
    fn inside(tokens: proc_macro2::TokenStream, found: &mut Vec<Todo>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(name) if name == "todo" || name == "unimplemented" => {
                    if let [TokenTree::Punct(bang), TokenTree::Group(arguments), ..] = &tokens[index + 1..]
                        && bang.as_char() == '!'
                    {
                        let message = syn::parse2::<syn::LitStr>(arguments.stream()).ok().map(|text| text.value());
                        found.push(Todo { name: name.to_string(), line: name.span().start().line, message });
                    }
                }
                TokenTree::Group(group) => inside(group.stream(), found),
                _ => {}
            }
        }
    }
    let mut collect = Collect(Vec::new());
    collect.visit_file(file);
    collect.0
}

/// The chapter and the task that a message names: `ch06 task 2: gather …` → (6, 2).
fn parse(message: &str) -> Option<(usize, usize)> {
    let (place, what) = message.split_once(": ")?;
    let (chapter, task) = place.strip_prefix("ch")?.split_once(" task ")?;
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if chapter.len() != 2 || !plain(chapter) || !plain(task) || task.starts_with('0') || what.trim().is_empty() {
        return None;
    }
    Some((chapter.parse().ok()?, task.parse().ok()?))
}

/// The numbers of the tasks that a stub names.
pub fn numbers(stub: &syn::File) -> BTreeSet<usize> {
    todos(stub).iter().filter_map(|todo| Some(parse(todo.message.as_ref()?)?.1)).collect()
}

/// The tasks that a grader's checks are named after.
pub fn graded(grader: &syn::File) -> BTreeSet<usize> {
    functions(grader).iter().filter_map(|(name, _)| of_test(name)).collect()
}

/// The task that a test is named after: `checks::task_2_rows_stay` → 2.
pub fn of_test(test: &str) -> Option<usize> {
    let name = test.rsplit("::").next()?.strip_prefix("task_")?;
    name.split('_').next()?.parse().ok()
}

/// Checks the messages of a stub, and that its grader checks each of its tasks.
pub fn check(chapter: &Chapter, text: &str, stub: &syn::File, grader: Option<&syn::File>, report: &mut Report) {
    let file = chapter.stub();
    let todos = todos(stub);
    if todos.is_empty() {
        report.add(&file, 0, "has no todo!(…): it is not a stub");
        return;
    }
    let mut tasks = BTreeSet::new();
    for todo in &todos {
        let number = chapter.number().unwrap_or(0);
        let Some(message) = todo.message.as_ref().filter(|_| todo.name == "todo") else {
            report.add(&file, todo.line, format!("write todo!(\"ch{number:02} task M: …\"), with one plain string"));
            continue;
        };
        if message.contains(['{', '}']) {
            report.add(&file, todo.line, format!("`{message}` has a brace: todo! would format it"));
        }
        match parse(message) {
            None => {
                report.add(&file, todo.line, format!("`{message}` is not of the form `ch{number:02} task M: …`"));
            }
            Some((named, _)) if named != number => {
                report.add(&file, todo.line, format!("`{message}` names chapter {named}; this is chapter {number}"));
            }
            Some((_, task)) => {
                tasks.insert(task);
            }
        }
    }
    let last = tasks.last().copied().unwrap_or(0);
    for missing in (1..last).filter(|task| !tasks.contains(task)) {
        report.add(&file, 0, format!("has a task {last}, but no task {missing}"));
    }
    // `status` looks for tasks in the text.
    let in_text = text.matches("todo!(").count();
    if in_text != todos.len() {
        report.add(
            &file,
            0,
            format!("writes todo!( {in_text} times, {} of them as code; reword the comment", todos.len()),
        );
    }

    let Some(grader) = grader else { return };
    let tests = functions(grader);
    for task in tasks.difference(&graded(grader)) {
        report.add(
            chapter.grader(),
            0,
            format!("has no test named task_{task}_…: nothing says that task {task} is done"),
        );
    }
    for (name, line) in &tests {
        if let Some(task) = of_test(name).filter(|task| !tasks.contains(task)) {
            report.add(chapter.grader(), *line, format!("`{name}` is about task {task}, which {file} does not have"));
        }
    }
}

/// The names of all functions of a file, and their lines.
fn functions(file: &syn::File) -> Vec<(String, usize)> {
    struct Collect(Vec<(String, usize)>);
    impl<'ast> Visit<'ast> for Collect {
        fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
            let name = &function.sig.ident;
            self.0.push((name.to_string(), name.span().start().line));
        }
    }
    let mut collect = Collect(Vec::new());
    collect.visit_file(file);
    collect.0
}

/// Checks that nothing is left to do in a solution.
pub fn check_solution(chapter: &Chapter, solution: &syn::File, report: &mut Report) {
    for todo in todos(solution) {
        report.add(chapter.solution(), todo.line, format!("has a {}!: a solution is complete", todo.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn messages_name_chapter_and_task() {
        assert_eq!(parse("ch06 task 2: gather walks the page table"), Some((6, 2)));
        for wrong in
            ["ch6 task 2: x", "ch06 task two: x", "ch06 task 02: x", "ch06 task 2:", "chapter 6", "ch06 task 2 x"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn todos_are_found_in_macros_but_not_in_comments() {
        let file = syn::parse_file("fn f() {\n    // todo!(\"a\")\n    vec![1,\n        todo!(\"b\")];\n}").unwrap();
        let found = todos(&file);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].message.as_deref()), (4, Some("b")));
    }

    #[test]
    fn a_gap_in_the_numbers_is_found() {
        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "task 2: hold", "task 3: hold");
        sample.expect("exercises/ch01_sum.rs: has a task 3, but no task 2");
        sample.expect("tests/ch01_sum.rs:20: `task_2_holds_the_total` is about task 2");
        sample.expect("tests/ch01_sum.rs: has no test named task_3_…");
    }

    #[test]
    fn a_wrong_message_is_found() {
        for (message, problem) in [
            (
                "todo!(\"ch02 task 1: add\")",
                "exercises/ch01_sum.rs:7: `ch02 task 1: add` names chapter 2; this is chapter 1",
            ),
            ("todo!(\"add them\")", "exercises/ch01_sum.rs:7: `add them` is not of the form `ch01 task M: …`"),
            ("todo!(\"ch01 task 1: {}\", 1)", "exercises/ch01_sum.rs:7: write todo!(\"ch01 task M: …\")"),
            ("todo!(\"ch01 task 1: {numbers:?}\")", "exercises/ch01_sum.rs:7: `ch01 task 1: {numbers:?}` has a brace"),
            ("todo!()", "exercises/ch01_sum.rs:7: write todo!(\"ch01 task M: …\")"),
            ("unimplemented!(\"ch01 task 1: add\")", "exercises/ch01_sum.rs:7: write todo!"),
        ] {
            let sample = Sample::new();
            sample.replace("exercises/ch01_sum.rs", "todo!(\"ch01 task 1: add the numbers\")", message);
            sample.expect(problem);
        }
    }

    #[test]
    fn a_solution_is_complete() {
        let sample = Sample::new();
        sample.replace("solutions/ch02_double.rs", "number + number\n", "unimplemented!()\n");
        sample.expect("solutions/ch02_double.rs:5: has a unimplemented!");
    }
}
