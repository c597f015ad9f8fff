//! A checkpoint's chat template: where it is found, and one that means harm. It costs its own request, and nothing else.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use page_by_page_serve::template::ChatTemplate;
use serde_json::{Map, json};

use crate::program::PROGRAM;

/// What the template in a folder with these files makes of one message, or says of itself.
fn render(files: &[(&str, &str)]) -> Option<Result<String, String>> {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, content)| fs::write(folder.path().join(name), content).unwrap());
    let messages = [json!({ "role": "user", "content": "hello" })];
    match ChatTemplate::open(folder.path(), PROGRAM.as_ref()) {
        Ok(template) => Some(template?.render(&messages, &Map::new()).map_err(|error| error.to_string())),
        Err(error) => Some(Err(error.to_string())),
    }
}

#[test]
fn a_template_is_found_wherever_it_lies() {
    let plain = r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}"#;
    let said = r#"{"bos_token": {"content": "<b>"}, "chat_template": "{{ bos_token }}!"}"#;
    let named = r#"{"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]}"#;
    for (config, text) in [("{}", None), (plain, Some("<s>hello")), (said, Some("<b>!")), (named, Some("b"))] {
        assert_eq!(render(&[("tokenizer_config.json", config)]), text.map(|text| Ok(text.into())));
    }
    assert_eq!(render(&[]), None);
    // The file that is there for it comes first.
    let both = [("tokenizer_config.json", plain), ("chat_template.jinja", "{{ bos_token }}c")];
    assert_eq!(render(&both), Some(Ok("<s>c".into())));
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
    let fails = |template: &str| render(&[("chat_template.jinja", template)]).unwrap().expect_err("it is ended");
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
