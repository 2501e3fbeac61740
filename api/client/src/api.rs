//! The verbs of one kind.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use panda_api::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Client, request};
use crate::error::Error;
use crate::params::{DeleteParams, ListParams, Query, WatchParams, WriteParams};
use crate::resource::{ApiResource, PartialObject, encode_segment};
use crate::table::{ACCEPT_TABLE, Table};
use crate::transport::Body;
use crate::watch::{ObjectList, WatchEvent, WatchStream, decode_event, decode_list, decode_object, lines};

/// Items a page of [`Api::list_all`].
const PAGE: u32 = 500;
/// How much longer than its own timeout a watch may last before the client ends it.
const WATCH_GRACE: Duration = Duration::from_secs(15);
/// Objects without their values; the server refuses rather than send more.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Forms of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// Null deletes, objects merge, everything else replaces (RFC 7396).
    Merge,
    /// A list of operations (RFC 6902).
    Json,
    /// Server-side apply: everything that the field manager wants, in a whole object. What is not there is made; what the
    /// manager wanted before and does not any more is removed. Needs [`WriteParams::field_manager`].
    Apply,
}

impl PatchKind {
    const fn media(self) -> &'static str {
        match self {
            Self::Merge => MERGE_PATCH,
            Self::Json => JSON_PATCH,
            // JSON is YAML, too.
            Self::Apply => APPLY_PATCH,
        }
    }
}

/// Objects of one kind, in one namespace or all of them.
#[derive(Clone, Debug)]
pub struct Api<K> {
    client: Client,
    resource: ApiResource,
    namespace: Option<String>,
    /// Whether only metadata is asked for.
    metadata_only: bool,
    kind: PhantomData<fn() -> K>,
}

/// Objects of a kind known only at run time.
pub type DynamicApi = Api<Value>;

/// What became of a deleted object.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion<K> {
    /// It is gone.
    Done,
    /// It waits for its finalizers.
    Pending(Box<K>),
}

impl<K: Resource> Api<K> {
    /// Objects in one namespace.
    #[must_use]
    pub fn namespaced(client: Client, namespace: &str) -> Self {
        Self::of(client, ApiResource::of::<K>(), Some(namespace))
    }

    /// Objects in the client's default namespace.
    #[must_use]
    pub fn default_namespaced(client: Client) -> Self {
        let namespace = client.default_namespace().to_owned();
        Self::namespaced(client, &namespace)
    }

    /// Objects in all namespaces: for lists and watches.
    #[must_use]
    pub fn all(client: Client) -> Self {
        Self::of(client, ApiResource::of::<K>(), None)
    }

    /// Objects of a kind without namespaces.
    #[must_use]
    pub fn cluster(client: Client) -> Self {
        Self::all(client)
    }
}

impl DynamicApi {
    /// Objects of a kind found by discovery; a namespace is left out for kinds without.
    #[must_use]
    pub fn dynamic(client: Client, resource: ApiResource, namespace: Option<&str>) -> Self {
        Self::of(client, resource, namespace)
    }
}

impl Api<PartialObject> {
    /// The metadata of objects of any kind, in all namespaces.
    #[must_use]
    pub fn metadata(client: Client, resource: ApiResource) -> Self {
        Self {
            metadata_only: true,
            ..Self::of(client, resource, None)
        }
    }
}

impl<K> Api<K> {
    fn of(client: Client, resource: ApiResource, namespace: Option<&str>) -> Self {
        let namespace = namespace.filter(|_| resource.namespaced).map(str::to_owned);
        Self {
            client,
            resource,
            namespace,
            metadata_only: false,
            kind: PhantomData,
        }
    }

