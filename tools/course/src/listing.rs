//! The list of chapters in `src/chapters.rs`, which the compiler cannot check: a chapter whose attributes name another
//! chapter's file compiles, and grades the wrong one.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use quote::ToTokens;
use syn::{Attribute, Expr, Item, Meta};

use crate::course::{Chapter, Course};
use crate::finding::Report;

pub const FILE: &str = "src/chapters.rs";

/// A chapter as the list has it.
#[derive(Default)]
struct Listed {
    /// The attributes of its module, and the line.
    module: Option<(Vec<String>, usize)>,
    /// The fields of its entry in `CHAPTERS`, and the line.
    entry: Option<(BTreeMap<String, String>, usize)>,
}

/// Tokens in one spelling.
fn spelled(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

fn meta(text: &str) -> String {
    spelled(&syn::parse_str::<Meta>(text).expect("a form of this file"))
}

fn expression(text: &str) -> String {
    spelled(&syn::parse_str::<Expr>(text).expect("a form of this file"))
}

fn attributes(attrs: &[Attribute]) -> Vec<String> {
    attrs.iter().map(|attr| spelled(&attr.meta)).collect()
}

/// Compares the list with the chapters that there are.
pub fn check(course: &Course, chapters: &[Chapter], report: &mut Report) -> Result<()> {
    let file = syn::parse_file(&course.read(FILE)?).with_context(|| format!("{FILE} is not Rust"))?;
    let mut listed: BTreeMap<String, Listed> = BTreeMap::new();
    let mut order = Vec::new();
    for item in &file.items {
        match item {
            Item::Mod(module) if module.content.is_none() => {
                let name = module.ident.to_string();
                let module = (attributes(&module.attrs), module.ident.span().start().line);
                listed.entry(name).or_default().module = Some(module);
            }
            Item::Const(constant) if constant.ident == "CHAPTERS" => {
                let Expr::Array(array) = &*constant.expr else { continue };
                for element in &array.elems {
                    let Expr::Struct(entry) = element else { continue };
                    let line = entry.path.segments[0].ident.span().start().line;
                    let fields: BTreeMap<String, String> =
                        entry.fields.iter().map(|field| (spelled(&field.member), spelled(&field.expr))).collect();
                    let name = fields.get("name").map_or("", String::as_str).trim_matches('"').to_string();
                    order.push(name.clone());
                    listed.entry(name).or_default().entry = Some((fields, line));
                }
            }
            _ => {}
        }
    }

    let names: Vec<String> = chapters.iter().map(|chapter| chapter.name.clone()).collect();
    let known: Vec<&String> = order.iter().filter(|name| names.contains(name)).collect();
    if !known.is_sorted() {
        report.add(FILE, 0, "the entries of CHAPTERS are not in order");
    }
    for (index, chapter) in chapters.iter().enumerate() {
        let listed = listed.remove(&chapter.name).unwrap_or_default();
        check_module(chapter, listed.module, report);
        check_entry(chapter, listed.entry, report);
        if chapter.number() != Some(index + 1) {
            let problem = format!("is the file of chapter {} in order: call it ch{:02}_…", index + 1, index + 1);
            report.add(chapter.stub(), 0, problem);
        }
    }
    for (name, listed) in listed {
        let line = listed.entry.map(|(_, line)| line).or(listed.module.map(|(_, line)| line)).unwrap_or(0);
        report.add(FILE, line, format!("lists {name}, but exercises/{name}.rs is missing"));
    }
    Ok(())
}

fn check_module(chapter: &Chapter, module: Option<(Vec<String>, usize)>, report: &mut Report) {
    let name = &chapter.name;
    let Some((attributes, line)) = module else {
        report.add(FILE, 0, format!("has no `pub mod {name};`"));
        return;
    };
    let wanted = [
        format!("cfg_attr(reference = \"{name}\", path = \"../solutions/{name}.rs\")"),
        format!("cfg_attr(not(reference = \"{name}\"), path = \"../exercises/{name}.rs\")"),
    ];
    for text in &wanted {
        if !attributes.contains(&meta(text)) {
            report.add(FILE, line, format!("the module {name} lacks #[{text}]"));
        }
    }
    let silenced = meta(&format!("cfg_attr(not(reference = \"{name}\"), allow(unused_variables))"));
    let beginning = silenced.split("unused_variables").next().unwrap_or_default();
    if !attributes.iter().any(|text| text.starts_with(beginning.trim_end())) {
        let problem =
            format!("the module {name} lacks #[cfg_attr(not(reference = \"{name}\"), allow(unused_variables, …))]");
        report.add(FILE, line, problem);
    }
    let cfg_attr = |text: &&String| text.starts_with("cfg_attr");
    if attributes.iter().filter(cfg_attr).count() > 3 {
        report.add(FILE, line, format!("the module {name} has more than its three cfg_attr lines"));
    }
}

fn check_entry(chapter: &Chapter, entry: Option<(BTreeMap<String, String>, usize)>, report: &mut Report) {
    let name = &chapter.name;
    let Some((fields, line)) = entry else {
        report.add(FILE, 0, format!("CHAPTERS has no entry for {name}"));
        return;
    };
    let wanted = [
        ("number", chapter.number().unwrap_or(0).to_string()),
        ("source", format!("source(cfg!(reference = \"{name}\"), cfg!(unstarted = \"{name}\"))")),
        ("exercise", format!("include_str!(\"../exercises/{name}.rs\")")),
    ];
    for (field, text) in &wanted {
        if fields.get(*field) != Some(&expression(text)) {
            report.add(FILE, line, format!("the entry of {name} in CHAPTERS lacks `{field}: {text}`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn attributes_of_another_chapter_are_found() {
        let sample = Sample::new();
        sample.replace(
            "src/chapters.rs",
            "#[cfg_attr(reference = \"ch02_double\", path = \"../solutions/ch02_double.rs\")]",
            "#[cfg_attr(reference = \"ch02_double\", path = \"../solutions/ch01_sum.rs\")]",
        );
        sample.expect("src/chapters.rs:8: the module ch02_double lacks #[cfg_attr(reference = \"ch02_double\", path");
    }

    #[test]
    fn a_wrong_entry_is_found() {
        let sample = Sample::new();
        sample.replace("src/chapters.rs", "unstarted = \"ch02_double\"", "unstarted = \"ch01_sum\"");
        sample.expect("the entry of ch02_double in CHAPTERS lacks `source: ");

        let sample = Sample::new();
        sample.replace("src/chapters.rs", "number: 2", "number: 3");
        sample.expect("the entry of ch02_double in CHAPTERS lacks `number: 2`");
    }

    #[test]
    fn chapters_and_list_name_the_same() {
        let sample = Sample::new();
        sample.remove("exercises/ch02_double.rs");
        sample.expect("src/chapters.rs:19: lists ch02_double, but exercises/ch02_double.rs is missing");

        let sample = Sample::new();
        sample.replace("src/chapters.rs", "pub mod ch02_double;", "");
        sample.expect("src/chapters.rs: has no `pub mod ch02_double;`");
    }
}
