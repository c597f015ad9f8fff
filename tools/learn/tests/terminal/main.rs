//! `cargo learn` as readers use it: in a terminal, with a course of two chapters, an editor that saves, and a cargo
//! that answers at once. What the screen shows is tested in `src/view/tests.rs`; here it is processes, signals and
//! files.
#![cfg(target_os = "linux")]

mod sample;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use page_by_page_course::source::fingerprint;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use sample::{SOLUTION, Sample, stub, wait_until, without, wrong};

/// The state of a process: `S`, `T` if it is stopped, `Z` or nothing if it has ended.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

fn is_alive(pid: &str) -> bool {
    state(pid.trim().parse().unwrap()).is_some_and(|state| state != 'Z')
}

#[track_caller]
fn is_gone(pid: &str) {
    wait_until(|| (!is_alive(pid)).then_some(()), || format!("{pid} is still there"));
}

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
    format!("{:?} {:?} {:?}", termios.input_modes, termios.output_modes, termios.local_modes)
}

impl Terminal {
    fn start(sample: &Sample, arguments: &[&str], columns: u16, rows: u16) -> Self {
        Terminal::run(&mut sample.command(arguments), columns, rows)
    }

    fn run(command: &mut Command, columns: u16, rows: u16) -> Self {
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
        let flat = || self.seen().split_whitespace().collect::<Vec<_>>().join(" ");
        wait_until(|| Some(flat()).filter(|flat| flat.contains(words)), || format!("no {words:?}:\n{}", self.seen()))
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(size(rows), size(columns));
        tcsetwinsize(&self.keyboard, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // A terminal window would have sent this.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    #[track_caller]
    fn quit(mut self) {
        self.press("q");
        assert_eq!(self.ended(), Some(0));
    }

    /// The exit code; the terminal must be as it was.
    #[track_caller]
    fn ended(mut self) -> Option<i32> {
        let status = wait_until(|| self.child.try_wait().unwrap(), || "it is still running".into());
        assert_eq!(modes(&tcgetattr(self.side.as_fd()).unwrap()), self.before, "the terminal's modes");
        let is_given_back = || {
            let screen = self.screen.lock().unwrap();
            (!screen.screen().alternate_screen() && !screen.screen().hide_cursor()).then_some(())
        };
        wait_until(is_given_back, || "the screen is not given back".into());
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn from_the_stub_to_a_chapter_that_is_done() {
    let sample = Sample::new();
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("1 · Sums");
    terminal.until("Not started. Edit exercises/ch01_sum.rs to begin: each time you save it, the checks run here.");
    assert_eq!(sample.read("asked"), "", "an untouched chapter is not checked");

    sample.save(&format!("{}\n", stub()));
    terminal.until("0 of 1 check green Not written yet: add the numbers The page explains");
    let seen = terminal.until("0 of 2 green");
    assert!(!seen.contains("RUST_BACKTRACE") && !seen.contains("thread '") && !seen.contains("mean of"), "{seen}");
    let asked = sample.read("asked");
    let [first, rest] = asked.lines().collect::<Vec<_>>()[..] else { panic!("{asked}") };
    let test = "test --features solution --test ch01_sum --message-format=json --";
    assert_eq!([first, rest], [format!("{test} task_1_"), format!("{test} --skip task_1_")]);

    terminal.press("h");
    terminal.until("1 of 2 hints Hint 1 iter().sum() adds.");
    terminal.press("h");
    terminal.until("Hint 2 It needs a type.");
    assert_eq!(sample.read("asked").lines().count(), 2);

    sample.save(&wrong());
    terminal.until("✗ task_1_adds sum of [1, 2] expected: 3 yours: 0");
    sample.save(&without(&["task 1"]));
    terminal.until("✓ 1 add ▸ 2 divide 0/1");
    terminal.until("Not written yet: divide");
    let done = without(&["task 1", "task 2"]);
    sample.save(&done);
    terminal.until("Chapter 1 is done: all 2 checks are green.");
    terminal.until("What it gains sums made: 9 → 1");
    terminal.press("v");
    terminal.until("numbers.iter().sum()");
    terminal.press("q");
    terminal.until("is done");
    terminal.press("n");
    terminal.until("2 · More");
    terminal.press("q");
    terminal.until("Chapter 2, task 1: `cargo learn` continues there.");
    assert_eq!(terminal.ended(), Some(0));

    let record: serde_json::Value = serde_json::from_str(&sample.read(".page-by-page/record.json")).unwrap();
    assert_eq!(record["at"], "ch02_more");
    let ran = &record["chapters"]["ch01_sum"];
    let green = serde_json::json!({ "green": 1, "of": 1 });
    assert_eq!((&ran["tasks"]["1"], &ran["tasks"]["2"], &ran["hints"]["1"]), (&green, &green, &serde_json::json!(2)));
    assert_eq!(ran["fingerprint"], fingerprint(&done));
    // It continues where it was left, and what was green isn't begun anew.
    let again = Terminal::start(&sample, &[], 80, 24);
    again.until("2 · More");
    sample.save(&without(&["task 1"]));
    again.until("▸ 2 divide 0/1");
    again.quit();
}

#[test]
fn the_terminal_is_restored_whatever_ends_it() {
    for (key, signal, code) in [("\x03", None, 0), ("", Some(Signal::TERM), 143), ("", Some(Signal::HUP), 129)] {
        let sample = Sample::new();
        sample.save(&format!("{}// SLOW\n", stub()));
        let mut terminal = Terminal::start(&sample, &["1"], 80, 24);
        terminal.until("compiling …");
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
fn it_can_be_suspended_and_resized() {
    let sample = Sample::new();
    sample.save(&format!("{}\n", stub()));
    let mut terminal = Terminal::start(&sample, &[], 40, 12);
    terminal.until("Not written yet");
    terminal.press("\x1a");
    let pid = Pid::from_child(&terminal.child);
    let is_stopped = || (state(pid.as_raw_nonzero().get()) == Some('T')).then_some(());
    wait_until(is_stopped, || "it does not stop".into());
    assert_eq!(modes(&tcgetattr(terminal.side.as_fd()).unwrap()), terminal.before, "the shell has its terminal");
    kill_process(pid, Signal::CONT).unwrap();
    terminal.until("Not written yet");
    terminal.resize(30, 8);
    terminal.until("cargo learn needs 40×12");
    terminal.resize(120, 30);
    terminal.until("1 more red check not shown (a shows it)");
    terminal.quit();
}

#[test]
fn a_newer_save_ends_an_older_build_and_each_way_to_end_is_shown() {
    let sample = Sample::new();
    let terminal = Terminal::start(&sample, &["--time-limit", "3"], 80, 24);
    terminal.until("Not started.");
    sample.save(&format!("{}// SLOW\n", stub()));
    let build = sample.wait_for("building");
    sample.save(&format!("{}// BROKEN\n", stub()));
    terminal.until("error: expected `;`");
    is_gone(&build);
    terminal.until("does not compile");
    sample.save(&stub());
    terminal.until("Not started.");
    for (word, shown) in [
        ("REFUSED", "Nothing could be compiled. exercises/ch02_x.rs is missing"),
        ("ELSEWHERE", "It is compiled together with this one. error: in exercises/ch02_more.rs"),
        ("ABORTS", "Not all checks came to an end. task_1_adds asks for 9 bytes more"),
        ("HANGS", "task_1_adds of chapter 1 was still running after 3 seconds, and was stopped. Is there a loop"),
    ] {
        sample.save(&format!("{}// {word}\n", wrong()));
        let seen = terminal.until(shown);
        assert!(!seen.contains("green") && !seen.contains("yours: 0"), "{seen}");
    }
    is_gone(&sample.wait_for("hanging"));
    sample.save(&without(&["task 1"]));
    terminal.until("✓ 1 add ▸ 2 divide 0/1");
    terminal.quit();
}

#[test]
fn what_it_has_started_ends_with_it() {
    let sample = Sample::new();
    sample.save(&format!("{}// ENDLESS COUNTS\n", without(&["todo!"])));
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("Chapter 1 is done");
    let counts = sample.wait_for("counting");
    terminal.press("s");
    terminal.until("One day a king");
    let story = sample.wait_for("generating");
    assert!(is_alive(&story));
    terminal.press("\x1b");
    terminal.until("Chapter 1 is done");
    is_gone(&story);
    assert!(is_alive(&counts));
    terminal.quit();
    is_gone(&counts);
}

#[test]
fn a_reset_asks_and_keeps_a_copy() {
    let sample = Sample::new();
    let mine = format!("{}// mine\n// mine too\n", stub());
    sample.save(&mine);
    let mut terminal = Terminal::start(&sample, &[], 80, 24);
    terminal.until("0 of 2 green");
    terminal.press("x");
    terminal.until("Reset exercises/ch01_sum.rs?");
    terminal.press("n");
    terminal.until("Not written yet");
    // A stub that isn't the one that was handed out is no way back.
    sample.write("solutions/ch01_sum.rs", &SOLUTION.replace("task 1: add", "task 1: sum"));
    terminal.press("xy");
    terminal.until("which has changed: restore that with `git checkout solutions/ch01_sum.rs`");
    assert_eq!(sample.read("exercises/ch01_sum.rs"), mine);
    sample.write("solutions/ch01_sum.rs", SOLUTION);
    terminal.press("x");
    terminal.until("Reset exercises/ch01_sum.rs?");
    terminal.press("y");
    let is_copy = |word: &&str| word.starts_with(".page-by-page/ch01_sum.") && word.ends_with(".rs");
    let named = || terminal.seen().split_whitespace().find(is_copy).map(String::from);
    let kept = wait_until(named, || format!("no copy is named:\n{}", terminal.seen()));
    terminal.until("Not started.");
    assert_eq!(sample.read("exercises/ch01_sum.rs"), stub());
    assert_eq!(sample.read(&kept), mine);
    // A file that is gone comes back, too.
    fs::remove_file(sample.at("exercises/ch01_sum.rs")).unwrap();
    terminal.until("x the stub again");
    terminal.press("x");
    terminal.until("exercises/ch01_sum.rs is back");
    terminal.until("Not started.");
    terminal.quit();
}

#[test]
fn no_color_is_heeded() {
    for (value, has_colours) in [("", true), ("1", false)] {
        let sample = Sample::new();
        sample.save(&format!("{}// BROKEN\n", stub()));
        let mut command = sample.command(&[]);
        let terminal = Terminal::run(command.env("NO_COLOR", value), 80, 24);
        terminal.until("error: expected `;`");
        let shown = terminal.screen.lock().unwrap().screen().contents_formatted();
        assert_eq!(shown.contains("\x1b[31"), has_colours, "NO_COLOR={value}: {shown}");
        terminal.quit();
    }
}

/// `plain.txt` has words, for a stub without the lines that contain them, then a command and all that it prints.
#[test]
fn without_a_terminal_it_prints_plain_lines() {
    let sample = Sample::new();
    let output_of = |command: &mut Command| {
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        let err = if err.is_empty() { err } else { format!("on standard error: {err}") };
        format!("{out}{err}exit {}", status.code().unwrap())
    };
    for case in include_str!("plain.txt").trim_end().split("\n====\n") {
        let (asked, expected) = case.split_once("\n----\n").expect("a command and what it prints");
        let (words, arguments) = asked.split_once("$ cargo learn").expect("a command");
        match words.trim_end() {
            "" => {}
            "all" => sample.save("// BROKEN\n"),
            words => sample.save(&without(&[words])),
        }
        let printed = output_of(sample.command(&[]).args(arguments.split_whitespace()));
        assert_eq!(printed, expected, "{asked}");
    }
    assert!(!sample.read(".page-by-page/record.json").contains("\"at\""), "it leaves the place of the screen alone");
    sample.save("// BROKEN\n");
    // A damaged record is ignored.
    sample.write(".page-by-page/record.json", "{");
    let damaged = output_of(&mut sample.command(&[]));
    assert!(damaged.contains("note: .page-by-page/record.json is damaged") && damaged.ends_with("exit 1"), "{damaged}");
    let no_cargo = output_of(sample.command(&[]).env("CARGO", "/nowhere/cargo"));
    assert!(no_cargo.contains("error: cargo cannot be started"), "{no_cargo}");
    assert!(output_of(sample.command(&[]).current_dir("/")).contains("run this inside the repository"));
    let dumb = Terminal::run(sample.command(&[]).env("TERM", "dumb"), 80, 24);
    dumb.until("error: expected `;`");
    assert_eq!(dumb.ended(), Some(1));
}
