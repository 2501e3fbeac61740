use proptest::prelude::*;
use serde_json::json;

use super::*;

fn refused(text: &str) -> Error {
    parse(text.as_bytes()).expect_err(text)
}

#[test]
fn reads_what_json_is() {
    let text = r#" {"a": [1, -2.5e3, "x\n\u00e9\ud83d\ude00", true, null], "b": {}} "#;
    let want = json!({"a": [1, -2500.0, "x\né😀", true, null], "b": {}});
    assert_eq!(parse(text.as_bytes()).unwrap().value, want);
}

#[test]
fn every_duplicate_is_named_with_both_lines() {
    let text =
        "{\n \"spec\": {\n  \"env\": [],\n  \"x\": [{\"k\":1,\"k\":2}],\n  \"env\": [1]},\n \"spec\": 3\n}";
    let document = parse(text.as_bytes()).unwrap();
    let found: Vec<_> = document
        .duplicates
        .iter()
        .map(|d| (d.path.to_string(), d.first_line, d.line))
        .collect();
    assert_eq!(
        found,
        [
            ("spec.x[0].k".to_owned(), 4, 4),
            ("spec.env".to_owned(), 3, 5),
            ("spec".to_owned(), 2, 6),
        ]
    );
    assert_eq!(document.value["spec"], 3);
    assert_eq!(
        document.duplicates[1].to_string(),
        "duplicate field \"spec.env\" (lines 3 and 5)"
    );
    // The same key written with an escape is the same key.
    assert_eq!(parse(br#"{"a":1,"\u0061":2}"#).unwrap().duplicates.len(), 1);
}

#[test]
fn what_is_not_json_is_refused_where_it_is() {
    for bad in [
        "",
        " ",
        "{",
        "[",
        "[1",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "'a'",
        "tru",
        "nul",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "NaN",
        "Infinity",
        "1e999",
        "\"a",
        "\"\t\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u+123\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "[] []",
        "{} x",
        "/*c*/1",
        "1 // c",
        "\u{feff}1",
        "\"\\",
    ] {
        refused(bad);
    }
    assert!(parse(b"\"\xff\"").is_err());
    let error = refused("{\n \"é\": [1,\n  x]}");
    assert_eq!((error.line, error.column), (3, 3));
    let error = refused("{\"éé\": x}");
    assert_eq!((error.line, error.column), (1, 8));
}

#[test]
fn nesting_is_bounded() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(refused(&nested(MAX_DEPTH + 1)).what.contains("deeper"));
    assert!(refused(&"[".repeat(1_000_000)).what.contains("deeper"));
    assert!(refused(&"{\"a\":".repeat(100_000)).what.contains("deeper"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(|f| if f.is_finite() { f.into() } else { json!(0) }),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_serde_json(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let ours = parse(text.as_bytes()).unwrap();
        let theirs: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(ours.value, theirs);
        prop_assert!(ours.duplicates.is_empty());
    }

    #[test]
    fn never_panics_and_accepts_nothing_that_serde_json_refuses(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if parse(&bytes).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok());
        }
    }

    #[test]
    fn mutated_texts_never_panic(cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = br#"{"a":[1,-2.5e3,"x\n\u00e9\ud83d\ude00",true,null,false],"b":{"c":{"a":0}},"b":1}"#;
        let mut bytes = text.to_vec();
        let at = cut.index(bytes.len());
        bytes[at] = byte;
        if parse(&bytes).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok());
        }
        drop(parse(&bytes[..at]));
    }
}
