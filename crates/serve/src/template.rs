//! A checkpoint's own chat template: from messages to the text that the model was trained on.
//!
//! It is a [Jinja](https://jinja.palletsprojects.com) template, in `chat_template.jinja` or in `tokenizer_config.json`,
//! and is rendered as [transformers](https://huggingface.co/docs/transformers/chat_templating) does: blocks take their
//! line with them, the methods that Python's strings and dictionaries have are there, JSON is written as Python writes
//! it, and so on. The text is the one of transformers 5.23.0 for Qwen3's template and some sixty others that were
//! tried.
//!
//! A template comes with a checkpoint and is a program. The number of its steps and the size of its output are limited;
//! the strings that it builds in between are not, so use the templates of checkpoints that you trust.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use page_by_page::escape;
use page_by_page::files::{self, FileError};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value, json};

/// Bytes of a template or of the config that holds it.
const MOST_BYTES: usize = 16 << 20;
/// Steps of a template for one request. Those of published models take a few hundred for a message.
const MOST_STEPS: u64 = 5_000_000;
/// Bytes of output of a template for one request.
const MOST_TEXT: usize = 16 << 20;
/// Turns messages into the text of a prompt.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Variables of the template beside the messages.
    tokens: Map<String, Value>,
}

/// The template rejects the messages, or fails with them.
#[derive(Debug, thiserror::Error)]
#[error("the chat template of this model fails with these messages: {0}")]
pub struct TemplateError(String);

impl ChatTemplate {
    /// The template of a model folder, if it has one.
    ///
    /// # Errors
    /// [`FileError`] if it cannot be read, or is no template.
    pub fn open(dir: &Path) -> Result<Option<Self>, FileError> {
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
        let environment = environment(source).map_err(|error| open_error(&path, describe(&error)))?;
        Ok(Some(ChatTemplate { environment, tokens: tokens.collect() }))
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
        // Its pages are zeroed when they are written to, so that a short text costs little.
        let mut text = vec![0; MOST_TEXT];
        let mut rest = &mut text[..];
        let template = self.environment.get_template("chat");
        let rendered = template.and_then(|template| template.render_captured_to(Serde(context), &mut rest).map(drop));
        let left = rest.len();
        text.truncate(MOST_TEXT - left);
        rendered.map_err(|error| match left {
            0 => TemplateError(format!("it writes more than {MOST_TEXT} bytes")),
            _ => TemplateError(describe(&error)),
        })?;
        String::from_utf8(text).map_err(|error| TemplateError(error.to_string()))
    }
}

fn environment(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(MOST_STEPS));
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_test("iterable", |value: minijinja::Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("strftime_now", |format: &str| date(jiff::Timestamp::now(), format));
    environment.add_filter("tojson", |value: minijinja::Value, options: Kwargs| -> Result<String, Error> {
        let indent: Option<usize> = options.get("indent")?;
        let written = match indent {
            Some(indent) => written(&value, PrettyFormatter::with_indent(" ".repeat(indent.min(16)).as_bytes())),
            None => written(&value, OneLine),
        };
        written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
    });
    environment.add_template_owned("chat", without_marks(&source))?;
    Ok(environment)
}

/// A time in UTC, in a format of Python's `strftime`. Letters that the library doesn't know stay as they are.
fn date(time: jiff::Timestamp, format: &str) -> String {
    let utc = time.to_zoned(jiff::tz::TimeZone::UTC);
    let config = jiff::fmt::strtime::Config::new().lenient(true);
    let broken_down = jiff::fmt::strtime::BrokenDownTime::from(&utc);
    broken_down.to_string_with_config(&config, format).unwrap_or_else(|_| format.into())
}

/// Some templates mark what the model says, `{% generation %} … {% endgeneration %}`, for training.
fn without_marks(source: &str) -> String {
    let mut blocks = source.split("{%");
    let mut text = blocks.next().unwrap_or_default().to_string();
    for block in blocks {
        let (inside, after) = block.split_once("%}").unwrap_or((block, ""));
        let inside = match inside.trim_matches(['-', '+']).trim() {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => {
                text.extend(["{%", block]);
                continue;
            }
        };
        text.extend(["{%", &inside, "%}", after]);
    }
    text
}

fn written(value: &minijinja::Value, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// JSON on one line, with a space after each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
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
    let bytes = files::read(path, MOST_BYTES).map_err(|error| open_error(path, error))?;
    String::from_utf8(bytes).map(Some).map_err(|_| open_error(path, "it is not UTF-8"))
}

fn open_error(path: &Path, problem: impl ToString) -> FileError {
    let problem = escape::field(&problem.to_string());
    FileError::new(path, format!("{problem}; use the file that came with the model, or none"))
}

