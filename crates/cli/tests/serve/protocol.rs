//! OpenAI's protocol, word for word: each output is the one that is generated alone, in a stream as in one piece.

use std::thread;

use page_by_page::generation::sampler::SamplingParams;
use page_by_page::serving::schedule::StepLimits;
use serde_json::{Value, json};

use crate::program::ok;
use crate::serving::{
    Alone, GREEDY, Options, Output, PROMPTS, Server, all_pages_come_back, storyteller, texts, together,
};
use grading::checkpoints::Folder;

#[test]
fn the_model_says_what_it_is() {
    let server = Server::start(Options::default());
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("storyteller")));
    assert_eq!(models["data"][0]["max_model_len"], 1024);
    let health = server.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let metrics = server.get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
    server.end().unwrap();
}

#[test]
fn what_the_page_says_is_counted_is_counted() {
    let page = std::fs::read_to_string(grading::root().join("book/src/server.md")).unwrap();
    let (_, counted) = page.split_once("## What it counts").expect("the section");
    let names = counted.split('`').filter(|code| code.starts_with("vllm:") || code.starts_with("page_by_page:"));
    // A server without a page file counts nothing of it.
    let names: Vec<&str> = names.filter(|name| !name.contains("page_file")).collect();
    assert!(names.len() > 12, "{names:?}");
    let metrics = Server::start(Options::default()).get("/metrics").body;
    for name in names {
        let is_there = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', '_']));
        assert!(metrics.lines().any(is_there), "{name} is not in\n{metrics}");
    }
    assert!(!metrics.contains("page_file"), "{metrics}");
    for name in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(counted.contains(&format!("`{name}")), "{name} isn't on the page of the server");
    }
}

#[test]
fn a_prompt_in_any_form_and_several_at_once() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let outputs: Vec<Output> = PROMPTS.iter().map(|prompt| alone.complete(prompt, 20, GREEDY)).collect();
    let expected: Vec<&str> = outputs.iter().map(|output| output.text.as_str()).collect();
    let tokens: Vec<Vec<u32>> = PROMPTS.iter().map(|prompt| alone.tokenizer.encode(prompt).unwrap()).collect();
    let ask = |prompt: Value| server.complete(&json!({ "prompt": prompt, "temperature": 0, "max_tokens": 20 }));
    assert_eq!(texts(&ask(json!(PROMPTS))), expected);
    assert_eq!(texts(&ask(json!(tokens))), expected);
    assert_eq!(texts(&ask(json!(tokens[1]))), expected[1..2]);
    // A prompt has 16 new tokens, unless the request says otherwise.
    assert_eq!(server.complete(&json!({ "prompt": "a", "temperature": 0 }))["usage"]["completion_tokens"], 16);
}

#[test]
fn samples_have_the_seeds_of_generate_alone_and_in_company() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let story =
        ok(&["generate", PROMPTS[1], "--samples", "3", "--seed", "41", "--max-new-tokens", "30", "--json"]).json();
    let samples: Vec<&Value> = story["outputs"].as_array().unwrap().iter().map(|text| &text["text"]).collect();
    let body = json!({ "prompt": PROMPTS[1], "n": 3, "seed": 41, "max_tokens": 30 });
    assert_eq!(texts(&server.complete(&body)), samples, "as the model's folder says: temperature 0.8, top-p 0.95");

    // The same in the company of others, whatever they are.
    thread::scope(|scope| {
        for client in 0..6_u64 {
            let (server, alone) = (&server, &alone);
            scope.spawn(move || {
                for round in 0..4 {
                    let (seed, prompt) = (client * 10 + round, PROMPTS[(client + round) as usize % 4]);
                    let sampling = SamplingParams { temperature: 1.2, top_k: 50, top_p: 0.9, seed };
                    let body = json!({
                        "prompt": prompt, "max_tokens": 25, "seed": seed, "temperature": 1.2, "top_k": 50, "top_p": 0.9, "n": 2,
                    });
                    let next = SamplingParams { seed: seed + 1, ..sampling };
                    let expected = [sampling, next].map(|sampling| alone.complete(prompt, 25, sampling).text);
                    assert_eq!(texts(&server.complete(&body)), expected, "{prompt}, seed {seed}");
                }
            });
        }
    });
    // Without a seed, a different output each time.
    let free = || server.complete(&json!({ "prompt": "The", "max_tokens": 20 }))["choices"][0]["text"].clone();
    assert_ne!([free(), free(), free()], [free(), free(), free()]);
}

