//! The executor's requests over a real client.

use bytes::Bytes;
use http::Method;
use panda_api::meta::ObjectMeta;
use panda_client::params::{DeleteParams, ListParams, Preconditions, Propagation, WriteParams};
use panda_client::{ApiResource, Client, DynamicApi};
use serde_json::Value;

use super::execute::{Api, Error, Verb};
use super::{KINDS, Kind, Target};

/// The executor's requests over a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientApi {
    client: Client,
}

impl ClientApi {
    /// Requests of `client`.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// The same, within the trace that `traceparent` names.
    #[must_use]
    pub fn with_traceparent(&self, traceparent: Option<&str>) -> Self {
        Self::new(self.client.with_traceparent(traceparent))
    }

    fn of(&self, kind: Kind, namespace: &str) -> DynamicApi {
        let namespace = kind.namespaced.then_some(namespace);
        let api = DynamicApi::dynamic(self.client.clone(), resource(kind), namespace);
        // The values of Secrets are none of the controllers' business, and their role shows them no more.
        if kind == Kind::of::<panda_api::Secret>() {
            api.metadata_only()
        } else {
            api
        }
    }

    /// Puts to a subresource that the client has no verb for.
    async fn put(
        &self,
        target: &Target,
        subresource: &str,
        object: &Value,
    ) -> Result<Value, panda_client::Error> {
        let kind = resource(target.kind);
        let namespace = target.kind.namespaced.then_some(target.namespace.as_str());
        let path = format!("{}/{}/{subresource}", kind.path(namespace), target.name);
        let body = serde_json::to_vec(object).map_err(panda_client::Error::Encode)?;
        let request = panda_client::client::request(Method::PUT, &path, Some(Bytes::from(body)))?;
        self.client.request_json(request).await
    }
}

/// The client's name for a kind.
#[must_use]
pub(crate) fn resource(kind: Kind) -> ApiResource {
    ApiResource {
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        kind: kind.kind.to_owned(),
        plural: kind.plural.to_owned(),
        singular: kind.kind.to_ascii_lowercase(),
        namespaced: kind.namespaced,
        ..ApiResource::default()
    }
}

impl Api for ClientApi {
    async fn call(&self, target: &Target, verb: Verb<'_>) -> Result<Value, Error> {
        let api = self.of(target.kind, &target.namespace);
        let name = target.name.as_str();
        let write = WriteParams::default();
        let result = match verb {
            Verb::Get => api.get(name).await,
            Verb::Create(object) => api.create(object, &write).await,
            Verb::Post(subresource, body) => api.post_subresource(name, subresource, body).await,
            Verb::Put("status", object) => api.replace_status(name, object, &write).await,
            Verb::Put(subresource, object) => self.put(target, subresource, object).await,
            Verb::Patch(body) => api.patch_merge(name, body, &write).await,
            Verb::Delete {
                uid,
                resource_version,
                foreground,
            } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(uid.to_owned()),
                        resource_version: resource_version.map(str::to_owned),
                    }),
                    propagation_policy: Some(if foreground {
                        Propagation::Foreground
                    } else {
                        Propagation::Background
                    }),
                    ..DeleteParams::default()
                };
                api.delete(name, &params).await.map(|_| Value::Null)
            }
        };
        result.map_err(|error| translate(target, error))
    }

    async fn dependents(&self, owner: &Target, uid: &str) -> Result<Vec<(Target, ObjectMeta)>, Error> {
        let namespace = Some(owner.namespace.as_str()).filter(|_| owner.kind.namespaced);
        let mut found = Vec::new();
        for kind in KINDS {
            if namespace.is_some() && !kind.namespaced {
                continue;
            }
            let mut api = panda_client::Api::metadata(self.client.clone(), resource(kind));
            if let Some(namespace) = namespace {
                api = api.within(namespace);
            }
            let list = api.list_all(&ListParams::default()).await;
            let list = list.map_err(|error| translate(owner, error))?;
            let owned = list.items.into_iter().map(|object| object.metadata);
            let owned = owned.filter(|meta| meta.owner_references.iter().any(|r| r.uid == uid));
            found.extend(owned.map(|meta| {
                let target = Target {
                    kind,
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                };
                (target, meta)
            }));
        }
        Ok(found)
    }

    async fn any(&self, kind: Kind, namespace: &str) -> Result<Option<String>, Error> {
        let params = ListParams {
            limit: Some(1),
            ..ListParams::default()
        };
        let target = || Target {
            kind,
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let list = self.of(kind, namespace).list(&params).await;
        let list = list.map_err(|error| translate(&target(), error))?;
        Ok(list
            .items
            .first()
            .map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()))
    }
}

pub(crate) fn translate(target: &Target, error: panda_client::Error) -> Error {
    let target = target.to_string();
    if error.is_not_found() {
        Error::NotFound(target)
    } else if error.is_already_exists() {
        Error::AlreadyExists(target)
    } else if error.is_conflict() {
        Error::Conflict(target)
    } else {
        Error::Request {
            target,
            retryable: error.is_retryable(),
            source: Box::new(error),
        }
    }
}
