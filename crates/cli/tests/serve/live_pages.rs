//! The pages, live: what a client that watches the server sees.

use std::thread;
use std::time::{Duration, Instant};

use page_by_page_serve::connections::ClientLimits;
use serde_json::{Value, json};

use crate::http::{Connection, Response, ask};
use crate::program::eventually;
use crate::serving::{GREEDY, Options, PROMPTS, Server, all_pages_come_back, long_request, send, storyteller, texts};

/// Asks to watch. Returns the head of the answer, and the connection that the views come from.
fn watch(server: &Server) -> (Response, Connection) {
    let mut connection = Connection::open(server.address).unwrap();
    connection.send("GET", "/pages", &[], b"").unwrap();
    let head = connection.read_head().unwrap();
    (head, connection)
}

struct Views {
    connection: Connection,
    /// Pages of the pool; each view's pages and sequences are checked against it.
    n_pages: usize,
    version: usize,
}

impl Views {
    fn of(server: &Server, n_pages: usize) -> Self {
        let (head, connection) = watch(server);
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Views { connection, n_pages, version: 0 }
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        loop {
            let event = self.connection.read_chunk().unwrap();
            assert!(!event.is_empty(), "the views have ended");
            if let Some(data) = event.strip_prefix("data: ") {
                let view = serde_json::from_str(data).expect("JSON in an event");
                belongs_together(&view, self.n_pages);
                let before = std::mem::replace(&mut self.version, number(&view["version"]));
                assert!(before < self.version, "nothing is shown twice: {view}");
                return view;
            }
        }
    }

    /// The first view from here on that is as it should be.
    #[track_caller]
    fn wait_for(&mut self, mut is_right: impl FnMut(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let view = self.next();
            if is_right(&view) {
                return view;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{view}");
        }
    }
}

fn list<'v>(view: &'v Value, name: &str) -> &'v Vec<Value> {
    view[name].as_array().unwrap_or_else(|| panic!("{name} in {view}"))
}

fn sequences(view: &Value) -> impl ExactSizeIterator<Item = &Value> {
    list(view, "sequences").iter()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number")) as usize
}

/// For each page of a view its owners, and how many texts are among them.
fn pages_of(view: &Value) -> Vec<(usize, usize)> {
    let mut pages: Vec<(usize, usize)> = list(view, "owners").iter().map(|owners| (number(owners), 0)).collect();
    for page in sequences(view).flat_map(|sequence| list(sequence, "pages")) {
        pages[number(page)].1 += 1;
    }
    pages
}

/// Free, kept by the prefix cache alone, with texts: together the pool.
fn sums(view: &Value) -> [usize; 3] {
    let mut sums = [0; 3];
    for (owners, texts) in pages_of(view) {
        sums[if texts > 0 { 2 } else { owners }] += 1;
    }
    sums
}

/// A page's owners are the texts whose table has it, and at most the prefix cache; a table has all pages of its rows.
#[track_caller]
fn belongs_together(view: &Value, n_pages: usize) {
    let pages = pages_of(view);
    assert_eq!(pages.len(), n_pages);
    assert!(pages.iter().all(|(owners, texts)| (*texts..=texts + 1).contains(owners)), "{view}");
    let page_size = number(&view["page_size"]);
    for sequence in sequences(view) {
        assert_eq!(list(sequence, "pages").len(), number(&sequence["held_tokens"]).div_ceil(page_size), "{sequence}");
        assert_eq!(sequence["status"] == "running", number(&sequence["held_tokens"]) > 0, "{sequence}");
    }
}

