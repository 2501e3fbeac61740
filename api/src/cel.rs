//! Expressions of the Common Expression Language (CEL, <https://cel.dev>), as far as policies need it, over JSON.
//!
//! What a policy may cost is bounded twice: an expression's length and depth when it is read, and the work of an
//! evaluation step by step, so that no comprehension over whatever list can run away. What is not known (a variable, a
//! function, a macro) is refused when the expression is read, with its place.
//!
//! Known are: the operators; `has`, `all`, `exists`, `exists_one`, `filter`, `map`; `size`, `string`, `int`, `double`; of
//! strings `contains`, `startsWith`, `endsWith`, `matches`, `lowerAscii`, `upperAscii`, `trim`, `split`, `replace`,
//! `indexOf`, `substring`; of lists of strings `join`. There are no bytes, unsigned numbers, durations, timestamps and
//! optionals. Numbers are JSON's: those without a fraction are 64-bit integers.

mod eval;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::Value;

/// Longest expression, in bytes.
pub const MAX_LENGTH: usize = 8 << 10;
/// Steps that one request's policies may take together.
pub const BUDGET: u64 = 250_000;

/// Why an expression is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at}: {what}")]
pub struct SyntaxError {
    /// The byte at which it was noticed.
    pub at: usize,
    /// What is wrong.
    pub what: String,
}

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The expression says something that the values do not allow.
    #[error("{0}")]
    Failed(String),
    /// It takes more steps than there are.
    #[error("the expression costs too much on this object")]
    TooExpensive,
}

/// An expression that can be evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct Program(parser::Expr);

/// Steps that are left; shared by all expressions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Default for Budget {
    fn default() -> Self {
        Self(BUDGET)
    }
}

impl Budget {
    /// So many steps.
    #[must_use]
    pub const fn of(steps: u64) -> Self {
        Self(steps)
    }

    fn spend(&mut self, steps: u64) -> Result<(), EvalError> {
        self.0 = self.0.checked_sub(steps).ok_or(EvalError::TooExpensive)?;
        Ok(())
    }
}

impl Program {
    /// Reads an expression that may speak of `variables`.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn compile(text: &str, variables: &[&str]) -> Result<Self, SyntaxError> {
        parser::parse(text, variables).map(Self)
    }

    /// Evaluates it over variables. Each step is taken from `budget`.
    ///
    /// # Errors
    /// When it fails on these values, or costs too much.
    pub fn eval(&self, variables: &BTreeMap<String, Value>, budget: &mut Budget) -> Result<Value, EvalError> {
        eval::eval(&self.0, variables, budget)
    }
}
