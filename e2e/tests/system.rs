//! Everything together: real processes, real TLS, real git, real clients, a real agent CLI.

#[path = "system/agents.rs"]
mod agents;
#[path = "system/attack.rs"]
mod attack;
#[path = "system/cases.rs"]
mod cases;
#[path = "system/crash.rs"]
mod crash;
#[path = "system/docs.rs"]
mod docs;
#[path = "system/kubectl.rs"]
mod kubectl;
#[path = "system/support.rs"]
mod support;
#[path = "system/tracing.rs"]
mod tracing;
