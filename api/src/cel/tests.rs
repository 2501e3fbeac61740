use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Budget, EvalError, Program};

fn variables() -> BTreeMap<String, Value> {
    let object = json!({
        "metadata": {"name": "web-1", "labels": {"team": "a", "a.b/c": "x"}},
        "spec": {"replicas": 3, "paused": false, "none": null, "ratio": 0.5, "names": ["b", "a", "c"],
            "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
    });
    BTreeMap::from([
        ("object".to_owned(), object),
        ("oldObject".to_owned(), Value::Null),
    ])
}

fn eval(text: &str) -> Result<Value, EvalError> {
    let program = Program::compile(text, &["object", "oldObject"]).unwrap_or_else(|e| panic!("{text}: {e}"));
    program.eval(&variables(), &mut Budget::default())
}

#[test]
fn expressions_mean_what_cel_says() {
    for (text, want) in [
        ("1 + 2 * 3 - -4", json!(11)),
        ("(1 + 2) * 3 % 4", json!(1)),
        ("7 / 2", json!(3)),
        ("7.0 / 2.0 == 3.5", json!(true)),
        ("1 == 1.0 && 2 > 1.5", json!(true)),
        ("!true || true", json!(true)),
        ("true ? 'a' : 'b'", json!("a")),
        ("false ? 1 : true ? 2 : 3", json!(2)),
        ("'a' + \"b\\n\" + r'\\n'", json!("ab\n\\n")),
        ("[1, 2] + [3]", json!([1, 2, 3])),
        ("{'a': 1, 'b': [2]}.b[0]", json!(2)),
        ("object.spec.replicas", json!(3)),
        ("object.metadata.labels['a.b/c']", json!("x")),
        (
            "has(object.spec.paused) && !has(object.spec.nothing)",
            json!(true),
        ),
        ("oldObject == null || oldObject.x", json!(true)),
        (
            "'a' in object.spec.names && 'team' in object.metadata.labels && !('z' in [])",
            json!(true),
        ),
        ("object.spec.names.all(n, n.size() == 1)", json!(true)),
        (
            "object.spec.names.exists(n, n == 'c') && object.spec.names.exists_one(n, n > 'b')",
            json!(true),
        ),
        (
            "object.spec.env.filter(e, !has(e.value)).map(e, e.name)",
            json!(["B"]),
        ),
        (
            "object.spec.env.map(e, has(e.value), e.value + '!')",
            json!(["1!"]),
        ),
        (
            "object.metadata.labels.all(key, key.startsWith('t') || key.contains('/'))",
            json!(true),
        ),
        ("object.metadata.name.matches('^[a-z]+-[0-9]+$')", json!(true)),
        ("object.metadata.name.split('-').join('+')", json!("web+1")),
        (
            "'Ab'.lowerAscii() + 'Ab'.upperAscii() + ' x '.trim()",
            json!("abABx"),
        ),
        (
            "'banana'.replace('an', 'o') + string('banana'.indexOf('nan'))",
            json!("booa2"),
        ),
        ("'grüße'.substring(2, 4) + 'x'.substring(1)", json!("üß")),
        (
            "size(object.spec) + size('grüße') + int('4') + int(2.9)",
            json!(17),
        ),
        ("double('1.5') + object.spec.ratio", json!(2.0)),
        ("// a comment\n true", json!(true)),
        (
            "object.spec == object.spec && [1, [2]] == [1.0, [2]]",
            json!(true),
        ),
        // One side that decides wins over an error of the other.
        ("object.nothing == 1 || true", json!(true)),
        ("object.nothing == 1 && false", json!(false)),
        ("[0, 1].exists(n, 1 / n == 1)", json!(true)),
        ("[0, 1].all(n, 1 / n == 2)", json!(false)),
    ] {
        assert_eq!(
            eval(text).unwrap_or_else(|e| panic!("{text}: {e}")),
            want,
            "{text}"
        );
    }
}

#[test]
fn what_the_values_do_not_allow_is_an_error_and_no_answer() {
    for (text, what) in [
        ("object.nothing", "no such key: nothing"),
        ("object.spec.none.x", "null has no field x"),
        ("object.spec.names[3]", "out of a list of 3"),
        ("object.spec.names[-1]", "out of a list"),
        ("1 / 0", "no 64-bit integer"),
        ("9223372036854775807 + 1", "no 64-bit integer"),
        ("1 + 'a'", "means nothing"),
        ("1 < 'a'", "cannot be compared"),
        ("1 ? 2 : 3", "want a bool"),
        ("'x'.matches('(')", "no regular expression"),
        ("'x'.substring(2)", "not inside"),
        ("object.nothing || false", "no such key"),
        ("1.size() == 1", "no size"),
    ] {
        let error = eval(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_place() {
    let refused = |text: &str| Program::compile(text, &["object"]).unwrap_err();
    for (text, at, what) in [
        ("", 0, "ends too early"),
        ("true true", 5, "should end here"),
        ("1 + other.x", 4, "other is not known; there are object"),
        ("object.x.fly()", 9, "fly with 0 arguments"),
        ("object.x.size(1)", 9, "size with 1 arguments"),
        ("timestamp('x')", 0, "timestamp"),
        ("has(object)", 0, "has() wants a field"),
        ("'a", 0, "does not end"),
        ("1x", 0, "no number"),
        ("99999999999999999999", 0, "too large"),
        ("a = 1", 0, "a is not known"),
        ("object # 1", 7, "'#' means nothing"),
        ("[1, 2", 5, "want \"]\""),
        ("object.x.all(1, true)", 9, "name of a variable"),
        ("n + 1", 0, "n is not known"),
    ] {
        let error = refused(text);
        assert!(error.at == at && error.what.contains(what), "{text}: {error}");
    }
    let three = "object.a.all(x, object.b.all(y, object.c.all(z, true)))";
    assert!(refused(three).what.contains("comprehensions"));
    for deep in [
        "(".repeat(10_000),
        "!".repeat(5000),
        "-".repeat(5000),
        format!("object{}", ".a".repeat(2000)),
    ] {
        refused(&deep);
    }
    refused(&"1+".repeat(4000));
    assert!(refused(&" ".repeat(9000)).what.contains("longer"));
}

#[test]
fn no_expression_runs_away() {
    let list: Vec<u32> = (0..2000).collect();
    let variables = BTreeMap::from([("object".to_owned(), json!({"l": list, "s": "x".repeat(100_000)}))]);
    for text in [
        "object.l.all(x, object.l.all(y, x + y >= 0))",
        "object.l.map(x, object.l).size() > 0",
        "object.l.map(x, object.s + object.s).size() > 0",
        "object.l.all(x, object.s.matches('x*y|x'))",
        "object.l.all(x, object.s.replace('x', object.s).size() > 0)",
        "object.l.all(x, object == object)",
    ] {
        let program = Program::compile(text, &["object"]).unwrap();
        let mut budget = Budget::default();
        assert_eq!(
            program.eval(&variables, &mut budget),
            Err(EvalError::TooExpensive),
            "{text}"
        );
    }
    let cheap = Program::compile("object.l.all(x, x >= 0)", &["object"]).unwrap();
    assert_eq!(cheap.eval(&variables, &mut Budget::default()), Ok(true.into()));
    assert_eq!(
        cheap.eval(&variables, &mut Budget::of(100)),
        Err(EvalError::TooExpensive)
    );
}

proptest::proptest! {
    /// Whatever is written, reading and evaluating it ends, and never panics.
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9 .()\\[\\]{}'\"?:,+*/%<>=!&|-]{0,60}") {
        if let Ok(program) = Program::compile(&text, &["object", "a", "b"]) {
            let _ = program.eval(&variables(), &mut Budget::of(10_000));
        }
    }
}
