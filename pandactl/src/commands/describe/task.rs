//! Tasks and runs.

use panda_api::{AgentChoice, Failure, Run, Task, TaskResult, Usage, VerifyResult, WorkspaceSpec};
use panda_client::Api;

use super::super::logs::runs_of;
use super::page::Page;
use crate::error::Result;
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Lines of a failed check that are shown.
const TAIL: usize = 20;
/// Changed files that are shown.
const MAX_FILES: usize = 40;

pub(super) async fn task(page: &mut Page, task: &Task, session: &mut Session<'_>) -> Result<()> {
    let (spec, status) = (&task.spec, &task.status);
    let runs: Api<Run> = Api::namespaced(session.client()?, &task.metadata.namespace);
    let runs = runs_of(&runs, task).await?;
    page.field(
        "Phase",
        &status
            .phase
            .map_or_else(|| "(not looked at yet)".to_owned(), |phase| format!("{phase:?}")),
    );
    failure(page, status.failure.as_ref());
    let agents: Vec<String> = spec.agents.iter().map(choice).collect();
    page.field(
        "Agents",
        &if agents.is_empty() {
            "any that is able".to_owned()
        } else {
            agents.join(", ")
        },
    );
    page.field("Agent", &status.agent);
    page.field("Device", &status.device);
    page.field("Run", &status.current_run);
    page.field("Accepted", &status.accepted_run);
    workspace(page, spec.workspace.as_ref());
    flags(page, task);
    usage(page, &status.usage);
    page.heading("Prompt");
    let prompt: String = spec.prompt.chars().take(2000).collect();
    page.block(&prompt);
    if prompt.len() < spec.prompt.len() {
        page.item("(cut: -o yaml shows all of it)");
    }
    if !status.unschedulable.is_empty() {
        page.heading("Waits for a device");
        let mut rows = vec![["DEVICE", "REASON", "WHY"].map(str::to_owned).to_vec()];
        for refusal in &status.unschedulable {
            let device = if refusal.device.is_empty() {
                "(any)"
            } else {
                &refusal.device
            };
            rows.push(vec![
                text::line(device),
                format!("{:?}", refusal.reason),
                text::line(&refusal.message),
            ]);
        }
        page.block(&align(&rows));
        page.item(&format!(
            "`pandactl explain-wait task/{}` says what would help",
            task.metadata.name
        ));
    }
    if let Some(next) = &status.next_attempt_time {
        page.field("Next attempt", &format!("not before {next}"));
    }
    attempts(page, &runs);
    let shown = if status.accepted_run.is_empty() {
        &status.current_run
    } else {
        &status.accepted_run
    };
    if let Some(run) = runs.iter().find(|run| run.metadata.name == *shown) {
        checks(page, &run.status.verify);
        changes(page, run);
    }
    if let Some(result) = &status.result {
        self::result(page, result);
    }
    Ok(())
}

pub(super) fn run(page: &mut Page, run: &Run) {
    let (spec, status) = (&run.spec, &run.status);
    page.field("Task", &spec.task_ref.name);
    page.field("Attempt", &spec.attempt.to_string());
    page.field("Role", &format!("{:?}", spec.role));
    page.field(
        "Phase",
        &status
            .phase
            .map_or_else(|| "(not looked at yet)".to_owned(), |phase| format!("{phase:?}")),
    );
    failure(page, status.failure.as_ref());
    page.field("Agent", &choice(&spec.agent));
    page.field("Device", &spec.device_name);
    if let Some(epoch) = spec.lease_epoch {
        page.field("Epoch", &epoch.to_string());
    }
    for (name, time) in [
        ("Bound", &status.bind_time),
        ("Started", &status.start_time),
        ("Ended", &status.completion_time),
    ] {
        if let Some(time) = time {
            page.field(name, &time.to_string());
        }
    }
    workspace(page, spec.workspace.as_ref());
    page.field("Session", &status.session_id);
    usage(page, &status.usage);
    if let Some(processes) = status.processes {
        page.field("Processes", &format!("{processes} at most"));
    }
    if let Some(logs) = &status.logs {
        page.field("Log", &format!("{} bytes", logs.bytes));
    }
    if let Some(sandbox) = &status.sandbox {
        let profile = sandbox
            .profile
            .map_or_else(String::new, |profile| format!("{profile:?}"));
        page.field("Sandbox", &format!("{profile}, floor {}", sandbox.floor));
        for layer in &sandbox.layers {
            page.item(format!("{}: {} {}", layer.name, layer.strength, layer.reason).trim_end());
        }
    }
    if let Some(publish) = &status.publish {
        page.field(
            "Publication",
            format!("{} {} {}", publish.state, publish.commit, publish.reason).trim_end(),
        );
    }
    if status.late_result.is_some() {
        page.field(
            "Late result",
            "a complete result came after the run was lost; it stands in status.lateResult",
        );
    }
    checks(page, &status.verify);
    changes(page, run);
    if let Some(result) = &status.result {
        self::result(page, result);
    }
}

fn choice(agent: &AgentChoice) -> String {
    if agent.model.is_empty() {
        agent.name.clone()
    } else {
        format!("{}/{}", agent.name, agent.model)
    }
}

fn failure(page: &mut Page, failure: Option<&Failure>) {
    let Some(failure) = failure else { return };
    let code = failure
        .exit_code
        .map_or_else(String::new, |code| format!(" (exit code {code})"));
    page.field(
        "Failure",
        &format!("{:?}{code}: {}", failure.reason, failure.message),
    );
}

