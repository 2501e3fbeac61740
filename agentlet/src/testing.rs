//! A small server that plays the control plane's side of the service, for tests. Integration tests include this file.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use panda_api::Run;
use panda_client::connector::{Connector, Error, Io};
use panda_rpc::report::RunReport;
use panda_rpc::v1::agentlet_server::{Agentlet, AgentletServer};
use panda_rpc::v1::*;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// What the server does with reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack,
    /// Takes them, but the answer is lost.
    Silent,
    Stale,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store_uid: String,
    pub(crate) revision: u64,
    pub(crate) last_seq: u64,
    pub(crate) answer: Answer,
    pub(crate) grants: bool,
    pub(crate) ttl: Duration,
    pub(crate) runs: BTreeMap<String, Run>,
    pub(crate) hellos: Vec<Hello>,
    /// Every report as it arrived, repeats included.
    pub(crate) arrived: Vec<(u64, String)>,
    /// Reports that counted.
    pub(crate) reports: Vec<(u64, String, RunReport)>,
    pub(crate) renewals: usize,
    pub(crate) statuses: Vec<DeviceStatusUpdate>,
    pub(crate) logs: BTreeMap<(String, String), Vec<u8>>,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    session: Option<mpsc::Sender<Result<ServerMessage, Status>>>,
}

impl State {
    pub(crate) fn phases(&self, uid: &str) -> Vec<panda_api::RunPhase> {
        let of = |(_, run, report): &(u64, String, RunReport)| report.phase.filter(|_| run == uid);
        self.reports.iter().filter_map(of).collect()
    }

    pub(crate) fn last_phase(&self, uid: &str) -> Option<panda_api::RunPhase> {
        self.phases(uid).pop()
    }

    fn take(&mut self, report: &Report) -> server_message::Body {
        let seq = report.outbox_seq;
        let fence = report.fence.clone().unwrap();
        self.arrived.push((seq, fence.run_uid.clone()));
        if self.answer == Answer::Stale {
            return server_message::Body::Stale(Stale {
                outbox_seq: seq,
                reason: "another epoch".into(),
            });
        }
        if seq > self.last_seq {
            self.last_seq = seq;
            let body: RunReport = serde_json::from_slice(&report.body).unwrap();
            if let (Some(run), Some(phase)) = (self.runs.get_mut(&fence.run_uid), body.phase) {
                run.status.phase = Some(phase);
            }
            self.reports.push((seq, fence.run_uid, body));
        }
        server_message::Body::Ack(Ack { outbox_seq: seq })
    }

    /// A part for each run, and one at the end.
    fn snapshot(&self) -> Vec<server_message::Body> {
        let part = |run: Option<&Run>| {
            let upsert = |run: &Run| RunUpsert {
                run: serde_json::to_vec(run).unwrap(),
                revision: self.revision,
            };
            server_message::Body::Snapshot(Snapshot {
                revision: self.revision,
                runs: run.map(upsert).into_iter().collect(),
                more: run.is_some(),
            })
        };
        self.runs.values().map(Some).chain([None]).map(part).collect()
    }

    fn grant(&self, seq: u64) -> server_message::Body {
        let live = |run: &&Run| !run.status.phase.is_some_and(panda_api::RunPhase::is_terminal);
        server_message::Body::Grant(Grant {
            renew_seq: seq,
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap(),
            runs: self
                .runs
                .values()
                .filter(live)
                .map(|run| RunEpoch {
                    run_uid: run.metadata.uid.clone(),
                    epoch: run.spec.lease_epoch.unwrap_or(0),
                })
                .collect(),
        })
    }
}

