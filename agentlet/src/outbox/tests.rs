use std::collections::BTreeMap;

use panda_api::RunPhase;
use proptest::prelude::*;

use super::*;

fn fence(run: u32) -> Fence {
    Fence {
        task_uid: "t".into(),
        run_uid: format!("run-{run}"),
        attempt: 1,
        epoch: 1,
        device_uid: "d".into(),
    }
}

fn report(class: u8) -> RunReport {
    RunReport {
        phase: match class {
            0 => None,
            1 => Some(RunPhase::Running),
            _ => Some(RunPhase::Succeeded),
        },
        processes: Some(u32::from(class)),
        ..RunReport::default()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Report { run: u8, class: u8 },
    Settle { nth: usize, store: u8 },
    Gone { run: u8, store: u8 },
    Crash,
    Restart { above: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0u8..3, 0u8..3).prop_map(|(run, class)| Step::Report { run, class }),
        4 => (0usize..8, 0u8..2).prop_map(|(nth, store)| Step::Settle { nth, store }),
        2 => (0u8..3, 0u8..2).prop_map(|(run, store)| Step::Gone { run, store }),
        2 => Just(Step::Crash),
        1 => (0u64..40).prop_map(|above| Step::Restart { above }),
    ]
}

#[derive(Debug, Default)]
struct Model {
    rows: BTreeMap<u64, (u8, u8, Option<u8>)>,
    newest: u64,
    last_ack: u64,
}

impl Model {
    fn pending(&self, store: u8) -> Vec<u64> {
        let open = |(_, row): &(&u64, &(u8, u8, Option<u8>))| row.2 != Some(store);
        self.rows.iter().filter(open).map(|(seq, _)| *seq).collect()
    }
}

async fn apply(outbox: &mut Outbox, model: &mut Model, path: &Path, step: Step) {
    match step {
        Step::Report { run, class } => {
            let seq = outbox
                .report(&fence(u32::from(run)), &report(class))
                .await
                .unwrap();
            assert!(seq > model.newest, "numbers only grow");
            model.newest = seq;
            if class == 0 {
                model.rows.retain(|_, row| !(row.0 == run && row.1 == 0));
            }
            model.rows.insert(seq, (run, class, None));
        }
        Step::Settle { nth, store } => {
            let pending = model.pending(store);
            if pending.is_empty() {
                return;
            }
            let seq = pending[nth % pending.len()];
            outbox.settle(&format!("store-{store}"), seq).await.unwrap();
            model.last_ack = model.last_ack.max(seq);
            if model.rows[&seq].1 < 2 {
                model.rows.remove(&seq);
            } else {
                model.rows.get_mut(&seq).unwrap().2 = Some(store);
            }
        }
        Step::Gone { run, store } => {
            outbox
                .gone(&format!("store-{store}"), &format!("run-{run}"))
                .await
                .unwrap();
            model
                .rows
                .retain(|_, row| !(row.0 == run && row.2 == Some(store)));
        }
        // A new handle on the same file while the old one is dropped without ceremony.
        Step::Crash => *outbox = Outbox::open(path, 1 << 20).unwrap(),
        Step::Restart { above } => {
            outbox.restart_above(above).await.unwrap();
            let rows = std::mem::take(&mut model.rows);
            let kept = rows.into_iter().filter(|(_, row)| row.1 == 2);
            model.rows = kept.map(|(seq, row)| (seq + above, row)).collect();
            model.newest += above;
            model.last_ack = model.last_ack.max(above);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn keeps_what_is_not_settled_whatever_happens(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("outbox.db");
            let mut outbox = Outbox::open(&path, 1 << 20).unwrap();
            let mut model = Model::default();
            for step in steps {
                apply(&mut outbox, &mut model, &path, step).await;
                for store in 0..2 {
                    let seen = outbox.pending(&format!("store-{store}"), 0, 1000).await.unwrap();
                    let seqs: Vec<u64> = seen.iter().map(|e| e.seq).collect();
                    assert_eq!(seqs, model.pending(store));
                }
                assert_eq!(outbox.memory().await.unwrap().last_ack, model.last_ack);
            }
        });
    }
}

