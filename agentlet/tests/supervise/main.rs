//! The supervisor with real processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;

use harness::*;
use panda_agentlet::supervisor::Record;

#[tokio::test]
async fn a_run_that_succeeds_is_journalled_from_start_to_end() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--say", "working", "--say", "done"]).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    assert_eq!(outcome.exit.unwrap().code, Some(0));
    assert_eq!(outcome.summary, "working\ndone");
    assert!(outcome.sandbox.holds(), "{:?}", outcome.sandbox);
    assert_eq!(job.stdout(), "working\ndone\n");
    let entries = job.entries();
    let numbers: Vec<_> = entries.iter().map(|e| e.seq).collect();
    assert_eq!(numbers, (1..=entries.len() as u64).collect::<Vec<_>>());
    assert!(matches!(entries.first().unwrap().record, Record::Started { .. }));
    assert!(matches!(entries.last().unwrap().record, Record::Ended { .. }));
    assert_eq!(place.left(), Vec::<i32>::new());
}
