//! `backup` and `restore`, with a control plane over real files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use futures::StreamExt;
use panda_api::meta::{ListMeta, RandomIds, SystemClock};
use panda_apiserver::Config;
use panda_apiserver::control_plane::{ControlPlane, write_kubeconfig};
use panda_apiserver::pki::Subject;
use panda_store::blob::{BlobStore, Digest, Files, PutRequest, StreamId};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use super::harness::{Done, PATIENCE, finish, pandactl};

/// A home folder with a data folder in it.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn start(&self) -> ControlPlane {
        let mut config = Config::new(self.data());
        config.listen.set_port(0);
        let plane = ControlPlane::start(config, Arc::new(SystemClock), Arc::new(RandomIds))
            .await
            .unwrap();
        let admin = plane.config_for("admin", &Subject::admin()).unwrap();
        write_kubeconfig(&self.file("config"), &admin).unwrap();
        plane
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = pandactl(self.dir.path(), args);
        command.env("PANDA_DATA", self.data());
        command
    }

    async fn run(&self, args: &[&str]) -> Done {
        finish(self.command(args), b"").await
    }

    /// All files of the data folder that a restore could replace, with their content.
    fn state(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        collect(&self.data(), &mut found);
        found.retain(|(path, _)| !path.ends_with("store/store.lock"));
        found.sort();
        found
    }
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
}

async fn create(plane: &ControlPlane, plural: &str, name: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    object
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let path = format!("/api/v1/namespaces/default/{plural}");
    let body = object.to_string();
    let post = panda_client::client::request(http::Method::POST, &path, Some(body.into())).unwrap();
    plane.admin().request_json(post).await.unwrap()
}

async fn names(plane: &ControlPlane, plural: &str) -> (Vec<String>, String) {
    let path = format!("/api/v1/namespaces/default/{plural}");
    let list: Value = plane.admin().get_json(&path).await.unwrap();
    let items = list["items"].as_array().unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let meta: ListMeta = serde_json::from_value(list["metadata"].clone()).unwrap();
    (items.iter().map(name).collect(), meta.resource_version)
}

/// Whether a watch from this version is refused as too old.
async fn is_gone(plane: &ControlPlane, version: &str) -> bool {
    let path = format!(
        "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={version}&timeoutSeconds=1"
    );
    let answer = plane.admin().get_text(&path).await;
    match answer {
        Ok(text) => text.contains("\"code\":410"),
        Err(panda_client::Error::Api(status)) => status.code == 410,
        Err(error) => panic!("{error}"),
    }
}

/// Puts a blob and a log with this content into the data folder.
async fn blob(home: &Home, bytes: &[u8]) {
    let files = Files::open(&panda_store::blob::Config::new(home.data().join("blobs"))).unwrap();
    let request = PutRequest {
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        offset: 0,
    };
    let body = futures::stream::iter([Ok(bytes::Bytes::copy_from_slice(bytes))]).boxed();
    files.put(request, body).await.unwrap();
    let stream = StreamId::new("0b6c7f4e-0000-4000-8000-000000000001", "log").unwrap();
    files
        .append(stream, 0, bytes::Bytes::copy_from_slice(bytes))
        .await
        .unwrap();
}

