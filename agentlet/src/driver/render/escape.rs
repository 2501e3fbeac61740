//! Values inside quoted strings of configuration files.

use std::fmt::Write;

use panda_api::FileFormat;

/// A value as it stands between the double quotes of a string in that format.
pub(crate) fn escape(value: &str, format: FileFormat) -> String {
    match format {
        FileFormat::Raw => value.to_owned(),
        // The three agree on these escapes; `\u` with four digits is known to all of them.
        FileFormat::Json | FileFormat::Toml | FileFormat::Yaml => {
            let mut out = String::with_capacity(value.len());
            for c in value.chars() {
                match c {
                    '"' => out.push_str("\\\""),
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    // Control characters, and those that YAML takes for line breaks.
                    c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                        write!(out, "\\u{:04x}", u32::from(c)).expect("writing into a String cannot fail");
                    }
                    c => out.push(c),
                }
            }
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_comes_out_of_a_quoted_string_as_it_went_in(value in "\\PC*|[\\x00-\\x7f]{0,40}|.*") {
            let quoted = format!("\"{}\"", escape(&value, FileFormat::Json));
            prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), value);
        }
    }
}
