//! The public surface of a chapter, item by item.
//!
//! A later chapter, the engine and the graders compile against the reader's file or against the reference, whichever
//! the build picks: both must offer the same. The docs of a stub may say more, not less, as the reader works from them.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Attribute, FnArg, ImplItem, Item, Pat, Signature, TraitItem, Visibility};

use crate::course::Chapter;
use crate::finding::Report;

/// What a file offers to others, and what it keeps to itself, each by a name such as `PagePool::alloc`.
#[derive(Default)]
pub struct Surface {
    public: BTreeMap<String, Entry>,
    private: BTreeMap<String, Entry>,
}

struct Entry {
    /// What must be the same, in one line.
    text: String,
    docs: Vec<String>,
    line: usize,
}

impl Surface {
    pub fn of(file: &syn::File) -> Self {
        let mut surface = Surface::default();
        let docs = Entry { text: String::new(), docs: docs(&file.attrs), line: 1 };
        surface.public.insert("the module".into(), docs);
        surface.add_items(&file.items, "");
        surface
    }

    fn add(&mut self, public: bool, name: String, text: String, attrs: &[Attribute], line: usize) {
        let attributes = attributes(attrs);
        let entry = Entry { text: format!("{attributes}{text}"), docs: docs(attrs), line };
        if public {
            self.public.insert(name, entry)
        } else {
            self.private.insert(name, entry)
        };
    }

    fn add_items(&mut self, items: &[Item], path: &str) {
        let private_names: Vec<String> = items.iter().filter_map(private_name).collect();
        for item in items {
            let line = item.span().start().line;
            match item {
                Item::Fn(item) => {
                    let name = format!("{path}{}", item.sig.ident);
                    self.add(shared(&item.vis), name, signature(&item.sig), &item.attrs, line_of(&item.sig.ident));
                }
                Item::Struct(item) => {
                    let (public, name) = (shared(&item.vis), format!("{path}{}", item.ident));
                    let text = format!("struct {}{}", pretty(&item.ident), generics(&item.generics));
                    self.add(public, name.clone(), text, &item.attrs, line_of(&item.ident));
                    for (index, field) in item.fields.iter().enumerate() {
                        let ident = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                        let text = format!("{}: {}", ident, pretty(&field.ty));
                        let field_name = format!("field {name}.{ident}");
                        self.add(public && shared(&field.vis), field_name, text, &field.attrs, line_of(field));
                    }
                }
                Item::Enum(item) => {
                    let (public, name) = (shared(&item.vis), format!("{path}{}", item.ident));
                    let text = format!("enum {}{}", pretty(&item.ident), generics(&item.generics));
                    self.add(public, name.clone(), text, &item.attrs, line_of(&item.ident));
                    for variant in &item.variants {
                        let variant_name = format!("{name}::{}", variant.ident);
                        let mut bare = variant.clone();
                        bare.attrs.clear();
                        bare.fields.iter_mut().for_each(|field| field.attrs.clear());
                        self.add(public, variant_name, pretty(&bare), &variant.attrs, line_of(&variant.ident));
                    }
                }
                Item::Trait(item) => {
                    let (public, name) = (shared(&item.vis), format!("{path}{}", item.ident));
                    let bounds = pretty(&item.supertraits);
                    let text = format!("trait {}{}: {bounds}", item.ident, generics(&item.generics));
                    self.add(public, name.clone(), text, &item.attrs, line_of(&item.ident));
                    for member in &item.items {
                        let (ident, text, attrs) = match member {
                            TraitItem::Fn(member) => {
                                let provided = if member.default.is_some() { " (provided)" } else { "" };
                                (&member.sig.ident, signature(&member.sig) + provided, &member.attrs)
                            }
                            TraitItem::Const(member) => (&member.ident, pretty(&member.ty), &member.attrs),
                            TraitItem::Type(member) => (&member.ident, pretty(&member.bounds), &member.attrs),
                            _ => continue,
                        };
                        self.add(public, format!("{name}::{ident}"), text, attrs, line_of(ident));
                    }
                }
                Item::Impl(item) => self.add_impl(item, path, &private_names),
                Item::Const(item) => {
                    let text = format!("const {}: {} = {}", item.ident, pretty(&item.ty), pretty(&item.expr));
                    self.add(shared(&item.vis), format!("{path}{}", item.ident), text, &item.attrs, line);
                }
                Item::Static(item) => {
                    let text = format!("static {}: {} = {}", item.ident, pretty(&item.ty), pretty(&item.expr));
                    self.add(shared(&item.vis), format!("{path}{}", item.ident), text, &item.attrs, line);
                }
                Item::Type(item) => {
                    let text = format!("type {}{} = {}", item.ident, generics(&item.generics), pretty(&item.ty));
                    self.add(shared(&item.vis), format!("{path}{}", item.ident), text, &item.attrs, line);
                }
                Item::Use(item) if shared(&item.vis) => {
                    let text = format!("pub use {}", pretty(&item.tree));
                    self.add(true, format!("{path}{text}"), text, &item.attrs, line);
                }
                Item::Mod(item) if shared(&item.vis) => {
                    let name = format!("{path}{}", item.ident);
                    self.add(true, name.clone(), format!("mod {}", item.ident), &item.attrs, line);
                    if let Some((_, items)) = &item.content {
                        self.add_items(items, &format!("{name}::"));
                    }
                }
                _ => {}
            }
        }
    }

