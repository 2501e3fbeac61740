//! One trace from the command that makes a task to the check of what came out, at a collector; and collectors that fail.

use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use panda_api::{Run, Task, TaskPhase};
use panda_client::Api;
use panda_e2e::cluster::Cluster;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::support::{apply, ended, fake_agent};

/// Keeps every span that it is sent.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans);
        self.0.lock().expect("no test panics with it").extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// An OTLP collector on loopback.
struct Collector {
    spans: Spans,
    endpoint: String,
    server: AbortHandle,
}

impl Collector {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let spans = Spans::default();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(spans.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let server = tokio::spawn(server).abort_handle();
        Ok(Self {
            spans,
            endpoint,
            server,
        })
    }

    /// The spans of a trace that have come in so far, and the others.
    fn of(&self, trace: &str) -> (Vec<Span>, Vec<Span>) {
        let spans = self.spans.0.lock().expect("no test panics with it").clone();
        spans.into_iter().partition(|span| hex(&span.trace_id) == trace)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(span: &'a Span, key: &str) -> &'a str {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key);
    match attribute.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        _ => "",
    }
}

async fn start(endpoint: &str) -> anyhow::Result<Cluster> {
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    Cluster::start_with_env(&[], &env).await
}

/// A task with one check, made with `pandactl apply`, once it has succeeded.
async fn checked_task(cluster: &Cluster) -> anyhow::Result<Task> {
    apply(
        cluster,
        "agent.json",
        &fake_agent("fake", &["--write", "out.txt", "done", "--succeed"]),
    )?;
    let task = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "traced"},
        "spec": {
            "prompt": "Write a file.",
            "agents": [{"name": "fake"}],
            "verify": [{"name": "written", "command": ["grep", "done", "out.txt"]}],
        },
    });
    apply(cluster, "task.json", &task.to_string())?;
    let task = ended(cluster, "traced").await?;
    ensure!(
        task.status.phase == Some(TaskPhase::Succeeded),
        "{:#?}\n{}",
        task.status,
        cluster.log()
    );
    Ok(task)
}

#[tokio::test]
async fn one_trace_spans_apply_schedule_run_and_verify() -> anyhow::Result<()> {
    let collector = Collector::start().await?;
    let cluster = start(&collector.endpoint).await?;
    let task = checked_task(&cluster).await?;
    let traceparent = task.metadata.traceparent().context("the task's trace")?;
    let trace = traceparent.split('-').nth(1).context("a trace id")?;
    let run: Run = Api::namespaced(cluster.client()?, "default")
        .get(&task.status.accepted_run)
        .await?;
    assert_eq!(run.metadata.traceparent(), Some(traceparent));

    // A span is sent when it ends, and that of the run ends last.
    let spans = cluster
        .eventually("the span of the run arrives", || async {
            let (spans, _) = collector.of(trace);
            spans.iter().any(|span| span.name == "run").then_some(spans)
        })
        .await?;
    let named = |name: &str| {
        let span = spans.iter().find(|span| span.name == name);
        span.with_context(|| format!("no span {name} in {spans:#?}"))
    };
    let request = |path: &str| {
        let is = |span: &&Span| span.name == "request" && text(span, "path").ends_with(path);
        let span = spans.iter().find(is);
        span.with_context(|| format!("no request to {path} in {spans:#?}"))
    };
    let created = traceparent.split('-').nth(2).context("a span id")?;
    let created = spans.iter().find(|span| hex(&span.span_id) == created);
    let created = created.with_context(|| format!("not the span of {traceparent} in {spans:#?}"))?;
    assert_eq!(created.name, "request");
    assert_eq!(text(created, "verb"), "create");
    assert!(text(created, "path").ends_with("/namespaces/default/tasks"));
    // What is done about the task hangs below the request that made it.
    let (scheduled, ran) = (named("schedule")?, named("run")?);
    for below in [request("/runs")?, request("/binding")?, scheduled, ran] {
        assert_eq!(below.parent_span_id, created.span_id, "{below:#?}");
    }
    assert_eq!(text(scheduled, "uid"), run.metadata.uid);
    assert_eq!(text(ran, "uid"), run.metadata.uid);
    for stage in ["prepare", "agent", "snapshot", "verify", "upload"] {
        assert_eq!(named(stage)?.parent_span_id, ran.span_id, "{stage}");
    }
    let check = named("check")?;
    assert_eq!(check.parent_span_id, named("verify")?.span_id);
    assert_eq!(text(check, "name"), "written");

    let (_, others) = collector.of(trace);
    assert!(
        others.iter().any(|span| span.name == "request"),
        "what has nothing to do with the task is not in its trace"
    );
    Ok(())
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_nothing_up() -> anyhow::Result<()> {
    // Connections are taken by the system, and nobody reads from them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await?;
    let mut cluster = start(&format!("http://{}", silent.local_addr()?)).await?;
    checked_task(&cluster).await?;
    cluster.signal(Signal::TERM)?;
    let status = cluster.wait().await?;
    assert!(status.success(), "{status}\n{}", cluster.log());
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_not_there_is_missed_by_nobody() -> anyhow::Result<()> {
    let gone = TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?;
    let mut cluster = start(&format!("http://{gone}")).await?;
    checked_task(&cluster).await?;
    cluster.signal(Signal::TERM)?;
    let status = cluster.wait().await?;
    assert!(status.success(), "{status}\n{}", cluster.log());
    Ok(())
}
