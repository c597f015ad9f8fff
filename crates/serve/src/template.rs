//! A checkpoint's own chat template: from messages to the text that the model was trained on.
//!
//! It is a [Jinja](https://jinja.palletsprojects.com) template, in `chat_template.jinja` or in `tokenizer_config.json`:
//! a program that comes with a checkpoint, and can loop, recurse and ask for memory without end. So each text is made by
//! a process of its own, the *renderer*: this program, started again with one argument.
//!
//! ```text
//!   server ── ["{% for m in …", {"messages": […], …}] ────────────► renderer   has 5 seconds and 512 MiB
//!   server ◄── the text, with exit code 0; or what is wrong, with 1 ── renderer   anything else: it was ended
//! ```
//!
//! Only Linux heeds the limit of memory. The others hold everywhere: a stack that overflows is the renderer's, and it ends
//! itself when its time is over.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::Duration;

use page_by_page::escape;
use page_by_page::files::{self, FileError};
use serde_json::{Map, Value, json};

use crate::jinja;

/// The one argument of a renderer.
pub const RENDERER: &str = "render-chat-template";

/// Bytes of a template or of the config that holds it, and of its output for one request.
const MAX_BYTES: usize = 16 << 20;
/// How long a renderer may take, from its start. Templates of published models take milliseconds.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Bytes that a renderer may map; the program itself is a part of them.
#[cfg(unix)]
const MAX_MEMORY: u64 = 512 << 20;

const FAILED: i32 = 1;
const OUT_OF_TIME: i32 = 3;

/// Turns messages into the text of a prompt.
pub struct ChatTemplate {
    /// The program that is started as renderer.
    program: PathBuf,
    source: String,
    /// Variables of the template beside the messages.
    tokens: Map<String, Value>,
}

/// The template rejects the messages, or fails with them.
#[derive(Debug, thiserror::Error)]
#[error("the chat template of this model fails with these messages: {0}")]
pub struct TemplateError(String);

impl ChatTemplate {
    /// The template of a model folder, if it has one. `program`: calls [`be_renderer`] if [`RENDERER`] is its argument.
    ///
    /// # Errors
    /// [`FileError`] if it cannot be read, or is no template.
    pub fn open(dir: &Path, program: &Path) -> Result<Option<Self>, FileError> {
        let (config_path, template_path) = (dir.join("tokenizer_config.json"), dir.join("chat_template.jinja"));
        let config = match read(&config_path)? {
            Some(text) => serde_json::from_str(&text).map_err(|error| open_error(&config_path, error))?,
            None => Value::Null,
        };
        let (path, source) = match read(&template_path)? {
            Some(source) => (template_path, source),
            None => match in_config(&config["chat_template"]) {
                Some(source) => (config_path, source.into()),
                None => return Ok(None),
            },
        };
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let tokens = tokens.into_iter().filter_map(|name| {
            let token = &config[name];
            // Some configs say more of a token than its text.
            let text = token.as_str().or(token["content"].as_str())?;
            Some((name.to_string(), json!(text)))
        });
        let template = ChatTemplate { program: program.into(), source, tokens: tokens.collect() };
        template.ask(None).map_err(|problem| open_error(&path, problem))?;
        Ok(Some(template))
    }

    /// The text that the messages make, up to where the answer begins. `more`: what else the template may use.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(&self, messages: &[Value], more: &Map<String, Value>) -> Result<String, TemplateError> {
        let mut context = self.tokens.clone();
        // Templates ask whether these are none, and that is no question of what is not defined.
        context.extend(["tools", "documents"].map(|name| (name.to_string(), Value::Null)));
        context.extend(more.clone());
        context.insert("messages".into(), messages.into());
        context.insert("add_generation_prompt".into(), true.into());
        self.ask(Some(context)).map_err(TemplateError)
    }

    /// What a renderer makes of the template, or why there is nothing. Without variables it only checks the template.
    fn ask(&self, context: Option<Map<String, Value>>) -> Result<String, String> {
        let job = json!([self.source, context]).to_string();
        let (code, text) = run(&self.program, job.as_bytes()).map_err(|error| format!("no renderer: {error}"))?;
        match code {
            _ if text.len() > MAX_BYTES => Err(format!("it writes more than {MAX_BYTES} bytes")),
            Some(0) => Ok(text),
            Some(FAILED) => Err(text),
            Some(OUT_OF_TIME) => Err(format!("it takes more than {} seconds", MAX_TIME.as_secs())),
            _ => Err("it takes too much memory, or is nested too deeply".into()),
        }
    }
}

/// Starts a renderer and waits for its end. Returns its exit code, `None` if the system has ended it, and what it wrote,
/// as far as it is needed to see that it is too much.
fn run(program: &Path, job: &[u8]) -> io::Result<(Option<i32>, String)> {
    let mut command = Command::new(program);
    let mut renderer =
        command.arg(RENDERER).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    // One that has been ended takes no more.
    let _ = renderer.stdin.take().map(|mut stdin| stdin.write_all(job));
    let mut text = Vec::new();
    if let Some(stdout) = renderer.stdout.take() {
        stdout.take(MAX_BYTES as u64 + 1).read_to_end(&mut text)?;
    }
    Ok((renderer.wait()?.code(), String::from_utf8_lossy(&text).into_owned()))
}

/// The running program, even where its file has been replaced.
pub fn this_program() -> PathBuf {
    if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe().unwrap_or_default() }
}

/// Reads a job from standard input, writes the text to standard output, and ends the process.
pub fn be_renderer() -> ! {
    #[cfg(unix)]
    limit_memory();
    thread::spawn(|| {
        thread::sleep(MAX_TIME);
        process::exit(OUT_OF_TIME);
    });
    let job = serde_json::from_reader(io::stdin().lock()).map_err(|error| error.to_string());
    let (code, text) = match job.and_then(|(source, context): (String, _)| jinja::render(&source, context)) {
        Ok(text) => (0, text),
        Err(problem) => (FAILED, problem),
    };
    // Nobody reads more than is needed.
    let _ = io::stdout().write_all(text.as_bytes());
    process::exit(code)
}

/// More memory ends the process, and leaves no dump of it.
#[cfg(unix)]
fn limit_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for (resource, most) in [(Resource::As, MAX_MEMORY), (Resource::Core, 0)] {
        // It fails where the limit is lower already.
        let _ = setrlimit(resource, Rlimit { current: Some(most), ..getrlimit(resource) });
    }
}

/// The template of a config: a text, or a list of named ones.
fn in_config(found: &Value) -> Option<&str> {
    let named = |name: &str| found.as_array()?.iter().find(|template| template["name"] == name)?["template"].as_str();
    found.as_str().or_else(|| named("default"))
}

/// `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, FileError> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    let bytes = files::read(path, MAX_BYTES).map_err(|error| open_error(path, error))?;
    String::from_utf8(bytes).map(Some).map_err(|_| open_error(path, "it is not UTF-8"))
}

fn open_error(path: &Path, problem: impl ToString) -> FileError {
    let problem = escape::field(&problem.to_string());
    FileError::new(path, format!("{problem}; use the file that came with the model, or none"))
}
