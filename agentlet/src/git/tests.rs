use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::source::is_ref_name;
use super::{Error, Git, is_object_id};
use crate::workspace::fixture::{Fixture, git_program};

fn git(timeout: Duration, max_output: u64) -> Git {
    Git::new(git_program(), timeout, max_output)
}

#[tokio::test]
async fn call_that_does_not_end_is_ended_and_leaves_no_process() {
    let fixture = Fixture::new();
    let git = git(Duration::from_millis(200), 1000);
    let (reader, writer) = std::io::pipe().unwrap();
    let error = git
        .call("cat-file")
        .git_dir(&fixture.repo().join(".git"))
        .arg("--batch")
        .input_pipe(reader)
        .run()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.is_retryable());
    git.settle().await;
    drop(writer);
}

#[tokio::test]
async fn output_is_bounded_and_failures_say_what_git_said() {
    let fixture = Fixture::new();
    let git_dir = fixture.repo().join(".git");
    let git = git(Duration::from_secs(60), 10);
    let error = git
        .call("cat-file")
        .git_dir(&git_dir)
        .args(["-p", "HEAD"])
        .run()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooMuch { limit: 10, .. }), "{error}");
    let error = git
        .call("cat-file")
        .git_dir(&git_dir)
        .args(["-p", "nonsense"])
        .run()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn program_that_is_missing_is_named() {
    let git = Git::new(PathBuf::from("/nonexistent/git"), Duration::from_secs(1), 10);
    let error = git.call("version").run().await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent/git"), "{error}");
}

#[tokio::test]
async fn no_transport_is_allowed() {
    let fixture = Fixture::new();
    let git = git(Duration::from_secs(60), 1000);
    for url in [
        fixture.repo().display().to_string(),
        format!("file://{}", fixture.repo().display()),
        format!("ext::touch {}", fixture.path().join("canary").display()),
        "https://127.0.0.1:9/x".to_owned(),
    ] {
        let error = git.call("ls-remote").arg(url).run().await.unwrap_err();
        assert!(error.to_string().contains("not allowed"), "{error}");
    }
    assert!(!fixture.path().join("canary").exists());
}

#[tokio::test]
async fn search_for_a_repository_does_not_go_upwards() {
    let fixture = Fixture::new();
    let below = fixture.repo().join("below");
    fs::create_dir(&below).unwrap();
    let git = git(Duration::from_secs(60), 1000);
    git.call("rev-parse")
        .cwd(&below)
        .arg("--git-dir")
        .run()
        .await
        .unwrap_err();
}

#[test]
fn names_of_branches_follow_the_rules_of_git() {
    for good in ["main", "panda/fix-1", "a.b", "ünï", "x@y"] {
        assert!(is_ref_name(good), "{good}");
    }
    for bad in [
        "", "-x", "@", "a..b", "a//b", "/a", "a/", ".a", "a/.b", "a.lock", "a.lock/b", "a b", "a~1", "a^",
        "a:b", "a?", "a*", "a[", "a\\b", "a\nb", "a@{1}", "a.",
    ] {
        assert!(!is_ref_name(bad), "{bad:?}");
    }
}

#[test]
fn ids_of_objects_are_recognised() {
    assert!(is_object_id(&"a1".repeat(20)));
    assert!(is_object_id(&"a1".repeat(32)));
    assert!(!is_object_id(&"A1".repeat(20)));
    assert!(!is_object_id("a1"));
}
