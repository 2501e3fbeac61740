//! Several machines: real processes, cut links, power failures, clocks that are wrong.

#[path = "fleet/cases.rs"]
mod cases;
#[path = "fleet/clocks.rs"]
mod clocks;
#[path = "fleet/disks.rs"]
mod disks;
#[path = "fleet/identity.rs"]
mod identity;
#[path = "fleet/kills.rs"]
mod kills;
#[path = "fleet/loss.rs"]
mod loss;
#[path = "fleet/schedules.rs"]
mod schedules;
#[path = "fleet/support.rs"]
mod support;
