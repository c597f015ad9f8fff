//! `story` and `chat`: what grows turn by turn is what is generated at once, and the turns before come from the prefix cache.
//!
//! `cargo test --features solution,serve --test talking`

use crate::program::{Run, ok, run_with};
use serde_json::Value;

/// A page of so many slots, so that a turn fills several.
const PAGE: usize = 4;

/// A conversation of these lines that must succeed.
#[track_caller]
fn talk(command: &str, options: &[&str], lines: &str) -> Run {
    let options = [&[command, "--page-size=4"], options].concat();
    let run = run_with(&options, lines.as_bytes());
    assert_eq!(run.code, Some(0), "{options:?}: {}", run.stderr);
    run
}

/// What `generate` says of a prompt.
#[track_caller]
fn generated(prompt: &str, options: &[&str]) -> Value {
    ok(&[&["generate", "--json", prompt], options].concat()).json()
}

fn text(generated: &Value) -> String {
    generated["text"].as_str().unwrap().into()
}

fn ids(generated: &Value, which: &str) -> Vec<u64> {
    generated["tokens"][which].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// What each turn says of its costs: tokens of the prompt, found, computed, new.
fn costs(run: &Run) -> Vec<[usize; 4]> {
    let lines = run.stderr.lines().filter(|line| line.contains(" from the prefix cache, "));
    let numbers = |line: &str| -> Vec<usize> {
        line.replace(',', "").split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    lines.map(|line| numbers(line).try_into().unwrap_or_else(|_| panic!("four numbers in {line:?}"))).collect()
}

#[test]
fn a_story_told_turn_by_turn_is_the_one_that_is_told_at_once() {
    for options in [&["--temperature=0", "--max-new-tokens=25"][..], &["--seed=7", "--max-new-tokens=18"]] {
        let run = talk("story", options, "Once upon a time\n\n  \nThe king said\n, and then");
        let (mut story, mut shown, mut costs) = (String::new(), String::new(), costs(&run).into_iter());
        // What the pages of the turn before hold: all tokens but the newest.
        let mut read: Vec<u64> = Vec::new();
        for typed in ["Once upon a time", "", "", " The king said", ", and then"] {
            story += typed;
            let turn = generated(&story, options);
            let (prompt, new) = (ids(&turn, "prompt"), ids(&turn, "generated"));
            let told = text(&turn);
            story += &told;
            shown += &format!("{}{told}\n", typed.trim_start());
            let same = read.iter().zip(&prompt).take_while(|(read, asked)| read == asked).count();
            let found = same.min(prompt.len() - 1) / PAGE * PAGE;
            assert_eq!(
                costs.next().unwrap(),
                [prompt.len(), found, prompt.len() - found, new.len()],
                "{options:?}: all but the newest page of {same} tokens is found"
            );
            read = [&prompt[..], &new[..new.len() - 1]].concat();
        }
        assert_eq!((&run.stdout, costs.next()), (&shown, None), "{options:?}");
    }
}

#[test]
fn a_turn_can_be_taken_back_and_told_again() {
    let options = ["--max-new-tokens=20", "--seed=41"];
    let once = text(&generated("Once upon a time", &options));
    let lines =
        "Once upon a time\nThe king\n/undo\n/again\n/again\n/show\n/undo\nOnce upon a time\n/new\nOne day\n/show\n";
    let run = talk("story", &options, lines);
    let seed = |seed: &str| text(&generated("Once upon a time", &["--max-new-tokens=20", seed]));
    let king = text(&generated(&format!("Once upon a time{once} The king"), &options));
    let (day, last) = (text(&generated("One day", &options)), seed("--seed=43"));
    let expected = [
        format!("Once upon a time{once}"),
        format!("The king{king}"),
        seed("--seed=42"),
        last.clone(),
        format!("Once upon a time{last}"),
        format!("Once upon a time{once}"),
        format!("One day{day}"),
        format!("One day{day}"),
    ];
    assert_eq!(run.stdout, expected.join("\n") + "\n");
    assert!(run.stderr.contains("taken back: \"The king\""), "{}", run.stderr);
    // The second time all but the last page of it is there.
    assert_eq!(costs(&run)[4], [5, 4, 1, 20]);
    let greedy = talk("story", &["--temperature=0", "--max-new-tokens=5"], "One day\n/again\n");
    assert!(greedy.stderr.contains("note: at temperature 0 nothing is drawn"), "{}", greedy.stderr);
}

#[test]
fn a_story_that_is_full_says_so_and_loses_nothing() {
    let folder = crate::checkpoints::Folder::copy_of("storyteller");
    folder.set("config.json", "max_position_embeddings", serde_json::json!(40));
    let model = format!("--model={}", folder.path());
    for (limit, why) in [
        (&model[..], "the model has no more positions"),
        // 39 slots and the newest token, which needs none.
        ("--pages=39", "the pool has no more slots; give it more with --pages"),
    ] {
        let options = ["story", limit, "--page-size=1", "--temperature=0", "--max-new-tokens=30"];
        let told = run_with(&options, b"Once upon a time\n\n/show\n");
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        assert_eq!(costs(&told)[1][3], 5, "as many as fit: {}", told.stderr);
        assert!(told.stderr.contains("note: the story is full, 40 tokens: /undo takes"), "{}", told.stderr);
        let whole = text(&generated("Once upon a time", &["--temperature=0", "--max-new-tokens=35"]));
        assert_eq!(told.stdout.lines().last(), Some(&format!("Once upon a time{whole}")[..]));

        let refused = run_with(&options, b"Once upon a time\n\nand\n");
        assert_eq!(refused.code, Some(1));
        let says = format!("the story would have 41 tokens before the answer, and 40 fit ({why}). Nothing is lost");
        assert!(refused.stderr.contains(&says), "{}", refused.stderr);
        let (before, _) = told.stdout.split_at(refused.stdout.len());
        assert_eq!(refused.stdout, before, "what was told was written");
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_hangs() {
    for (lines, says) in [
        (&b"\nOnce"[..], "error: the story has no beginning yet; type one"),
        (b"/undo", "error: there is nothing to take back"),
        (b"/again", "error: there is no answer yet"),
        (b"/show", "error: the story has not begun"),
        (b"/tell", "error: \"/tell\" is none of the commands /again, /undo, /new, /show, /help, /quit; "),
        (b"One day\n\xFF\n", "error: line 2: it is not UTF-8"),
    ] {
        let refused = run_with(&["story", "--max-new-tokens=2"], lines);
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    let quit = talk("story", &["--max-new-tokens=0"], "/help\nOne day\n/new\n /undo\n/quit\nThe king\n");
    assert!(quit.stderr.contains("\n/undo   take the last turn back"), "{}", quit.stderr);
    assert_eq!(quit.stdout, "One day\n/undo\n", "nothing after /quit, and a space makes a text of a word");
    // Tokens at random, some of which are parts of characters: only whole ones are told.
    let wild = talk("story", &["--temperature=1000", "--top-p=1", "--max-new-tokens=300"], "The dragon 🐉\n\n");
    assert_eq!(costs(&wild).len(), 2, "{}", wild.stderr);
}

#[cfg(feature = "serve")]
mod chat {
    use super::*;

    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                            {% if add_generation_prompt %}{{ name | default('teller') }}:{% endif %}";

    #[test]
    fn a_chat_goes_through_the_template_with_all_that_was_said() {
        let folder = crate::checkpoints::Folder::copy_of("storyteller");
        folder.write("chat_template.jinja", TEMPLATE);
        let config: Value = serde_json::from_slice(&folder.read("tokenizer_config.json")).unwrap();
        let bos = config["bos_token"].as_str().unwrap();
        let model = format!("--model={}", folder.path());
        let options = ["--temperature=0", "--max-new-tokens=20"];
        let more = ["--system=Be brief.", "--chat-template-kwargs={\"name\": \"king\"}"];
        for (more, system, name) in [(&[][..], "", "teller"), (&more, "system: Be brief.\n", "king")] {
            let all = [&options[..], more, &[&model]].concat();
            // What begins a text is a token of its own, which `generate` adds by itself.
            let run = talk("chat", &all, "Hello\nWho are you?\n/undo\nTell me a story.\n/show\n");
            let first = text(&generated(&format!("{system}user: Hello\n{name}:"), &options));
            let so_far = format!("{system}user: Hello\nassistant: {first}\nuser: ");
            let second = text(&generated(&format!("{so_far}Who are you?\n{name}:"), &options));
            let third = text(&generated(&format!("{so_far}Tell me a story.\n{name}:"), &options));
            let shown = format!("{bos}{so_far}Tell me a story.\nassistant: {third}\n{name}:");
            assert_eq!(run.stdout, format!("{first}\n{second}\n{third}\n{shown}\n"));
            let costs = costs(&run);
            assert_eq!(costs[0][1], 0);
            // At least the first message is found, and half of what follows: the answer has a role of its own.
            assert!(costs[1][1] >= costs[0][0] / PAGE * PAGE - PAGE && costs[2][1] > costs[1][0] / 2, "{costs:?}");
        }
        let empty = run_with(&["chat", &model], b"\n");
        assert!(empty.code == Some(1) && empty.stderr.contains("the message is empty; type one"), "{}", empty.stderr);
        let wrong = run_with(&["chat", &model, "--chat-template-kwargs=[1]"], b"");
        assert!(wrong.stderr.starts_with("error: --chat-template-kwargs: expected a JSON object"), "{}", wrong.stderr);
    }

    #[test]
    fn a_model_without_a_template_is_for_story() {
        let refused = run_with(&["chat"], b"Hello\n");
        assert_eq!((refused.code, &refused.stdout[..]), (Some(1), ""));
        let says = "error: storyteller has no chat template: it was trained to continue a text; use `story --model \
                    storyteller`";
        assert!(refused.stderr.starts_with(says), "{}", refused.stderr);
    }
}

/// At a terminal, as people are.
#[cfg(target_os = "linux")]
mod terminal {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

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
                    let rest = self.seen.split_off(end);
                    let before = std::mem::replace(&mut self.seen, rest[text.len()..].into());
                    return before.replace("\r\n", "\n");
                }
                let mut bytes = [0; 64];
                let n = self.screen.read(&mut bytes).unwrap_or(0);
                assert!(n > 0, "it has ended, and {text:?} is not in {:?}", self.seen);
                self.seen += std::str::from_utf8(&bytes[..n]).expect("ASCII");
            }
        }

        fn press_ctrl_c(&self) {
            kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        }

        /// The exit code of a program that is about to end.
        #[track_caller]
        fn wait(&mut self) -> Option<i32> {
            let began = Instant::now();
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status.code();
                }
                if began.elapsed() > Duration::from_secs(60) {
                    self.child.kill().unwrap();
                    panic!("still running");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// A long answer, told slowly: it runs for seconds, and is always the same.
    const LONG: [&str; 7] =
        ["--max-new-tokens=1000", "--temperature=1.2", "--top-p=1", "--attention", "plain", "--kv-dtype", "int8"];

    #[test]
    fn ctrl_c_stops_the_answer_and_then_the_program() {
        let mut terminal = Terminal::start(&[&["story"], &LONG[..]].concat());
        let hello = terminal.read_until("you>   ");
        assert!(hello.starts_with("storyteller: 1,024 tokens fit. Type how the story goes on"), "{hello}");
        terminal.type_in("The king had\n");
        terminal.read_until("The king had\r\nmodel> ");
        let begun = terminal.read_until("e");
        terminal.press_ctrl_c();
        let rest = terminal.read_until("prompt tokens: 0 from the prefix cache, ");
        let costs = terminal.read_until("you>   ");
        assert!(costs.contains(", stopped\n"), "{costs}");
        // What was told stays part of the story.
        terminal.type_in("/show\n");
        terminal.read_until("/show\r\n");
        let story = terminal.read_until("\r\nyou>   ");
        let whole = format!("The king had{}", text(&generated("The king had", &LONG)));
        assert!(whole.starts_with(&story) && story.len() < whole.len(), "{story:?} is no beginning of {whole:?}");
        let told = story.strip_prefix("The king had").unwrap().trim_start();
        assert!((begun + "e" + &rest).starts_with(told), "what is kept is what was shown");
        // A turn that is refused ends nothing; one that was stopped can be taken back, and is told again from its beginning.
        terminal.type_in("/never\n");
        terminal.read_until("error: \"/never\" is none of the commands");
        terminal.read_until("you>   ");
        terminal.type_in("/undo\n");
        terminal.read_until("taken back: \"The king had\"");
        terminal.read_until("you>   ");
        terminal.type_in("The king had\n");
        terminal.read_until("The king had\r\nmodel> ");
        terminal.read_until("e");
        terminal.press_ctrl_c();
        terminal.read_until(", stopped\r\nyou>   ");
        terminal.press_ctrl_c();
        assert_eq!(terminal.wait(), Some(0), "there is no answer to stop: it ends");
    }

    #[test]
    fn ctrl_d_and_quit_end_it() {
        for typed in ["\u{4}", "/quit\n"] {
            let mut terminal = Terminal::start(&["story", "--max-new-tokens=3"]);
            terminal.read_until("you>   ");
            terminal.type_in("One day\n");
            terminal.read_until("generated\r\n");
            terminal.type_in(typed);
            assert_eq!(terminal.wait(), Some(0), "{typed:?}");
        }
    }

    #[test]
    fn without_a_terminal_ctrl_c_ends_it() {
        let mut child = crate::program::spawn(&[&["story"], &LONG[..]].concat());
        child.stdin.as_mut().unwrap().write_all(b"The king had\n").unwrap();
        let mut begun = [0; 20];
        child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let (mut rest, mut says) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut says).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{says}");
        assert!(rest.ends_with('\n') && says.contains(", stopped\nerror: interrupted\n"), "{says}");
    }
}
