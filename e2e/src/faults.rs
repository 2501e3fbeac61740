//! Everything that is done to a fleet, by name, so that a schedule can be printed and played again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// A process of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The API server.
    Apiserver,
    /// The controllers.
    Controllers,
    /// The agentlet of a device.
    Agentlet(usize),
}

/// What goes wrong. Everything that lasts ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill PART`: kill -9, and started again at once.
    Kill(Part),
    /// `kill supervisors/N`: kill -9 of every supervisor of a device.
    KillSupervisors(usize),
    /// `crash device/N FOR`: kill -9 of everything on a device, which comes back later.
    Crash(usize, Duration),
    /// `stop PART FOR`: frozen by SIGSTOP.
    Stop(Part, Duration),
    /// `cut link/N FOR`: nothing gets through.
    Cut(usize, Duration),
    /// `delay link/N EACH FOR`: every packet takes so long, each way.
    Delay(usize, Duration, Duration),
    /// `loss link/N PERCENT FOR`.
    Loss(usize, u8, Duration),
    /// `jump PART SECONDS`: its wall clock is wrong by so much from now on.
    Jump(Part, i64),
    /// `fill PART FOR`: not a byte is free on its disk.
    Fill(Part, Duration),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apiserver => f.write_str("apiserver"),
            Self::Controllers => f.write_str("controllers"),
            Self::Agentlet(n) => write!(f, "agentlet/{n}"),
        }
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "apiserver" => Self::Apiserver,
            "controllers" => Self::Controllers,
            other => Self::Agentlet(number(other, "agentlet/")?),
        })
    }
}

struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(part) => write!(f, "kill {part}"),
            Self::KillSupervisors(n) => write!(f, "kill supervisors/{n}"),
            Self::Crash(n, time) => write!(f, "crash device/{n} {}", Millis(*time)),
            Self::Stop(part, time) => write!(f, "stop {part} {}", Millis(*time)),
            Self::Cut(n, time) => write!(f, "cut link/{n} {}", Millis(*time)),
            Self::Delay(n, each, time) => write!(f, "delay link/{n} {} {}", Millis(*each), Millis(*time)),
            Self::Loss(n, percent, time) => write!(f, "loss link/{n} {percent}% {}", Millis(*time)),
            Self::Jump(part, seconds) => write!(f, "jump {part} {seconds:+}s"),
            Self::Fill(part, time) => write!(f, "fill {part} {}", Millis(*time)),
        }
    }
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["kill", whom] => match number(whom, "supervisors/") {
                Ok(n) => Self::KillSupervisors(n),
                Err(_) => Self::Kill(whom.parse()?),
            },
            ["crash", whom, time] => Self::Crash(number(whom, "device/")?, millis(time)?),
            ["stop", part, time] => Self::Stop(part.parse()?, millis(time)?),
            ["cut", link, time] => Self::Cut(number(link, "link/")?, millis(time)?),
            ["delay", link, each, time] => Self::Delay(number(link, "link/")?, millis(each)?, millis(time)?),
            ["loss", link, percent, time] => {
                let percent = percent.strip_suffix('%').context("loss is in %")?.parse()?;
                ensure!(percent < 100, "that is a cut");
                Self::Loss(number(link, "link/")?, percent, millis(time)?)
            }
            ["jump", part, seconds] => {
                let seconds = seconds
                    .strip_suffix('s')
                    .context("a jump is in seconds: +3600s")?;
                Self::Jump(part.parse()?, seconds.parse()?)
            }
            ["fill", part, time] => Self::Fill(part.parse()?, millis(time)?),
            _ => bail!("{text:?} is no fault"),
        })
    }
}

fn number(text: &str, prefix: &str) -> anyhow::Result<usize> {
    let digits = text
        .strip_prefix(prefix)
        .with_context(|| format!("{text:?} does not begin with {prefix}"))?;
    Ok(digits.parse()?)
}

fn millis(text: &str) -> anyhow::Result<Duration> {
    let digits = text
        .strip_suffix("ms")
        .with_context(|| format!("{text:?} is not in ms"))?;
    Ok(Duration::from_millis(digits.parse()?))
}

impl Fault {
    /// How long it lasts.
    #[must_use]
    pub const fn lasts(&self) -> Duration {
        match self {
            Self::Crash(_, time)
            | Self::Stop(_, time)
            | Self::Cut(_, time)
            | Self::Delay(_, _, time)
            | Self::Loss(_, _, time)
            | Self::Fill(_, time) => *time,
            Self::Kill(_) | Self::KillSupervisors(_) | Self::Jump(..) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_read_back_as_it_was_printed() {
        let s = Duration::from_secs;
        let faults = [
            Fault::Kill(Part::Agentlet(1)),
            Fault::Kill(Part::Apiserver),
            Fault::KillSupervisors(0),
            Fault::Crash(1, s(2)),
            Fault::Stop(Part::Controllers, s(3)),
            Fault::Cut(0, Duration::from_millis(1500)),
            Fault::Delay(1, Duration::from_millis(100), s(4)),
            Fault::Loss(0, 5, s(4)),
            Fault::Jump(Part::Agentlet(0), -3600),
            Fault::Jump(Part::Controllers, 3600),
            Fault::Fill(Part::Agentlet(0), s(2)),
        ];
        for fault in faults {
            assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
        }
        for wrong in [
            "",
            "kill",
            "kill me",
            "stop apiserver",
            "stop apiserver 3s",
            "loss link/0 100% 1ms",
        ] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }
}
