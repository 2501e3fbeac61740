//! The network between a device and the server, as a proxy on loopback that can be cut, slow or lossy.
//!
//! It works on the bytes of TCP connections, not on packets: kernels without `netem` can make no bad weather of their
//! own. What a connection above it sees is the same: bytes come late, or not until the link is back, and always in order.
//! A lost packet is a wait for its retransmission, twice as long each time it is lost again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::dice::Dice;

/// The shortest time after which TCP sends a packet again (Linux).
const RETRANSMIT: Duration = Duration::from_millis(200);
/// About one packet.
const PACKET: usize = 1400;

/// What the link is like at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Nothing gets through.
    pub cut: bool,
    /// How long a packet travels, each way.
    pub delay: Duration,
    /// How many packets of a hundred are lost.
    pub loss_percent: u8,
}

/// A link; it ends with all its connections when dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    _stop: DropGuard,
}

impl Link {
    /// A link to `server`, from a free port on loopback.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn to(server: SocketAddr, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (weather, seen) = watch::channel(Weather::default());
        let stop = CancellationToken::new();
        let accepting = Accepting {
            server,
            weather: seen,
            dice: Arc::new(Mutex::new(Dice::new(seed))),
        };
        let stopped = stop.clone();
        tokio::spawn(async move { accepting.run(listener, stopped).await });
        Ok(Self {
            address,
            weather,
            _stop: stop.drop_guard(),
        })
    }

    /// Where to connect.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather, for bytes from now on (a cut also holds those on their way).
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

struct Accepting {
    server: SocketAddr,
    weather: watch::Receiver<Weather>,
    dice: Arc<Mutex<Dice>>,
}

impl Accepting {
    async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let connections = TaskTracker::new();
        while let Some(Ok((near, _))) = stop.run_until_cancelled(listener.accept()).await {
            let (server, weather, dice) = (self.server, self.weather.clone(), Arc::clone(&self.dice));
            let stop = stop.clone();
            connections.spawn(async move {
                let carried = carry(near, server, weather, dice);
                stop.run_until_cancelled(carried).await;
            });
        }
        connections.close();
        connections.wait().await;
    }
}

async fn carry(
    near: TcpStream,
    server: SocketAddr,
    mut weather: watch::Receiver<Weather>,
    dice: Arc<Mutex<Dice>>,
) {
    // A connection that is made over a cut link waits, as one does whose first packet is lost.
    if weather.wait_for(|weather| !weather.cut).await.is_err() {
        return;
    }
    let Ok(far) = TcpStream::connect(server).await else {
        return;
    };
    let _: Result<(), _> = near.set_nodelay(true).and(far.set_nodelay(true));
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    // An end of one direction without error is passed on and leaves the other open.
    let _: Result<_, _> = tokio::try_join!(
        one_way(near_read, far_write, weather.clone(), &dice),
        one_way(far_read, near_write, weather.clone(), &dice),
    );
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    weather: watch::Receiver<Weather>,
    dice: &Mutex<Dice>,
) -> std::io::Result<()> {
    let (on_their_way, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(256);
    let seen = weather.clone();
    let sending = async move {
        let mut last = Instant::now();
        loop {
            let mut packet = vec![0; PACKET];
            let n = from.read(&mut packet).await?;
            if n == 0 {
                return Ok(());
            }
            packet.truncate(n);
            let weather = *seen.borrow();
            let travel = weather.delay + retransmissions(weather.loss_percent, dice);
            last = last.max(Instant::now() + travel);
            if on_their_way.send((last, packet)).await.is_err() {
                return Ok(());
            }
        }
    };
    let receiving = async move {
        let mut weather = weather;
        while let Some((due, packet)) = arriving.recv().await {
            tokio::time::sleep_until(due).await;
            if weather.wait_for(|weather| !weather.cut).await.is_err() {
                return Ok(());
            }
            to.write_all(&packet).await?;
        }
        to.shutdown().await
    };
    let ended: std::io::Result<_> = tokio::try_join!(sending, receiving);
    ended.map(|_| ())
}

fn retransmissions(percent: u8, dice: &Mutex<Dice>) -> Duration {
    let mut dice = dice.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut waited, mut next) = (Duration::ZERO, RETRANSMIT);
    while percent > 0 && dice.below(100) < u64::from(percent.min(90)) {
        waited += next;
        next *= 2;
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn bytes_arrive_whole_and_in_order_in_any_weather_and_wait_while_it_is_cut() {
        let link = Link::to(echo().await, 1).await.unwrap();
        let mut stream = TcpStream::connect(link.address()).await.unwrap();
        let sent: Vec<u8> = (0..50_000_u32).map(|n| (n % 251) as u8).collect();
        for weather in [
            Weather::default(),
            Weather {
                delay: Duration::from_millis(30),
                ..Weather::default()
            },
            Weather {
                loss_percent: 20,
                ..Weather::default()
            },
        ] {
            link.set(weather);
            let (mut read, mut write) = stream.split();
            let mut back = vec![0; sent.len()];
            let (wrote, _) = tokio::join!(write.write_all(&sent), read.read_exact(&mut back));
            wrote.unwrap();
            assert_eq!(back, sent, "{weather:?}");
        }

        let cut = Weather {
            cut: true,
            ..Weather::default()
        };
        link.set(cut);
        stream.write_all(b"late").await.unwrap();
        let mut back = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut back)).await;
        assert!(early.is_err(), "nothing gets through");
        link.set(Weather::default());
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"late");
    }
}
