//! What the history of all objects says: phases, attempts, epochs, acceptance, usage.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::recorder::Change;

/// A rule that was broken, and by what.
pub type Violation = String;

const RUN_ENDS: &[&str] = &["Succeeded", "Failed", "Lost", "Cancelled"];
const TASK_ENDS: &[&str] = &["Succeeded", "Failed", "Cancelled"];
const COUNTED: &[&str] = &["inputTokens", "outputTokens", "cachedTokens", "turns"];

/// Holds the whole history against every rule.
#[must_use]
pub fn check(history: &[Change]) -> Vec<Violation> {
    let mut book = Book::default();
    for change in history {
        match change.resource {
            "tasks" => book.task(change),
            "runs" => book.run(change),
            "leases" => book.lease(change),
            _ => {}
        }
    }
    book.end();
    book.violations
}

#[derive(Default)]
struct Book {
    violations: Vec<Violation>,
    tasks: BTreeMap<String, Value>,
    runs: BTreeMap<String, Value>,
    /// By namespace and name, as a Run's Lease is the Run's namesake.
    leases: BTreeMap<String, Value>,
    /// Uids of what exists no more.
    gone: BTreeSet<String>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn uid(object: &Value) -> String {
    text(object, "/metadata/uid").to_owned()
}

fn place(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name")
    )
}

fn phase(object: &Value) -> &str {
    text(object, "/status/phase")
}

/// Whether it is an attempt, not a reviewer or judge beside one.
fn is_attempt(run: &Value) -> bool {
    matches!(text(run, "/spec/role"), "" | "Worker")
}

/// What a run used in all; of one that was lost, the device may have said so late.
fn used(run: &Value, counted: &str) -> i64 {
    let known = number(run, &format!("/status/usage/{counted}"));
    known.max(number(run, &format!("/status/lateResult/usage/{counted}")))
}

impl Book {
    fn broken(&mut self, change: &Change, what: &str) {
        let (resource, place) = (change.resource, place(&change.object));
        self.violations.push(format!(
            "{resource} {place} at revision {}: {what}",
            change.revision
        ));
    }

    fn task(&mut self, change: &Change) {
        let new = &change.object;
        if change.kind == "DELETED" {
            self.gone.insert(uid(new));
            return;
        }
        if let Some(old) = self.tasks.insert(uid(new), new.clone()) {
            let same_rerun = number(&old, "/spec/rerun") == number(new, "/spec/rerun");
            if same_rerun && TASK_ENDS.contains(&phase(&old)) && phase(&old) != phase(new) {
                self.broken(change, &format!("{} became {}", phase(&old), phase(new)));
            }
            let accepted = (
                text(&old, "/status/acceptedRun"),
                text(new, "/status/acceptedRun"),
            );
            if same_rerun && !accepted.0.is_empty() && accepted.0 != accepted.1 {
                self.broken(change, &format!("accepted {} after {}", accepted.1, accepted.0));
            }
            let attempts = (number(&old, "/status/attempts"), number(new, "/status/attempts"));
            if same_rerun && attempts.1 < attempts.0 {
                self.broken(
                    change,
                    &format!("attempts went from {} to {}", attempts.0, attempts.1),
                );
            }
            for counted in COUNTED {
                let path = format!("/status/usage/{counted}");
                let (was, is) = (number(&old, &path), number(new, &path));
                if is < was {
                    self.broken(change, &format!("{counted} went from {was} to {is}"));
                }
            }
        }
        let accepted = text(new, "/status/acceptedRun").to_owned();
        if !accepted.is_empty() {
            let (owner, namespace) = (uid(new), text(new, "/metadata/namespace"));
            let run = self.runs.values().find(|run| {
                text(run, "/metadata/name") == accepted
                    && text(run, "/metadata/namespace") == namespace
                    && text(run, "/spec/taskRef/uid") == owner
            });
            let what = match run {
                None => Some("a run that is not its own".to_owned()),
                // Checked and waiting for publication, ended well, or late.
                Some(run) => {
                    let late = text(run, "/status/lateResult/phase");
                    let good = matches!(phase(run), "Verifying" | "Publishing" | "Succeeded")
                        || (phase(run) == "Lost" && !late.is_empty());
                    (!good).then(|| format!("a run that is {}", phase(run)))
                }
            };
            if let Some(what) = what {
                self.broken(change, &format!("accepted {accepted}, {what}"));
            }
        } else if phase(new) == "Succeeded" {
            self.broken(change, "succeeded without an accepted run");
        }
    }

