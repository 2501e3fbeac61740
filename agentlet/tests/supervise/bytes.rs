//! Output is kept as it is and within its bound, whatever it is.

use panda_agentlet::supervisor::log::{Chunk, LogReader, Stream};
use panda_api::logline;

use super::harness::*;

#[tokio::test]
async fn bytes_that_are_no_text_do_not_stop_the_reader_and_are_kept() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--bad-bytes", "--say", "after"]).await;
    assert_eq!(outcome.failure, None);
    assert_eq!(
        job.stdout_bytes(),
        b"\xff\xfe\x97\n\xf0\x9f\x90\xbc\nNUL \0 here\n 10%\r 50%\r100%\rcaf\xe9/na\xefve.txt\nafter\n"
    );
    assert!(outcome.summary.ends_with("after"), "{:?}", outcome.summary);
}

#[tokio::test]
async fn a_flood_is_kept_within_the_bound_with_its_first_and_newest_bytes() {
    let place = Place::new();
    let mut spec = place.spec(&[
        "--say",
        "first",
        "--endless-line",
        "3000000",
        "--flood",
        "3000000",
        "--say",
        "last",
    ]);
    spec.log.head = 100_000;
    spec.log.tail = 400_000;
    spec.log.segment = 100_000;
    let job = place.start(&spec);
    assert_eq!(job.outcome().await.failure, None);
    let reader = LogReader::new(&job.folder.logs(), Stream::Log);
    // Every piece has its time and origin before it.
    let end = reader.end().unwrap();
    assert!(end > 6_000_011, "{end}");
    let Chunk::Data(head) = reader.read(0, 1 << 20).unwrap() else {
        panic!("no beginning");
    };
    assert_eq!(head.len(), 100_000);
    let first = head
        .split_inclusive(|b| *b == b'\n')
        .next()
        .and_then(logline::parse);
    assert_eq!(first.unwrap().bytes, b"first");
    let Chunk::Gap { to } = reader.read(100_000, 1).unwrap() else {
        panic!("no gap");
    };
    assert!((end - 400_000..=end - 200_000).contains(&to), "{to} of {end}");
    assert!(job.stdout().ends_with("last\n"));
}
