//! `pandactl create task`.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Making;
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::follow::task;
use crate::git;
use crate::session::Session;

/// Arguments of `create task`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl create task fix-login --prompt 'Fix the login redirect loop' --repo . \\
      --verify 'cargo test' --wait
  pandactl create task ask --prompt 'Which license does this use?' --agent claude-code --repo .
  pandactl create task fix-login --prompt @prompt.md --agent codex \\
      --agent claude-code/opus --dry-run=client -o yaml")]
pub struct TaskArgs {
    /// Its name
    pub name: String,
    /// What the agent is asked to do; @FILE reads a file, - standard input
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// An agent to try, with a model if you like; may be repeated, in order [default: any]
    #[arg(long, value_name = "AGENT[/MODEL]")]
    pub agent: Vec<String>,
    /// Work on a git repository of this machine: its folder, or one below it
    #[arg(long, value_name = "DIR")]
    pub repo: Option<String>,
    /// Branch, tag or commit to start from [default: HEAD]
    #[arg(long = "ref", value_name = "REF", requires = "repo")]
    pub ref_: Option<String>,
    /// A check that must pass, run by the platform; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub verify: Vec<String>,
    /// Paths that the work may change, for example 'src/**'; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub writes: Vec<String>,
    /// Move the branch panda/NAME of the repository once the result is accepted
    #[arg(long, requires = "repo")]
    pub push: bool,
    /// A file to keep; may be repeated
    #[arg(long = "output", value_name = "NAME=PATH")]
    pub outputs: Vec<String>,
    /// A variable of the agent's environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub env: Vec<String>,
    /// Capability that the agent must have; may be repeated
    #[arg(long, value_name = "CAPABILITY")]
    pub require: Vec<String>,
    /// Run on this device
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// How long the agent may work in one attempt [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = duration_text)]
    pub attempt_timeout: Option<String>,
    /// Wait until the task has ended
    #[arg(long)]
    pub wait: bool,
    /// How long to wait [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = args::timeout, requires = "wait")]
    pub timeout: Option<Duration>,
    /// With --wait: mirror how the task ended (2 failed, 3 cancelled, 5 in review)
    #[arg(long, requires = "wait")]
    pub exit_status: bool,
    /// none, client or server: say what would be made
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
    /// json, yaml, name or jsonpath=TEMPLATE: show the object
    #[arg(short = 'o', value_name = "FORMAT")]
    pub format: Option<String>,
}

fn duration_text(text: &str) -> Result<String, String> {
    let seconds = args::duration(text)?;
    Ok(if text.bytes().all(|b| b.is_ascii_digit()) {
        format!("{}s", seconds.as_secs())
    } else {
        text.to_owned()
    })
}

pub(crate) async fn run(args: TaskArgs, session: &mut Session<'_>) -> Result<Exit> {
    let object = manifest(&args, session).await?;
    let making = Making {
        dry_run: args.dry_run.clone(),
        output: args.format.clone(),
    };
    let made = making.make(object, session).await?;
    if !args.wait || making.is_dry() {
        return Ok(0);
    }
    let meta = &made["metadata"];
    let (namespace, name) = (
        meta["namespace"].as_str().unwrap_or_default(),
        meta["name"].as_str().unwrap_or_default(),
    );
    match task::finished(session, namespace, name, args.timeout).await? {
        None => Err(task::timed_out(name)),
        Some((task, outcome)) => {
            task::expect_success(&task, outcome, args.exit_status)?;
            session.note(&format!(
                "task/{name} succeeded; `pandactl result task/{name}` shows what it brought"
            ));
            Ok(0)
        }
    }
}

