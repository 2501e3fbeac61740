//! Apply: files are read and checked as a whole, then written one by one.
//!
//! 1. Every file is read ([`input`]), every document decoded; what is wrong is said with its line.
//! 2. The server is asked what it would do with every document (a dry run, strict about unknown fields); its answers
//!    about fields are brought back to the lines of the file ([`faults`]).
//! 3. Only when nothing is wrong at all, or `--continue-on-error` was given, the objects are written: namespaces first,
//!    the rest in their order.
//!
//! What a manifest does not mention any more is removed with the help of the annotation in which kubectl, too, keeps what
//! was applied last ([`merge`]); so both may be used on the same objects.

//!
//! With `--server-side` the server merges and remembers who wants which field. With `--prune`, what an earlier version
//! held and this one does not is removed ([`set`]).

pub mod faults;
pub mod input;
pub mod kustomize;
pub mod merge;
pub mod plan;
pub mod set;
pub mod source;
pub(crate) mod wrong;

pub use plan::{Change, Item, Mode};
