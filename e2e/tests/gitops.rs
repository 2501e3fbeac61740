//! GitSources against a whole control plane: a thousand manifests converge, drift is healed, a force push is followed, and
//! neither an unreadable nor an empty repository takes anything away.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use panda_api::meta::ObjectMeta;
use panda_api::rbac::{RoleRef, Subject};
use panda_api::{
    ConfigMap, GitSource, GitSourcePrune, GitSourceResult, Namespace, Resource, RoleBinding, ServiceAccount,
    Task,
};
use panda_client::params::{DeleteParams, ListParams, WriteParams};
use panda_client::{Api, Client};
use pandactl::up::compose::{self, Settings, Up};
use serde_json::json;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const NAMESPACE: &str = "web";

struct Plane {
    dir: tempfile::TempDir,
    up: Option<Up>,
    client: Client,
}

impl Plane {
    async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("repositories"))?;
        let up = compose::start(Settings {
            data_dir: dir.path().join("data"),
            work_dir: dir.path().join("work"),
            listen: "127.0.0.1:0".parse()?,
            agentlet: false,
            keep_runs: false,
            device_name: "none".into(),
            home: None,
            workspace_roots: Vec::new(),
            manifest_roots: vec![dir.path().join("repositories")],
            git_hosts: Vec::new(),
            hidden: Vec::new(),
            path: "/usr/local/bin:/usr/bin:/bin".into(),
            env: Default::default(),
            max_runs: 1,
            exe: "/proc/self/exe".into(),
            git: "git".into(),
            agent_uid: 0,
        })
        .await?;
        let client = up.client.clone();
        let plane = Self {
            dir,
            up: Some(up),
            client,
        };
        let namespace = Namespace {
            metadata: ObjectMeta::named(NAMESPACE),
            ..Namespace::default()
        };
        plane
            .create(&Api::cluster(plane.client.clone()), &namespace)
            .await?;
        for account in ["deployer", "nobody"] {
            let account = ServiceAccount {
                metadata: ObjectMeta::namespaced(NAMESPACE, account),
                ..ServiceAccount::default()
            };
            plane.create(&plane.api(), &account).await?;
        }
        let binding = RoleBinding {
            metadata: ObjectMeta::namespaced(NAMESPACE, "deployer"),
            subjects: vec![Subject {
                kind: "ServiceAccount".into(),
                api_group: String::new(),
                name: "deployer".into(),
                namespace: NAMESPACE.into(),
            }],
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".into(),
                kind: "ClusterRole".into(),
                name: "edit".into(),
            },
            ..RoleBinding::default()
        };
        plane.create(&plane.api(), &binding).await?;
        Ok(plane)
    }

    fn api<K: Resource>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K: Resource>(&self, api: &Api<K>, object: &K) -> anyhow::Result<K> {
        Ok(api.create(object, &WriteParams::default()).await?)
    }

    async fn source(&self, name: &str, origin: &Origin, account: &str) -> anyhow::Result<()> {
        let mut source = GitSource {
            metadata: ObjectMeta::namespaced(NAMESPACE, name),
            ..GitSource::default()
        };
        source.spec.url = format!("file://{}", origin.top.display());
        source.spec.path = "app".into();
        source.spec.interval = Some(Duration::from_secs(10).into());
        source.spec.service_account_name = account.into();
        source.spec.prune = Some(GitSourcePrune::default());
        self.create(&self.api(), &source).await?;
        Ok(())
    }

    /// Waits until the source's status is as wanted.
    async fn until(
        &self,
        name: &str,
        what: &str,
        check: impl Fn(&GitSource) -> bool,
    ) -> anyhow::Result<GitSource> {
        let api: Api<GitSource> = self.api();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let source = api.get(name).await?;
            if check(&source) {
                return Ok(source);
            }
            if Instant::now() > deadline {
                bail!("not within {PATIENCE:?}: {what}: {:#?}", source.status);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the objects of a source are as wanted.
    async fn until_objects(&self, what: &str, check: impl Fn(&[ConfigMap]) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.config_maps().await?;
            if check(&found) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn config_maps(&self) -> anyhow::Result<Vec<ConfigMap>> {
        Ok(self
            .api::<ConfigMap>()
            .list_all(&ListParams::default())
            .await?
            .items)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        let up = self.up.take().context("it runs")?;
        tokio::time::timeout(PATIENCE, up.stop())
            .await
            .context("it stops")?;
        drop(self.dir);
        Ok(())
    }
}

/// A repository that others push to.
struct Origin {
    top: PathBuf,
}

impl Origin {
    fn new(plane: &Plane, name: &str) -> anyhow::Result<Self> {
        let top = plane.dir.path().join("repositories").join(name);
        std::fs::create_dir_all(top.join("app"))?;
        let origin = Self { top };
        origin.git(&["init", "--quiet", "--initial-branch=main"])?;
        Ok(origin)
    }

    fn git(&self, args: &[&str]) -> anyhow::Result<String> {
        let identity = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.invalid",
            "-c",
            "gc.auto=0",
        ];
        let output = std::process::Command::new("git")
            .args(identity)
            .args(args)
            .current_dir(&self.top)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()?;
        ensure!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.top.join("app").join(name), text)?)
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.top.join("app").join(name))?)
    }

    fn commit(&self, words: &str) -> anyhow::Result<String> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", words])?;
        self.git(&["rev-parse", "HEAD"])
    }
}

fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: {value}}}\n")
}

fn task(name: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: {name}}}\nspec: {{prompt: p, suspend: true}}\n"
    )
}

fn ready(source: &GitSource) -> (String, String) {
    let found = source
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready");
    found
        .map(|c| (c.status.clone(), c.reason.clone()))
        .unwrap_or_default()
}

fn is_applied(commit: &str) -> impl Fn(&GitSource) -> bool {
    move |source| source.status.applied_commit == commit && ready(source).0 == "True"
}

fn failed_with(reason: &str) -> impl Fn(&GitSource) -> bool {
    move |source| ready(source) == ("False".to_owned(), reason.to_owned())
}

fn value_of<'a>(found: &'a [ConfigMap], name: &str) -> Option<&'a str> {
    let found = found.iter().find(|object| object.metadata.name == name)?;
    found.data.get("value").map(String::as_str)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_manifests_converge_and_drift_is_healed() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let origin = Origin::new(&plane, "large")?;
    for number in 0..900 {
        origin.write(
            &format!("c{number}.yaml"),
            &config_map(&format!("c{number}"), "one"),
        )?;
    }
    for number in 0..100 {
        origin.write(&format!("t{number}.yaml"), &task(&format!("t{number}")))?;
    }
    let commit = origin.commit("one")?;
    let begun = Instant::now();
    plane.source("large", &origin, "deployer").await?;
    let source = plane
        .until("large", "all is applied", is_applied(&commit))
        .await?;
    eprintln!("1000 manifests applied within {:?}", begun.elapsed());
    let counts = source.status.counts.context("it counts")?;
    assert_eq!((counts.total, counts.applied, counts.failed), (1000, 1000, 0));
    assert_eq!(source.status.objects.len(), 250);
    assert_eq!(source.status.kinds, ["ConfigMap", "Task.panda.dev"]);
    assert_eq!(
        plane
            .api::<Task>()
            .list_all(&ListParams::default())
            .await?
            .items
            .len(),
        100
    );
    let before = plane.config_maps().await?;
    let label = |object: &ConfigMap| {
        object
            .metadata
            .labels
            .get("applyset.kubernetes.io/part-of")
            .cloned()
    };
    let ours = before
        .iter()
        .filter(|object| label(object).as_deref() == Some(&source.status.apply_set));
    assert_eq!(ours.count(), 900);

    // Drift: one is changed, one is gone, a field that the repository does not mention is added. Only that is touched.
    let maps: Api<ConfigMap> = plane.api();
    let write = WriteParams::default();
    maps.patch_merge(
        "c7",
        &json!({"data": {"value": "drifted", "mine": "kept"}}),
        &write,
    )
    .await?;
    maps.delete("c8", &DeleteParams::default()).await?;
    plane
        .until_objects("drift is healed", |found| {
            value_of(found, "c7") == Some("one") && value_of(found, "c8") == Some("one")
        })
        .await?;
    let after = plane.config_maps().await?;
    let c7 = after
        .iter()
        .find(|object| object.metadata.name == "c7")
        .context("c7")?;
    assert_eq!(c7.data.get("mine").map(String::as_str), Some("kept"));
    let version = |found: &[ConfigMap], name: &str| {
        let found = found.iter().find(|object| object.metadata.name == name);
        found.map(|object| object.metadata.resource_version.clone())
    };
    for object in &before {
        let name = object.metadata.name.as_str();
        if !matches!(name, "c7" | "c8") {
            assert_eq!(
                version(&after, name),
                version(&before, name),
                "{name} was written without need"
            );
        }
    }
    plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_repository_nothing_is_lost_by_mistake() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let origin = Origin::new(&plane, "app")?;
    for number in 0..10 {
        origin.write(
            &format!("c{number}.yaml"),
            &config_map(&format!("c{number}"), "one"),
        )?;
    }
    let first = origin.commit("one")?;
    plane.source("app", &origin, "deployer").await?;
    plane.until("app", "the first commit", is_applied(&first)).await?;

    // A commit that loses two of ten, then a force push that brings one back and changes another.
    origin.remove("c0.yaml")?;
    origin.remove("c1.yaml")?;
    let second = origin.commit("two")?;
    plane
        .until("app", "the second commit", is_applied(&second))
        .await?;
    assert_eq!(plane.config_maps().await?.len(), 8);
    origin.git(&["reset", "--quiet", "--hard", &first])?;
    origin.remove("c1.yaml")?;
    origin.write("c2.yaml", &config_map("c2", "two"))?;
    let forced = origin.commit("another two")?;
    plane
        .until("app", "the forced commit", is_applied(&forced))
        .await?;
    let found = plane.config_maps().await?;
    assert_eq!(
        (found.len(), value_of(&found, "c2"), value_of(&found, "c1")),
        (9, Some("two"), None)
    );

    // The repository cannot be read.
    let away = origin.top.with_extension("away");
    std::fs::rename(&origin.top, &away)?;
    let unread = plane
        .until("app", "unreadable", failed_with("FetchFailed"))
        .await?;
    assert_eq!(unread.status.applied_commit, forced);
    std::fs::rename(&away, &origin.top)?;
    plane.until("app", "readable again", is_applied(&forced)).await?;

    // A commit with a mistake in it is not applied at all.
    origin.write("c2.yaml", &config_map("c2", "three"))?;
    origin.write("broken.yaml", "kind: [\n")?;
    origin.commit("broken")?;
    let broken = plane
        .until("app", "broken", failed_with("InvalidManifests"))
        .await?;
    let message = &broken
        .status
        .conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .context("Ready")?
        .message;
    assert!(message.contains("broken.yaml"), "{message}");
    origin.git(&["reset", "--quiet", "--hard", &forced])?;
    plane.until("app", "mended", is_applied(&forced)).await?;

    // Nothing is left of it.
    for entry in std::fs::read_dir(origin.top.join("app"))? {
        std::fs::remove_file(entry?.path())?;
    }
    origin.write("readme.txt", "nothing here")?;
    origin.commit("empty")?;
    plane.until("app", "empty", failed_with("Empty")).await?;
    origin.git(&["reset", "--quiet", "--hard", &forced])?;
    plane.until("app", "filled again", is_applied(&forced)).await?;

    // Most of it is gone: refused, until it is allowed.
    for number in 2..8 {
        origin.remove(&format!("c{number}.yaml"))?;
    }
    let small = origin.commit("small")?;
    let refused = plane.until("app", "refused", failed_with("PruneRefused")).await?;
    let kept = refused
        .status
        .objects
        .iter()
        .filter(|row| row.result == GitSourceResult::Kept);
    assert_eq!(kept.count(), 6);
    assert_eq!(plane.config_maps().await?.len(), 9);
    let sources: Api<GitSource> = plane.api();
    let allow = json!({"spec": {"prune": {"maxLostPercent": 80}}});
    sources
        .patch_merge("app", &allow, &WriteParams::default())
        .await?;
    plane.until("app", "allowed", is_applied(&small)).await?;
    assert_eq!(plane.config_maps().await?.len(), 3);

    // Suspended, it does nothing; deleted, it leaves what it applied.
    let suspend = json!({"spec": {"suspend": true}});
    sources
        .patch_merge("app", &suspend, &WriteParams::default())
        .await?;
    let is_suspended = |source: &GitSource| ready(source).1 == "Suspended";
    plane.until("app", "suspended", is_suspended).await?;
    sources.delete("app", &DeleteParams::default()).await?;
    assert_eq!(plane.config_maps().await?.len(), 3);
    plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_has_the_rights_of_its_account_and_takes_nothing_of_another() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let origin = Origin::new(&plane, "one")?;
    origin.write("a.yaml", &config_map("a", "one"))?;
    let commit = origin.commit("one")?;
    plane.source("one", &origin, "deployer").await?;
    plane.until("one", "applied", is_applied(&commit)).await?;

    // The same object in another source.
    let other = Origin::new(&plane, "two")?;
    other.write("a.yaml", &config_map("a", "two"))?;
    other.write("b.yaml", &config_map("b", "two"))?;
    other.commit("two")?;
    plane.source("two", &other, "deployer").await?;
    let two = plane.until("two", "taken", failed_with("OwnedByOther")).await?;
    assert_eq!(
        (&*two.status.objects[0].name, &*two.status.objects[0].reason),
        ("a", "OwnedByOther")
    );
    let found = plane.config_maps().await?;
    assert_eq!(
        (value_of(&found, "a"), value_of(&found, "b")),
        (Some("one"), Some("two"))
    );

    // Beyond its account's rights: nothing happens, and each object says so.
    plane.source("weak", &other, "nobody").await?;
    let weak = plane
        .until("weak", "forbidden", failed_with("ApplyFailed"))
        .await?;
    assert!(
        weak.status.objects.iter().any(|row| row.reason == "Forbidden"),
        "{:#?}",
        weak.status.objects
    );
    let elsewhere = Origin::new(&plane, "elsewhere")?;
    let text = config_map("c", "x").replace("{name: c}", "{name: c, namespace: default}");
    elsewhere.write("c.yaml", &text)?;
    elsewhere.commit("one")?;
    plane.source("elsewhere", &elsewhere, "deployer").await?;
    let outside = plane
        .until("elsewhere", "forbidden", failed_with("ApplyFailed"))
        .await?;
    assert!(outside.status.objects.iter().any(|row| row.reason == "Forbidden"));
    let default: Api<ConfigMap> = Api::namespaced(plane.client.clone(), "default");
    assert!(default.get_opt("c").await?.is_none());

    // Without an account, and outside the operator's folders.
    plane.source("lost", &origin, "missing").await?;
    plane
        .until("lost", "no account", failed_with("AccountNotFound"))
        .await?;
    let outside = Origin {
        top: plane.dir.path().join("outside"),
    };
    std::fs::create_dir_all(outside.top.join("app"))?;
    outside.git(&["init", "--quiet"])?;
    plane.source("outside", &outside, "deployer").await?;
    plane
        .until("outside", "not allowed", failed_with("NotAllowed"))
        .await?;
    assert!(Path::new(&plane.dir.path().join("data/gitsources")).is_dir());
    plane.stop().await
}
