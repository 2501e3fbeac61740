//! A server over SQLite with the agentlet service, an administrator, and devices with certificates of their own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use hyper_util::rt::TokioIo;
use panda_api::meta::{Clock, IdSource, ObjectMeta, RandomIds, SystemClock};
use panda_api::{Device, Lease, Resource, Run, RunPhase, Secret, Task, TaskRef};
use panda_apiserver::agentlet::{self, Agentlets};
use panda_apiserver::config::Leases;
use panda_apiserver::pki::{Pki, Subject};
use panda_apiserver::{Config, Deps, Server, SharedRegistry};
use panda_client::config::Identity;
use panda_client::connector::{Connector, TlsConnector};
use panda_client::params::{DeleteParams, WriteParams};
use panda_client::{Api, Client, Options};
use panda_rpc::report::RunReport;
use panda_rpc::v1::agentlet_client::AgentletClient;
use panda_rpc::v1::device_message::Body as Up;
use panda_rpc::v1::server_message::Body as Down;
use panda_rpc::v1::{
    DeviceMessage, DeviceStatusUpdate, Fence, Grant, Hello, Renew, Report, ServerMessage, Welcome,
};
use panda_store::blob::{MemoryBlobs, StreamLimits};
use panda_store::{Sqlite, Store, sqlite};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longest that any single wait of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Length of grants here.
pub(crate) const TTL: Duration = Duration::from_secs(30);
const NS: &str = "default";

pub(crate) struct Cluster {
    dir: Option<TempDir>,
    address: SocketAddr,
    pki: Arc<Pki>,
    pub(crate) client: Client,
    store_uid: Arc<str>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A device that knows of a run that it has not begun.
pub(crate) struct Begun {
    pub(crate) cluster: Cluster,
    pub(crate) pi: Machine,
    pub(crate) session: Session,
    /// Of the Run `t-1`.
    pub(crate) fence: Fence,
}

impl Begun {
    pub(crate) async fn start() -> Self {
        let cluster = Cluster::start().await;
        let pi = cluster.join("pi").await;
        let mut session = pi.session(&cluster).await;
        let task = cluster.task("t").await;
        let fence = cluster.bound("t-1", &task, &pi).await;
        session.until_told(&fence).await;
        Self {
            cluster,
            pi,
            session,
            fence,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.close();
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::over(tempfile::tempdir().unwrap()).await
    }

    /// A server over a data folder that another one may have left.
    pub(crate) async fn over(dir: TempDir) -> Self {
        let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SystemClock), Arc::new(RandomIds));
        let store = Sqlite::open(&sqlite::Config::new(dir.path().join("store")), "first-store").unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let store_uid = store.store_uid();
        let metrics = SharedRegistry::default();
        let deps = Deps {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
            metrics: metrics.clone(),
        };
        let server = Server::build(Config::new(dir.path()), deps).unwrap();
        let pki = server.pki();
        let deps = agentlet::Deps {
            store,
            blobs: Arc::new(MemoryBlobs::new(
                Arc::clone(&clock),
                64 << 20,
                StreamLimits::default(),
            )),
            clock,
            ids,
            registry: server.registry(),
            run_tokens: server.run_tokens(),
            pressure: server.pressure(),
        };
        let leases = Leases {
            grant_ttl: TTL.into(),
            ..Leases::default()
        };
        let agentlets = Agentlets::build(&leases, deps, &metrics);
        let server = server.with_routes(agentlets.routes());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(agentlets.run(stop.clone()));
        let token = stop.clone();
        tasks.spawn(async move { server.run(listener, token).await.unwrap() });
        let config = config(address, &pki, &Subject::admin());
        let client = Client::connect(&config, Options::default()).unwrap();
        client.get_text("/readyz").await.unwrap();
        Self {
            dir: Some(dir),
            address,
            pki,
            client,
            store_uid,
            stop,
            tasks,
        }
    }

    pub(crate) fn data(&self) -> &std::path::Path {
        self.dir.as_ref().unwrap().path()
    }

