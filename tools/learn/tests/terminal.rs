//! `cargo learn` as readers meet it: in a terminal, with a course of two chapters, an editor that saves, and a cargo that answers
//! at once.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_learn-tool");

/// So long may a loaded machine take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

const STUB: &str = "/// Adds.\npub fn sum(numbers: &[u32]) -> u32 {\n    todo!(\"ch01 task 1: add the numbers\")\n}\n\n\
                    pub fn mean(numbers: &[u32]) -> u32 {\n    todo!(\"ch01 task 2: divide\")\n}\n";

const PAGE: &str = "# 1. Sums\n\n## Build\n\n### Task 1: add\n\nAll of them.\n\n<details class=\"hint\">\n<summary>Hint 1</summary>\n\n\
                    `iter().sum()` adds.\n\n</details>\n<details class=\"hint\">\n<summary>Hint 2</summary>\n\nIt needs a type.\n\n\
                    </details>\n\n### Task 2: divide\n\n<details class=\"hint\">\n<summary>Hint</summary>\n\nBy how many.\n\n</details>\n\n\
                    ```console\n$ cargo run --release --features solution -- generate \"One day\"\n```\n\n## What it bought\n\nMuch.\n\n\
                    ## Check yourself\n\n<details class=\"answer\">\n<summary>Why?</summary>\n\nBecause.\n\n</details>\n";

/// A cargo that looks into the file and says what the real one would. What it was asked is in `asked`.
const CARGO: &str = r#"#!/bin/sh
echo "$*" >> asked
file=exercises/ch01_sum.rs
case "$*" in
    run*bought*) grep -q COUNTS $file && { echo $$ > counting; sleep 1000; }; echo '{"chapters":[{"before":{"way":"by hand"},"after":{"way":"in a loop"},"lines":[{"what":"sums made","before":{"shown":"9"},"after":{"shown":"1"}}]}]}'; exit 0 ;;
    run*generate*) echo 'One day a king'; grep -q ENDLESS $file && { echo $$ > telling; sleep 1000; }; exit 0 ;;
    *--test\ ch01_sum*) ;;
    *) echo "error: the test did not expect: $*" >&2; exit 1 ;;
esac
echo '   Compiling sample v0.1.0' >&2
if grep -q SLOW $file; then echo $$ > building; sleep 1000; fi
if grep -q BROKEN $file; then
    printf '%s\n' '{"reason":"compiler-message","message":{"level":"error","message":"m","rendered":"\u001b[91merror\u001b[0m: expected `;`\n","spans":[{"file_name":"src/../exercises/ch01_sum.rs","is_primary":true,"line_start":'$(grep -n BROKEN $file | cut -d: -f1)',"expansion":null}]}}'
    echo '{"reason":"build-finished","success":false}'
    exit 101
fi
if grep -q ELSEWHERE $file || ! grep -q '[^ ]' $file; then
    printf '%s\n' '{"reason":"compiler-message","message":{"level":"error","message":"m","rendered":"error: in a solution","spans":[{"file_name":"solutions/ch02_more.rs","is_primary":true,"line_start":5,"expansion":null}]}}'
    [ -s $file ] && grep -q ELSEWHERE $file && printf '%s\n' '{"reason":"compiler-message","message":{"level":"error","message":"m","rendered":"error: in chapter 2","spans":[{"file_name":"src/../exercises/ch02_more.rs","is_primary":true,"line_start":61,"expansion":null}]}}'
    echo '{"reason":"build-finished","success":false}'
    exit 101
fi
if grep -q REFUSED $file; then echo 'error: sample@0.1.0: not this' >&2; echo 'error: page-by-page@0.1.0: exercises/ch02_x.rs is missing' >&2; exit 101; fi
echo '{"reason":"build-finished","success":true}'
if grep -q HANGS $file; then echo $$ > hanging; echo 'running 1 test'; sleep 1000; fi
if grep -q ABORTS $file; then echo 'running 2 tests'; echo 'error: checks::task_1_adds asks for 9 bytes more' >&2; exit 134; fi
one=ok; two=ok; words='sum of [1, 2]
  expected: 3
  yours:    0'
