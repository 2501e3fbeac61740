//! Tests of the task controller, on an API in memory.

mod convergence;
mod model;
mod retries;
mod scenarios;
