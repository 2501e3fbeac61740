//! Random schedules: a few tasks, several faults, all of it from one number.

use std::fmt;
use std::time::Duration;

use crate::dice::Dice;
use crate::faults::{Fault, Part};
use crate::fleet::Plan;

pub mod play;
pub mod work;

pub use work::Work;

/// What one number means.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The number.
    pub seed: u64,
    /// How long a grant holds.
    pub ttl: Duration,
    /// Tasks, and after what time each is made.
    pub works: Vec<(Duration, Work)>,
    /// Faults, and after what time each begins.
    pub faults: Vec<(Duration, Fault)>,
}

impl Schedule {
    /// The schedule of a number. As root there are more faults to choose from.
    #[must_use]
    pub fn random(seed: u64, root: bool) -> Self {
        let mut dice = Dice::new(seed);
        let ms = Duration::from_millis;
        let ttl = Duration::from_secs(3 + dice.below(2));
        let works = (0..4 + dice.below(3))
            .map(|n| {
                (
                    dice.between(ms(0), ms(2500)),
                    Work::random(&mut dice, usize::try_from(n).unwrap_or(0)),
                )
            })
            .collect();
        let mut faults: Vec<_> = (0..3 + dice.below(3))
            .map(|_| (dice.between(ms(300), ms(6000)), fault(&mut dice, root)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            ttl,
            works,
            faults,
        }
    }

    /// The fleet that it is played on.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let faults = || self.faults.iter().map(|(_, fault)| fault);
        let clocks = faults().filter_map(|fault| match fault {
            Fault::Jump(part, _) => Some(*part),
            _ => None,
        });
        let disks = faults().filter_map(|fault| match fault {
            Fault::Fill(part, _) => Some(*part),
            _ => None,
        });
        Plan {
            ttl: self.ttl,
            clocks: clocks.collect(),
            disks: disks.collect(),
            seed: self.seed,
            ..Plan::default()
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, grants of {:?}", self.seed, self.ttl)?;
        for (at, work) in &self.works {
            writeln!(f, "  {:>5}ms  {work}", at.as_millis())?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "  {:>5}ms  {fault}", at.as_millis())?;
        }
        Ok(())
    }
}

fn fault(dice: &mut Dice, root: bool) -> Fault {
    let ms = Duration::from_millis;
    let n = usize::try_from(dice.below(2)).unwrap_or(0);
    let part = *dice.pick(&[
        Part::Apiserver,
        Part::Controllers,
        Part::Agentlet(n),
        Part::Agentlet(n),
    ]);
    let short = dice.between(ms(300), ms(3000));
    let long = dice.between(ms(500), ms(9000));
    match dice.below(if root { 11 } else { 9 }) {
        0 | 1 => Fault::Kill(part),
        2 => Fault::KillSupervisors(n),
        3 => Fault::Stop(part, long),
        4 | 5 => Fault::Cut(n, long),
        6 => Fault::Delay(n, dice.between(ms(100), ms(1200)), long),
        7 => Fault::Loss(n, 5 + u8::try_from(dice.below(20)).unwrap_or(0), long),
        8 => Fault::Jump(part, *dice.pick(&[3600, -3600])),
        9 => Fault::Crash(n, short),
        _ => {
            let full = *dice.pick(&[Part::Apiserver, Part::Agentlet(n)]);
            Fault::Fill(full, short)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_one_schedule_and_many_mean_every_fault() {
        assert_eq!(
            Schedule::random(7, true).to_string(),
            Schedule::random(7, true).to_string()
        );
        let mut names: Vec<String> = (0..200)
            .flat_map(|seed| Schedule::random(seed, true).faults)
            .filter_map(|(_, fault)| fault.to_string().split(' ').next().map(str::to_owned))
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(
            names,
            ["crash", "cut", "delay", "fill", "jump", "kill", "loss", "stop"]
        );
    }
}
