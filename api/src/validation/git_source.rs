//! Rules of GitSource.

use std::time::Duration as StdDuration;

use super::metadata::object_name;
use super::text::{DAY, MINUTE, duration, git_ref, range, relative_path};
use super::{Checker, Rules, conditions};
use crate::GitSource;
use crate::meta::field_path::Path;

const MAX_URL: usize = 2048;
const SHORTEST_INTERVAL: StdDuration = StdDuration::from_secs(10);
const URL_RULE: &str =
    "must be https://HOST/PATH, ssh://USER@HOST/PATH or file:///PATH, without a password, a query or spaces";
/// Most objects and words that a status lists.
pub(super) const MAX_LISTED: usize = 1000;

/// Whether `text` is an address that git may be given.
fn is_url(text: &str) -> bool {
    if text
        .chars()
        .any(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\' | '"' | '\'' | '`'))
    {
        return false;
    }
    if let Some(path) = text.strip_prefix("file://") {
        return path.len() > 1
            && path
                .strip_prefix('/')
                .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    }
    let (rest, user) = match (text.strip_prefix("https://"), text.strip_prefix("ssh://")) {
        (Some(rest), None) => (rest, false),
        (None, Some(rest)) => (rest, true),
        _ => return false,
    };
    let Some((authority, path)) = rest.split_once('/') else {
        return false;
    };
    let host = match authority.rsplit_once('@') {
        // A name only: a password would be seen by everybody.
        Some((name, host)) if user => {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
                return false;
            }
            host
        }
        Some(_) => return false,
        None => authority,
    };
    let (host, port) = match host.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((address, rest)) if address.parse::<std::net::Ipv6Addr>().is_ok() => (address, rest),
            _ => return false,
        },
        None => {
            let end = host.find(':').unwrap_or(host.len());
            let (name, port) = host.split_at(end);
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            if !name.chars().all(plain) || name.starts_with('-') {
                return false;
            }
            (name, port)
        }
    };
    let port_is_good = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| {
            port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0)
        });
    !host.is_empty() && port_is_good && !path.is_empty()
}

impl Rules for GitSource {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let spec = &self.spec;
        let url = path.key("url");
        if spec.url.is_empty() {
            cx.required(&url, "");
        } else if spec.url.len() > MAX_URL {
            cx.too_long(&url, MAX_URL);
        } else if !is_url(&spec.url) {
            cx.invalid(&url, &spec.url, URL_RULE);
        }
        if !spec.ref_.is_empty() {
            git_ref(&path.key("ref"), &spec.ref_, cx);
        }
        if !spec.path.is_empty() {
            relative_path(&path.key("path"), &spec.path, cx);
        }
        let interval = path.key("interval");
        duration(&interval, spec.interval.as_ref(), DAY, cx);
        if let Some(value) = &spec.interval
            && !value.get().is_zero()
            && value.get() < SHORTEST_INTERVAL
        {
            cx.invalid(&interval, &value.to_string(), "must not be shorter than 10s");
        }
        duration(&path.key("timeout"), spec.timeout.as_ref(), 30 * MINUTE, cx);
        if !spec.service_account_name.is_empty() {
            object_name(&path.key("serviceAccountName"), &spec.service_account_name, cx);
        }
        if let Some(reference) = &spec.credentials_ref {
            let path = path.key("credentialsRef");
            object_name(&path.key("name"), &reference.name, cx);
            if spec.url.starts_with("file://") {
                cx.forbidden(&path, "a file:// repository needs no credentials");
            }
        }
        if let Some(prune) = &spec.prune {
            let percent = prune.max_lost_percent.map(i64::from);
            range(&path.key("prune").key("maxLostPercent"), percent, 0, 100, cx);
        }
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
        let root = Path::root();
        let path = root.key("status");
        cx.too_many(&path.key("objects"), self.status.objects.len(), MAX_LISTED);
        cx.too_many(&path.key("kinds"), self.status.kinds.len(), MAX_LISTED);
        cx.too_many(&path.key("namespaces"), self.status.namespaces.len(), MAX_LISTED);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_https_ssh_or_files() {
        for good in [
            "https://github.com/a/b.git",
            "https://git.example:8443/x",
            "ssh://git@github.com/a/b.git",
            "ssh://git.example:22/x",
            "https://[2001:db8::1]/x",
            "file:///srv/manifests/web.git",
        ] {
            assert!(is_url(good), "{good}");
        }
        for bad in [
            "http://github.com/a",
            "git://github.com/a",
            "ext::sh -c id",
            "git@github.com:a/b.git",
            "https://user:pass@github.com/a",
            "https://user@github.com/a",
            "https:///x",
            "https://github.com",
            "https://github.com/",
            "https://host:0/x",
            "https://host:99999/x",
            "https://host:8080:1/x",
            "https://ho st/x",
            "https://-oProxyCommand=x/y",
            "ssh://-oProxyCommand=x@host/y",
            "ssh://-host/y",
            "https://host/x?y",
            "file://host/x",
            "file:///",
            "file:///srv/../etc",
            "file:///srv//x",
            "/srv/x",
            "",
        ] {
            assert!(!is_url(bad), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_breaks_the_check(text in "(https|ssh|file)?(://)?[-a-z0-9@:\\[\\]./%]{0,40}") {
            if is_url(&text) {
                prop_assert!(!text.contains("://-") && !text.contains(' '));
            }
        }
    }
}