#[test]
fn viewers_see_the_pages_as_they_are() {
    let server = Server::start(Options { n_pages: 40, ..Options::default() });
    let output = storyteller().complete(PROMPTS[0], 200, GREEDY);
    let mut views = Views::of(&server, 40);
    let first = views.next();
    assert_eq!((sums(&first), sequences(&first).len()), ([40, 0, 0], 0));
    assert_eq!(
        (&first["page_size"], &first["token_budget"], &first["max_running"]),
        (&json!(8), &json!(64), &json!(8))
    );

    let body = json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 200 });
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| server.complete(&body));
        let last = views.wait_for(|view| {
            for sequence in sequences(view) {
                let shown = sequence["text"].as_str().unwrap();
                assert!(output.text.starts_with(shown), "{shown:?} is not how the text begins");
                assert_eq!(sequence["prompt"], PROMPTS[0]);
            }
            !list(view, "finished").is_empty()
        });
        let ended = &list(&last, "finished")[0];
        assert_eq!((&ended["text"], &ended["reason"]), (&json!(output.text), &json!(output.reason)));
        assert_eq!((&ended["prompt"], &ended["new_tokens"]), (&json!(PROMPTS[0]), &json!(output.tokens.len())));
        assert_eq!(sequences(&last).len(), 0);
        answer.join().unwrap()
    });
    assert_eq!(texts(&answer), [output.text.as_str()]);

    // Who comes now sees what the numbers say, and no text that ended before.
    let late = Views::of(&server, 40).next();
    let pages = |state: &str| server.metric("page_by_page:pages", &format!("state=\"{state}\"")) as usize;
    assert_eq!(sums(&late), [pages("free"), pages("cached"), pages("used")]);
    assert!(sums(&late)[1] > 10, "the prefix cache keeps the full pages");
    assert_eq!(late["totals"]["new_tokens"], output.tokens.len());
    for (count, metric) in [("prompt_tokens", "queries"), ("cached_tokens", "hits")] {
        let total = server.metric(&format!("vllm:prefix_cache_{metric}_total"), "");
        assert_eq!(number(&late["totals"][count]) as f64, total, "{count}");
    }
    server.end().unwrap();
}

#[test]
fn viewers_have_a_limit_and_leave_their_place() {
    let server = Server::start(Options::default());
    let (mut one, two) = (Views::of(&server, 600), Views::of(&server, 600));
    one.next();
    let (refused, _) = watch(&server);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("10")));
    // A place is free again as soon as its viewer has gone.
    drop(two);
    let let_in = || (watch(&server).0.status != 429).then_some(());
    eventually(Duration::from_secs(20), let_in).expect("the place is still taken");
    // Watching does not keep a server from its end.
    let began = Instant::now();
    server.end().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // When its time is over, the one that came first makes way for the next, though nothing happens.
    let client_limits = ClientLimits { view_time: Duration::ZERO, ..ClientLimits::default() };
    let server = Server::start(Options { client_limits, ..Options::default() });
    let mut views = [(); 3].map(|()| Views::of(&server, 600));
    while !views[0].connection.read_chunk().unwrap().is_empty() {}
    views[1..].iter_mut().for_each(|views| drop(views.next()));
}

#[test]
fn a_slow_viewer_sees_the_newest_state_and_delays_no_step() {
    let server = Server::start(Options::default());
    // One that never reads, and one that does.
    let _deaf = watch(&server);
    let mut views = Views::of(&server, 600);
    views.next();
    let (steps, began) = (|| server.metric("page_by_page:steps_total", ""), Instant::now());
    let body = json!({ "prompt": PROMPTS[0], "n": 8, "max_tokens": 500, "temperature": 1000, "seed": 3 });
    server.complete(&body);
    let (steps, took) = (steps(), began.elapsed());
    let mut seen = 0;
    let last = views.wait_for(|view| {
        seen += 1;
        number(&view["steps"]) as f64 == steps && sequences(view).len() == 0
    });
    assert_eq!(sums(&last)[2], 0);
    let most = took.as_millis() / 50 + 5;
    assert!(seen <= most, "{seen} views in {took:?}: more than one in 50 ms");
}

