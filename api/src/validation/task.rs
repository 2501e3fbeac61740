//! Rules of Task.

use std::collections::BTreeSet;

use super::metadata::{label_key, label_value, labels, object_name};
use super::text::{
    DAY, HOUR, absolute_path, branch_template, capabilities, command, duration, env, git_ref, globs, no_nul,
    range, relative_path, resources,
};
use super::{Checker, Rules, conditions, is_label_value};
use crate::Task;
use crate::meta::field_path::Path;
use crate::meta::{Duration, LabelSelector, SelectorOperator};
use crate::v1alpha1::*;

/// Longest prompt.
const MAX_PROMPT: usize = 256 * 1024;
const MAX_LIST: usize = 64;

/// What these names already mean.
const RESERVED_OUTPUTS: &[&str] = &["patch", "bundle"];

impl Rules for Task {
    fn carry(&mut self, old: &Self, cx: &mut Checker) {
        let (new, old) = (&mut self.spec, &old.spec);
        let (wanted, had) = (new.rerun, old.rerun.unwrap_or(0));
        if wanted.unwrap_or(0) < had {
            if wanted.is_some() {
                cx.warn(format!("spec.rerun never goes down: {had} is kept"));
            }
            new.rerun = old.rerun;
        }
        if wanted.unwrap_or(0) > had {
            // Raising it starts the task afresh, whatever else the same update says.
            if new.cancel == Some(true) && old.cancel != Some(true) {
                cx.warn("spec.cancel is reset to false, because spec.rerun was raised");
            }
            if new.cancel.is_some() || old.cancel.is_some() {
                new.cancel = Some(false);
            }
        } else if old.cancel == Some(true) && new.cancel != Some(true) {
            if new.cancel.is_some() {
                cx.warn("spec.cancel stays true until spec.rerun is raised");
            }
            new.cancel = Some(true);
        }
    }

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.mode.get_or_insert_default();
        spec.device
            .get_or_insert_default()
            .on_disconnect
            .get_or_insert_default();
        let supervision = spec.supervision.get_or_insert_default();
        supervision.silence.get_or_insert(Duration::from_secs(240));
        supervision.first_output.get_or_insert(Duration::from_secs(120));
        supervision.rounds.get_or_insert(5);
        let retry = spec.retry.get_or_insert_default();
        retry.limit.get_or_insert(2);
        retry.backoff.get_or_insert_default();
        spec.attempt_timeout.get_or_insert(Duration::from_secs(1800));
    }

    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let spec = &self.spec;
        prompt(&path.key("prompt"), &spec.prompt, MAX_PROMPT, cx);
        agents(&path.key("agents"), &spec.agents, cx);
        if let Some(requires) = &spec.requires {
            capabilities(
                &path.key("requires").key("capabilities"),
                &requires.capabilities,
                cx,
            );
        }
        device(&path.key("device"), spec.device.as_ref(), cx);
        workspace(&path.key("workspace"), spec.workspace.as_ref(), cx);
        outputs(&path.key("outputs"), &spec.outputs, cx);
        env(&path.key("env"), &spec.env, cx);
        sandbox(&path.key("sandbox"), spec.sandbox.as_ref(), cx);
        verify(&path.key("verify"), &spec.verify, cx);
        supervision(&path.key("supervision"), spec.supervision.as_ref(), cx);
        retry(&path.key("retry"), spec.retry.as_ref(), cx);
        duration(
            &path.key("attemptTimeout"),
            spec.attempt_timeout.as_ref(),
            7 * DAY,
            cx,
        );
        duration(&path.key("deadline"), spec.deadline.as_ref(), 366 * DAY, cx);
        duration(
            &path.key("ttlAfterFinished"),
            spec.ttl_after_finished.as_ref(),
            3660 * DAY,
            cx,
        );
        range(
            &path.key("priority"),
            spec.priority.map(i64::from),
            -1_000_000_000,
            1_000_000_000,
            cx,
        );
        range(&path.key("rerun"), spec.rerun, 0, 1_000_000, cx);
        not_built(&path, spec, cx);
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
    }
}

/// Fields whose behaviour is not built: what asks for nothing is accepted, anything else is refused.
fn not_built(path: &Path<'_>, spec: &TaskSpec, cx: &mut Checker) {
    let memory = spec.memory.as_ref().is_some_and(|m| m.project || m.user);
    let budget = spec.budget.as_ref().is_some_and(|b| *b != BudgetSpec::default());
    for (field, set) in [
        ("mode", spec.mode.is_some_and(|m| m != TaskMode::Direct)),
        ("inputs", !spec.inputs.is_empty()),
        ("skills", !spec.skills.is_empty()),
        ("memory", memory),
        (
            "approval",
            spec.approval.as_ref().is_some_and(|a| !a.policy.is_empty()),
        ),
        ("budget", budget),
        (
            "preemption",
            spec.preemption.is_some_and(|p| p != Preemption::Never),
        ),
        ("dedupeKey", !spec.dedupe_key.is_empty()),
    ] {
        if set {
            cx.not_implemented(&path.key(field));
        }
    }
}

