//! One look at a repository: fetched, read, compared, applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use futures::future::BoxFuture;
use panda_api::apply_set::{self, PART_OF};
use panda_api::{GitSource, Secret, ServiceAccount};
use panda_client::api::PatchKind;
use panda_client::params::{DeleteParams, FieldValidation, ListParams, Propagation, WriteParams};
use panda_client::{Api, Client, DynamicApi, Error};
use serde_json::Value;

use super::git::{Credentials, Git, Request};
use super::manifests::{self, Desired};
use super::plan::{Live, View, plan};
use super::status::{Outcome, Tried, set_of};
use crate::framework::{KINDS, Kind, Target, resource};

/// Requests that are under way for one source.
const AT_ONCE: usize = 8;
/// Longest fetch when nothing is said.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Share of a set that may be lost when nothing is said, in percent.
const MAX_LOST: u8 = 50;
/// Sources whose last look is remembered.
const MAX_REMEMBERED: usize = 1000;

/// What was left behind by the last look at a source.
#[derive(Clone, Debug, Default)]
struct Left {
    commit: String,
    generation: i64,
    versions: BTreeMap<Target, String>,
}

/// Looks at repositories.
pub(crate) struct Syncer {
    client: Client,
    git: Git,
    left: Mutex<BTreeMap<String, Left>>,
}

impl Syncer {
    pub(crate) fn new(client: Client, git: Git) -> Self {
        Self {
            client,
            git,
            left: Mutex::new(BTreeMap::new()),
        }
    }

    fn left(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a source that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.left().remove(uid);
        self.git.forget(uid);
    }

    /// Looks at a repository and applies it. Requests for the source's account that fail as a whole end it.
    pub(crate) async fn sync(&self, source: &GitSource) -> Outcome {
        if source.spec.suspend == Some(true) {
            return Outcome::Suspended;
        }
        match self.try_sync(source).await {
            Ok(tried) => Outcome::Tried(Box::new(tried)),
            Err(stopped) => Outcome::Stopped {
                commit: stopped.commit,
                reason: stopped.reason,
                message: stopped.message,
            },
        }
    }

