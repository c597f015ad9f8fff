//! Reads a file in `exercises/`, computes the fingerprint that tells an untouched stub from started work, and refuses
//! code that uses `std::process`, because `exit(0)` would end the checks as if they had passed.
//!
//! The build script decides by the fingerprint whose code is compiled, and the tools show the same.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The text of a file, named from the root of the repository, with `\n` line ends: git may have changed those.
///
/// # Errors
/// What is wrong and what to do, in a line. Only a file that is missing is to be fetched from git: to do so with one
/// that is there would throw the reader's work away.
pub fn read(root: &Path, file: &str) -> Result<String, String> {
    let bytes = fs::read(root.join(file)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{file} is missing: restore it with `git checkout {file}`"),
        _ => format!(
            "{file} is there but cannot be read ({error}): allow yourself to read it; what is in it is not lost"
        ),
    })?;
    String::from_utf8(bytes).map(|text| text.replace("\r\n", "\n")).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let line = bytes[..offset].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!(
            "{file}:{line}: not text in UTF-8: the byte 0x{:02X} at offset {offset} begins no character; write this \
             line anew and save the file as UTF-8; the rest of it is not lost",
            bytes[offset]
        )
    })
}

/// The names of the files in a folder that end in `extension`, without it, sorted. A missing folder has none.
pub fn file_names(root: &Path, folder: &str, extension: &str) -> Vec<String> {
    let files = fs::read_dir(root.join(folder)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.to_str()?.strip_suffix(extension)?.to_string())).collect();
    names.sort();
    names
}

/// FNV-1a, 64 bits, of the text with `\n` line ends.
pub fn fingerprint(text: &str) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.replace("\r\n", "\n").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// A text line by line, without its `//` comments.
pub fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    lines.join("\n")
}

/// The line where a text uses `std::process`, and why that is refused: `exit(0)` ends checks as if all had passed.
pub fn refused(text: &str) -> Option<(usize, &'static str)> {
    let code = code(text);
    let is_part_of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    let (at, _) = code.match_indices("process").find(|(at, word)| {
        let (before, after) = (&code[..*at], &code[at + word.len()..]);
        let whole = !before.ends_with(is_part_of_a_word) && !after.starts_with(is_part_of_a_word);
        let (before, after) = (before.trim_end(), after.trim_start());
        let is_a_path = before.ends_with("::") || after.starts_with("::") || after.starts_with("as ");
        whole && is_a_path && !before.ends_with('.')
    })?;
    let line = code[..at].matches('\n').count() + 1;
    let problem = "a chapter may not use std::process: its exit ends the checks, and those that have not run would \
                   pass for green; return an error or panic! instead";
    Some((line, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_never_called_missing() {
        let folder = tempfile::tempdir().unwrap();
        let read = || read(folder.path(), "a.rs");
        assert_eq!(read().unwrap_err(), "a.rs is missing: restore it with `git checkout a.rs`");
        fs::write(folder.path().join("a.rs"), b"fn a() {}\n// caf\xe9\n").unwrap();
        let says = read().unwrap_err();
        assert!(says.starts_with("a.rs:2: not text in UTF-8: the byte 0xE9 at offset 16 "), "{says}");
        assert!(!says.contains("git checkout"), "{says}");
        fs::remove_file(folder.path().join("a.rs")).unwrap();
        // A folder exists, and cannot be read as a file.
        fs::create_dir(folder.path().join("a.rs")).unwrap();
        let says = read().unwrap_err();
        assert!(says.starts_with("a.rs is there but cannot be read (") && !says.contains("git checkout"), "{says}");
    }

    #[test]
    fn line_ends_do_not_count() {
        assert_eq!(fingerprint("a\r\nb\r\n"), fingerprint("a\nb\n"));
        assert_ne!(fingerprint("a\nb\n"), fingerprint("a\nb"));
        // The published test vector of FNV-1a.
        assert_eq!(fingerprint("foobar"), "85944171f73967e8");
    }

    #[test]
    fn code_that_could_end_the_checks_is_refused_and_a_word_is_not() {
        for code in [
            "std::process::exit(0)",
            "process::exit(0)",
            "std :: process :: abort()",
            "use std::{fs, process as p};",
            "use std::process::{\n    exit,\n};",
        ] {
            let found = refused(&format!("fn a() {{\n    {code}\n}}"));
            assert_eq!(found.map(|(line, _)| line), Some(2), "{code}");
        }
        for code in [
            "// std::process::exit(0) would end it",
            "fn process(rows: usize) {}",
            "self.process::<f32>(rows);",
            "let processed::Rows { n } = rows;",
        ] {
            assert_eq!(refused(code), None, "{code}");
        }
    }
}
