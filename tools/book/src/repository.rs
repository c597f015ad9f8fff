//! The address of the repository, for links from the published book. It comes from a flag or from the git remote, so
//! that the sources name none.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

/// A public address as it was typed.
pub fn given(text: &str) -> Result<String, String> {
    public(text).ok_or_else(|| "write a public address, such as https://github.com/owner/name".into())
}

/// The address of the remote `origin`, if it is public: a folder on this computer or a host without a name is not.
pub fn of_remote(root: &Path) -> Option<String> {
    let output = Command::new("git").args(["remote", "get-url", "origin"]).current_dir(root).output().ok()?;
    public(String::from_utf8(output.stdout).ok()?.trim())
}

static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    let host = r"((?:[A-Za-z0-9-]+\.)+[A-Za-z][A-Za-z0-9-]*)";
    let path = r"((?:[\w.~-]+/)+[\w.~-]+?)(?:\.git)?/*";
    // A name or password before the host is left out. The second form is scp's.
    Regex::new(&format!("^(?:(?:https|ssh)://(?:[^@/]*@)?{host}(?::[0-9]+)?/|[^@/]*@{host}:){path}$"))
        .expect("valid pattern")
});

/// `git@github.com:owner/name.git` → `https://github.com/owner/name`
fn public(remote: &str) -> Option<String> {
    let parts = ADDRESS.captures(remote)?;
    let host = parts.get(1).or(parts.get(2))?.as_str();
    Some(format!("https://{host}/{}", &parts[3]))
}

/// What mdBook is told: the repository, and where a page is edited if the host is known.
pub fn links(repository: &str) -> Vec<(&'static str, String)> {
    let mut links = vec![("git-repository-url", repository.to_string())];
    let edit = match repository.trim_start_matches("https://").split('/').next() {
        Some("github.com") => "edit/main",
        Some(host) if host.starts_with("gitlab.") => "-/edit/main",
        Some("codeberg.org") => "_edit/main",
        _ => return links,
    };
    links.push(("edit-url-template", format!("{repository}/{edit}/book/{{path}}")));
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_public_address_is_taken() {
        for (remote, address) in [
            ("https://github.com/owner/name", Some("https://github.com/owner/name")),
            ("https://github.com/owner/name.git/", Some("https://github.com/owner/name")),
            ("https://user:secret@gitlab.com/group/sub/name.git", Some("https://gitlab.com/group/sub/name")),
            ("git@github.com:owner/name.git", Some("https://github.com/owner/name")),
            ("ssh://git@codeberg.org:22/owner/name", Some("https://codeberg.org/owner/name")),
            ("/home/me/name", None),
            ("../name", None),
            ("C:/me/name", None),
            ("file:///home/me/name", None),
            ("http://192.168.0.7/owner/name", None),
            ("https://localhost/owner/name", None),
            ("https://github.com/own\"er/name", None),
            ("", None),
        ] {
            assert_eq!(public(remote).as_deref(), address, "{remote}");
        }
    }
}
