//! The served book: where it is, and the browser that opens it.
//!
//! `cargo book` keeps a file locked for as long as it serves the book of its clone, and names the port in another one,
//! because Windows lets nobody read a file that is locked. `cargo learn` opens its pages there.

use std::fs::{self, File};
use std::io;
use std::path::Path;

const LOCK: &str = ".page-by-page/book.lock";
const PORT: &str = ".page-by-page/book.port";

/// Says that this clone's book is served on this port until the file is closed. `None` if an earlier server says so.
pub fn announce(root: &Path, port: u16) -> io::Result<Option<File>> {
    fs::create_dir_all(root.join(LOCK).with_file_name(""))?;
    let file = File::create(root.join(LOCK))?;
    if file.try_lock().is_err() {
        return Ok(None);
    }
    fs::write(root.join(PORT), port.to_string())?;
    Ok(Some(file))
}

/// The port on which this clone's book is served now.
pub fn port(root: &Path) -> Option<u16> {
    let is_locked = File::open(root.join(LOCK)).ok()?.try_lock_shared().is_err();
    fs::read_to_string(root.join(PORT)).ok().filter(|_| is_locked)?.parse().ok()
}

/// Opens an address in the browser; false where there is no screen for one.
pub fn open_browser(address: &str) -> bool {
    let has = |variable| std::env::var_os(variable).is_some();
    let may_have_screen =
        cfg!(not(target_os = "linux")) || has("DISPLAY") || has("WAYLAND_DISPLAY") || has("WSL_DISTRO_NAME");
    may_have_screen && open::that_detached(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_server_counts_until_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let port = || port(root.path());
        assert_eq!(port(), None);
        let first = announce(root.path(), 3001).unwrap().unwrap();
        assert!(announce(root.path(), 3002).unwrap().is_none());
        assert_eq!(port(), Some(3001));
        drop(first);
        assert_eq!(port(), None);
    }
}