#[test]
fn a_viewer_can_cancel_a_sequence() {
    let server = Server::start(Options::default());
    let mut views = Views::of(&server, 600);
    let mut connection = send(server.address, &long_request(json!(PROMPTS[0]), 3, 900));
    assert_eq!(connection.read_head().unwrap().status, 200);
    let ids_in = |view: &Value| sequences(view).map(|sequence| number(&sequence["id"])).collect::<Vec<_>>();
    let ids = ids_in(&views.wait_for(|view| sequences(view).len() == 3 && sums(view)[2] > 6));
    let end = |id: usize| ask(server.address, "DELETE", &format!("/sequences/{id}"), &[], b"").status;
    assert_eq!((end(ids[1]), end(ids[1]), end(99)), (204, 404, 404), "ended, ended before, never there");
    let view = views.wait_for(|view| sequences(view).len() == 2);
    assert_eq!(ids_in(&view), [ids[0], ids[2]]);
    let ended = list(&view, "finished").iter().find(|ended| number(&ended["id"]) == ids[1]).expect("it is shown");
    assert_eq!(ended["reason"], "abort");
    // Its client gets the tokens generated so far, and the others go on.
    let mut next_end = || loop {
        let chunk = connection.read_chunk().unwrap();
        for data in chunk.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
            let choice = serde_json::from_str::<Value>(data).unwrap()["choices"][0].clone();
            if let Some(reason) = choice["finish_reason"].as_str() {
                return (number(&choice["index"]), reason.to_string());
            }
        }
    };
    assert_eq!(next_end(), (1, "abort".to_string()));
    assert_eq!(end(ids[0]), 204);
    assert_eq!(next_end(), (0, "abort".to_string()));
    drop(connection);
    all_pages_come_back(&server, 600);
    assert_eq!(server.metric("vllm:request_success_total", "\"abort\""), 3.0);
}

#[test]
fn a_viewer_paces_the_engine_until_it_leaves() {
    let client_limits = ClientLimits { request: Duration::from_secs(5), ..ClientLimits::default() };
    let server = Server::start(Options { client_limits, ..Options::default() });
    let steps = || server.metric("page_by_page:steps_total", "");
    let set = |viewer: &Value, rate: u32, steps: u32| {
        server.post("/pace", &json!({ "viewer": viewer, "steps_per_second": rate, "steps": steps })).status
    };
    let mut views = Views::of(&server, 600);
    let mut other = Views::of(&server, 600);
    let (viewer, of_other) = (views.next()["viewer"].clone(), other.next()["viewer"].clone());
    assert_eq!(set(&json!(0), 4, 0), 404, "nobody has this number");
    assert_eq!(server.post("/pace", &json!({ "steps_per_second": 4 })).status, 400);

    // Paused. A step that was asked for while there was nothing to do is not made up for.
    assert_eq!(set(&of_other, 0, 1), 204);
    let connection = send(server.address, &long_request(json!(PROMPTS[0]), 1, 300));
    let paused = views.wait_for(|view| sequences(view).len() > 0);
    assert_eq!((steps(), &paused["pace"]["viewer"]), (0.0, &of_other));
    assert_eq!(set(&viewer, 0, 1), 204);
    views.wait_for(|view| view["steps"] == 1);
    // Clients that go, and those whose time is up, need no step.
    drop(connection);
    views.wait_for(|view| sequences(view).len() == 0);
    let request = |most: u32| json!({ "prompt": PROMPTS[0], "max_tokens": most, "ignore_eos": true });
    assert_eq!((server.post("/v1/completions", &request(9)).status, steps()), (503, 1.0));

    // Twenty steps a second. The viewer who hasn't set them can leave.
    assert_eq!(set(&viewer, 20, 0), 204);
    drop(other);
    let began = Instant::now();
    server.complete(&request(21));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());

    // Paused, it goes on once the viewer has gone, or when it is to end.
    for is_end in [false, true] {
        let mut views = Views::of(&server, 600);
        assert_eq!(set(&views.next()["viewer"], 0, 0), 204);
        thread::scope(|scope| {
            let answer = scope.spawn(|| server.complete(&request(300)));
            views.wait_for(|view| sequences(view).len() > 0);
            if is_end {
                server.shutdown.request()
            } else {
                drop(views)
            }
            answer.join().unwrap();
        });
    }
    server.end().unwrap();
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_runs_nothing_that_it_was_not_given() {
    let server = Server::start(Options::default());
    for path in ["/", "/pool.css", "/page.css", "/controls.js", "/words.js", "/pool.js", "/page.js"] {
        let answer = server.get(path);
        let kind = path.rsplit_once('.').map_or("html", |(_, end)| if end == "js" { "javascript" } else { end });
        assert_eq!(answer.header("content-type"), Some(format!("text/{kind}; charset=utf-8").as_str()));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        // A browser that heeds the policy runs nothing that stands in the page. And an output is never read as HTML.
        let elsewhere = ["http:", "https:", "//cdn", "@import", "url("];
        let as_html = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("];
        for word in elsewhere.into_iter().chain(as_html) {
            assert!(!answer.body.contains(word), "{path}: {word}");
        }
    }
}