/// What the library says, on one line.
fn describe(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
    let problem = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    escape::field(&problem) + &line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, content)| fs::write(dir.path().join(name), content).unwrap());
        dir
    }

    fn open(files: &[(&str, &str)]) -> Result<Option<ChatTemplate>, FileError> {
        ChatTemplate::open(folder(files).path())
    }

    fn message(role: &str, content: &str) -> Value {
        json!({ "role": role, "content": content })
    }

    #[test]
    fn a_date_is_as_python_writes_it() {
        let date = |seconds, format| date(jiff::Timestamp::from_second(seconds).unwrap(), format);
        let all = "%Y-%m-%d %H:%M:%S %y %B %b %e %A %a %I %p %%";
        assert_eq!(date(0, all), "1970-01-01 00:00:00 70 January Jan  1 Thursday Thu 12 AM %");
        assert_eq!(date(1_709_210_096, all), "2024-02-29 12:34:56 24 February Feb 29 Thursday Thu 12 PM %");
    }

    /// What published templates are made of, in the words of none of them.
    const PARTS: &str = "\
{%- set ns = namespace(last=-1, open=true) %}
{%- for m in messages[::-1] %}
    {%- if ns.open and m.role == 'user' and not (m.content.startswith('[') and m.content.endswith(']')) %}
        {%- set ns.open = false %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- macro line(name, text) %}{{ name ~ ': ' ~ text ~ '\n' }}{% endmacro %}
{%- if tools is not none or tools is iterable %}{{ tools | length }}{% endif %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.thoughts is defined and m.thoughts is not none %}
        {%- set thoughts = m.thoughts %}
    {%- elif '</t>' in content %}
        {%- set thoughts = content.split('</t>')[0].rstrip('\n').split('<t>')[-1].lstrip('\n') %}
        {%- set content = content.split('</t>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last and thoughts %}{{ line('thinks', thoughts.strip('\n')) }}{% endif %}
    {%- generation %}{{ line(m['role'].upper(), content) }}{%- endgeneration -%}
    {%- if not loop.first and messages[loop.index0 - 1].role == m.role %}{{ raise_exception('twice') }}{% endif %}
    {%- for key, value in m.items() if key == 'data' %}{{ line(key, value | tojson) }}{% endfor %}
    {%- if m.get('data', {}).stop %}{% break %}{% endif %}
{%- endfor %}
{{- strftime_now('%Y') | int > 2025 }}";

    #[test]
    fn what_published_templates_are_made_of_is_there() {
        let template = open(&[("chat_template.jinja", PARTS)]).unwrap().unwrap();
        let data = json!({ "a": [1, "<é>"], "b": {}, "stop": true });
        let messages = [
            message("user", "one"),
            message("assistant", "<t>\nhm\n</t>\n\ntwo"),
            message("user", "three"),
            json!({ "role": "assistant", "content": "<t>\nah\n</t>\n\nfour", "data": data }),
            message("user", "[not seen]"),
        ];
        let text = template.render(&messages, &Map::new()).unwrap();
        let expected = "USER: one\nASSISTANT: two\nUSER: three\nthinks: ah\nASSISTANT: four\n\
                        data: {\"a\": [1, \"<é>\"], \"b\": {}, \"stop\": true}\nTrue";
        assert_eq!(text, expected);
        let error = template.render(&[message("user", "a"), message("user", "b")], &Map::new()).unwrap_err();
        assert!(error.to_string().ends_with("twice (line 25 of the template)"), "{error}");
        let pretty =
            open(&[("chat_template.jinja", "{{ x | tojson(indent=2) }}{%- generation -%} .{% endgeneration %}")]);
        let more = json!({ "x": { "a": [1], "b": {} } });
        let text = pretty.unwrap().unwrap().render(&[], more.as_object().unwrap()).unwrap();
        assert_eq!(text, "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}.");
    }

    #[test]
    fn a_template_is_found_wherever_it_lies() {
        assert!(open(&[]).unwrap().is_none());
        assert!(open(&[("tokenizer_config.json", "{}")]).unwrap().is_none());
        let render = |files: &[(&str, &str)]| {
            let template = open(files).unwrap().expect("there is one");
            template.render(&[message("user", "hello")], &Map::new()).unwrap()
        };
        let plain = r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}"#;
        assert_eq!(render(&[("tokenizer_config.json", plain)]), "<s>hello");
        let said = r#"{"bos_token": {"content": "<b>"}, "chat_template": "{{ bos_token }}!"}"#;
        assert_eq!(render(&[("tokenizer_config.json", said)]), "<b>!");
        let named = r#"{"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]}"#;
        assert_eq!(render(&[("tokenizer_config.json", named)]), "b");
        // The file that is there for it comes first.
        assert_eq!(render(&[("tokenizer_config.json", plain), ("chat_template.jinja", "{{ bos_token }}c")]), "<s>c");
    }

    #[test]
    fn a_template_that_cannot_be_used_is_refused_by_name() {
        let error = open(&[("chat_template.jinja", "{% for %}")]).err().expect("it is refused").to_string();
        assert!(error.contains("chat_template.jinja: ") && error.contains("(line 1 of the template)"), "{error}");
    }

    #[test]
    fn a_template_may_not_go_on_for_ever() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        let template = open(&[("chat_template.jinja", endless)]).unwrap().unwrap();
        let error = template.render(&[], &Map::new()).unwrap_err().to_string();
        assert!(error.contains("fuel"), "{error}");
        let large = "{% set text = 'x' * 1000000 %}{% for _ in range(100) %}{{ text }}{% endfor %}";
        let error = open(&[("chat_template.jinja", large)]).unwrap().unwrap().render(&[], &Map::new()).unwrap_err();
        assert!(error.to_string().contains("it writes more than 16777216 bytes"), "{error}");
    }
}
