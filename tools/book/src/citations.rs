//! What the book says about other engines and about papers stands in one list, each claim with its source. The list
//! must fit the pages: their words, their links to other engines, and the releases that they name.

use std::collections::BTreeMap;
use std::{fs, path::Path, sync::LazyLock};

use anyhow::{Context, Result};
use regex::Regex;
use serde::Deserialize;
use toml::Spanned;

use crate::finding::{Findings, Place};
use crate::page::Page;

const LIST: &str = "book/citations.toml";
static VERSION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\d+(?:\.\d+)+").expect("valid pattern"));

#[derive(Deserialize)]
struct List {
    /// The release that the book follows, and how links to the engine begin.
    engines: BTreeMap<String, (String, String)>,
    claim: BTreeMap<String, Vec<Claim>>,
}

/// The head of the list explains the fields, also those that are only for people.
#[derive(Deserialize)]
struct Claim {
    quote: Spanned<String>,
    source: String,
    #[serde(default)]
    release: String,
    /// If it isn't said: whether it has a release.
    moves: Option<bool>,
}

pub fn check(root: &Path, pages: &[&Page], findings: &mut Findings) -> Result<()> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("{LIST} cannot be read"))?;
    let List { engines, claim: claims } =
        toml::from_str(&text).with_context(|| format!("{LIST} is no list of claims"))?;
    let current: Vec<_> = engines.iter().map(|(name, (release, _))| format!("{name} {release}")).collect();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_on = |page: &Page, name: &str| page.file.file_stem().is_some_and(|stem| stem == name);

    for (name, claim) in claims.iter().flat_map(|(name, claims)| claims.iter().map(move |claim| (name, claim))) {
        let place = Place::new(LIST, text[..claim.quote.span().start].lines().count());
        let page = pages.iter().find(|page| is_on(page, name));
        if !page.is_some_and(|page| words(&page.expanded.text).contains(&words(claim.quote.as_ref()))) {
            let problem = format!("the page `{name}` does not say this");
            findings.add(place.clone(), problem, "quote its new words, or take the claim out");
        }
        if claim.moves.unwrap_or(!claim.release.is_empty()) && !current.contains(&claim.release) {
            let problem = format!("this is true of `{}`, and the book follows a different release", claim.release);
            findings.add(place, problem, "read the source again; if it is history, it does not move");
        }
    }
    for page in pages {
        let cited: Vec<_> =
            claims.iter().filter(|(name, _)| is_on(page, name)).flat_map(|(_, claims)| claims).collect();
        for (line, link) in &page.contents.links {
            let is_engine = engines.values().any(|(_, begin)| link.starts_with(begin));
            if is_engine && cited.iter().all(|claim| claim.source != *link) {
                let problem = format!("no claim has the source `{link}`");
                findings.add(page.place_of_line(*line), problem, format!("add what the page claims to {LIST}"));
            }
        }
        for version in
            VERSION.find_iter(&page.expanded.text).filter(|version| version.as_str().matches('.').count() == 2)
        {
            let release = format!(" {}", version.as_str());
            if cited.iter().all(|claim| !claim.release.ends_with(&release)) {
                let problem = format!("no claim of this page is of release{release}");
                findings.add(page.expanded.place(version.start()), problem, format!("see the releases in {LIST}"));
            }
        }
    }
    Ok(())
}
