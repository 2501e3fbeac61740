//! One run's life on the device.

pub(crate) mod mail;
