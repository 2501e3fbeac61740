//! When an agent goes round in circles: the same tool calls, in the same order, over and over.
//!
//! A tool that is called again after another one has done something new is work; a sequence of at most [`LONGEST`] calls
//! that repeats without anything in between is not.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Longest sequence that is recognised.
const LONGEST: usize = 4;
/// Highest limit that is kept to.
const MOST: usize = 1000;

/// The newest calls.
#[derive(Debug)]
pub(super) struct Repeats {
    /// How often a sequence may come; 0: no limit.
    limit: usize,
    calls: VecDeque<u64>,
}

impl Repeats {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(MOST).min(MOST),
            calls: VecDeque::new(),
        }
    }

    /// A call; says how many calls the sequence has that was repeated up to the limit with this one.
    pub(super) fn call(&mut self, name: &str, input: &str) -> Option<usize> {
        if self.limit == 0 {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (name, input).hash(&mut hasher);
        if self.calls.len() >= self.limit * LONGEST {
            self.calls.pop_front();
        }
        self.calls.push_back(hasher.finish());
        (1..=LONGEST).find(|period| self.repeats(*period))
    }

    fn repeats(&self, period: usize) -> bool {
        let wanted = period * self.limit;
        let calls = &self.calls;
        calls.len() >= wanted
            && (calls.len() - wanted..calls.len() - period).all(|n| calls[n] == calls[n + period])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where in a row of calls the circle is seen, and how long it is.
    fn seen(limit: u32, calls: &[&str]) -> Option<(usize, usize)> {
        let mut repeats = Repeats::new(limit);
        let found = calls.iter().map(|call| repeats.call("tool", call)).enumerate();
        let mut found = found.filter_map(|(n, period)| Some((n + 1, period?)));
        found.next()
    }

    #[test]
    fn the_same_call_may_be_made_up_to_the_limit() {
        assert_eq!(seen(3, &["a", "a", "b", "a", "a"]), None);
        assert_eq!(seen(3, &["b", "a", "a", "a"]), Some((4, 1)));
        assert_eq!(seen(0, &["a"; 100]), None);
    }

    #[test]
    fn a_sequence_that_repeats_is_seen_and_one_with_news_in_it_is_not() {
        assert_eq!(
            seen(3, &["test", "look", "test", "look", "test", "look"]),
            Some((6, 2))
        );
        let news = [
            "test", "edit 1", "test", "edit 2", "test", "edit 3", "test", "edit 4", "test",
        ];
        assert_eq!(seen(3, &news), None);
    }

    #[test]
    fn another_tool_with_the_same_input_is_another_call() {
        let mut repeats = Repeats::new(2);
        assert_eq!(repeats.call("read", "x"), None);
        assert_eq!(repeats.call("write", "x"), None);
        assert_eq!(repeats.call("write", "x"), Some(1));
    }
}
