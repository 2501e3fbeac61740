//! Text into tokens.

use super::SyntaxError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Int(i64),
    Double(f64),
    Text(String),
    Name(String),
    /// An operator or bracket.
    Sign(&'static str),
    End,
}

/// Longer ones first.
const SIGNS: [&str; 27] = [
    "&&", "||", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "+", "-", "*", "/",
    "%", "<", ">", "!", "=", "&", "|",
];

fn error<T>(at: usize, what: impl Into<String>) -> Result<T, SyntaxError> {
    Err(SyntaxError {
        at,
        what: what.into(),
    })
}

/// All tokens with their places; the last is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let start = at;
        let token = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += text[at..].find('\n').unwrap_or(text.len() - at);
                continue;
            }
            b'r' | b'R' if matches!(bytes.get(at + 1), Some(b'"' | b'\'')) => quoted(text, &mut at, true)?,
            b'"' | b'\'' => quoted(text, &mut at, false)?,
            b'0'..=b'9' => number(text, &mut at)?,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                at += bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                Token::Name(text[start..at].to_owned())
            }
            _ => {
                let Some(sign) = SIGNS.into_iter().find(|sign| text[at..].starts_with(sign)) else {
                    let odd = text[at..].chars().next().unwrap_or_default();
                    return error(at, format!("{odd:?} means nothing here"));
                };
                at += sign.len();
                Token::Sign(sign)
            }
        };
        found.push((start, token));
    }
    found.push((text.len(), Token::End));
    Ok(found)
}

fn number(text: &str, at: &mut usize) -> Result<Token, SyntaxError> {
    let start = *at;
    let bytes = text.as_bytes();
    let digits = |at: &mut usize| *at += bytes[*at..].iter().take_while(|b| b.is_ascii_digit()).count();
    digits(at);
    let mut whole = true;
    if bytes.get(*at) == Some(&b'.') && bytes.get(*at + 1).is_some_and(u8::is_ascii_digit) {
        whole = false;
        *at += 1;
        digits(at);
    }
    if matches!(bytes.get(*at), Some(b'e' | b'E')) {
        whole = false;
        *at += 1;
        if matches!(bytes.get(*at), Some(b'+' | b'-')) {
            *at += 1;
        }
        digits(at);
    }
    if bytes
        .get(*at)
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    {
        return error(start, "this is no number");
    }
    let digits = &text[start..*at];
    let token = if whole {
        digits.parse().ok().map(Token::Int)
    } else {
        digits
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite())
            .map(Token::Double)
    };
    token.map_or_else(|| error(start, "this is no number, or too large"), Ok)
}

fn quoted(text: &str, at: &mut usize, raw: bool) -> Result<Token, SyntaxError> {
    let start = *at;
    *at += usize::from(raw);
    let mut chars = text[*at..].char_indices();
    let (_, quote) = chars.next().unwrap_or((0, '"'));
    let mut out = String::new();
    while let Some((place, c)) = chars.next() {
        match c {
            c if c == quote => {
                *at += place + 1;
                return Ok(Token::Text(out));
            }
            '\n' => break,
            '\\' if !raw => match chars.next().map(|(_, c)| c) {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some(c @ ('\\' | '"' | '\'' | '`' | '?')) => out.push(c),
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                    match code.filter(|_| digits.len() == 4) {
                        Some(c) => out.push(c),
                        None => return error(start, "\\u wants four hexadecimal digits of a character"),
                    }
                }
                _ => return error(start, "an escape in this text is not known"),
            },
            c => out.push(c),
        }
    }
    error(start, "this text does not end")
}