    fn run(&mut self, change: &Change) {
        let new = &change.object;
        if change.kind == "DELETED" {
            self.gone.insert(uid(new));
            return;
        }
        let task = text(new, "/spec/taskRef/uid").to_owned();
        let Some(old) = self.runs.get(&uid(new)).cloned() else {
            self.new_attempt(change, &task);
            self.runs.insert(uid(new), new.clone());
            return;
        };
        if RUN_ENDS.contains(&phase(&old)) && phase(&old) != phase(new) {
            self.broken(change, &format!("{} became {}", phase(&old), phase(new)));
        }
        for path in ["/spec/deviceName", "/spec/deviceUID"] {
            if !text(&old, path).is_empty() && text(&old, path) != text(new, path) {
                self.broken(change, &format!("{path} changed"));
            }
        }
        let epochs = (number(&old, "/spec/leaseEpoch"), number(new, "/spec/leaseEpoch"));
        if epochs.0 != 0 && epochs.0 != epochs.1 {
            self.broken(change, &format!("epoch {} became {}", epochs.0, epochs.1));
        }
        if number(new, "/status/outboxSeq") < number(&old, "/status/outboxSeq")
            && text(&old, "/spec/deviceUID") == text(new, "/spec/deviceUID")
        {
            self.broken(change, "an older report was taken after a newer one");
        }
        if phase(new) == "Lost" && phase(&old) != "Lost" {
            self.lost(change);
        }
        self.runs.insert(uid(new), new.clone());
    }

    /// A new attempt is the next one, and the only live one.
    fn new_attempt(&mut self, change: &Change, task: &str) {
        let new = &change.object;
        if !is_attempt(new) {
            return;
        }
        let mut problems = Vec::new();
        let others = self
            .runs
            .values()
            .filter(|run| text(run, "/spec/taskRef/uid") == task && is_attempt(run));
        for other in others {
            let name = text(other, "/metadata/name");
            if number(other, "/spec/attempt") >= number(new, "/spec/attempt") {
                problems.push(format!("made after {name}, which is no earlier attempt"));
            }
            if !RUN_ENDS.contains(&phase(other)) && !self.gone.contains(&uid(other)) {
                problems.push(format!("made while {name} is {}", phase(other)));
            }
        }
        for problem in problems {
            self.broken(change, &problem);
        }
    }

    /// Only a run whose Lease was taken away is Lost.
    fn lost(&mut self, change: &Change) {
        let run = &change.object;
        let Some(lease) = self.leases.get(&place(run)) else {
            // It went with the Run's end, in the same transaction.
            return;
        };
        let held = !text(lease, "/spec/holderIdentity").is_empty();
        let taken = number(lease, "/spec/leaseTransitions") > number(run, "/spec/leaseEpoch");
        if held || !taken {
            self.broken(change, &format!("lost while its Lease says {}", lease["spec"]));
        }
    }

    fn lease(&mut self, change: &Change) {
        let new = &change.object;
        if change.kind == "DELETED" {
            self.leases.remove(&place(new));
            return;
        }
        if let Some(old) = self.leases.insert(place(new), new.clone())
            && uid(&old) == uid(new)
        {
            let epochs = (
                number(&old, "/spec/leaseTransitions"),
                number(new, "/spec/leaseTransitions"),
            );
            if epochs.1 < epochs.0 {
                self.broken(change, &format!("epoch {} became {}", epochs.0, epochs.1));
            }
            let holders = (
                text(&old, "/spec/holderIdentity"),
                text(new, "/spec/holderIdentity"),
            );
            if holders.0 != holders.1 && epochs.0 == epochs.1 {
                self.broken(
                    change,
                    &format!("{:?} took it from {:?} under one epoch", holders.1, holders.0),
                );
            }
        }
    }

    /// What must hold once everything is quiet.
    fn end(&mut self) {
        let mut problems = Vec::new();
        for (task_uid, task) in &self.tasks {
            if self.gone.contains(task_uid) {
                continue;
            }
            let name = place(task);
            if !TASK_ENDS.contains(&phase(task)) {
                problems.push(format!("task {name} has not ended: {:?}", phase(task)));
            }
            let runs: Vec<_> = self
                .runs
                .values()
                .filter(|run| text(run, "/spec/taskRef/uid") == task_uid)
                .collect();
            for counted in COUNTED {
                let path = format!("/status/usage/{counted}");
                let sum: i64 = runs.iter().map(|run| used(run, counted)).sum();
                let booked = number(task, &path);
                if sum != booked {
                    problems.push(format!(
                        "task {name} booked {booked} {counted}, its runs used {sum}"
                    ));
                }
            }
        }
        for (run_uid, run) in &self.runs {
            if !self.gone.contains(run_uid) && !RUN_ENDS.contains(&phase(run)) {
                problems.push(format!("run {} is left in {:?}", place(run), phase(run)));
            }
        }
        for place_of in self.leases.keys() {
            let runs: Vec<_> = self.runs.values().filter(|run| place(run) == *place_of).collect();
            if !runs.is_empty() && runs.iter().all(|run| self.gone.contains(&uid(run))) {
                problems.push(format!("the Lease {place_of} is left, and its run is gone"));
            }
        }
        self.violations.append(&mut problems);
    }
}

#[cfg(test)]
#[path = "history/tests.rs"]
mod tests;