    fn add_impl(&mut self, item: &syn::ItemImpl, path: &str, private_names: &[String]) {
        let about_private = |text: &str| private_names.iter().any(|name| text.split('<').next() == Some(name.as_str()));
        let owner = owner(item);
        let of_trait = item.trait_.is_some();
        let trait_name = item.trait_.as_ref().map_or(String::new(), |(_, path, _)| pretty(path));
        let public = !about_private(&pretty(&item.self_ty)) && !about_private(&trait_name);
        if of_trait {
            let text = format!("impl{} {owner}", generics(&item.generics));
            self.add(public, format!("impl {path}{owner}"), text, &item.attrs, item.span().start().line);
        }
        for member in &item.items {
            let (ident, text, attrs, vis) = match member {
                ImplItem::Fn(member) => (&member.sig.ident, signature(&member.sig), &member.attrs, &member.vis),
                ImplItem::Const(member) => {
                    let text = format!("{} = {}", pretty(&member.ty), pretty(&member.expr));
                    (&member.ident, text, &member.attrs, &member.vis)
                }
                ImplItem::Type(member) => (&member.ident, pretty(&member.ty), &member.attrs, &member.vis),
                _ => continue,
            };
            let name = if of_trait { format!("<{path}{owner}>::{ident}") } else { format!("{path}{owner}::{ident}") };
            self.add(public && (of_trait || shared(vis)), name, text, attrs, line_of(ident));
        }
    }
}

/// What an `impl` block is about: `PagePool`, `KvCache for FlatCache`.
pub fn owner(item: &syn::ItemImpl) -> String {
    let own = pretty(&item.self_ty);
    match &item.trait_ {
        Some((_, path, _)) => format!("{} for {own}", pretty(path)),
        None => own,
    }
}

/// Compares stub and solution of a chapter.
pub fn check(chapter: &Chapter, stub: &Surface, solution: &Surface, report: &mut Report) {
    let (stub_file, solution_file) = (chapter.stub(), chapter.solution());
    for (name, expected) in &solution.public {
        let Some(found) = stub.public.get(name) else {
            let there = format!("{solution_file}:{} has it", expected.line);
            report.add(&stub_file, 0, format!("lacks public `{name}`; {there}\n    solution: {}", expected.text));
            continue;
        };
        if let Some(difference) = difference(name, found, expected) {
            report.add(&stub_file, found.line, difference);
        }
    }
    for (name, found) in stub.public.iter().filter(|(name, _)| !solution.public.contains_key(*name)) {
        let problem = format!("has public `{name}`; {solution_file} has not\n    stub:     {}", found.text);
        report.add(&stub_file, found.line, problem);
    }

    for (name, expected) in &solution.private {
        match stub.private.get(name) {
            Some(found) => {
                if let Some(difference) = difference(name, found, expected) {
                    report.note(&stub_file, found.line, difference);
                }
            }
            None if name.starts_with("field ") => {
                let there = format!("{solution_file}:{} has it", expected.line);
                report.note(&stub_file, 0, format!("lacks private `{name}`; {there}"));
            }
            // How the solution divides its work is its own affair.
            None => {}
        }
    }
    for (name, found) in &stub.private {
        if name.starts_with("field ") && !solution.private.contains_key(name) {
            report.note(&stub_file, found.line, format!("has private `{name}`; {solution_file} has not"));
        }
    }
}

