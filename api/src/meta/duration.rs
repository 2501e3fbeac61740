//! Durations as people write them: `90s`, `1h30m`, `250ms`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A non-negative length of time, written as numbers with units `h`, `m`, `s`, `ms` (`1h30m`, `90s`).
///
/// The text a person wrote is kept as it is; `90s` is not turned into `1m30s`.
#[derive(Clone, Debug, Eq)]
pub struct Duration {
    value: std::time::Duration,
    text: String,
}

impl Duration {
    /// The length of time.
    #[must_use]
    pub const fn get(&self) -> std::time::Duration {
        self.value
    }

    /// A duration of whole seconds.
    #[must_use]
    pub fn from_secs(secs: u64) -> Self {
        std::time::Duration::from_secs(secs).into()
    }
}

impl PartialEq for Duration {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl From<std::time::Duration> for Duration {
    fn from(value: std::time::Duration) -> Self {
        let millis = value.subsec_millis();
        let secs = value.as_secs();
        let (h, m, s) = (secs / 3600, secs / 60 % 60, secs % 60);
        let mut text = String::new();
        for (n, unit) in [(h, "h"), (m, "m"), (s, "s"), (u64::from(millis), "ms")] {
            if n > 0 {
                text.push_str(&format!("{n}{unit}"));
            }
        }
        if text.is_empty() {
            text.push_str("0s");
        }
        Self { value, text }
    }
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: want numbers with units h, m, s or ms, for example \"90s\" or \"1h30m\"")]
pub struct ParseDurationError(pub String);

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseDurationError(text.chars().take(64).collect());
        let mut rest = text;
        let mut total = std::time::Duration::ZERO;
        if rest.is_empty() {
            return Err(fail());
        }
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !(c.is_ascii_digit() || c == '.'))
                .ok_or_else(fail)?;
            let number: f64 = rest[..digits].parse().map_err(|_| fail())?;
            rest = &rest[digits..];
            let unit_len = rest
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(rest.len());
            let scale = match &rest[..unit_len] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return Err(fail()),
            };
            let part = std::time::Duration::try_from_secs_f64(number * scale).map_err(|_| fail())?;
            total = total.checked_add(part).ok_or_else(fail)?;
            rest = &rest[unit_len..];
        }
        Ok(Self {
            value: total,
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "duration", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_and_keeps_the_text() {
        let d: Duration = "1h30m".parse().unwrap();
        assert_eq!(d.get(), std::time::Duration::from_secs(5400));
        assert_eq!(d.to_string(), "1h30m");
        assert_eq!("90s".parse::<Duration>().unwrap().to_string(), "90s");
        assert_eq!("250ms".parse::<Duration>().unwrap().get().as_millis(), 250);
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1d",
            "1h-2m",
            "1..2s",
            "99999999999999999999h",
        ] {
            assert!(bad.parse::<Duration>().is_err(), "{bad}");
        }
    }
}