async fn manifest(args: &TaskArgs, session: &mut Session<'_>) -> Result<Value> {
    let mut spec = json!({"prompt": prompt(&args.prompt, session)?});
    if !args.agent.is_empty() {
        spec["agents"] = args
            .agent
            .iter()
            .map(|word| agent(word))
            .collect::<Result<Vec<Value>>>()?
            .into();
    }
    if !args.require.is_empty() {
        spec["requires"] = json!({"capabilities": args.require});
    }
    if let Some(device) = &args.device {
        spec["device"] = json!({"name": device});
    }
    if let Some(repo) = &args.repo {
        spec["workspace"] = workspace(args, repo, session).await?;
    } else if !args.writes.is_empty() {
        spec["workspace"] = json!({"writes": args.writes});
    }
    if !args.outputs.is_empty() {
        let outputs: Result<Vec<Value>> = args
            .outputs
            .iter()
            .map(|text| {
                pair(
                    text,
                    "--output",
                    "report=out/report.md (the format of what is printed is -o)",
                )
                .map(|(name, path)| json!({"name": name, "path": path}))
            })
            .collect();
        spec["outputs"] = outputs?.into();
    }
    if !args.env.is_empty() {
        let env: Result<Vec<Value>> = args
            .env
            .iter()
            .map(|text| {
                pair(text, "--env", "CI=1").map(|(name, value)| json!({"name": name, "value": value}))
            })
            .collect();
        spec["env"] = env?.into();
    }
    if !args.verify.is_empty() {
        spec["verify"] = checks(&args.verify)?.into();
    }
    if let Some(timeout) = &args.attempt_timeout {
        spec["attemptTimeout"] = timeout.as_str().into();
    }
    Ok(json!({
        "apiVersion": "panda.dev/v1alpha1",
        "kind": "Task",
        "metadata": {"name": args.name, "namespace": session.namespace()?},
        "spec": spec,
    }))
}

/// Longest prompt; the API takes no longer one.
const MAX_PROMPT: u64 = 256 << 10;

fn prompt(text: &str, session: &mut Session<'_>) -> Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let (what, read) = if text == "-" {
        (
            "standard input".to_owned(),
            (&mut session.io.stdin)
                .take(MAX_PROMPT + 1)
                .read_to_end(&mut bytes),
        )
    } else if let Some(file) = text.strip_prefix('@') {
        let path = session.io.env.cwd.join(file);
        let read =
            std::fs::File::open(path).and_then(|open| open.take(MAX_PROMPT + 1).read_to_end(&mut bytes));
        (file.to_owned(), read)
    } else {
        return Ok(text.to_owned());
    };
    read.map_err(|error| Error::file("read", Path::new(&what), &error))?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(Error::user(format!("{what} is larger than {MAX_PROMPT} bytes"))
            .hint("put long material into files of the workspace, and name them in the prompt"));
    }
    String::from_utf8(bytes).map_err(|_| Error::user(format!("{what} is not UTF-8")).hint("save it as UTF-8"))
}

/// `AGENT`, or `AGENT/MODEL`; a model may hold slashes.
fn agent(word: &str) -> Result<Value> {
    let (name, model) = word.split_once('/').unwrap_or((word, ""));
    if name.is_empty() {
        return Err(Error::user(format!("--agent {word:?}: no name"))
            .hint("for example --agent claude-code or --agent codex/gpt-5"));
    }
    Ok(if model.is_empty() {
        json!({"name": name})
    } else {
        json!({"name": name, "model": model})
    })
}

fn pair<'a>(text: &'a str, flag: &str, example: &str) -> Result<(&'a str, &'a str)> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| {
            Error::user(format!("{flag}: want NAME=VALUE")).hint(format!("for example {flag} {example}"))
        })
}

/// Checks with names. A command is split at spaces, with quotes as in a shell; nothing else of a shell is there.
fn checks(commands: &[String]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (at, text) in commands.iter().enumerate() {
        let command = words(text).filter(|words| !words.is_empty()).ok_or_else(|| {
            Error::user(format!(
                "--verify {text:?}: no command, or a quote without its end"
            ))
            .hint("for example --verify 'cargo test', or --verify \"sh -c 'make && make test'\"")
        })?;
        if let Some(odd) = command
            .iter()
            .find(|word| matches!(word.as_str(), "&&" | "||" | "|" | ";" | ">" | "<"))
        {
            return Err(
                Error::user(format!("--verify {text:?}: {odd} needs a shell")).hint(format!(
                    "write --verify \"sh -c '{}'\"",
                    text.replace('\'', "'\\''")
                )),
            );
        }
        let name = if commands.len() == 1 {
            "verify".to_owned()
        } else {
            format!("verify-{}", at + 1)
        };
        all.push(json!({"name": name, "command": command}));
    }
    Ok(all)
}