/// A data folder with objects, a Secret, a blob and a log; and a backup of it, taken while its server ran.
async fn saved(args: &[&str]) -> (Home, String) {
    let home = Home::new();
    let plane = home.start().await;
    create(&plane, "configmaps", "one", json!({"data": {"k": "v"}})).await;
    create(
        &plane,
        "secrets",
        "s",
        json!({"stringData": {"token": "hunter2"}}),
    )
    .await;
    let (_, version) = names(&plane, "configmaps").await;
    blob(&home, b"a blob").await;
    let mut command = vec!["backup", "b.tar"];
    command.extend(args);
    home.run(&command).await.ok();
    create(&plane, "configmaps", "two", json!({})).await;
    plane.stop().await;
    (home, version)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_running_server_comes_back_as_another_store_that_waits() {
    let (home, version) = saved(&[]).await;
    let archive = fs::read(home.file("b.tar")).unwrap();
    let text = String::from_utf8_lossy(&archive);
    assert!(text.contains("SHA256SUMS") && !text.contains("hunter2"));
    assert!(!text.contains("keys/"), "keys only when asked for");
    let done = home.run(&["restore", "b.tar"]).await;
    assert!(done.err().contains("restore --activate"), "{}", done.err());
    done.ok();
    assert!(!home.data().join(".restore").exists() && !home.data().join("replaced").exists());

    let plane = home.start().await;
    let (found, now) = names(&plane, "configmaps").await;
    assert!(
        found.contains(&"one".to_owned()) && !found.contains(&"two".to_owned()),
        "{found:?}"
    );
    assert_eq!(names(&plane, "secrets").await.0, ["s"]);
    assert!(now.parse::<u64>().unwrap() >= version.parse::<u64>().unwrap() + 1_000_000_000);
    for old in [version.clone(), (version.parse::<u64>().unwrap() + 3).to_string()] {
        assert!(is_gone(&plane, &old).await, "{old}");
    }
    assert!(!is_gone(&plane, &now).await);
    let activation: Value = plane.admin().get_json("/activation").await.unwrap();
    assert_eq!(activation["inactive"], true, "{activation}");
    assert!(
        home.run(&["restore", "--activate"])
            .await
            .ok()
            .contains("active again")
    );
    let activation: Value = plane.admin().get_json("/activation").await.unwrap();
    assert_eq!(activation["inactive"], false, "{activation}");
    // While it runs nothing can be restored.
    let refused = home.run(&["restore", "b.tar"]).await.fails();
    assert!(
        refused.contains("in use") && refused.contains("stop the server"),
        "{refused}"
    );
    // Once more, active at once, through standard input and output.
    let again = home.run(&["backup", "-"]).await;
    plane.stop().await;
    let done = finish(
        home.command(&["restore", "-", "--activate", "--keep-old"]),
        &again.0.stdout,
    )
    .await;
    done.ok();
    assert!(home.data().join("replaced/store/store.db").exists());
    let plane = home.start().await;
    let activation: Value = plane.admin().get_json("/activation").await.unwrap();
    assert_eq!(activation["inactive"], false, "{activation}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_folder_needs_the_key_of_the_secrets() {
    let (old, _) = saved(&[]).await;
    let archive = old.file("b.tar");
    let archive = archive.to_str().unwrap();
    let new = Home::new();
    let refused = new.run(&["restore", archive]).await.fails();
    assert!(
        refused.contains("no key") && refused.contains("--secrets-key"),
        "{refused}"
    );
    // A server that was there before has a key of its own.
    new.start().await.stop().await;
    let before = new.state();
    let refused = new.run(&["restore", archive]).await.fails();
    assert!(refused.contains("does not open the Secrets"), "{refused}");
    assert!(new.state() == before, "a refused restore changes nothing");
    let key = old.data().join("secrets.key");
    new.run(&["restore", archive, "--secrets-key", key.to_str().unwrap()])
        .await
        .ok();
    let plane = new.start().await;
    assert_eq!(names(&plane, "secrets").await.0, ["s"]);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_keys_a_backup_is_a_whole_server() {
    let (old, _) = saved(&["--with-keys"]).await;
    let new = Home::new();
    new.run(&["restore", old.file("b.tar").to_str().unwrap()])
        .await
        .ok();
    for key in ["secrets.key", "tokens.key", "pki/ca.pem"] {
        let (a, b) = (fs::read(old.data().join(key)), fs::read(new.data().join(key)));
        assert_eq!(a.unwrap(), b.unwrap(), "{key}");
    }
    let plane = new.start().await;
    assert_eq!(names(&plane, "secrets").await.0, ["s"]);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_and_foreign_archives_change_nothing() {
    let (home, _) = saved(&[]).await;
    let archive = fs::read(home.file("b.tar")).unwrap();
    let before = home.state();
    let find = |what: &[u8]| {
        archive
            .windows(what.len())
            .position(|window| window == what)
            .unwrap()
    };
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("noise", b"no archive at all".repeat(100)),
        ("half", archive[..archive.len() / 2].to_vec()),
        ("without its end", archive[..archive.len() - 1024].to_vec()),
        ("with a tail", [&archive[..], b"more"].concat()),
    ];
    let mut flip = |name, at: usize| {
        let mut bad = archive.clone();
        bad[at] ^= 1;
        cases.push((name, bad));
    };
    flip("a blob", find(b"a blob"));
    flip("the store", find(b"SQLite format 3") + 9000);
    flip("the digests", find(b"  store.db"));
    let newer = String::from_utf8_lossy(&archive[..2048]).replace("\"format\":1", "\"format\":9");
    let newer = [newer.as_bytes(), &archive[2048..]].concat();
    cases.push(("newer", newer));
    for (name, bytes) in cases {
        fs::write(home.file("bad.tar"), &bytes).unwrap();
        let refused = home.run(&["restore", "bad.tar"]).await.fails();
        assert!(!refused.contains("internal"), "{name}: {refused}");
        if name == "newer" {
            assert!(refused.contains("format 9"), "{refused}");
        }
        assert!(home.state() == before, "{name}: {refused}");
    }
    home.start().await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_killed_before_it_has_read_all_changes_nothing() {
    let (home, _) = saved(&[]).await;
    let archive = fs::read(home.file("b.tar")).unwrap();
    let before = home.state();
    let mut command = home.command(&["restore", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&archive[..archive.len() - 512]).await.unwrap();
    let unpacked = home.data().join(".restore/new/store/store.db");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !unpacked.exists() {
        assert!(tokio::time::Instant::now() < deadline, "it begins");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    child.kill().await.unwrap();
    drop(stdin);
    let mut after = home.state();
    after.retain(|(path, _)| !path.starts_with(home.data().join(".restore")));
    assert!(after == before);
    // The server starts on the old state, and the next restore clears up.
    let plane = home.start().await;
    assert!(names(&plane, "configmaps").await.0.contains(&"two".to_owned()));
    plane.stop().await;
    home.run(&["restore", "b.tar"]).await.ok();
    assert!(!home.data().join(".restore").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_killed_or_finds_no_room_leaves_no_file() {
    let (home, _) = saved(&[]).await;
    // Nobody reads the pipe, so it stops in the middle.
    blob(&home, &vec![7; 4 << 20]).await;
    let mut command = home.command(&["backup", "-"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 512];
    let mut stdout = child.stdout.take().unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut stdout, &mut first)
        .await
        .unwrap();
    child.kill().await.unwrap();
    home.start().await.stop().await;

    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = home.command(&["backup", "-"]);
    let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let done = child.wait_with_output().await.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && err.contains("No space left"), "{err}");

    // A folder that cannot hold it.
    let missing = home.run(&["backup", "nowhere/b.tar"]).await.fails();
    assert!(missing.contains("nowhere"), "{missing}");
    assert!(!home.file("nowhere").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_data_folder_is_no_empty_backup() {
    let home = Home::new();
    let refused = home.run(&["backup", "b.tar"]).await.fails();
    assert!(refused.contains("store.db"), "{refused}");
    assert!(!home.file("b.tar").exists() && !home.file(".b.tar.partial").exists());
}

/// A small file system, which root alone can mount.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let mut command = std::process::Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=2m,mode=700", "panda-test"])
            .arg(&at);
        assert!(command.status().unwrap().success());
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg("--lazy")
            .arg(&self.0)
            .status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_leaves_nothing_half() {
    let (home, _) = saved(&[]).await;
    blob(&home, &vec![7; 4 << 20]).await;
    let small = Small::mount(home.file("small"));
    let refused = home.run(&["backup", "small/b.tar"]).await.fails();
    assert!(refused.contains("space"), "{refused}");
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);
    home.run(&["backup", "big.tar"]).await.ok();
    let refused = home
        .run(&["restore", "big.tar", "--data-dir", "small/data"])
        .await
        .fails();
    assert!(refused.contains("space"), "{refused}");
    let left: Vec<_> = fs::read_dir(small.0.join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["store"], "the folder of the lock alone");
}
