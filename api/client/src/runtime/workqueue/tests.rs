//! The queue against a model, and with several workers in virtual time.

use futures::FutureExt;
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::*;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

fn queue() -> WorkQueue<u8> {
    WorkQueue::new(BACKOFF, 1)
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8),
    AddAfter(u8, u64),
    Backoff(u8),
    Forget(u8),
    Get,
    Done(usize),
    Advance(u64),
    Drain,
    ShutDown,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..5u8;
    prop_oneof![
        6 => key.clone().prop_map(Op::Add),
        4 => (key.clone(), 0..2000u64).prop_map(|(k, ms)| Op::AddAfter(k, ms)),
        3 => key.clone().prop_map(Op::Backoff),
        1 => key.prop_map(Op::Forget),
        8 => Just(Op::Get),
        6 => any::<prop::sample::Index>().prop_map(|i| Op::Done(i.index(8))),
        4 => (1..1500u64).prop_map(Op::Advance),
    ]
}

/// What the contract says, as plainly as possible.
#[derive(Default)]
struct Model {
    now: Duration,
    closed: bool,
    draining: bool,
    /// Keys waiting, in order; a key in work may wait only in `again`.
    waiting: Vec<u8>,
    again: Vec<u8>,
    in_work: Vec<u8>,
    /// (due, order of addition, key)
    delayed: Vec<(Duration, usize, u8)>,
    additions: usize,
    failures: BTreeMap<u8, u32>,
}

impl Model {
    fn add(&mut self, key: u8) {
        if self.closed || self.draining {
            return;
        }
        let list = if self.in_work.contains(&key) {
            &mut self.again
        } else {
            &mut self.waiting
        };
        if !list.contains(&key) {
            list.push(key);
        }
    }

    fn add_at(&mut self, key: u8, at: Duration) {
        if self.closed || self.draining || self.delayed.iter().any(|(due, _, k)| *k == key && *due <= at) {
            return;
        }
        self.delayed.retain(|(_, _, k)| *k != key);
        self.additions += 1;
        self.delayed.push((at, self.additions, key));
        self.delayed.sort_unstable();
    }

    fn get(&mut self) -> Option<u8> {
        while self.delayed.first().is_some_and(|(due, _, _)| *due <= self.now) {
            let (_, _, key) = self.delayed.remove(0);
            self.add(key);
        }
        if self.closed || self.waiting.is_empty() {
            return None;
        }
        let key = self.waiting.remove(0);
        self.in_work.push(key);
        Some(key)
    }

    fn done(&mut self, key: u8) {
        self.in_work.retain(|k| *k != key);
        if let Some(at) = self.again.iter().position(|k| *k == key) {
            self.again.remove(at);
            if !self.closed {
                self.waiting.push(key);
            }
        }
    }

    fn close(&mut self, for_good: bool) {
        self.delayed.clear();
        self.draining = true;
        if for_good {
            self.closed = true;
            self.waiting.clear();
            self.again.clear();
        }
    }
}

async fn run(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let queue = queue();
    let mut model = Model::default();
    let mut items: Vec<Item<u8>> = Vec::new();
    for op in ops {
        match op {
            Op::Add(key) => {
                queue.add(key);
                model.add(key);
            }
            Op::AddAfter(key, ms) => {
                queue.add_after(key, Duration::from_millis(ms));
                if ms == 0 {
                    model.add(key);
                } else {
                    model.add_at(key, model.now + Duration::from_millis(ms));
                }
            }
            Op::Backoff(key) => {
                let failures = model.failures.entry(key).or_insert(0);
                *failures += 1;
                let whole = BACKOFF.delay(*failures);
                let delay = queue.add_backoff(key);
                prop_assert!(delay >= whole / 2 && delay <= whole);
                prop_assert_eq!(queue.failures(&key), *failures);
                model.add_at(key, model.now + delay);
            }
            Op::Forget(key) => {
                queue.forget(&key);
                model.failures.remove(&key);
                prop_assert_eq!(queue.failures(&key), 0);
            }
            Op::Get => {
                let got = queue.get().now_or_never().flatten();
                prop_assert_eq!(got.as_ref().map(|i| *i.key()), model.get());
                items.extend(got);
            }
            Op::Done(index) => {
                if !items.is_empty() {
                    let item = items.remove(index % items.len());
                    model.done(*item.key());
                }
            }
            Op::Advance(ms) => {
                tokio::time::advance(Duration::from_millis(ms)).await;
                model.now += Duration::from_millis(ms);
            }
            Op::Drain => {
                let done = queue.drain().now_or_never().is_some();
                model.close(false);
                let empty = model.waiting.is_empty() && model.again.is_empty() && model.in_work.is_empty();
                prop_assert_eq!(done, empty || model.closed && model.in_work.is_empty());
            }
            Op::ShutDown => {
                queue.shut_down();
                model.close(true);
                prop_assert!(queue.get().now_or_never().unwrap().is_none());
            }
        }
        prop_assert_eq!(queue.len(), model.waiting.len());
        prop_assert_eq!(queue.in_work(), model.in_work.len());
    }
    // Nothing that was added is lost: it all comes out in the end.
    drop(items);
    for key in model.in_work.clone() {
        model.done(key);
    }
    tokio::time::advance(Duration::from_secs(100)).await;
    model.now += Duration::from_secs(100);
    loop {
        let (got, wanted) = (queue.get().now_or_never().flatten(), model.get());
        prop_assert_eq!(got.as_ref().map(|i| *i.key()), wanted);
        match wanted {
            Some(key) => model.done(key),
            None => return Ok(()),
        }
    }
}

