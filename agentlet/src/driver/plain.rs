//! What a program wrote for a terminal, as text for a message.

use std::iter::Peekable;
use std::str::Chars;

/// Without escape sequences and control characters; what stood behind a carriage return stands on a line of its own.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_sequence(&mut rest),
            '\r' if rest.peek() == Some(&'\n') => {}
            '\r' => out.push('\n'),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips what follows an ESC.
fn skip_sequence(rest: &mut Peekable<Chars<'_>>) {
    match rest.next_if(|c| matches!(c, '[' | ']' | 'P' | 'X' | '^' | '_')) {
        // A control sequence ends with its first letter (or other final character).
        Some('[') => {
            while rest
                .next()
                .is_some_and(|c| !matches!(c, '@'..='~') && !c.is_control())
            {}
        }
        // A title, link or other string: ends with BEL or with ESC and a backslash, here also with the line.
        Some(_) => {
            if rest.find(|c| matches!(c, '\u{7}' | '\u{1b}' | '\n')) == Some('\u{1b}') {
                rest.next();
            }
        }
        None => {
            while rest.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            rest.next_if(|c| matches!(c, '0'..='~'));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequences_and_controls_go_and_words_stay() {
        for (text, want) in [
            ("\u{1b}[2J\u{1b}[1;31mTrust?\u{1b}[0m [y/N]", "Trust? [y/N]"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;url\u{1b}\\link", "alink"),
            ("\u{1b}(Bx\u{1b}cy\0z\u{9b}", "xyz"),
            (" 10%\r 50%\rdone\r\nnext", " 10%\n 50%\ndone\nnext"),
            ("open\u{1b}[12", "open"),
            ("open\u{1b}", "open"),
            ("\u{1b}[1\nline", "line"),
            ("caf\u{fffd} \u{1f43c}", "caf\u{fffd} \u{1f43c}"),
        ] {
            assert_eq!(plain(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_a_terminal_obeys(text: String) {
            let out = plain(&text);
            prop_assert!(out.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()));
            prop_assert_eq!(plain(&out), out);
        }
    }
}
