use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use panda_api::meta::{ObjectMeta, RandomIds, SystemClock};
use panda_api::{Lease, Run, RunPhase, Task};
use panda_store::{Key, Memory, Op, Store, Txn};
use serde_json::Value;

use super::*;
use crate::registry::{Registry, Sealer, encode};

struct World {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    tokens: RunTokens,
    run: Run,
    lease: Lease,
    task: Task,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Memory::new("test"));
        let sealer = Sealer::open(&dir.path().join("secrets.key")).unwrap();
        let registry = Registry::new(
            Arc::clone(&store),
            sealer,
            Arc::new(SystemClock),
            Arc::new(RandomIds),
        );
        let key = Arc::new(TokenKey::open(&dir.path().join("tokens.key")).unwrap());
        let meta = |name: &str, uid: &str| ObjectMeta {
            namespace: "web".into(),
            uid: uid.into(),
            ..ObjectMeta::named(name)
        };
        let mut run = Run {
            metadata: meta("fix-1", "run-uid"),
            ..Run::default()
        };
        run.spec.task_ref.name = "fix".into();
        run.spec.task_ref.uid = "task-uid".into();
        run.spec.device_uid = "device-uid".into();
        run.spec.lease_epoch = Some(1);
        let mut lease = Lease {
            metadata: meta("fix-1", "lease-uid"),
            ..Lease::default()
        };
        lease.spec.holder_identity = Some("device-uid".into());
        lease.spec.lease_transitions = Some(1);
        let mut task = Task {
            metadata: meta("fix", "task-uid"),
            ..Task::default()
        };
        task.spec.api_access = Some(true);
        Self {
            tokens: RunTokens::new(key, registry),
            dir,
            store,
            run,
            lease,
            task,
        }
    }

    async fn put<K: panda_api::Resource>(&self, object: &K) {
        let key = Key::new(
            format!("{}/{}", K::GROUP, K::PLURAL),
            object.metadata().namespace.as_str(),
            object.metadata().name.as_str(),
        );
        let value: Value = serde_json::to_value(object).unwrap();
        let body = encode::body(&value);
        let op = match self.store.get(key.clone()).await.unwrap() {
            Some(entry) => Op::update(key, entry.revision, body),
            None => Op::create(key, body),
        };
        self.store.commit(Txn::new(vec![op])).await.unwrap();
    }

    async fn all(&self) {
        self.put(&self.run).await;
        self.put(&self.lease).await;
        self.put(&self.task).await;
    }

    async fn is_good(&self, token: &str) -> bool {
        self.all().await;
        self.tokens.check(token).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn a_runs_token_is_good_while_the_run_lives_and_its_task_wants_it() {
    let mut world = World::new();
    let token = world.tokens.mint(&world.run);
    assert!(world.tokens.check(&token).await.unwrap().is_none(), "no such run");
    world.all().await;
    let user = world.tokens.check(&token).await.unwrap().unwrap();
    assert_eq!(user.name, "panda:run:web:run-uid");
    assert_eq!(user.run().unwrap().epoch, 1);
    assert!(user.is_in("panda:runs") && user.is_in(AUTHENTICATED));

    world.lease.spec.holder_identity = Some(String::new());
    assert!(!world.is_good(&token).await, "lease taken");
    world.lease.spec.holder_identity = Some("device-uid".into());
    world.lease.spec.lease_transitions = Some(2);
    assert!(!world.is_good(&token).await, "epoch of the lease rose");
    world.run.spec.lease_epoch = Some(2);
    assert!(!world.is_good(&token).await, "epoch of the run rose");
    let newer = world.tokens.mint(&world.run);
    assert!(world.is_good(&newer).await);

    world.task.spec.api_access = None;
    assert!(!world.is_good(&newer).await, "not wanted");
    world.task.spec.api_access = Some(true);
    world.task.metadata.uid = "another".into();
    assert!(!world.is_good(&newer).await, "another task of that name");
    world.task.metadata.uid = "task-uid".into();
    assert!(world.is_good(&newer).await);

    world.run.status.phase = Some(RunPhase::Lost);
    assert!(!world.is_good(&newer).await, "ended");
    world.run.status.phase = Some(RunPhase::Running);
    world.run.metadata.uid = "later".into();
    assert!(!world.is_good(&newer).await, "another run of that name");
}

#[tokio::test]
async fn only_tokens_signed_with_this_key_for_this_use_count() {
    let world = World::new();
    world.all().await;
    let token = world.tokens.mint(&world.run);
    let other = World::new();
    other.all().await;
    assert!(other.tokens.check(&token).await.unwrap().is_none());
    let (signed, mac) = token.rsplit_once('.').unwrap();
    let none = "eyJhbGciOiJub25lIn0";
    let claims = signed.split_once('.').unwrap().1;
    for bad in [
        String::new(),
        "..".to_owned(),
        signed.to_owned(),
        format!("{signed}."),
        format!("{signed}.{}", &mac[1..]),
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{mac}"),
        format!("{token}.{mac}"),
        "é".repeat(100),
    ] {
        assert!(world.tokens.check(&bad).await.unwrap().is_none(), "{bad}");
    }
    let again = TokenKey::open(&world.dir.path().join("tokens.key")).unwrap();
    assert!(again.verify::<Value>(key::Use::Run, &token).is_some());
    std::fs::write(world.dir.path().join("short.key"), "x").unwrap();
    assert!(TokenKey::open(&world.dir.path().join("short.key")).is_err());
}

#[tokio::test]
async fn a_bad_authorization_header_is_refused_and_none_is_anonymous() {
    let world = World::new();
    world.all().await;
    let mut bearers = Bearers::default();
    bearers.extend(vec![Arc::new(world.tokens.clone())]);
    let mut headers = HeaderMap::new();
    let found = bearers.user(&headers).await.unwrap();
    assert_eq!(found, Err(Unknown::Anonymous));
    let token = world.tokens.mint(&world.run);
    for (value, good) in [
        (format!("Bearer {token}"), true),
        (format!("bearer  {token}"), true),
        (format!("Basic {token}"), false),
        (token.clone(), false),
        ("Bearer ".to_owned(), false),
        (format!("Bearer {token} x"), false),
        (format!("Bearer {}", "a".repeat(9000)), false),
    ] {
        headers.insert("authorization", HeaderValue::from_str(&value).unwrap());
        let found = bearers.user(&headers).await.unwrap();
        assert_eq!(found.is_ok(), good, "{value}");
        assert!(good || found == Err(Unknown::Rejected));
    }
    headers.insert(
        "authorization",
        HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
    );
    headers.append("authorization", HeaderValue::from_static("Bearer x"));
    assert_eq!(bearers.user(&headers).await.unwrap(), Err(Unknown::Rejected));
}

#[test]
fn certificates_for_names_of_devices_and_runs_need_their_proof() {
    let device = user(Subject::device("pi", "u1")).unwrap();
    assert_eq!(device.device().unwrap().uid, "u1");
    assert!(user(Subject::user("panda:device:pi", &[])).is_none());
    assert!(user(Subject::user("panda:run:web:u", &[])).is_none());
    let jo = user(Subject::user("jo", &["staff"])).unwrap();
    assert_eq!(jo.groups, ["staff", AUTHENTICATED]);
    assert_eq!(jo.principal, Principal::Person);
}

/// A wall clock that is set by hand.
#[derive(Debug)]
struct SetClock(std::sync::atomic::AtomicI64);

impl Clock for SetClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.0.load(std::sync::atomic::Ordering::SeqCst)).unwrap()
    }

    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