    /// Stops the server and leaves its data folder.
    pub(crate) async fn stop(mut self) -> TempDir {
        self.stop.cancel();
        self.tasks.close();
        tokio::time::timeout(PATIENCE, self.tasks.wait()).await.unwrap();
        self.dir.take().unwrap()
    }

    pub(crate) fn store_uid(&self) -> String {
        self.store_uid.to_string()
    }

    fn api<K: Resource + panda_client::resource::Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NS)
    }

    pub(crate) async fn join(&self, name: &str) -> Machine {
        let devices: Api<Device> = Api::cluster(self.client.clone());
        let device = Device {
            metadata: ObjectMeta::named(name),
            ..Device::default()
        };
        let device = devices.create(&device, &WriteParams::default()).await.unwrap();
        self.machine(name, device.metadata.uid).await
    }

    /// A device that has joined before.
    pub(crate) async fn machine(&self, name: &str, uid: String) -> Machine {
        let config = config(self.address, &self.pki, &Subject::device(name, &uid));
        let connector: Arc<dyn Connector> = Arc::new(TlsConnector::http2(&config, PATIENCE).unwrap());
        let channel =
            Endpoint::from_static("http://agentlet.panda.dev")
                .connect_with_connector(tower::service_fn(move |_| {
                    let connector = Arc::clone(&connector);
                    async move {
                        Ok::<_, panda_client::connector::Error>(TokioIo::new(connector.connect().await?))
                    }
                }))
                .await
                .unwrap();
        Machine {
            name: name.to_owned(),
            uid,
            client: AgentletClient::new(channel),
        }
    }

    pub(crate) async fn remove_device(&self, name: &str) {
        let devices: Api<Device> = Api::cluster(self.client.clone());
        devices.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn task(&self, name: &str) -> Task {
        let mut task = Task {
            metadata: ObjectMeta::namespaced(NS, name),
            ..Task::default()
        };
        task.spec.prompt = "mend it".into();
        self.api::<Task>()
            .create(&task, &WriteParams::default())
            .await
            .unwrap()
    }

    /// A Run of a Task, as the task controller makes it.
    pub(crate) async fn run(&self, name: &str, task: &Task) -> Run {
        self.run_with(name, task, json!({})).await
    }

    /// The same, with more in its spec.
    async fn run_with(&self, name: &str, task: &Task, more: Value) -> Run {
        let mut run = Run {
            metadata: ObjectMeta::namespaced(NS, name),
            spec: serde_json::from_value(more).unwrap(),
            ..Run::default()
        };
        run.spec.task_ref = TaskRef {
            name: task.metadata.name.clone(),
            uid: task.metadata.uid.clone(),
            generation: 1,
        };
        run.spec.attempt = 1;
        run.spec.prompt = "mend it".into();
        self.api::<Run>()
            .create(&run, &WriteParams::default())
            .await
            .unwrap()
    }

    pub(crate) async fn try_bind(&self, run: &str, device: &str) -> Result<(), panda_client::Error> {
        let body = json!({"deviceName": device});
        let bound: Result<Value, _> = self.api::<Run>().post_subresource(run, "binding", &body).await;
        bound.map(|_| ())
    }

    /// A Run that is bound, and its fence.
    pub(crate) async fn bound(&self, name: &str, task: &Task, machine: &Machine) -> Fence {
        self.bound_with(name, task, machine, json!({})).await
    }

    /// The same, with more in its spec.
    pub(crate) async fn bound_with(&self, name: &str, task: &Task, machine: &Machine, more: Value) -> Fence {
        self.run_with(name, task, more).await;
        self.try_bind(name, &machine.name).await.unwrap();
        let run = self.get(name).await;
        Fence {
            task_uid: run.spec.task_ref.uid,
            run_uid: run.metadata.uid,
            attempt: run.spec.attempt,
            epoch: run.spec.lease_epoch.unwrap(),
            device_uid: run.spec.device_uid,
        }
    }

    pub(crate) async fn get(&self, run: &str) -> Run {
        self.api::<Run>().get(run).await.unwrap()
    }

    /// A Secret of one key `k`.
    pub(crate) async fn secret(&self, name: &str, value: &str) {
        let mut secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {},
            "stringData": {"k": value},
        }))
        .unwrap();
        secret.metadata = ObjectMeta::namespaced(NS, name);
        let params = WriteParams::default();
        self.api::<Secret>().create(&secret, &params).await.unwrap();
    }

    pub(crate) async fn lease(&self, run: &str) -> Lease {
        self.api::<Lease>().get(run).await.unwrap()
    }

    pub(crate) async fn find(&self, run: &str) -> Option<Run> {
        found(self.api::<Run>().get(run).await)
    }

    pub(crate) async fn find_lease(&self, run: &str) -> Option<Lease> {
        found(self.api::<Lease>().get(run).await)
    }

    pub(crate) async fn heartbeat(&self, device: &str) -> Lease {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "panda-system");
        leases.get(device).await.unwrap()
    }

    /// Status of a condition of a Device.
    pub(crate) async fn condition(&self, device: &str, type_: &str) -> Option<String> {
        let devices: Api<Device> = Api::cluster(self.client.clone());
        let conditions = devices.get(device).await.unwrap().status.conditions;
        let found = conditions.into_iter().find(|condition| condition.type_ == type_);
        found.map(|condition| condition.status)
    }

    pub(crate) async fn until_condition(&self, device: &str, type_: &str, status: &str) {
        let looks = async {
            while self.condition(device, type_).await.as_deref() != Some(status) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looks)
            .await
            .expect("the condition comes");
    }

    pub(crate) async fn delete_run(&self, run: &str) {
        let gone = DeleteParams::default();
        self.api::<Run>().delete(run, &gone).await.unwrap();
    }

    pub(crate) async fn delete_lease(&self, run: &str) {
        let gone = DeleteParams::default();
        self.api::<Lease>().delete(run, &gone).await.unwrap();
    }

    /// Deletes a Run without waiting for its device.
    pub(crate) async fn force(&self, run: &str) {
        let body = json!({"metadata": {"finalizers": null}});
        let params = WriteParams::default();
        self.api::<Run>().patch_merge(run, &body, &params).await.unwrap();
        self.delete_run(run).await;
    }

    /// Deletes a Run by force, its Task and its Lease.
    pub(crate) async fn delete(&self, run: &str, task: &str) {
        self.force(run).await;
        let gone = DeleteParams::default();
        self.api::<Task>().delete(task, &gone).await.unwrap();
        let body = json!({"metadata": {"finalizers": null}});
        let params = WriteParams::default();
        self.api::<Lease>()
            .patch_merge(run, &body, &params)
            .await
            .unwrap();
        self.delete_lease(run).await;
    }

    pub(crate) async fn cancel(&self, run: &str) {
        let body = json!({"spec": {"cancel": true}});
        let params = WriteParams::default();
        self.api::<Run>().patch_merge(run, &body, &params).await.unwrap();
    }

    /// Takes the Lease as the controller does: only if it is still that version.
    pub(crate) async fn take(&self, lease: &Lease) -> Result<Lease, panda_client::Error> {
        let meta = &lease.metadata;
        let body = json!({
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "finalizers": null,
            },
            "spec": {
                "holderIdentity": null,
                "leaseTransitions": lease.spec.lease_transitions.unwrap() + 1,
            },
        });
        self.api::<Lease>()
            .patch_merge(&meta.name, &body, &WriteParams::default())
            .await
    }

    /// Gives a Run up, as the controller does.
    pub(crate) async fn lose(&self, name: &str) {
        loop {
            let lease = self.lease(name).await;
            if self.take(&lease).await.is_ok() {
                break;
            }
        }
        let mut run = self.get(name).await;
        run.status.phase = Some(RunPhase::Lost);
        self.api::<Run>()
            .replace_status(name, &run, &WriteParams::default())
            .await
            .unwrap();
    }

    pub(crate) async fn json(&self, method: Method, path: &str) -> Value {
        let body = (method == Method::POST).then(|| Bytes::from_static(b"{}"));
        let request = panda_client::client::request(method, path, body).unwrap();
        self.client.request_json(request).await.unwrap()
    }

    /// What is left of a Task's Runs.
    pub(crate) async fn left(&self, task: &str) -> Vec<Value> {
        let path = format!("/apis/panda.dev/v1alpha1/namespaces/{NS}/tasks/{task}/artifacts");
        let list = self.json(Method::GET, &path).await;
        list["items"].as_array().unwrap().clone()
    }

    /// A counter of the server.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let text = self.client.get_text("/metrics").await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim_start_matches("_total").trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

