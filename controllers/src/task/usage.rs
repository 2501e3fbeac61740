//! What attempts cost, counted once.

use std::time::Duration;

use panda_api::{Run, TaskStatus, Usage};

/// How many attempts back the list of booked Runs reaches. One attempt is live at a time and booked before the next
/// one is made, so anything older was booked long ago.
const KEPT: u32 = 16;

/// Whether the Run's end was already taken into account.
pub(super) fn is_booked(status: &TaskStatus, run: &str, attempt: u32) -> bool {
    attempt.saturating_add(KEPT) <= status.attempts || status.booked_runs.iter().any(|name| name == run)
}

/// Takes the Run's usage into account.
pub(super) fn book(status: &mut TaskStatus, run: &Run) {
    add(&mut status.usage, &run.status.usage);
    mark(status, &run.metadata.name);
}

/// Marks a Run as taken into account.
pub(super) fn mark(status: &mut TaskStatus, run: &str) {
    status.booked_runs.push(run.to_owned());
    let spare = status.booked_runs.len().saturating_sub(KEPT as usize);
    status.booked_runs.drain(..spare);
}

fn add(total: &mut Usage, part: &Usage) {
    total.input_tokens = total.input_tokens.saturating_add(part.input_tokens);
    total.output_tokens = total.output_tokens.saturating_add(part.output_tokens);
    total.cached_tokens = total.cached_tokens.saturating_add(part.cached_tokens);
    total.turns = total.turns.saturating_add(part.turns);
    if let Some(time) = &part.wall_clock {
        let sum = total.wall_clock.as_ref().map_or(Duration::ZERO, |t| t.get());
        total.wall_clock = Some(sum.saturating_add(time.get()).into());
    }
    match (&mut total.money, &part.money) {
        (total @ None, Some(part)) => *total = Some(part.clone()),
        (Some(total), Some(part)) if total.currency == part.currency => {
            if let Some(sum) = sum(&total.amount, &part.amount) {
                total.amount = sum;
            }
        }
        // An amount in another currency cannot be added; it stays on its Run.
        _ => {}
    }
}

/// The exact sum of two decimal numbers.
fn sum(a: &str, b: &str) -> Option<String> {
    let scale = [a, b]
        .iter()
        .map(|n| n.split_once('.').map_or(0, |(_, fraction)| fraction.len()))
        .max()?;
    let total = scaled(a, scale)?.checked_add(scaled(b, scale)?)?;
    if scale == 0 {
        return Some(total.to_string());
    }
    let sign = if total < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", total.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    Some(format!("{sign}{whole}.{fraction}"))
}

fn scaled(number: &str, scale: usize) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // i128 holds 38 digits: more than any sum of money, and a bound on what a report can make us do.
    if scale > 18 || whole.len() > 18 || whole.is_empty() {
        return None;
    }
    format!("{whole}{fraction:0<scale$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use panda_api::Money;

    use super::*;

    fn money(amount: &str) -> Money {
        Money {
            amount: amount.into(),
            currency: "USD".into(),
        }
    }

    #[test]
    fn adds_decimals_exactly() {
        assert_eq!(sum("0.10", "0.2").as_deref(), Some("0.30"));
        assert_eq!(sum("1", "2").as_deref(), Some("3"));
        assert_eq!(sum("0.001", "9.999").as_deref(), Some("10.000"));
        assert_eq!(sum("1e3", "1"), None);
        assert_eq!(sum("", "1"), None);
        assert_eq!(sum("9999999999999999999999999", "1"), None);
    }

    #[test]
    fn books_a_run_once_however_long_the_task_goes_on() {
        let mut status = TaskStatus::default();
        for attempt in 1..=100 {
            let name = format!("t-{attempt}");
            status.attempts = attempt;
            assert!(!is_booked(&status, &name, attempt));
            mark(&mut status, &name);
            for earlier in 1..=attempt {
                assert!(is_booked(&status, &format!("t-{earlier}"), earlier));
            }
        }
        assert!(status.booked_runs.len() <= KEPT as usize);
    }

    #[test]
    fn money_of_another_currency_is_left_out() {
        let mut total = Usage {
            money: Some(money("1.00")),
            ..Usage::default()
        };
        let euros = Usage {
            money: Some(Money {
                currency: "EUR".into(),
                ..money("5")
            }),
            ..Usage::default()
        };
        add(&mut total, &euros);
        assert_eq!(total.money, Some(money("1.00")));
    }
}
