//! A course of two chapters, and a cargo that answers at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use page_by_page_course::{marks::stub_of, source::fingerprint};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_learn-tool");

/// Asks until there is an answer, for as long as anything can take on a busy machine.
#[track_caller]
pub fn wait_until<T>(mut ask: impl FnMut() -> Option<T>, what_is_wrong: impl FnOnce() -> String) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Some(answer) => return answer,
            None if began.elapsed() > Duration::from_secs(60) => panic!("{}", what_is_wrong()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

pub const SOLUTION: &str = "//! Sums.\n\n/// Adds.\npub fn sum(numbers: &[u32]) -> u32 {\n    // ch01 task 1: add the \
                            numbers\n    numbers.iter().sum()\n}\n\npub fn mean(numbers: &[u32]) -> u32 {\n    // ch01 \
                            task 2: divide\n    7\n}\n";

const PAGE: &str = include_str!("ch01_sum.md");
const CARGO: &str = include_str!("cargo.sh");

pub struct Sample(TempDir);

impl Sample {
    pub fn new() -> Self {
        let sample = Sample(tempfile::tempdir().unwrap());
        let stub = stub();
        let untouched = format!("{0}  ch01_sum  1  Sums\n{0}  ch02_more  2  More\n", fingerprint(&stub));
        for (file, text) in [
            ("Cargo.toml", "[package]\nname = \"page-by-page\"\n"),
            ("exercises/chapters.txt", untouched.as_str()),
            ("exercises/ch01_sum.rs", stub.as_str()),
            ("exercises/ch02_more.rs", stub.as_str()),
            ("tests/ch01_sum.rs", "#[test]\nfn task_1_adds() {}\n\n#[test]\nfn task_2_divides() {}\n"),
            ("solutions/ch01_sum.rs", SOLUTION),
            ("book/src/ch01_sum.md", PAGE),
            ("book/src/ch02_more.md", "# 2. More\n\n### Task 1: more\n"),
            ("cargo", CARGO),
        ] {
            sample.write(file, text);
        }
        fs::set_permissions(sample.at("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        sample
    }

    pub fn at(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.at(file).parent().unwrap()).unwrap();
        fs::write(self.at(file), text).unwrap();
    }

    /// Saves the reader's file as many editors do: a new file replaces the old one.
    pub fn save(&self, text: &str) {
        self.write("exercises/.ch01_sum.rs.new", text);
        fs::rename(self.at("exercises/.ch01_sum.rs.new"), self.at("exercises/ch01_sum.rs")).unwrap();
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.at(file)).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.0.path()).args(arguments);
        command.env("CARGO", self.at("cargo")).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"] {
            command.env_remove(name);
        }
        command
    }

    #[track_caller]
    pub fn wait_for(&self, file: &str) -> String {
        wait_until(|| Some(self.read(file)).filter(|text| text.ends_with('\n')), || format!("no {file}"))
    }
}

pub fn stub() -> String {
    stub_of("ch01_sum", SOLUTION).unwrap()
}

/// The stub without the lines that contain one of these words.
pub fn without(words: &[&str]) -> String {
    let stub = stub();
    let kept = stub.lines().filter(|line| words.iter().all(|word| !line.contains(word)));
    kept.map(|line| format!("{line}\n")).collect()
}

/// Task 1 wrong, task 2 as in the stub.
pub fn wrong() -> String {
    stub().replace("todo!(\"ch01 task 1: add the numbers\")", "WRONG")
}
