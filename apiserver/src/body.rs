//! Request bodies: bounded, decoded strictly.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use panda_api::meta::Reason;
use panda_api::{json, manifest};
use serde_json::Value;

use crate::filters::{BodyLimit, too_large};
use crate::negotiate::Encoding;
use crate::protobuf;
use crate::registry::FieldValidation;
use crate::respond::Failure;

/// A decoded body.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Duplicate fields, ready to print, for the modes that report them.
    pub(crate) duplicates: Vec<String>,
}

/// The whole body, within the limit.
pub(crate) async fn read(body: Body, limit: BodyLimit) -> Result<Bytes, Failure> {
    match Limited::new(body, limit.0).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(limit)),
        Err(error) => {
            tracing::debug!(%error, "request body broke off");
            Err(Failure::new(Reason::BadRequest, "the request body broke off"))
        }
    }
}

/// Decodes one object. A duplicate field is refused, naming both lines, unless the client has said what is to
/// happen to it: the value that counts would be a guess.
pub(crate) fn decode(
    bytes: &[u8],
    encoding: Encoding,
    validation: Option<FieldValidation>,
) -> Result<Decoded, Failure> {
    if bytes.is_empty() {
        return Err(Failure::bad_request("the request has no body; want an object"));
    }
    let document = match encoding {
        Encoding::Json => json::parse(bytes)
            .map_err(|error| Failure::bad_request(format!("the body is not JSON: {error}")))?,
        Encoding::Yaml => json::Document {
            value: yaml(bytes)?,
            duplicates: Vec::new(),
        },
        Encoding::Protobuf => json::Document {
            value: protobuf::read(bytes).map_err(|error| Failure::bad_request(error.to_string()))?,
            duplicates: Vec::new(),
        },
    };
    if validation.is_none()
        && let Some(first) = document.duplicates.first()
    {
        return Err(Failure::bad_request(format!(
            "{first}: remove one of them, or set fieldValidation to Warn"
        )));
    }
    let duplicates = document
        .duplicates
        .iter()
        .map(|found| format!("duplicate field \"{}\"", found.path));
    Ok(Decoded {
        value: document.value,
        duplicates: duplicates.collect(),
    })
}

/// One YAML document, by the rules of manifests: duplicate keys, alias bombs and a second document are refused.
fn yaml(bytes: &[u8]) -> Result<Value, Failure> {
    manifest::read_value("body", bytes).map_err(|errors| {
        Failure::bad_request(format!("the body cannot be read as YAML of one object: {errors}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_refused_with_both_lines_unless_the_client_chose() {
        let body = b"{\"a\": 1,\n\"a\": 2}";
        let refused = decode(body, Encoding::Json, None).unwrap_err();
        assert_eq!(refused.status().code, 400);
        assert!(
            refused.status().message.contains("lines 1 and 2"),
            "{}",
            refused.status().message
        );
        let kept = decode(body, Encoding::Json, Some(FieldValidation::Warn)).unwrap();
        assert_eq!(kept.value, serde_json::json!({"a": 2}));
        assert_eq!(kept.duplicates, ["duplicate field \"a\""]);
    }

    #[test]
    fn nonsense_is_a_bad_request() {
        for body in [&b""[..], b"{", b"\xff", b"{} {}"] {
            assert_eq!(decode(body, Encoding::Json, None).unwrap_err().status().code, 400);
        }
        let good = "apiVersion: v1\nkind: ConfigMap\ndata: {no: no}\n";
        let read = |text: &str| decode(text.as_bytes(), Encoding::Yaml, None);
        assert_eq!(read(good).unwrap().value["data"]["no"], "no");
        let twice = "apiVersion: v1\nkind: ConfigMap\ndata: {k: a, k: b}\n";
        for bad in ["a: [", "", twice, &format!("{good}---\n{good}")] {
            assert_eq!(read(bad).unwrap_err().status().code, 400, "{bad}");
        }
        // A list is no object of any kind; only files are taken apart.
        let list = read("apiVersion: v1\nkind: List\nitems: [[]]\n").unwrap().value;
        assert_eq!(list["kind"], "List");
    }
}
