//! A line of a file or of standard input, however long somebody makes it.

use std::io::{self, BufRead, ErrorKind};

/// Bytes of a line, at most. A prompt of 40,000 tokens has about a fifth of that.
pub const MOST_BYTES: usize = 1 << 20;

/// Bytes up to the end of a line, without it; `None` at the end of the input. Of a line that is too long nothing is kept.
pub fn read_line(input: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let (mut line, mut len) = (Vec::new(), 0_usize);
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let is_end = bytes.is_empty();
        if is_end && len == 0 {
            return Ok(None);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        // The end of the line counts, so that an empty line is not the end of the input.
        let used = part.len() + usize::from(end.is_some());
        len = len.saturating_add(used);
        if len <= MOST_BYTES + 1 {
            line.extend_from_slice(part);
        } else {
            line = Vec::new();
        }
        input.consume(used);
        if is_end || end.is_some() {
            let is_long = len - usize::from(end.is_some()) > MOST_BYTES;
            let problem = || format!("it has more than {} bytes; shorten its prompt", MOST_BYTES);
            return Ok(Some(if is_long { Err(problem()) } else { Ok(line) }));
        }
    }
}