    async fn try_sync(&self, source: &GitSource) -> Result<Tried, Stopped> {
        let (meta, spec) = (&source.metadata, &source.spec);
        let account = match spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &meta.namespace);
        match accounts.get_opt(account).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                let message = format!(
                    "there is no ServiceAccount {account:?} in namespace {:?}",
                    meta.namespace
                );
                return Err(Stopped::new("AccountNotFound", message));
            }
            Err(error) => return Err(Stopped::of(&error)),
        }
        let user = format!("system:serviceaccount:{}:{account}", meta.namespace);
        let client = self
            .client
            .acting_as(&user)
            .map_err(|error| Stopped::of(&error))?;
        let credentials = match &spec.credentials_ref {
            Some(reference) => credentials(&client, &meta.namespace, &reference.name).await?,
            None => Credentials::default(),
        };
        let request = Request {
            uid: &meta.uid,
            url: &spec.url,
            reference: &spec.ref_,
            path: &spec.path,
            timeout: spec.timeout.as_ref().map_or(TIMEOUT, |timeout| timeout.get()),
            credentials,
        };
        let fetched = self.git.fetch(&request).await.map_err(|error| {
            let message = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            Stopped::new(error.reason(), message)
        })?;
        let at = |stopped: Stopped| Stopped {
            commit: Some(fetched.commit.clone()),
            ..stopped
        };
        let set = set_of(source);
        let desired = manifests::read(&fetched.files, &meta.namespace, &set)
            .map_err(|problems| at(Stopped::new("InvalidManifests", problems.0.join("\n"))))?;
        if desired.is_empty() {
            let message = "the commit holds no manifests, so nothing is changed".to_owned();
            return Err(at(Stopped::new("Empty", message)));
        }
        Ok(self.apply(source, &client, &set, fetched.commit, desired).await)
    }

    async fn apply(
        &self,
        source: &GitSource,
        client: &Client,
        set: &str,
        commit: String,
        desired: Vec<Desired>,
    ) -> Tried {
        let targets: Vec<Target> = desired.iter().map(|desired| desired.target.clone()).collect();
        let scope = Scope::of(source, &targets);
        let (live, failed) = scope.list(client).await;
        let generation = source.metadata.generation;
        let left = self.left().get(&source.metadata.uid).cloned().unwrap_or_default();
        let left = Some(left).filter(|left| left.commit == commit && left.generation == generation);
        let mut left = left.map(|left| left.versions).unwrap_or_default();
        let prune = source.spec.prune.as_ref().map(|prune| {
            let percent = prune
                .max_lost_percent
                .and_then(|percent| u8::try_from(percent).ok());
            percent.unwrap_or(MAX_LOST)
        });
        let decided = plan(&View {
            set,
            desired: &targets,
            live: &live,
            complete: failed.is_empty(),
            left: &left,
            prune,
        });
        let manager = manager(set);
        let mut tried = Tried {
            commit: commit.clone(),
            desired: targets,
            failed: failed.into_iter().filter(|_| prune.is_some()).collect(),
            kinds: scope.kinds(),
            namespaces: scope.namespaces(),
            decided,
            ..Tried::default()
        };
        let mut wanted: Vec<&Desired> = desired
            .iter()
            .filter(|desired| tried.decided.apply.contains(&desired.target))
            .collect();
        // What others need comes first; what failed for want of something else gets a second chance.
        let mut failures = BTreeMap::new();
        let (first, rest): (Vec<&Desired>, Vec<&Desired>) = wanted
            .drain(..)
            .partition(|desired| !desired.target.kind.namespaced);
        for part in [first, rest] {
            let mut part = part;
            for _ in 0..2 {
                // Boxed one by one: closures over references make no futures that may be sent.
                let mut requests: Vec<BoxFuture<'_, (&Desired, Result<String, Error>)>> = Vec::new();
                for desired in part {
                    let manager = manager.as_str();
                    requests.push(Box::pin(async move {
                        (desired, write(client, desired, manager).await)
                    }));
                }
                let answers: Vec<_> = futures::stream::iter(requests)
                    .buffer_unordered(AT_ONCE)
                    .collect()
                    .await;
                part = Vec::new();
                for (desired, answer) in answers {
                    match answer {
                        Ok(version) => {
                            failures.remove(&desired.target);
                            left.insert(desired.target.clone(), version);
                        }
                        Err(error) => {
                            left.remove(&desired.target);
                            failures.insert(desired.target.clone(), words(&error));
                            part.push(desired);
                        }
                    }
                }
            }
        }
        tried.failed.extend(
            failures
                .into_iter()
                .map(|(target, (reason, message))| (target, reason, message)),
        );
        if tried.failed.is_empty() && tried.decided.taken.is_empty() {
            self.remove(client, &mut tried).await;
        } else {
            // An object that cannot be made may have been meant to take the place of one that would go.
            let spared = std::mem::take(&mut tried.decided.prune);
            tried.decided.kept.extend(spared.into_keys());
        }
        let mut all = self.left();
        if all.len() >= MAX_REMEMBERED && !all.contains_key(&source.metadata.uid) {
            all.clear();
        }
        all.insert(
            source.metadata.uid.clone(),
            Left {
                commit,
                generation,
                versions: left,
            },
        );
        drop(all);
        tried
    }

    async fn remove(&self, client: &Client, tried: &mut Tried) {
        // Namespaces last, so that what is in them is told one by one.
        let mut prune: Vec<(&Target, &String)> = tried.decided.prune.iter().collect();
        prune.sort_by_key(|(target, _)| target.kind.kind == "Namespace");
        for (target, uid) in prune {
            let params = DeleteParams {
                propagation_policy: Some(Propagation::Background),
                ..DeleteParams::uid(uid.as_str())
            };
            match api(client, target.kind, &target.namespace)
                .delete(&target.name, &params)
                .await
            {
                Ok(_) => tried.pruned.push(target.clone()),
                // It is gone, or another one by now.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => {
                    let (reason, message) = words(&error);
                    tried.failed.push((target.clone(), reason, message));
                }
            }
        }
    }
}

/// Why a look ended before anything was applied.
struct Stopped {
    commit: Option<String>,
    reason: &'static str,
    message: String,
}

impl Stopped {
    fn new(reason: &'static str, message: String) -> Self {
        Self {
            commit: None,
            reason,
            message,
        }
    }

    fn of(error: &Error) -> Self {
        Self::new("RequestFailed", error.to_string())
    }
}

/// The field manager of a set: within the 128 characters that the API allows, and the same after a restart.
fn manager(set: &str) -> String {
    format!("gitsource-{set}")
}

fn api(client: &Client, kind: Kind, namespace: &str) -> DynamicApi {
    DynamicApi::dynamic(
        client.clone(),
        resource(kind),
        kind.namespaced.then_some(namespace),
    )
}

/// Applies one object; its version afterwards.
async fn write(client: &Client, desired: &Desired, manager: &str) -> Result<String, Error> {
    let target = &desired.target;
    let params = WriteParams {
        field_manager: Some(manager.to_owned()),
        field_validation: Some(FieldValidation::Strict),
        // What somebody changed by hand is drift: the repository wins.
        force: true,
        ..WriteParams::default()
    };
    let objects = api(client, target.kind, &target.namespace);
    let answer = objects
        .patch_as(&target.name, None, PatchKind::Apply, &desired.object, &params)
        .await;
    let applied = match answer {
        Err(error) if error.status().is_some_and(|status| status.code == 415) => {
            merge(&objects, desired, params).await?
        }
        other => other?,
    };
    Ok(text(&applied, "resourceVersion"))
}