fn found<K>(answer: Result<K, panda_client::Error>) -> Option<K> {
    match answer {
        Ok(found) => Some(found),
        Err(error) if error.is_not_found() => None,
        Err(error) => panic!("{error}"),
    }
}

fn config(address: SocketAddr, pki: &Pki, subject: &Subject) -> panda_client::Config {
    let identity = pki.issue(subject).unwrap();
    panda_client::Config {
        server: format!("https://{address}").parse().unwrap(),
        ca: pki.ca_certificate_pem().as_bytes().to_vec(),
        tls_server_name: None,
        identity: Identity::ClientCert {
            cert: identity.certificate_pem.clone().into_bytes(),
            key: identity.key_pem.clone().into_bytes(),
        },
        namespace: NS.to_owned(),
    }
}

/// A device, as the server sees it.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) client: AgentletClient<Channel>,
}

impl Machine {
    pub(crate) fn hello(&self, store_uid: &str) -> Hello {
        Hello {
            device_uid: self.uid.clone(),
            boot_id: "boot-1".into(),
            store_uid: store_uid.into(),
            ..Hello::default()
        }
    }

    pub(crate) async fn connect(&self, hello: Hello) -> Result<Session, Status> {
        let (out, messages) = mpsc::channel(64);
        let send = |body| DeviceMessage { body: Some(body) };
        out.send(send(Up::Hello(hello))).await.unwrap();
        let incoming = self.client.clone().session(ReceiverStream::new(messages)).await?;
        let mut session = Session {
            out,
            incoming: incoming.into_inner(),
            welcome: Welcome::default(),
            runs: BTreeMap::new(),
            gone: Vec::new(),
            seq: 0,
            wall_time_ms: 0,
        };
        session.welcome = session
            .until(|body| match body {
                Down::Welcome(welcome) => Some(welcome.clone()),
                _ => None,
            })
            .await?;
        session.seq = session.welcome.last_outbox_seq;
        Ok(session)
    }

