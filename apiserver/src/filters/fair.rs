//! Fair seats: no client starves the others, however much it asks.
//!
//! 1. A request takes a seat while its client has fewer than [`SHARE`] times the seats that are free. So the first client
//!    of a flood gets two thirds of them, and some are always left for the next.
//! 2. What gets no seat waits, for a while. A seat that becomes free goes to the client with the fewest.
//! 3. When too many wait, the newest request of the client that waits most often is turned away, not the one that came.
//! 4. What keeps the system going (leases, status, bindings) has seats of its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use super::limits::{Holding, RETRY_AFTER};
use crate::authn::User;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::request::{RequestInfo, Verb};
use crate::respond::Failure;

/// How many times the free seats one client may have.
const SHARE: usize = 2;
/// The same for watches, of which one client may rightly have many.
const LONG_SHARE: usize = 8;
/// Longest wait for a seat.
const PATIENCE: Duration = Duration::from_secs(10);

/// The seats of a server.
pub(super) struct Flow {
    ordinary: Arc<Seats>,
    urgent: Arc<Seats>,
    long: Arc<Seats>,
    metrics: Arc<Metrics>,
}

impl Flow {
    pub(super) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        let most = limits.requests_in_flight;
        let urgent = (most / 4).max(1);
        Self {
            ordinary: Seats::new((most - most / 4).max(1), most, SHARE),
            urgent: Seats::new(urgent, most / 2, SHARE),
            long: Seats::new(limits.long_requests, 0, LONG_SHARE),
            metrics,
        }
    }

    fn of(&self, info: &RequestInfo) -> &Arc<Seats> {
        if info.long {
            &self.long
        } else if is_urgent(info) {
            &self.urgent
        } else {
            &self.ordinary
        }
    }
}

/// What others wait for.
fn is_urgent(info: &RequestInfo) -> bool {
    let Some(target) = &info.target else { return false };
    let lease = target.group == "coordination.k8s.io" && info.verb != Verb::List;
    let part = matches!(
        target.subresource.as_deref(),
        Some("status" | "binding" | "finalize" | "approval")
    );
    lease || (part && !matches!(info.verb, Verb::Get | Verb::List | Verb::Watch))
}

/// Lets a request on when it has a seat, which it holds until its answer is sent.
pub(super) async fn seat(State(flow): State<Arc<Flow>>, request: Request, next: Next) -> Response {
    let info = request.extensions().get::<Arc<RequestInfo>>();
    let user = request.extensions().get::<User>();
    let (Some(info), Some(user)) = (info, user) else {
        // Health, which must always get through.
        return next.run(request).await;
    };
    let name = user.name.clone();
    let Some(seat) = flow.of(info).take(name).await else {
        flow.metrics.dropped_request();
        return Failure::busy(RETRY_AFTER).into_response();
    };
    next.run(request)
        .await
        .map(|body| Body::new(Holding { body, held: seat }))
}

struct Seats {
    most: usize,
    /// Most that wait.
    queue: usize,
    share: usize,
    state: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    taken: usize,
    waiting: usize,
    clients: HashMap<String, Client>,
}

#[derive(Default)]
struct Client {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Seat>>,
}

/// Given back when it is dropped.
struct Seat {
    seats: Arc<Seats>,
    client: String,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let next = self.seats.lock().give_back(&self.seats, &self.client);
        // Outside of the lock: what cannot be handed over comes back here.
        drop(next);
    }
}

impl Seats {
    fn new(most: usize, queue: usize, share: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            queue,
            share,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat, at once or after a wait; none when there are too many requests.
    async fn take(self: &Arc<Self>, client: String) -> Option<Seat> {
        let wait = {
            let mut table = self.lock();
            if table.may_sit(self, &client) {
                table.taken += 1;
                table.clients.entry(client.clone()).or_default().taken += 1;
                return Some(Seat {
                    seats: Arc::clone(self),
                    client,
                });
            }
            table.wait(self, client)?
        };
        // Dropping the receiver is enough: whoever would hand it a seat notices.
        tokio::time::timeout(PATIENCE, wait).await.ok()?.ok()
    }
}

impl Table {
    fn may_sit(&self, seats: &Seats, client: &str) -> bool {
        let free = seats.most - self.taken;
        let taken = self.clients.get(client).map_or(0, |client| client.taken);
        free > 0 && (taken == 0 || taken < seats.share * free)
    }

    /// A place among those that wait. Somebody else, who waits more often, may lose one for it.
    fn wait(&mut self, seats: &Seats, client: String) -> Option<oneshot::Receiver<Seat>> {
        self.forget_gone();
        if self.waiting >= seats.queue {
            let own = self.clients.get(&client).map_or(0, |client| client.waiting.len());
            let most = self
                .clients
                .values_mut()
                .max_by_key(|other| other.waiting.len())?;
            if most.waiting.len() <= own + 1 {
                return None;
            }
            most.waiting.pop_back();
            self.waiting -= 1;
        }
        let (hand, wait) = oneshot::channel();
        self.clients.entry(client).or_default().waiting.push_back(hand);
        self.waiting += 1;
        Some(wait)
    }

    /// Those that wait no longer must not take the places of others.
    fn forget_gone(&mut self) {
        for client in self.clients.values_mut() {
            client.waiting.retain(|hand| !hand.is_closed());
        }
        self.waiting = self.clients.values().map(|client| client.waiting.len()).sum();
        self.clients
            .retain(|_, client| client.taken > 0 || !client.waiting.is_empty());
    }