/// Splits at spaces; single quotes keep all, double quotes let a backslash escape, as outside.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut all, mut word, mut open) = (Vec::new(), String::new(), false);
    let mut chars = text.chars();
    let mut quote = None;
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), c) => word.push(c),
            (_, '\\') => {
                word.push(chars.next()?);
                open = true;
            }
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                open = true;
            }
            (None, c) if c.is_whitespace() => {
                if open {
                    all.push(std::mem::take(&mut word));
                    open = false;
                }
            }
            (None, c) => {
                word.push(c);
                open = true;
            }
        }
    }
    if quote.is_some() {
        return None;
    }
    if open {
        all.push(word);
    }
    Some(all)
}

async fn workspace(args: &TaskArgs, repo: &str, session: &Session<'_>) -> Result<Value> {
    if repo.contains("://") || repo.starts_with("git@") {
        return Err(
            Error::user(format!("--repo {repo}: want a folder of this machine"))
                .hint("clone it first, or write a manifest with spec.workspace.git.url"),
        );
    }
    let top = git::top_level(&session.io.env.cwd.join(repo)).await?;
    let Some(path) = top.to_str() else {
        return Err(Error::user("the path of the repository is not UTF-8").hint("move it to another place"));
    };
    if !git::has_commit(&top).await? {
        return Err(Error::user(format!("{path} has no commit yet"))
            .hint("make one: `git add -A && git commit`; agents work on commits"));
    }
    let changed = git::changed(&top).await?.len();
    if changed > 0 && args.ref_.is_none() {
        session.note(&format!(
            "Warning: {changed} uncommitted {} in {path}: the agent works on the last commit and will not see {}\n\
             hint: commit or stash first if it should (`git -C {path} status` lists them)",
            if changed == 1 { "change" } else { "changes" },
            if changed == 1 { "it" } else { "them" },
        ));
    }
    let mut git_spec = json!({"path": path});
    if let Some(ref_) = &args.ref_ {
        let commit = git::call(
            &top,
            &["rev-parse", "--verify", "--quiet", &format!("{ref_}^{{commit}}")],
            None,
        )
        .await?;
        if ref_.starts_with('-') || !commit.ok {
            return Err(
                Error::user(format!("--ref {ref_:?} is no branch, tag or commit of {path}"))
                    .hint("`git branch -a` and `git tag` list what there is"),
            );
        }
        git_spec["ref"] = ref_.as_str().into();
    }
    let mut workspace = json!({"git": git_spec});
    if !args.writes.is_empty() {
        workspace["writes"] = json!(args.writes);
    }
    if args.push {
        workspace["result"] = json!({"push": "OnSuccess"});
    }
    Ok(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_a_shell_splits_plain_words() {
        let split = |text: &str| words(text);
        assert_eq!(
            split("cargo test  -p x"),
            Some(vec!["cargo".into(), "test".into(), "-p".into(), "x".into()])
        );
        assert_eq!(
            split(r#"sh -c 'a && b' "" "q\"q""#),
            Some(vec![
                "sh".into(),
                "-c".into(),
                "a && b".into(),
                String::new(),
                "q\"q".into()
            ])
        );
        assert_eq!(split("a 'b"), None);
        assert_eq!(split("  "), Some(vec![]));
        assert!(checks(&["make && make test".into()]).unwrap_err().hints[0].contains("sh -c"));
    }

    #[test]
    fn agents_may_name_a_model_with_slashes() {
        assert_eq!(agent("grok").unwrap(), json!({"name": "grok"}));
        assert_eq!(
            agent("opencode/openai/gpt").unwrap(),
            json!({"name": "opencode", "model": "openai/gpt"})
        );
        assert!(agent("/x").is_err());
    }
}
