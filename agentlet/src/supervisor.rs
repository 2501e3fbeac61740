//! The supervisor: one small process a run, which outlives the agentlet.
//!
//! It owns the run folder's lock, starts the agent exactly once, watches it, keeps its output, ends it whole, and
//! writes down what happened. The agentlet only follows the journal and says over a socket what is wanted.
//!
//! | module | idea |
//! |---|---|
//! | `spec` | what is to be run and how it is watched |
//! | `folder` | the files of a run |
//! | `journal` | what happened, in order |
//! | `starts` | every start and end on this device, for an outside checker |
//! | `log` | output within a bound, with stable offsets |
//! | `grant` | how long the run may go on without the control plane |
//! | `watch` | when an agent counts as silent, stalled or too slow |
//! | `repeat` | when an agent goes round in circles |
//! | `control` | commands and answers on the socket |
//! | `proxy` | the way to the API, for a run that has a token |
//! | `secrets` | values on their way to the agent, never by a disk |
//! | `job` | the supervisor's main loop |
//! | `handle` | the agentlet's side: spawn, adopt, command, follow |

mod control;
mod folder;
mod grant;
mod handle;
mod job;
mod journal;
pub mod log;
mod proxy;
mod repeat;
mod secrets;
mod spec;
mod starts;
mod watch;

pub use control::{Command, Progress, Status};
pub use folder::{Error as FolderError, RunFolder};
pub use grant::{Grant, boot_id, boottime};
pub use handle::{Adopted, Error as HandleError, Handle};
pub use job::main;
pub use journal::{Entry, Outcome, Reader as JournalReader, Record};
pub use proxy::ApiAccess;
pub(crate) use secrets::folder_for;
pub use secrets::{Handover, Part, SecretFile, SecretId, SecretUse};
pub use spec::{DisconnectRule, JobFence, JobSpec, Limits, Program, grant_grace};
pub use starts::{StartEvent, StartLine, StartsJournal};
