//! Command line of Panda.
fn main() {}
