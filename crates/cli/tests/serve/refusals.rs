//! Refusals: requests that cannot be answered, and clients that are not allowed to ask.

use serde_json::{Value, json};

use crate::http::{Response, ask};
use crate::program::check_script;
use crate::serving::{Options, Server, all_pages_come_back};
use grading::checkpoints::Folder;
use page_by_page_serve::access::Access;

/// Sends the requests of a script. Below each stands its answer: the status, and an error's field, code and message.
///
/// The fields after `>` are sent for a completion and for a chat, or only where there is a `prompt` or `messages`. The others
/// are a method, an address and headers; where a method has a body, it is an empty object.
fn play(server: &Server, script: &str) -> String {
    let mut transcript = String::new();
    for line in script.lines().filter(|line| !line.starts_with(char::is_numeric)) {
        transcript += &format!("{line}\n");
        let mut answers: Vec<String> = match line.split_once("> ") {
            Some((kind, fields)) => with_fields(server, kind, serde_json::from_str(fields).expect(line)),
            None if line.starts_with(char::is_uppercase) => vec![with_headers(server, line)],
            None => Vec::new(),
        };
        answers.dedup();
        transcript += &answers.concat();
    }
    transcript
}

fn with_fields(server: &Server, kind: &str, fields: Value) -> Vec<String> {
    let (prompt, messages) = (json!("a"), json!([{ "role": "user", "content": "hello" }]));
    let endpoints = [("prompt", prompt, "/v1/completions"), ("messages", messages, "/v1/chat/completions")];
    let answer = |(field, default, path): (&str, Value, &str)| {
        let mut body = fields.clone();
        body.as_object_mut().expect("an object").entry(field).or_insert(default);
        rendered(&server.post(path, &body))
    };
    endpoints.into_iter().filter(|(field, ..)| field.starts_with(kind)).map(answer).collect()
}

fn with_headers(server: &Server, line: &str) -> String {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let (method, path, headers) = (words[0], words[1], words.get(2).unwrap_or(&""));
    let headers = headers.split(", ").filter_map(|header| header.split_once(':'));
    let headers: Vec<(&str, &str)> = headers.map(|(name, value)| (name, value.trim())).collect();
    rendered(&ask(server.address, method, path, &headers, if method == "POST" { b"{}" } else { b"" }))
}

fn rendered(answer: &Response) -> String {
    let error = serde_json::from_str(&answer.body).map_or(Value::Null, |body: Value| body["error"].clone());
    if error.is_null() {
        return format!("{}\n", answer.status);
    }
    let kind = if answer.status == 401 { "authentication_error" } else { "invalid_request_error" };
    assert_eq!((&error["type"], answer.header("content-type")), (&json!(kind), Some("application/json")));
    let [param, code, message] = ["param", "code", "message"].map(|key| error[key].as_str().unwrap_or("-"));
    format!("{} {param} {code}: {message}\n", answer.status)
}

#[test]
fn what_cannot_be_answered_is_refused_by_name() {
    let folder = Folder::copy_of("storyteller");
    folder.write("chat_template.jinja", "{{ messages[0].content }}");
    let server = Server::start(Options { folder: folder.path().into(), n_pages: 20, ..Options::default() });
    check_script("serve", "refusals", |script| play(&server, script));
    let [long, many] =
        [json!(vec![5; 161]), json!(vec!["a"; 200_000])].map(|prompt| json!({ "prompt": prompt }).to_string());
    let one_megabyte = json!({ "prompt": "a".repeat(1_000_000) }).to_string();
    // Refused for the first: the second, which has too many bytes, is not looked at.
    let two = json!({ "prompt": ["1".repeat(5_000), "1".repeat(10_000)] }).to_string();
    const LONG: &str = "context_length_exceeded";
    for (body, param, code, says) in [
        ("{\"prompt\": ", "", "invalid_json", "the body is not JSON"),
        ("[1]", "", "invalid_json", "the body is JSON, but not an object"),
        (&"[".repeat(100_000), "", "invalid_json", "the body is not JSON: recursion limit exceeded"),
        (&long, "prompt", LONG, "the prompt has 161 tokens, and a sequence holds 161 here"),
        (&two, "prompt", LONG, "tokens, and a sequence holds 161 here"),
        (&one_megabyte, "prompt", LONG, "the prompt has 1000000 bytes"),
        (&many, "prompt", "", "200000 sequences are more than the 72"),
    ] {
        let refused = ask(server.address, "POST", "/v1/completions", &[], body.as_bytes());
        let error = refused.json()["error"].clone();
        let found = ["param", "code"].map(|field| error[field].as_str().unwrap_or_default());
        assert_eq!((refused.status, found), (400, [param, code]), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    // The most that fits: 160 slots and the newest token.
    let longest = server.complete(&json!({ "prompt": [1], "max_tokens": 160, "temperature": 0 }));
    assert_eq!(longest["usage"]["completion_tokens"], 160);
    all_pages_come_back(&server, 20);
}

#[test]
fn with_a_key_only_those_who_have_it_are_served() {
    let server = Server::start(Options { access: Access::Key("sesame".into()), ..Options::default() });
    check_script("serve", "key", |script| play(&server, script));
    assert_eq!(server.get("/v1/models").header("www-authenticate"), Some("Bearer"));
}

#[test]
fn without_viewers_there_is_no_page() {
    let server = Server::start(Options { viewers: 0, ..Options::default() });
    check_script("serve", "without_viewers", |script| play(&server, script));
}
