//! The names that the pages can use: every type, function, method and module of the engine, the stubs, the reference
//! and the tests, read from the Rust sources with `syn`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use syn::{Ident, ImplItem, Item, ItemImpl, TraitItem, Type};
use walkdir::WalkDir;

const SOURCE_FOLDERS: &[&str] = &["src", "exercises", "solutions", "tests"];

#[derive(Default)]
pub struct Names {
    /// Type or trait → its methods, constants, variants and fields; module → its items. A chapter's stub, reference and
    /// tests share one module name.
    members: HashMap<String, HashSet<String>>,
    /// Type → the traits that it implements.
    traits: HashMap<String, HashSet<String>>,
}

impl Names {
    pub fn read(root: &Path) -> Self {
        let mut names = Self::default();
        let files = SOURCE_FOLDERS.iter().flat_map(|folder| WalkDir::new(root.join(folder)).into_iter().flatten());
        for file in files.filter(|file| file.path().extension().is_some_and(|extension| extension == "rs")) {
            // A reader's file can be half written. The reference has the same names.
            let parsed = fs::read_to_string(file.path()).ok().and_then(|text| syn::parse_file(&text).ok());
            if let Some(parsed) = parsed {
                names.read_items(&module_name(file.path()), &parsed.items);
            }
        }
        names
    }

    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// What belongs to a type, with what it has of its traits, or to a module.
    pub fn members_of<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a str> {
        let traits = self.traits.get(owner).into_iter().flatten().map(String::as_str);
        std::iter::once(owner).chain(traits).filter_map(|owner| self.members.get(owner)).flatten().map(String::as_str)
    }

    /// The members of all types and modules.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.members.values().flatten().map(String::as_str).chain(self.owners())
    }

    fn add<'i>(&mut self, owner: &str, members: impl IntoIterator<Item = &'i Ident>) {
        self.members.entry(owner.to_string()).or_default().extend(members.into_iter().map(Ident::to_string));
    }

    fn read_items(&mut self, module: &str, items: &[Item]) {
        self.add(module, []);
        for item in items {
            // With its members, if it can have some.
            let (name, members): (&Ident, Option<Vec<&Ident>>) = match item {
                Item::Fn(item) => (&item.sig.ident, None),
                Item::Const(item) => (&item.ident, None),
                Item::Static(item) => (&item.ident, None),
                Item::Type(item) => (&item.ident, Some(Vec::new())),
                Item::Struct(item) => (&item.ident, Some(item.fields.iter().flat_map(|field| &field.ident).collect())),
                Item::Enum(item) => (&item.ident, Some(item.variants.iter().map(|variant| &variant.ident).collect())),
                Item::Trait(item) => {
                    let members = item.items.iter().filter_map(|member| match member {
                        TraitItem::Fn(member) => Some(&member.sig.ident),
                        TraitItem::Const(member) => Some(&member.ident),
                        TraitItem::Type(member) => Some(&member.ident),
                        _ => None,
                    });
                    (&item.ident, Some(members.collect()))
                }
                Item::Mod(item) => {
                    if let Some((_, items)) = &item.content {
                        self.read_items(&item.ident.to_string(), items);
                    }
                    (&item.ident, None)
                }
                Item::Impl(item) => {
                    self.read_impl(item);
                    continue;
                }
                _ => continue,
            };
            self.add(module, [name]);
            if let Some(members) = members {
                self.add(&name.to_string(), members);
            }
        }
    }

    fn read_impl(&mut self, item: &ItemImpl) {
        let Type::Path(of) = &*item.self_ty else { return };
        let Some(owner) = of.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
        if let Some(implemented) = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()) {
            self.traits.entry(owner.clone()).or_default().insert(implemented.ident.to_string());
        }
        let members = item.items.iter().filter_map(|member| match member {
            ImplItem::Fn(member) => Some(&member.sig.ident),
            ImplItem::Const(member) => Some(&member.ident),
            ImplItem::Type(member) => Some(&member.ident),
            _ => None,
        });
        self.add(&owner, members);
    }
}

/// `src/model/mod.rs` is module `model`; every other file is named after itself.
fn module_name(path: &Path) -> String {
    let named = if path.ends_with("mod.rs") { path.parent() } else { Some(path) };
    let stem = named.and_then(Path::file_stem).unwrap_or_default();
    stem.to_string_lossy().into_owned()
}
