//! Two texts side by side: what is the same stands in one row.

use crate::text::{BOLD, Colour, DIM, Line, PLAIN, Style};

/// A row: a line of the one, of the other, or of both.
pub type Row<'t> = (Option<&'t str>, Option<&'t str>);

/// Pairs the lines of two texts: those that are the same, in order, as many as can be; between them those that are not.
pub fn pair<'t>(mine: &'t str, theirs: &'t str) -> Vec<Row<'t>> {
    let (mine, theirs): (Vec<&str>, Vec<&str>) = (mine.lines().collect(), theirs.lines().collect());
    // longest[i][j]: how many lines of mine[i..] and theirs[j..] can be paired.
    let mut longest = vec![vec![0_u32; theirs.len() + 1]; mine.len() + 1];
    for i in (0..mine.len()).rev() {
        for j in (0..theirs.len()).rev() {
            longest[i][j] = match mine[i] == theirs[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let mut rows = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < mine.len() || j < theirs.len() {
        let (from_i, from_j) = (i, j);
        while i < mine.len() && j < theirs.len() && mine[i] == theirs[j] {
            rows.push((Some(mine[i]), Some(theirs[j])));
            (i, j) = (i + 1, j + 1);
        }
        if (i, j) != (from_i, from_j) {
            continue;
        }
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while (i < mine.len() || j < theirs.len()) && (i == mine.len() || j == theirs.len() || mine[i] != theirs[j]) {
            if j == theirs.len() || i < mine.len() && longest[i + 1][j] >= longest[i][j + 1] {
                left.push(mine[i]);
                i += 1;
            } else {
                right.push(theirs[j]);
                j += 1;
            }
        }
        for at in 0..left.len().max(right.len()) {
            rows.push((left.get(at).copied(), right.get(at).copied()));
        }
    }
    rows
}

/// How many lines of `mine` are not in `theirs`. Blank ones do not count.
pub fn lost(mine: &str, theirs: &str) -> usize {
    let rows = pair(mine, theirs);
    rows.iter().filter(|(mine, theirs)| mine.is_some_and(|line| !line.trim().is_empty()) && mine != theirs).count()
}

/// A file as it is to be compared: without the introduction at its head, and the marks for the pages that print it.
pub fn as_read(text: &str) -> String {
    let is_read = |line: &&str| !line.starts_with("//!") && !line.trim_start().starts_with("// ANCHOR");
    let lines = text.lines().filter(is_read).skip_while(|line| line.trim().is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

/// Columns of a terminal from which on both fit side by side.
pub const WIDE: usize = 110;

/// Rows for a terminal of this width: two columns, or where they do not fit one after the other. And the first row that
/// differs.
pub fn lines(mine: &str, theirs: &str, width: usize) -> (Vec<Line>, usize) {
    let rows = pair(mine, theirs);
    let is_same = |row: &Row<'_>| row.0 == row.1;
    let mut lines = Vec::new();
    let mut first = None;
    let yours = Style { colour: Colour::Yellow, ..PLAIN };
    let reference = Style { colour: Colour::Cyan, ..PLAIN };
    if width >= WIDE {
        let column = (width - 3) / 2;
        for row in &rows {
            let (left, right) = if is_same(row) { (DIM, DIM) } else { (yours, reference) };
            if !is_same(row) {
                first.get_or_insert(lines.len());
            }
            let part = |text: Option<&str>, style| Line::code(text.unwrap_or(""), style).rows(column);
            let (mine, theirs) = (part(row.0, left), part(row.1, right));
            for at in 0..mine.len().max(theirs.len()) {
                let side = |rows: &[Line]| rows.get(at).cloned().unwrap_or_default();
                let mut line = side(&mine).fit(column).and(" │ ", DIM);
                line.pieces.extend(side(&theirs).pieces);
                lines.push(line);
            }
        }
        return (lines, first.unwrap_or(0));
    }
    let mut at = 0;
    while at < rows.len() {
        if is_same(&rows[at]) {
            lines.push(Line::code(rows[at].0.unwrap_or(""), DIM));
            at += 1;
            continue;
        }
        first.get_or_insert(lines.len());
        let end = rows[at..].iter().position(is_same).map_or(rows.len(), |n| at + n);
        let block = &rows[at..end];
        for (name, style, side) in [
            ("yours", yours, block.iter().filter_map(|row| row.0).collect::<Vec<_>>()),
            ("the reference", reference, block.iter().filter_map(|row| row.1).collect()),
        ] {
            lines.push(Line::new(format!("─ {name} ─"), BOLD));
            lines.extend(side.iter().map(|line| Line::code(line, style)));
            if side.is_empty() {
                lines.push(Line::new("(nothing)", DIM));
            }
        }
        lines.push(Line::new("─", DIM));
        at = end;
    }
    (lines, first.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_stands_in_one_row() {
        let rows = pair("a\nb\nc\n", "a\nx\ny\nc\n");
        assert_eq!(rows, [(Some("a"), Some("a")), (Some("b"), Some("x")), (None, Some("y")), (Some("c"), Some("c"))]);
        assert_eq!(pair("", "a"), [(None, Some("a"))]);
        assert_eq!(pair("a\r\nb", "b"), [(Some("a"), None), (Some("b"), Some("b"))]);
        assert_eq!(pair("", ""), []);
    }

    #[test]
    fn lines_that_would_be_lost_are_counted() {
        assert_eq!(lost("a\n\nmine\nmine too\nb\n", "a\ntodo!()\nb\n"), 2);
        assert_eq!(lost("a\r\nb\r\n", "a\nb\n"), 0);
    }

    #[test]
    fn no_line_of_either_is_left_out() {
        let (mine, theirs) =
            ("same\nmine alone\nsame too\n", "same\ntheirs alone, and a good deal longer than that\nsame too\n");
        for width in [40, 80, WIDE, 120] {
            let (lines, first) = lines(mine, theirs, width);
            let text: String = lines.iter().map(|line| line.text() + "\n").collect();
            assert!(text.contains("mine alone") && text.contains("theirs alone, and a good deal longer"), "{text}");
            assert_eq!(first, 1);
            assert_eq!(text.contains("─ yours ─"), width < WIDE);
        }
        let text = "//! Head.\r\n\r\na\r\n// ANCHOR: x\r\n\r\nb //! c\r\n    // ANCHOR_END: x\r\n";
        assert_eq!(as_read(text), "a\n\nb //! c\n");
    }
}
