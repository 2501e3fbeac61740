//! `pandactl result`: what a task brought.

mod apply;

use std::path::{Path, PathBuf};

use futures::StreamExt;
use panda_api::{Run, Task};
use panda_client::Api;
use tokio::io::AsyncWriteExt;

use super::describe::check_line;
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text;
use crate::session::Session;

/// Arguments of `result`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl result task/fix-login
  pandactl result task/fix-login --patch | git apply --3way
  pandactl result task/fix-login --apply .
  pandactl result task/fix-login -o ./out

--apply changes files only; nothing is committed. It checks everything first, and
touches nothing when the patch does not fit or when files that it would change have
local changes.")]
pub struct ResultArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK")]
    pub task: String,
    /// Write the patch to standard output
    #[arg(long, conflicts_with_all = ["apply", "output_dir"])]
    pub patch: bool,
    /// Apply the patch to a git repository
    #[arg(long, value_name = "DIR", conflicts_with = "output_dir")]
    pub apply: Option<PathBuf>,
    /// Save the patch and all artifacts into a folder
    #[arg(short = 'o', long = "output-dir", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
}

/// A task with the run whose result counts.
struct Brought {
    task: Task,
    run: Run,
    runs: Api<Run>,
}

pub(crate) async fn run(args: ResultArgs, session: &mut Session<'_>) -> Result<Exit> {
    let name = args::task_name(&args.task)?;
    let brought = find(&name, session).await?;
    if brought.task.status.accepted_run.is_empty() {
        session.note(&format!(
            "Warning: no result of task/{name} was accepted; this is what its newest attempt ({}) left",
            brought
                .run
                .status
                .phase
                .map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}"))
        ));
    }
    if args.patch {
        patch(&brought, session).await?;
    } else if let Some(folder) = &args.apply {
        let bytes = whole_patch(&brought).await?;
        let folder = session.io.env.cwd.join(folder);
        apply::run(&name, &folder, &bytes, session).await?;
    } else if let Some(folder) = &args.output_dir {
        let folder = session.io.env.cwd.join(folder);
        save(&brought, &folder, session).await?;
    } else {
        let text = summary(&brought);
        session.out(text)?;
    }
    Ok(0)
}

async fn find(name: &str, session: &mut Session<'_>) -> Result<Brought> {
    let namespace = session.namespace()?;
    let tasks: Api<Task> = Api::namespaced(session.client()?, &namespace);
    let runs: Api<Run> = Api::namespaced(session.client()?, &namespace);
    let task = tasks.get(name).await?;
    let status = &task.status;
    let run = if status.accepted_run.is_empty() {
        &status.current_run
    } else {
        &status.accepted_run
    };
    if run.is_empty() {
        return Err(Error::user(format!("task/{name} has had no attempt yet"))
            .hint(format!("`pandactl wait task/{name}` waits for it; `pandactl explain-wait task/{name}` says why it waits")));
    }
    let run = runs.get(run).await?;
    Ok(Brought { task, run, runs })
}

fn no_patch(brought: &Brought) -> Error {
    let name = &brought.task.metadata.name;
    let ended = brought
        .run
        .status
        .phase
        .is_some_and(panda_api::RunPhase::is_terminal);
    if ended || !brought.task.status.accepted_run.is_empty() {
        if brought.run.status.changed_files.is_empty() {
            Error::user(format!("task/{name} changed no files: there is no patch"))
                .hint(format!("`pandactl result task/{name}` shows what it answered"))
        } else {
            // Without a repository there is nothing that a patch could be made against.
            Error::user(format!(
                "task/{name} has no patch: it did not work on a git repository"
            ))
            .hint(format!(
                "`pandactl result task/{name} -o DIR` saves its artifacts (spec.outputs names them)"
            ))
        }
    } else {
        Error::user(format!("task/{name} has no result yet"))
            .hint(format!("`pandactl wait task/{name}` waits for it"))
    }
}

fn has_patch(brought: &Brought) -> bool {
    brought
        .run
        .status
        .result
        .as_ref()
        .is_some_and(|result| result.patch.as_ref().is_some_and(|patch| patch.size > 0))
}

async fn patch(brought: &Brought, session: &mut Session<'_>) -> Result<()> {
    if !has_patch(brought) {
        return Err(no_patch(brought));
    }
    let mut body = brought
        .runs
        .stream_subresource(&brought.run.metadata.name, "artifacts/patch", &[])
        .await?;
    let mut size = 0_u64;
    // On a terminal a patch is something to read; elsewhere it is data.
    let mut cleaner = session.io.terminal.stdout.then(|| text::LogCleaner::new(false));
    while let Some(part) = body.next().await {
        let part = part.map_err(|error| Error::from(panda_client::Error::Transport(error)))?;
        size += part.len() as u64;
        match &mut cleaner {
            Some(cleaner) => {
                let text = cleaner.push(&part);
                session.out(text)?;
            }
            None => session.out(&part)?,
        }
    }
    complete(brought, "patch", size)
}

async fn whole_patch(brought: &Brought) -> Result<Vec<u8>> {
    if !has_patch(brought) {
        return Err(no_patch(brought));
    }
    let bytes = brought
        .runs
        .get_subresource(&brought.run.metadata.name, "artifacts/patch", &[])
        .await?;
    complete(brought, "patch", bytes.len() as u64)?;
    Ok(bytes.to_vec())
}

