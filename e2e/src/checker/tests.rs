use super::*;

fn span(attempt: u32, start: u64, end: Option<u64>) -> Span {
    Span {
        run: format!("r{attempt}"),
        attempt,
        start,
        end,
        pid: 1,
    }
}

#[test]
fn overlaps_and_steps_back_are_found() {
    let check = |spans: Vec<Span>| no_overlap(&BTreeMap::from([("t".to_owned(), spans)]));
    assert!(check(vec![span(1, 0, Some(5)), span(2, 5, Some(9)), span(3, 10, None)]).is_ok());
    assert!(check(vec![span(1, 0, Some(6)), span(2, 5, Some(9))]).is_err());
    assert!(check(vec![span(1, 0, None), span(2, 5, Some(9))]).is_err());
    assert!(check(vec![span(2, 0, Some(1)), span(1, 5, Some(9))]).is_err());
}

#[test]
fn lines_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let line = |event: &str, at: u64| {
        format!(
            "{{\"event\":\"{event}\",\"taskUID\":\"t\",\"runUID\":\"r\",\"attempt\":1,\"pid\":7,\"starttime\":3,\
             \"bootId\":\"b\",\"boottime\":{at}}}\n"
        )
    };
    std::fs::create_dir(dir.path().join("state")).unwrap();
    std::fs::write(
        dir.path().join("state/starts.jsonl"),
        line("start", 10) + &line("end", 20),
    )
    .unwrap();
    let tasks = starts(dir.path()).unwrap();
    assert_eq!(
        tasks["t"],
        [Span {
            run: "r".into(),
            attempt: 1,
            start: 10,
            end: Some(20),
            pid: 7
        }]
    );
}

#[test]
fn a_device_that_died_ended_everything_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let line = |event: &str, pid: u32, at: u64| {
        format!(
            "{{\"event\":\"{event}\",\"taskUID\":\"t\",\"runUID\":\"r\",\"attempt\":1,\"pid\":{pid},\"starttime\":3,\
             \"bootId\":\"b\",\"boottime\":{at}}}\n"
        )
    };
    let device = dir.path().join("0");
    std::fs::create_dir(&device).unwrap();
    let lines = line("start", 1, 10) + &line("start", 2, 30) + &line("end", 1, 90);
    std::fs::write(device.join("starts.jsonl"), lines).unwrap();
    let death = |device: PathBuf, at| {
        starts_and_deaths(dir.path(), &[Death { device, at }], &[]).unwrap()["t"].clone()
    };
    let ends = |spans: Vec<Span>| spans.iter().map(|span| span.end).collect::<Vec<_>>();
    assert_eq!(ends(death(device.clone(), 20)), [Some(20), None]);
    assert_eq!(ends(death(device, 40)), [Some(40), Some(40)]);
    assert_eq!(ends(death(dir.path().join("1"), 20)), [Some(90), None]);
    let without = starts_and_deaths(dir.path(), &[], &[dir.path().join("0")]).unwrap();
    assert!(without.is_empty(), "{without:?}");
}
