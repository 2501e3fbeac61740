//! Kubernetes quantities: `500m`, `1Gi`, `2e3`.

use std::fmt;
use std::str::FromStr;

/// Largest amount, in units: what Kubernetes bounds quantities by.
const MAX_UNITS: i128 = i64::MAX as i128;
const MAX_LEN: usize = 64;

/// An exact, non-negative amount in thousandths.
///
/// Written as a decimal number with an optional suffix: `m` (thousandths), `k M G T P E` (powers of 1000),
/// `Ki Mi Gi Ti Pi Ei` (powers of 1024), or an exponent (`2e3`). Amounts finer than `1m` or above 2^63-1 are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    milli: i128,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { milli: 0 };

    /// So many whole units, for example bytes.
    #[must_use]
    pub fn from_units(units: u64) -> Self {
        Self {
            milli: (i128::from(units)).min(MAX_UNITS) * 1000,
        }
    }

    /// So many thousandths, for example of a processor.
    #[must_use]
    pub fn from_milli(milli: u64) -> Self {
        Self {
            milli: i128::from(milli),
        }
    }

    /// The amount in thousandths; at most 2^63-1 thousand of them.
    #[must_use]
    pub const fn milli(self) -> i128 {
        self.milli
    }

    /// The amount in whole units, rounded up.
    #[must_use]
    pub fn units(self) -> u64 {
        u64::try_from((self.milli + 999) / 1000).unwrap_or(u64::MAX)
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.milli == 0
    }

    /// The sum; `None` above the bound.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let milli = self.milli.checked_add(other.milli)?;
        (milli <= MAX_UNITS * 1000).then_some(Self { milli })
    }

    /// The difference; `None` below zero.
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        let milli = self.milli.checked_sub(other.milli)?;
        (milli >= 0).then_some(Self { milli })
    }

    /// The difference, at least zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        self.checked_sub(other).unwrap_or_default()
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not have the form of one.
    #[error(
        "must be a number with an optional suffix m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi or Ei, for example \"500m\" or \"1Gi\""
    )]
    Form,
    /// It is below zero.
    #[error("must not be negative")]
    Negative,
    /// It is finer than a thousandth.
    #[error("must not be finer than 1m")]
    TooFine,
    /// It is above 2^63-1.
    #[error("must not be above 2^63-1")]
    TooLarge,
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LEN {
            return Err(Error::Form);
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(Error::Form);
        }
        let (multiplier, mut exponent) = scale(suffix)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self::ZERO);
        }
        if negative {
            return Err(Error::Negative);
        }
        // 10^38 is the last power of ten below i128::MAX; anything near it is far above the bound.
        let mut value: i128 = if digits.len() > 30 {
            return Err(Error::TooLarge);
        } else {
            digits.parse().map_err(|_| Error::Form)?
        };
        value = value.checked_mul(multiplier).ok_or(Error::TooLarge)?;
        exponent += 3 - i32::try_from(fraction.len()).map_err(|_| Error::Form)?;
        while exponent > 0 {
            value = value.checked_mul(10).ok_or(Error::TooLarge)?;
            exponent -= 1;
        }
        while exponent < 0 {
            if value % 10 != 0 {
                return Err(Error::TooFine);
            }
            value /= 10;
            exponent += 1;
        }
        if value > MAX_UNITS * 1000 {
            return Err(Error::TooLarge);
        }
        Ok(Self { milli: value })
    }
}

/// The binary multiplier and the decimal exponent of a suffix.
fn scale(suffix: &str) -> Result<(i128, i32), Error> {
    let binary = |power: u32| Ok((1i128 << (10 * power), 0));
    match suffix {
        "" => Ok((1, 0)),
        "m" => Ok((1, -3)),
        "k" => Ok((1, 3)),
        "M" => Ok((1, 6)),
        "G" => Ok((1, 9)),
        "T" => Ok((1, 12)),
        "P" => Ok((1, 15)),
        "E" => Ok((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E']).ok_or(Error::Form)?;
            let exponent: i32 = digits.parse().map_err(|_| Error::Form)?;
            if (-30..=30).contains(&exponent) {
                Ok((1, exponent))
            } else {
                Err(Error::Form)
            }
        }
    }
}

/// Whole units, or thousandths with `m`; reads back as the same amount.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli % 1000 == 0 {
            write!(f, "{}", self.milli / 1000)
        } else {
            write!(f, "{}m", self.milli)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn milli(text: &str) -> Result<i128, Error> {
        text.parse::<Quantity>().map(Quantity::milli)
    }

    #[test]
    fn suffixes_mean_what_kubernetes_says() {
        for (text, want) in [
            ("0", 0),
            ("-0", 0),
            ("1", 1000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("5.", 5000),
            ("1.5Gi", 1_610_612_736_000),
            ("0.1Ki", 102_400),
            ("2e3", 2_000_000),
            ("2E3", 2_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("+1k", 1_000_000),
            ("1000e-3", 1000),
            ("7Ei", 8_070_450_532_247_928_832_000),
        ] {
            assert_eq!(milli(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_a_reason() {
        for text in [
            "", "m", "Gi", "1 Gi", "1gi", "1mi", "1K", "1.2.3", "e3", "1e", "1e31", "0x1", "NaN", "１",
            "1Gi ", "--1",
        ] {
            assert_eq!(milli(text), Err(Error::Form), "{text}");
        }
        assert_eq!(milli("-1"), Err(Error::Negative));
        assert_eq!(milli("0.5m"), Err(Error::TooFine));
        assert_eq!(milli("8Ei"), Err(Error::TooLarge));
        assert_eq!(milli("1e30"), Err(Error::TooLarge));
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,40}") {
            drop(text.parse::<Quantity>());
        }

        #[test]
        fn printing_reads_back(milli in 0u64..) {
            let q = Quantity::from_milli(milli);
            prop_assert_eq!(q.to_string().parse(), Ok(q));
        }

        #[test]
        fn order_is_that_of_the_amounts(a in 0u64..1 << 40, b in 0u64..1 << 40) {
            let (qa, qb) = (Quantity::from_units(a), Quantity::from_milli(b));
            prop_assert_eq!(qa.cmp(&qb), (u128::from(a) * 1000).cmp(&u128::from(b)));
            prop_assert_eq!(qa.checked_add(qb).and_then(|s| s.checked_sub(qb)), Some(qa));
            prop_assert_eq!(qa.saturating_sub(qb).is_zero(), qa <= qb);
        }
    }
}
