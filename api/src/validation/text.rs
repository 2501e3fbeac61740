//! The forms of texts inside a spec: durations, paths, globs, git names, templates, amounts.

use std::time::Duration as StdDuration;

use super::Checker;
use super::metadata::object_name;
use super::names::is_env_name;
use crate::meta::field_path::Path;
use crate::meta::{Duration, Quantity};
use crate::v1alpha1::{EnvVar, ResourceRequest, SecretKeyRef};

pub(super) const MINUTE: StdDuration = StdDuration::from_secs(60);
pub(super) const HOUR: StdDuration = StdDuration::from_secs(3600);
pub(super) const DAY: StdDuration = StdDuration::from_secs(86_400);

/// Longest path, as Linux has it.
const MAX_PATH: usize = 4096;
const MAX_GLOBS: usize = 256;
const MAX_ENV: usize = 256;
const MAX_ARGS: usize = 1024;
const MAX_ARG: usize = 128 * 1024;
const MAX_REGEX: usize = 4096;
const MAX_REGEX_PROGRAM: usize = 1 << 20;

/// More than nothing, at most `max`.
pub(super) fn duration(path: &Path<'_>, value: Option<&Duration>, max: StdDuration, cx: &mut Checker) {
    let Some(value) = value else { return };
    if value.get().is_zero() {
        cx.invalid(path, &value.to_string(), "must be greater than zero");
    } else if value.get() > max {
        cx.invalid(
            path,
            &value.to_string(),
            format_args!("must not be longer than {}", Duration::from(max)),
        );
    }
}

pub(super) fn range(path: &Path<'_>, value: Option<i64>, min: i64, max: i64, cx: &mut Checker) {
    if let Some(value) = value
        && !(min..=max).contains(&value)
    {
        cx.invalid(
            path,
            &value.to_string(),
            format_args!("must be between {min} and {max}"),
        );
    }
}

pub(super) fn quantity(path: &Path<'_>, value: Option<&str>, cx: &mut Checker) -> Option<Quantity> {
    let text = value?;
    text.parse().map_err(|e| cx.invalid(path, text, e)).ok()
}

