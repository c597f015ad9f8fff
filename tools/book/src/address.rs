//! The address at which a published book will be read.

use std::fmt;
use std::str::FromStr;

/// `https://host/path/`, always with the slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    whole: String,
    /// Where the path begins in `whole`.
    path: usize,
}

impl Address {
    /// The path on its server: `/` or `/page-by-page/`.
    pub fn path(&self) -> &str {
        &self.whole[self.path..]
    }

    pub fn of(&self, file: &str) -> String {
        format!("{}{file}", self.whole)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |problem: &str| Err(format!("{problem}; write the folder's address, such as https://example.org/book/"));
        let scheme = ["https://", "http://"].into_iter().find(|scheme| text.starts_with(scheme));
        let Some(scheme) = scheme else {
            return wrong("it begins with neither https:// nor http://");
        };
        if text.contains(['?', '#']) {
            return wrong("an address with ? or # names no folder");
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'<>\\@{}".contains(c)) {
            return wrong("there is a character in it that does not belong into an address");
        }
        let (host, path) = text[scheme.len()..].split_once('/').unwrap_or((&text[scheme.len()..], ""));
        if host.is_empty() || host.starts_with(['.', ':', '-']) {
            return wrong("it names no host");
        }
        if path.split('/').any(|part| part == "." || part == "..") || path.starts_with('/') || path.contains("//") {
            return wrong("its path takes turns");
        }
        if path.ends_with(".html") {
            return wrong("it names a page");
        }
        let slash = if path.is_empty() || path.ends_with('/') { "" } else { "/" };
        Ok(Self { whole: format!("{scheme}{host}/{path}{slash}"), path: scheme.len() + host.len() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_path_with_a_slash_at_its_end() {
        for (text, whole, path) in [
            ("https://example.org", "https://example.org/", "/"),
            ("https://example.org/", "https://example.org/", "/"),
            ("https://example.org/page-by-page", "https://example.org/page-by-page/", "/page-by-page/"),
            ("http://localhost:8000/a/b/", "http://localhost:8000/a/b/", "/a/b/"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.path()), (whole, path));
            assert_eq!(address.of("x.html"), format!("{whole}x.html"));
        }
        let wrong = "example.org /book/ ftp://example.org/ https:// https:///book/ https://example.org/?a https://example.org/#a \
                     https://example.org/\"/ https://me@example.org/ https://example.org/../a/ https://example.org//a/ \
                     https://example.org/index.html";
        for wrong in wrong.split(' ').chain(["", "https://example.org/a b/"]) {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
