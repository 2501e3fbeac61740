//! Rules of Agent.

use super::text::{
    MINUTE, arguments, capabilities, command, currency, decimal, duration, env, no_nul, placeholders, range,
    regex, relative_path, resources, secret_key_ref,
};
use super::{Checker, Rules, conditions, is_env_name};
use crate::Agent;
use crate::meta::field_path::Path;
use crate::v1alpha1::*;

/// Placeholders that are filled in wherever an Agent has a template.
const PLACEHOLDERS: &[&str] = &[
    "prompt",
    "model",
    "session",
    "workspace",
    "home",
    "baseUrl",
    "run",
    "task",
];
/// The same, and the limit.
const LIMIT_PLACEHOLDERS: &[&str] = &[
    "prompt",
    "model",
    "session",
    "workspace",
    "home",
    "baseUrl",
    "run",
    "task",
    "value",
];
/// The same, and the key of the model's endpoint.
const FILE_PLACEHOLDERS: &[&str] = &[
    "prompt",
    "model",
    "session",
    "workspace",
    "home",
    "baseUrl",
    "run",
    "task",
    "credential",
];
const LEVELS: &[&str] = &["readOnly", "ask", "edits", "all"];
const LIMITS: &[&str] = &["turns", "money", "wallTime", "toolCalls", "requestTimeout"];
const SIGNALS: &[&str] = &["TERM", "INT", "HUP", "KILL"];
const TARGETS: &[&str] = &["Group", "Process"];
const MAX_LIST: usize = 64;
const MAX_TEMPLATE: usize = 256 * 1024;

impl Rules for Agent {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        check_spec(&root.key("spec"), &self.spec, cx);
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
    }
}

fn check_spec(path: &Path<'_>, spec: &AgentSpec, cx: &mut Checker) {
    no_nul(&path.key("displayName"), &spec.display_name, 256, cx);
    capabilities(&path.key("capabilities"), &spec.capabilities, cx);
    if let Some(detect) = &spec.detect {
        check_detect(&path.key("detect"), detect, cx);
    }
    drivers(&path.key("drivers"), &spec.drivers, cx);
    templated_env(&path.key("env"), &spec.env, cx);
    files(path, &spec.files, spec.credential().is_some(), cx);
    let pre_run = path.key("preRun");
    for (index, argv) in spec.pre_run.iter().enumerate().take(MAX_LIST) {
        templated_command(&pre_run.index(index), argv, cx);
    }
    cx.too_many(&pre_run, spec.pre_run.len(), MAX_LIST);
    models(&path.key("models"), spec.models.as_ref(), cx);
    permissions(&path.key("permissions"), spec, cx);
    limits(&path.key("limits"), spec, cx);
    stop(&path.key("stop"), spec.stop.as_ref(), cx);
    let codes = path.key("exitCodes");
    for code in spec.exit_codes.keys() {
        if code.parse::<u8>().is_err() || code.starts_with('+') {
            cx.invalid(&codes.key(code), code, "must be an exit code, 0 to 255");
        }
    }
    failures(&path.key("failures"), &spec.failures, cx);
    range(
        &path.key("concurrency"),
        spec.concurrency.map(i64::from),
        1,
        10_000,
        cx,
    );
    if let Some(price) = &spec.price {
        let path = path.key("price");
        for (field, amount) in [
            ("inputPerMillion", &price.input_per_million),
            ("outputPerMillion", &price.output_per_million),
            ("cachedPerMillion", &price.cached_per_million),
        ] {
            if !amount.is_empty() {
                decimal(&path.key(field), amount, cx);
            }
        }
        currency(&path.key("currency"), &price.currency, cx);
    }
    resources(&path.key("resources"), spec.resources.as_ref(), cx);
}