pub(super) fn prompt(path: &Path<'_>, text: &str, max: usize, cx: &mut Checker) {
    if text.is_empty() {
        cx.required(path, "");
    } else {
        no_nul(path, text, max, cx);
    }
}

fn agents(path: &Path<'_>, agents: &[AgentChoice], cx: &mut Checker) {
    if cx.too_many(path, agents.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, agent) in agents.iter().enumerate() {
        let path = path.index(index);
        object_name(&path.key("name"), &agent.name, cx);
        no_nul(&path.key("model"), &agent.model, 256, cx);
        // The same agent with another model is another candidate.
        if !seen.insert((agent.name.as_str(), agent.model.as_str())) {
            cx.duplicate(&path, &agent.name);
        }
    }
}

pub(super) fn device(path: &Path<'_>, request: Option<&DeviceRequest>, cx: &mut Checker) {
    let Some(request) = request else { return };
    if !request.name.is_empty() {
        object_name(&path.key("name"), &request.name, cx);
    }
    selector(&path.key("selector"), request.selector.as_ref(), cx);
    tolerations(&path.key("tolerations"), &request.tolerations, cx);
    resources(&path.key("resources"), request.resources.as_ref(), cx);
    if let Some(on) = &request.on_disconnect {
        let path = path.key("onDisconnect");
        duration(&path.key("after"), Some(&on.after), 7 * DAY, cx);
    }
}

fn selector(path: &Path<'_>, selector: Option<&LabelSelector>, cx: &mut Checker) {
    let Some(selector) = selector else { return };
    labels(&path.key("matchLabels"), &selector.match_labels, cx);
    let path = path.key("matchExpressions");
    if cx.too_many(&path, selector.match_expressions.len(), MAX_LIST) {
        return;
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let path = path.index(index);
        label_key(&path.key("key"), &requirement.key, cx);
        let values = path.key("values");
        match requirement.operator {
            SelectorOperator::In | SelectorOperator::NotIn => {
                if requirement.values.is_empty() {
                    cx.required(&values, "must be specified when operator is \"In\" or \"NotIn\"");
                }
            }
            SelectorOperator::Exists | SelectorOperator::DoesNotExist => {
                if !requirement.values.is_empty() {
                    cx.forbidden(
                        &values,
                        "may not be specified when operator is \"Exists\" or \"DoesNotExist\"",
                    );
                }
            }
        }
        for (index, value) in requirement.values.iter().enumerate() {
            label_value(&values.index(index), value, cx);
        }
    }
}

pub(super) const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn tolerations(path: &Path<'_>, tolerations: &[Toleration], cx: &mut Checker) {
    if cx.too_many(path, tolerations.len(), MAX_LIST) {
        return;
    }
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        match toleration.operator.as_str() {
            "Exists" => {
                if !toleration.value.is_empty() {
                    cx.invalid(
                        &path.key("value"),
                        &toleration.value,
                        "must be empty when operator is \"Exists\"",
                    );
                }
            }
            "" | "Equal" => {
                if toleration.key.is_empty() {
                    cx.invalid(
                        &path.key("operator"),
                        &toleration.operator,
                        "must be \"Exists\" when key is empty",
                    );
                }
                label_value(&path.key("value"), &toleration.value, cx);
            }
            other => cx.not_supported(&path.key("operator"), other, &["Equal", "Exists"]),
        }
        if !toleration.key.is_empty() {
            label_key(&path.key("key"), &toleration.key, cx);
        }
        if !toleration.effect.is_empty() && !EFFECTS.contains(&toleration.effect.as_str()) {
            cx.not_supported(&path.key("effect"), &toleration.effect, EFFECTS);
        }
    }
}

pub(super) fn workspace(path: &Path<'_>, workspace: Option<&WorkspaceSpec>, cx: &mut Checker) {
    let Some(workspace) = workspace else { return };
    if let Some(git) = &workspace.git {
        let path = path.key("git");
        if git.url.is_empty() {
            if git.path.is_empty() {
                cx.required(&path.key("path"), "the repository's absolute path on the device");
            } else {
                absolute_path(&path.key("path"), &git.path, cx);
            }
        } else {
            cx.not_implemented(&path.key("url"));
        }
        if !git.ref_.is_empty() {
            git_ref(&path.key("ref"), &git.ref_, cx);
        }
        if git.submodules == Some(true) {
            cx.not_implemented(&path.key("submodules"));
        }
        if git.credentials_ref.as_ref().is_some_and(|r| !r.name.is_empty()) {
            cx.not_implemented(&path.key("credentialsRef"));
        }
    }
    globs(&path.key("writes"), &workspace.writes, cx);
    if let Some(result) = &workspace.result {
        if !result.branch.is_empty() {
            branch_template(&path.key("result").key("branch"), &result.branch, cx);
        }
        if result.push == Push::OnSuccess && workspace.git.is_none() {
            cx.invalid(
                &path.key("result").key("push"),
                "OnSuccess",
                "needs spec.workspace.git",
            );
        }
    }
}

