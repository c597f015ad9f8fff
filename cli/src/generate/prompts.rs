//! `--prompts`: a file of prompts, one a line.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use page_by_page::files;

/// What is read, at most: standard input may never end.
const MOST_BYTES: usize = 16 << 20;

/// The lines of a file, or of standard input if it is `-`. Lines without a word are left out.
pub fn read(file: &Path) -> Result<Vec<String>> {
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).context("standard input")?;
        return prompts(&bytes).context("standard input");
    }
    let name = file.display().to_string();
    let bytes = files::read(file, MOST_BYTES)
        .with_context(|| format!("{name}: name a file with one prompt a line, or - for standard input"))?;
    prompts(&bytes).context(name)
}

fn prompts(bytes: &[u8]) -> Result<Vec<String>> {
    ensure!(
        bytes.len() <= MOST_BYTES,
        "more than {} MiB; a file of prompts has one a line: split it up",
        MOST_BYTES >> 20
    );
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            bail!("line {line} is not UTF-8; save the file as UTF-8, one prompt a line");
        }
    };
    // Some editors begin a file with a mark that is no part of it.
    let lines = text.strip_prefix('\u{FEFF}').unwrap_or(text).lines();
    let prompts: Vec<String> = lines.filter(|line| !line.trim().is_empty()).map(str::to_string).collect();
    ensure!(!prompts.is_empty(), "no prompt; write one a line, such as \"Once upon a time\"");
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_and_an_empty_line_none() {
        let text = "\u{FEFF}Once upon a time\r\n\r\n  \n  The king had \nOnce upon a time";
        assert_eq!(prompts(text.as_bytes()).unwrap(), ["Once upon a time", "  The king had ", "Once upon a time"]);
    }

    #[test]
    fn what_holds_no_prompts_is_refused_with_its_line() {
        let refused = |bytes: &[u8]| prompts(bytes).unwrap_err().to_string();
        assert!(refused(b"").starts_with("no prompt; "));
        assert!(refused(b"\n \t\r\n").starts_with("no prompt; "));
        assert!(refused(b"one\n\ntwo \xFF\n").starts_with("line 3 is not UTF-8; "));
        assert!(refused(&vec![b'a'; MOST_BYTES + 1]).starts_with("more than 16 MiB; "));
    }
}
