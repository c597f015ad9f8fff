//! Refusals: requests that cannot be answered, and clients that are not allowed to ask.

use serde_json::json;

use crate::answers::all_pages_come_back;
use crate::http::ask;
use crate::live_pages::watch;
use crate::serving::{Options, Server};
use page_by_page_serve::access::Access;

#[test]
fn what_cannot_be_answered_is_refused_by_name() {
    let server = Server::start(Options { n_pages: 20, ..Options::default() });
    let post =
        |path: &str, headers: &[(&str, &str)], body: &str| ask(server.address, "POST", path, headers, body.as_bytes());
    let many = json!({ "prompt": vec!["a"; 200_000] }).to_string();
    let one_megabyte = json!({ "prompt": "a".repeat(1_000_000) }).to_string();
    // Refused for the first: the second, which has too many bytes, is not looked at.
    let two = json!({ "prompt": ["1".repeat(5_000), "1".repeat(10_000)] }).to_string();
    const LONG: &str = "context_length_exceeded";
    // An empty word stands for null. 20 pages of 8 are 160 slots, and the newest token needs none.
    for (body, status, param, code, says) in [
        ("{\"prompt\": ", 400, "", "invalid_json", "the body is not JSON"),
        (r#"{"prompt": "a", "model": "gpt-4"}"#, 404, "model", "model_not_found", "no model \"gpt-4\""),
        (r#"{"prompt": [4096]}"#, 400, "prompt", "", "ids go from 0 to 4095"),
        (r#"{"prompt": [1], "max_tokens": 161}"#, 400, "max_tokens", LONG, "need 21 pages, and the pool has 20"),
        (r#"{"prompt": [1], "max_tokens": 1024}"#, 400, "max_tokens", LONG, "more than the model's 1024"),
        (r#"{"prompt": [[1], [2]], "n": 100}"#, 400, "n", "", "200 sequences are more than the 72"),
        (&two, 400, "prompt", LONG, "tokens, and a sequence holds 161 here"),
        (&one_megabyte, 400, "prompt", LONG, "the prompt has 1000000 bytes"),
        (r#"{"prompt": [1], "n": 64, "logprobs": 20, "max_tokens": 1000}"#, 400, "logprobs", "", "1344000 log prob"),
        (&many, 400, "prompt", "", "200000 sequences are more than the 72"),
        (r#"{"prompt": "a", "tools": 1, "max_tokens": "x"}"#, 400, "max_tokens", "", "max_tokens is \"x\""),
    ] {
        let refused = post("/v1/completions", &[], body);
        let error = refused.json()["error"].clone();
        let found = ["param", "code"].map(|field| error[field].as_str().unwrap_or_default().to_string());
        assert_eq!((refused.status, found), (status, [param, code].map(String::from)), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(refused.header("content-type"), Some("application/json"));
    }
    // The most that fits: 160 slots and the newest token.
    let longest = server.complete(&json!({ "prompt": [1], "max_tokens": 160, "temperature": 0 }));
    assert_eq!(longest["usage"]["completion_tokens"], 160);
    let refused = server.post("/v1/completions", &json!({ "prompt": vec![5; 161] })).body;
    assert!(refused.contains("the prompt has 161 tokens, and a sequence holds 161 here"), "{refused}");

    for (method, path, headers, body, status) in [
        ("GET", "/v1/completions", &[][..], "", 405),
        ("POST", "/v1/models", &[], "{}", 405),
        ("POST", "/", &[], "{}", 405),
        ("POST", "/health", &[], "{}", 405),
        ("GET", "/nothing", &[], "", 404),
        ("DELETE", "/sequences/0", &[], "", 404),
        ("DELETE", "/sequences/%ff", &[], "", 404),
        ("POST", "/sequences/0", &[], "{}", 405),
        ("GET", "/", &[("host", "evil.example")], "", 403),
        ("GET", "/pages", &[("host", "evil.example")], "", 403),
        ("GET", "/pages", &[("sec-fetch-site", "cross-site")], "", 403),
        ("DELETE", "/sequences/0", &[("host", "evil.example")], "", 403),
        ("GET", "/v1/../etc/passwd", &[], "", 404),
        ("POST", "/v1/completions", &[("content-type", "text/plain")], "{}", 415),
        ("POST", "/v1/completions", &[("content-type", "application/json; charset=utf-8")], "{}", 400),
        ("POST", "/v1/completions", &[("host", "evil.example:80")], "{}", 403),
    ] {
        let refused = ask(server.address, method, path, headers, body.as_bytes());
        assert_eq!(refused.status, status, "{method} {path} {headers:?}");
        assert!(refused.json()["error"]["message"].is_string());
    }
    all_pages_come_back(&server, 20);
}

#[test]
fn only_the_names_of_the_local_computer_are_answered() {
    let server = Server::start(Options::default());
    let status = |path: &str, names: &[&str]| {
        let headers: Vec<_> = names.iter().map(|name| ("host", *name)).collect();
        ask(server.address, "GET", path, &headers, b"").status
    };
    for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080", "[::1]"] {
        assert_eq!(status("/v1/models", &[host]), 200, "{host}");
    }
    for host in ["evil.example:8080", "localhost.evil.example", "10.0.0.1", "[::2]", "", "[127.0.0.1.nip.io]"] {
        assert_eq!(status("/v1/models", &[host]), 403, "{host}");
    }
    assert_eq!(status("/v1/models", &["localhost", "evil.example"]), 403);
    // The name in the request's first line counts before the header.
    assert_eq!(status("http://evil.example/v1/models", &["localhost"]), 403);
    assert_eq!(status("http://localhost:1/v1/models", &["localhost"]), 200);
}

#[test]
fn with_a_key_only_those_who_have_it_are_served() {
    let server = Server::start(Options { access: Access::Key("sesame".into()), ..Options::default() });
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let status = |headers: &[(&str, &str)]| {
        let post = ask(server.address, "POST", "/v1/completions", headers, body.as_bytes());
        let paths = [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nothing"), ("DELETE", "/sequences/0")];
        let others = paths.map(|(method, path)| ask(server.address, method, path, headers, b"").status);
        assert!(post.status != 401 || others == [401; 4], "{headers:?}: {others:?}");
        assert_eq!(watch(server.address, headers).0.status == 401, post.status == 401, "{headers:?}");
        post
    };
    assert_eq!(status(&[("authorization", "Bearer sesame"), ("host", "any.example")]).status, 200);
    let refused = status(&[]);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    for wrong in ["Bearer sesam", "Bearer sesame!", "Bearer Sesame", "Bearer  sesame", "Bearer ", "", "Basic sesame"] {
        assert_eq!(status(&[("authorization", wrong)]).status, 401, "{wrong}");
    }
    assert_eq!(status(&[("authorization", "bearer sesame")]).status, 200);
    assert_eq!(server.get("/health").status, 200);
    // A browser cannot send it with the first page that it opens.
    assert_eq!(["/", "/pool.css", "/page.css", "/pool.js", "/page.js"].map(|path| server.get(path).status), [200; 5]);
}
