//! Strangers, false devices and floods before a server that is a process of its own: each is refused, costs a bounded amount
//! of memory, and leaves the server at work.

#[path = "hostile/devices.rs"]
mod devices;
#[path = "hostile/floods.rs"]
mod floods;
#[path = "hostile/strangers.rs"]
mod strangers;
#[path = "hostile/support.rs"]
mod support;
