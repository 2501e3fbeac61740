//! Rules of the kinds that come from upstream: Namespace, Secret, ConfigMap, Event, Lease, CertificateSigningRequest.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::text::{DATA_KEY_RULE, is_data_key, range};
use super::{Checker, FieldReason, Rules, conditions};
use crate::certificates::{APPROVED, DENIED, DEVICE_SIGNER, FAILED};
use crate::meta::field_path::Path;
use crate::secrets::weakness;
use crate::{CertificateSigningRequest, ConfigMap, Event, Lease, Namespace, Secret, events};

/// Most bytes that a Secret or a ConfigMap holds.
const MAX_DATA: usize = 1024 * 1024;
const MAX_MESSAGE: usize = 4096;

impl Rules for Namespace {
    fn set_defaults(&mut self) {
        if self.status.phase.is_empty() {
            self.status.phase = "Active".into();
        }
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
        let phase = &self.status.phase;
        if !matches!(phase.as_str(), "Active" | "Terminating") {
            let root = Path::root();
            cx.not_supported(
                &root.key("status").key("phase"),
                phase,
                &["Active", "Terminating"],
            );
        }
    }
}

impl Rules for Secret {
    fn normalise(&mut self, _cx: &mut Checker) {
        for (key, text) in std::mem::take(&mut self.string_data) {
            self.data.insert(key, STANDARD.encode(text));
        }
    }

    fn set_defaults(&mut self) {
        if self.type_.is_empty() {
            self.type_ = "Opaque".into();
        }
    }

    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("data");
        keys(&path, &self.data, cx);
        let mut size = 0;
        for (key, value) in &self.data {
            size += base64_bytes(&path.key(key), value, cx);
            if let Some(weak) = STANDARD.decode(value).ok().and_then(|value| weakness(&value)) {
                cx.warn(format!(
                    "data.{key}: its value is not masked in logs and results, because {weak}; use a longer, random value"
                ));
            }
        }
        if size > MAX_DATA {
            cx.too_long(&path, MAX_DATA);
        }
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        let root = Path::root();
        if self.type_ != old.type_ {
            cx.invalid(&root.key("type"), &self.type_, "field is immutable");
        }
        frozen(old.immutable, self.immutable, self.data != old.data, cx);
    }
}

impl Rules for ConfigMap {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let (data, binary) = (root.key("data"), root.key("binaryData"));
        keys(&data, &self.data, cx);
        keys(&binary, &self.binary_data, cx);
        let mut size: usize = self.data.values().map(String::len).sum();
        for (key, value) in &self.binary_data {
            size += base64_bytes(&binary.key(key), value, cx);
            if self.data.contains_key(key) {
                cx.duplicate(&binary.key(key), key);
            }
        }
        if size > MAX_DATA {
            cx.too_long(&data, MAX_DATA);
        }
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        let changed = self.data != old.data || self.binary_data != old.binary_data;
        frozen(old.immutable, self.immutable, changed, cx);
    }
}

fn keys(path: &Path<'_>, data: &BTreeMap<String, String>, cx: &mut Checker) {
    for key in data.keys() {
        if !is_data_key(key) {
            cx.invalid(path, key, DATA_KEY_RULE);
        }
    }
}

/// How many bytes the value stands for. The value itself is never repeated in a message.
fn base64_bytes(path: &Path<'_>, value: &str, cx: &mut Checker) -> usize {
    match STANDARD.decode(value) {
        Ok(bytes) => bytes.len(),
        Err(_) => {
            cx.report(
                FieldReason::Invalid,
                path,
                "Invalid value: must be base64; plain text goes into stringData",
            );
            0
        }
    }
}

fn frozen(was: Option<bool>, is: Option<bool>, changed: bool, cx: &mut Checker) {
    if was != Some(true) {
        return;
    }
    let root = Path::root();
    if is != Some(true) {
        cx.forbidden(
            &root.key("immutable"),
            "field is immutable when `immutable` is set",
        );
    }
    if changed {
        cx.forbidden(&root.key("data"), "field is immutable when `immutable` is set");
    }
}

