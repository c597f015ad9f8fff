//! The list of the chapters that a figure stands on is what its code says.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use page_by_page_course::figures;
use quote::ToTokens;
use syn::{Item, UseTree};

/// What the engine runs of a chapter for somebody who names none. A figure that has one of these names stands on it.
/// The model's attention runs chapters 13 and 14 only if it is asked to, and no figure asks for it.
const THROUGH_THE_ENGINE: [(&str, &str, &[usize]); 3] =
    [("Sampler", "src/decode", &[1]), ("Serving", "src/serving", &[6, 10, 12]), ("Prefixes", "src/prefixes", &[4, 5])];

/// What is called for somebody who has one of these: the trait, and its method.
const CALLS: [(&str, [&str; 2]); 2] =
    [("RewindableModel", ["Rewind", "rewind"]), ("Speculation", ["Rewind", "rewind"])];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).replace("\r\n", "\n")
}

/// The names of the files in a folder, without `.rs`.
fn names(folder: &str) -> BTreeSet<String> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    files.filter_map(|file| Some(file.to_str()?.strip_suffix(".rs")?.to_string())).collect()
}

/// `ch06_paged` → 6
fn number(segment: &str) -> Option<usize> {
    segment.strip_prefix("ch")?.split_once('_')?.0.parse().ok()
}

/// A file of the figures' code: the words of each item by its name, and where the names come from that it uses.
struct Code {
    items: HashMap<String, HashSet<String>>,
    uses: HashMap<String, Vec<String>>,
}

impl Code {
    fn read(file: &str) -> Self {
        let (mut items, mut uses) = (HashMap::<String, HashSet<String>>::new(), HashMap::new());
        for item in syn::parse_file(&read(file)).unwrap().items {
            let name = match &item {
                Item::Const(item) => item.ident.to_string(),
                Item::Enum(item) => item.ident.to_string(),
                Item::Fn(item) => item.sig.ident.to_string(),
                Item::Static(item) => item.ident.to_string(),
                Item::Struct(item) => item.ident.to_string(),
                Item::Trait(item) => item.ident.to_string(),
                Item::Type(item) => item.ident.to_string(),
                Item::Impl(item) => last_word(&item.self_ty),
                Item::Use(item) => {
                    imported(&item.tree, &mut Vec::new(), &mut uses);
                    continue;
                }
                // Tests.
                _ => continue,
            };
            items.entry(name).or_default().extend(words(&item));
        }
        Code { items, uses }
    }
}

fn words(code: &impl ToTokens) -> HashSet<String> {
    fn collect(tokens: proc_macro2::TokenStream, found: &mut HashSet<String>) {
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(word) => drop(found.insert(word.to_string())),
                proc_macro2::TokenTree::Group(group) => collect(group.stream(), found),
                _ => {}
            }
        }
    }
    let mut found = HashSet::new();
    collect(code.to_token_stream(), &mut found);
    found
}

/// `Cached` of `crate::engine::Cached<C>`
fn last_word(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        other => other.to_token_stream().to_string(),
    }
}

/// The names that a `use` brings, each with its path.
fn imported(tree: &UseTree, path: &mut Vec<String>, uses: &mut HashMap<String, Vec<String>>) {
    let depth = path.len();
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            imported(&part.tree, path, uses);
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| imported(tree, path, uses)),
        UseTree::Name(name) => drop(uses.insert(name.ident.to_string(), path.clone())),
        UseTree::Rename(name) => drop(uses.insert(name.rename.to_string(), path.clone())),
        UseTree::Glob(_) => panic!("a glob hides what is used"),
    }
    path.truncate(depth);
}

/// An `impl Trait for Type`.
#[derive(Clone)]
struct Implementation {
    name: String,
    ty: String,
    methods: HashSet<String>,
}

impl Implementation {
    /// The trait, the type and one of the methods are named.
    fn is_used(&self, words: &HashSet<String>) -> bool {
        words.contains(&self.name) && words.contains(&self.ty) && !words.is_disjoint(&self.methods)
    }
}

fn implementations(file: &str) -> Vec<Implementation> {
    let of_item = |item| {
        let Item::Impl(item) = item else { return None };
        let methods = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
            _ => None,
        });
        let name = item.trait_.as_ref()?.1.segments.last()?.ident.to_string();
        Some(Implementation { name, ty: last_word(&item.self_ty), methods: methods.collect() })
    };
    syn::parse_file(&read(file)).unwrap().items.into_iter().filter_map(of_item).collect()
}