pub(super) fn resources(path: &Path<'_>, request: Option<&ResourceRequest>, cx: &mut Checker) {
    let Some(request) = request else { return };
    for (field, value) in [
        ("cpu", &request.cpu),
        ("memory", &request.memory),
        ("disk", &request.disk),
    ] {
        quantity(&path.key(field), value.as_deref(), cx);
    }
    let gpu = path.key("gpuMemory");
    if quantity(&gpu, request.gpu_memory.as_deref(), cx).is_some_and(|q| !q.is_zero()) {
        cx.not_implemented(&gpu);
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// A path inside a folder: relative, and it stays inside.
pub(super) fn relative_path(path: &Path<'_>, text: &str, cx: &mut Checker) {
    if text.is_empty() {
        cx.required(path, "");
    } else if text.len() > MAX_PATH {
        cx.too_long(path, MAX_PATH);
    } else if text.starts_with('/') || text.starts_with('~') {
        cx.invalid(path, text, "must be a relative path");
    } else if text.split('/').any(|part| part == "..") {
        cx.invalid(path, text, "must not contain \"..\"");
    } else if text.split('/').any(|part| part.is_empty() || part == ".") || has_control(text) {
        cx.invalid(
            path,
            text,
            "must be a plain path without \".\", empty parts or control characters",
        );
    }
}

/// An absolute path in its shortest form.
pub(super) fn absolute_path(path: &Path<'_>, text: &str, cx: &mut Checker) {
    let rest = text.strip_prefix('/');
    if text.len() > MAX_PATH {
        cx.too_long(path, MAX_PATH);
    } else if rest.is_none() {
        cx.invalid(path, text, "must be an absolute path");
    } else if rest.is_some_and(|r| r.split('/').any(|part| matches!(part, "" | "." | "..")))
        || has_control(text)
    {
        cx.invalid(
            path,
            text,
            "must be a normalised path without \".\", \"..\", empty parts or a slash at the end",
        );
    }
}

/// Patterns of paths inside the workspace.
pub(super) fn globs(path: &Path<'_>, globs: &[String], cx: &mut Checker) {
    if cx.too_many(path, globs.len(), MAX_GLOBS) {
        return;
    }
    for (index, glob) in globs.iter().enumerate() {
        let path = path.index(index);
        relative_path(&path, glob, cx);
        let count = |c| glob.chars().filter(|g| *g == c).count();
        if count('[') != count(']') || count('{') != count('}') {
            cx.invalid(&path, glob, "brackets and braces must be closed");
        }
    }
}

/// Whether `text` may name a git ref, by the rules of `git check-ref-format --allow-onelevel`.
fn is_git_ref(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text != "@"
        && !text.starts_with('-')
        && !text.ends_with('.')
        && !text.contains("..")
        && !text.contains("@{")
        && !text
            .chars()
            .any(|c| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\'))
        && text
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
}

const REF_RULE: &str = "must be a git ref name: no leading \"-\", no spaces, none of ~^:?*[\\, no \"..\" or \"@{\", no part that is empty, \
     starts with \".\" or ends with \".lock\"";

pub(super) fn git_ref(path: &Path<'_>, text: &str, cx: &mut Checker) {
    if !is_git_ref(text) {
        cx.invalid(path, text, REF_RULE);
    }
}

/// A branch with placeholders: a valid ref once they are filled in. Names of objects are valid parts of a ref.
pub(super) fn branch_template(path: &Path<'_>, text: &str, cx: &mut Checker) {
    if placeholders(path, text, &["name"], cx) && !is_git_ref(&text.replace("{{name}}", "name")) {
        cx.invalid(path, text, REF_RULE);
    }
}

/// Refuses placeholders that nothing fills in. Answers whether all are known.
pub(super) fn placeholders(path: &Path<'_>, text: &str, known: &[&str], cx: &mut Checker) -> bool {
    let mut rest = text;
    let mut good = true;
    while let Some(start) = rest.find("{{") {
        let inner = &rest[start + 2..];
        let Some(end) = inner.find("}}") else { break };
        let name = &inner[..end];
        // Braces of JSON or of a shell are no placeholders.
        if !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '))
        {
            if !known.contains(&name) {
                good = false;
                let known: Vec<String> = known.iter().map(|k| format!("{{{{{k}}}}}")).collect();
                cx.invalid(
                    path,
                    &format!("{{{{{name}}}}}"),
                    format_args!("unknown placeholder; known: {}", known.join(", ")),
                );
            }
            rest = &inner[end + 2..];
        } else {
            rest = &rest[start + 1..];
        }
    }
    good
}

/// A program and its arguments.
pub(super) fn command(path: &Path<'_>, argv: &[String], cx: &mut Checker) {
    match argv.first() {
        None => cx.required(path, "must have a program"),
        Some(program) if program.trim().is_empty() => cx.required(&path.index(0), "must name a program"),
        Some(_) => arguments(path, argv, cx),
    }
}

pub(super) fn arguments(path: &Path<'_>, argv: &[String], cx: &mut Checker) {
    if cx.too_many(path, argv.len(), MAX_ARGS) {
        return;
    }
    for (index, arg) in argv.iter().enumerate() {
        no_nul(&path.index(index), arg, MAX_ARG, cx);
    }
}

/// Text that a process can be handed.
pub(super) fn no_nul(path: &Path<'_>, text: &str, max: usize, cx: &mut Checker) {
    if text.len() > max {
        cx.too_long(path, max);
    } else if text.contains('\0') {
        cx.invalid(path, text, "must not contain a NUL character");
    }
}

/// Variables of an environment.
pub(super) fn env(path: &Path<'_>, env: &[EnvVar], cx: &mut Checker) {
    if cx.too_many(path, env.len(), MAX_ENV) {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, var) in env.iter().enumerate() {
        let path = path.index(index);
        if var.name.is_empty() {
            cx.required(&path.key("name"), "");
        } else if !is_env_name(&var.name) {
            cx.invalid(
                &path.key("name"),
                &var.name,
                "must consist of letters, digits and \"_\", and not start with a digit",
            );
        } else if !seen.insert(var.name.as_str()) {
            cx.duplicate(&path.key("name"), &var.name);
        }
        if let Some(value) = &var.value {
            no_nul(&path.key("value"), value, MAX_ARG, cx);
        }
        if let Some(from) = &var.value_from {
            let from_path = path.key("valueFrom");
            if var.value.as_ref().is_some_and(|value| !value.is_empty()) {
                cx.invalid(&from_path, "", "may not be specified when `value` is not empty");
            }
            match &from.secret_key_ref {
                Some(reference) => secret_key_ref(&from_path.key("secretKeyRef"), reference, cx),
                None => cx.required(&from_path.key("secretKeyRef"), "must name a key of a Secret"),
            }
        }
    }
}

pub(super) fn secret_key_ref(path: &Path<'_>, reference: &SecretKeyRef, cx: &mut Checker) {
    if reference.name.is_empty() {
        cx.required(&path.key("name"), "");
    } else {
        object_name(&path.key("name"), &reference.name, cx);
    }
    if reference.key.is_empty() {
        cx.required(&path.key("key"), "");
    } else if !is_data_key(&reference.key) {
        cx.invalid(&path.key("key"), &reference.key, DATA_KEY_RULE);
    }
}

/// What [`is_data_key`] demands.
pub(super) const DATA_KEY_RULE: &str =
    "a key must be at most 253 letters, digits, \"-\", \"_\" and \".\", and not \".\" or \"..\"";

/// Whether `key` can be a key of a Secret or a ConfigMap.
pub(super) fn is_data_key(key: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !key.is_empty() && key.len() <= 253 && key.bytes().all(plain) && !matches!(key, "." | "..")
}

pub(super) fn regex(path: &Path<'_>, pattern: &str, cx: &mut Checker) {
    if pattern.len() > MAX_REGEX {
        cx.too_long(path, MAX_REGEX);
    } else if let Err(error) = regex::RegexBuilder::new(pattern)
        .size_limit(MAX_REGEX_PROGRAM)
        .build()
    {
        let error = error.to_string();
        let reason = error
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        cx.invalid(
            path,
            pattern,
            format_args!("not a regular expression that can be used: {reason}"),
        );
    }
}

/// A non-negative decimal, exact: no exponent, no sign.
pub(super) fn decimal(path: &Path<'_>, text: &str, cx: &mut Checker) {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |t: &str, max: usize| (1..=max).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit());
    if !(digits(whole, 12) && digits(fraction, 9)) {
        cx.invalid(
            path,
            text,
            "must be a decimal number such as \"5.00\", with at most 12 digits before and 9 after the point",
        );
    }
}

pub(super) fn currency(path: &Path<'_>, text: &str, cx: &mut Checker) {
    if text.len() != 3 || !text.bytes().all(|b| b.is_ascii_uppercase()) {
        cx.invalid(
            path,
            text,
            "must be a currency code of three capital letters such as \"USD\"",
        );
    }
}

/// Names of what an agent can do.
pub(super) fn capabilities(path: &Path<'_>, names: &[String], cx: &mut Checker) {
    if cx.too_many(path, names.len(), 64) {
        return;
    }
    for (index, name) in names.iter().enumerate() {
        if !super::names::is_dns_subdomain(name) || name.len() > 63 {
            cx.invalid(
                &path.index(index),
                name,
                "must be at most 63 lower case letters, digits, \"-\" and \".\", such as \"code.edit\"",
            );
        }
    }
}
