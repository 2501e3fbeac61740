//! Objects to bytes, with a gap for the version that only the store knows.

use panda_store::Body;
use serde_json::{Map, Value};

const CANNOT_FAIL: &str = "a JSON value always serialises to memory";

/// Serialises `object`; its `metadata.resourceVersion` becomes the gap.
pub(crate) fn body(object: &Value) -> Body {
    let empty = Map::new();
    let object = object.as_object().unwrap_or(&empty);
    let mut out = Vec::with_capacity(2048);
    let mut splice = None;
    out.push(b'{');
    let mut first = true;
    // The order in which people read them.
    let head = ["apiVersion", "kind", "metadata"];
    let known = head.iter().filter_map(|key| object.get_key_value(*key));
    let rest = object.iter().filter(|(key, _)| !head.contains(&key.as_str()));
    for (key, value) in known.chain(rest) {
        comma(&mut out, &mut first);
        string(&mut out, key);
        out.push(b':');
        match value {
            Value::Object(metadata) if key == "metadata" => splice = Some(self::metadata(&mut out, metadata)),
            value => serde_json::to_writer(&mut out, value).expect(CANNOT_FAIL),
        }
    }
    let splice = splice.unwrap_or_else(|| {
        comma(&mut out, &mut first);
        out.extend_from_slice(b"\"metadata\":");
        metadata(&mut out, &Map::new())
    });
    out.push(b'}');
    Body::new(out, splice)
}

fn metadata(out: &mut Vec<u8>, metadata: &Map<String, Value>) -> usize {
    out.extend_from_slice(b"{\"resourceVersion\":\"");
    let splice = out.len();
    out.push(b'"');
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        out.push(b',');
        string(out, key);
        out.push(b':');
        serde_json::to_writer(&mut *out, value).expect(CANNOT_FAIL);
    }
    out.push(b'}');
    splice
}

fn comma(out: &mut Vec<u8>, first: &mut bool) {
    if !std::mem::take(first) {
        out.push(b',');
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect(CANNOT_FAIL);
}

/// The bytes of a body at `version`.
pub(crate) fn fill(bytes: &[u8], splice: usize, version: &str) -> Vec<u8> {
    let (head, tail) = bytes.split_at(splice.min(bytes.len()));
    [head, version.as_bytes(), tail].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_gap_is_where_the_version_goes() {
        for object in [
            json!({"kind": "T", "apiVersion": "v1", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}}),
            json!({"metadata": {}}),
            json!({}),
        ] {
            let body = body(&object);
            let back: Value = serde_json::from_slice(&fill(&body.bytes, body.splice, "42")).unwrap();
            let mut want = object.clone();
            want["metadata"]["resourceVersion"] = json!("42");
            assert_eq!(back, want);
        }
    }
}