grep -q 'task 2' $file && two=FAILED
grep -q 'WRONG' $file && one=FAILED
grep -q 'task 1' $file && { one=FAILED; words='sum of [1, 2]
  your code panicked (exercises/ch01_sum.rs:3): not yet implemented: ch01 task 1: add the numbers'; }
echo
case "$*" in *--skip*) n=1 ;; *task_1_*) n=1 ;; *task_2_*) n=1 ;; *) n=2 ;; esac
has_one=yes; has_two=yes
case "$*" in *--skip\ task_1_*) has_one= ;; *--skip\ task_2_*) has_two= ;; *task_1_*) has_two= ;; *task_2_*) has_one= ;; esac
echo "running $n tests"
[ $has_one ] && echo "test checks::task_1_adds ... $one"
[ $has_two ] && echo "test checks::task_2_divides ... $two"
printf '\nfailures:\n\n'
[ $has_one ] && [ $one = FAILED ] && printf -- "---- checks::task_1_adds stdout ----\n\nthread 'checks::task_1_adds' (7) panicked at tests/x.rs:1:1:\n%s\nnote: run with \`RUST_BACKTRACE=1\` environment variable to display a backtrace\n\n" "$words"
[ $has_two ] && [ $two = FAILED ] && printf -- '---- checks::task_2_divides stdout ----\nmean of [2]\n  your code panicked (exercises/ch01_sum.rs:7): not yet implemented: ch01 task 2: divide\n\n'
printf '\nfailures:\n'
code=0
[ $has_one ] && [ $one = FAILED ] && { echo '    checks::task_1_adds'; code=101; }
[ $has_two ] && [ $two = FAILED ] && { echo '    checks::task_2_divides'; code=101; }
printf '\ntest result: x. 0 passed\n\n'
exit $code
"#;

