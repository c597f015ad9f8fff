//! Inline code makes claims: that a file exists, that a type has a method, that there is such a function. A reader who
//! follows a task looks for exactly these names, so each must be true.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use walkdir::WalkDir;

use crate::finding::{Findings, did_you_mean};
use crate::names::Names;
use crate::page::Page;

static FILE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^((?:src|exercises|solutions|tests|crates|tools|lab|assets|book)/[^\s:]*)(?::\d+)?$")
        .expect("valid pattern")
});
static FUNCTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^([a-z_][a-z0-9_]*)\((?:…|\.\.\.)?\)$").expect("valid pattern"));
static MEMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^((?:[A-Za-z_]\w*::)*)([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\(.*\))?$").expect("valid pattern")
});

/// Crates whose items pages can name by a path, and types of theirs that need no link.
const FOREIGN: &str = "
    alloc anyhow clap core half insta memmap2 proptest rand_chacha rayon safetensors serde serde_json std thiserror tokenizers
    Arc Box BTreeMap BTreeSet BinaryHeap Cell Clone Cow Default Drop Duration File HashMap HashSet Instant Iterator Mmap Mutex
    Option Ordering Path PathBuf Range Rc RefCell Result SafeTensors Self String Vec VecDeque Weak
    bf16 bool char f16 f32 f64 i32 i64 i8 slice str u16 u32 u64 u8 usize";
/// Well-known functions of the standard library and of C, and those that are derived.
const FOREIGN_FUNCTIONS: &str = "clone collect default drop expect free iter malloc mmap pop push unwrap";
/// Path segments that stand for the whole crate.
const CRATE_ROOTS: &str = "chapters crate page_by_page self super";

const LINK_FOREIGN: &str =
    "write the name as the code has it; a name from another project goes into a link to that project";

pub fn check(root: &Path, page: &Page, names: &Names, findings: &mut Findings) {
    for (line, span) in &page.contents.code_spans {
        let claim = if let Some(file) = FILE.captures(span) {
            check_file(root, &file[1])
        } else if let Some(function) = FUNCTION.captures(span) {
            is_known("no function", &function[1], names.all())
        } else if let Some(member) = MEMBER.captures(span) {
            check_member(&member[1], &member[2], &member[3], names)
        } else {
            continue;
        };
        if let Err((problem, next_step)) = claim {
            findings.add(page.place_of_line(*line), problem, next_step);
        }
    }
}

/// Nothing, or what is wrong and what to do.
type Claim = Result<(), (String, String)>;

fn check_file(root: &Path, path: &str) -> Claim {
    // The rendered book is made by the command that runs this check.
    if path.starts_with("book/html") || path.starts_with("book/mine") || matches_a_file(root, path) {
        return Ok(());
    }
    let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    let siblings: Vec<String> = (fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter_map(|sibling| Some(sibling.strip_prefix(root).ok()?.to_string_lossy().into_owned()))
        .collect();
    let otherwise = "paths are counted from the repository root; `*` and `NN` (two digits) stand for several files";
    Err((format!("no file `{path}`"), did_you_mean(path, siblings.iter().map(String::as_str), otherwise)))
}

/// Whether `path` exists, or some file does that it stands for: `tests/snapshots/*.snap`, `exercises/chNN_*.rs`.
fn matches_a_file(root: &Path, path: &str) -> bool {
    if !path.contains('*') && !path.contains("NN") {
        return root.join(path).exists();
    }
    let pattern = regex::escape(path).replace(r"\*", "[^/]*").replace("NN", "[0-9][0-9]");
    let pattern = Regex::new(&format!("^{pattern}$")).expect("escaped");
    let folder = path.split('/').next().unwrap_or_default();
    WalkDir::new(root.join(folder)).into_iter().flatten().any(|entry| {
        let file = entry.path().strip_prefix(root).unwrap_or(entry.path());
        pattern.is_match(&file.to_string_lossy().replace('\\', "/"))
    })
}

fn is_one_of(name: &str, list: &str) -> bool {
    list.split_whitespace().any(|listed| listed == name)
}

/// `leading::owner::name`: a method of a type, or an item of a module.
fn check_member(leading: &str, owner: &str, name: &str, names: &Names) -> Claim {
    let first = leading.split("::").next().filter(|first| !first.is_empty());
    if is_one_of(first.unwrap_or(owner), FOREIGN) || is_one_of(owner, FOREIGN) {
        return Ok(());
    }
    if is_one_of(owner, CRATE_ROOTS) {
        return is_known("nothing in the crate is named", name, names.all());
    }
    is_known("no type or module", owner, names.owners())?;
    is_known(&format!("`{owner}` has no"), name, names.members_of(owner))
}

fn is_known<'n>(problem: &str, name: &str, known: impl Iterator<Item = &'n str>) -> Claim {
    let known: Vec<&str> = known.collect();
    if known.contains(&name) || is_one_of(name, FOREIGN_FUNCTIONS) {
        return Ok(());
    }
    Err((format!("{problem} `{name}`"), did_you_mean(name, known, LINK_FOREIGN)))
}
