//! `story` and `chat`: what grows turn by turn is what is generated at once, and earlier turns come from the prefix
//! cache. What the commands say is in `scripts/story.snap` and `chat.snap`.

use crate::program::{Run, ok, run_with};
use serde_json::Value;

/// Slots of a page: few, so that a turn fills several.
const PAGE: usize = 4;

#[track_caller]
fn talk(command: &str, options: &[&str], lines: &str) -> Run {
    let options = [&[command, "--page-size=4"], options].concat();
    let run = run_with(&options, lines.as_bytes());
    assert_eq!(run.code, Some(0), "{options:?}: {}", run.stderr);
    run
}

#[track_caller]
fn generated(prompt: &str, options: &[&str]) -> Value {
    ok(&[&["generate", "--json", prompt], options].concat()).json()
}

/// What each turn cost: tokens of the prompt, cached, computed, new.
fn costs(run: &Run) -> Vec<[usize; 4]> {
    let lines = run.stderr.lines().filter(|line| line.contains(" from the prefix cache, "));
    let numbers = |line: &str| -> Vec<usize> {
        line.replace(',', "").split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    lines.map(|line| numbers(line).try_into().unwrap_or_else(|_| panic!("four numbers in {line:?}"))).collect()
}

#[test]
fn a_story_of_several_turns_is_the_one_that_is_generated_at_once() {
    for options in [&["--temperature=0", "--max-new-tokens=25"][..], &["--seed=7", "--max-new-tokens=18"]] {
        let run = talk("story", options, "Once upon a time\n\n  \nThe king said\n, and then");
        let (mut story, mut shown, mut costs) = (String::new(), String::new(), costs(&run).into_iter());
        // What the pages of the turn before hold: all tokens but the newest.
        let mut computed: Vec<u64> = Vec::new();
        for typed in ["Once upon a time", "", "", " The king said", ", and then"] {
            story += typed;
            let turn = generated(&story, options);
            let ids = |which: &str| serde_json::from_value(turn["tokens"][which].clone()).unwrap();
            let (prompt, new): (Vec<u64>, Vec<u64>) = (ids("prompt"), ids("new"));
            let answer = turn["text"].as_str().unwrap();
            story += answer;
            shown += &format!("{}{answer}\n", typed.trim_start());
            let same = computed.iter().zip(&prompt).take_while(|(computed, asked)| computed == asked).count();
            let cached = same.min(prompt.len() - 1) / PAGE * PAGE;
            let expected = [prompt.len(), cached, prompt.len() - cached, new.len()];
            assert_eq!(costs.next(), Some(expected), "{options:?}: all but the newest page of {same} tokens is cached");
            computed = [&prompt[..], &new[..new.len() - 1]].concat();
        }
        assert_eq!((&run.stdout, costs.next()), (&shown, None), "{options:?}");
    }
}

/// Tokens at random, some of which are parts of characters: only whole characters are shown.
#[test]
fn parts_of_characters_are_not_shown() {
    let wild = talk("story", &["--temperature=1000", "--top-p=1", "--max-new-tokens=300"], "The dragon 🐉\n\n");
    assert_eq!(costs(&wild).len(), 2, "{}", wild.stderr);
    let bytes = run_with(&["story", "--max-new-tokens=2"], b"One day\n\xFF\n");
    assert!(bytes.code == Some(1) && bytes.stderr.contains("error: line 2: it is not UTF-8"), "{}", bytes.stderr);
}

#[cfg(target_os = "linux")]
mod terminal {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;
    use crate::program::{ended, signal};

    struct Terminal {
        screen: File,
        child: Child,
        seen: String,
    }

    impl Terminal {
        fn start(arguments: &[&str]) -> Self {
            let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&screen).unwrap();
            unlockpt(&screen).unwrap();
            let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
            let side = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
            let mut command = Command::new(crate::program::PROGRAM);
            command.args(arguments).stdin(side()).stdout(side()).stderr(side());
            Terminal { screen: screen.into(), child: command.spawn().unwrap(), seen: String::new() }
        }

        fn type_in(&mut self, text: &str) {
            self.screen.write_all(text.as_bytes()).unwrap();
        }

        /// Reads until this is on the screen; what was there before it.
        #[track_caller]
        fn read_until(&mut self, text: &str) -> String {
            loop {
                if let Some(end) = self.seen.find(text) {
                    let read: String = self.seen.drain(..end + text.len()).collect();
                    return read[..end].replace("\r\n", "\n");
                }
                let mut bytes = [0; 64];
                let n = self.screen.read(&mut bytes).unwrap_or(0);
                assert!(n > 0, "it has ended, and {text:?} is not in {:?}", self.seen);
                self.seen += std::str::from_utf8(&bytes[..n]).expect("ASCII");
            }
        }
    }

    /// A long answer, generated slowly: it takes seconds, and is always the same.
    const LONG: [&str; 7] =
        ["--max-new-tokens=1000", "--temperature=1.2", "--top-p=1", "--attention", "loops", "--kv-dtype", "int8"];

    #[test]
    fn ctrl_c_stops_the_answer_and_then_the_program() {
        let mut terminal = Terminal::start(&[&["story"], &LONG[..]].concat());
        let hello = terminal.read_until("you>   ");
        assert!(hello.starts_with("storyteller: 1,024 tokens fit. Type how the story goes on"), "{hello}");
        terminal.type_in("The king had\n");
        terminal.read_until("The king had\r\nmodel> ");
        let begun = terminal.read_until("e");
        signal(&terminal.child, "-INT");
        let rest = terminal.read_until("prompt tokens: 0 from the prefix cache, ");
        let costs = terminal.read_until("you>   ");
        assert!(costs.contains(", stopped\n"), "{costs}");
        // What was generated stays part of the story.
        terminal.type_in("/show\n");
        terminal.read_until("/show\r\n");
        let story = terminal.read_until("\r\nyou>   ");
        let whole = format!("The king had{}", generated("The king had", &LONG)["text"].as_str().unwrap());
        assert!(whole.starts_with(&story) && story.len() < whole.len(), "{story:?} is no beginning of {whole:?}");
        let told = story.strip_prefix("The king had").unwrap().trim_start();
        assert!((begun + "e" + &rest).starts_with(told), "what is kept is what was shown");
        // A turn that is refused ends nothing.
        terminal.type_in("/never\n");
        terminal.read_until("error: \"/never\" is none of the commands");
        terminal.read_until("you>   ");
        signal(&terminal.child, "-INT");
        assert_eq!(ended(terminal.child).code, Some(0), "there is no answer to stop: it ends");
    }

    #[test]
    fn without_a_terminal_ctrl_c_ends_it() {
        let mut child = crate::program::spawn(&[&["story"], &LONG[..]].concat());
        child.stdin.as_mut().unwrap().write_all(b"The king had\n").unwrap();
        let mut begun = [0; 20];
        child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        signal(&child, "-INT");
        let Run { code, stdout: rest, stderr: says } = ended(child);
        assert_eq!(code, Some(1), "{says}");
        assert!(rest.ends_with('\n') && says.contains(", stopped\nerror: interrupted\n"), "{says}");
    }
}
