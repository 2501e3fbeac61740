//! Collection of blobs and log streams that no object names any more.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use panda_api::{Resource, Run, Task};
use panda_store::blob::Digest;
use panda_store::{ListRequest, Scope};
use tokio_util::sync::CancellationToken;

use super::orphans::{self, Fate};
use super::{Agentlets, objects};

/// How long an unreferenced blob is left alone: an upload comes before the report that names it.
const GRACE: Duration = Duration::from_secs(3600);
/// Pause between sweeps.
const EVERY: Duration = Duration::from_secs(600);
/// Entries looked at in one call.
const BATCH: usize = 512;

impl Agentlets {
    /// Sweeps from time to time until cancelled.
    pub(crate) async fn sweep(&self, token: CancellationToken) {
        loop {
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            if let Err(error) = self.sweep_once().await {
                tracing::warn!(error = &*error, "sweep of blobs failed; it is tried again later");
            }
        }
    }

    /// One sweep: what is older than the grace and named by nothing goes.
    pub(crate) async fn sweep_once(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let cutoff = std::time::UNIX_EPOCH
            + self
                .clock
                .now()
                .duration_since(jiff::Timestamp::UNIX_EPOCH)
                .unsigned_abs()
                .saturating_sub(GRACE);
        // Candidates first, references after: what is named in between is seen.
        let mut candidates = Vec::new();
        let mut after = None;
        loop {
            let page = self.blobs.older_than(cutoff, after, BATCH).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.digest);
            candidates.extend(page.iter().map(|info| info.digest));
        }
        let mut streams = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.blobs.runs(after.as_deref(), BATCH).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            streams.extend(page);
        }
        let (digests, runs) = self.referenced().await?;
        self.age_records(&runs).await?;
        for digest in candidates.into_iter().filter(|digest| !digests.contains(digest)) {
            self.blobs.delete(digest).await?;
            tracing::info!(%digest, "unreferenced blob removed");
        }
        self.blobs.drop_partial(cutoff).await?;
        for run in streams.iter().filter(|run| !runs.contains(*run)) {
            self.blobs.delete_streams(run).await?;
        }
        Ok(())
    }

    /// Lets records go whose Runs have been gone for long.
    async fn age_records(&self, runs: &BTreeSet<String>) -> Result<(), objects::Error> {
        let now = self.clock.now();
        for mut record in self.objects.orphans().await? {
            let there = runs.contains(&record.object.run_uid);
            let op = match orphans::fate(&record.object, there, now) {
                Fate::Stay => continue,
                Fate::Age => {
                    record.object.gone_time = Some(now.into());
                    Some(record.write())
                }
                Fate::Go => record.remove(),
            };
            match self.objects.commit(op.into_iter().collect()).await {
                Err(error) if !error.is_conflict() => return Err(error),
                // It has just changed: the next sweep looks at it.
                _ => {}
            }
        }
        Ok(())
    }

    /// Digests that Tasks, Runs and records of Runs name, and the uids of the Runs there are.
    async fn referenced(&self) -> Result<(HashSet<Digest>, BTreeSet<String>), objects::Error> {
        let mut digests = HashSet::new();
        for resource in [
            objects::resource::<Run>(),
            objects::resource::<Task>(),
            orphans::RECORDS.to_owned(),
        ] {
            let request = ListRequest {
                scope: Scope::resource(resource),
                ..ListRequest::default()
            };
            for entry in self.objects.store().list(request).await?.items {
                collect(&entry.value, &mut digests);
            }
        }
        let (runs, _) = self.objects.list::<Run>().await?;
        Ok((
            digests,
            runs.iter().map(|run| run.metadata().uid.clone()).collect(),
        ))
    }
}

/// Every digest in a text; a text that only looks like one keeps a blob, which is the safe side.
fn collect(text: &[u8], digests: &mut HashSet<Digest>) {
    const MARK: &[u8] = b"sha256:";
    let mut rest = text;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        let end = rest.len().min(at + MARK.len() + 64);
        if let Ok(digest) = String::from_utf8_lossy(&rest[at..end]).parse() {
            digests.insert(digest);
        }
        rest = &rest[at + MARK.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_found_wherever_they_stand() {
        let one = format!("sha256:{}", "a".repeat(64));
        let two = format!("sha256:{}", "b".repeat(64));
        let mut found = HashSet::new();
        collect(
            format!("{{\"x\":\"{one}\",\"y\":[\"{two}\"],\"z\":\"sha256:short\"}}").as_bytes(),
            &mut found,
        );
        assert_eq!(found, HashSet::from([one.parse().unwrap(), two.parse().unwrap()]));
    }
}