#[tokio::test]
async fn an_accounts_token_ends_with_its_time_and_opens_only_what_it_is_for() {
    let world = World::new();
    let clock = Arc::new(SetClock(1_700_000_000.into()));
    let sealer = Sealer::open(&world.dir.path().join("secrets.key")).unwrap();
    let registry = Registry::new(
        Arc::clone(&world.store),
        sealer,
        Arc::clone(&clock) as Arc<dyn Clock>,
        Arc::new(RandomIds),
    );
    let key = Arc::new(TokenKey::open(&world.dir.path().join("tokens.key")).unwrap());
    let tokens = AccountTokens::new(key, registry);
    let mut account = panda_api::ServiceAccount {
        metadata: ObjectMeta {
            namespace: "web".into(),
            uid: "account-uid".into(),
            ..ObjectMeta::named("bot")
        },
        ..panda_api::ServiceAccount::default()
    };
    world.put(&account).await;
    let lifetime = std::time::Duration::from_secs(600);
    let (token, ends) = tokens.mint(&account, lifetime, Vec::new());
    assert_eq!(ends.as_second(), 1_700_000_600);
    let good = async |token: &str| tokens.authenticate(token).await.unwrap().is_some();
    assert!(good(&token).await);
    assert!(
        world.tokens.check(&token).await.unwrap().is_none(),
        "no Run's token"
    );
    let (elsewhere, _) = tokens.mint(&account, lifetime, vec!["elsewhere".into()]);
    assert!(!good(&elsewhere).await);
    assert!(tokens.check(&elsewhere).await.unwrap().is_some());
    clock.0.store(1_700_000_599, std::sync::atomic::Ordering::SeqCst);
    assert!(good(&token).await);
    clock.0.store(1_700_000_600, std::sync::atomic::Ordering::SeqCst);
    assert!(!good(&token).await, "expired");
    clock.0.store(1_700_000_000, std::sync::atomic::Ordering::SeqCst);
    account.metadata.uid = "another".into();
    world.put(&account).await;
    assert!(!good(&token).await, "another account of that name");
}
