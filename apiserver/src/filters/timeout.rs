//! How long a client itself wants to wait: the parameter `timeout`, which clients send with every short request.

use std::time::Duration;

use http::Uri;

use crate::query::Params;
use crate::respond::Failure;

/// The deadline of a request. Clients can only shorten it: zero, or more than the server grants, is the server's.
pub(super) fn deadline(uri: &Uri, granted: Duration) -> Result<Duration, Failure> {
    // A query that cannot be read is refused by who looks at the rest of it.
    let Ok(params) = Params::of(uri) else {
        return Ok(granted);
    };
    let Some(text) = params.get("timeout").filter(|text| !text.is_empty()) else {
        return Ok(granted);
    };
    let asked = parse(text).ok_or_else(|| {
        let text: String = text.chars().take(64).collect();
        Failure::bad_request(format!(
            "invalid timeout specified in the request URL: {text:?}; want numbers with units, for example 30s"
        ))
    })?;
    Ok(if asked.is_zero() {
        granted
    } else {
        asked.min(granted)
    })
}

/// Numbers with units, as Go writes durations: `32s`, `1m0s`, `1.5h`.
fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_can_only_shorten_the_deadline() {
        let granted = Duration::from_secs(60);
        let of = |query: &str| deadline(&format!("/x?{query}").parse().unwrap(), granted).ok();
        for (query, want) in [
            ("", Some(granted)),
            ("timeout=", Some(granted)),
            ("timeout=0s", Some(granted)),
            ("timeout=0", Some(granted)),
            ("timeout=3m", Some(granted)),
            ("timeout=32s", Some(Duration::from_secs(32))),
            ("timeout=1.5s", Some(Duration::from_millis(1500))),
            ("timeout=10s500ms", Some(Duration::from_millis(10_500))),
            ("timeout=1h0m0s", Some(granted)),
            ("timeout=5", None),
            ("timeout=-5s", None),
            ("timeout=soon", None),
            ("timeout=1..2s", None),
            ("timeout=s", None),
        ] {
            assert_eq!(of(query), want, "{query}");
        }
    }
}