    /// Connects to the store that it has always known.
    pub(crate) async fn session(&self, cluster: &Cluster) -> Session {
        self.connect(self.hello(&cluster.store_uid())).await.unwrap()
    }
}

/// A session, read as a device reads it.
pub(crate) struct Session {
    out: mpsc::Sender<DeviceMessage>,
    incoming: Streaming<ServerMessage>,
    pub(crate) welcome: Welcome,
    /// Runs as the server told of them, by uid.
    pub(crate) runs: BTreeMap<String, Run>,
    /// Uids of runs that the server called gone.
    pub(crate) gone: Vec<String>,
    /// What the device says with its renewals that its clock shows.
    pub(crate) wall_time_ms: u64,
    seq: u64,
}

impl Session {
    /// Reads until a message is the one that is looked for.
    pub(crate) async fn until<T>(&mut self, mut find: impl FnMut(&Down) -> Option<T>) -> Result<T, Status> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.incoming.message())
                .await
                .expect("the server says something")?;
            let Some(body) = message.ok_or_else(|| Status::cancelled("ended"))?.body else {
                continue;
            };
            let told = match &body {
                Down::Snapshot(snapshot) => snapshot.runs.clone(),
                Down::RunUpsert(upsert) => vec![upsert.clone()],
                Down::RunGone(gone) => {
                    self.gone.push(gone.run_uid.clone());
                    Vec::new()
                }
                _ => Vec::new(),
            };
            for upsert in told {
                let run: Run = serde_json::from_slice(&upsert.run).unwrap();
                self.runs.insert(run.metadata.uid.clone(), run);
            }
            if let Some(found) = find(&body) {
                return Ok(found);
            }
        }
    }

    /// Reads until the server has told of this Run.
    pub(crate) async fn until_told(&mut self, fence: &Fence) {
        if !self.runs.contains_key(&fence.run_uid) {
            let uid = fence.run_uid.clone();
            self.until(|body| match body {
                Down::RunUpsert(upsert) => {
                    let run: Run = serde_json::from_slice(&upsert.run).unwrap();
                    (run.metadata.uid == uid).then_some(())
                }
                Down::Snapshot(snapshot) => snapshot
                    .runs
                    .iter()
                    .any(|run| String::from_utf8_lossy(&run.run).contains(&uid))
                    .then_some(()),
                _ => None,
            })
            .await
            .unwrap();
        }
    }

    /// Reads until the server has told that this Run is being deleted.
    pub(crate) async fn until_deleting(&mut self, fence: &Fence) {
        let uid = fence.run_uid.clone();
        let told = self.until(|body| match body {
            Down::RunUpsert(upsert) => {
                let run: Run = serde_json::from_slice(&upsert.run).unwrap();
                (run.metadata.uid == uid && run.metadata.deletion_timestamp.is_some()).then_some(())
            }
            _ => None,
        });
        told.await.unwrap();
    }

    /// Reads until the server has called this Run gone.
    pub(crate) async fn until_gone(&mut self, fence: &Fence) {
        if !self.gone.contains(&fence.run_uid) {
            let uid = fence.run_uid.clone();
            let told = self.until(|body| match body {
                Down::RunGone(gone) => (gone.run_uid == uid).then_some(()),
                _ => None,
            });
            told.await.unwrap();
        }
    }

    /// Says what the device looks like: nothing in particular.
    pub(crate) async fn send_status(&self) {
        let status = Up::Status(DeviceStatusUpdate {
            status: b"{}".to_vec(),
            ..DeviceStatusUpdate::default()
        });
        self.out.send(DeviceMessage { body: Some(status) }).await.unwrap();
    }

    pub(crate) async fn renew(&mut self) -> Result<Grant, Status> {
        self.seq += 1000;
        let seq = self.seq;
        let renew = Up::Renew(Renew {
            seq,
            wall_time_ms: self.wall_time_ms,
        });
        let sent = self.out.send(DeviceMessage { body: Some(renew) }).await;
        sent.map_err(|_| Status::cancelled("ended"))?;
        self.until(|body| match body {
            Down::Grant(grant) if grant.renew_seq == seq => Some(grant.clone()),
            _ => None,
        })
        .await
    }

    /// Sends a report under an outbox number; `Some` with the reason when it was stale.
    pub(crate) async fn report(&mut self, seq: u64, fence: &Fence, report: &RunReport) -> Option<String> {
        self.send_report(seq, fence, report).await;
        self.until(|body| match body {
            Down::Ack(ack) if ack.outbox_seq == seq => Some(None),
            Down::Stale(stale) if stale.outbox_seq == seq => Some(Some(stale.reason.clone())),
            _ => None,
        })
        .await
        .unwrap()
    }

    /// Sends a report and waits for nothing.
    pub(crate) async fn send_report(&self, seq: u64, fence: &Fence, report: &RunReport) {
        let report = Up::Report(Report {
            outbox_seq: seq,
            fence: Some(fence.clone()),
            body: serde_json::to_vec(report).unwrap(),
        });
        self.out.send(DeviceMessage { body: Some(report) }).await.unwrap();
    }

    /// Waits until the server has ended the session.
    pub(crate) async fn until_cut(mut self) -> Status {
        self.until(|_| None::<()>).await.unwrap_err()
    }
}

pub(crate) fn phase(phase: RunPhase) -> RunReport {
    RunReport {
        phase: Some(phase),
        ..RunReport::default()
    }
}
