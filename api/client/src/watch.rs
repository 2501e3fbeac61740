//! Decoding of objects, lists and watch streams. One bad object never breaks the rest.

use bytes::{Buf, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use panda_api::meta::{ListMeta, ObjectMeta, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::resource::ApiResource;
use crate::transport::Body;

/// An object that is there but cannot be read as its kind, for example one that a newer server wrote.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind} {}/{} cannot be read: {problem}", .metadata.namespace, .metadata.name)]
pub struct Undecodable {
    /// The kind it should be.
    pub kind: String,
    /// Its name, namespace, uid and version, as far as they can be read.
    pub metadata: Box<ObjectMeta>,
    /// What the decoder says.
    pub problem: String,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// A list, or one page of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectList<K> {
    /// Version of the snapshot, and the next page's token.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<K>,
    /// Objects that cannot be read.
    pub undecodable: Vec<Undecodable>,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    /// The object came into the selection.
    Added(K),
    /// The object changed.
    Modified(K),
    /// The object left the selection; this is its last state.
    Deleted(K),
    /// Nothing happened up to this version.
    Bookmark {
        /// The version.
        resource_version: String,
    },
    /// The server ends the stream for this reason.
    Error(Box<Status>),
    /// An event about an object that cannot be read.
    Undecodable(Undecodable),
}

/// A watch.
pub type WatchStream<K> = BoxStream<'static, Result<WatchEvent<K>, Error>>;

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads a list; what cannot be read is set apart.
pub(crate) fn decode_list<K: DeserializeOwned>(
    bytes: &[u8],
    resource: &ApiResource,
) -> Result<ObjectList<K>, serde_json::Error> {
    let raw: RawList<'_> = serde_json::from_slice(bytes)?;
    let mut list = ObjectList {
        metadata: raw.metadata,
        items: Vec::new(),
        undecodable: Vec::new(),
    };
    for item in raw.items.unwrap_or_default() {
        match decode_object(item.get(), resource) {
            Ok(object) => list.items.push(object),
            Err(bad) => list.undecodable.push(bad),
        }
    }
    Ok(list)
}

/// Reads an object. Items of a list may lack kind and apiVersion: those of the resource are filled in.
pub(crate) fn decode_object<K: DeserializeOwned>(
    text: &str,
    resource: &ApiResource,
) -> Result<K, Undecodable> {
    let error = match serde_json::from_str(text) {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    let mut value: Value = serde_json::from_str(text).unwrap_or_default();
    let metadata = lenient_metadata(&value);
    let mut problem = error.to_string();
    if let Some(map) = value.as_object_mut()
        && !(map.contains_key("kind") && map.contains_key("apiVersion"))
    {
        map.entry("kind").or_insert_with(|| resource.kind.clone().into());
        map.entry("apiVersion")
            .or_insert_with(|| resource.api_version().into());
        match serde_json::from_value(value) {
            Ok(object) => return Ok(object),
            Err(error) => problem = error.to_string(),
        }
    }
    Err(Undecodable {
        kind: resource.kind.clone(),
        metadata: Box::new(metadata),
        problem,
        deleted: false,
    })
}

/// What identifies an object, even when the rest of its metadata makes no sense.
fn lenient_metadata(object: &Value) -> ObjectMeta {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

/// Reads one line of a watch.
pub(crate) fn decode_event<K: DeserializeOwned>(
    line: &[u8],
    resource: &ApiResource,
) -> Result<WatchEvent<K>, serde_json::Error> {
    let raw: RawEvent<'_> = serde_json::from_slice(line)?;
    let text = raw.object.get();
    let object = || decode_object::<K>(text, resource);
    Ok(match raw.kind {
        "ADDED" => object().map_or_else(WatchEvent::Undecodable, WatchEvent::Added),
        "MODIFIED" => object().map_or_else(WatchEvent::Undecodable, WatchEvent::Modified),
        "DELETED" => object().map_or_else(
            |bad| WatchEvent::Undecodable(Undecodable { deleted: true, ..bad }),
            WatchEvent::Deleted,
        ),
        "BOOKMARK" => WatchEvent::Bookmark {
            resource_version: lenient_metadata(&serde_json::from_str(text)?).resource_version,
        },
        "ERROR" => WatchEvent::Error(serde_json::from_str(text)?),
        other => return Err(serde::de::Error::custom(format!("unknown event type {other:?}"))),
    })
}

/// Cuts a body into lines of at most `limit` bytes. Blank lines are left out.
pub(crate) fn lines(body: Body, limit: usize, what: String) -> BoxStream<'static, Result<Vec<u8>, Error>> {
    struct State {
        body: Body,
        buffer: BytesMut,
        /// How much of the buffer is known to hold no line end.
        scanned: usize,
        done: bool,
    }
    let state = State {
        body,
        buffer: BytesMut::new(),
        scanned: 0,
        done: false,
    };
    stream::unfold(state, move |mut s| {
        let what = what.clone();
        async move {
            loop {
                if let Some(at) = s.buffer[s.scanned..].iter().position(|b| *b == b'\n') {
                    let line = s.buffer.split_to(s.scanned + at).to_vec();
                    s.buffer.advance(1);
                    s.scanned = 0;
                    if line.iter().any(|b| !b.is_ascii_whitespace()) {
                        return Some((Ok(line), s));
                    }
                    continue;
                }
                s.scanned = s.buffer.len();
                if s.done {
                    // Half a line: the stream was cut. The writer starts over from the last whole event.
                    return None;
                }
                if s.buffer.len() > limit {
                    s.done = true;
                    s.buffer.clear();
                    s.scanned = 0;
                    return Some((Err(Error::TooLarge { what, limit }), s));
                }
                match s.body.next().await {
                    Some(Ok(part)) => s.buffer.extend_from_slice(&part),
                    Some(Err(error)) => {
                        s.done = true;
                        return Some((Err(Error::Transport(error)), s));
                    }
                    None => s.done = true,
                }
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use panda_api::Task;

    use super::*;

    fn task() -> ApiResource {
        ApiResource::of::<Task>()
    }

    #[test]
    fn one_bad_object_does_not_break_a_list() {
        let list = decode_list::<Task>(
            br#"{"kind":"TaskList","metadata":{"resourceVersion":"9"},"items":[
                {"metadata":{"name":"a","namespace":"n"},"spec":{"prompt":"x"}},
                {"apiVersion":"panda.dev/v1alpha1","kind":"Task","metadata":{"name":"b","namespace":"n","uid":"u"},"spec":{"prompt":7}}]}"#,
            &task(),
        )
        .unwrap();
        assert_eq!(list.metadata.resource_version, "9");
        assert_eq!(list.items.len(), 1);
        assert_eq!(list.items[0].kind, "Task");
        assert_eq!(list.undecodable.len(), 1);
        assert_eq!(list.undecodable[0].metadata.name, "b");
        assert_eq!(list.undecodable[0].metadata.uid, "u");
    }

    #[test]
    fn a_list_without_items_is_empty() {
        for text in [r#"{"metadata":{}}"#, r#"{"metadata":{},"items":null}"#] {
            assert!(
                decode_list::<Task>(text.as_bytes(), &task())
                    .unwrap()
                    .items
                    .is_empty()
            );
        }
    }

    #[test]
    fn reads_every_event_type() {
        let event = |text: &str| decode_event::<Task>(text.as_bytes(), &task());
        assert_eq!(
            event(r#"{"type":"BOOKMARK","object":{"kind":"Task","metadata":{"resourceVersion":"12"}}}"#)
                .unwrap(),
            WatchEvent::Bookmark {
                resource_version: "12".into()
            }
        );
        assert!(matches!(
            event(r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#).unwrap(),
            WatchEvent::Error(s) if s.code == 410
        ));
        assert!(matches!(
            event(r#"{"type":"DELETED","object":{"metadata":{"name":"x"},"spec":7}}"#).unwrap(),
            WatchEvent::Undecodable(u) if u.deleted && u.metadata.name == "x"
        ));
        assert!(event(r#"{"type":"NEW","object":{}}"#).is_err());
        assert!(event("").is_err());
    }

    #[tokio::test]
    async fn lines_are_cut_wherever_the_network_cuts() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\r\n{\"half\":";
        for size in 1..text.len() {
            let parts: Vec<_> = text.chunks(size).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
            let body = Body::new(stream::iter(parts));
            let lines: Vec<_> = lines(body, 1000, String::new())
                .map(Result::unwrap)
                .collect()
                .await;
            assert_eq!(
                lines,
                [b"{\"a\":1}".to_vec(), b"{\"b\":2}\r".to_vec()],
                "parts of {size}"
            );
        }
    }

    #[tokio::test]
    async fn an_endless_line_is_refused() {
        let body = Body::new(stream::repeat_with(|| Ok(Bytes::from_static(&[b'x'; 64]))));
        let first = lines(body, 1000, "GET /x".into()).next().await.unwrap();
        assert!(matches!(first, Err(Error::TooLarge { limit: 1000, .. })));
    }
}
