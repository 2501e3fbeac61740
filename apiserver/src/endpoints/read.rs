//! Get and list.

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
use crate::endpoints::{Api, Call};
use crate::negotiate::{Form, form};
use crate::registry::{Error, ListOptions, Object, ObjectList};
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
    let head = printer.list_head(&list_meta(&list));
    stream(head, list.items, Some(printer))
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
pub(crate) fn objects(head: String, items: Vec<Object>) -> Result<Response, Failure> {
    stream(head, items, None)
}

/// A list, made while it is sent: however large, it is never in memory as a whole besides the stored bytes.
fn stream(head: String, items: Vec<Object>, printer: Option<Printer>) -> Result<Response, Failure> {
    let printer = printer.filter(|printer| printer.form != Form::Object);
    let commas = items.len().saturating_sub(1);
    let length = head.len() + items.iter().map(|item| item.json.len()).sum::<usize>() + commas + 2;
    let mut body = ListBody {
        length: printer.is_none().then_some(length as u64),
        ready: None,
        head: Some(head),
        items: items.into_iter(),
        printer,
        first: true,
        ended: false,
    };
    // What fails at the beginning is still an answer; later it can only cut the body short.
    body.ready = body.chunk()?;
    Ok(bytes_response(StatusCode::OK, JSON, Body::new(body)))
}

struct ListBody {
    /// Bytes that are left, where that is known beforehand.
    length: Option<u64>,
    /// Made and not sent yet.
    ready: Option<Bytes>,
    head: Option<String>,
    items: std::vec::IntoIter<Object>,
    /// How items are shown; none: as they are stored.
    printer: Option<Printer>,
    first: bool,
    ended: bool,
}

impl ListBody {
    fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        if self.ended {
            return Ok(None);
        }
        let left = self.length.and_then(|left| usize::try_from(left).ok());
        let mut out = BytesMut::with_capacity(left.unwrap_or(CHUNK).min(CHUNK + (8 << 10)));
        if let Some(head) = self.head.take() {
            out.put_slice(head.as_bytes());
        }
        while out.len() < CHUNK {
            let Some(item) = self.items.next() else {
                out.put_slice(b"]}");
                self.ended = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                out.put_u8(b',');
            }
            match &self.printer {
                None => out.put_slice(&item.json),
                Some(printer) => out.put_slice(&printer.item(&item.json)?),
            }
        }
        Ok(Some(out.freeze()))
    }
}

impl HttpBody for ListBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let chunk = match self.ready.take() {
            Some(ready) => Ok(Some(ready)),
            None => self.chunk(),
        };
        if let (Ok(Some(chunk)), Some(left)) = (&chunk, &mut self.length) {
            *left = left.saturating_sub(chunk.len() as u64);
        }
        if chunk.is_err() {
            self.ended = true;
        }
        Poll::Ready(chunk.transpose().map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.ready.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
