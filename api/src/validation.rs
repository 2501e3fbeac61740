//! Faults of single fields, and the rules of every kind.
//!
//! A rule reports what is wrong to a [`Checker`]; nothing here stops at the first fault. [`invalid`] turns the faults
//! into the `Status` that Kubernetes clients know.

pub mod admission;
mod agent;
mod device;
mod git_source;
pub(crate) mod metadata;
mod names;
mod rbac;
mod run;
mod task;
mod text;
mod upstream;

pub use names::{is_dns_label, is_dns_subdomain, is_env_name, is_label_value, is_qualified_name};

use std::fmt;

use crate::Resource;
use crate::meta::field_path::{FieldPath, Path};
use crate::meta::{Reason, Status, StatusCause, StatusDetails};
use crate::scheme::KindInfo;

/// Most faults that are reported of one object.
const MAX_ERRORS: usize = 100;
/// Most bytes of a value that a message repeats.
const MAX_ECHO: usize = 64;

/// The kind of a fault, as a stable word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FieldReason {
    /// The field must be set.
    Required,
    /// The value is not allowed.
    Invalid,
    /// The value is none of the known ones.
    NotSupported,
    /// The value has another type.
    TypeInvalid,
    /// The value stands twice where it may stand once.
    Duplicate,
    /// The field may not be set here.
    Forbidden,
    /// The value is too long.
    TooLong,
    /// The list has too many items.
    TooMany,
}

impl FieldReason {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

/// One fault of one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Kind of the fault.
    pub reason: FieldReason,
    /// Where it is.
    pub field: FieldPath,
    /// Sentence for people, in Kubernetes' words.
    pub message: String,
}

impl FieldError {
    /// The fault as it stands in a `Status`.
    #[must_use]
    pub fn cause(&self) -> StatusCause {
        StatusCause {
            reason: self.reason.as_str().to_owned(),
            message: self.message.clone(),
            field: self.field.to_string(),
        }
    }
}

/// A value as messages repeat it: quoted and cut.
pub(crate) fn echo(value: &str) -> String {
    if value.len() <= MAX_ECHO {
        return format!("{value:?}");
    }
    let mut end = MAX_ECHO;
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    format!("{:?}", format!("{}...", &value[..end]))
}

/// Collects what is wrong with an object, and what its author should know.
#[derive(Debug, Default)]
pub struct Checker {
    errors: Vec<FieldError>,
    warnings: Vec<String>,
}

impl Checker {
    /// Reports a fault in its final words.
    pub fn report(&mut self, reason: FieldReason, path: &Path<'_>, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError {
                reason,
                field: path.to_field_path(),
                message: message.into(),
            });
        }
    }

    /// The field must be set.
    pub fn required(&mut self, path: &Path<'_>, detail: &str) {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        self.report(FieldReason::Required, path, message);
    }

    /// The value is not allowed.
    pub fn invalid(&mut self, path: &Path<'_>, value: &str, detail: impl fmt::Display) {
        self.report(
            FieldReason::Invalid,
            path,
            format!("Invalid value: {}: {detail}", echo(value)),
        );
    }

    /// The value is none of the known ones.
    pub fn not_supported(&mut self, path: &Path<'_>, value: &str, known: &[&str]) {
        let known: Vec<String> = known.iter().map(|k| format!("{k:?}")).collect();
        self.report(
            FieldReason::NotSupported,
            path,
            format!(
                "Unsupported value: {}: supported values: {}",
                echo(value),
                known.join(", ")
            ),
        );
    }

    /// The value stands twice.
    pub fn duplicate(&mut self, path: &Path<'_>, value: &str) {
        self.report(
            FieldReason::Duplicate,
            path,
            format!("Duplicate value: {}", echo(value)),
        );
    }

    /// The field may not be set here.
    pub fn forbidden(&mut self, path: &Path<'_>, detail: impl fmt::Display) {
        self.report(FieldReason::Forbidden, path, format!("Forbidden: {detail}"));
    }

    /// The field says something that this version does not do yet.
    pub fn not_implemented(&mut self, path: &Path<'_>) {
        self.forbidden(path, "not implemented yet");
    }

    /// The value is longer than `max` bytes.
    pub fn too_long(&mut self, path: &Path<'_>, max: usize) {
        self.report(
            FieldReason::TooLong,
            path,
            format!("Too long: may not be more than {max} bytes"),
        );
    }

    /// The list or map has more than `max` items. Answers whether it has.
    pub fn too_many(&mut self, path: &Path<'_>, len: usize, max: usize) -> bool {
        if len > max {
            self.report(
                FieldReason::TooMany,
                path,
                format!("Too many: {len}: must have at most {max} items"),
            );
        }
        len > max
    }

    /// Something the author should know, although it is accepted.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// The faults and the warnings.
    #[must_use]
    pub fn finish(self) -> (Vec<FieldError>, Vec<String>) {
        (self.errors, self.warnings)
    }
}

/// The 422 `Status` for an object with faults, in Kubernetes' words.
#[must_use]
pub fn invalid(info: &KindInfo, name: &str, errors: &[FieldError]) -> Status {
    let qualified = if info.group.is_empty() {
        info.kind.to_owned()
    } else {
        format!("{}.{}", info.kind, info.group)
    };
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let text = match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Status {
        details: Some(StatusDetails {
            name: name.to_owned(),
            group: info.group.to_owned(),
            kind: info.kind.to_owned(),
            causes: errors.iter().map(FieldError::cause).collect(),
            ..StatusDetails::default()
        }),
        ..Status::failure(
            Reason::Invalid,
            format!("{qualified} {name:?} is invalid: {text}"),
        )
    }
}

/// The rules of a kind, in the order in which they are asked.
pub(crate) trait Rules: Resource {
    /// Brings fields that can be written in several ways into their one stored form.
    fn normalise(&mut self, _cx: &mut Checker) {}
    /// Keeps what an update may not take back, with a warning.
    fn carry(&mut self, _old: &Self, _cx: &mut Checker) {}
    /// Fills in what the author left out.
    fn set_defaults(&mut self) {}
    /// Checks the desired state.
    fn check(&self, _cx: &mut Checker) {}
    /// Checks what may not change.
    fn check_update(&self, _old: &Self, _cx: &mut Checker) {}
    /// Checks a status.
    fn check_status(&self, _cx: &mut Checker) {}
    /// Checks what may not change in a status.
    fn check_status_update(&self, _old: &Self, _cx: &mut Checker) {}
}

/// Conditions are one of each type, with a status of the three.
fn conditions(conditions: &[crate::meta::Condition], cx: &mut Checker) {
    let root = Path::root();
    let status = root.key("status");
    let path = status.key("conditions");
    if cx.too_many(&path, conditions.len(), 64) {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if !seen.insert(condition.type_.as_str()) {
            cx.duplicate(&path.key("type"), &condition.type_);
        }
        if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
            cx.not_supported(
                &path.key("status"),
                &condition.status,
                &["True", "False", "Unknown"],
            );
        }
    }
}

#[cfg(test)]
mod tests;
