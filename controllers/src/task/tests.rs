//! Tests of the task controller, on an API in memory.

mod convergence;
mod deadlines;
mod model;
mod retries;
mod returns;
mod scenarios;
