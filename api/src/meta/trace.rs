//! The annotation that carries a trace from an object to what is done about it.

use super::{IdSource, ObjectMeta};

/// Annotation of an object: the W3C `traceparent` of the request that made it, or of the object that it was made for.
pub const TRACEPARENT: &str = "panda.dev/traceparent";

impl ObjectMeta {
    /// The trace that the object belongs to. Annotations are anybody's to write: one that is malformed is none.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        let text = self.annotations.get(TRACEPARENT)?;
        is_traceparent(text).then_some(text)
    }
}

/// The `traceparent` of a new, sampled trace.
#[must_use]
pub fn new_traceparent(ids: &dyn IdSource) -> String {
    let trace = ids.uuid().as_simple().to_string();
    // The half with the version in it: never all zeros, which would be no id.
    let span = ids.uuid().as_simple().to_string();
    format!("00-{trace}-{}-01", &span[..16])
}

/// Whether a text is `version-trace-parent-flags` in hexadecimal, as W3C Trace Context writes it.
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let lengths = [2, 32, 16, 2];
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length
                && part
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        })
        && parts[1].bytes().any(|byte| byte != b'0')
        && parts[2].bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::RandomIds;

    #[test]
    fn only_well_formed_traces_are_continued() {
        assert!(is_traceparent(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        ));
        for bad in [
            "",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF9-x-01",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
            let mut meta = ObjectMeta::named("a");
            meta.annotations.insert(TRACEPARENT.into(), bad.into());
            assert_eq!(meta.traceparent(), None, "{bad}");
        }
    }

    #[test]
    fn new_traces_are_well_formed_and_differ() {
        let (one, other) = (new_traceparent(&RandomIds), new_traceparent(&RandomIds));
        assert!(is_traceparent(&one) && one.ends_with("-01"), "{one}");
        assert_ne!(one[3..35], other[3..35]);
        assert_ne!(one[36..52], other[36..52]);
    }
}
