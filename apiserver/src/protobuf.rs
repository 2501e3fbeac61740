//! Kubernetes' protobuf bodies, read into the same JSON values as every other body.
//!
//! Newer stock clients send built-in kinds so and do not fall back when it is refused. Answers are JSON, which they
//! take. Only the kinds in `tables` are read; a field that a table does not know is refused unless it is empty, so
//! that nothing a client said is lost silently.

mod tables;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Seconds of 0001-01-01, Go's time that is not set.
const GO_ZERO: i64 = -62_135_596_800;
/// What every such body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It does not begin as it must.
    #[error("the body is no Kubernetes protobuf")]
    Magic,
    /// It breaks off or does not hold together.
    #[error("the protobuf body is damaged")]
    Damaged,
    /// Text is not UTF-8.
    #[error("the protobuf body holds text that is not UTF-8")]
    Text,
    /// The kind is not read in this form.
    #[error("{api_version} {kind} is not read as protobuf here; send application/json")]
    Kind {
        /// `group/version`.
        api_version: String,
        /// Kind.
        kind: String,
    },
    /// A field that the kind does not have here.
    #[error("{message} has an unknown field number {number}; send application/json")]
    Field {
        /// Which message.
        message: &'static str,
        /// Which field.
        number: u64,
    },
}

/// How a message becomes an object.
struct Message {
    name: &'static str,
    fields: &'static [Field],
}

struct Field {
    number: u64,
    name: &'static str,
    type_: Type,
}

#[derive(Clone, Copy)]
enum Type {
    Text,
    Texts,
    /// Shown as base64.
    Bytes,
    /// Shown to the second, as RFC 3339.
    Time,
    /// Shown to the microsecond, as RFC 3339.
    MicroTime,
    Bool,
    Int,
    Message(&'static Message),
    Messages(&'static Message),
    TextMap,
    BytesMap,
    /// A map to messages that hold a list of texts.
    TextsMap,
    /// Only the server sets it.
    Ignored,
}

/// One field as it stands on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Number(number) => *number == 0,
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }
}

/// The object in a body.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, Error> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(Error::Magic)?;
    let (mut type_, mut raw) = (&[][..], &[][..]);
    while let Some((number, wire)) = next(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => type_ = bytes,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let type_ = object(&tables::TYPE_META, type_)?;
    let word = |key: &str| {
        type_
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (api_version, kind) = (word("apiVersion"), word("kind"));
    let Some(message) = tables::find(&api_version, &kind) else {
        let cut = |text: String| text.chars().take(128).collect();
        return Err(Error::Kind {
            api_version: cut(api_version),
            kind: cut(kind),
        });
    };
    let mut object = object(message, raw)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn object(message: &Message, mut rest: &[u8]) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    while let Some((number, wire)) = next(&mut rest)? {
        let Some(field) = message.fields.iter().find(|field| field.number == number) else {
            if wire.is_empty() {
                continue;
            }
            return Err(Error::Field {
                message: message.name,
                number,
            });
        };
        put(&mut out, field, &wire)?;
    }
    Ok(out)
}

fn put(out: &mut Map<String, Value>, field: &Field, wire: &Wire<'_>) -> Result<(), Error> {
    let name = field.name.to_owned();
    match (field.type_, wire) {
        (Type::Ignored, _) => {}
        (Type::Bool, Wire::Number(number)) => drop(out.insert(name, (*number != 0).into())),
        (Type::Int, Wire::Number(number)) => drop(out.insert(name, number.cast_signed().into())),
        // Text and messages that are not set are sent empty.
        (Type::Text, Wire::Bytes([])) => {}
        (Type::Text, Wire::Bytes(bytes)) => drop(out.insert(name, text(bytes)?.into())),
        (Type::Bytes, Wire::Bytes([])) => {}
        (Type::Bytes, Wire::Bytes(bytes)) => drop(out.insert(name, STANDARD.encode(bytes).into())),
        (Type::Time | Type::MicroTime, Wire::Bytes(bytes)) => {
            if let Some(time) = time(bytes, matches!(field.type_, Type::MicroTime))? {
                out.insert(name, time.into());
            }
        }
        (Type::Message(message), Wire::Bytes(bytes)) => {
            drop(out.insert(name, object(message, bytes)?.into()))
        }
        (Type::Texts, Wire::Bytes(bytes)) => push(out, name, text(bytes)?.into()),
        (Type::Messages(message), Wire::Bytes(bytes)) => push(out, name, object(message, bytes)?.into()),
        (Type::TextMap | Type::BytesMap | Type::TextsMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(field.type_, bytes)?;
            let map = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(map) = map {
                map.insert(key, value);
            }
        }
        _ => return Err(Error::Damaged),
    }
    Ok(())
}

/// Seconds and nanoseconds since 1970 as text; nothing when neither is there.
fn time(mut rest: &[u8], micros: bool) -> Result<Option<String>, Error> {
    let (mut seconds, mut nanos) = (0, 0);
    let empty = rest.is_empty();
    while let Some((number, wire)) = next(&mut rest)? {
        match (number, wire) {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanos = number,
            _ => return Err(Error::Damaged),
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| Error::Damaged)?;
    let time = Timestamp::new(seconds, if micros { nanos } else { 0 }).map_err(|_| Error::Damaged)?;
    let text = if micros {
        format!("{time:.6}")
    } else {
        format!("{time:.0}")
    };
    // A time that is not set is the zero of Go, or nothing at all.
    Ok((!empty && seconds != GO_ZERO).then_some(text))
}

fn push(out: &mut Map<String, Value>, name: String, value: Value) {
    if let Value::Array(list) = out.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
        list.push(value);
    }
}

fn entry(type_: Type, mut rest: &[u8]) -> Result<(String, Value), Error> {
    let (mut key, mut value) = (String::new(), &[][..]);
    while let Some((number, wire)) = next(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => return Err(Error::Damaged),
        }
    }
    let value = match type_ {
        Type::BytesMap => STANDARD.encode(value).into(),
        Type::TextsMap => object(&tables::TEXTS, value)?
            .remove("items")
            .unwrap_or_else(|| Value::Array(Vec::new())),
        _ => text(value)?.into(),
    };
    Ok((key, value))
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    std::str::from_utf8(bytes)
        .map(ToOwned::to_owned)
        .map_err(|_| Error::Text)
}

