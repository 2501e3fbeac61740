//! What former Runs tell about repositories: which device had one, and which said that it has none.
//!
//! Nothing is kept besides the Runs themselves, so every scheduler knows the same, also after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::{RefusalReason, Run};

/// How long a device's word that it lacks a repository is believed. A person may have put it there since.
pub(super) const BELIEVED: Duration = Duration::from_secs(300);

/// Most characters of its message that are passed on.
const MESSAGE: usize = 300;

/// The newest word about one repository on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    at: Timestamp,
    refusal: Option<(RefusalReason, String)>,
}

/// What is known, by device and repository.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory<'a>(BTreeMap<&'a str, BTreeMap<&'a str, Word>>);

/// The repository of a Run: its path or URL.
fn repository(run: &Run) -> Option<&str> {
    let git = run.spec.workspace.as_ref()?.git.as_ref()?;
    [git.path.as_str(), git.url.as_str()]
        .into_iter()
        .find(|text| !text.is_empty())
}

impl<'a> Memory<'a> {
    /// Learns from a Run that was bound. The time is the server's, not the device's.
    pub(super) fn learn(&mut self, run: &'a Run) {
        let (Some(repository), Some(at)) = (repository(run), run.status.bind_time) else {
            return;
        };
        let failure = run.status.failure.as_ref();
        let refusal = failure.and_then(|failure| {
            let message = failure.message.chars().take(MESSAGE).collect();
            Some((failure.refusal?, message))
        });
        if refusal.is_none() && run.status.start_time.is_none() {
            // It did not come so far as to tell.
            return;
        }
        let word = Word { at: at.0, refusal };
        let here = self.0.entry(&run.spec.device_name).or_default();
        if here.get(repository).is_none_or(|known| known.at < word.at) {
            here.insert(repository, word);
        }
    }

    fn word(&self, run: &Run, device: &str) -> Option<&Word> {
        self.0.get(device)?.get(repository(run)?)
    }

    /// Why the device cannot have the repository of this Run, as far as it is known.
    pub(super) fn refusal(&self, run: &Run, device: &str, now: Timestamp) -> Option<(RefusalReason, String)> {
        let word = self.word(run, device)?;
        let age = Duration::try_from(now.duration_since(word.at)).unwrap_or_default();
        word.refusal.clone().filter(|_| age < BELIEVED)
    }

    /// Whether a Run has worked with the same repository there.
    pub(super) fn was_there(&self, run: &Run, device: &str) -> bool {
        self.word(run, device).is_some_and(|word| word.refusal.is_none())
    }
}