    /// The same kind in another namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self {
            metadata_only: self.metadata_only,
            ..Self::of(self.client.clone(), self.resource.clone(), Some(namespace))
        }
    }

    /// The same, asking for metadata only: `K` must be readable from that, as untyped JSON is.
    #[must_use]
    pub fn metadata_only(self) -> Self {
        Self {
            metadata_only: true,
            ..self
        }
    }

    /// The names of the kind.
    #[must_use]
    pub const fn resource(&self) -> &ApiResource {
        &self.resource
    }

    /// The client.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    fn collection(&self) -> String {
        self.resource.path(self.namespace.as_deref())
    }

    fn object(&self, name: &str) -> Result<String, Error> {
        if name.is_empty() {
            return Err(Error::Request(format!("{}: no name given", self.resource)));
        }
        self.writable()?;
        Ok(format!("{}/{}", self.collection(), encode_segment(name)))
    }

    fn writable(&self) -> Result<(), Error> {
        if self.resource.namespaced && self.namespace.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::Request(format!(
                "{} live in namespaces: say which",
                self.resource
            )));
        }
        Ok(())
    }

    async fn raw(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<Bytes>,
    ) -> Result<Bytes, Error> {
        let list = method == Method::GET && path == self.collection();
        let mut request = request(method, &query.on(path), body)?;
        self.accept(&mut request, if list { METADATA_LIST } else { METADATA });
        Ok(self.client.request(request).await?.into_body())
    }

    /// Asks for the form that this interface shows, if it is not the whole object.
    fn accept(&self, request: &mut Request<Bytes>, metadata: &'static str) {
        if self.metadata_only {
            request
                .headers_mut()
                .insert(ACCEPT, HeaderValue::from_static(metadata));
        }
    }

    /// The bytes of a subresource (`log`, `artifacts/NAME`), whole.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_subresource(
        &self,
        name: &str,
        subresource: &str,
        query: &[(&str, &str)],
    ) -> Result<Bytes, Error> {
        let request = self.subresource(Method::GET, name, subresource, query, None)?;
        Ok(self.client.request(request).await?.into_body())
    }

    /// The bytes of a subresource as they come in (`log` with `follow=true`).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn stream_subresource(
        &self,
        name: &str,
        subresource: &str,
        query: &[(&str, &str)],
    ) -> Result<Body, Error> {
        let request = self.subresource(Method::GET, name, subresource, query, None)?;
        Ok(self.client.stream(request).await?.into_body())
    }

    /// Posts to a subresource (`binding`, `decision`) and returns the answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn post_subresource(
        &self,
        name: &str,
        subresource: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Value, Error> {
        let request = self.subresource(Method::POST, name, subresource, &[], Some(to_json(body)?))?;
        self.client.request_json(request).await
    }

    fn subresource(
        &self,
        method: Method,
        name: &str,
        subresource: &str,
        query: &[(&str, &str)],
        body: Option<Bytes>,
    ) -> Result<Request<Bytes>, Error> {
        let mut path = self.object(name)?;
        for segment in subresource.split('/') {
            path.push('/');
            path.push_str(&encode_segment(segment));
        }
        let mut q = Query::default();
        for (key, value) in query {
            q.push(key, value);
        }
        let mut request = request(method, &q.on(&path), body)?;
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("*/*"));
        Ok(request)
    }

    /// A list as the server prints it. Check [`Table::kind`]: a server without tables answers with objects.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list_table(&self, params: &ListParams) -> Result<Table, Error> {
        self.client
            .request_json(as_table(&params.query().on(&self.collection()))?)
            .await
    }

    /// One object as the server prints it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_table(&self, name: &str) -> Result<Table, Error> {
        self.client.request_json(as_table(&self.object(name)?)?).await
    }

    /// A watch whose events hold tables.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn watch_table(&self, params: &WatchParams) -> Result<WatchStream<Table>, Error> {
        self.open_watch(as_table(&params.query().on(&self.collection()))?, params)
            .await
    }

    async fn open_watch<T: DeserializeOwned + Send + 'static>(
        &self,
        request: Request<Bytes>,
        params: &WatchParams,
    ) -> Result<WatchStream<T>, Error> {
        let what = format!("watch {}", request.uri().path());
        let body = self.client.stream(request).await?.into_body();
        let resource = self.resource.clone();
        let limit = self.client.options().max_line_bytes;
        let events = lines(body, limit, what.clone()).map(move |line| {
            decode_event::<T>(&line?, &resource).map_err(|source| Error::Decode {
                what: what.clone(),
                source,
            })
        });
        // A stream that outlives its own timeout hangs on a dead connection.
        Ok(match params.timeout {
            Some(timeout) => {
                let end = tokio::time::sleep(timeout + WATCH_GRACE);
                events.take_until(end).boxed()
            }
            None => events.boxed(),
        })
    }
}

