//! Scalars of the YAML 1.2 core schema.

use serde_json::{Number, Value};

/// What a plain scalar is.
#[derive(Debug, PartialEq)]
pub(super) enum Scalar {
    Text,
    Other(Value),
    /// A number that no JSON number can hold.
    TooLarge,
}

/// What the core schema makes of a plain scalar. Integers with leading zeros are text: YAML 1.1 reads them as octal,
/// 1.2 as decimal, and nobody who writes one means to find out.
pub(super) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Other(Value::Null),
        "true" | "True" | "TRUE" => return Scalar::Other(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Scalar::Other(Value::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Scalar::TooLarge;
    }
    if let Some((digits, radix)) = text
        .strip_prefix("0x")
        .map(|d| (d, 16))
        .or_else(|| text.strip_prefix("0o").map(|d| (d, 8)))
    {
        if !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)) {
            return u64::from_str_radix(digits, radix).map_or(Scalar::TooLarge, |n| Scalar::Other(n.into()));
        }
        return Scalar::Text;
    }
    if !is_number(unsigned) {
        return Scalar::Text;
    }
    if unsigned.bytes().all(|b| b.is_ascii_digit()) {
        if unsigned.len() > 1 && unsigned.starts_with('0') {
            return Scalar::Text;
        }
        let number = text.strip_prefix('+').unwrap_or(text);
        return number
            .parse::<i64>()
            .map(Number::from)
            .or_else(|_| number.parse::<u64>().map(Number::from))
            .map_or(Scalar::TooLarge, |n| Scalar::Other(n.into()));
    }
    text.parse::<f64>()
        .ok()
        .and_then(Number::from_f64)
        .map_or(Scalar::TooLarge, |n| Scalar::Other(n.into()))
}

/// `[0-9]+(\.[0-9]*)?|\.[0-9]+`, then `([eE][-+]?[0-9]+)?`.
fn is_number(text: &str) -> bool {
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let exponent_ok = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    let mantissa_ok = match mantissa.split_once('.') {
        None => !mantissa.is_empty() && digits(mantissa),
        Some((whole, fraction)) => {
            digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
    };
    exponent_ok && mantissa_ok
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_older_yaml_stay_text() {
        for text in [
            "no",
            "No",
            "NO",
            "yes",
            "on",
            "off",
            "y",
            "n",
            "2026-01-02",
            "12:30:45",
            "1_000",
            "010",
            "-007",
            "0b1",
            "1.2.3",
            "e5",
            ".",
            "-",
            "+",
            "1e",
            "0x",
            "0xg",
            "0o8",
            "tRue",
            "nULL",
            "~~",
            "1 2",
            "NaN",
            "inf",
            "１",
        ] {
            assert_eq!(resolve(text), Scalar::Text, "{text}");
        }
    }

    #[test]
    fn core_scalars_are_what_they_are() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("True", json!(true)),
            ("0", json!(0)),
            ("-12", json!(-12)),
            ("+12", json!(12)),
            ("18446744073709551615", json!(u64::MAX)),
            ("0x1F", json!(31)),
            ("0o17", json!(15)),
            ("1.10", json!(1.1)),
            (".5", json!(0.5)),
            ("5.", json!(5.0)),
            ("1e3", json!(1000.0)),
        ] {
            assert_eq!(resolve(text), Scalar::Other(value), "{text}");
        }
        for text in [
            "18446744073709551616",
            "1e999",
            ".inf",
            "-.inf",
            ".nan",
            "0xFFFFFFFFFFFFFFFFF",
        ] {
            assert_eq!(resolve(text), Scalar::TooLarge, "{text}");
        }
    }
}