/// Half a patch must not be taken for a whole one.
fn complete(brought: &Brought, name: &str, size: u64) -> Result<()> {
    let wanted = sizes(brought)
        .into_iter()
        .find(|(artifact, _)| artifact == name)
        .map(|(_, size)| size);
    match wanted {
        Some(wanted) if wanted != size => Err(Error::user(format!("{name}: {size} of {wanted} bytes came"))
            .hint("run the command again: the connection broke half-way")),
        _ => Ok(()),
    }
}

/// Everything that can be fetched, with its size.
fn sizes(brought: &Brought) -> Vec<(String, u64)> {
    let Some(result) = &brought.run.status.result else {
        return Vec::new();
    };
    let blobs = [("patch", &result.patch), ("bundle", &result.bundle)];
    let mut all: Vec<(String, u64)> = blobs
        .into_iter()
        .filter_map(|(name, blob)| Some((name.to_owned(), blob.as_ref()?.size)))
        .collect();
    all.extend(
        result
            .artifacts
            .iter()
            .map(|artifact| (artifact.name.clone(), artifact.size)),
    );
    all
}

async fn save(brought: &Brought, folder: &Path, session: &mut Session<'_>) -> Result<()> {
    let all: Vec<(String, u64)> = sizes(brought).into_iter().filter(|(_, size)| *size > 0).collect();
    if all.is_empty() {
        return Err(no_patch(brought));
    }
    std::fs::create_dir_all(folder).map_err(|error| Error::file("make", folder, &error))?;
    for (name, _) in all {
        let file = file_name(&name);
        let path = folder.join(&file);
        let temporary = tempfile::NamedTempFile::new_in(folder)
            .map_err(|error| Error::file("write in", folder, &error))?;
        let open = temporary
            .reopen()
            .map_err(|error| Error::file("write", &path, &error))?;
        let mut out = tokio::fs::File::from_std(open);
        let mut body = brought
            .runs
            .stream_subresource(&brought.run.metadata.name, &format!("artifacts/{name}"), &[])
            .await?;
        let mut size = 0_u64;
        while let Some(part) = body.next().await {
            let part = part.map_err(|error| Error::from(panda_client::Error::Transport(error)))?;
            size += part.len() as u64;
            out.write_all(&part)
                .await
                .map_err(|error| Error::file("write", &path, &error))?;
        }
        out.flush()
            .await
            .map_err(|error| Error::file("write", &path, &error))?;
        complete(brought, &name, size)?;
        temporary.persist_noclobber(&path).map_err(|error| {
            Error::file("write", &path, &error.error).hint("choose an empty folder: nothing is overwritten")
        })?;
        let line = format!("{}\n", text::line(&path.display().to_string()));
        session.out(line)?;
    }
    Ok(())
}

/// A file name out of an artifact's name: it stays in the folder, whatever the name says.
fn file_name(name: &str) -> String {
    match name {
        "patch" => "changes.patch".to_owned(),
        "bundle" => "commits.bundle".to_owned(),
        name => {
            let safe: String = name
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') {
                        c
                    } else {
                        '_'
                    }
                })
                .collect();
            if safe.trim_matches('.').is_empty() {
                "artifact".to_owned()
            } else {
                safe.trim_start_matches('.').to_owned()
            }
        }
    }
}

fn summary(brought: &Brought) -> String {
    let (task, run) = (&brought.task, &brought.run);
    let name = text::line(&task.metadata.name);
    let mut out = String::new();
    let phase = task
        .status
        .phase
        .map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}"));
    out.push_str(&format!(
        "task/{name}: {phase}, attempt {} by {} on {}\n",
        run.spec.attempt,
        text::line(&run.spec.agent.name),
        text::line(&run.spec.device_name)
    ));
    if let Some(failure) = &run.status.failure {
        out.push_str(&format!(
            "Failure: {:?}: {}\n",
            failure.reason,
            text::line(&failure.message)
        ));
    }
    let result = run.status.result.clone().unwrap_or_default();
    if !result.summary.is_empty() {
        out.push_str(&format!("\n{}\n", text::line(&result.summary)));
    }
    if !result.answer.is_empty() && result.answer.trim() != result.summary.trim() {
        out.push_str(&format!("\n{}\n", text::lines(result.answer.trim_end())));
    }
    if !run.status.changed_files.is_empty() {
        out.push_str(&format!(
            "\nChanged files ({}):\n",
            text::line(run.status.diffstat.trim())
        ));
        for file in &run.status.changed_files {
            out.push_str(&format!("  {}\n", text::line(file)));
        }
    }
    if !run.status.verify.is_empty() {
        out.push_str("\nVerification:\n");
        for check in &run.status.verify {
            out.push_str(&format!("  {}\n", text::line(&check_line(check))));
        }
    }
    if !result.artifacts.is_empty() {
        out.push_str("\nArtifacts:\n");
        for artifact in &result.artifacts {
            out.push_str(&format!(
                "  {}  {} bytes  {}\n",
                text::line(&artifact.name),
                artifact.size,
                text::line(&artifact.path)
            ));
        }
    }
    let published = task
        .status
        .result
        .as_ref()
        .map_or("", |result| result.branch.as_str());
    if !published.is_empty() {
        out.push_str(&format!("\nBranch: {}\n", text::line(published)));
    }
    if result.patch.as_ref().is_some_and(|patch| patch.size > 0) {
        out.push_str(&format!(
            "\nTake it over: pandactl result task/{name} --apply .   (--patch shows it)\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_stay_in_their_folder() {
        for (name, file) in [
            ("report", "report"),
            ("../../etc/passwd", "_.._etc_passwd"),
            ("..", "artifact"),
            (".bashrc", "bashrc"),
            ("a/b", "a_b"),
        ] {
            assert_eq!(file_name(name), file);
            assert!(!file_name(name).contains('/'));
        }
    }
}
