//! The clock that grants are counted on, and the identity of this boot of the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started, suspension included, and which start it was.
///
/// A grant's deadline is meaningless under another boot id.
pub trait Boot: Send + Sync + std::fmt::Debug + 'static {
    /// `CLOCK_BOOTTIME`.
    fn boottime(&self) -> Duration;
    /// Identity of this boot.
    fn boot_id(&self) -> String;
}

/// The machine's own.
#[derive(Clone, Debug)]
pub struct SystemBoot {
    boot_id: String,
}

impl SystemBoot {
    /// Reads the boot id of the running kernel.
    pub fn read() -> std::io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            boot_id: text.trim().to_owned(),
        })
    }
}

impl Boot for SystemBoot {
    fn boottime(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn boot_id(&self) -> String {
        self.boot_id.clone()
    }
}