/// The chapters that a figure's code runs, by what it names.
fn derived(figure: &str) -> BTreeSet<usize> {
    let own = format!("tools/figures/src/figures/{figure}.rs");
    let mut codes = BTreeMap::from([(own.clone(), Code::read(&own))]);
    let mut to_look_at: Vec<(String, String)> =
        codes[&own].items.keys().map(|item| (own.clone(), item.clone())).collect();
    let (mut seen, mut all_words, mut found) = (HashSet::new(), HashSet::new(), BTreeSet::new());
    while let Some((file, item)) = to_look_at.pop() {
        if !seen.insert((file.clone(), item.clone())) {
            continue;
        }
        let code = codes.entry(file.clone()).or_insert_with(|| Code::read(&file));
        let Some(words) = code.items.get(&item) else { continue };
        for word in words {
            all_words.insert(word.clone());
            to_look_at.push((file.clone(), word.clone()));
            let Some(path) = code.uses.get(word) else { continue };
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            match path[..] {
                ["page_by_page", "chapters", chapter] => drop(found.insert(number(chapter).unwrap())),
                ["crate", helper] => to_look_at.push((format!("tools/figures/src/{helper}.rs"), word.clone())),
                ["super", figure] => to_look_at.push((format!("tools/figures/src/figures/{figure}.rs"), word.clone())),
                _ => {}
            }
        }
    }

    // A chapter may give a trait of the engine to another chapter's type.
    for (name, calls) in CALLS {
        if all_words.contains(name) {
            all_words.extend(calls.map(str::to_string));
        }
    }
    let chapters = names("solutions");
    for chapter in &chapters {
        let given =
            ["exercises", "solutions"].map(|folder| implementations(&format!("{folder}/{chapter}.rs"))).concat();
        if given.iter().any(|given| given.is_used(&all_words)) {
            found.insert(number(chapter).unwrap());
        }
    }
    for (name, _, runs) in THROUGH_THE_ENGINE {
        if all_words.contains(name) {
            found.extend(runs);
        }
    }

    // What these use in turn, as the course tool asks of the graders.
    let mut to_read: Vec<usize> = found.iter().copied().collect();
    while let Some(chapter) = to_read.pop() {
        let name = chapters.iter().find(|name| number(name) == Some(chapter)).unwrap();
        let text = ["exercises", "solutions"].map(|folder| read(&format!("{folder}/{name}.rs"))).concat();
        for other in chapters.iter().filter(|other| text.contains(&format!("chapters::{other}"))) {
            if found.insert(number(other).unwrap()) {
                to_read.push(number(other).unwrap());
            }
        }
    }
    found
}

#[test]
fn each_figure_stands_on_what_its_code_names() {
    let listed: BTreeSet<String> = figures::STANDS_ON.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(listed, names("tools/figures/src/figures"), "src/standing.rs lists every figure");
    let wrong: Vec<String> = figures::STANDS_ON
        .iter()
        .map(|(name, chapters)| (name, BTreeSet::from_iter(chapters.iter().copied()), derived(name)))
        .filter(|(_, listed, derived)| listed != derived)
        .map(|(name, listed, derived)| format!("{name}: listed {listed:?}, its code names {derived:?}"))
        .collect();
    assert!(wrong.is_empty(), "src/standing.rs:\n{}", wrong.join("\n"));
}

#[test]
fn chapters_are_listed_in_order() {
    for (name, chapters) in figures::STANDS_ON {
        assert!(chapters.is_sorted() && figures::stands_on(name) == Some(chapters), "{name}");
    }
    assert_eq!(figures::stands_on("ch99_none"), None);
}

#[test]
fn the_engine_still_runs_these_chapters() {
    for (name, folder, chapters) in THROUGH_THE_ENGINE {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let text: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
        assert!(
            text.contains(&format!("pub struct {name}")) || text.contains(&format!("pub trait {name}")),
            "{folder} has no {name}"
        );
        for chapter in chapters {
            assert!(text.contains(&format!("chapters::ch{chapter:02}_")), "{folder} does not name chapter {chapter}");
        }
    }
}