fn in_virtual_time<F: Future>(work: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn does_what_the_model_does(
        ops in prop::collection::vec(op(), 1..80),
        end in prop::option::of((prop_oneof![Just(Op::Drain), Just(Op::ShutDown)], prop::collection::vec(op(), 0..20))),
    ) {
        let mut ops = ops;
        if let Some((end, rest)) = end {
            ops.push(end);
            ops.extend(rest);
        }
        in_virtual_time(run(ops))?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_leaves_the_clock_to_another() {
    let queue = queue();
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..2 {
        let queue = queue.clone();
        workers.spawn(async move {
            let mut got = Vec::new();
            while let Some(item) = queue.get().await {
                got.push((*item.key(), start.elapsed().as_secs()));
                tokio::time::sleep(Duration::from_secs(50)).await;
            }
            got
        });
    }
    tokio::task::yield_now().await;
    queue.add_after(1, Duration::from_secs(100));
    tokio::task::yield_now().await;
    queue.add_after(2, Duration::from_secs(5));
    queue.add(3);
    tokio::time::sleep(Duration::from_secs(120)).await;
    queue.shut_down();
    let mut all: Vec<_> = workers.join_all().await.concat();
    all.sort_unstable();
    assert_eq!(all, [(1, 100), (2, 5), (3, 0)]);
}

#[tokio::test(start_paused = true)]
async fn many_workers_never_share_a_key_and_lose_none() {
    let queue = queue();
    let busy = Arc::new(Mutex::new(BTreeSet::new()));
    let mut workers = JoinSet::new();
    for n in 1..=4u64 {
        let (queue, busy) = (queue.clone(), Arc::clone(&busy));
        workers.spawn(async move {
            let mut count = 0;
            while let Some(item) = queue.get().await {
                assert!(
                    busy.lock().unwrap().insert(*item.key()),
                    "key {} twice at a time",
                    item.key()
                );
                tokio::time::sleep(Duration::from_millis(n * 7)).await;
                busy.lock().unwrap().remove(item.key());
                count += 1;
            }
            count
        });
    }
    for i in 0..200u64 {
        queue.add(u8::try_from(i % 10).unwrap());
        tokio::time::sleep(Duration::from_millis(i % 5)).await;
    }
    queue.drain().await;
    assert_eq!((queue.len(), queue.in_work()), (0, 0));
    let handled: u32 = workers.join_all().await.into_iter().sum();
    assert!((10..=200).contains(&handled), "{handled}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_hands_out_what_was_added_again_meanwhile() {
    let queue = queue();
    queue.add(1);
    let first = queue.get().await.unwrap();
    queue.add(1);
    let drained = tokio::spawn({
        let queue = queue.clone();
        async move { queue.drain().await }
    });
    tokio::task::yield_now().await;
    queue.add(2);
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|i| *i.key()) }
    });
    tokio::task::yield_now().await;
    assert!(!drained.is_finished() && !waiting.is_finished());
    drop(first);
    assert_eq!(waiting.await.unwrap(), Some(1));
    drained.await.unwrap();
    assert!(queue.get().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_gives_up_waiting_takes_nothing_with_it() {
    let queue = queue();
    let impatient = queue.clone();
    let task = tokio::spawn(async move { impatient.get().await.map(|i| *i.key()) });
    tokio::task::yield_now().await;
    queue.add(1);
    task.abort();
    drop(task.await);
    assert_eq!(queue.get().now_or_never().flatten().map(|i| *i.key()), Some(1));
}
