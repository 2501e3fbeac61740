//! What the author of a request should know although it succeeded: `Warning` headers.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderValue;
use http::header::WARNING;

/// Most warnings of one answer, and the longest text of each.
const MAX: (usize, usize) = (16, 256);

/// The warnings of one request, in its extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds texts.
    pub(crate) fn add(&self, texts: Vec<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(texts);
    }
}

impl Warnings {
    /// Adds a text that may be found more than once.
    pub(crate) fn add_once(&self, text: String) {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
}

pub(super) async fn collect(mut request: Request, next: Next) -> Response {
    let warnings = Warnings::default();
    request.extensions_mut().insert(warnings.clone());
    let mut response = next.run(request).await;
    let texts = std::mem::take(&mut *warnings.0.lock().unwrap_or_else(PoisonError::into_inner));
    for text in texts.iter().take(MAX.0) {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{}\"", quote(text))) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

fn quote(text: &str) -> String {
    let printable = |c: char| {
        if c.is_ascii() && !c.is_ascii_control() {
            c
        } else {
            '?'
        }
    };
    let short: String = text.chars().take(MAX.1).map(printable).collect();
    short.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_for_a_header() {
        assert_eq!(quote("unknown field \"spec.a\""), "unknown field \\\"spec.a\\\"");
        assert_eq!(quote("a\r\nb"), "a??b");
    }
}
