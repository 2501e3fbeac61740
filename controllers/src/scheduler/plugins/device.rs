//! Whether the device takes work at all, and this one.

use panda_api::{RefusalReason, Taint, Toleration};

use super::{Candidate, condition};

type Verdict = Result<(), (RefusalReason, String)>;

/// The Run is not pinned to another device.
pub(super) fn named(c: &Candidate<'_>) -> Verdict {
    match &c.run.spec.device {
        Some(wanted) if !wanted.name.is_empty() && wanted.name != c.device.metadata.name => Err((
            RefusalReason::SelectorMismatch,
            format!("spec.device.name asks for {:?}", wanted.name),
        )),
        _ => Ok(()),
    }
}

/// The device has the labels that the Run asks for.
pub(super) fn selected(c: &Candidate<'_>) -> Verdict {
    let selector = c.run.spec.device.as_ref().and_then(|d| d.selector.as_ref());
    if selector.is_none_or(|selector| selector.matches(&c.device.metadata.labels)) {
        Ok(())
    } else {
        Err((
            RefusalReason::SelectorMismatch,
            "its labels do not match spec.device.selector".into(),
        ))
    }
}

/// The device is there and its heartbeat is fresh (the device controller judges that).
pub(super) fn ready(c: &Candidate<'_>) -> Verdict {
    if c.device.metadata.deletion_timestamp.is_some() {
        return Err((RefusalReason::DeviceNotReady, "it is being removed".into()));
    }
    match condition(c.device, "Ready") {
        Some(true) => Ok(()),
        Some(false) => Err((
            RefusalReason::DeviceNotReady,
            "its heartbeat has stopped; is its agentlet running and connected?".into(),
        )),
        None => Err((RefusalReason::DeviceNotReady, "it has not reported yet".into())),
    }
}

/// The device is not cordoned.
pub(super) fn schedulable(c: &Candidate<'_>) -> Verdict {
    if c.device.spec.unschedulable == Some(true) {
        Err((
            RefusalReason::Cordoned,
            "it is cordoned; `pandactl uncordon` ends that".into(),
        ))
    } else {
        Ok(())
    }
}

/// The Run tolerates the device's taints.
pub(super) fn tolerated(c: &Candidate<'_>) -> Verdict {
    let repels = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    match untolerated(c).find(repels) {
        None => Ok(()),
        Some(taint) => Err((
            RefusalReason::TaintNotTolerated,
            format!(
                "its taint {}={}:{} is not tolerated",
                taint.key, taint.value, taint.effect
            ),
        )),
    }
}

/// How many taints would rather not have the Run here.
pub(in crate::scheduler) fn unwelcome(c: &Candidate<'_>) -> i64 {
    let count = untolerated(c)
        .filter(|taint| taint.effect == "PreferNoSchedule")
        .count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn untolerated<'a>(c: &Candidate<'a>) -> impl Iterator<Item = &'a Taint> + use<'a> {
    let tolerations: &[Toleration] = c.run.spec.device.as_ref().map_or(&[], |d| &d.tolerations);
    c.device
        .spec
        .taints
        .iter()
        .filter(move |taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether a toleration covers a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let exists = toleration.operator == "Exists";
    // An empty key stands for every taint, and only with `Exists`.
    let key = toleration.key == taint.key || (toleration.key.is_empty() && exists);
    effect && key && (exists || toleration.value == taint.value)
}

/// The device's owner lets Runs of this namespace in.
pub(super) fn serves_namespace(c: &Candidate<'_>) -> Verdict {
    let namespace = &c.run.metadata.namespace;
    let serves = c.device.status.owner.as_ref().is_none_or(|owner| {
        owner
            .namespaces
            .iter()
            .any(|served| served == "*" || served == namespace)
    });
    if serves {
        Ok(())
    } else {
        Err((
            RefusalReason::NamespaceNotServed,
            format!("its owner does not serve namespace {namespace:?}"),
        ))
    }
}
