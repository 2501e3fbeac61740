//! Rules of Device.

use std::collections::BTreeSet;

use super::metadata::{label_key, label_value};
use super::task::EFFECTS;
use super::text::range;
use super::{Checker, Rules, conditions};
use crate::Device;
use crate::meta::field_path::Path;

impl Rules for Device {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        range(
            &path.key("maxRuns"),
            self.spec.max_runs.map(i64::from),
            1,
            10_000,
            cx,
        );
        let taints = path.key("taints");
        if cx.too_many(&taints, self.spec.taints.len(), 64) {
            return;
        }
        let mut seen = BTreeSet::new();
        for (index, taint) in self.spec.taints.iter().enumerate() {
            let path = taints.index(index);
            label_key(&path.key("key"), &taint.key, cx);
            label_value(&path.key("value"), &taint.value, cx);
            if taint.effect.is_empty() {
                cx.required(&path.key("effect"), "");
            } else if !EFFECTS.contains(&taint.effect.as_str()) {
                cx.not_supported(&path.key("effect"), &taint.effect, EFFECTS);
            }
            if !seen.insert((taint.key.as_str(), taint.effect.as_str())) {
                cx.duplicate(&path, &taint.key);
            }
        }
    }

    fn check_status(&self, cx: &mut Checker) {
        conditions(&self.status.conditions, cx);
    }
}