/// How an item of the stub differs from the solution's, if it does.
fn difference(name: &str, stub: &Entry, solution: &Entry) -> Option<String> {
    if stub.text != solution.text {
        let (stub, solution) = (&stub.text, &solution.text);
        return Some(format!("`{name}` differs\n    stub:     {stub}\n    solution: {solution}"));
    }
    // The lines of the solution, in order, with others of the stub between them.
    let mut lines = stub.docs.iter();
    let lacking = solution.docs.iter().find(|wanted| !lines.any(|line| line == *wanted))?;
    let there = solution.line;
    let problem = format!("the docs of `{name}` lack a line that the solution has, or have it elsewhere");
    Some(format!("{problem}\n    solution: {lacking} (at line {there})"))
}

/// Visible outside its module.
fn shared(vis: &Visibility) -> bool {
    !matches!(vis, Visibility::Inherited)
}

fn private_name(item: &Item) -> Option<String> {
    let (vis, ident) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    (!shared(vis)).then(|| ident.to_string())
}

fn line_of(item: &impl Spanned) -> usize {
    item.span().start().line
}

/// The lines of a doc comment that say something.
fn docs(attrs: &[Attribute]) -> Vec<String> {
    let mut lines = Vec::new();
    for attr in attrs {
        if let syn::Meta::NameValue(meta) = &attr.meta
            && meta.path.is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value
        {
            let text = text.value();
            lines.extend(text.lines().map(|line| line.trim().to_string()).filter(|line| !line.is_empty()));
        }
    }
    lines
}

/// The attributes that a user of the item notices.
fn attributes(attrs: &[Attribute]) -> String {
    let silent = ["doc", "allow", "expect", "inline", "rustfmt", "clippy"];
    let mut texts: Vec<String> = attrs
        .iter()
        .filter(|attr| attr.path().get_ident().is_some_and(|name| !silent.iter().any(|silent| name == silent)))
        .map(|attr| format!("{} ", pretty(attr)))
        .collect();
    texts.sort();
    texts.concat()
}

/// A signature without what only its body sees: `mut self` is `self` to a caller.
fn signature(sig: &Signature) -> String {
    let mut sig = sig.clone();
    for input in &mut sig.inputs {
        match input {
            FnArg::Receiver(receiver) if receiver.reference.is_none() => receiver.mutability = None,
            FnArg::Typed(argument) => {
                if let Pat::Ident(pattern) = &mut *argument.pat {
                    pattern.mutability = None;
                }
            }
            FnArg::Receiver(_) => {}
        }
    }
    sig.inputs.pop_punct();
    sig.generics.params.pop_punct();
    pretty(&sig)
}

fn generics(generics: &syn::Generics) -> String {
    pretty(generics) + &generics.where_clause.as_ref().map_or(String::new(), |clause| format!(" {}", pretty(clause)))
}