/// The server and the way to it.
#[derive(Clone, Debug)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<State>>,
    pub(crate) address: std::net::SocketAddr,
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(State {
                store_uid: "store-a".into(),
                revision: 1,
                last_seq: 0,
                answer: Answer::Ack,
                grants: true,
                ttl: Duration::from_secs(40),
                runs: BTreeMap::new(),
                hellos: Vec::new(),
                arrived: Vec::new(),
                reports: Vec::new(),
                renewals: 0,
                statuses: Vec::new(),
                logs: BTreeMap::new(),
                blobs: BTreeMap::new(),
                session: None,
            })),
        };
        let service = AgentletServer::new(server.clone());
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Puts a run (or its new desired state) in place and tells the device.
    pub(crate) fn upsert(&self, run: Run) {
        let mut state = self.state();
        state.revision += 1;
        let message = server_message::Body::RunUpsert(RunUpsert {
            run: serde_json::to_vec(&run).unwrap(),
            revision: state.revision,
        });
        state.runs.insert(run.metadata.uid.clone(), run);
        state.say(message);
    }

    /// Changes the desired state of a run and tells the device.
    pub(crate) fn change(&self, uid: &str, change: impl FnOnce(&mut Run)) {
        let mut run = self.state().runs[uid].clone();
        change(&mut run);
        self.upsert(run);
    }

    pub(crate) fn gone(&self, uid: &str) {
        let mut state = self.state();
        state.revision += 1;
        state.runs.remove(uid);
        let message = RunGone {
            run_uid: uid.to_owned(),
            revision: state.revision,
        };
        state.say(server_message::Body::RunGone(message));
    }

    /// Ends the session in good order.
    pub(crate) fn hang_up(&self) {
        self.state().session = None;
    }

    /// Becomes another store, as after a restore.
    pub(crate) fn become_store(&self, uid: &str) {
        let mut state = self.state();
        uid.clone_into(&mut state.store_uid);
        state.last_seq = 0;
        state.runs.clear();
        state.reports.clear();
        state.blobs.clear();
        state.logs.clear();
        state.session = None;
    }

    /// Waits until `done` holds.
    pub(crate) async fn until<T>(&self, what: &str, mut done: impl FnMut(&State) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(value) = done(&self.state()) {
                return value;
            }
            if tokio::time::Instant::now() > deadline {
                panic!("never came: {what}\n{:#?}", self.state().reports);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl State {
    /// Tells the device something.
    pub(crate) fn say(&self, body: server_message::Body) {
        if let Some(session) = &self.session {
            // A session that is gone: the next one begins with everything.
            drop(session.try_send(Ok(ServerMessage { body: Some(body) })));
        }
    }
}

impl Connector for FakeServer {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(async {
            match TcpStream::connect(self.address).await {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Io>),
                Err(source) => Err(Error::Connect {
                    target: self.address.to_string(),
                    source,
                }),
            }
        })
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agentlet for FakeServer {
    type SessionStream = ReceiverStream<Result<ServerMessage, Status>>;
    type AppendLogStream = Answers<LogAck>;
    type GetBlobStream = Answers<BlobChunk>;

    async fn get_run_secrets(
        &self,
        _request: Request<GetRunSecretsRequest>,
    ) -> Result<Response<RunSecrets>, Status> {
        Ok(Response::new(RunSecrets::default()))
    }

    async fn session(
        &self,
        request: Request<Streaming<DeviceMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (tx, rx) = mpsc::channel(256);
        let weak = tx.downgrade();
        let this = self.clone();
        let mut messages = request.into_inner();
        this.state().session = Some(tx);
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                let Some(tx) = weak.upgrade() else { return };
                let mut out = Vec::new();
                {
                    let mut state = this.state();
                    match message.body.unwrap() {
                        device_message::Body::Hello(hello) => {
                            state.hellos.push(hello);
                            out.push(server_message::Body::Welcome(Welcome {
                                store_uid: state.store_uid.clone(),
                                revision: state.revision,
                                last_outbox_seq: state.last_seq,
                            }));
                            out.extend(state.snapshot());
                        }
                        device_message::Body::Renew(renew) => {
                            state.renewals += 1;
                            if state.grants {
                                out.push(state.grant(renew.seq));
                            }
                        }
                        device_message::Body::Report(report) => {
                            let answer = state.take(&report);
                            if state.answer != Answer::Silent {
                                out.push(answer);
                            }
                        }
                        device_message::Body::Status(status) => state.statuses.push(status),
                    }
                }
                for body in out {
                    if tx.send(Ok(ServerMessage { body: Some(body) })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn append_log(
        &self,
        request: Request<Streaming<LogChunk>>,
    ) -> Result<Response<Self::AppendLogStream>, Status> {
        let this = self.clone();
        Ok(Response::new(Box::pin(request.into_inner().map(move |chunk| {
            let chunk = chunk?;
            let run_uid = chunk.fence.unwrap().run_uid;
            let mut state = this.state();
            let log = state
                .logs
                .entry((run_uid.clone(), chunk.stream.clone()))
                .or_default();
            let have = log.len();
            let offset = usize::try_from(chunk.offset).unwrap();
            if offset > have && chunk.gap {
                log.resize(offset, b'?');
            }
            let have = log.len();
            if offset > have {
                return Err(Status::out_of_range("gap"));
            }
            log.extend_from_slice(chunk.data.get(have - offset..).unwrap_or(&[]));
            Ok(LogAck {
                run_uid,
                stream: chunk.stream,
                offset: log.len() as u64,
                stale: String::new(),
            })
        }))))
    }

    async fn stat_blob(
        &self,
        request: Request<StatBlobRequest>,
    ) -> Result<Response<StatBlobResponse>, Status> {
        let state = self.state();
        let blob = state.blobs.get(&request.into_inner().digest);
        Ok(Response::new(StatBlobResponse {
            have: blob.map_or(0, |b| b.len() as u64),
            complete: blob.is_some(),
        }))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<PutBlobChunk>>,
    ) -> Result<Response<StatBlobResponse>, Status> {
        let mut chunks = request.into_inner();
        let (mut data, mut digest) = (Vec::new(), String::new());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            assert_eq!(chunk.offset, data.len() as u64);
            data.extend_from_slice(&chunk.data);
            digest = chunk.digest;
        }
        if format!("sha256:{}", hex::encode(Sha256::digest(&data))) != digest {
            return Err(Status::data_loss("digest"));
        }
        let have = data.len() as u64;
        self.state().blobs.insert(digest, data);
        Ok(Response::new(StatBlobResponse { have, complete: true }))
    }

    async fn get_blob(&self, _: Request<GetBlobRequest>) -> Result<Response<Self::GetBlobStream>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }
}
