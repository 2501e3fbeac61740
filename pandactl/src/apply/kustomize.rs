//! `-k`: a folder is built by the kustomize tool itself, on its own or inside kubectl. There is no copy of it here: half of
//! it would give other objects than the tool.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use panda_api::manifest;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::error::{Error, Result};
use crate::io::Env;
use crate::output::text;

/// How long a build may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most of the tool's complaints that is shown, in bytes.
const MAX_COMPLAINT: u64 = 64 * 1024;
/// The tools, in the order in which they are tried, with what comes before the folder.
const TOOLS: [(&str, &[&str]); 2] = [("kustomize", &["build"]), ("kubectl", &["kustomize"])];

/// The manifests of a folder that holds a kustomization.
///
/// # Errors
/// When there is no tool, or when it fails, takes too long or says too much.
pub async fn build(env: &Env, folder: &str) -> Result<Vec<u8>> {
    if folder.contains("://") {
        return Err(Error::user(format!(
            "{folder}: kustomizations are not fetched from the network"
        ))
        .hint("clone the repository, look at it, and name the folder"));
    }
    let Some((program, args)) = find(env) else {
        return Err(
            Error::user("-k needs the kustomize tool, and neither kustomize nor kubectl is on PATH")
                .hint("install one of them; or build elsewhere and pipe: `kustomize build DIR | pandactl apply -f -`"),
        );
    };
    // A folder that looks like a flag stays a folder.
    let folder_arg = if folder.starts_with('-') {
        format!("./{folder}")
    } else {
        folder.to_owned()
    };
    let mut child = Command::new(&program)
        .args(args)
        .arg(&folder_arg)
        .current_dir(&env.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| Error::file("run", &program, &error))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (mut built, mut said) = (Vec::new(), Vec::new());
        let read = async {
            if let Some(stdout) = stdout {
                let limit = manifest::MAX_FILE_BYTES as u64 + 1;
                stdout.take(limit).read_to_end(&mut built).await?;
            }
            std::io::Result::Ok(())
        };
        let complain = async {
            if let Some(mut stderr) = stderr {
                (&mut stderr).take(MAX_COMPLAINT).read_to_end(&mut said).await?;
                // The rest is read and dropped, so that the tool is never held up.
                tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
            }
            std::io::Result::Ok(())
        };
        tokio::try_join!(read, complain)?;
        if built.len() > manifest::MAX_FILE_BYTES {
            return Ok((built, said, None));
        }
        let status = child.wait().await?;
        std::io::Result::Ok((built, said, Some(status)))
    };
    let shown = program.display();
    let (built, said, status) = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| {
            Error::user(format!("{shown} did not end within {PATIENCE:?}")).hint("run it by hand to see why")
        })?
        .map_err(|error| Error::file("run", &program, &error))?;
    match status {
        None => Err(Error::user(format!(
            "{shown} gives more than {} bytes",
            manifest::MAX_FILE_BYTES
        ))
        .hint("divide the kustomization")),
        Some(status) if !status.success() => {
            let said = text::lines(String::from_utf8_lossy(&said).trim());
            Err(Error::user(format!("{shown} failed: {said}")).hint(format!(
                "correct the kustomization in {folder}; `{}` shows the same",
                by_hand(args, folder)
            )))
        }
        Some(_) => Ok(built),
    }
}

fn by_hand(args: &[&str], folder: &str) -> String {
    let tool = TOOLS
        .iter()
        .find(|(_, known)| *known == args)
        .map_or("kustomize", |(tool, _)| tool);
    format!("{tool} {} {folder}", args.join(" "))
}

/// The first tool on the search path.
fn find(env: &Env) -> Option<(PathBuf, &'static [&'static str])> {
    TOOLS.iter().find_map(|(name, args)| {
        let folders = env.var("PATH")?.split(':').filter(|folder| !folder.is_empty());
        let mut programs = folders.map(|folder| env.cwd.join(folder).join(name));
        let is_program = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        programs.find(is_program).map(|program| (program, *args))
    })
}
