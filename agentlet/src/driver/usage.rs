//! Amounts that an agent says it used.

use panda_api::{Money, Usage, UsagePaths};
use serde_json::Value;

use super::paths;

/// The amounts in one event, money apart; none when it has no tokens at all. Cached tokens are part of the input, however
/// the agent counts.
pub(super) fn amounts(paths: &UsagePaths, event: &Value) -> Option<(Usage, Option<f64>)> {
    let number = |path: &str| paths::first(event, path).and_then(Value::as_f64);
    let tokens = |path: &str| number(path).map(whole);
    let (input, output) = (tokens(&paths.input), tokens(&paths.output));
    if input.is_none() && output.is_none() {
        return None;
    }
    let cached = tokens(&paths.cached).unwrap_or(0);
    let besides = if paths.input_includes_cached.unwrap_or(true) {
        0
    } else {
        cached
    };
    let money = number(&paths.money).filter(|m| m.is_finite() && *m >= 0.0);
    let usage = Usage {
        input_tokens: input.unwrap_or(0).saturating_add(besides),
        output_tokens: output.unwrap_or(0),
        cached_tokens: cached,
        money: money.map(dollars),
        ..Usage::default()
    };
    Some((usage, money))
}

/// Agents count in dollars.
pub(super) fn dollars(amount: f64) -> Money {
    Money {
        amount: decimal(amount),
        currency: "USD".into(),
    }
}

/// Amounts are whole numbers; anything else counts as far as it makes sense.
fn whole(number: f64) -> u64 {
    if number.is_finite() && number > 0.0 {
        // Exact up to 2^53, which no amount of tokens reaches.
        std::time::Duration::try_from_secs_f64(number.floor()).map_or(0, |d| d.as_secs())
    } else {
        0
    }
}

/// A decimal number without exponent and needless zeros.
fn decimal(amount: f64) -> String {
    let text = format!("{amount:.9}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.into()
}
