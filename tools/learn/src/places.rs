//! Where a task is in the reader's file, and which task a line belongs to.

use page_by_page_course::chapters::{Exercise, todos};

/// The function around a line, as `fn name`.
fn function_around(text: &str, line: usize) -> Option<String> {
    text.lines().take(line).collect::<Vec<_>>().iter().rev().find_map(|line| function(line))
}

/// `    pub fn grown(old: &[f32]` → `fn grown`
fn function(line: &str) -> Option<String> {
    let code = line.split("//").next()?;
    let before = code.find("fn ")?;
    let is_word = code[..before].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let name: String =
        code[before + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (is_word && !name.is_empty()).then(|| format!("fn {name}"))
}

/// The line of a task: that of its first `todo!`, or of the function in which the stub has it.
pub fn place_of(task: u32, exercise: &Exercise, stub: Option<&str>, chapter: usize) -> Option<usize> {
    if let Some(todo) = exercise.todos.iter().find(|todo| todo.task == task) {
        return Some(todo.line);
    }
    let stub = stub?;
    let of_task = todos(stub, chapter).into_iter().filter(|todo| todo.task == task);
    let functions: Vec<String> = of_task.filter_map(|todo| function_around(stub, todo.line)).collect();
    let mut lines = exercise.text.lines().zip(1..).filter_map(|(line, number)| Some((function(line)?, number)));
    lines.find(|(name, _)| functions.contains(name)).map(|(_, number)| number)
}

/// The task whose function contains this line of the reader's file.
pub fn task_at(line: usize, exercise: &Exercise, stub: Option<&str>, chapter: usize) -> Option<u32> {
    let name = function_around(&exercise.text, line)?;
    let stub = stub?;
    let is_here = |line| function_around(stub, line).as_ref() == Some(&name);
    todos(stub, chapter).into_iter().find(|todo| is_here(todo.line)).map(|todo| todo.task)
}

#[cfg(test)]
mod tests {
    use page_by_page_course::chapters::State;

    use super::*;

    #[test]
    fn a_finished_task_is_found_by_its_function() {
        let stub = "fn grown() {\r\n    todo!(\"ch02 task 1: copy\")\r\n}\r\n// fn no()\r\npub fn write(&mut self) {\r\n    \
                    todo!(\"ch02 task 3: store (all)\")\r\n}\r\n";
        let mine = "\n\nfn grown() {\n    1\n}\n\n    fn  write(&mut self) {\n        2\n    }\n";
        let exercise =
            Exercise { text: mine.into(), state: State::Begun, fingerprint: String::new(), todos: todos(mine, 2) };
        assert_eq!([1, 2, 3].map(|task| place_of(task, &exercise, Some(stub), 2)), [Some(3), None, Some(7)]);
        assert_eq!(place_of(1, &exercise, None, 2), None);
        let at = |line| task_at(line, &exercise, Some(stub), 2);
        assert_eq!([1, 2, 3, 5, 7, 8].map(at), [None, None, Some(1), Some(1), Some(3), Some(3)]);
        assert_eq!(task_at(4, &exercise, None, 2), None);
    }
}