impl Rules for Event {
    fn set_defaults(&mut self) {
        if self.type_.is_empty() {
            self.type_ = "Normal".into();
        }
    }

    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let about = &self.involved_object.namespace;
        if !about.is_empty() && *about != self.metadata.namespace {
            cx.invalid(
                &root.key("involvedObject").key("namespace"),
                about,
                "does not match metadata.namespace",
            );
        }
        if !matches!(self.type_.as_str(), "Normal" | "Warning") {
            cx.not_supported(&root.key("type"), &self.type_, &["Normal", "Warning"]);
        }
        for (field, text, max) in [
            ("reason", &self.reason, 128),
            ("message", &self.message, MAX_MESSAGE),
            ("action", &self.action, 128),
        ] {
            if text.len() > max {
                cx.too_long(&root.key(field), max);
            }
        }
        range(
            &root.key("count"),
            self.count.map(i64::from),
            0,
            i64::from(i32::MAX),
            cx,
        );
    }
}

// It is stored, and so checked, as the Event of `v1`.
impl Rules for events::Event {}

/// Largest request for a certificate: a key and a name.
const MAX_REQUEST: usize = 16 * 1024;

impl Rules for CertificateSigningRequest {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let spec = root.key("spec");
        let path = spec.key("request");
        if self.spec.request.is_empty() {
            cx.required(&path, "the request, PEM, base64");
        } else if self.spec.request.len() > MAX_REQUEST {
            cx.too_long(&path, MAX_REQUEST);
        } else {
            base64_bytes(&path, &self.spec.request, cx);
        }
        if self.spec.signer_name != DEVICE_SIGNER {
            cx.not_supported(&spec.key("signerName"), &self.spec.signer_name, &[DEVICE_SIGNER]);
        }
        cx.too_many(&spec.key("usages"), self.spec.usages.len(), 32);
        cx.too_many(&spec.key("groups"), self.spec.groups.len(), 256);
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        if self.spec != old.spec {
            let root = Path::root();
            cx.forbidden(&root.key("spec"), "a request never changes");
        }
    }

    fn check_status(&self, cx: &mut Checker) {
        let root = Path::root();
        let status = root.key("status");
        let path = status.key("conditions");
        if cx.too_many(&path, self.status.conditions.len(), 8) {
            return;
        }
        for (index, condition) in self.status.conditions.iter().enumerate() {
            let known = [APPROVED, DENIED, FAILED];
            if !known.contains(&condition.type_.as_str()) {
                cx.not_supported(&path.index(index).key("type"), &condition.type_, &known);
            }
            if condition.message.len() > MAX_MESSAGE {
                cx.too_long(&path.index(index).key("message"), MAX_MESSAGE);
            }
        }
    }
}

impl Rules for Lease {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let max = i64::from(i32::MAX);
        range(
            &path.key("leaseDurationSeconds"),
            self.spec.lease_duration_seconds.map(i64::from),
            1,
            max,
            cx,
        );
        range(
            &path.key("leaseTransitions"),
            self.spec.lease_transitions.map(i64::from),
            0,
            max,
            cx,
        );
        if self.spec.holder_identity.as_ref().is_some_and(|h| h.len() > 253) {
            cx.too_long(&path.key("holderIdentity"), 253);
        }
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        // It is the fencing epoch: a lower one would let a holder back in whose lease was taken away.
        let (new, old) = (
            self.spec.lease_transitions.unwrap_or(0),
            old.spec.lease_transitions.unwrap_or(0),
        );
        if new < old {
            let root = Path::root();
            cx.invalid(
                &root.key("spec").key("leaseTransitions"),
                &new.to_string(),
                format_args!("must not be lower than {old}"),
            );
        }
    }
}
