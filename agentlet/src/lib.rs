//! The device daemon: takes the runs that are bound to its device, works on them, and reports what came out.
//!
//! It may depend on `panda-api`, `panda-client`, `panda-rpc` and `panda-sandbox`, never on a store, the server or the
//! controllers.
//!
//! | module | holds |
//! |---|---|
//! | [`outbox`] | reports, durable until the server has them |

pub mod outbox;
