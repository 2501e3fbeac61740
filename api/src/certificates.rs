//! `certificates.k8s.io/v1`: CertificateSigningRequest, in upstream's shape, and what a device's certificate says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::Time;
use crate::resource;

/// The signer of devices' certificates.
pub const DEVICE_SIGNER: &str = "panda.dev/device";
/// The user name (CN) of a device is this and its name.
pub const DEVICE_PREFIX: &str = "panda:device:";
/// The SAN URI of a device is this and its uid.
pub const DEVICE_URN: &str = "urn:panda:device:";
/// What a device's certificate is for.
pub const DEVICE_USAGES: [&str; 2] = ["digital signature", "client auth"];

/// What stands before a request (DER, base64url) that a device shows as a bearer token when its certificate has expired:
/// the request's signature by the device's recorded key is the proof.
pub const RENEWAL_BEARER: &str = "csr.";

/// Conditions of a request.
pub const APPROVED: &str = "Approved";
/// See [`APPROVED`].
pub const DENIED: &str = "Denied";
/// See [`APPROVED`].
pub const FAILED: &str = "Failed";

resource! {
    /// A request for a certificate. Whoever asks is recorded by the server; a signer answers once it is approved.
    CertificateSigningRequest, "certificates.k8s.io", "v1", "certificatesigningrequests", namespaced: false {
        /// What is asked for.
        #[serde(default)]
        spec: CertificateSigningRequestSpec,
        /// What became of it.
        #[serde(default)]
        status: CertificateSigningRequestStatus,
    }
}

/// Spec of a [`CertificateSigningRequest`]; it never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestSpec {
    /// The request in PKCS #10, PEM, base64.
    pub request: String,
    /// Who is to sign it: `panda.dev/device`.
    pub signer_name: String,
    /// Wanted life of the certificate; the signer may give less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_seconds: Option<i32>,
    /// What the certificate is to be good for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<String>,
    /// Who asked; set by the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// Uid of who asked; set by the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups of who asked; set by the server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// Status of a [`CertificateSigningRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestStatus {
    /// `Approved`, `Denied`, `Failed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<RequestCondition>,
    /// The certificate, PEM, base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
}

/// A condition of a [`CertificateSigningRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestCondition {
    /// `Approved`, `Denied` or `Failed`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`.
    pub status: String,
    /// Why, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

impl CertificateSigningRequestStatus {
    /// The condition of this type, if it holds.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&RequestCondition> {
        self.conditions
            .iter()
            .find(|c| c.type_ == type_ && c.status == "True")
    }
}
