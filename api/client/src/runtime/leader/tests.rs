//! Never two at a time, and never nobody for long. Time is tokio's, paused.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use super::*;
use crate::fake::{Effect, Fault, Server};

/// Time that goes as tokio's does: a renewal must change the Lease.
#[derive(Debug)]
struct VirtualClock(Instant);

impl Clock for VirtualClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH + self.0.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Counts who works at this moment.
#[derive(Clone, Default)]
struct Working(Arc<AtomicUsize>, Arc<AtomicUsize>);

struct Shift(Working);

impl Working {
    fn begin(&self) -> Shift {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        Shift(self.clone())
    }

    fn now(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn candidate(server: &Server, who: &str, working: &Working, token: &CancellationToken) -> JoinHandle<Ended> {
    start(server, who, working, token, false)
}

fn start(
    server: &Server,
    who: &str,
    working: &Working,
    token: &CancellationToken,
    stubborn: bool,
) -> JoinHandle<Ended> {
    let config = Config::new("panda-system", "controllers", who.to_owned());
    let elector = Elector::new(server.client(), Arc::new(VirtualClock(Instant::now())), config);
    let (working, token) = (working.clone(), token.clone());
    tokio::spawn(elector.run(token, move |stop| async move {
        let _shift = working.begin();
        stop.cancelled().await;
        if stubborn {
            std::future::pending::<()>().await;
        }
    }))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    begun.elapsed()
}

async fn holder(server: &Server) -> LeaseSpec {
    let api = Api::<Lease>::namespaced(server.client(), "panda-system");
    api.get("controllers").await.unwrap().spec
}

#[tokio::test(start_paused = true)]
async fn one_works_and_the_next_waits_for_the_whole_duration_after_a_crash() {
    let (server, working, token) = (Server::default(), Working::default(), CancellationToken::new());
    let first = candidate(&server, "a", &working, &token);
    until("the first leads", || working.now() == 1).await;
    let second = candidate(&server, "b", &working, &token);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(holder(&server).await.holder_identity.as_deref(), Some("a"));
    first.abort();
    until("the first is dead", || working.now() == 0).await;
    let waited = until("the second leads", || working.now() == 1).await;
    assert!(waited >= Duration::from_secs(13), "{waited:?}");
    let spec = holder(&server).await;
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_transitions),
        (Some("b"), Some(1))
    );
    token.cancel();
    assert_eq!(second.await.unwrap(), Ended::Done);
    assert_eq!(working.most(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_back_is_taken_at_once() {
    let (server, working, token) = (Server::default(), Working::default(), CancellationToken::new());
    let stop_first = token.child_token();
    let first = candidate(&server, "a", &working, &stop_first);
    until("the first leads", || working.now() == 1).await;
    let _second = candidate(&server, "b", &working, &token);
    stop_first.cancel();
    assert_eq!(first.await.unwrap(), Ended::Done);
    let waited = until("the second leads", || working.now() == 1).await;
    assert!(waited <= Duration::from_secs(5), "{waited:?}");
    assert_eq!(working.most(), 1);
}

/// A server of its own to each candidate would be two systems; so the first one's requests fail, one by one.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_another_may_begin() {
    for stubborn in [false, true] {
        let (server, working, token) = (Server::default(), Working::default(), CancellationToken::new());
        let first = start(&server, "a", &working, &token, stubborn);
        until("the first leads", || working.now() == 1).await;
        // Everything fails for both; the second comes when the first has long given up.
        server.inject(Fault::on("*", "leases", Effect::Unreachable).times(1_000));
        let second = candidate(&server, "b", &working, &token);
        let begun = Instant::now();
        assert_eq!(first.await.unwrap(), Ended::Lost);
        let bound = Duration::from_secs(if stubborn { 16 } else { 11 });
        assert!(begun.elapsed() <= bound, "{:?}", begun.elapsed());
        assert_eq!(working.now(), 0);
        token.cancel();
        assert_eq!(second.await.unwrap(), Ended::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_races_do_not_end_a_leader() {
    let (server, working, token) = (Server::default(), Working::default(), CancellationToken::new());
    let first = candidate(&server, "a", &working, &token);
    until("the first leads", || working.now() == 1).await;
    server.inject(Fault::on("update", "leases", Effect::LoseReply).times(3));
    tokio::time::sleep(Duration::from_secs(9)).await;
    let api = Api::<Lease>::namespaced(server.client(), "panda-system");
    for n in 0..20 {
        let mut lease = api.get("controllers").await.unwrap();
        lease.metadata.labels.insert("touched".into(), n.to_string());
        match api.replace("controllers", &lease, &WriteParams::default()).await {
            Err(error) => assert!(error.is_conflict(), "{error}"),
            Ok(_) => tokio::time::sleep(Duration::from_millis(700)).await,
        }
    }
    assert_eq!(working.now(), 1);
    token.cancel();
    assert_eq!(first.await.unwrap(), Ended::Done);
    assert_eq!(holder(&server).await.holder_identity, None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_by_force_ends_the_leader() {
    let (server, working, token) = (Server::default(), Working::default(), CancellationToken::new());
    let first = candidate(&server, "a", &working, &token);
    until("the first leads", || working.now() == 1).await;
    let api = Api::<Lease>::namespaced(server.client(), "panda-system");
    loop {
        let mut lease = api.get("controllers").await.unwrap();
        lease.spec.holder_identity = Some("x".into());
        if api
            .replace("controllers", &lease, &WriteParams::default())
            .await
            .is_ok()
        {
            break;
        }
    }
    assert_eq!(first.await.unwrap(), Ended::Lost);
    assert_eq!(working.now(), 0);
}

#[test]
fn times_that_make_no_sense_are_named() {
    let good = Config::new("n", "l", "a".into());
    assert_eq!(good.problem(), None);
    let bad: [fn(&mut Config); 4] = [
        |c| c.lease_duration = Duration::from_millis(1500),
        |c| c.renew_deadline = c.lease_duration,
        |c| c.retry_period = Duration::ZERO,
        |c| c.retry_period = c.renew_deadline,
    ];
    for change in bad {
        let mut config = good.clone();
        change(&mut config);
        assert!(config.problem().is_some(), "{config:?}");
    }
}
