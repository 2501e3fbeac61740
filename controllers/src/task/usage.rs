//! What attempts cost, counted once.

use std::time::Duration;

use panda_api::{Run, TaskStatus, Usage};

/// Stands behind a Run's name once what it used beyond its booked usage was booked, too. No name has it.
const LATE: &str = "+late";
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

/// Takes into account what a Run that was Lost had used in truth, as its device says on return. It was spent, whether
/// the result counts or not.
pub(super) fn book_late(status: &mut TaskStatus, run: &Run) {
    let name = format!("{}{LATE}", run.metadata.name);
    let late = run
        .status
        .late_result
        .as_ref()
        .filter(|late| late.phase.is_some());
    let Some(usage) = late.and_then(|late| late.usage.as_ref()) else {
        return;
    };
    // Nothing is added before its first part is, so that both fall under one mark of age.
    if !is_booked(status, &run.metadata.name, run.spec.attempt) || is_booked(status, &name, run.spec.attempt)
    {
        return;
    }
    add(&mut status.usage, &beyond(usage, &run.status.usage));
    mark(status, &name);
}

/// What `whole` has more than `part`.
fn beyond(whole: &Usage, part: &Usage) -> Usage {
    let money = whole.money.as_ref().and_then(|whole| {
        let Some(part) = &part.money else {
            return Some(whole.clone());
        };
        let more = sum(&whole.amount, &format!("-{}", part.amount))?;
        let more = (part.currency == whole.currency && !more.starts_with('-')).then_some(more)?;
        Some(panda_api::Money {
            amount: more,
            currency: whole.currency.clone(),
        })
    });
    let clock = |usage: &Usage| usage.wall_clock.as_ref().map_or(Duration::ZERO, |t| t.get());
    Usage {
        input_tokens: whole.input_tokens.saturating_sub(part.input_tokens),
        output_tokens: whole.output_tokens.saturating_sub(part.output_tokens),
        cached_tokens: whole.cached_tokens.saturating_sub(part.cached_tokens),
        turns: whole.turns.saturating_sub(part.turns),
        wall_clock: whole
            .wall_clock
            .is_some()
            .then(|| clock(whole).saturating_sub(clock(part)).into()),
        money,
    }
}

/// Marks a Run as taken into account.
pub(super) fn mark(status: &mut TaskStatus, run: &str) {
    status.booked_runs.push(run.to_owned());
    // A Run has two marks at most.
    let spare = status.booked_runs.len().saturating_sub(2 * KEPT as usize);
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
        assert!(status.booked_runs.len() <= 2 * KEPT as usize);
    }

    #[test]
    fn what_a_lost_run_used_in_truth_is_booked_once_and_after_its_first_part() {
        let mut run = Run::default();
        run.metadata.name = "t-1".into();
        run.spec.attempt = 1;
        run.status.usage = Usage {
            input_tokens: 10,
            money: Some(money("0.10")),
            ..Usage::default()
        };
        run.status.late_result = Some(Box::new(panda_api::LateResult {
            phase: Some(panda_api::RunPhase::Failed),
            usage: Some(Usage {
                input_tokens: 25,
                turns: 2,
                money: Some(money("0.35")),
                ..Usage::default()
            }),
            ..panda_api::LateResult::default()
        }));
        let mut status = TaskStatus {
            attempts: 1,
            ..TaskStatus::default()
        };
        book_late(&mut status, &run);
        assert_eq!(status.usage, Usage::default(), "its first part is not booked yet");
        book(&mut status, &run);
        book_late(&mut status, &run);
        book_late(&mut status, &run);
        assert_eq!((status.usage.input_tokens, status.usage.turns), (25, 2));
        assert_eq!(status.usage.money, Some(money("0.35")));
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