#[test]
fn a_stream_equals_the_whole_answer() {
    let server = Server::start(Options::default());
    let cut = server.complete(&json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 30 }));
    let stop: String = cut["choices"][0]["text"].as_str().unwrap().chars().skip(40).take(7).collect();
    for more in [
        json!({ "temperature": 0 }),
        json!({ "seed": 3, "n": 3 }),
        json!({ "seed": 3, "n": 2, "echo": true, "prompt": PROMPTS }),
        json!({ "temperature": 0, "stop": stop }),
        json!({ "temperature": 0, "logprobs": 3, "stop": [stop, "\n"] }),
        json!({ "temperature": 1000, "seed": 5, "n": 4 }),
        json!({ "temperature": 0, "logprobs": 2, "echo": true, "prompt": "naïve 🐉 你好" }),
        json!({ "max_tokens": 0, "logprobs": 1, "echo": true, "seed": 1 }),
    ] {
        let mut body = json!({ "prompt": PROMPTS[0], "max_tokens": 40, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.complete(&body);
        body["stream"] = true.into();
        for include_usage in [false, true] {
            body["stream_options"] = json!({ "include_usage": include_usage });
            let (mut events, is_done) = server.post("/v1/completions", &body).events();
            assert!(is_done, "{body}");
            let usage = if include_usage { events.pop() } else { None };
            assert_eq!(together(&events)["choices"], whole["choices"], "{body}");
            if let Some(usage) = usage {
                assert_eq!(usage["choices"], json!([]));
                for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert_eq!(usage["usage"][key], whole["usage"][key], "{body}");
                }
            }
            assert!(events.iter().all(|event| event.get("usage").is_some_and(Value::is_null) == include_usage));
            let same = |key: &str| events.iter().all(|event| event[key] == events[0][key]);
            assert!(same("id") && same("created") && same("model"), "{body}");
        }
    }
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let mut broken = 0;
    for seed in 0..12 {
        let sampling = SamplingParams { temperature: 1000.0, seed, ..SamplingParams::GREEDY };
        let output = alone.complete("The dragon 🐉", 60, sampling);
        // Tokens at random: some are bytes that never become a character.
        broken += output.text.matches('\u{FFFD}').count();
        let body = json!({
            "prompt": "The dragon 🐉", "max_tokens": 60, "seed": seed, "temperature": 1000, "top_p": 1, "stream": true,
            "return_token_ids": true,
        });
        let (events, _) = server.post("/v1/completions", &body).events();
        let choice = &together(&events)["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(output.text), &json!(output.reason)));
        assert_eq!(choice["token_ids"], json!(output.tokens), "seed {seed}");
    }
    assert!(broken > 0, "at least one text should have had a broken character, or this test shows nothing");
    // And whole ones, which the prompt has: echoed they are as they were.
    let body = json!({ "prompt": "naïve 🐉 你好", "echo": true, "max_tokens": 0, "stream": true });
    assert_eq!(texts(&together(&server.post("/v1/completions", &body).events().0)), ["naïve 🐉 你好"]);
}

#[test]
fn a_chat_uses_the_models_template() {
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}\
                            {% if messages | length > 2 %}{{ raise_exception('too many messages') }}{% endif %}\
                            {% if add_generation_prompt %}{{ name | default('teller') }}:{% endif %}";
    let folder = Folder::copy_of("storyteller");
    folder.write("chat_template.jinja", TEMPLATE);
    let alone = Alone::open(folder.path().as_ref());
    let server = Server::start(Options { folder: folder.path().into(), ..Options::default() });
    let messages = json!([{ "role": "user", "content": " Tell me a story. " }]);
    let expected = alone.complete("user: Tell me a story.\nteller:", 30, GREEDY);
    let mut body = json!({
        "messages": messages, "temperature": 0, "max_completion_tokens": 30, "logprobs": true, "top_logprobs": 2,
    });
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(texts(&answer), [expected.text.as_str()]);
    let role = &answer["choices"][0]["message"]["role"];
    assert_eq!((&answer["object"], role), (&json!("chat.completion"), &json!("assistant")));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), expected.tokens.len());
    for (found, id) in content.iter().zip(&expected.tokens) {
        let token = alone.tokenizer.token(*id).unwrap();
        assert_eq!((&found["token"], &found["bytes"]), (&json!(token), &json!(token.as_bytes())));
        // Greedy: it is the likeliest.
        let top = &found["top_logprobs"];
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&found["token"], &found["logprob"]));
        assert_eq!(top.as_array().unwrap().len(), 2);
    }

    body["stream"] = true.into();
    let (events, is_done) = server.post("/v1/chat/completions", &body).events();
    assert!(is_done && events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(texts(&together(&events)), [expected.text.as_str()]);
    assert_eq!(events.last().unwrap()["choices"][0]["delta"], json!({}));

    let named =
        json!({ "messages": messages, "temperature": 0, "max_tokens": 8, "chat_template_kwargs": { "name": "king" } });
    let expected = alone.complete("user: Tell me a story.\nking:", 8, GREEDY);
    assert_eq!(texts(&server.post("/v1/chat/completions", &named).json()), [expected.text.as_str()]);
    let three = json!({ "messages": [messages[0], messages[0], messages[0]] });
    let refused = server.post("/v1/chat/completions", &three);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_string();
    assert!(refused.status == 400 && message.contains("too many messages"), "{message}");

    let without = Server::start(Options::default());
    let refused = without.post("/v1/chat/completions", &json!({ "messages": messages }));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (400, &json!("no_chat_template")));
    assert!(error["message"].as_str().unwrap().contains("/v1/completions"), "{error}");
}

