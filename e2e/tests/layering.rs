//! Who may depend on whom: the arrows of ARCHITECTURE.md, held against `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate of ours → crates of ours that it may depend on. An edge that is not here is forbidden.
const ALLOWED: &[(&str, &[&str])] = &[
    ("panda-api", &[]),
    ("panda-rpc", &["panda-api"]),
    ("panda-client", &["panda-api"]),
    ("panda-store", &["panda-api"]),
    (
        "panda-apiserver",
        &["panda-api", "panda-rpc", "panda-client", "panda-store"],
    ),
    ("panda-controllers", &["panda-api", "panda-client"]),
    ("panda-sandbox", &[]),
    (
        "panda-agentlet",
        &["panda-api", "panda-client", "panda-rpc", "panda-sandbox"],
    ),
    (
        "pandactl",
        &[
            "panda-api",
            "panda-client",
            "panda-rpc",
            "panda-apiserver",
            "panda-controllers",
            "panda-agentlet",
            "panda-store",
        ],
    ),
    ("panda-e2e", &["*"]),
];

/// Third-party crate → the only crates of ours that may use it directly.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("rusqlite", &["panda-store", "panda-agentlet", "panda-e2e"]),
    ("landlock", &["panda-sandbox"]),
    ("axum", &["panda-apiserver", "panda-e2e"]),
    ("rcgen", &["panda-apiserver", "panda-agentlet", "panda-e2e"]),
];

/// Crates that `panda-api` must never pull in, at any depth: it has no runtime and no I/O.
const NOT_IN_API: &[&str] = &["tokio", "hyper", "rusqlite", "rustls", "tonic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("e2e lies in the workspace")
        .to_owned()
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .args(["--filter-platform", &host()])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// The target triple of this machine: packages for others need not be downloaded.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines()
        .find_map(|l| l.strip_prefix("host: "))
        .expect("rustc names its host")
        .to_owned()
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().expect("a string")
}

/// Member → its direct dependencies, development ones left out.
fn direct(metadata: &serde_json::Value) -> BTreeMap<String, BTreeSet<String>> {
    let members: BTreeSet<&str> = metadata["workspace_members"]
        .as_array()
        .expect("members")
        .iter()
        .map(text)
        .collect();
    let mut out = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        if members.contains(text(&package["id"])) {
            let dependencies = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .filter(|d| d["kind"].as_str() != Some("dev"))
                .map(|d| text(&d["name"]).to_owned())
                .collect();
            out.insert(text(&package["name"]).to_owned(), dependencies);
        }
    }
    out
}

#[test]
fn arrows_only_point_down() {
    let direct = direct(&metadata());
    let known: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    assert_eq!(
        direct.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        known.keys().copied().collect::<BTreeSet<_>>(),
        "every member has its row here"
    );
    for (name, dependencies) in &direct {
        let allowed = known[name.as_str()];
        for dependency in dependencies {
            if direct.contains_key(dependency) && !allowed.contains(&"*") {
                assert!(
                    allowed.contains(&dependency.as_str()),
                    "{name} must not depend on {dependency}"
                );
            }
        }
    }
}

#[test]
fn third_party_crates_stay_behind_their_walls() {
    let direct = direct(&metadata());
    for (guarded, wrappers) in WRAPPERS {
        for (name, dependencies) in &direct {
            assert!(
                !dependencies.contains(*guarded) || wrappers.contains(&name.as_str()),
                "{name} must not use {guarded} directly; only {wrappers:?} may"
            );
        }
    }
}

#[test]
fn the_api_has_no_runtime() {
    let metadata = metadata();
    let nodes: BTreeMap<&str, &serde_json::Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|n| (text(&n["id"]), n))
        .collect();
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|p| (text(&p["id"]), text(&p["name"])))
        .collect();
    let start = names
        .iter()
        .find(|(_, name)| **name == "panda-api")
        .expect("panda-api is a member")
        .0;
    let mut todo = vec![*start];
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        assert!(
            !NOT_IN_API.contains(&names[id]),
            "panda-api pulls in {}",
            names[id]
        );
        for dependency in nodes[id]["deps"].as_array().expect("deps") {
            let normal = dependency["dep_kinds"]
                .as_array()
                .expect("kinds")
                .iter()
                .any(|k| k["kind"].is_null());
            if normal {
                todo.push(text(&dependency["pkg"]));
            }
        }
    }
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    for (name, _) in ALLOWED {
        let manifest = metadata_manifest(name);
        let text = std::fs::read_to_string(&manifest).expect("manifest");
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{} lacks [lints] workspace = true",
            manifest.display()
        );
    }
}

fn metadata_manifest(name: &str) -> PathBuf {
    let metadata = metadata();
    let package = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .find(|p| text(&p["name"]) == name)
        .expect("a member");
    PathBuf::from(text(&package["manifest_path"]))
}

#[test]
fn modules_stay_small() {
    let mut too_long = Vec::new();
    for folder in ["api", "apiserver", "controllers", "agentlet", "pandactl", "e2e"] {
        walk(&root().join(folder), &mut |path| {
            if path.extension().is_some_and(|e| e == "rs") {
                let lines = std::fs::read_to_string(path).expect("source").lines().count();
                if lines > 800 {
                    too_long.push(format!("{} has {lines} lines", path.display()));
                }
                assert!(
                    path.file_name().is_some_and(|n| n != "mod.rs"),
                    "{} is a mod.rs",
                    path.display()
                );
            }
        });
    }
    assert!(too_long.is_empty(), "split these (limit 800): {too_long:#?}");
}

#[test]
fn top_level_folders_are_the_agreed_ones() {
    let allowed = [
        "api",
        "apiserver",
        "controllers",
        "agentlet",
        "pandactl",
        "manifests",
        "e2e",
        "examples",
    ];
    let output = Command::new("git")
        .args(["ls-tree", "-d", "--name-only", "HEAD"])
        .current_dir(root())
        .output()
        .expect("git runs");
    for folder in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        assert!(
            folder.starts_with('.') || allowed.contains(&folder),
            "{folder} is no agreed top-level folder"
        );
    }
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                walk(&path, visit);
            }
        } else {
            visit(&path);
        }
    }
}