    /// Hands the seat to whoever has the fewest. What comes back could not be handed over.
    fn give_back(&mut self, seats: &Arc<Seats>, client: &str) -> Option<Seat> {
        self.taken -= 1;
        if let Some(entry) = self.clients.get_mut(client) {
            entry.taken -= 1;
            if entry.taken == 0 && entry.waiting.is_empty() {
                self.clients.remove(client);
            }
        }
        while self.waiting > 0 {
            let free = seats.most - self.taken;
            let next = self
                .clients
                .iter_mut()
                .filter(|(_, client)| !client.waiting.is_empty())
                .min_by_key(|(_, client)| client.taken)?;
            if next.1.taken > 0 && next.1.taken >= seats.share * free {
                return None;
            }
            let name = next.0.clone();
            let hand = next.1.waiting.pop_front()?;
            self.waiting -= 1;
            if hand.is_closed() {
                continue;
            }
            next.1.taken += 1;
            self.taken += 1;
            let seat = Seat {
                seats: Arc::clone(seats),
                client: name,
            };
            return hand.send(seat).err();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn fill(seats: &Arc<Seats>, client: &str, most: usize) -> Vec<Seat> {
        let mut taken = Vec::new();
        for _ in 0..most {
            let Ok(seat) = tokio::time::timeout(Duration::ZERO, seats.take(client.to_owned())).await else {
                break;
            };
            taken.extend(seat);
        }
        taken
    }

    #[tokio::test]
    async fn a_flood_leaves_seats_for_the_next_client() {
        let seats = Seats::new(30, 10, SHARE);
        let flood = fill(&seats, "flood", 100).await;
        assert_eq!(flood.len(), 20);
        let other = fill(&seats, "other", 100).await;
        assert!((5..=8).contains(&other.len()), "{}", other.len());
        let third = fill(&seats, "third", 1).await;
        assert_eq!(third.len(), 1);
        drop((flood, other, third));
        let table = seats.lock();
        assert_eq!(
            (
                table.taken,
                table.clients.values().map(|c| c.taken).sum::<usize>()
            ),
            (0, 0)
        );
    }

    #[tokio::test]
    async fn a_free_seat_goes_to_whoever_has_the_fewest() {
        let seats = Seats::new(1, 8, SHARE);
        let held = seats.take("flood".to_owned()).await.unwrap();
        let spawn = |name: &str| {
            let (seats, name) = (Arc::clone(&seats), name.to_owned());
            tokio::spawn(async move { seats.take(name).await })
        };
        let mut flood: Vec<_> = (0..3).map(|_| spawn("flood")).collect();
        while seats.lock().waiting < 3 {
            tokio::task::yield_now().await;
        }
        let quiet = spawn("quiet");
        while seats.lock().waiting < 4 {
            tokio::task::yield_now().await;
        }
        // The flood has a seat as long as it holds it; then all have none, and each gets one in turn.
        drop(held);
        let first = flood.remove(0);
        let mut order = Vec::new();
        tokio::select! {
            seat = first => { order.push("flood"); drop(seat); }
            seat = quiet => { order.push("quiet"); drop(seat); }
        }
        for waiting in flood {
            assert!(waiting.await.unwrap().is_some());
        }
        assert_eq!(order.len(), 1);
    }

    #[tokio::test]
    async fn when_too_many_wait_the_flood_loses_a_place_and_not_who_comes() {
        let seats = Seats::new(1, 4, SHARE);
        let held = seats.take("flood".to_owned()).await.unwrap();
        let spawn = |name: &str| {
            let (seats, name) = (Arc::clone(&seats), name.to_owned());
            tokio::spawn(async move { seats.take(name).await.is_some() })
        };
        let flood: Vec<_> = (0..4).map(|_| spawn("flood")).collect();
        while seats.lock().waiting < 4 {
            tokio::task::yield_now().await;
        }
        assert!(
            seats.take("flood".to_owned()).await.is_none(),
            "its own queue is the longest"
        );
        let quiet = spawn("quiet");
        let mut refused = 0;
        while !seats.lock().clients.contains_key("quiet") {
            tokio::task::yield_now().await;
        }
        drop(held);
        assert!(quiet.await.unwrap());
        for waiting in flood {
            refused += usize::from(!waiting.await.unwrap());
        }
        assert_eq!(refused, 1);
    }

    #[tokio::test]
    async fn who_waits_no_longer_takes_nobodys_seat() {
        let seats = Seats::new(1, 4, SHARE);
        let held = seats.take("a".to_owned()).await.unwrap();
        for _ in 0..4 {
            let gone = tokio::time::timeout(Duration::ZERO, seats.take("b".to_owned())).await;
            assert!(gone.is_err());
        }
        let (waiting, ()) = tokio::join!(seats.take("c".to_owned()), async { drop(held) });
        assert!(waiting.is_some());
        drop(waiting);
        assert_eq!(seats.lock().taken, 0);
    }

    #[test]
    fn what_keeps_the_system_going_is_urgent() {
        use http::Method;
        let of =
            |method: Method, uri: &str| is_urgent(&RequestInfo::new(&method, &uri.parse().unwrap(), false));
        let leases = "/apis/coordination.k8s.io/v1/namespaces/panda-system/leases";
        assert!(of(Method::PUT, &format!("{leases}/x")) && of(Method::GET, &format!("{leases}/x")));
        let runs = "/apis/panda.dev/v1alpha1/namespaces/a/runs/r";
        assert!(of(Method::PUT, &format!("{runs}/status")) && of(Method::POST, &format!("{runs}/binding")));
        assert!(!of(Method::GET, &format!("{runs}/status")) && !of(Method::PUT, runs));
        assert!(!of(Method::GET, leases) && !of(Method::GET, "/version"));
    }
}
