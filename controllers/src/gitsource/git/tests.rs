//! Real repositories, fetched with the real git.

use std::process::Command;

use panda_api::meta::RandomIds;

use super::*;

/// A repository, and a folder for what is fetched.
struct Origin {
    dir: tempfile::TempDir,
}

impl Origin {
    fn new() -> Self {
        let origin = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(origin.top()).unwrap();
        origin.git(&["init", "--quiet", "--initial-branch=main"]);
        origin
    }

    fn top(&self) -> PathBuf {
        self.dir.path().join("origin")
    }

    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.com",
                "-c",
                "commit.gpgSign=false",
            ])
            .args(args)
            .current_dir(self.top())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.top().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn commit(&self, words: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", words]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn settings(&self) -> Settings {
        Settings {
            file_roots: vec![self.dir.path().to_owned()],
            ..Settings::new(
                "git".into(),
                "/usr/local/bin:/usr/bin:/bin".into(),
                self.dir.path().join("work"),
            )
        }
    }

    async fn fetch_with(&self, settings: Settings, reference: &str, path: &str) -> Result<Fetched, Error> {
        let url = format!("file://{}", self.top().display());
        let request = Request {
            uid: "u-1",
            url: &url,
            reference,
            path,
            timeout: Duration::from_secs(60),
            credentials: Credentials::default(),
        };
        Git::new(settings, Arc::new(RandomIds)).fetch(&request).await
    }

    async fn fetch(&self, reference: &str, path: &str) -> Result<Fetched, Error> {
        self.fetch_with(self.settings(), reference, path).await
    }
}

