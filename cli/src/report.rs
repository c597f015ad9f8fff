//! Numbers and tables as people read them.

use std::time::Duration;

/// `1234567` → `1,234,567`
pub fn thousands(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as MiB, with more digits where there is little.
pub fn mib(bytes: usize) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    if mib < 100.0 { format!("{mib:.2} MiB") } else { format!("{} MiB", thousands(mib.round() as u64)) }
}

/// A rate to three digits or more: `0.52`, `17.3`, `2,310`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => thousands(rate.round() as u64),
    }
}

/// Seconds or milliseconds.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Events per second; 0 if there were none.
pub fn per_second(events: usize, duration: Duration) -> f64 {
    if events == 0 { 0.0 } else { events as f64 / duration.as_secs_f64().max(1e-9) }
}

/// `1 token`, `2 tokens`
pub fn count(number: usize, what: &str) -> String {
    format!("{} {what}{}", thousands(number as u64), if number == 1 { "" } else { "s" })
}

/// Lines of cells in aligned columns: text to the left, numbers to the right.
pub struct Table {
    lines: Vec<Vec<String>>,
    /// Columns from the left that hold text.
    text_columns: usize,
}

impl Table {
    /// A table with its heading; the first `text_columns` columns hold text.
    pub fn new(text_columns: usize, heading: &[&str]) -> Self {
        let mut table = Table { lines: Vec::new(), text_columns };
        table.line(heading.iter().copied());
        table
    }

    /// Adds a line.
    pub fn line<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table, a text line for each of its lines.
    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.lines.iter().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut cells = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if column < self.text_columns {
                    cells.push_str(&format!("{cell:<width$}   "));
                } else {
                    cells.push_str(&format!("{cell:>width$}   "));
                }
            }
            text.push_str(cells.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let numbers: [u64; 5] = [0, 999, 1_000, 117_440_512, u64::MAX];
        let texts = ["0", "999", "1,000", "117,440,512", "18,446,744,073,709,551,615"];
        assert_eq!(numbers.map(thousands), texts);
    }

    #[test]
    fn a_table_aligns_text_left_and_numbers_right() {
        let mut table = Table::new(1, &["cache", "rows"]);
        table.line(["flat", "2,016"]);
        assert_eq!(table.render(), "cache    rows\nflat    2,016\n");
    }
}
