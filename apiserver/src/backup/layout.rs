//! What stands where: in an archive, and in a data folder.

use std::path::{Path, PathBuf};

use panda_store::blob::{Digest, StreamId};
use panda_store::sqlite::copy;

use crate::server::{SECRETS_KEY, TOKENS_KEY};

/// Version of the archive's layout.
pub(super) const FORMAT: u32 = 1;
/// First file of an archive: what it is.
pub(super) const HEADER: &str = "header.json";
/// Last but one: a SHA-256 for every file before it, as `sha256sum -c` reads them.
pub(super) const SUMS: &str = "SHA256SUMS";
/// Last: how many files and bytes, and the SHA-256 of [`SUMS`].
pub(super) const MANIFEST: &str = "manifest.json";
/// The store, as one file.
pub(super) const STORE: &str = copy::FILE;
/// Blobs, `blobs/ab/HEX`.
pub(super) const BLOBS: &str = "blobs";
/// Logs, `streams/RUN/NAME/OFFSET`.
pub(super) const STREAMS: &str = "streams";
/// Keys, when they were asked for: `keys/NAME`.
pub(super) const KEYS: &str = "keys";

/// Names of keys in an archive, and where they are in a data folder. All certificates but the authority's are made anew.
pub(super) const KEY_FILES: [(&str, &str); 3] = [
    (SECRETS_KEY, SECRETS_KEY),
    (TOKENS_KEY, TOKENS_KEY),
    (CA, "pki/ca.pem"),
];
/// The authority's certificate and key.
pub(super) const CA: &str = "ca.pem";

/// The store's folder in a data folder.
pub(crate) fn store_dir(data: &Path) -> PathBuf {
    data.join("store")
}

/// The folder of blobs and logs in a data folder.
pub(crate) fn blob_dir(data: &Path) -> PathBuf {
    data.join("blobs")
}

/// Whether a path of an archive is one that a backup writes. Nothing else is ever made on the disk.
pub(super) fn is_ours(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [HEADER | STORE | SUMS | MANIFEST] => true,
        [BLOBS, folder, hex] => hex.parse::<Digest>().is_ok_and(|digest| {
            let canonical = digest.hex();
            canonical == *hex && canonical[..2] == **folder
        }),
        [STREAMS, run, name, offset] => {
            StreamId::new(run, name).is_ok()
                && offset.len() == 20
                && offset.bytes().all(|b| b.is_ascii_digit())
        }
        [KEYS, file] => KEY_FILES.iter().any(|(name, _)| name == file),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_a_backup_writes_are_taken() {
        let hex = "ab".repeat(32);
        for good in [
            "store.db",
            "header.json",
            "keys/secrets.key",
            "keys/ca.pem",
            &format!("blobs/ab/{hex}"),
            "streams/0b6c7f4e-0000-4000-8000-000000000001/agent/00000000000000000000",
        ] {
            assert!(is_ours(good), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../store.db",
            "store.db/../../x",
            "blobs/../store.db",
            &format!("blobs/cd/{hex}"),
            &format!("blobs/AB/{}", hex.to_uppercase()),
            "streams/../../x/00000000000000000000",
            "streams/run/../00000000000000000000",
            "streams/run/agent/0",
            "keys/../../secrets.key",
            "keys/other.key",
            "keys/pki/ca.pem",
            "store.db\0",
            "./store.db",
        ] {
            assert!(!is_ours(bad), "{bad}");
        }
    }
}
