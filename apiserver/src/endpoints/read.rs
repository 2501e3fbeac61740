//! Get and list.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body as HttpBody, Frame, SizeHint};
use panda_api::meta::ListMeta;
use serde_json::{Value, json};

use crate::endpoints::forms::{Include, Printer};
use crate::endpoints::{Api, Call, list_head};
use crate::negotiate::{Form, form};
use crate::registry::{ListOptions, Object, ObjectList};
use crate::respond::{Failure, JSON, bytes_response};

/// Bytes of a list that are sent at a time.
const CHUNK: usize = 64 << 10;

pub(crate) fn printer(api: &Api, call: &Call) -> Result<Printer, Failure> {
    let form = form(&call.parts.headers)?;
    let include = if matches!(form, Form::Table(_)) {
        Include::of(call)?
    } else {
        Include::Metadata
    };
    Ok(Printer {
        kind: call.kind,
        form,
        include,
        now: api.registry.clock().now(),
    })
}

pub(crate) async fn get(api: &Arc<Api>, call: &Call) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    call.params.version()?;
    let object = api.registry.get(call.kind, call.namespace(), call.name()).await?;
    printer.answer(StatusCode::OK, &object.json)
}

pub(crate) async fn list(api: &Arc<Api>, call: &Call) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    let options = ListOptions {
        namespace: Some(call.namespace().to_owned()),
        filter: call.params.filter(call.kind)?,
        limit: call.params.limit()?,
        continue_: call.params.continue_token(),
        at: call.params.list_version()?,
    };
    let list = api.registry.list(call.kind, &options).await?;
    let metadata = list_meta(&list);
    match printer.form {
        Form::Object => Ok(objects(list_head(call.kind, &metadata.to_string()), list.items)),
        Form::Table(version) | Form::Partial(version) => {
            let body = printer.list(version, &metadata, &list.items)?;
            Ok(bytes_response(StatusCode::OK, JSON, body))
        }
    }
}

fn list_meta(list: &ObjectList) -> Value {
    let meta = ListMeta {
        resource_version: list.revision.to_string(),
        continue_: list.continue_.clone().unwrap_or_default(),
        remaining_item_count: list.remaining.map(|n| i64::try_from(n).unwrap_or(i64::MAX)),
    };
    serde_json::to_value(meta).unwrap_or_else(|_| json!({"resourceVersion": list.revision.to_string()}))
}

/// A list straight from the stored bytes.
pub(crate) fn objects(head: String, items: Vec<Object>) -> Response {
    let commas = items.len().saturating_sub(1);
    let length = head.len() + items.iter().map(|item| item.json.len()).sum::<usize>() + commas + 2;
    let body = ListBody {
        head: Some(head),
        items: items.into_iter(),
        first: true,
        left: length,
    };
    bytes_response(StatusCode::OK, JSON, Body::new(body))
}

struct ListBody {
    head: Option<String>,
    items: std::vec::IntoIter<Object>,
    first: bool,
    left: usize,
}

impl ListBody {
    fn chunk(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut out = BytesMut::with_capacity(self.left.min(CHUNK + (8 << 10)));
        if let Some(head) = self.head.take() {
            out.put_slice(head.as_bytes());
        }
        while out.len() < CHUNK {
            let Some(item) = self.items.next() else {
                out.put_slice(b"]}");
                break;
            };
            if !std::mem::take(&mut self.first) {
                out.put_u8(b',');
            }
            out.put_slice(&item.json);
        }
        self.left = self.left.saturating_sub(out.len());
        Some(out.freeze())
    }
}

impl HttpBody for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.chunk().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}
