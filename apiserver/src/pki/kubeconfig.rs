//! The kubeconfig that people, `pandactl` and `kubectl` use.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::Identity;

/// A kubeconfig for `server` (`https://host:port`) with everything inline.
#[must_use]
pub fn kubeconfig(server: &str, ca_pem: &str, user: &str, identity: &Identity, namespace: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "panda", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(ca_pem),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&identity.certificate_pem),
            "client-key-data": STANDARD.encode(&identity.key_pem),
        }}],
        "contexts": [{"name": "panda", "context": {"cluster": "panda", "user": user, "namespace": namespace}}],
        "current-context": "panda",
    });
    serde_yaml::to_string(&config).unwrap_or_else(|_| config.to_string())
}
