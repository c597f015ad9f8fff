//! The names that the pages may use: every function, type, method and module of the engine, the stubs, the reference
//! and the tests, read from the Rust sources with `syn`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use syn::{Fields, ImplItem, Item, ItemImpl, TraitItem, Type, UseTree};
use walkdir::WalkDir;

const SOURCE_FOLDERS: &[&str] = &["src", "exercises", "solutions", "tests", "benches"];

#[derive(Default)]
pub struct Names {
    /// Every function, free or not.
    functions: HashSet<String>,
    /// The types and traits that are declared here, not in some library.
    types: HashSet<String>,
    /// Type or trait → its methods, constants, variants and fields.
    members: HashMap<String, HashSet<String>>,
    /// Type → the traits that it implements or derives.
    traits: HashMap<String, HashSet<String>>,
    /// Module → the items in it. A chapter's stub, reference and tests share one module name.
    modules: HashMap<String, HashSet<String>>,
}

impl Names {
    pub fn read(root: &Path) -> Self {
        let mut names = Self::default();
        for derived in ["Clone", "Default"] {
            let method = derived.to_lowercase();
            names.members.entry(derived.to_string()).or_default().insert(method);
        }
        for folder in SOURCE_FOLDERS {
            for entry in WalkDir::new(root.join(folder)).into_iter().flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "rs") {
                    continue;
                }
                // A reader's file may be half written: what does not parse names nothing, and the reference names
                // the same things.
                let parsed = fs::read_to_string(path).ok().and_then(|text| syn::parse_file(&text).ok());
                if let Some(file) = parsed {
                    names.read_items(&module_name(path), &file.items);
                }
            }
        }
        names
    }

    pub fn has_function(&self, name: &str) -> bool {
        self.functions.contains(name)
    }

    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(String::as_str)
    }

    pub fn has_type(&self, name: &str) -> bool {
        self.types.contains(name)
    }

    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(String::as_str)
    }

    pub fn has_member(&self, of: &str, name: &str) -> bool {
        self.members_of(of).any(|member| member == name)
    }

    /// The members of a type, with those of the traits that it implements.
    pub fn members_of<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a str> {
        let traits = self.traits.get(of).into_iter().flatten().map(String::as_str);
        std::iter::once(of).chain(traits).filter_map(|owner| self.members.get(owner)).flatten().map(String::as_str)
    }

    pub fn items_in(&self, module: &str) -> Option<impl Iterator<Item = &str>> {
        self.modules.get(module).map(|items| items.iter().map(String::as_str))
    }

    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.modules.keys().map(String::as_str)
    }

    fn read_items(&mut self, module: &str, items: &[Item]) {
        self.modules.entry(module.to_string()).or_default();
        for item in items {
            let name = match item {
                Item::Fn(item) => {
                    self.functions.insert(item.sig.ident.to_string());
                    item.sig.ident.to_string()
                }
                Item::Struct(item) => {
                    let name = item.ident.to_string();
                    self.read_fields(&name, &item.fields);
                    self.read_derives(&name, &item.attrs);
                    name
                }
                Item::Enum(item) => {
                    let name = item.ident.to_string();
                    let variants = item.variants.iter().map(|variant| variant.ident.to_string());
                    self.members.entry(name.clone()).or_default().extend(variants);
                    self.read_derives(&name, &item.attrs);
                    name
                }
                Item::Trait(item) => {
                    let name = item.ident.to_string();
                    let members = item.items.iter().filter_map(|member| match member {
                        TraitItem::Fn(member) => Some((member.sig.ident.to_string(), true)),
                        TraitItem::Const(member) => Some((member.ident.to_string(), false)),
                        TraitItem::Type(member) => Some((member.ident.to_string(), false)),
                        _ => None,
                    });
                    self.read_members(&name, members);
                    name
                }
                Item::Impl(item) => {
                    self.read_impl(item);
                    continue;
                }
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    if let Some((_, items)) = &item.content {
                        self.read_items(&name, items);
                    }
                    name
                }
                Item::Const(item) => item.ident.to_string(),
                Item::Static(item) => item.ident.to_string(),
                Item::Type(item) => item.ident.to_string(),
                Item::Use(item) => {
                    let known = self.modules.entry(module.to_string()).or_default();
                    add_imported(&item.tree, known);
                    continue;
                }
                _ => continue,
            };
            if matches!(item, Item::Struct(_) | Item::Enum(_) | Item::Trait(_) | Item::Type(_)) {
                self.types.insert(name.clone());
            }
            self.modules.entry(module.to_string()).or_default().insert(name);
        }
    }

    fn read_impl(&mut self, item: &ItemImpl) {
        let Some(name) = type_name(&item.self_ty) else {
            return;
        };
        if let Some(implemented) = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()) {
            self.traits.entry(name.clone()).or_default().insert(implemented.ident.to_string());
        }
        let members = item.items.iter().filter_map(|member| match member {
            ImplItem::Fn(member) => Some((member.sig.ident.to_string(), true)),
            ImplItem::Const(member) => Some((member.ident.to_string(), false)),
            ImplItem::Type(member) => Some((member.ident.to_string(), false)),
            _ => None,
        });
        self.read_members(&name, members);
    }

    fn read_members(&mut self, of: &str, members: impl Iterator<Item = (String, bool)>) {
        let known = self.members.entry(of.to_string()).or_default();
        for (member, is_function) in members {
            if is_function {
                self.functions.insert(member.clone());
            }
            known.insert(member);
        }
    }

    fn read_fields(&mut self, of: &str, fields: &Fields) {
        let named = fields.iter().filter_map(|field| field.ident.as_ref());
        let known = self.members.entry(of.to_string()).or_default();
        known.extend(named.map(ToString::to_string));
    }

    fn read_derives(&mut self, of: &str, attributes: &[syn::Attribute]) {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
            let derived =
                attribute.parse_args_with(syn::punctuated::Punctuated::<syn::Path, syn::Token![,]>::parse_terminated);
            let names = derived.into_iter().flatten();
            let names = names.filter_map(|path| Some(path.segments.last()?.ident.to_string()));
            self.traits.entry(of.to_string()).or_default().extend(names);
        }
    }
}

/// What a `use` brings into its module: most often it is there to be found there.
fn add_imported(tree: &UseTree, names: &mut HashSet<String>) {
    match tree {
        UseTree::Path(path) => add_imported(&path.tree, names),
        UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
        UseTree::Rename(rename) => drop(names.insert(rename.rename.to_string())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| add_imported(tree, names)),
        UseTree::Glob(_) => {}
    }
}

fn type_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Type::Reference(reference) => type_name(&reference.elem),
        _ => None,
    }
}

/// `src/model/mod.rs` is module `model`; every other file is named after itself.
fn module_name(path: &Path) -> String {
    let named = if path.ends_with("mod.rs") { path.parent() } else { Some(path) };
    let stem = named.and_then(Path::file_stem).unwrap_or_default();
    stem.to_string_lossy().into_owned()
}
