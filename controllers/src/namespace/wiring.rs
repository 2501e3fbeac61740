//! What a Namespace holds, read live: what decides over deletion should not come from a cache.

use std::sync::Arc;

use panda_api::Namespace;
use panda_api::meta::Clock;
use panda_client::params::ListParams;
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use panda_client::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::{Item, View, plan};
use crate::framework::execute::Error;
use crate::framework::{KINDS, Kind, Runner, Target, resource, translate};

/// Objects of one kind that are looked at in one go.
const PAGE: u32 = 500;

/// Empties Namespaces until the token is cancelled.
pub(crate) async fn run(
    namespaces: InformerHandle<Namespace>,
    client: Client,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    let controller = Controller::new("namespace", config).reconciles(&namespaces);
    let store = namespaces.store().clone();
    controller
        .run(
            move |request| {
                let (store, client, runner) = (store.clone(), client.clone(), runner.clone());
                let clock = Arc::clone(&clock);
                async move { reconcile(&request.key, &store, &client, &runner, &*clock).await }
            },
            token,
        )
        .await;
}

async fn reconcile(
    key: &ObjectRef,
    store: &Store<Namespace>,
    client: &Client,
    runner: &Runner,
    clock: &dyn Clock,
) -> Result<Outcome, Error> {
    let Some(namespace) = store.get(key).filter(|n| n.metadata.deletion_timestamp.is_some()) else {
        return Ok(Outcome::Done);
    };
    let mut view = View::default();
    for kind in KINDS.into_iter().filter(|kind| kind.namespaced) {
        view.items.extend(items(client, kind, key.name()).await?);
    }
    let plan = plan(&view, &namespace, clock.now());
    runner.run(&plan, None).await
}

async fn items(client: &Client, kind: Kind, namespace: &str) -> Result<Vec<Item>, Error> {
    let target = |name: &str| Target {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let params = ListParams {
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let api = Api::metadata(client.clone(), resource(kind)).within(namespace);
    let list = api
        .list(&params)
        .await
        .map_err(|error| translate(&target(""), error))?;
    Ok(list
        .items
        .iter()
        .map(|object| Item {
            target: target(&object.metadata.name),
            uid: object.metadata.uid.clone(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            finalizers: object.metadata.finalizers.clone(),
        })
        .collect())
}
