//! The reader's code and the reference, one beside the other. Long stretches that are the same are folded.

use ratatui_core::style::Style;
use similar::{DiffOp, TextDiff};

use crate::text::{BOLD, CYAN, DIM, Paragraph, YELLOW, blank, code, count, plain, prose};

/// The width from which both fit side by side.
pub const WIDE: usize = 110;

/// Lines that are the same around a difference.
const CONTEXT: usize = 2;

/// A file without the introduction at its head, and without the marks for stubs and pages.
pub fn as_read(text: &str) -> String {
    let is_mark = |line: &str| {
        let line = line.trim_start();
        line.starts_with("// ANCHOR")
            || line.strip_prefix("// ch").is_some_and(|rest| rest.get(2..8) == Some(" task "))
            || line.starts_with("// stub: ")
    };
    let lines = text.lines().filter(|line| !line.starts_with("//!") && !is_mark(line));
    lines.skip_while(|line| line.trim().is_empty()).map(|line| format!("{line}\n")).collect()
}

/// Both texts for a terminal of this width.
pub fn lines(mine: &str, reference: &str, width: usize) -> Vec<Paragraph> {
    let diff = TextDiff::from_lines(mine, reference);
    let groups = diff.grouped_ops(CONTEXT);
    if groups.is_empty() {
        return vec![plain("Yours and the reference are the same, line by line.")];
    }
    let (mine, reference): (Vec<&str>, Vec<&str>) = (mine.lines().collect(), reference.lines().collect());
    let n_differences = diff.ops().iter().filter(|op| !matches!(op, DiffOp::Equal { .. })).count();
    let mut lines =
        vec![prose(format!("{} between yours and the reference.", count(n_differences, "difference")), DIM)];
    let mut shown = 0;
    for group in groups {
        let from = group[0].old_range().start;
        lines.extend(folded(from - shown));
        match width >= WIDE {
            true => lines.extend(columns("yours", "the reference", [BOLD, BOLD], " │ ", width)),
            false => lines.push(prose(format!("line {}", from + 1), DIM)),
        }
        for op in &group {
            let (old, new) = (&mine[op.old_range()], &reference[op.new_range()]);
            match (op, width >= WIDE) {
                (DiffOp::Equal { .. }, true) => {
                    lines.extend(old.iter().flat_map(|line| columns(line, line, [DIM, DIM], " │ ", width)));
                }
                (DiffOp::Equal { .. }, false) => lines.extend(old.iter().map(|line| code(format!("  {line}"), DIM))),
                (_, true) => lines.extend((0..old.len().max(new.len())).flat_map(|at| {
                    let side = |lines: &[&str]| lines.get(at).map_or(String::new(), ToString::to_string);
                    columns(&side(old), &side(new), [YELLOW, CYAN], " ≠ ", width)
                })),
                (_, false) => {
                    lines.extend(side("yours", '-', old, YELLOW));
                    lines.extend(side("the reference", '+', new, CYAN));
                }
            }
            shown = op.old_range().end;
        }
    }
    lines.extend(folded(mine.len() - shown));
    lines
}

fn folded(n: usize) -> Vec<Paragraph> {
    match n {
        0 => vec![blank()],
        n => vec![blank(), prose(format!("… {} the same …", count(n, "line")), DIM), blank()],
    }
}

/// A line of each side, wrapped in its own column.
fn columns(left: &str, right: &str, styles: [Style; 2], between: &str, width: usize) -> Vec<Paragraph> {
    let column = (width - 3) / 2;
    let (left, right) = (code(left, styles[0]).rows(column), code(right, styles[1]).rows(column));
    let row = |at: usize| {
        let mut row = Paragraph { line: left.get(at).cloned().unwrap_or_default(), ..code("", DIM) };
        let room = column.saturating_sub(row.line.width());
        row = row.and(" ".repeat(room), DIM).and(between, DIM);
        row.line.spans.extend(right.get(at).cloned().unwrap_or_default().spans);
        row
    };
    (0..left.len().max(right.len())).map(row).collect()
}

fn side(name: &str, sign: char, lines: &[&str], style: Style) -> Vec<Paragraph> {
    match lines {
        [] => vec![prose(format!("{sign} (nothing: {name})"), DIM)],
        lines => lines.iter().map(|line| code(format!("{sign} {line}"), style)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Paragraph]) -> String {
        lines.iter().map(|line| line.text().trim_end().to_string() + "\n").collect()
    }

    #[test]
    fn differences_are_marked_and_the_rest_is_folded() {
        let same: String = (1..=9).map(|n| format!("same {n}\n")).collect();
        let (mine, reference) = (format!("{same}mine\nend\n"), format!("{same}theirs\nand more\nend\n"));
        let expected = "1 difference between yours and the reference.\n\n… 7 lines the same …\n\nline 8\n  same 8\n  same 9\n\
                        - mine\n+ theirs\n+ and more\n  end\n\n";
        assert_eq!(text(&lines(&mine, &reference, 80)), expected);
        let wide = text(&lines(&mine, &reference, 120));
        for row in ["mine", "theirs"] {
            assert!(wide.lines().any(|line| line.contains(row) && line.contains('≠')), "{wide}");
        }
        assert!(wide.lines().all(|line| !line.contains("same 9") || line.contains('│')), "{wide}");
        let long = "a line that is longer than a column, so that it needs two of its rows".to_string();
        let both = text(&lines(&format!("{long} here\n"), &format!("{long} there\n"), WIDE));
        assert!(both.contains("rows here") && both.contains("rows there"), "{both}");
        assert!(text(&lines(&same, &same, 80)).contains("the same, line by line"));
        assert!(text(&lines("a\n", "", 80)).contains("+ (nothing: the reference)"));
    }

    #[test]
    fn introduction_and_marks_are_left_out() {
        let text = "//! Head.\r\n\r\na\r\n// ANCHOR: x\r\n    // ch02 task 1: copy\n// stub: no\r\n\r\nb //! c\r\n    // ANCHOR_END: x\r\n";
        assert_eq!(as_read(text), "a\n\nb //! c\n");
    }
}
