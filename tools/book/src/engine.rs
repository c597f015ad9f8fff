//! The engine that runs in pages of the book, in a folder beside them: compiled for browsers, with its worker, the view
//! of the pool and the bundled models.
//!
//! It takes a compiler for WebAssembly. Where there is none, the pages run the engine of `assets/engine.wasm`, the
//! reference as `cargo book engine` has compiled it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use page_by_page_course::cargo::{self, Environment};
use page_by_page_course::chapters::depends_on;
use page_by_page_course::source::file_names;
use serde_json::json;

/// The reference, from the repository root.
pub const REFERENCE: &str = "assets/engine.wasm";

const CODE: &str = "crates/wasm/src";
const FOLDER: &str = "engine";
const MODULE: &str = "engine.wasm";
const TARGET: &str = "wasm32-unknown-unknown";
/// Where cargo puts what it compiles.
const BUILT: &str = "target/wasm/wasm32-unknown-unknown/wasm";
/// Where each file is in the repository, and its name beside the pages.
const FILES: [(&str, &str); 11] = [
    ("crates/wasm/engine.js", "engine.js"),
    ("crates/wasm/worker.js", "worker.js"),
    ("book/words.js", "words.js"),
    ("crates/serve/src/live_page/pool.js", "pool.js"),
    ("crates/serve/src/live_page/pool.css", "pool.css"),
    ("assets/storyteller/config.json", "storyteller/config.json"),
    ("assets/storyteller/generation_config.json", "storyteller/generation_config.json"),
    ("assets/storyteller/tokenizer.json", "storyteller/tokenizer.json"),
    ("assets/storyteller/model.safetensors", "storyteller/model.safetensors"),
    ("assets/storyteller-draft/config.json", "storyteller-draft/config.json"),
    ("assets/storyteller-draft/model.safetensors", "storyteller-draft/model.safetensors"),
];

/// The longest that a build can take, on a slow computer and from nothing.
pub const BUILD: Duration = Duration::from_secs(1800);

/// The numbers of the chapters that it runs.
pub fn runs(root: &Path) -> Result<BTreeSet<usize>> {
    let mut runs = BTreeSet::new();
    for name in file_names(root, CODE, ".rs") {
        runs.extend(depends_on(root, &format!("{CODE}/{name}.rs")).map_err(Error::msg)?);
    }
    Ok(runs)
}

pub struct Engine {
    pub module: PathBuf,
    /// Whose chapters it runs and why, for the reader; empty for the reference where the reader has no chapter in it.
    pub says: String,
}

impl Engine {
    pub fn reference(root: &Path, says: impl Into<String>) -> Self {
        Self { module: root.join(REFERENCE), says: says.into() }
    }
}

/// Puts the engine beside the pages in `folder`.
pub fn add(root: &Path, folder: &Path, engine: &Engine) -> Result<()> {
    let files = FILES.map(|(from, to)| (root.join(from), to)).into_iter().chain([(engine.module.clone(), MODULE)]);
    let mut sizes = BTreeMap::new();
    for (from, to) in files {
        let target = folder.join(FOLDER).join(to);
        fs::create_dir_all(target.parent().unwrap_or(folder))?;
        let size = fs::copy(&from, target).with_context(|| format!("{} cannot be copied", from.display()))?;
        sizes.insert(to, size);
    }
    let about = json!({ "says": engine.says, "sizes": sizes });
    fs::write(folder.join(FOLDER).join("about.json"), about.to_string()).context("writing about.json")
}

/// What compiles sooner, after each edit of a chapter; the module is larger and slower.
pub const SOON: [(&str, &str); 2] = [("CARGO_PROFILE_PAGE_LTO", "off"), ("CARGO_PROFILE_PAGE_CODEGEN_UNITS", "16")];

/// A compiler that can make the module.
pub enum Compiler {
    /// rustup's, with the target installed.
    Installed,
    /// Debian's `rustc-web`, with the standard library of `rust-web-src` as source, and the linker of `lld-19`.
    Debian,
}

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LINKER: &str = "/usr/bin/wasm-ld-19";
const DEBIAN_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/std";

impl Compiler {
    /// What to do where there is none.
    pub const INSTALL: &str = "rustup target add wasm32-unknown-unknown";

    pub fn find() -> Option<Self> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let asked = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
        let library = asked.map(|answer| PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim().to_string()));
        if library.is_ok_and(|library| library.is_dir()) {
            return Some(Compiler::Installed);
        }
        let has_debian = [DEBIAN_RUSTC, DEBIAN_LINKER, DEBIAN_SOURCE].iter().all(|file| Path::new(file).exists());
        has_debian.then_some(Compiler::Debian)
    }

    /// Compiles the engine with the reader's started chapters and the reference's others. Returns it, or cargo's words.
    pub fn compile(&self, root: &Path, variables: &[(&str, &str)]) -> Result<Result<PathBuf, String>> {
        let mut command = self.cargo(root, &["build", "--package", "page-by-page-wasm"]);
        command.envs(variables.iter().copied());
        let ended = cargo::run(command, BUILD)?;
        if ended.status.is_some_and(|status| status.success()) {
            return Ok(Ok(root.join(BUILT).join("page_by_page_wasm.wasm")));
        }
        Ok(Err(ended.output))
    }

    /// Runs the tests of the kernels and of the engine's bits under Node.
    pub fn test(&self, root: &Path) -> Result<()> {
        let packages = ["test", "--package", "page-by-page-kernels", "--package", "page-by-page-wasm"];
        let mut command = self.cargo(root, &packages);
        let runner = format!("node {}", root.join("crates/wasm/run.mjs").display());
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", runner);
        let ended = cargo::run(command, BUILD)?;
        let passes = ended.status.is_some_and(|status| status.success());
        ensure!(passes, "{}\nThe same tests say more when they run on this computer", ended.output.trim_end());
        ended.output.lines().filter(|line| line.contains("Running")).for_each(|line| println!("{line}: passed"));
        Ok(())
    }

    fn cargo(&self, root: &Path, arguments: &[&str]) -> Command {
        let mut command = cargo::cargo(root, Environment::Shell);
        command.args(arguments).args(["--features", "page-by-page-wasm/solution", "--profile", "wasm"]);
        command.args(["--target", TARGET, "--target-dir", "target/wasm"]).env("CARGO_TERM_COLOR", "never");
        // Every machine makes the same module.
        let home =
            std::env::var_os("CARGO_HOME").map(PathBuf::from).or(std::env::home_dir().map(|home| home.join(".cargo")));
        if let Some(home) = home {
            let flag = format!("--remap-path-prefix={}=cargo", home.display());
            command.args(["--config", &format!("target.{TARGET}.rustflags=['{flag}']")]);
        }
        if let Compiler::Debian = self {
            // So that cargo and rustc accept what is not stable yet.
            command.arg("-Zbuild-std=std,panic_abort,test").env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
        }
        command
    }
}

/// Compiles the engine into this file, and runs its tests if asked to.
pub fn make(root: &Path, to: &Path, is_tested: bool) -> Result<()> {
    let Some(compiler) = Compiler::find() else {
        bail!("no compiler for {TARGET} is installed; run `{}`", Compiler::INSTALL);
    };
    if is_tested {
        compiler.test(root)?;
    }
    let module = compiler.compile(root, &[])?.map_err(|output| anyhow!("the engine does not compile:\n{output}"))?;
    let size = fs::copy(&module, to).with_context(|| format!("writing {}", to.display()))?;
    println!("The engine is in {}, {size} bytes", to.display());
    Ok(())
}
