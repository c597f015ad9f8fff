//! The names that the pages can use: every function, type, method and module of the engine, the stubs, the reference
//! and the tests, read from the Rust sources with `syn`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::{Attribute, Ident, ImplItem, Item, ItemImpl, Token, TraitItem, Type, UseTree};
use walkdir::WalkDir;

const SOURCE_FOLDERS: &[&str] = &["src", "exercises", "solutions", "tests", "benches"];

#[derive(Default)]
pub struct Names {
    /// Every function, free or not.
    pub functions: HashSet<String>,
    /// The types and traits that are declared here, not in some library.
    pub types: HashSet<String>,
    /// Module → the items in it. A chapter's stub, reference and tests share one module name.
    pub modules: HashMap<String, HashSet<String>>,
    /// Type or trait → its methods, constants, variants and fields.
    members: HashMap<String, HashSet<String>>,
    /// Type → the traits that it implements or derives.
    traits: HashMap<String, HashSet<String>>,
}

impl Names {
    pub fn read(root: &Path) -> Self {
        let mut names = Self::default();
        for (derived, method) in [("Clone", "clone"), ("Default", "default")] {
            names.members.entry(derived.into()).or_default().insert(method.into());
        }
        let files = SOURCE_FOLDERS.iter().flat_map(|folder| WalkDir::new(root.join(folder)).into_iter().flatten());
        for file in files.filter(|file| file.path().extension().is_some_and(|extension| extension == "rs")) {
            // A reader's file can be half written: what does not parse names nothing, and the reference names
            // the same things.
            let parsed = fs::read_to_string(file.path()).ok().and_then(|text| syn::parse_file(&text).ok());
            if let Some(parsed) = parsed {
                names.read_items(&module_name(file.path()), &parsed.items);
            }
        }
        names
    }

    /// The members of a type, with those of the traits that it implements.
    pub fn members_of<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a str> {
        let traits = self.traits.get(of).into_iter().flatten().map(String::as_str);
        std::iter::once(of).chain(traits).filter_map(|owner| self.members.get(owner)).flatten().map(String::as_str)
    }

    fn read_items(&mut self, module: &str, items: &[Item]) {
        self.modules.entry(module.to_string()).or_default();
        for item in items {
            let name = match item {
                Item::Fn(item) => {
                    self.functions.insert(item.sig.ident.to_string());
                    &item.sig.ident
                }
                Item::Struct(item) => {
                    let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
                    self.read_type(&item.ident, fields, &item.attrs)
                }
                Item::Enum(item) => {
                    let variants = item.variants.iter().map(|variant| &variant.ident);
                    self.read_type(&item.ident, variants, &item.attrs)
                }
                Item::Trait(item) => {
                    for member in &item.items {
                        match member {
                            TraitItem::Fn(member) => self.read_method(&item.ident, &member.sig.ident),
                            TraitItem::Const(member) => self.read_member(&item.ident, &member.ident),
                            TraitItem::Type(member) => self.read_member(&item.ident, &member.ident),
                            _ => {}
                        }
                    }
                    self.read_type(&item.ident, [].into_iter(), &[])
                }
                Item::Impl(item) => {
                    self.read_impl(item);
                    continue;
                }
                Item::Mod(item) => {
                    if let Some((_, items)) = &item.content {
                        self.read_items(&item.ident.to_string(), items);
                    }
                    &item.ident
                }
                Item::Const(item) => &item.ident,
                Item::Static(item) => &item.ident,
                Item::Type(item) => self.read_type(&item.ident, [].into_iter(), &[]),
                Item::Use(item) => {
                    add_imported(&item.tree, self.modules.entry(module.to_string()).or_default());
                    continue;
                }
                _ => continue,
            };
            self.modules.entry(module.to_string()).or_default().insert(name.to_string());
        }
    }

    /// A type with its fields or variants, and the traits that it derives.
    fn read_type<'i>(
        &mut self,
        name: &'i Ident,
        members: impl Iterator<Item = &'i Ident>,
        attributes: &[Attribute],
    ) -> &'i Ident {
        self.types.insert(name.to_string());
        members.for_each(|member| self.read_member(name, member));
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
            let derived = attribute.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
            let names = derived.into_iter().flatten().filter_map(|path| Some(path.segments.last()?.ident.to_string()));
            self.traits.entry(name.to_string()).or_default().extend(names);
        }
        name
    }

    fn read_impl(&mut self, item: &ItemImpl) {
        let Some(of) = type_name(&item.self_ty) else { return };
        if let Some(implemented) = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()) {
            self.traits.entry(of.to_string()).or_default().insert(implemented.ident.to_string());
        }
        for member in &item.items {
            match member {
                ImplItem::Fn(member) => self.read_method(of, &member.sig.ident),
                ImplItem::Const(member) => self.read_member(of, &member.ident),
                ImplItem::Type(member) => self.read_member(of, &member.ident),
                _ => {}
            }
        }
    }

    fn read_method(&mut self, of: &Ident, method: &Ident) {
        self.functions.insert(method.to_string());
        self.read_member(of, method);
    }

    fn read_member(&mut self, of: &Ident, member: &Ident) {
        self.members.entry(of.to_string()).or_default().insert(member.to_string());
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

fn type_name(ty: &Type) -> Option<&Ident> {
    match ty {
        Type::Path(path) => Some(&path.path.segments.last()?.ident),
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
