//! The forms of names.

fn is_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Whether `text` is an RFC 1123 label: at most 63 of `a-z0-9-`, with a letter or digit at both ends.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let b = text.as_bytes();
    let (Some(first), Some(last)) = (b.first(), b.last()) else {
        return false;
    };
    b.len() <= 63 && is_alnum(*first) && is_alnum(*last) && b.iter().all(|c| is_alnum(*c) || *c == b'-')
}

/// Whether `text` is an RFC 1123 subdomain: at most 253 bytes of labels joined by dots.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && !text.is_empty()
        && text.split('.').all(|part| {
            let b = part.as_bytes();
            // Kubernetes bounds the whole name only, not each part.
            b.first().is_some_and(|c| is_alnum(*c))
                && b.last().is_some_and(|c| is_alnum(*c))
                && b.iter().all(|c| is_alnum(*c) || *c == b'-')
        })
}

fn is_qualified_part(text: &str) -> bool {
    let b = text.as_bytes();
    b.len() <= 63
        && b.first().is_some_and(u8::is_ascii_alphanumeric)
        && b.last().is_some_and(u8::is_ascii_alphanumeric)
        && b.iter()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// Whether `text` may be a label's value: empty, or at most 63 of `A-Za-z0-9._-` with a letter or digit at both ends.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_part(text)
}

/// Whether `text` is a qualified name: `name`, or `prefix/name` with a DNS subdomain as the prefix.
#[must_use]
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        None => is_qualified_part(text),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified_part(name),
    }
}

/// Whether `text` may name an environment variable: at most 255 of `A-Za-z0-9_`, no digit first.
#[must_use]
pub fn is_env_name(text: &str) -> bool {
    let b = text.as_bytes();
    b.len() <= 255
        && b.first().is_some_and(|c| !c.is_ascii_digit())
        && b.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kubernetes() {
        for good in ["a", "a-b", "a.b-c.d", "0", &"a".repeat(253)] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in [
            "",
            "A",
            "a_b",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a b",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)) && !is_dns_label("a.b"));
        for good in ["", "a", "A.b_c-9", "1"] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-a", "a-", "a/b", "a b", &"a".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
        for good in ["app", "example.com/app", "a_B.c"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/a", "a/", "Ex.com/a", "a/b/c", "a b"] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(is_env_name("A_1") && !is_env_name("1A") && !is_env_name("A-B") && !is_env_name(""));
    }
}
