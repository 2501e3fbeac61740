//! What is decided before roles: identities whose rights no role may widen.
//!
//! * A **device** uses the agentlet service, and asks for certificates. Nothing else.
//! * The **holder of a join token** asks for a certificate. Nothing else; which one is the signer's business.
//! * A **Run** writes Tasks, ConfigMaps and Events of its own namespace, where a role lets it, and asks about itself.
//!   It never decides an approval, approves a certificate, impersonates, gets a token, sees a Secret, a role or a
//!   binding, and makes no other kind: each would grant more than its Task has. What its Tasks may hold is
//!   `containment`'s business.

use super::{Attributes, Decision, MASTERS};
use crate::authn::{Principal, RunIdentity, User};
use crate::filters::health_path;

/// The path of the service that devices use.
const DEVICE_SERVICE: &str = "/panda.agentlet.";
const CERTIFICATES: &str = "certificates.k8s.io";
/// Groups whose reviews a Run may ask, and only about itself.
const REVIEWS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// The decision, where it does not depend on roles.
pub(super) fn decide(user: &User, attributes: &Attributes<'_>) -> Option<Decision> {
    match &user.principal {
        Principal::Device(_) => Some(device(attributes)),
        Principal::Join { .. } => Some(join(attributes)),
        Principal::Run(run) => run_may(run, attributes).err().map(Decision::Deny),
        Principal::Person if user.is_in(MASTERS) => Some(Decision::Allow),
        Principal::Person | Principal::ServiceAccount { .. } => None,
    }
}

/// Asking for a certificate, and looking at a request by its name.
fn asks_for_certificate(attributes: &Attributes<'_>) -> bool {
    attributes.group == CERTIFICATES
        && attributes.resource == "certificatesigningrequests"
        && attributes.subresource.is_empty()
        && (attributes.verb == "create" || (attributes.verb == "get" && !attributes.name.is_empty()))
}

fn device(attributes: &Attributes<'_>) -> Decision {
    let service = attributes.resource.is_empty() && attributes.path.starts_with(DEVICE_SERVICE);
    if service || asks_for_certificate(attributes) {
        Decision::Allow
    } else {
        Decision::Deny("devices use only the agentlet service and their own certificate requests")
    }
}

fn join(attributes: &Attributes<'_>) -> Decision {
    if asks_for_certificate(attributes) {
        Decision::Allow
    } else {
        Decision::Deny("a join token serves only to ask for a device's certificate")
    }
}

fn run_may(run: &RunIdentity, attributes: &Attributes<'_>) -> Result<(), &'static str> {
    if attributes.resource.is_empty() {
        let harmless = attributes.is_read() && !attributes.path.starts_with("/metrics");
        return if harmless || health_path(attributes.path) {
            Ok(())
        } else {
            Err("runs may only look at discovery")
        };
    }
    match (attributes.group, attributes.resource) {
        ("", "secrets") => return Err("runs see no Secrets; values come through the Task's env"),
        ("rbac.authorization.k8s.io" | CERTIFICATES, _) => {
            return Err("runs see no roles, bindings or certificates");
        }
        _ => {}
    }
    if attributes.is_read() {
        return Ok(());
    }
    if REVIEWS.contains(&attributes.group) {
        return if attributes.verb == "create" && attributes.resource.starts_with("selfsubject") {
            Ok(())
        } else {
            Err("runs may ask only about themselves")
        };
    }
    let kind = matches!(
        (attributes.group, attributes.resource),
        ("panda.dev", "tasks") | ("", "configmaps" | "events")
    );
    let verb = matches!(
        attributes.verb,
        "create" | "update" | "patch" | "delete" | "deletecollection"
    );
    if !kind || !verb || !attributes.subresource.is_empty() {
        return Err("runs may write only Tasks, ConfigMaps and Events");
    }
    if attributes.namespace != run.namespace {
        return Err("runs may write only in their own namespace");
    }
    Ok(())
}
