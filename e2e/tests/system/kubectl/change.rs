//! label, annotate, patch, edit, apply, diff.

use std::os::unix::fs::PermissionsExt;

use anyhow::ensure;

use super::{Kubectl, manifest, says};

#[tokio::test]
async fn kubectl_labels_annotates_patches_and_edits() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    kubectl.ended_task("a").await?;
    let field = |path: &str| kubectl.ok(&["get", "task", "a", "-o", &format!("jsonpath={{{path}}}")]);

    kubectl.ok(&["label", "task", "a", "x=y"])?;
    says(&kubectl.fails(&["label", "task", "a", "x=z"])?, &["--overwrite"])?;
    kubectl.ok(&["label", "task", "a", "x=z", "--overwrite"])?;
    says(
        &kubectl.ok(&["label", "task", "a", "--list"])?,
        &["team=a", "x=z"],
    )?;
    kubectl.ok(&["label", "tasks", "--all", "x-"])?;
    ensure!(field(".metadata.labels.x")?.is_empty());
    kubectl.ok(&["annotate", "task", "a", "example.com/x=y"])?;
    ensure!(field(".metadata.annotations.example\\.com/x")? == "y");

    let merge = r#"{"spec":{"priority":5}}"#;
    kubectl.ok(&["patch", "task", "a", "--type", "merge", "-p", merge])?;
    ensure!(field(".spec.priority")? == "5");
    let ops = r#"[{"op":"test","path":"/spec/priority","value":5},{"op":"replace","path":"/spec/priority","value":6}]"#;
    kubectl.ok(&["patch", "task", "a", "--type", "json", "-p", ops])?;
    ensure!(field(".spec.priority")? == "6");
    says(
        &kubectl.fails(&["patch", "task", "a", "--type", "json", "-p", ops])?,
        &["/spec/priority"],
    )?;
    let strategic = kubectl.fails(&["patch", "task", "a", "-p", merge])?;
    says(&strategic, &["strategic-merge-patch", "is not supported"])?;

    let editor = kubectl.file(
        "editor",
        "#!/bin/sh\nsed -i 's/priority: 6/priority: 8/' \"$1\"\n",
    )?;
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755))?;
    let edited = kubectl
        .command(&["edit", "task", "a"])
        .env("EDITOR", &editor)
        .output()?;
    ensure!(edited.status.success(), "{edited:?}");
    ensure!(field(".spec.priority")? == "8");
    Ok(())
}

#[tokio::test]
async fn kubectl_applies_and_shows_what_would_change() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    kubectl.ended_task("a").await?;
    let file = kubectl.file("changed.yaml", &manifest("a", "Say bye."))?;
    // kubectl takes the difference from an ordinary patch with dryRun=All, not from an apply patch.
    let difference = kubectl.fails(&["diff", "-f", &file])?;
    says(&difference, &["-  prompt: Say hello.", "+  prompt: Say bye."])?;
    let version = ["get", "task", "a", "-o", "jsonpath={.metadata.resourceVersion}"];
    let before = kubectl.ok(&version)?;
    says(
        &kubectl.ok(&["apply", "-f", &file, "--dry-run=server"])?,
        &["configured (server dry run)"],
    )?;
    ensure!(kubectl.ok(&version)? == before, "a dry run changed the task");
    says(&kubectl.ok(&["apply", "-f", &file])?, &["configured"])?;
    says(&kubectl.ok(&["apply", "-f", &file])?, &["unchanged"])?;
    ensure!(kubectl.ok(&["diff", "-f", &file])?.is_empty());
    says(
        &kubectl.fails(&["apply", "--server-side", "-f", &file])?,
        &["not available on the server"],
    )?;

    let bad = kubectl.file(
        "bad.yaml",
        &manifest("bad", "Say hello.").replace("prompt:", "promt:"),
    )?;
    says(
        &kubectl.fails(&["create", "-f", &bad])?,
        &["unknown field \"spec.promt\""],
    )?;
    says(&kubectl.ok(&["replace", "-f", &file])?, &["replaced"])
}