fn check_detect(path: &Path<'_>, detect: &DetectSpec, cx: &mut Checker) {
    if detect.argv.is_empty() {
        if !detect.match_.is_empty() {
            cx.required(&path.key("argv"), "match needs a program that prints the version");
        }
    } else {
        command(&path.key("argv"), &detect.argv, cx);
    }
    if !detect.match_.is_empty() {
        regex(&path.key("match"), &detect.match_, cx);
    }
    if let Some(logged_in) = &detect.logged_in {
        let path = path.key("loggedIn");
        let names = path.key("env");
        for (index, name) in logged_in.env.iter().enumerate().take(MAX_LIST) {
            if !is_env_name(name) {
                cx.invalid(
                    &names.index(index),
                    name,
                    "must be the name of an environment variable",
                );
            }
        }
        let files = path.key("files");
        for (index, file) in logged_in.files.iter().enumerate().take(MAX_LIST) {
            relative_path(&files.index(index), file, cx);
        }
        cx.too_many(&names, logged_in.env.len(), MAX_LIST);
        cx.too_many(&files, logged_in.files.len(), MAX_LIST);
    }
}

fn drivers(path: &Path<'_>, drivers: &[DriverSpec], cx: &mut Checker) {
    if drivers.is_empty() {
        cx.required(path, "must have at least one way to run the agent");
    }
    if cx.too_many(path, drivers.len(), 16) {
        return;
    }
    for (index, driver) in drivers.iter().enumerate() {
        let path = path.index(index);
        templated_command(&path.key("command"), &driver.command, cx);
        templated_env(&path.key("env"), &driver.env, cx);
        if driver.kind == DriverKind::StreamJson && driver.dialect != "claude" {
            cx.not_supported(&path.key("dialect"), &driver.dialect, &["claude"]);
        }
        if let Some(resume) = &driver.resume {
            let path = path.key("resume");
            match (resume.append.is_empty(), resume.command.is_empty()) {
                (true, true) => cx.required(&path, "must have append or command"),
                (false, false) => cx.invalid(&path, "append, command", "must have only one of the two"),
                (false, true) => templated_arguments(&path.key("append"), &resume.append, PLACEHOLDERS, cx),
                (true, false) => templated_command(&path.key("command"), &resume.command, cx),
            }
        }
    }
}

fn templated_command(path: &Path<'_>, argv: &[String], cx: &mut Checker) {
    command(path, argv, cx);
    for (index, arg) in argv.iter().enumerate() {
        placeholders(&path.index(index), arg, PLACEHOLDERS, cx);
    }
}

fn templated_arguments(path: &Path<'_>, argv: &[String], known: &[&str], cx: &mut Checker) {
    arguments(path, argv, cx);
    for (index, arg) in argv.iter().enumerate() {
        placeholders(&path.index(index), arg, known, cx);
    }
}

fn templated_env(path: &Path<'_>, vars: &[EnvVar], cx: &mut Checker) {
    env(path, vars, cx);
    for (index, var) in vars.iter().enumerate() {
        if let Some(value) = &var.value {
            placeholders(&path.index(index).key("value"), value, PLACEHOLDERS, cx);
        }
    }
}

/// `keyed`: whether the model's key comes from a Secret.
fn files(root: &Path<'_>, files: &[AgentFile], keyed: bool, cx: &mut Checker) {
    let path = &root.key("files");
    if cx.too_many(path, files.len(), MAX_LIST) {
        return;
    }
    for (index, file) in files.iter().enumerate() {
        let path = path.index(index);
        relative_path(&path.key("path"), &file.path, cx);
        if !file.mode.is_empty() {
            let digits = file.mode.strip_prefix('0').unwrap_or(&file.mode);
            if digits.len() != 3 || !digits.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
                cx.invalid(
                    &path.key("mode"),
                    &file.mode,
                    "must be an octal mode such as \"0600\"",
                );
            }
        }
        no_nul(&path.key("template"), &file.template, MAX_TEMPLATE, cx);
        placeholders(&path.key("template"), &file.template, FILE_PLACEHOLDERS, cx);
        if file.template.contains("{{credential}}") && !keyed {
            cx.required(
                &root.key("models").key("endpoint").key("credential"),
                "{{credential}} in a file needs it",
            );
        }
    }
}