/// The same on a server that does not merge by owners: what is not mentioned any more stays.
async fn merge(objects: &DynamicApi, desired: &Desired, params: WriteParams) -> Result<Value, Error> {
    let params = WriteParams {
        force: false,
        ..params
    };
    let name = &desired.target.name;
    match objects.patch_merge(name, &desired.object, &params).await {
        Err(error) if error.is_not_found() => objects.create(&desired.object, &params).await,
        other => other,
    }
}

fn text(object: &Value, key: &str) -> String {
    object["metadata"][key].as_str().unwrap_or_default().to_owned()
}

/// A stable word and a sentence.
fn words(error: &Error) -> (String, String) {
    match error.status() {
        Some(status) if !status.reason.is_empty() => (status.reason.clone(), status.message.clone()),
        _ => ("RequestFailed".to_owned(), error.to_string()),
    }
}

async fn credentials(client: &Client, namespace: &str, name: &str) -> Result<Credentials, Stopped> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = secrets
        .get(name)
        .await
        .map_err(|error| Stopped::new("CredentialsNotReadable", error.to_string()))?;
    let value = |key: &str| secret.data.get(key).and_then(|value| STANDARD.decode(value).ok());
    let words = |key: &str| value(key).and_then(|bytes| String::from_utf8(bytes).ok());
    let basic =
        words("password").map(|password| (words("username").unwrap_or_else(|| "git".to_owned()), password));
    if basic
        .as_ref()
        .is_some_and(|(name, password)| format!("{name}{password}").contains(['\n', '\r', '\0']))
    {
        let message = format!("Secret {name:?}: username and password are one line each");
        return Err(Stopped::new("CredentialsNotReadable", message));
    }
    Ok(Credentials {
        basic,
        identity: value("identity"),
        known_hosts: value("known_hosts"),
    })
}

/// What a list of one kind in one namespace came to.
type Listed<'a> = (Kind, &'a str, Result<Vec<Value>, Error>);

/// Kinds and namespaces in which objects of the set are, or will be.
struct Scope {
    kinds: BTreeSet<Kind>,
    namespaces: BTreeSet<String>,
}

impl Scope {
    fn of(source: &GitSource, targets: &[Target]) -> Self {
        let word = |kind: &Kind| apply_set::group_kind(kind.kind, kind.group);
        let before = KINDS
            .into_iter()
            .filter(|kind| source.status.kinds.contains(&word(kind)));
        let namespaces = targets.iter().map(|target| target.namespace.clone());
        Self {
            kinds: before.chain(targets.iter().map(|target| target.kind)).collect(),
            namespaces: namespaces
                .chain(source.status.namespaces.iter().cloned())
                .filter(|namespace| !namespace.is_empty())
                .collect(),
        }
    }

    /// Every object of any set, and where it could not be looked.
    async fn list(&self, client: &Client) -> (BTreeMap<Target, Live>, Vec<(Target, String, String)>) {
        let params = ListParams::labels(PART_OF);
        let mut requests: Vec<BoxFuture<'_, Listed<'_>>> = Vec::new();
        for kind in &self.kinds {
            let places: Vec<&str> = if kind.namespaced {
                self.namespaces.iter().map(String::as_str).collect()
            } else {
                vec![""]
            };
            for namespace in places {
                let params = &params;
                requests.push(Box::pin(async move {
                    let listed = api(client, *kind, namespace)
                        .metadata_only()
                        .list_all(params)
                        .await;
                    (*kind, namespace, listed.map(|listed| listed.items))
                }));
            }
        }
        let answers: Vec<_> = futures::stream::iter(requests).buffered(AT_ONCE).collect().await;
        let (mut live, mut failed) = (BTreeMap::new(), Vec::new());
        for (kind, namespace, listed) in answers {
            let target = |name: String| Target {
                kind,
                namespace: namespace.to_owned(),
                name,
            };
            match listed {
                Ok(items) => live.extend(items.into_iter().map(|object| {
                    let part_of = object["metadata"]["labels"][PART_OF].as_str().unwrap_or_default();
                    let found = Live {
                        uid: text(&object, "uid"),
                        resource_version: text(&object, "resourceVersion"),
                        part_of: part_of.to_owned(),
                        deleting: object["metadata"]["deletionTimestamp"].is_string(),
                    };
                    (target(text(&object, "name")), found)
                })),
                Err(error) => {
                    let (reason, message) = words(&error);
                    failed.push((target("*".to_owned()), reason, message));
                }
            }
        }
        (live, failed)
    }

    /// All kinds, also those of which nothing may be left: it is looked there again the next time, too.
    fn kinds(&self) -> Vec<String> {
        let words: BTreeSet<String> = self
            .kinds
            .iter()
            .map(|kind| apply_set::group_kind(kind.kind, kind.group))
            .collect();
        words.into_iter().collect()
    }

    fn namespaces(&self) -> Vec<String> {
        self.namespaces.iter().cloned().collect()
    }
}
