//! Devices that are processes of their own: how they join, which server they speak to, who they are, and who starts them.

#[path = "join/endpoints.rs"]
mod endpoints;
#[path = "join/identity.rs"]
mod identity;
#[path = "join/manifests.rs"]
mod manifests;
#[path = "join/service.rs"]
mod service;
#[path = "join/support.rs"]
mod support;