/// Takes the next field off `rest`.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, Error> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| Error::Damaged)?;
            let (bytes, after) = rest.split_at_checked(length).ok_or(Error::Damaged)?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        // No message here has numbers of fixed width, or groups.
        _ => return Err(Error::Damaged),
    };
    Ok(Some((tag >> 3, wire)))
}

fn varint(rest: &mut &[u8]) -> Result<u64, Error> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(Error::Damaged)?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_ = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [
            MAGIC.to_vec(),
            field(1, &type_),
            field(2, raw),
            field(3, b""),
            field(4, b""),
        ]
        .concat()
    }

    #[test]
    fn an_access_review_as_kubectl_sends_it() {
        let on = [
            field(1, b"web"),
            field(2, b"list"),
            field(3, b"panda.dev"),
            field(5, b"tasks"),
            field(6, b""),
        ]
        .concat();
        let raw = [
            field(1, &field(8, b"")),
            field(2, &field(1, &on)),
            field(3, &[8, 0]),
        ]
        .concat();
        assert_eq!(
            read(&body("authorization.k8s.io/v1", "SelfSubjectAccessReview", &raw)).unwrap(),
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                "spec": {"resourceAttributes": {
                    "namespace": "web", "verb": "list", "group": "panda.dev", "resource": "tasks",
                }},
            })
        );
    }

    #[test]
    fn lists_maps_bytes_and_numbers_are_read() {
        let rule = [
            field(1, b"get"),
            field(1, b"list"),
            field(2, b""),
            field(3, b"secrets"),
        ]
        .concat();
        let role = [field(1, &field(1, b"r")), field(2, &rule)].concat();
        let role = read(&body("rbac.authorization.k8s.io/v1", "Role", &role)).unwrap();
        assert_eq!(
            role["rules"],
            json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"]}])
        );
        let labels = field(11, &[field(1, b"a"), field(2, b"b")].concat());
        let data = field(2, &[field(1, b"k"), field(2, &[0, 255])].concat());
        let secret = [
            field(1, &[field(1, b"s"), labels].concat()),
            data,
            field(3, b"Opaque"),
        ]
        .concat();
        let secret = read(&body("v1", "Secret", &secret)).unwrap();
        assert_eq!(secret["data"], json!({"k": "AP8="}));
        assert_eq!(secret["metadata"]["labels"], json!({"a": "b"}));
        let request = field(2, &[0x20, 0x90, 0x1c]);
        let request = read(&body("authentication.k8s.io/v1", "TokenRequest", &request)).unwrap();
        assert_eq!(request["spec"]["expirationSeconds"], 3600);
    }

    #[test]
    fn times_bytes_and_delete_options_are_read() {
        // 2026-01-02T03:04:05.000006Z
        let time = [0x08, 0xa5, 0xeb, 0xdc, 0xca, 0x06, 0x10, 0xf0, 0x2e];
        let event = [
            field(1, &field(1, b"e")),
            field(2, &field(1, b"Task")),
            field(6, &time),
            field(7, b""),
            field(10, &time),
        ]
        .concat();
        assert_eq!(
            read(&body("v1", "Event", &event)).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Task"},
                "firstTimestamp": "2026-01-02T03:04:05Z", "eventTime": "2026-01-02T03:04:05.000006Z",
            })
        );
        let request = field(2, &[field(1, b"pem"), field(7, b"s")].concat());
        let request = read(&body(
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            &request,
        ));
        assert_eq!(
            request.unwrap()["spec"],
            json!({"request": "cGVt", "signerName": "s"})
        );
        let options = [vec![0x08, 0x00], field(2, &field(1, b"u")), field(5, b"All")].concat();
        let options = read(&body("coordination.k8s.io/v1", "DeleteOptions", &options)).unwrap();
        assert_eq!(
            (&options["preconditions"]["uid"], &options["dryRun"]),
            (&json!("u"), &json!(["All"]))
        );
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(read(b"{}").unwrap_err(), Error::Magic);
        assert!(matches!(
            read(&body("v1", "Pod", b"")).unwrap_err(),
            Error::Kind { .. }
        ));
        let unknown = body("v1", "Namespace", &field(9, b"x"));
        assert!(matches!(
            read(&unknown).unwrap_err(),
            Error::Field { number: 9, .. }
        ));
        let broken = [MAGIC, &[0x0a, 0x7f]].concat();
        assert_eq!(read(&broken).unwrap_err(), Error::Damaged);
        let latin = body("v1", "Namespace", &field(1, &field(1, b"\xff")));
        assert_eq!(read(&latin).unwrap_err(), Error::Text);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&[MAGIC, &bytes].concat());
            let _ = read(&body("rbac.authorization.k8s.io/v1", "ClusterRole", &bytes));
        }
    }
}
