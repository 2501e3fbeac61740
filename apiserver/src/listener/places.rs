//! Who may have a connection: clients that are known, by a certificate or the token of an account, and all others are
//! counted apart, so that nobody unknown can keep the known ones out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use crate::config::Limits;

/// Places for connections.
pub(super) struct Places {
    most: usize,
    most_anonymous: usize,
    most_per_address: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: HashMap<IpAddr, usize>,
    /// Connections whose clients are known.
    known: HashSet<u64>,
    /// The others, oldest first; also those that are still in their handshake.
    anonymous: BTreeMap<u64, Anonymous>,
    next: u64,
}

struct Anonymous {
    activity: Arc<Activity>,
    cut: CancellationToken,
}

/// One connection's place.
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    number: u64,
    /// Cancelled when the place goes to somebody else.
    pub(super) cut: CancellationToken,
    pub(super) activity: Arc<Activity>,
}

impl Places {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            most: limits.connections,
            most_anonymous: limits.most_anonymous(),
            most_per_address: limits.connections_per_peer,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that has said nothing yet. When there is none, the oldest connection without a
    /// certificate that is not being answered loses its own.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut state = self.state();
        let of_address = state.addresses.get(&address).copied().unwrap_or_default();
        // Everything on this machine shares one address.
        if of_address >= self.most_per_address && !address.is_loopback() {
            return None;
        }
        let anonymous = state.anonymous.len();
        if anonymous >= self.most_anonymous || state.known.len() + anonymous >= self.most {
            let idle = state
                .anonymous
                .iter()
                .find(|(_, other)| !other.activity.is_busy());
            let number = *idle?.0;
            if let Some(other) = state.anonymous.remove(&number) {
                other.cut.cancel();
            }
        }
        *state.addresses.entry(address).or_insert(0) += 1;
        let number = state.next;
        state.next += 1;
        let (activity, cut) = (Arc::new(Activity::new()), CancellationToken::new());
        let anonymous = Anonymous {
            activity: Arc::clone(&activity),
            cut: cut.clone(),
        };
        state.anonymous.insert(number, anonymous);
        drop(state);
        Some(Place {
            places: Arc::clone(self),
            address,
            number,
            cut,
            activity,
        })
    }
}

/// Vouches for the client of one connection, from a request of it.
#[derive(Clone)]
pub(crate) struct Vouch {
    places: Arc<Places>,
    number: u64,
}

impl Place {
    /// For who authenticates its requests.
    pub(super) fn vouch(&self) -> Vouch {
        Vouch {
            places: Arc::clone(&self.places),
            number: self.number,
        }
    }
}

impl Vouch {
    /// The client has shown who it is: from now on its place is that of a known one, as long as the connection lasts.
    pub(crate) fn is_known(&self) {
        let mut state = self.places.state();
        // One that has just lost its place is cut anyway, and one that has ended has none.
        if state.anonymous.remove(&self.number).is_some() {
            state.known.insert(self.number);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if !state.known.remove(&self.number) {
            state.anonymous.remove(&self.number);
        }
        if let Some(count) = state.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                state.addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn places() -> Arc<Places> {
        Places::new(&Limits {
            connections: 8,
            anonymous_connections: 3,
            connections_per_peer: 2,
            ..Limits::default()
        })
    }

    #[test]
    fn the_oldest_idle_anonymous_connection_makes_room_and_busy_ones_stay() {
        let places = places();
        let busy = places.enter(HERE).unwrap();
        let answer = busy.activity.begin();
        let idle = places.enter(HERE).unwrap();
        let young = places.enter(HERE).unwrap();
        let fourth = places.enter(HERE).unwrap();
        assert!(idle.cut.is_cancelled());
        assert!(!busy.cut.is_cancelled() && !young.cut.is_cancelled() && !fourth.cut.is_cancelled());
        let held = [young.activity.begin(), fourth.activity.begin()];
        assert!(places.enter(HERE).is_none(), "all three are being answered");
        drop(answer);
        let fifth = places.enter(HERE).unwrap();
        assert!(busy.cut.is_cancelled() && !fifth.cut.is_cancelled());
        drop((idle, busy, young, fourth, fifth, held));
        let state = places.state();
        assert!(state.anonymous.is_empty() && state.addresses.is_empty());
    }

    #[test]
    fn known_clients_have_places_that_no_one_else_can_take() {
        let places = places();
        let mut known = Vec::new();
        for _ in 0..8 {
            // Others try all the time.
            let others: Vec<_> = (0..5).filter_map(|_| places.enter(HERE)).collect();
            let place = places.enter(HERE).unwrap();
            place.vouch().is_known();
            assert!(!place.cut.is_cancelled());
            known.push(place);
            drop(others);
        }
        assert!(places.enter(HERE).is_none(), "eight are all there are");
        known.pop();
        assert!(places.enter(HERE).is_some());
        drop(known);
        assert!(places.state().known.is_empty());
    }

    #[test]
    fn vouching_for_a_connection_that_has_ended_or_lost_its_place_takes_none() {
        let places = places();
        let ended = places.enter(HERE).unwrap();
        let late = ended.vouch();
        drop(ended);
        late.is_known();
        let lost = places.enter(HERE).unwrap();
        let others: Vec<_> = (0..3).filter_map(|_| places.enter(HERE)).collect();
        assert!(lost.cut.is_cancelled());
        lost.vouch().is_known();
        assert!(places.state().known.is_empty());
        drop((lost, others));
        assert!(places.state().anonymous.is_empty());
    }

    #[test]
    fn one_address_has_its_bound() {
        let places = places();
        let one = places.enter(THERE).unwrap();
        let _two = places.enter(THERE).unwrap();
        assert!(places.enter(THERE).is_none());
        drop(one);
        assert!(places.enter(THERE).is_some());
    }
}
