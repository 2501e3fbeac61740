//! Sets of objects that are applied together, so that what is left out of the next version can be removed: the names and
//! the identity of KEP-3659 ("ApplySet"), and the guard in front of every removal.
//!
//! A set has a parent object, which carries [`ID`], [`TOOLING`], [`KINDS`] and [`NAMESPACES`]; each member carries
//! [`PART_OF`] with the parent's id.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Label of a parent: the id of its set.
pub const ID: &str = "applyset.kubernetes.io/id";
/// Label of a member: the id of the set that it belongs to.
pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// Annotation of a parent: who manages the set, as `name/version`.
pub const TOOLING: &str = "applyset.kubernetes.io/tooling";
/// Annotation of a parent: the kinds of its members, as `Kind.group`, sorted, with commas.
pub const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// Annotation of a parent: namespaces of its members beside its own, sorted, with commas.
pub const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

/// The id of the set with this parent. `namespace` and `group` are empty where there is none.
#[must_use]
pub fn id(name: &str, namespace: &str, kind: &str, group: &str) -> String {
    let hash = Sha256::digest(format!("{name}.{namespace}.{kind}.{group}"));
    format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(hash))
}

/// A kind as [`KINDS`] writes it: `Task.panda.dev`, or `Secret` for the core group.
#[must_use]
pub fn group_kind(kind: &str, group: &str) -> String {
    if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    }
}

/// The words of [`KINDS`] or [`NAMESPACES`].
#[must_use]
pub fn words(annotation: &str) -> BTreeSet<String> {
    let words = annotation.split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Why nothing is removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The new version holds nothing at all: more likely a mistake than a wish.
    #[error("the new version is empty: {before} objects would be lost")]
    Empty {
        /// Objects in the set so far.
        before: usize,
    },
    /// More would be lost than may be.
    #[error("{lost} of {before} objects would be lost, more than {limit} %")]
    TooMany {
        /// Objects in the set so far.
        before: usize,
        /// How many of them are not in the new version.
        lost: usize,
        /// Percent of the set that may be lost at one time.
        limit: u8,
    },
}

/// Whether `lost` of the `before` objects of a set may be removed, when the new version holds `wanted` objects and at most
/// `limit` percent may be lost at one time. Losing nothing is always allowed.
///
/// # Errors
/// [`Refused`].
pub fn guard(before: usize, lost: usize, wanted: usize, limit: u8) -> Result<(), Refused> {
    if lost == 0 {
        return Ok(());
    }
    if wanted == 0 {
        return Err(Refused::Empty { before });
    }
    let share = u128::try_from(lost).unwrap_or(u128::MAX).saturating_mul(100);
    let allowed = u128::try_from(before)
        .unwrap_or(0)
        .saturating_mul(u128::from(limit));
    if share > allowed {
        return Err(Refused::TooMany { before, lost, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_hash_of_the_parent_and_fits_into_a_label() {
        let hash = Sha256::digest("web.default.Secret.");
        assert_eq!(
            id("web", "default", "Secret", ""),
            format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(hash))
        );
        assert!(id(&"x".repeat(253), "y", "Secret", "").len() <= 63);
        assert_ne!(id("a", "b", "Secret", ""), id("a", "b", "ConfigMap", ""));
    }

    #[test]
    fn kinds_and_namespaces_are_read_as_they_are_written() {
        assert_eq!(group_kind("Task", "panda.dev"), "Task.panda.dev");
        assert_eq!(group_kind("Secret", ""), "Secret");
        assert_eq!(words("b, a,,"), ["a", "b"].map(str::to_owned).into());
        assert!(words("").is_empty());
    }

    #[test]
    fn the_guard_lets_small_losses_pass_and_never_empties_a_set() {
        assert_eq!(guard(10, 5, 5, 50), Ok(()));
        assert_eq!(
            guard(10, 6, 4, 50),
            Err(Refused::TooMany {
                before: 10,
                lost: 6,
                limit: 50
            })
        );
        assert_eq!(guard(10, 10, 0, 100), Err(Refused::Empty { before: 10 }));
        assert_eq!(guard(10, 10, 3, 100), Ok(()));
        assert_eq!(guard(0, 0, 0, 0), Ok(()));
        assert_eq!(
            guard(10, 1, 9, 0),
            Err(Refused::TooMany {
                before: 10,
                lost: 1,
                limit: 0
            })
        );
    }
}
