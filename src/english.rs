//! Numbers and lists as people read them.

/// `1234567` → `1,234,567`
pub fn thousands(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `1 token`, `2,000 tokens`, `3 passes`
pub fn plural(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let ending = if what.ends_with('s') { "es" } else { "s" };
    format!("{} {what}{}", thousands(number), if number == 1 { "" } else { ending })
}

/// `16, 11, 5 and 3`
pub fn listed<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    match &items[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => items.join(""),
    }
}

/// A text in lines of whole words, each of at most so many columns unless a word is longer.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= columns => *line += &format!(" {word}"),
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart_and_one_has_no_plural() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [plural(1, "token"), plural(1000, "token"), plural(0, "pass")],
            ["1 token", "1,000 tokens", "0 passes"]
        );
        assert_eq!([listed(&[16]), listed(&[16, 11, 5])], ["16", "16, 11 and 5"]);
    }
}
