//! Renders a chat template as [transformers](https://huggingface.co/docs/transformers/chat_templating) does: blocks take
//! their line with them, the methods that Python's strings and dictionaries have are there, JSON is written as Python
//! writes it, and so on. The text is the one of transformers 5.23.0 for Qwen3's template and some sixty others that were
//! tried.

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use page_by_page::escape;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value};

/// The text that a template makes of these variables, empty without them; or what is wrong, on one line. Nothing limits
/// its time, its memory or its stack: [`template`](crate::template) does.
pub fn render(source: &str, context: Option<Map<String, Value>>) -> Result<String, String> {
    let render = || {
        let environment = environment(source)?;
        let template = environment.get_template("chat")?;
        context.map_or(Ok(String::new()), |context| template.render(Serde(context)))
    };
    render().map_err(|error| describe(&error))
}

fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
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
    environment.add_template_owned("chat", without_marks(source))?;
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

/// What the library says, on one line.
fn describe(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
    let problem = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    escape::field(&problem) + &line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let data = json!({ "a": [1, "<é>"], "b": {}, "stop": true });
        let messages = [
            message("user", "one"),
            message("assistant", "<t>\nhm\n</t>\n\ntwo"),
            message("user", "three"),
            json!({ "role": "assistant", "content": "<t>\nah\n</t>\n\nfour", "data": data }),
            message("user", "[not seen]"),
        ];
        let render =
            |messages: &[Value]| render(PARTS, json!({ "messages": messages, "tools": null }).as_object().cloned());
        let expected = "USER: one\nASSISTANT: two\nUSER: three\nthinks: ah\nASSISTANT: four\n\
                        data: {\"a\": [1, \"<é>\"], \"b\": {}, \"stop\": true}\nTrue";
        assert_eq!(render(&messages).unwrap(), expected);
        let error = render(&[message("user", "a"), message("user", "b")]).unwrap_err();
        assert!(error.ends_with("twice (line 25 of the template)"), "{error}");
        let pretty = "{{ x | tojson(indent=2) }}{%- generation -%} .{% endgeneration %}";
        let text = super::render(pretty, json!({ "x": { "a": [1], "b": {} } }).as_object().cloned()).unwrap();
        assert_eq!(text, "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}.");
    }
}
