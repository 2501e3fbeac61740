//! Deterministic stand-ins for randomness, and text within bounds.

use sha2::{Digest, Sha256};

/// The first ten hexadecimal digits of the SHA-256 of `text`: the part of a child's name that stands for its owner.
#[must_use]
pub fn short_hash(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..5])
}

/// `value` scaled by a fraction in `[0, 1)` that is spread evenly over `seed`s and always the same for one.
#[must_use]
pub fn fraction(value: std::time::Duration, seed: &str) -> std::time::Duration {
    let digest = Sha256::digest(seed.as_bytes());
    let mut head = [0u8; 8];
    head.copy_from_slice(&digest[..8]);
    // Nanoseconds of any pause fit in 64 bits here, so the product fits in 128.
    let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
    let scaled = (u128::from(nanos) * u128::from(u64::from_be_bytes(head))) >> 64;
    std::time::Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// At most `max` bytes of `text`, cut between characters, with a mark where something is missing.
#[must_use]
pub fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} [cut]", &text[..end])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fractions_are_stable_and_spread_evenly() {
        let pause = Duration::from_secs(10);
        let draws: Vec<_> = (0..1000)
            .map(|i| fraction(pause, &format!("uid-{i}/1")))
            .collect();
        assert!(draws.iter().all(|d| *d < pause));
        assert_eq!(draws[7], fraction(pause, "uid-7/1"));
        for tenth in 0..10 {
            let low = pause * tenth / 10;
            let high = pause * (tenth + 1) / 10;
            let n = draws.iter().filter(|d| **d >= low && **d < high).count();
            assert!((60..=140).contains(&n), "{n} of 1000 in tenth {tenth}");
        }
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(cut("häuser", 2), "h [cut]");
        assert_eq!(cut("haus", 4), "haus");
    }
}
