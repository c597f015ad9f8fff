//! The reader's code and the reference: where they differ, with two lines around each difference.

use similar::{ChangeTag, TextDiff};

use crate::text::{CYAN, DIM, Paragraph, YELLOW, blank, code, plain, prose};

/// A file without the introduction at its head, and without the marks for stubs and pages.
fn as_read(text: &str) -> String {
    const LEFT_OUT: [&str; 4] = ["//!", "// ANCHOR", "// ch", "// stub: "];
    let lines = text.lines().filter(|line| LEFT_OUT.iter().all(|start| !line.trim_start().starts_with(start)));
    lines.skip_while(|line| line.is_empty()).map(|line| format!("{line}\n")).collect()
}

pub fn lines(mine: &str, reference: &str) -> Vec<Paragraph> {
    let (mine, reference) = (as_read(mine), as_read(reference));
    if mine == reference {
        return vec![plain("Yours and the reference are the same, line by line.")];
    }
    let diff = TextDiff::from_lines(&mine, &reference);
    let mut lines = vec![prose("Lines with - are yours, lines with + are the reference's.", DIM)];
    for group in diff.grouped_ops(2) {
        lines.push(blank());
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, style) = match change.tag() {
                ChangeTag::Delete => ('-', YELLOW),
                ChangeTag::Insert => ('+', CYAN),
                ChangeTag::Equal => (' ', DIM),
            };
            lines.push(code(format!("{sign} {}", change.value()), style));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_marked_and_the_rest_is_left_out() {
        let same: String = (1..=9).map(|n| format!("same {n}\n")).collect();
        let mine = format!("//! Head.\r\n\r\n{same}mine\nend\n");
        let reference = format!("{same}// ANCHOR: x\n    // ch02 task 1: copy\ntheirs\nand more\nend\n");
        let found: Vec<String> = lines(&mine, &reference).iter().map(Paragraph::text).collect();
        assert_eq!(found[1..], ["", "  same 8", "  same 9", "- mine", "+ theirs", "+ and more", "  end"]);
        assert!(lines(&mine, &mine)[0].text().contains("the same, line by line"));
    }
}
