//! A checkpoint's chat template is a program, and this one means harm: it costs its own request, and nothing else.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use page_by_page_serve::template::ChatTemplate;
use serde_json::Map;

use crate::program::PROGRAM;

/// What the template says of itself when it is opened or rendered.
fn fails(template: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    match ChatTemplate::open(folder.path(), PROGRAM.as_ref()) {
        Ok(template) => template.unwrap().render(&[], &Map::new()).expect_err("it is ended").to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_template_may_not_recurse_or_go_on_for_ever_or_take_all_memory() {
    let adds = format!("{{{{ 1{} }}}}", "+1".repeat(100_000));
    let mut attacks = vec![
        &*adds,
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set n = namespace(l=[]) %}{% for _ in range(100000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l = range(99999) %}{% for _ in range(90000) %}{% if -1 in l %}{% endif %}{% endfor %}",
        "{% for _ in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    ];
    // Elsewhere the system does not limit memory.
    if cfg!(target_os = "linux") {
        attacks.extend([
            "{% set n = namespace(s='x') %}{% for _ in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
            "{{ ('a\n' * 9) | indent(4000000000) }}",
            "{{ ('a' * 100000) | replace('a', 'b' * 100000) | length }}",
            "{{ '%4000000000d' | format(1) }}",
            "{{ (range(99999) | list) | join('x' * 99999) | length }}",
            "{{ range(9) | batch(4000000000, 'x') | list }}",
            "{{ range(9) | slice(4000000000, 'x') | list }}",
        ]);
    }
    let began = Instant::now();
    thread::scope(|scope| {
        for template in attacks {
            scope.spawn(move || {
                let error = fails(template);
                let is_ended = error.contains("it takes ") || error.contains("it writes more than 16777216 bytes");
                assert!(is_ended, "{:.120}: {error}", template);
            });
        }
    });
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(fails("{% for %}").contains("chat_template.jinja: "), "{}", fails("{% for %}"));
}