impl<K: Serialize + DeserializeOwned + Send + Sync + 'static> Api<K> {
    fn decode(&self, bytes: &[u8], what: &str) -> Result<K, Error> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        decode_object(text, &self.resource).map_err(|bad| Error::Decode {
            what: format!("{what} {}", self.resource),
            source: serde::de::Error::custom(bad.problem),
        })
    }

    /// One object.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get(&self, name: &str) -> Result<K, Error> {
        let bytes = self
            .raw(Method::GET, &self.object(name)?, &Query::default(), None)
            .await?;
        self.decode(&bytes, "get")
    }

    /// One object, or none when it does not exist.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>, Error> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One page of a list.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<K>, Error> {
        let path = self.collection();
        let bytes = self.raw(Method::GET, &path, &params.query(), None).await?;
        decode_list(&bytes, &self.resource).map_err(|source| Error::Decode {
            what: format!("list {}", self.resource),
            source,
        })
    }

    /// The whole list, read page by page at one version.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::is_gone`] when the snapshot was forgotten half-way: start over.
    pub async fn list_all(&self, params: &ListParams) -> Result<ObjectList<K>, Error> {
        let mut params = ListParams {
            limit: params.limit.or(Some(PAGE)),
            ..params.clone()
        };
        let mut all = self.list(&params).await?;
        while !all.metadata.continue_.is_empty() {
            params.continue_token = Some(std::mem::take(&mut all.metadata.continue_));
            // The token holds the version.
            params.resource_version = None;
            params.version_match = None;
            let page = self.list(&params).await?;
            all.metadata = page.metadata;
            all.items.extend(page.items);
            all.undecodable.extend(page.undecodable);
        }
        Ok(all)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create(&self, object: &K, params: &WriteParams) -> Result<K, Error> {
        self.writable()?;
        let body = Some(to_json(object)?);
        let bytes = self
            .raw(Method::POST, &self.collection(), &params.query(), body)
            .await?;
        self.decode(&bytes, "create")
    }

    /// Replaces an object; its `resourceVersion` must be that of the server.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn replace(&self, name: &str, object: &K, params: &WriteParams) -> Result<K, Error> {
        let body = Some(to_json(object)?);
        let bytes = self
            .raw(Method::PUT, &self.object(name)?, &params.query(), body)
            .await?;
        self.decode(&bytes, "replace")
    }

    /// Replaces the status of an object; its `resourceVersion` must be that of the server.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn replace_status(&self, name: &str, object: &K, params: &WriteParams) -> Result<K, Error> {
        let path = format!("{}/status", self.object(name)?);
        let body = Some(to_json(object)?);
        let bytes = self.raw(Method::PUT, &path, &params.query(), body).await?;
        self.decode(&bytes, "replace the status of")
    }

    /// Merges `patch` into an object: null deletes; a `resourceVersion` in it is a precondition.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn patch_merge(
        &self,
        name: &str,
        patch: &(impl Serialize + Sync),
        params: &WriteParams,
    ) -> Result<K, Error> {
        self.patch(&self.object(name)?, patch, params).await
    }

    /// Merges `patch` (`{"status": …}`) into the status of an object.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn patch_status(
        &self,
        name: &str,
        patch: &(impl Serialize + Sync),
        params: &WriteParams,
    ) -> Result<K, Error> {
        self.patch(&format!("{}/status", self.object(name)?), patch, params)
            .await
    }

    /// Patches an object, or a subresource of it, in any of the forms.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn patch_as(
        &self,
        name: &str,
        subresource: Option<&str>,
        kind: PatchKind,
        patch: &(impl Serialize + Sync),
        params: &WriteParams,
    ) -> Result<K, Error> {
        let mut path = self.object(name)?;
        if let Some(subresource) = subresource {
            path = format!("{path}/{}", encode_segment(subresource));
        }
        self.send_patch(&path, kind, patch, params).await
    }

    async fn patch(
        &self,
        path: &str,
        patch: &(impl Serialize + Sync),
        params: &WriteParams,
    ) -> Result<K, Error> {
        self.send_patch(path, PatchKind::Merge, patch, params).await
    }

    async fn send_patch(
        &self,
        path: &str,
        kind: PatchKind,
        patch: &(impl Serialize + Sync),
        params: &WriteParams,
    ) -> Result<K, Error> {
        let mut request = request(Method::PATCH, &params.query().on(path), Some(to_json(patch)?))?;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind.media()));
        let bytes = self.client.request(request).await?.into_body();
        self.decode(&bytes, "patch")
    }

    /// Deletes an object, at once or when its finalizers are gone.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<Deletion<K>, Error> {
        let body = Some(to_json(params)?);
        let bytes = self
            .raw(Method::DELETE, &self.object(name)?, &Query::default(), body)
            .await?;
        #[derive(serde::Deserialize)]
        struct Kind {
            #[serde(default)]
            kind: String,
        }
        match serde_json::from_slice::<Kind>(&bytes) {
            Ok(answer) if answer.kind == "Status" => Ok(Deletion::Done),
            _ => Ok(Deletion::Pending(Box::new(self.decode(&bytes, "delete")?))),
        }
    }

    /// Watches the collection.
    ///
    /// # Errors
    /// See [`Error`]. A version that is too old is an error here or the first event.
    pub async fn watch(&self, params: &WatchParams) -> Result<WatchStream<K>, Error> {
        let mut request = request(Method::GET, &params.query().on(&self.collection()), None)?;
        self.accept(&mut request, METADATA);
        self.open_watch(request, params).await
    }
}

impl<K> WatchEvent<K> {
    /// The object of the event, if it has one.
    pub fn object(&self) -> Option<&K> {
        match self {
            Self::Added(k) | Self::Modified(k) | Self::Deleted(k) => Some(k),
            Self::Bookmark { .. } | Self::Error(_) | Self::Undecodable(_) => None,
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<Bytes, Error> {
    serde_json::to_vec(value).map(Bytes::from).map_err(Error::Encode)
}

fn as_table(path: &str) -> Result<Request<Bytes>, Error> {
    let mut request = request(Method::GET, path, None)?;
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static(ACCEPT_TABLE));
    Ok(request)
}
