//! What the process stands in: streams, terminal, environment, clock. Only `main` makes the real one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use panda_api::meta::{Clock, IdSource};

use crate::error::{Error, Result};

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR says otherwise.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Environment of the process, gathered by `main`.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Variables that are text.
    pub vars: BTreeMap<String, String>,
    /// Home folder.
    pub home: Option<PathBuf>,
    /// Working folder.
    pub cwd: PathBuf,
    /// Name of this host.
    pub hostname: String,
}

impl Env {
    /// A variable that is set and not empty.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&str> {
        self.vars
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Where the kubeconfig is: `PANDACONFIG`, or `~/.panda/config`.
    #[must_use]
    pub fn config(&self) -> Option<PathBuf> {
        self.var("PANDACONFIG")
            .map(PathBuf::from)
            .or_else(|| Some(self.home.as_ref()?.join(".panda/config")))
    }

    /// Whether to colour a stream. The flag wins over all, `NO_COLOR` over `CLICOLOR_FORCE`, both over the terminal.
    #[must_use]
    pub fn color(&self, choice: ColorChoice, terminal: bool) -> bool {
        match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                if self.var("NO_COLOR").is_some() {
                    return false;
                }
                if self.var("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
                    return true;
                }
                terminal && self.var("TERM") != Some("dumb")
            }
        }
    }
}

/// Which streams are terminals, and how wide they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terminal {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
    /// Columns, when one of them is a terminal.
    pub width: Option<usize>,
}

/// A standard error that several hold.
#[derive(Clone)]
pub struct Stderr(Arc<Mutex<Box<dyn Write + Send>>>);

impl Stderr {
    /// Over any writer.
    #[must_use]
    pub fn new(writer: Box<dyn Write + Send>) -> Self {
        Self(Arc::new(Mutex::new(writer)))
    }

    /// Writes text as it is. A standard error that takes nothing is nobody's to complain to.
    pub fn write(&self, text: &str) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _: std::io::Result<()> = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
    }

    /// Writes a line.
    pub fn line(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }
}

/// Everything that a command may touch outside the server.
pub struct Io {
    /// Data.
    pub stdout: Box<dyn Write + Send>,
    /// The rest.
    pub stderr: Stderr,
    /// Input, for `-f -`.
    pub stdin: Box<dyn Read + Send>,
    /// What is a terminal.
    pub terminal: Terminal,
    /// The environment.
    pub env: Env,
    /// The time, for people.
    pub clock: Arc<dyn Clock>,
    /// Where ids of traces come from.
    pub ids: Arc<dyn IdSource>,
    /// Whether the reader of standard output is gone; asked while there is nothing to write.
    pub stdout_gone: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("terminal", &self.terminal)
            .field("env", &self.env)
            .finish_non_exhaustive()
    }
}

impl Io {
    /// Writes data.
    ///
    /// # Errors
    /// When standard output takes no more.
    pub fn out(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.stdout
            .write_all(bytes.as_ref())
            .map_err(|error| Error::output(&error))
    }

    /// Makes sure that what was written has arrived.
    ///
    /// # Errors
    /// When standard output takes no more.
    pub fn flush(&mut self) -> Result<()> {
        self.stdout.flush().map_err(|error| Error::output(&error))
    }

    /// Ends when the reader of standard output is gone.
    pub async fn until_reader_gone(gone: Arc<dyn Fn() -> bool + Send + Sync>) {
        loop {
            if gone() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env {
            vars: vars
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Env::default()
        }
    }

    #[test]
    fn colour_follows_flag_then_no_color_then_force_then_terminal() {
        use ColorChoice::{Always, Auto, Never};
        for (vars, choice, terminal, wanted) in [
            (&[][..], Auto, true, true),
            (&[], Auto, false, false),
            (&[("NO_COLOR", "1")], Auto, true, false),
            (&[("NO_COLOR", "")], Auto, true, true),
            (&[("NO_COLOR", "1")], Always, false, true),
            (&[("CLICOLOR_FORCE", "1")], Auto, false, true),
            (&[("CLICOLOR_FORCE", "0")], Auto, false, false),
            (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], Auto, true, false),
            (&[("TERM", "dumb")], Auto, true, false),
            (&[("CLICOLOR_FORCE", "1")], Never, true, false),
        ] {
            assert_eq!(
                env(vars).color(choice, terminal),
                wanted,
                "{vars:?} {choice:?} {terminal}"
            );
        }
    }

    #[test]
    fn the_kubeconfig_is_where_the_variable_says_or_in_the_home_folder() {
        assert_eq!(env(&[("PANDACONFIG", "/x/c")]).config(), Some("/x/c".into()));
        let home = Env {
            home: Some("/home/me".into()),
            ..Env::default()
        };
        assert_eq!(home.config(), Some("/home/me/.panda/config".into()));
        assert_eq!(Env::default().config(), None);
    }
}
