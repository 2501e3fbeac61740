//! What is shown while somebody waits: one live line on a terminal, a line a change elsewhere. Always on standard error.

use std::time::Duration;

use tokio::time::Instant;

use crate::io::Stderr;
use crate::output::text::{self, Style};

/// The progress of one thing.
#[derive(Debug)]
pub struct Progress {
    stderr: Option<Stderr>,
    terminal: bool,
    color: bool,
    width: usize,
    start: Instant,
    line: String,
    shown: bool,
}

impl std::fmt::Debug for Stderr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stderr")
    }
}

impl Progress {
    /// Progress on `stderr`; `width` is that of the terminal.
    #[must_use]
    pub fn new(stderr: Stderr, terminal: bool, color: bool, width: Option<usize>) -> Self {
        Self {
            stderr: Some(stderr),
            terminal,
            color,
            width: width.unwrap_or(80),
            start: Instant::now(),
            line: String::new(),
            shown: false,
        }
    }

    /// Whether the elapsed time should be brought up to date from time to time.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.terminal
    }

    /// Says where things stand, if that is new.
    pub fn say(&mut self, line: &str) {
        let line = text::line(line);
        if line == self.line {
            return;
        }
        self.line = line;
        if self.terminal {
            self.tick();
        } else if let Some(stderr) = &self.stderr {
            stderr.line(&self.line);
        }
    }

    /// Shows the elapsed time.
    pub fn tick(&mut self) {
        let Some(stderr) = self
            .stderr
            .as_ref()
            .filter(|_| self.terminal && !self.line.is_empty())
        else {
            return;
        };
        let words = format!("{} {}", elapsed(self.start.elapsed()), self.line);
        // One column is left free: some terminals wrap when the last one is written.
        let fit = text::fit(&words, self.width.saturating_sub(1));
        stderr.write(&format!(
            "\r\u{1b}[2K{}",
            text::paint(&fit, Style::Cyan, self.color)
        ));
        self.shown = true;
    }

    /// Takes the live line away.
    pub fn clear(&mut self) {
        if let Some(stderr) = self.stderr.as_ref().filter(|_| self.shown) {
            stderr.write("\r\u{1b}[2K");
        }
        self.shown = false;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn run(terminal: bool) -> String {
        let shared = Shared::default();
        let mut progress = Progress::new(Stderr::new(Box::new(shared.clone())), terminal, false, Some(20));
        progress.say("Queued");
        progress.say("Queued");
        progress.say("Running on a device with a long name\u{1b}[2J");
        drop(progress);
        let bytes = shared.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn elsewhere_than_on_a_terminal_each_change_is_a_plain_line() {
        assert_eq!(
            run(false),
            "Queued\nRunning on a device with a long name\\x1b[2J\n"
        );
    }

    #[test]
    fn on_a_terminal_there_is_one_line_which_fits_and_goes_away() {
        let text = run(true);
        assert!(!text.contains('\n') && text.ends_with("\r\u{1b}[2K"), "{text:?}");
        for line in text.split("\r\u{1b}[2K") {
            assert!(text::width(line) < 20, "{line:?}");
        }
    }

    #[test]
    fn times_are_short() {
        assert_eq!(elapsed(Duration::from_secs(59)), "59s");
        assert_eq!(elapsed(Duration::from_secs(61)), "1m01s");
        assert_eq!(elapsed(Duration::from_secs(3700)), "1h01m");
    }
}
