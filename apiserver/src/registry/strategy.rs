//! What single kinds do differently, beyond what their types say.

use panda_api::scheme::Operation;
use serde_json::{Value, json};

use super::error::cause;
use super::write::Part;
use super::{Error, Kind, kinds, meta};

/// The finalizer that keeps a namespace until it is empty.
const NAMESPACE_FINALIZER: &str = "kubernetes";

/// The namespaces that are always there.
pub(super) const NAMESPACES: [&str; 2] = ["default", "panda-system"];

/// Completes a new object that has passed validation.
pub(super) fn complete(kind: Kind, object: &mut Value) -> Result<(), Error> {
    if kinds::is_namespace(kind) {
        let name = meta::text(object, "name").to_owned();
        let metadata = meta::metadata(kind, object)?;
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Value::Object(labels) = labels {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
        }
        object["spec"]["finalizers"] = json!([NAMESPACE_FINALIZER]);
        object["status"] = json!({"phase": "Active"});
    }
    Ok(())
}

/// Keeps or refuses what an outside writer may not change in an update.
pub(super) fn guard(kind: Kind, part: Part, old: &Value, new: &mut Value) -> Result<(), Error> {
    if kinds::is_namespace(kind) && part == Part::Spec {
        // Only /finalize may end a namespace.
        match old.pointer("/spec/finalizers") {
            Some(finalizers) => new["spec"]["finalizers"] = finalizers.clone(),
            None => drop(new["spec"].as_object_mut().map(|spec| spec.remove("finalizers"))),
        }
    }
    if kind.kind == "CertificateSigningRequest" && part == Part::Status {
        return Err(Error::Forbidden {
            resource: kinds::resource(kind),
            name: meta::text(old, "name").to_owned(),
            detail: "the signer alone writes the status; decide with PUT to the /approval subresource"
                .to_owned(),
            causes: Vec::new(),
        });
    }
    if kind.kind == "Run" && kinds::is_custom(kind) && part == Part::Spec {
        let bound = |object: &Value| {
            ["deviceName", "deviceUid", "leaseEpoch"].map(|field| object["spec"].get(field).cloned())
        };
        if bound(old) != bound(new) {
            let text = "Forbidden: a Run is bound by POST to its /binding subresource";
            let causes = vec![cause("FieldValueForbidden", "spec.deviceName", text)];
            return Err(Error::invalid(kind, meta::text(old, "name"), causes));
        }
    }
    Ok(())
}

/// Refuses to delete what the system cannot be without.
pub(super) fn guard_deletion(kind: Kind, name: &str) -> Result<(), Error> {
    if kinds::is_namespace(kind) && NAMESPACES.contains(&name) {
        return Err(Error::Forbidden {
            resource: kinds::resource(kind),
            name: name.to_owned(),
            detail: "this namespace may not be deleted".to_owned(),
            causes: Vec::new(),
        });
    }
    Ok(())
}

/// The state that a deletion leaves while something holds the object.
pub(super) fn terminate(kind: Kind, object: &mut Value) {
    if kinds::is_namespace(kind) {
        object["status"]["phase"] = "Terminating".into();
    }
}

/// The operation of `panda-api` that goes with a part.
pub(super) fn operation(part: Part, old: &Value) -> Operation<'_> {
    match part {
        Part::Spec | Part::All | Part::Finalize => Operation::Update { old },
        Part::Status => Operation::UpdateStatus { old },
    }
}
