//! Rules of Run.

use super::metadata::object_name;
use super::text::{DAY, duration, env, range};
use super::{Checker, Rules, conditions, task};
use crate::Run;
use crate::meta::field_path::Path;
use crate::v1alpha1::{RunPhase, RunSpec};

/// A prompt carries what failed before, too.
const MAX_PROMPT: usize = 1024 * 1024;

impl Rules for Run {
    fn carry(&mut self, old: &Self, cx: &mut Checker) {
        if old.spec.cancel == Some(true) && self.spec.cancel != Some(true) {
            if self.spec.cancel.is_some() {
                cx.warn("spec.cancel stays true");
            }
            self.spec.cancel = Some(true);
        }
        if old.spec.evict == Some(true) {
            self.spec.evict = Some(true);
        }
    }

    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let spec = &self.spec;
        let reference = path.key("taskRef");
        object_name(&reference.key("name"), &spec.task_ref.name, cx);
        if spec.task_ref.uid.is_empty() {
            cx.required(&reference.key("uid"), "");
        }
        range(
            &path.key("attempt"),
            Some(i64::from(spec.attempt)),
            1,
            i64::from(u32::MAX),
            cx,
        );
        range(&path.key("rerun"), Some(spec.rerun), 0, 1_000_000, cx);
        range(
            &path.key("leaseEpoch"),
            spec.lease_epoch.map(i64::from),
            1,
            i64::from(i32::MAX),
            cx,
        );
        if !spec.agent.name.is_empty() {
            object_name(&path.key("agent").key("name"), &spec.agent.name, cx);
        }
        if !spec.device_name.is_empty() {
            object_name(&path.key("deviceName"), &spec.device_name, cx);
        }
        if spec.evict == Some(true) && spec.cancel != Some(true) {
            cx.forbidden(&path.key("evict"), "goes with cancel: true only");
        }
        task::prompt(&path.key("prompt"), &spec.prompt, MAX_PROMPT, cx);
        task::device(&path.key("device"), spec.device.as_ref(), cx);
        task::workspace(&path.key("workspace"), spec.workspace.as_ref(), cx);
        task::outputs(&path.key("outputs"), &spec.outputs, cx);
        env(&path.key("env"), &spec.env, cx);
        task::sandbox(&path.key("sandbox"), spec.sandbox.as_ref(), cx);
        task::verify(&path.key("verify"), &spec.verify, cx);
        task::supervision(&path.key("supervision"), spec.supervision.as_ref(), cx);
        duration(
            &path.key("attemptTimeout"),
            spec.attempt_timeout.as_ref(),
            7 * DAY,
            cx,
        );
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let (new, old) = (&self.spec, &old.spec);
        for (field, new, old) in [
            ("deviceName", &new.device_name, &old.device_name),
            ("deviceUid", &new.device_uid, &old.device_uid),
        ] {
            if !old.is_empty() && new != old {
                cx.invalid(&path.key(field), new, "is set once");
            }
        }
        if old.lease_epoch.is_some() && new.lease_epoch != old.lease_epoch {
            let text = new
                .lease_epoch
                .map_or_else(|| "null".to_owned(), |e| e.to_string());
            cx.invalid(&path.key("leaseEpoch"), &text, "is set once");
        }
        if !old.device_name.is_empty() && new.sandbox != old.sandbox {
            cx.forbidden(&path.key("sandbox"), "is resolved at binding and frozen then");
        }
        if let (Some(old), new) = (&old.publish, &new.publish) {
            let number = |p: &crate::v1alpha1::PublishSpec| p.try_number;
            if new.as_ref().is_none_or(|new| number(new) < number(old)) {
                cx.forbidden(&path.key("publish"), "cannot be taken back; tryNumber only grows");
            }
        }
        if frozen(new) != frozen(old) {
            cx.forbidden(
                &path,
                "is a frozen copy: only deviceName, deviceUid, leaseEpoch and sandbox (once, at binding), publish, pause, cancel and evict may change",
            );
        }
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
    }

    fn check_status_update(&self, old: &Self, cx: &mut Checker) {
        let (new, old) = (self.status.phase, old.status.phase);
        if old.is_some_and(RunPhase::is_terminal) && new != old {
            let root = Path::root();
            let text = new.map_or_else(|| "null".to_owned(), |p| format!("{p:?}"));
            cx.invalid(
                &root.key("status").key("phase"),
                &text,
                "a terminal phase never changes",
            );
        }
    }
}

/// What never changes.
fn frozen(spec: &RunSpec) -> RunSpec {
    RunSpec {
        device_name: String::new(),
        device_uid: String::new(),
        lease_epoch: None,
        sandbox: None,
        publish: None,
        pause: None,
        cancel: None,
        evict: None,
        ..spec.clone()
    }
}