/// Tokens as one would write them, near enough to read.
fn pretty(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" : ", ": "),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        (" ;", ";"),
        ("# [", "#["),
        ("->(", "-> ("),
        (" ->", "->"),
        ("->", " ->"),
    ] {
        text = text.replace(from, to);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn findings(stub: &str, solution: &str) -> (Vec<String>, Vec<String>) {
        let surface = |text: &str| Surface::of(&syn::parse_file(text).unwrap());
        let mut report = Report::default();
        check(&Chapter { name: "ch01_x".into() }, &surface(stub), &surface(solution), &mut report);
        let texts = |findings: std::collections::BTreeSet<crate::finding::Finding>| {
            findings.iter().map(ToString::to_string).collect()
        };
        (texts(report.findings), texts(report.notes))
    }

    #[test]
    fn order_layout_and_bodies_do_not_count() {
        let stub = "pub fn a(x: u32, mut y: Vec<u8>) -> u32 { todo!() }\npub struct B { pub c: u8 }";
        let solution =
            "pub struct B {\n  pub c: u8,\n}\nfn own() {}\npub fn a(\n  mut x: u32,\n  y: Vec<u8>,\n) -> u32 { 1 }";
        assert_eq!(findings(stub, solution), (vec![], vec![]));
    }

    #[test]
    fn each_kind_of_item_is_compared() {
        for (stub, solution, expected) in [
            ("pub fn a() {}", "pub fn a(x: u8) {}", "`a` differs"),
            ("pub fn a(y: u8) {}", "pub fn a(x: u8) {}", "`a` differs"),
            ("fn a() {}", "pub fn a() {}", "lacks public `a`"),
            ("pub fn a() {}", "", "has public `a`"),
            ("pub struct A { pub b: u8 }", "pub struct A { pub b: u16 }", "`field A.b` differs"),
            ("pub struct A(u8);", "pub struct A(pub u8);", "lacks public `field A.0`"),
            ("pub struct A;", "#[derive(Clone)] pub struct A;", "`A` differs"),
            ("pub enum A { B }", "pub enum A { B, C(u8) }", "lacks public `A::C`"),
            ("pub enum A { C(u16) }", "pub enum A { C(u8) }", "`A::C` differs"),
            ("pub trait A { fn b(&self); }", "pub trait A { fn b(&mut self); }", "`A::b` differs"),
            ("pub trait A { fn b(&self); }", "pub trait A { fn b(&self) {} }", "`A::b` differs"),
            ("pub const A: u8 = 1;", "pub const A: u8 = 2;", "`A` differs"),
            ("pub type A = u8;", "pub type A = u16;", "`A` differs"),
            ("pub struct A; impl A {}", "pub struct A; impl A { pub fn b() {} }", "lacks public `A::b`"),
            (
                "pub struct A;",
                "pub struct A; impl Drop for A { fn drop(&mut self) {} }",
                "lacks public `impl Drop for A`",
            ),
            (
                "pub struct A; impl T for A { fn b(&self) {} }",
                "pub struct A; impl T for A { fn b(&self) -> u8 { 1 } }",
                "`<T for A>::b` differs",
            ),
        ] {
            let (found, _) = findings(stub, solution);
            assert!(found.iter().any(|text| text.contains(expected)), "{stub} / {solution}: {found:#?}");
        }
    }

    #[test]
    fn private_parts_may_differ() {
        let stub = "pub struct A { b: u8 } struct P; impl A { fn c(&self) {} }";
        let solution = "pub struct A { b: u16, d: u8 } impl A { fn e(&self) {} } struct Q; impl Drop for Q {}";
        let (found, notes) = findings(stub, solution);
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(notes.len(), 2, "{notes:#?}");
        assert!(notes[0].contains("lacks private `field A.d`"), "{notes:#?}");
        assert!(notes[1].contains("`field A.b` differs"), "{notes:#?}");
    }

    #[test]
    fn the_docs_of_a_stub_may_only_say_more() {
        let solution = "/// One.\n///\n/// Two.\npub fn a() {}";
        let more = "/// One.\n///\n/// More.\n///\n/// Two.\n/// `a()`\npub fn a() {}";
        assert_eq!(findings(more, solution).0, Vec::<String>::new());
        let less = findings("/// One.\npub fn a() {}", solution).0;
        assert!(less[0].starts_with("exercises/ch01_x.rs:2: the docs of `a` lack a line"), "{less:#?}");
        assert!(less[0].ends_with("solution: Two. (at line 4)"), "{less:#?}");
        let swapped = findings("/// Two.\n/// One.\npub fn a() {}", solution).0;
        assert_eq!(swapped.len(), 1);
        let module = findings("//! Else.\n", "//! This.\n").0;
        assert!(module[0].contains("the docs of `the module`"), "{module:#?}");
    }

    #[test]
    fn a_differing_signature_is_found_with_file_and_line() {
        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "numbers: &[u32]", "numbers: Vec<u32>");
        sample.record();
        sample.expect(
            "exercises/ch01_sum.rs:6: `sum` differs\n    stub:     fn sum(numbers: Vec<u32>) -> u32\n    \
             solution: fn sum(numbers: &[u32]) -> u32",
        );
    }
}
