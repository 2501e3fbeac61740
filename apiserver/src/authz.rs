//! Who may do what.

use crate::authn::User;
use crate::request::{RequestInfo, Verb};

/// May do everything.
pub const MASTERS: &str = "system:masters";
/// The user name of the controllers.
pub const CONTROLLERS: &str = "panda:controllers";
/// The path of the service that devices use.
const DEVICE_SERVICE: &str = "/panda.agentlet.";

/// Decides about requests.
pub trait Authorizer: Send + Sync + std::fmt::Debug + 'static {
    /// Whether `user` may do this.
    fn allows(&self, user: &User, request: &RequestInfo) -> bool;
}

/// The fixed rules that hold as long as there are no roles: `system:masters` may do everything, the controllers
/// everything but see or write the values of Secrets, a device only use its own service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl Authorizer for Fixed {
    fn allows(&self, user: &User, request: &RequestInfo) -> bool {
        if user.device.is_some() {
            return request.path.starts_with(DEVICE_SERVICE);
        }
        if user.is_in(MASTERS) {
            return true;
        }
        if user.name == CONTROLLERS {
            let secret = request
                .target
                .as_ref()
                .is_some_and(|target| target.resource == "secrets");
            let removes = matches!(request.verb, Verb::Delete | Verb::DeleteCollection);
            return !secret || request.metadata_only || removes;
        }
        // Everybody who is known may look around, as with upstream's discovery role.
        request.target.is_none() && request.verb == Verb::Get && !request.path.starts_with("/metrics")
    }
}

/// The text of a refusal, in upstream's words.
pub(crate) fn refusal(user: &User, request: &RequestInfo) -> String {
    let name = &user.name;
    let verb = request.verb.as_str();
    let Some(target) = &request.target else {
        return format!("forbidden: User {name:?} cannot {verb} path {:?}", request.path);
    };
    let qualified = if target.group.is_empty() {
        target.resource.clone()
    } else {
        format!("{}.{}", target.resource, target.group)
    };
    let object = target
        .name
        .as_ref()
        .map(|name| format!(" {name:?}"))
        .unwrap_or_default();
    let part = target
        .subresource
        .as_ref()
        .map(|part| format!("/{part}"))
        .unwrap_or_default();
    let place = if target.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", target.namespace)
    };
    format!(
        "{qualified}{object} is forbidden: User {name:?} cannot {verb} resource \"{}{part}\" in API group {:?} {place}",
        target.resource, target.group
    )
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::authn::Device;

    fn user(name: &str, groups: &[&str], device: bool) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            device: device.then(|| Device {
                name: "pi".to_owned(),
                uid: "u".to_owned(),
            }),
        }
    }

    fn request(method: Method, path: &str) -> RequestInfo {
        RequestInfo::new(&method, &path.parse().unwrap(), false)
    }

    #[test]
    fn the_fixed_rules() {
        let secrets = request(Method::GET, "/api/v1/namespaces/web/secrets/a");
        let tasks = request(Method::POST, "/apis/panda.dev/v1alpha1/namespaces/web/tasks");
        let session = request(Method::POST, "/panda.agentlet.v1.Agentlet/Session");
        let discovery = request(Method::GET, "/apis");
        let rows = [
            (user("admin", &[MASTERS], false), [true, true, true, true]),
            (user(CONTROLLERS, &[], false), [false, true, true, true]),
            (
                user("panda:device:pi", &[MASTERS], true),
                [false, false, true, false],
            ),
            (user("jo", &["staff"], false), [false, false, false, true]),
        ];
        for (user, want) in rows {
            let got = [&secrets, &tasks, &session, &discovery].map(|request| Fixed.allows(&user, request));
            assert_eq!(got, want, "{}", user.name);
        }
    }

    #[test]
    fn a_refusal_says_who_what_and_where() {
        let jo = user("viewer", &[], false);
        let tasks = request(Method::POST, "/apis/panda.dev/v1alpha1/namespaces/x/tasks");
        assert_eq!(
            refusal(&jo, &tasks),
            "tasks.panda.dev is forbidden: User \"viewer\" cannot create resource \"tasks\" in API group \
             \"panda.dev\" in the namespace \"x\""
        );
        let device = request(Method::DELETE, "/apis/panda.dev/v1alpha1/devices/pi");
        assert!(refusal(&jo, &device).ends_with("at the cluster scope"));
        assert!(refusal(&jo, &device).starts_with("devices.panda.dev \"pi\" is forbidden"));
    }
}