fn names(fetched: &Fetched) -> Vec<&str> {
    fetched.files.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn manifests_of_a_commit_are_read_and_nothing_else() {
    let origin = Origin::new();
    origin.write("app/b.yaml", "b");
    origin.write("app/a.yml", "a\n");
    origin.write("app/deep/c.json", "");
    origin.write("app/.hidden/d.yaml", "no");
    origin.write("app/readme.md", "no");
    origin.write("other/e.yaml", "no");
    std::os::unix::fs::symlink("/etc/passwd", origin.top().join("app/link.yaml")).unwrap();
    let commit = origin.commit("one");
    let fetched = origin.fetch("", "app").await.unwrap();
    assert_eq!(fetched.commit, commit);
    assert_eq!(names(&fetched), ["app/a.yml", "app/b.yaml", "app/deep/c.json"]);
    assert_eq!(fetched.files[0].1, b"a\n");
    assert_eq!(names(&origin.fetch("main", "").await.unwrap()).len(), 4);
    assert_eq!(origin.fetch(&commit, "app").await.unwrap().commit, commit);
    assert!(matches!(origin.fetch("", "nowhere").await, Err(Error::NoPath(_))));
    let missing = origin.fetch("no-such-branch", "").await.unwrap_err();
    assert_eq!(missing.reason(), "FetchFailed");
    assert!(missing.to_string().contains("no-such-branch"), "{missing}");
}

#[tokio::test]
async fn a_force_push_is_followed() {
    let origin = Origin::new();
    origin.write("a.yaml", "1");
    origin.commit("one");
    origin.write("b.yaml", "2");
    origin.commit("two");
    assert_eq!(
        names(&origin.fetch("main", "").await.unwrap()),
        ["a.yaml", "b.yaml"]
    );
    origin.git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    origin.write("c.yaml", "3");
    let commit = origin.commit("another two");
    let fetched = origin.fetch("main", "").await.unwrap();
    assert_eq!(
        (names(&fetched), fetched.commit.clone()),
        (vec!["a.yaml", "c.yaml"], commit)
    );
}

#[tokio::test]
async fn bounds_are_kept() {
    let origin = Origin::new();
    // Random, so that it cannot be packed.
    let large: String = (0..40_000).map(|_| uuid_text()).collect();
    origin.write("a.yaml", &large);
    origin.write("b.yaml", "small");
    origin.commit("one");
    let with = |limits: Limits| {
        origin.fetch_with(
            Settings {
                limits,
                ..origin.settings()
            },
            "",
            "",
        )
    };
    let usual = Limits::default();
    for limits in [
        Limits { files: 1, ..usual },
        Limits { file: 1000, ..usual },
        Limits { total: 1000, ..usual },
        Limits {
            repository: 100_000,
            ..usual
        },
    ] {
        let error = with(limits).await.unwrap_err();
        assert_eq!(error.reason(), "TooLarge", "{limits:?}: {error}");
    }
    assert_eq!(with(usual).await.unwrap().files.len(), 2);
}

fn uuid_text() -> String {
    RandomIds.uuid().simple().to_string()
}

#[tokio::test]
async fn repositories_outside_the_roots_are_refused_also_through_links() {
    let origin = Origin::new();
    origin.write("a.yaml", "1");
    origin.commit("one");
    let roots = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(origin.top(), roots.path().join("link")).unwrap();
    let settings = Settings {
        file_roots: vec![roots.path().to_owned()],
        ..origin.settings()
    };
    let git = Git::new(settings, Arc::new(RandomIds));
    let inside = format!("file://{}", roots.path().join("link").display());
    let outside = format!("file://{}", origin.top().display());
    for url in [
        &*inside,
        &outside,
        "http://example.com/x",
        "ext::sh -c id",
        "ssh://git@example.com/x",
    ] {
        let request = Request {
            uid: "u-1",
            url,
            reference: "",
            path: "",
            timeout: Duration::from_secs(60),
            credentials: Credentials::default(),
        };
        let error = git.fetch(&request).await.unwrap_err();
        assert_eq!(error.reason(), "NotAllowed", "{url}: {error}");
    }
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_by_the_proxy() {
    let origin = Origin::new();
    let git = Git::new(origin.settings(), Arc::new(RandomIds));
    for host in ["127.0.0.1:1", "localhost", "169.254.169.254", "[::1]"] {
        let url = format!("https://{host}/x.git");
        let request = Request {
            uid: "u-1",
            url: &url,
            reference: "",
            path: "",
            timeout: Duration::from_secs(60),
            credentials: Credentials::default(),
        };
        let error = git.fetch(&request).await.unwrap_err();
        assert_eq!(error.reason(), "FetchFailed", "{error}");
        assert!(error.to_string().contains("no public address"), "{host}: {error}");
    }
}

#[tokio::test]
async fn nothing_of_the_repository_or_the_user_is_run() {
    let origin = Origin::new();
    origin.write("a.yaml", "1");
    origin.write(".gitattributes", "*.yaml filter=evil\n");
    origin.commit("one");
    let trace = origin.dir.path().join("ran");
    let script = origin.dir.path().join("evil.sh");
    std::fs::write(&script, format!("#!/bin/sh\ntouch '{}'\n", trace.display())).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let evil = script.display().to_string();
    for key in [
        "core.fsmonitor",
        "filter.evil.smudge",
        "uploadpack.packObjectsHook",
        "core.sshCommand",
    ] {
        origin.git(&["config", key, &evil]);
    }
    std::fs::copy(&script, origin.top().join(".git/hooks/reference-transaction")).unwrap();
    let fetched = origin.fetch("", "").await.unwrap();
    assert_eq!(names(&fetched), ["a.yaml"]);
    assert!(!trace.exists());
}

#[test]
fn answers_of_git_are_taken_apart_exactly() {
    let entry = |size| Entry {
        id: "i".into(),
        size,
        path: "a".into(),
    };
    let good = contents(b"i blob 3\nx\ny\n", vec![entry(3)]).unwrap();
    assert_eq!(good, [("a".to_owned(), b"x\ny".to_vec())]);
    for bad in [&b""[..], b"i missing\n", b"i blob 4\nxyz\n", b"i blob 3\nxy"] {
        assert!(contents(bad, vec![entry(3)]).is_err(), "{bad:?}");
    }
    assert_eq!(Entry::read(b"120000 blob i 3\ta.yaml"), None);
    assert_eq!(Entry::read(b"160000 commit i -\ta.yaml"), None);
    assert_eq!(
        Entry::read(b"100644 blob i 3\tb/a.yaml").unwrap().path,
        "b/a.yaml"
    );
}