#[test]
fn a_prompt_is_computed_once_for_all_of_its_choices() {
    let prompts = ["Once upon a time there was a king who had three sons", "The queen had a golden ball, and"];
    for extra in [json!({}), json!({ "logprobs": 2 })] {
        let limits = StepLimits { token_budget: 64, max_running: 16 };
        let (server, alone) = (Server::start(Options { limits, ..Options::default() }), storyteller());
        let n_prompt: usize = prompts.iter().map(|prompt| alone.tokenizer.encode(prompt).unwrap().len()).sum();
        let mut body =
            json!({ "prompt": prompts, "n": 8, "max_tokens": 5, "seed": 3, "temperature": 0.8, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.complete(&body);
        for (name, expected) in [
            ("page_by_page:computed_tokens_total", n_prompt + 16 * 4),
            ("vllm:prompt_tokens_total", n_prompt),
            ("vllm:prefix_cache_queries_total", n_prompt),
            ("vllm:prefix_cache_hits_total", 0),
            ("vllm:generation_tokens_total", 16 * 5),
            ("vllm:time_to_first_token_seconds_count", 16),
        ] {
            assert_eq!(server.metric(name, ""), expected as f64, "{body}: {name}");
        }
        for (index, text) in texts(&answer).into_iter().enumerate() {
            let one = json!({ "prompt": prompts[index / 8], "max_tokens": 5, "seed": 3 + index % 8, "temperature": 0.8, "ignore_eos": true });
            assert_eq!(texts(&server.post("/v1/completions", &one).json()), [text], "{body}: choice {index}");
        }
        all_pages_come_back(&server, 600);
    }
}

#[test]
fn what_was_read_before_is_found_and_counted() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let prompt = "Once upon a time there was a king who had three sons, and the youngest of them was called";
    let n_prompt = alone.tokenizer.encode(prompt).unwrap().len();
    let mut body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 5 });
    let [first, second] = [&body; 2].map(|body| server.complete(body));
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    // Full pages, and one token is left to compute.
    let found = (n_prompt - 1) / 8 * 8;
    assert_eq!((cached(&first), cached(&second)), (0, found));
    for (name, labels, expected) in [
        ("vllm:prefix_cache_queries_total", "", 2 * n_prompt),
        ("vllm:prefix_cache_hits_total", "", found),
        ("vllm:prompt_tokens_total", "", 2 * n_prompt),
        ("vllm:generation_tokens_total", "", 10),
        ("vllm:request_success_total", "\"length\"", 2),
        ("vllm:time_to_first_token_seconds_count", "", 2),
        ("vllm:inter_token_latency_seconds_count", "", 8),
        ("vllm:e2e_request_latency_seconds_count", "", 2),
        ("page_by_page:computed_tokens_total", "", 2 * n_prompt - found + 8),
    ] {
        assert_eq!(server.metric(name, labels), expected as f64, "{name}");
    }
    // The other sequences of a prompt reuse what the first one found.
    body["n"] = 3.into();
    assert_eq!(cached(&server.complete(&body)), found);
    all_pages_come_back(&server, 600);
}
