//! What a grader says about whose code it ran: its `whose_code! { ch04_page_pool = "ch04_page_pool", … }`.
//!
//! The checks that this makes fail when the reader's file is no longer what was compiled. A chapter that is left out
//! would be graded unseen.

use std::collections::BTreeSet;

use anyhow::Result;
use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, Item, LitStr, Token};

use crate::course::{Chapter, Course};
use crate::finding::Report;

/// A chapter as the macro wants it: the name of a module, and the same as a text.
struct Named {
    module: Ident,
    name: LitStr,
}

impl Parse for Named {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let module = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Named { module, name: input.parse()? })
    }
}

fn parsed(tokens: TokenStream) -> syn::Result<Vec<Named>> {
    let list = syn::punctuated::Punctuated::<Named, Token![,]>::parse_terminated;
    Ok(syn::parse::Parser::parse2(list, tokens)?.into_iter().collect())
}

/// Looks at every grader.
pub fn check(course: &Course, chapters: &[Chapter], report: &mut Report) -> Result<()> {
    for chapter in chapters.iter().filter(|chapter| course.has(&chapter.grader())) {
        let text = course.read(&chapter.grader())?;
        // What is not Rust is found elsewhere.
        let Ok(grader) = syn::parse_file(&text) else { continue };
        let wanted = stands_on(course, chapters, chapter)?;
        check_grader(chapter, &grader, &wanted, chapters, report);
    }
    Ok(())
}

fn check_grader(
    chapter: &Chapter,
    grader: &syn::File,
    wanted: &BTreeSet<&str>,
    chapters: &[Chapter],
    report: &mut Report,
) {
    let file = chapter.grader();
    let call = grader.items.iter().find_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("whose_code") => Some(item),
        _ => None,
    });
    let Some(call) = call else {
        let list: Vec<String> = wanted.iter().map(|name| format!("{name} = \"{name}\"")).collect();
        let problem = format!("lacks `whose_code! {{ {} }}`: green would not say whose code ran", list.join(", "));
        report.add(file, 0, problem);
        return;
    };
    let line = call.mac.path.segments[0].ident.span().start().line;
    let named = match parsed(call.mac.tokens.clone()) {
        Ok(named) => named,
        Err(error) => {
            report.add(file, line, format!("whose_code! cannot be read: {error}"));
            return;
        }
    };
    let mut listed = Vec::new();
    for Named { module, name } in named {
        let (module, name) = (module.to_string(), name.value());
        if module != name {
            report.add(&file, line, format!("whose_code! has {module} = \"{name}\": one of them is wrong"));
        }
        if !chapters.iter().any(|chapter| chapter.name == name) {
            report.add(&file, line, format!("whose_code! names {name}, which is no chapter"));
        }
        listed.push(name);
    }
    for missing in wanted.iter().filter(|name| !listed.iter().any(|listed| listed == *name)) {
        report.add(&file, line, format!("whose_code! lacks {missing} = \"{missing}\", which this chapter stands on"));
    }
    if !listed.is_sorted() || listed.last() != Some(&chapter.name) {
        report.add(&file, line, format!("whose_code! names the chapters in order, and {} last", chapter.name));
    }
}

/// The chapters whose code the grader of a chapter runs: those that grader, stub and solution name, and those that these
/// name in turn.
fn stands_on<'a>(course: &Course, chapters: &'a [Chapter], chapter: &'a Chapter) -> Result<BTreeSet<&'a str>> {
    let mut found = BTreeSet::from([chapter.name.as_str()]);
    let mut to_read = vec![chapter.grader(), chapter.stub(), chapter.solution()];
    while let Some(file) = to_read.pop() {
        if !course.has(&file) {
            continue;
        }
        let text = course.read(&file)?;
        for other in chapters.iter().filter(|other| text.contains(&format!("chapters::{}", other.name))) {
            if found.insert(&other.name) {
                to_read.extend([other.stub(), other.solution()]);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn a_grader_that_does_not_say_whose_code_ran_is_found() {
        let sample = Sample::new();
        sample.replace("tests/ch01_sum.rs", "whose_code! {", "nobodys_code! {");
        sample.expect("tests/ch01_sum.rs: lacks `whose_code! { ch01_sum = \"ch01_sum\" }`");
    }

    #[test]
    fn a_chapter_that_a_grader_stands_on_is_not_left_out() {
        let sample = Sample::new();
        sample.replace("solutions/ch02_double.rs", "number + number", "crate::chapters::ch01_sum::sum(&[number; 2])");
        sample
            .expect("tests/ch02_double.rs:12: whose_code! lacks ch01_sum = \"ch01_sum\", which this chapter stands on");
    }

    #[test]
    fn a_name_that_is_not_the_module_s_is_found() {
        let sample = Sample::new();
        sample.replace("tests/ch02_double.rs", "= \"ch02_double\" }", "= \"ch01_sum\" }");
        sample.expect("tests/ch02_double.rs:12: whose_code! has ch02_double = \"ch01_sum\": one of them is wrong");
        sample.expect("tests/ch02_double.rs:12: whose_code! names the chapters in order, and ch02_double last");
        sample.replace("tests/ch02_double.rs", "= \"ch01_sum\" }", "= \"ch03_gone\" }");
        sample.expect("tests/ch02_double.rs:12: whose_code! names ch03_gone, which is no chapter");
    }
}