fn models(path: &Path<'_>, models: Option<&ModelsSpec>, cx: &mut Checker) {
    let Some(endpoint) = models.and_then(|m| m.endpoint.as_ref()) else {
        return;
    };
    let path = path.key("endpoint");
    let url = path.key("baseUrl");
    if !endpoint.base_url.is_empty() {
        no_nul(&url, &endpoint.base_url, 2048, cx);
        let is_http = ["http://", "https://"].iter().any(|scheme| {
            endpoint
                .base_url
                .strip_prefix(scheme)
                .is_some_and(|rest| !rest.is_empty())
        });
        if !is_http || endpoint.base_url.contains(char::is_whitespace) {
            cx.invalid(&url, &endpoint.base_url, "must be an http or https URL");
        }
    }
    if !endpoint.base_url_env.is_empty() && !is_env_name(&endpoint.base_url_env) {
        cx.invalid(
            &path.key("baseUrlEnv"),
            &endpoint.base_url_env,
            "must be the name of an environment variable",
        );
    }
    if let Some(credential) = &endpoint.credential {
        let path = path.key("credential");
        if let Some(reference) = credential.secret_key_ref.as_ref().filter(|r| !r.name.is_empty()) {
            secret_key_ref(&path.key("secretKeyRef"), reference, cx);
        }
        if !credential.env.is_empty() && !is_env_name(&credential.env) {
            cx.invalid(
                &path.key("env"),
                &credential.env,
                "must be the name of an environment variable",
            );
        }
    }
}

fn permissions(path: &Path<'_>, spec: &AgentSpec, cx: &mut Checker) {
    for (level, how) in &spec.permissions {
        if !LEVELS.contains(&level.as_str()) {
            cx.not_supported(path, level, LEVELS);
        }
        let path = path.key(level);
        let argv = path.key("argv");
        for (index, add) in how.argv.iter().enumerate().take(MAX_LIST) {
            templated_arguments(&argv.index(index).key("add"), &add.add, PLACEHOLDERS, cx);
        }
        cx.too_many(&argv, how.argv.len(), MAX_LIST);
        templated_env(&path.key("env"), &how.env, cx);
    }
}

fn limits(path: &Path<'_>, spec: &AgentSpec, cx: &mut Checker) {
    for (limit, how) in &spec.limits {
        if !LIMITS.contains(&limit.as_str()) {
            cx.not_supported(path, limit, LIMITS);
        }
        let path = path.key(limit);
        templated_arguments(&path.key("argv"), &how.argv, LIMIT_PLACEHOLDERS, cx);
        if !how.env.is_empty() && !is_env_name(&how.env) {
            cx.invalid(
                &path.key("env"),
                &how.env,
                "must be the name of an environment variable",
            );
        }
    }
}

fn stop(path: &Path<'_>, stop: Option<&StopSpec>, cx: &mut Checker) {
    let Some(stop) = stop else { return };
    if !stop.signal.is_empty() && !SIGNALS.contains(&stop.signal.as_str()) {
        cx.not_supported(&path.key("signal"), &stop.signal, SIGNALS);
    }
    if !stop.to.is_empty() && !TARGETS.contains(&stop.to.as_str()) {
        cx.not_supported(&path.key("to"), &stop.to, TARGETS);
    }
    duration(&path.key("grace"), stop.grace.as_ref(), 10 * MINUTE, cx);
}

fn failures(path: &Path<'_>, rules: &[FailureRule], cx: &mut Checker) {
    if cx.too_many(path, rules.len(), 128) {
        return;
    }
    for (index, rule) in rules.iter().enumerate() {
        let item = path.index(index);
        let path = item.key("match");
        if rule.match_ == FailureMatch::default() {
            cx.required(&path, "must look for something");
        }
        for (field, pattern) in [("text", &rule.match_.text), ("stderr", &rule.match_.stderr)] {
            if !pattern.is_empty() {
                regex(&path.key(field), pattern, cx);
            }
        }
    }
}