/// FNV-1a, as `tools/course/src/stub.rs` takes it.
fn fingerprint(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// A course of two chapters, under git.
struct Sample(TempDir);

impl Sample {
    fn new() -> Self {
        let sample = Sample(tempfile::tempdir().unwrap());
        let untouched = format!("{0}  ch01_sum\n{0}  ch02_more\n", fingerprint(STUB));
        for (file, text) in [
            ("Cargo.toml", "[package]\nname = \"page-by-page\"\n"),
            ("exercises/untouched.txt", untouched.as_str()),
            ("exercises/ch01_sum.rs", STUB),
            ("exercises/ch02_more.rs", STUB),
            ("tests/ch01_sum.rs", "#[test]\nfn task_1_adds() {}\n\n#[test]\nfn task_2_divides() {}\n"),
            ("solutions/ch01_sum.rs", "/// Adds.\npub fn sum(numbers: &[u32]) -> u32 {\n    numbers.iter().sum()\n}\n"),
            ("book/src/ch01_sum.md", PAGE),
            ("book/src/ch02_more.md", "# 2. More\n\n### Task 1: more\n"),
            ("cargo", CARGO),
        ] {
            sample.write(file, text);
        }
        fs::set_permissions(sample.at("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "The sample"]] {
            let mut git = Command::new("git");
            git.arg("-C").arg(sample.0.path()).args(["-c", "user.name=Sample", "-c", "user.email=sample@example.com"]);
            assert!(git.args(["-c", "commit.gpgsign=false"]).args(arguments).status().unwrap().success());
        }
        sample
    }

    fn at(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.at(file).parent().unwrap()).unwrap();
        fs::write(self.at(file), text).unwrap();
    }

    /// Saves the reader's file as many editors do: a new file in the place of the old one.
    fn save(&self, text: &str) {
        self.write("exercises/.ch01_sum.rs.new", text);
        fs::rename(self.at("exercises/.ch01_sum.rs.new"), self.at("exercises/ch01_sum.rs")).unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.at(file)).unwrap_or_default()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.0.path()).args(arguments);
        command
            .env("CARGO", self.at("cargo"))
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .env("GIT_CEILING_DIRECTORIES", "/");
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"] {
            command.env_remove(name);
        }
        command
    }

    fn once(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn wait_for(&self, file: &str) -> String {
        let began = Instant::now();
        while !self.read(file).ends_with('\n') {
            assert!(began.elapsed() < PATIENCE, "no {file}");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.read(file)
    }
}

/// Whether a process is there and has not ended.
fn is_alive(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let is_zombie = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    test_kill_process(pid).is_ok() && !is_zombie
}

#[track_caller]
fn is_gone(pid: &str) {
    let began = Instant::now();
    while is_alive(pid) {
        assert!(began.elapsed() < PATIENCE, "{pid} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A terminal with the companion in it.
struct Terminal {
    side: File,
    screen: Arc<Mutex<vt100::Parser>>,
    keyboard: File,
    before: String,
    child: Child,
}

fn size(n: u16) -> std::num::NonZero<u16> {
    std::num::NonZero::new(n).unwrap()
}

/// What a program can leave changed in a terminal.
fn modes(termios: &Termios) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes
    )
}

impl Terminal {
    fn start(sample: &Sample, arguments: &[&str], columns: u16, rows: u16) -> Self {
        Terminal::of(sample.command(arguments), columns, rows)
    }

    fn of(mut command: Command, columns: u16, rows: u16) -> Self {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
        let side = || File::options().read(true).write(true).open(&name).unwrap();
        tcsetwinsize(&pty, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = modes(&tcgetattr(side().as_fd()).unwrap());
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let keyboard = File::from(pty);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let (mut from, to) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..n]);
            }
        });
        Terminal { side: side(), screen, keyboard, before, child }
    }

    fn seen(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until this is on the screen; what is there then, without its line ends.
    #[track_caller]
    fn until(&self, words: &str) -> String {
        let began = Instant::now();
        loop {
            let seen = self.seen();
            let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
            if flat.contains(words) {
                return flat;
            }
            assert!(began.elapsed() < PATIENCE, "{words:?} does not come:\n{seen}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(size(rows), size(columns));
        tcsetwinsize(&self.keyboard, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // A terminal of its own would have told it.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    /// The exit code; the terminal must be as it was.
    #[track_caller]
    fn ended(mut self) -> Option<i32> {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(began.elapsed() < PATIENCE, "still running:\n{}", self.seen()),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(modes(&tcgetattr(self.side.as_fd()).unwrap()), self.before, "the terminal's modes");
        while self.screen.lock().unwrap().screen().alternate_screen()
            || self.screen.lock().unwrap().screen().hide_cursor()
        {
            assert!(began.elapsed() < PATIENCE, "the screen is not given back");
            std::thread::sleep(Duration::from_millis(5));
        }
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn without(text: &str, word: &str) -> String {
    text.lines().filter(|line| !line.contains(word)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn from_the_stub_to_a_chapter_that_is_done() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("1 · Sums");
    terminal.until("Not started. Edit exercises/ch01_sum.rs to begin: each time you save it, the checks run here.");
    terminal.until("Until you change the file, the finished one in solutions/ is used in its place.");
    terminal.until("Task 1: add todo in exercises/ch01_sum.rs:3");
    assert_eq!(sample.read("asked"), "", "an untouched chapter is not checked");

    sample.save(&format!("{STUB}\n"));
    terminal.until(
        "Task 1: add todo in exercises/ch01_sum.rs:3 0 of 1 check green Not written yet: add the numbers The page says",
    );
    terminal.until("1 more red check not shown (a shows it)");
    let seen = terminal.until("0 of 2 green");
    assert!(!seen.contains("RUST_BACKTRACE") && !seen.contains("thread '") && !seen.contains("mean of"), "{seen}");
    let asked = sample.read("asked");
    let [first, rest] = asked.lines().collect::<Vec<_>>()[..] else { panic!("{asked}") };
    let test = "test --features solution --test ch01_sum --message-format=json-diagnostic-rendered-ansi --";
    assert_eq!([first, rest], [format!("{test} task_1_"), format!("{test} --skip task_1_")]);

    // The same text once more is no change; nor is another date.
    sample.save(&format!("{STUB}\n"));
    terminal.press("h");
    terminal.until("1 of 2 hints Hint 1 iter().sum() adds.");
    terminal.press("h");
    terminal.until("Hint 2 It needs a type.");
    assert_eq!(sample.read("asked").lines().count(), 2);

    let wrong = without(STUB, "task 1").replace("-> u32 {\n}", "-> u32 {\n    WRONG\n}");
    sample.save(&wrong);
    terminal.until("sum of [1, 2] expected: 3 yours: 0");
    terminal.press("a");
    terminal.until("✗ task_1_adds sum of [1, 2] expected: 3 yours: 0");
    terminal.until("Task 2: divide 0 of 1 check green 1 check comes to what is not written yet.");
    sample.save(&without(STUB, "task 1"));
    terminal.until("▸ 2 divide 0/1");
    terminal.until("Task 2: divide todo in exercises/ch01_sum.rs:6");
    terminal.until(
        "Task 1 is green. Next: task 2. Not written yet: divide The page says what it must do (t shows it here).",
    );
    terminal.press("v");
    terminal.until("the reference is shown once all is green; 1 of 2 checks are");

    sample.save(&without(&without(STUB, "task 1"), "task 2"));
    terminal.until("Chapter 1 is done: all 2 checks are green.");
    terminal.until("What it bought by hand → in a loop: sums made: 9 → 1");
    terminal.press("c");
    terminal.until("Why? Think first");
    terminal.press("\r");
    terminal.until("Because.");
    terminal.press("\x1b");
    terminal.until("is done");
    terminal.press("v");
    terminal.until("numbers.iter().sum()");
    terminal.press("qs");
    terminal.until("One day a king");
    terminal.press("q");
    terminal.until("is done");
    terminal.press("n");
    terminal.until("2 · More");
    terminal.until("Not started.");
    terminal.press("q");
    terminal.until("Chapter 2, task 1: `cargo learn` goes on there.");
    assert_eq!(terminal.ended(), Some(0));

    let record: serde_json::Value = serde_json::from_str(&sample.read(".page-by-page/record.json")).unwrap();
    assert_eq!(record["at"], "ch02_more");
    let ran = &record["chapters"]["ch01_sum"];
    let green = serde_json::json!({ "green": 1, "of": 1 });
    assert_eq!((&ran["tasks"]["1"], &ran["tasks"]["2"], &ran["hints"]["1"]), (&green, &green, &serde_json::json!(2)));
    assert_eq!(ran["fingerprint"], fingerprint(&without(&without(STUB, "task 1"), "task 2")));
    // It goes on where it was left.
    let mut again = Terminal::start(&sample, &[], 80, 24);
    again.until("2 · More");
    again.press("p");
    again.until("Chapter 1 is done");
    again.press("q");
    assert_eq!(again.ended(), Some(0));
}

#[test]
fn the_terminal_is_given_back_whatever_ends_it() {
    for (key, signal, code) in [
        ("\x03", None, 0),
        ("q", None, 0),
        ("", Some(Signal::TERM), 143),
        ("", Some(Signal::INT), 130),
        ("", Some(Signal::HUP), 129),
    ] {
        let sample = Sample::new();
        sample.save(&format!("{STUB}// SLOW\n"));
        let mut terminal = Terminal::start(&sample, &["1"], 80, 24);
        terminal.until("compiling sample …");
        let build = sample.wait_for("building");
        terminal.press(key);
        if let Some(signal) = signal {
            kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        }
        assert_eq!(terminal.ended(), Some(code), "{key:?} {signal:?}");
        is_gone(&build);
    }
}

#[test]
fn a_newer_save_ends_an_older_build() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("Not started.");
    sample.save(&format!("{STUB}// SLOW\n"));
    let build = sample.wait_for("building");
    sample.save(&format!("{STUB}// BROKEN\n"));
    terminal.until("error: expected `;`");
    is_gone(&build);
    terminal.until("does not compile");
    // The file as it was handed out is no work of the reader's.
    sample.save(STUB);
    terminal.until("Not started.");
    sample.save(&format!("{STUB}// REFUSED\n"));
    terminal.until("Nothing could be compiled. exercises/ch02_x.rs is missing");
    fs::remove_file(sample.at("exercises/ch01_sum.rs")).unwrap();
    terminal.until("exercises/ch01_sum.rs is missing: restore it with `git checkout exercises/ch01_sum.rs`");
    terminal.until("x puts it back as it was handed out.");
    terminal.press("x");
    terminal.until("exercises/ch01_sum.rs is back");
    terminal.until("Not started.");
    sample.save(&format!("{STUB}// ABORTS\n"));
    terminal.until("did not come to their end. task_1_adds asks for 9 bytes more");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn checks_that_hang_are_ended() {
    let sample = Sample::new();
    sample.save(&format!("{STUB}// HANGS\n"));
    let mut terminal = Terminal::start(&sample, &["--time-limit", "1"], 60, 20);
    terminal.until("still running after 1 seconds, and were ended");
    is_gone(&sample.wait_for("hanging"));
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn what_a_hang_cuts_off_is_not_the_verdict_before() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &["--time-limit", "2"], 90, 24);
    terminal.until("Not started.");
    let wrong = without(STUB, "task 1").replace("-> u32 {\n}", "-> u32 {\n    WRONG\n}");
    sample.save(&wrong);
    terminal.until("0 of 2 green");
    terminal.until("yours: 0");
    sample.save(&format!("{wrong}// HANGS\n"));
    let seen = terminal.until("This one did not finish: task_1_adds");
    assert!(seen.contains("stopped ·") && !seen.contains("of 2 green") && !seen.contains("yours: 0"), "{seen}");
    terminal.press("a");
    terminal.until("esc back");
    let seen = terminal.until("This one did not finish: task_1_adds");
    assert!(!seen.contains("yours: 0") && !seen.contains("0/1"), "{seen}");
    // A task that was green before this save has not been checked since.
    sample.save(&without(STUB, "task 1"));
    terminal.until("✓ 1 add ▸ 2 divide 0/1");
    sample.save(&format!("{}// HANGS\n", without(STUB, "task 1")));
    terminal.until("· 1 add ▸ 2 divide · whole");
    terminal.until("This one did not finish: task_2_divides");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn a_task_stays_in_hand_until_its_checks_are_green() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &[], 90, 24);
    terminal.until("Not started.");
    sample.save(&without(STUB, "task 1").replace("-> u32 {\n}", "-> u32 {\n    BROKEN\n}"));
    terminal.until("does not compile");
    terminal.until("▸ 1 add · 2 divide");
    terminal.press("h");
    terminal.until("Task 1: add 1 of 2 hints");
    // One error in a chapter that was done.
    let done = without(STUB, "todo!");
    sample.save(&done);
    terminal.until("Chapter 1 is done");
    sample.save(&done.replace("mean(numbers: &[u32]) -> u32 {", "mean(numbers: &[u32]) -> u32 {\n    BROKEN"));
    terminal.until("does not compile");
    terminal.until("▸ 2 divide");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
    // What was green when it was left is not begun anew.
    sample.save(&without(STUB, "task 1"));
    let mut again = Terminal::start(&sample, &["--time-limit", "2"], 90, 24);
    again.until("▸ 2 divide 0/1");
    sample.save(&format!("{}// BROKEN\n", without(STUB, "task 1").replace("mean", "middle")));
    again.until("▸ 2 divide");
    again.press("q");
    assert_eq!(again.ended(), Some(0));
}

#[test]
fn checks_that_do_not_end_are_named_while_they_run() {
    let sample = Sample::new();
    sample.save(&format!("{STUB}// HANGS\n"));
    let mut terminal = Terminal::start(&sample, &[], 90, 24);
    terminal.until("task_1_adds is still running: a loop that never ends?");
    sample.save(&format!("{STUB}\n"));
    let seen = terminal.until("0 of 2 green");
    assert!(!seen.contains("still running"), "{seen}");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn an_error_in_another_chapter_says_where_to_go() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &[], 90, 24);
    terminal.until("Not started.");
    sample.save(&format!("{STUB}// ELSEWHERE\n"));
    terminal.until("Chapter 2 does not compile: exercises/ch02_more.rs:61");
    terminal.until("n goes there. error: in chapter 2");
    sample.save(" \n");
    terminal.until("exercises/ch01_sum.rs is empty. x makes it the stub again.");
    terminal.press("x");
    terminal.press("y");
    terminal.until("Not started.");
    assert_eq!(sample.read("exercises/ch01_sum.rs"), STUB);
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn a_story_can_be_stopped() {
    let sample = Sample::new();
    sample.save(&format!("{}// ENDLESS\n", without(STUB, "todo!")));
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("Chapter 1 is done");
    terminal.press("s");
    terminal.until("One day a king");
    let story = sample.wait_for("telling");
    assert!(is_alive(&story));
    terminal.press("\x1b");
    terminal.until("Chapter 1 is done");
    is_gone(&story);
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn nothing_goes_on_when_it_has_ended() {
    let sample = Sample::new();
    sample.save(&format!("{}// COUNTS\n", without(STUB, "todo!")));
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("Chapter 1 is done");
    let counts = sample.wait_for("counting");
    assert!(is_alive(&counts));
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
    is_gone(&counts);
}

#[test]
fn a_reset_asks_and_keeps_what_was_there() {
    let sample = Sample::new();
    let mine = format!("{STUB}// mine\n// mine too\n");
    sample.save(&mine);
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("0 of 2 green");
    terminal.press("x");
    terminal.until("2 lines of yours would be gone");
    terminal.press("n");
    terminal.until("Not written yet");
    assert_eq!(sample.read("exercises/ch01_sum.rs"), mine);
    terminal.press("x");
    terminal.until("2 lines of yours would be gone");
    terminal.press("y");
    let seen = terminal.until("what you had is in .page-by-page/ch01_sum.");
    terminal.until("Not started.");
    assert_eq!(sample.read("exercises/ch01_sum.rs"), STUB);
    let kept = seen.split_once("what you had is in ").unwrap().1.split(' ').next().unwrap().to_string();
    assert_eq!(sample.read(&kept), mine);
    terminal.press("x");
    terminal.until("is untouched: there is nothing to reset");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn small_terminals_and_those_that_change() {
    let sample = Sample::new();
    sample.save(&format!("{STUB}\n"));
    let mut terminal = Terminal::start(&sample, &[], 40, 12);
    terminal.until("Not written yet");
    terminal.resize(30, 8);
    terminal.until("cargo learn needs 40×12");
    terminal.resize(120, 30);
    terminal.until("1 more red check not shown (a shows it)");
    terminal.press("?");
    terminal.until("the hints of the task in hand");
    terminal.press("\x03");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn without_colours_there_are_none() {
    let colours = |value: Option<&str>| {
        let sample = Sample::new();
        sample.save(&format!("{STUB}// BROKEN\n"));
        let mut command = sample.command(&[]);
        if let Some(value) = value {
            command.env("NO_COLOR", value);
        }
        let mut terminal = Terminal::of(command, 80, 24);
        terminal.until("error: expected `;`");
        let parser = terminal.screen.clone();
        let parser = parser.lock().unwrap();
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        let has = cells
            .filter_map(|(row, column)| parser.screen().cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default);
        drop(parser);
        terminal.press("q");
        assert_eq!(terminal.ended(), Some(0));
        has
    };
    assert!(colours(None) && colours(Some("")) && !colours(Some("1")));
}

#[test]
fn without_a_terminal_it_is_one_verdict_in_plain_lines() {
    let sample = Sample::new();
    let run = |arguments: &[&str]| {
        let output = sample.once(arguments);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, told, _) = run(&["--once"]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with("Chapter 1, Sums: exercises/ch01_sum.rs\n\nNot started. "), "{told}");
    sample.save(&without(STUB, "task 1"));
    let (code, told, says) = run(&[]);
    let expected = "Chapter 1, Sums: exercises/ch01_sum.rs\n  task 1, add: 1 of 1 check green\n  task 2, divide: 0 of 1 check green\n\n\
        Task 2: divide   todo in exercises/ch01_sum.rs:6\n0 of 1 check green\n\nTask 1 is green. Next: task 2.\nNot written yet: \
        divide\nThe page says what it must do.\n";
    assert_eq!((code, told.as_str(), says.as_str()), (Some(1), expected, ""));
    sample.save(&without(STUB, "todo!"));
    let (code, told, _) = run(&["--once", "1"]);
    assert!(code == Some(0) && told.contains("Chapter 1 is done: all 2 checks are green."), "{told}");
    sample.save("// BROKEN\n");
    let (code, told, _) = run(&[]);
    assert!(code == Some(1) && told.contains("error: expected `;`") && !told.contains('\x1b'), "{told}");
    assert_eq!(run(&["7"]).2, "error: no chapter 7: the book has 1 to 2\n");
    // A record that is damaged is as good as none.
    sample.write(".page-by-page/record.json", "{");
    let (code, _, says) = run(&[]);
    assert!(code == Some(1) && says.starts_with("note: .page-by-page/record.json is damaged"), "{says}");
    let mut no_cargo = sample.command(&[]);
    let output = no_cargo.env("CARGO", "/nowhere/cargo").stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cargo cannot be started"), "{output:?}");
    let mut elsewhere = sample.command(&[]);
    let output = elsewhere.current_dir(Path::new("/")).stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("run this inside the repository"), "{output:?}");
    let mut dumb = Terminal::of(
        {
            let mut command = sample.command(&["--once"]);
            command.env("TERM", "dumb");
            command
        },
        80,
        24,
    );
    dumb.until("error: expected `;`");
    dumb.press("");
    assert_eq!(dumb.ended(), Some(1));
}
