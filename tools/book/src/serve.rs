//! Shows the book: serves it on this computer, opens the browser and follows the edits.

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use page_by_page_course::served;
use percent_encoding::percent_decode_str;

use crate::check::Build;
use crate::http;
use crate::http::Answer;
use crate::own_copy::{self, COPY_FOLDER, OwnCopy};
use crate::publish::{BUILD_FOLDER, publish};
use crate::watch;

/// How many ports to try after the one asked for.
const MORE_PORTS: u16 = 20;

/// How often to look for edits.
const LOOK: Duration = Duration::from_millis(200);

/// Where an open page asks whether there is a newer book.
const EDITION: &str = "/.edition";

const HTML: &str = "text/html; charset=utf-8";

/// Goes into each page as it is served, never into the rendered book.
const RELOAD: &str = r#"<script>
(() => {
  let seen;
  const ask = async () => {
    try {
      const edition = await (await fetch("/.edition")).text();
      if (seen !== undefined && seen !== edition) location.reload();
      seen = edition;
    } catch { /* the server is gone or not back yet */ }
    setTimeout(ask, 1000);
  };
  ask();
})();
</script>
"#;

pub fn serve(root: &Path, is_mine: bool, port: u16, open: bool) -> Result<Infallible> {
    let mut own_copy = is_mine.then(|| OwnCopy::new(root));
    let site = root.join(if is_mine { COPY_FOLDER } else { BUILD_FOLDER });
    let mut watch = watch::start(root, is_mine);
    let mut was_good = false;
    rebuild(root, own_copy.as_mut(), &site, &mut was_good)?;

    let listener = listen(port)?;
    let address = listener.local_addr()?;
    // For `cargo learn`, as long as this runs.
    let _announced = served::announce(root, address.port()).context("the folder .page-by-page can't be written")?;
    let address = format!("http://{address}/");
    // A page left open from an earlier run must see that this is another one.
    let edition = Arc::new(AtomicU64::new(u64::from(std::process::id()) << 32));
    let (folders, current) = ((root.to_path_buf(), site.clone()), edition.clone());
    thread::spawn(move || -> Infallible {
        http::run(&listener, move |address| answer(&folders, address, current.load(Ordering::Relaxed)))
    });
    println!("Page by Page is at {address} (Ctrl-C stops)");
    if open && !served::open_browser(&address) {
        println!("No browser could be opened: open this address yourself");
    }

    loop {
        thread::sleep(LOOK);
        let changed = watch.changed();
        if changed.is_empty() {
            continue;
        }
        if let Some(own_copy) = &mut own_copy {
            own_copy.forget_after(&changed);
        }
        match rebuild(root, own_copy.as_mut(), &site, &mut was_good) {
            Ok(()) => {
                edition.fetch_add(1, Ordering::Relaxed);
                eprintln!("Rendered again: {}", changed.join(", "));
            }
            Err(error) => eprintln!("{error:#}\nThe pages stay as they were"),
        }
    }
}

/// Publishes the book as it is now. One with faults is refused once there was a good one, which is better to show.
fn rebuild(root: &Path, own_copy: Option<&mut OwnCopy>, site: &Path, was_good: &mut bool) -> Result<()> {
    let Build { folder, findings, .. } = own_copy::build(root, own_copy, None)?;
    if *was_good && !findings.is_empty() {
        bail!("{findings}");
    }
    if !findings.is_empty() {
        eprintln!("{findings}; here it is as it stands");
    }
    *was_good = findings.is_empty();
    publish(folder.path(), site)
}

/// A listener on `port` or, where that is taken, on the next free one.
fn listen(port: u16) -> Result<TcpListener> {
    let last = port.saturating_add(MORE_PORTS);
    let addresses: Vec<_> = (port..=last).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
    let listener = TcpListener::bind(&addresses[..])
        .with_context(|| format!("cannot serve on any port from {port} to {last}; choose another with --port N"))?;
    let bound = listener.local_addr()?.port();
    if port != 0 && bound != port {
        eprintln!("Port {port} is taken; using {bound}");
    }
    Ok(listener)
}

/// `edition`: the number that pages compare to know when to reload.
fn answer((root, site): &(PathBuf, PathBuf), address: &str, edition: u64) -> Answer {
    if address == EDITION {
        return Answer::text(200, edition.to_string());
    }
    let found = file_for(root, site, address).and_then(|file| Some((200, fs::read(&file).ok()?, content_type(&file))));
    let (status, body, content_type) = found.unwrap_or_else(|| {
        let page = fs::read(site.join("404.html")).unwrap_or_else(|_| b"no such page".to_vec());
        (404, page, HTML)
    });
    let body = if content_type == HTML { with_reload(body) } else { body };
    Answer { status, content_type, body }
}

/// The file of the book that `address` names, or the stub in `exercises/` that a page links to; if it names one.
fn file_for(root: &Path, site: &Path, address: &str) -> Option<PathBuf> {
    let path = address.split(['?', '#']).next()?.strip_prefix('/')?;
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let path = Path::new(&*path);
    // Nothing outside the book: no `..`, no second root, no drive letter.
    let stays_inside = path.components().all(|part| match part {
        Component::Normal(name) => !name.to_string_lossy().contains([':', '\\']),
        _ => false,
    });
    if !stays_inside {
        return None;
    }
    let (folder, path) = match path.strip_prefix("exercises") {
        Ok(stub) if stub.extension().is_some_and(|extension| extension == "rs") => (root.join("exercises"), stub),
        _ => (site.to_path_buf(), path),
    };
    let named = folder.join(path);
    let named = if named.is_dir() { named.join("index.html") } else { named };
    // Nor where a link in the folder leads out of it. A pipe or a device would never end.
    let file = named.canonicalize().ok()?;
    let is_inside = file.starts_with(folder.canonicalize().ok()?);
    (is_inside && file.is_file()).then_some(file)
}

fn content_type(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html") => HTML,
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("wasm") => "application/wasm",
        Some("woff2") => "font/woff2",
        Some("txt" | "md" | "rs" | "toml") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn with_reload(page: Vec<u8>) -> Vec<u8> {
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(end) = page.rfind("</body>") {
        page.insert_str(end, RELOAD);
    }
    page.into_bytes()
}