#[tokio::test]
async fn full_disk_is_an_error_and_later_reports_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&dir.path().join("outbox.db"), 64 * 1024).unwrap();
    let big = RunReport {
        phase: Some(RunPhase::Running),
        diffstat: Some("x".repeat(8 * 1024)),
        ..RunReport::default()
    };
    let mut seqs = Vec::new();
    let error = loop {
        match outbox.report(&fence(1), &big).await {
            Ok(seq) => seqs.push(seq),
            Err(error) => break error,
        }
        assert!(seqs.len() < 100, "the bound holds");
    };
    assert!(matches!(error, Error::Full), "{error}");
    assert!(error.is_retryable());
    for seq in &seqs {
        outbox.settle("s", *seq).await.unwrap();
    }
    let next = outbox.report(&fence(1), &big).await.unwrap();
    assert!(next > *seqs.last().unwrap());
    assert_eq!(outbox.pending("s", 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn file_is_private_and_a_newer_format_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let outbox = Outbox::open(&path, 1 << 20).unwrap();
    outbox.set_store("a").await.unwrap();
    outbox.set_revision(7).await.unwrap();
    assert_eq!(outbox.memory().await.unwrap().last_revision, 7);
    outbox.set_store("b").await.unwrap();
    assert_eq!(outbox.memory().await.unwrap().last_revision, 0);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(outbox);
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA user_version = 9").unwrap();
    drop(conn);
    assert!(matches!(
        Outbox::open(&path, 1 << 20),
        Err(Error::Newer { found: 9, .. })
    ));
}

#[tokio::test]
async fn terminal_reports_name_finished_runs_until_gone() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&dir.path().join("outbox.db"), 1 << 20).unwrap();
    assert_eq!(outbox.terminal("s", "run-1").await.unwrap(), None);
    let seq = outbox.report(&fence(1), &report(2)).await.unwrap();
    assert_eq!(outbox.terminal("s", "run-1").await.unwrap(), Some(false));
    outbox.settle("s", seq).await.unwrap();
    assert_eq!(outbox.terminal("s", "run-1").await.unwrap(), Some(true));
    assert_eq!(outbox.terminal("other", "run-1").await.unwrap(), Some(false));
    assert_eq!(outbox.finished().await.unwrap(), vec![fence(1)]);
    outbox.gone("s", "run-1").await.unwrap();
    assert_eq!(outbox.finished().await.unwrap(), vec![]);
}

#[tokio::test]
async fn a_server_hears_of_what_it_has_not_settled_first_and_never_of_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&dir.path().join("outbox.db"), 8 << 20).unwrap();
    let all = u32::try_from(MAX_NAMED).unwrap() + 4;
    // Together, for few syncs; so in any order.
    let ended = report(2);
    let tell = async |run| (outbox.report(&fence(run), &ended).await.unwrap(), run);
    let told = (1..=all).map(tell);
    let mut told = futures::future::join_all(told).await;
    told.sort_unstable();
    let open = [told[1], told[2]];
    let settled = told.iter().filter(|one| !open.contains(one));
    for settled in futures::future::join_all(settled.map(|(seq, _)| outbox.settle("s", *seq))).await {
        settled.unwrap();
    }
    let fences: Vec<Fence> = told.iter().map(|(_, run)| fence(*run)).collect();
    let named = outbox.to_name("s").await.unwrap();
    assert_eq!(i64::try_from(named.len()), Ok(MAX_NAMED));
    let newest: Vec<Fence> = fences.iter().rev().take(2).cloned().collect();
    assert!(
        named[..2] == fences[1..3] && named[2..4] == newest,
        "{:?}",
        &named[..4]
    );
    assert!(outbox.to_name("other").await.unwrap()[..2] == fences[..2]);
    assert!(outbox.finished().await.unwrap() == fences);
}

#[tokio::test]
async fn a_damaged_outbox_is_moved_aside_and_a_new_one_begun() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let report = RunReport {
        phase: Some(RunPhase::Failed),
        ..RunReport::default()
    };
    for (round, damage) in [0_u64, 4096].into_iter().enumerate() {
        let outbox = Outbox::open(&path, 1 << 20).unwrap();
        let fence = Fence {
            run_uid: "r1".into(),
            ..Fence::default()
        };
        outbox.report(&fence, &report).await.unwrap();
        drop(outbox);
        // Waits until the writer has let go and the log is in the file.
        drop(
            Connection::open(&path)
                .unwrap()
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"),
        );
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 2000], damage).unwrap();
        let outbox = Outbox::open(&path, 1 << 20).unwrap();
        assert_eq!(outbox.finished().await.unwrap(), vec![]);
        assert_eq!(outbox.report(&fence, &report).await.unwrap(), 1);
        assert!(
            dir.path()
                .join(format!("outbox.db.damaged-{}", round + 1))
                .exists()
        );
        drop(outbox);
    }
}

#[tokio::test]
async fn terminal_reports_go_on_above_the_number_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&dir.path().join("outbox.db"), 1 << 20).unwrap();
    let fence = Fence::default();
    for phase in [RunPhase::Running, RunPhase::Failed] {
        let phase = Some(phase);
        let report = RunReport {
            phase,
            ..RunReport::default()
        };
        outbox.report(&fence, &report).await.unwrap();
    }
    outbox.restart_above(100).await.unwrap();
    assert_eq!(*outbox.newest().borrow(), 102);
    let kept = outbox.pending("s", 0, 9).await.unwrap();
    assert_eq!(kept.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [102]);
}