fn workspace(page: &mut Page, workspace: Option<&WorkspaceSpec>) {
    let Some(workspace) = workspace else { return };
    if let Some(git) = &workspace.git {
        let place = if git.path.is_empty() { &git.url } else { &git.path };
        let at = if git.ref_.is_empty() { "HEAD" } else { &git.ref_ };
        page.field("Repository", &format!("{place} at {at}"));
    }
    if !workspace.writes.is_empty() {
        page.field("May write", &workspace.writes.join(", "));
    }
    if let Some(result) = &workspace.result {
        page.field("Push", &format!("{:?} {}", result.push, result.branch));
    }
}

fn flags(page: &mut Page, task: &Task) {
    let spec = &task.spec;
    if spec.suspend == Some(true) {
        page.field("Suspended", "yes; `pandactl resume` lets it go on");
    }
    if spec.cancel == Some(true) {
        page.field("Cancelled", "yes; `pandactl retry` starts it afresh");
    }
    if let Some(rerun) = spec.rerun.filter(|rerun| *rerun > 0) {
        page.field("Reruns", &rerun.to_string());
    }
    let retries = &task.status.retries;
    let all = [
        ("agent", retries.agent),
        ("provider", retries.provider),
        ("device", retries.device),
        ("rounds", retries.rounds),
        ("publication", retries.publication),
    ];
    let used: Vec<String> = all
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    page.field("Retries", &used.join(", "));
    for (name, time) in [
        ("Started", &task.status.start_time),
        ("Ended", &task.status.completion_time),
    ] {
        if let Some(time) = time {
            page.field(name, &time.to_string());
        }
    }
}

fn usage(page: &mut Page, usage: &Usage) {
    let mut parts = Vec::new();
    if usage.input_tokens + usage.output_tokens > 0 {
        parts.push(format!(
            "{} tokens in ({} cached), {} out",
            usage.input_tokens, usage.cached_tokens, usage.output_tokens
        ));
    }
    if let Some(money) = &usage.money {
        parts.push(format!("{} {}", money.amount, money.currency));
    }
    if usage.turns > 0 {
        parts.push(format!("{} turns", usage.turns));
    }
    if let Some(time) = &usage.wall_clock {
        parts.push(time.to_string());
    }
    page.field("Usage", &parts.join(", "));
}

fn attempts(page: &mut Page, runs: &[Run]) {
    if runs.is_empty() {
        return;
    }
    page.heading("Attempts");
    let mut rows = vec![
        ["NO", "RUN", "PHASE", "AGENT", "DEVICE", "AGE", "REASON"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for run in runs {
        let why = run.status.failure.as_ref().map_or_else(String::new, |failure| {
            format!(
                "{:?}: {}",
                failure.reason,
                text::fit(&text::line(&failure.message), 100)
            )
        });
        let age = run
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or_else(String::new, |time| page.age(time.0));
        rows.push(vec![
            run.spec.attempt.to_string(),
            text::line(&run.metadata.name),
            run.status
                .phase
                .map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}")),
            text::line(&choice(&run.spec.agent)),
            text::line(&run.spec.device_name),
            age,
            why,
        ]);
    }
    page.block(&align(&rows));
}

fn checks(page: &mut Page, checks: &[VerifyResult]) {
    if checks.is_empty() {
        return;
    }
    page.heading("Verification");
    for check in checks {
        page.item(&check_line(check));
        if !check.passed {
            let lines: Vec<&str> = check.tail.lines().collect();
            let last = lines.len().saturating_sub(TAIL);
            page.quote(&lines[last..].join("\n"));
        }
    }
}

/// One check in one line.
pub(in super::super) fn check_line(check: &VerifyResult) -> String {
    let verdict = if check.passed { "passed" } else { "FAILED" };
    let mut line = format!("{verdict}  {}", check.name);
    if let Some(code) = check.exit_code {
        line.push_str(&format!("  exit code {code}"));
    }
    if let Some(time) = &check.duration {
        line.push_str(&format!("  {time}"));
    }
    if !check.where_.is_empty() {
        line.push_str(&format!("  on {}", check.where_));
    }
    if !check.trusted {
        line.push_str("  (the agent could have influenced it: no sandbox)");
    }
    if !check.message.is_empty() {
        line.push_str(&format!("  {}", check.message));
    }
    line
}

fn changes(page: &mut Page, run: &Run) {
    let files = &run.status.changed_files;
    if files.is_empty() {
        return;
    }
    page.field("Changes", run.status.diffstat.trim());
    for file in files.iter().take(MAX_FILES) {
        page.item(file);
    }
    if files.len() > MAX_FILES {
        page.item(&format!("(and {} more)", files.len() - MAX_FILES));
    }
}

fn result(page: &mut Page, result: &TaskResult) {
    page.heading("Result");
    for (name, value) in [
        ("Summary", &result.summary),
        ("Branch", &result.branch),
        ("Commit", &result.commit),
        ("Base", &result.base_commit),
    ] {
        if !value.is_empty() {
            page.item(&format!("{name}: {value}"));
        }
    }
    if let Some(patch) = &result.patch {
        page.item(&format!("Patch: {} bytes", patch.size));
    }
    for artifact in &result.artifacts {
        page.item(&format!(
            "Artifact {}: {} bytes, from {}",
            artifact.name, artifact.size, artifact.path
        ));
    }
    if !result.answer.is_empty() {
        page.item("Answer:");
        page.quote(&result.answer);
    }
}