/// A name that stands in URLs and file names.
fn part_name(path: &Path<'_>, name: &str, cx: &mut Checker) {
    if name.is_empty() {
        cx.required(path, "");
    } else if !is_label_value(name) {
        cx.invalid(
            path,
            name,
            "must be at most 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends",
        );
    }
}

pub(super) fn outputs(path: &Path<'_>, outputs: &[OutputSpec], cx: &mut Checker) {
    if cx.too_many(path, outputs.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, output) in outputs.iter().enumerate() {
        let path = path.index(index);
        part_name(&path.key("name"), &output.name, cx);
        if RESERVED_OUTPUTS.contains(&output.name.as_str()) {
            cx.invalid(&path.key("name"), &output.name, "is a name that every result has");
        } else if !seen.insert(output.name.as_str()) {
            cx.duplicate(&path.key("name"), &output.name);
        }
        relative_path(&path.key("path"), &output.path, cx);
    }
}

pub(super) fn sandbox(path: &Path<'_>, sandbox: Option<&SandboxSpec>, cx: &mut Checker) {
    let Some(sandbox) = sandbox else { return };
    let network = sandbox.network.as_ref();
    let path_network = path.key("network");
    if let Some(mode) = network.and_then(|n| n.mode)
        && sandbox.profile == Some(SandboxProfile::Off)
        && mode != NetworkMode::Host
    {
        cx.invalid(
            &path_network.key("mode"),
            &format!("{mode:?}"),
            "profile Off allows only network mode Host: nothing would enforce another",
        );
    }
    if network.is_some_and(|n| !n.allow.is_empty()) {
        cx.not_implemented(&path_network.key("allow"));
    }
    if sandbox
        .limits
        .as_ref()
        .is_some_and(|l| *l != SandboxLimits::default())
    {
        cx.not_implemented(&path.key("limits"));
    }
}

pub(super) fn verify(path: &Path<'_>, checks: &[VerifySpec], cx: &mut Checker) {
    if cx.too_many(path, checks.len(), MAX_LIST) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, check) in checks.iter().enumerate() {
        let path = path.index(index);
        part_name(&path.key("name"), &check.name, cx);
        if !check.name.is_empty() && !seen.insert(check.name.as_str()) {
            cx.duplicate(&path.key("name"), &check.name);
        }
        if check.agent.is_empty() && check.prompt.is_empty() {
            command(&path.key("command"), &check.command, cx);
        }
        if !check.agent.is_empty() {
            cx.not_implemented(&path.key("agent"));
        }
        if !check.prompt.is_empty() {
            cx.not_implemented(&path.key("prompt"));
        }
        if check.device == Some(VerifyDevice::Other) {
            cx.not_implemented(&path.key("device"));
        }
        duration(&path.key("timeout"), check.timeout.as_ref(), DAY, cx);
        globs(&path.key("restore"), &check.restore, cx);
    }
}

pub(super) fn supervision(path: &Path<'_>, supervision: Option<&SupervisionSpec>, cx: &mut Checker) {
    let Some(supervision) = supervision else { return };
    duration(&path.key("silence"), supervision.silence.as_ref(), DAY, cx);
    duration(
        &path.key("firstOutput"),
        supervision.first_output.as_ref(),
        DAY,
        cx,
    );
    range(&path.key("rounds"), supervision.rounds.map(i64::from), 0, 100, cx);
    if !supervision.judge.is_empty() {
        cx.not_implemented(&path.key("judge"));
    }
    range(
        &path.key("repeatLimit"),
        supervision.repeat_limit.map(i64::from),
        2,
        1000,
        cx,
    );
}

fn retry(path: &Path<'_>, retry: Option<&RetrySpec>, cx: &mut Checker) {
    let Some(retry) = retry else { return };
    range(&path.key("limit"), retry.limit.map(i64::from), 0, 100, cx);
    if let Some(backoff) = &retry.backoff {
        let path = path.key("backoff");
        duration(&path.key("base"), Some(&backoff.base), HOUR, cx);
        duration(&path.key("cap"), Some(&backoff.cap), DAY, cx);
        range(&path.key("factor"), Some(i64::from(backoff.factor)), 1, 10, cx);
        if backoff.cap.get() < backoff.base.get() {
            cx.invalid(
                &path.key("cap"),
                &backoff.cap.to_string(),
                "must not be shorter than base",
            );
        }
    }
    let path = path.key("nonRetryableExitCodes");
    if !cx.too_many(&path, retry.non_retryable_exit_codes.len(), 256) {
        for (index, code) in retry.non_retryable_exit_codes.iter().enumerate() {
            range(&path.index(index), Some(i64::from(*code)), 1, 255, cx);
        }
    }
}
