//! Bounds for a reader's code while a figure is recorded from it: it does not run for ever, and it fails in one line. How much
//! memory it holds is bounded by the allocator that the graders' crate brings along.

use std::panic::{self, PanicHookInfo};
use std::thread;
use std::time::Duration;

/// How long a figure may take to record. The longest takes a few seconds.
const LONGEST: Duration = Duration::from_secs(30);

/// Sets the bounds for the rest of this process.
pub fn set() {
    panic::set_hook(Box::new(|panicked| eprintln!("error: {}", in_a_line(panicked))));
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("error: still recording after {} s: does a loop of yours never end?", LONGEST.as_secs());
        std::process::exit(1);
    });
}

fn in_a_line(panicked: &PanicHookInfo<'_>) -> String {
    let place = panicked.location().map_or_else(String::new, |place| {
        // As it is compiled, the path of a chapter begins in src/.
        let file = place.file().replace('\\', "/");
        let file =
            ["exercises/", "solutions/"].iter().find_map(|folder| Some(&file[file.find(folder)?..])).unwrap_or(&file);
        format!(" ({file}:{})", place.line())
    });
    let message = panicked.payload_as_str().unwrap_or("without a word").replace('\n', " ");
    format!("the code panicked{place}: {message}")
}
