//! Stores that went back in time, and stores that a device does not know.

use http::Method;
use panda_api::RunPhase;
use panda_apiserver::backup::{RestoreOptions, SaveOptions, restore, save};
use panda_rpc::v1::server_message::Body as Down;

use super::harness::{Begun, Cluster, phase};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_behind_a_device_stays_inactive_until_it_is_activated() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let fence = cluster.bound("t-1", &task, &pi).await;
    assert_eq!(cluster.json(Method::GET, "/activation").await["inactive"], false);
    let mut hello = pi.hello(&cluster.store_uid());
    hello.last_revision = 1 << 40;
    assert!(pi.connect(hello.clone()).await.is_err());
    let marker = cluster.json(Method::GET, "/activation").await;
    assert_eq!(marker["inactive"], true);
    assert_eq!(marker["device"], "pi");
    assert_eq!(cluster.metric("panda_agentlet_inactive").await, 1);

    // It is another store for devices now: nothing that they do not find in it ends, and they hand over everything.
    let mut session = pi.connect(hello.clone()).await.unwrap();
    assert_ne!(session.welcome.store_uid, cluster.store_uid());
    assert!(
        session.renew().await.unwrap().runs.is_empty(),
        "it grants nothing"
    );
    assert!(
        session.runs.is_empty() && session.gone.is_empty(),
        "it asks for nothing"
    );
    let other = cluster.task("u").await;
    cluster.run("t-2", &other).await;
    let refused = cluster.try_bind("t-2", "pi").await.unwrap_err();
    assert!(refused.to_string().contains("POST /activation"), "{refused}");
    // What is reported is taken.
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Preparing)).await, None);

    assert_eq!(cluster.json(Method::POST, "/activation").await["inactive"], false);
    assert_eq!(cluster.metric("panda_agentlet_inactive").await, 0);
    session.until_cut().await;
    let mut session = pi.connect(hello).await.unwrap();
    session.until_told(&fence).await;
    assert_eq!(session.renew().await.unwrap().runs.len(), 1);
    cluster.try_bind("t-2", "pi").await.unwrap();
    assert_eq!(cluster.json(Method::GET, "/activation").await["inactive"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_the_store_never_gave_shows_it_too() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let mut hello = pi.hello(&cluster.store_uid());
    hello.last_ack = 7;
    assert!(pi.connect(hello.clone()).await.is_err());
    assert_eq!(cluster.json(Method::GET, "/activation").await["inactive"], true);
    // Of another store its memory says nothing.
    let other = Cluster::start().await;
    let pi = other.join("pi").await;
    let mut hello = pi.hello("some other store");
    (hello.last_ack, hello.last_revision) = (7, 1 << 40);
    pi.connect(hello).await.unwrap();
    assert_eq!(other.json(Method::GET, "/activation").await["inactive"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_with_an_unknown_live_run_is_not_scheduled_until_that_has_ended() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let other = cluster.task("other").await;
    let mut unknown = cluster.bound("other-1", &other, &pi).await;
    unknown.run_uid = "of-another-history".into();
    unknown.task_uid.clone_from(&task.metadata.uid);
    let mut hello = pi.hello("the store before the restore");
    hello.live_runs = vec![unknown.clone()];
    let mut session = pi.connect(hello).await.unwrap();
    cluster.run("t-1", &task).await;
    let refused = cluster.try_bind("t-1", "pi").await.unwrap_err();
    assert!(refused.to_string().contains("of-another-history"), "{refused}");
    assert!(
        session.gone.is_empty(),
        "a store that does not know it ends nothing"
    );
    assert!(
        session
            .report(1, &unknown, &phase(RunPhase::Running))
            .await
            .is_some()
    );
    assert!(cluster.try_bind("t-1", "pi").await.is_err());
    assert!(
        session
            .report(2, &unknown, &phase(RunPhase::Failed))
            .await
            .is_some()
    );
    cluster.try_bind("t-1", "pi").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_live_run_is_forgotten_when_the_device_has_it_no_longer() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let mut hello = pi.hello("the store before the restore");
    hello.live_runs = vec![panda_rpc::v1::Fence {
        task_uid: task.metadata.uid.clone(),
        run_uid: "of-another-history".into(),
        ..panda_rpc::v1::Fence::default()
    }];
    pi.connect(hello.clone()).await.unwrap();
    cluster.run("t-1", &task).await;
    assert!(cluster.try_bind("t-1", "pi").await.is_err());
    // Still there, although the device knows this store by now.
    hello.store_uid = cluster.store_uid();
    pi.connect(hello.clone()).await.unwrap();
    assert!(cluster.try_bind("t-1", "pi").await.is_err());
    hello.live_runs.clear();
    hello.boot_id = "boot-2".into();
    pi.connect(hello).await.unwrap();
    cluster.try_bind("t-1", "pi").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_hears_how_far_its_reports_came() {
    let Begun {
        cluster,
        pi,
        mut session,
        fence,
        ..
    } = Begun::start().await;
    for seq in 1..=3 {
        session.report(seq, &fence, &phase(RunPhase::Preparing)).await;
    }
    // A newer session cuts the older one; the number tells a disk that was rolled back that it was.
    let again = pi.session(&cluster).await;
    assert_eq!(again.welcome.last_outbox_seq, 3);
    let cut = session
        .until(|body| matches!(body, Down::Grant(_)).then_some(()))
        .await;
    assert!(cut.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_that_was_rolled_back_and_went_on_is_found_out() {
    let Begun {
        cluster,
        pi,
        mut session,
        fence,
        ..
    } = Begun::start().await;
    for (seq, said) in [
        (1, RunPhase::Preparing),
        (2, RunPhase::Running),
        (3, RunPhase::Verifying),
    ] {
        assert_eq!(session.report(seq, &fence, &phase(said)).await, None);
    }
    assert_eq!(
        session.report(2, &fence, &phase(RunPhase::Running)).await,
        None,
        "sent again"
    );
    // The disk went back to before the second report, and the run ended otherwise.
    session.send_report(2, &fence, &phase(RunPhase::Failed)).await;
    assert_eq!(session.until_cut().await.code(), tonic::Code::Aborted);
    assert_eq!(cluster.get("t-1").await.status.phase, Some(RunPhase::Verifying));
    let mut again = pi.session(&cluster).await;
    assert!(
        again.welcome.last_outbox_seq > 1_000_000,
        "above all that it ever wrote"
    );
    let next = again.welcome.last_outbox_seq + 1;
    assert_eq!(again.report(next, &fence, &phase(RunPhase::Failed)).await, None);
    assert_eq!(cluster.get("t-1").await.status.phase, Some(RunPhase::Failed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_goes_on_with_what_runs_and_sends_watchers_back_to_the_beginning() {
    let runs = "/apis/panda.dev/v1alpha1/namespaces/default/runs";
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let fence = cluster.bound("t-1", &task, &pi).await;
    let old = cluster.store_uid();
    let mut session = pi.session(&cluster).await;
    session.until_told(&fence).await;
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Preparing)).await, None);
    // The backup is taken beside the running server; what comes after it will be lost.
    let (scratch, now) = (tempfile::tempdir().unwrap(), jiff::Timestamp::UNIX_EPOCH.into());
    let options = SaveOptions {
        with_keys: false,
        now,
        program: "test".into(),
    };
    let mut archive = Vec::new();
    save(
        cluster.data(),
        &options,
        scratch.path(),
        &mut archive,
        &mut |_| {},
    )
    .unwrap();
    assert_eq!(session.report(2, &fence, &phase(RunPhase::Running)).await, None);
    cluster.run("t-2", &task).await;
    let list = cluster.json(Method::GET, runs).await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    drop(session);
    let uid = pi.uid.clone();
    drop(pi);
    let dir = cluster.stop().await;
    let options = RestoreOptions {
        activate: false,
        keep_old: false,
        secrets_key: None,
        store_uid: "restored".into(),
        now,
    };
    restore(dir.path(), archive.as_slice(), &options, &mut |_| {}).unwrap();

    let cluster = Cluster::over(dir).await;
    assert_eq!(cluster.store_uid(), "restored");
    let watch = format!("{runs}?watch=true&resourceVersion={version}&timeoutSeconds=1");
    let gone = match cluster.client.get_text(&watch).await {
        Ok(text) => text.contains("\"code\":410"),
        Err(panda_client::Error::Api(status)) => status.code == 410,
        Err(error) => panic!("{error}"),
    };
    assert!(gone, "a watcher from before begins anew");
    let list = cluster.json(Method::GET, runs).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert!(
        list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 1_000_000_000
    );

    let pi = cluster.machine("pi", uid).await;
    let mut hello = pi.hello(&old);
    (hello.last_revision, hello.last_ack) = (version.parse().unwrap(), 2);
    hello.live_runs = vec![fence.clone()];
    let mut session = pi.connect(hello.clone()).await.unwrap();
    assert_eq!(session.welcome.store_uid, "restored");
    assert!(
        session.renew().await.unwrap().runs.is_empty(),
        "it grants nothing yet"
    );
    assert!(session.gone.is_empty(), "it ends nothing");
    // The device hands over again what the store has lost; each report counts once.
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Preparing)).await, None);
    assert_eq!(session.report(2, &fence, &phase(RunPhase::Running)).await, None);
    assert_eq!(cluster.get("t-1").await.status.phase, Some(RunPhase::Running));
    cluster.run("t-3", &task).await;
    let refused = cluster.try_bind("t-3", "pi").await.unwrap_err().to_string();
    assert!(refused.contains("not active"), "{refused}");

    assert_eq!(cluster.json(Method::POST, "/activation").await["inactive"], false);
    session.until_cut().await;
    hello.store_uid = "restored".into();
    (hello.last_revision, hello.last_ack) = (0, 2);
    let mut session = pi.connect(hello).await.unwrap();
    session.until_told(&fence).await;
    assert_eq!(session.renew().await.unwrap().runs.len(), 1);
    // The run goes on where it was, and no other of its Task begins beside it.
    let refused = cluster.try_bind("t-3", "pi").await.unwrap_err().to_string();
    assert!(refused.contains("may be alive"), "{refused}");
}
