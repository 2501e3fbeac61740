use proptest::prelude::*;
use serde_json::json;

use super::*;

fn task(name: &str, prompt: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: {name}\nspec:\n  prompt: {prompt}\n"
    )
}

fn objects(bytes: impl AsRef<[u8]>) -> Vec<Value> {
    let manifest = read("f.yaml", bytes.as_ref());
    assert!(manifest.errors.is_empty(), "{}", manifest.errors);
    manifest.documents.into_iter().map(|d| d.object).collect()
}

fn errors(bytes: impl AsRef<[u8]>) -> Vec<String> {
    let manifest = read("f.yaml", bytes.as_ref());
    manifest.errors.iter().map(ToString::to_string).collect()
}

fn only_error(bytes: impl AsRef<[u8]>) -> Error {
    let manifest = read("f.yaml", bytes.as_ref());
    assert_eq!(manifest.errors.len(), 1, "{}", manifest.errors);
    manifest.errors.iter().next().unwrap().clone()
}

fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xFEFF)
        .chain(text.encode_utf16())
        .flat_map(unit)
        .collect()
}

mod words {
    use super::*;

    #[test]
    fn words_of_older_yaml_stay_text() {
        let text = "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: yaml-words\n  labels: {country: no, switch: on, letter: y}\nspec:\n  prompt: p\n  env: [{name: MIRROR, value: no}, {name: WHEN, value: 2026-01-02}, {name: MODE, value: 0600}]\n";
        let object = &objects(text)[0];
        assert_eq!(
            object["metadata"]["labels"],
            json!({"country": "no", "switch": "on", "letter": "y"})
        );
        let values: Vec<&Value> = object["spec"]["env"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| &e["value"])
            .collect();
        assert_eq!(values, ["no", "2026-01-02", "0600"]);
    }

    #[test]
    fn a_scalar_that_is_no_text_is_refused_in_every_text_field() {
        let text = "# head\n---\napiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: yaml-words\n  labels: {country: no, switch: on, letter: y, tilde: ~}\nspec:\n  prompt: p\n  env: [{name: MIRROR, value: no}, {name: VER, value: 1.10}, {name: T, value: true}]\n";
        assert_eq!(
            errors(text),
            [
                "f.yaml:7:55: document 1: metadata.labels.tilde: ~ is null, the field holds text; put it in quotes: \"~\"",
                "f.yaml:10:55: document 1: spec.env[1].value: 1.10 is a number, the field holds text; put it in quotes: \"1.10\"",
                "f.yaml:10:79: document 1: spec.env[2].value: true is a boolean, the field holds text; put it in quotes: \"true\"",
            ]
        );
        for scalar in [
            "1", "-3", "0x10", "1e3", ".5", "true", "False", "null", "~", "!!int 3", "&a 5",
        ] {
            for field in ["prompt", "dedupeKey"] {
                let text = task("a", "p").replace("prompt: p", &format!("{field}: {scalar}"));
                let error = only_error(&text);
                assert_eq!(
                    error.field_path().unwrap().to_string(),
                    format!("spec.{field}"),
                    "{scalar}"
                );
                assert_eq!(
                    error.at(),
                    Mark {
                        line: 6,
                        column: error.at().column
                    }
                );
            }
        }
        let missing = only_error(task("a", ""));
        assert!(
            missing.to_string().contains("spec.prompt: the value is missing"),
            "{missing}"
        );
        assert!(
            missing
                .to_string()
                .ends_with("write \"\" for empty text, or leave the field out")
        );
        let json = only_error(r#"{"apiVersion":"panda.dev/v1alpha1","kind":"Task","spec":{"prompt":3}}"#);
        assert!(json.to_string().contains("spec.prompt: 3 is a number"), "{json}");
        let item = only_error(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: panda.dev/v1alpha1\n  kind: Task\n  spec: {prompt: 1.10}\n",
        );
        assert!(
            item.to_string()
                .contains("f.yaml:6:18: document 1: items[0].spec.prompt: 1.10 is a number"),
            "{item}"
        );
    }

    #[test]
    fn quotes_and_tags_make_text_of_anything() {
        for scalar in [
            "\"1.10\"",
            "'1.10'",
            "!!str 1.10",
            "! 1.10",
            "|-\n    1.10",
            ">-\n    1.10",
        ] {
            assert_eq!(
                objects(task("a", scalar))[0]["spec"]["prompt"],
                "1.10",
                "{scalar}"
            );
        }
    }

    #[test]
    fn fields_of_other_types_keep_theirs_and_times_may_be_null() {
        let text = task("a", "p") + "  priority: -3\n  suspend: true\n";
        let text = text.replace("  name: a", "  name: a\n  creationTimestamp: null");
        let object = &objects(text)[0];
        assert_eq!(object["spec"]["priority"], -3);
        assert_eq!(object["spec"]["suspend"], true);
    }

    #[test]
    fn keys_are_their_source_text() {
        let text = "apiVersion: v1\nkind: ConfigMap\ndata:\n  1.10: a\n  yes: b\n  null: c\n  0x1: d\n";
        let object = &objects(text)[0];
        assert_eq!(
            object["data"],
            json!({"1.10": "a", "yes": "b", "null": "c", "0x1": "d"})
        );
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for scalar in [".nan", ".inf", "1e999", "123456789012345678901234567890"] {
            let error = only_error(task("a", "p") + &format!("  priority: {scalar}\n"));
            assert!(error.what().contains("does not fit"), "{error}");
        }
    }

    #[test]
    fn tags_outside_the_core_are_refused() {
        for tagged in [
            "!!binary aGk=",
            "!!timestamp 2026-01-02",
            "!!set {a: }",
            "!custom x",
            "!!python/object:os.system x",
            "!!int x",
        ] {
            let error = only_error(task("a", "p") + &format!("  x: {tagged}\n"));
            assert!(error.what().starts_with("tag "), "{error}");
        }
    }
}

mod duplicates {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_refused_with_both_lines() {
        let env =
            task("a", "p") + "  env: [{name: A, value: a}]\n  priority: 1\n  env: [{name: B, value: b}]\n";
        let labels = task("a", "p").replace("  name: a", "  name: a\n  labels:\n    tier: a\n    tier: b");
        let quoted = task("a", "p").replace("  name: a", "  \"name\": a\n  name: b");
        let json = "{\"apiVersion\": \"v1\",\n \"kind\": \"ConfigMap\",\n \"data\": {\"a\": \"1\",\n  \"a\": \"2\"}}".to_owned();
        let flow = "{apiVersion: v1,\n kind: ConfigMap,\n data: {a: b,\n  'a': c}}".to_owned();
        let document = task("a", "p") + "kind: Task\n";
        for (text, field, first, line) in [
            (env, "spec.env", 7, 9),
            (labels, "metadata.labels.tier", 6, 7),
            (quoted, "metadata.name", 4, 5),
            (json, "data.a", 3, 4),
            (flow, "data.a", 3, 4),
            (document, "kind", 2, 7),
        ] {
            let error = only_error(&text);
            assert_eq!(error.field_path().unwrap().to_string(), field);
            assert_eq!(error.at().line, line);
            assert_eq!(
                error.what(),
                format!("the same key stands twice, on lines {first} and {line}")
            );
        }
    }

    #[test]
    fn every_duplicate_is_named() {
        let text = "---\n".to_owned() + &task("a", "p") + "  env: []\n  env: []\n  env: []\nspec: {}\n";
        let lines: Vec<usize> = read("f", text.as_bytes())
            .errors
            .iter()
            .map(|e| e.at().line)
            .collect();
        assert_eq!(lines, [9, 10, 11]);
    }

    #[test]
    fn the_picture_shows_both_places() {
        let text = task("a", "p") + "  env: []\n  priority: 1\n  env: [x]\n";
        let picture = only_error(&text).remedy("remove one").render(false);
        for part in [
            "spec.env: the same key stands twice, on lines 7 and 9",
            "f.yaml:9:3",
            "first here",
            "document 1",
            "remove one",
        ] {
            assert!(picture.contains(part), "{picture}");
        }
        assert!(!picture.contains('\u{1b}'));
    }

    #[test]
    fn merge_keys_are_refused_and_a_quoted_one_is_a_key() {
        let text = "base: &b {a: 1}\n".to_owned() + &task("a", "p") + "  <<: *b\n";
        let error = only_error(text);
        assert!(
            error.to_string().contains("merge keys (<<) are not read"),
            "{error}"
        );
        assert_eq!(error.at().line, 8);
        assert_eq!(
            objects("apiVersion: v1\nkind: ConfigMap\ndata: {\"<<\": a}\n")[0]["data"]["<<"],
            "a"
        );
    }
}

mod encodings {
    use super::*;

    fn three(separator_tab: bool) -> String {
        let third = if separator_tab {
            "  name: c\nspec:\n\tprompt: p"
        } else {
            "  name: c\nspec:\n  prompt: p"
        };
        format!(
            "{}---\n{}--- # two\napiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n{third}",
            task("a", "|\n    line one\n\n    line two"),
            task("b", "p"),
        )
    }

    #[test]
    fn a_file_from_another_editor_gives_the_same_objects() {
        let lf = three(false);
        let want = objects(&lf);
        assert_eq!(want.len(), 3);
        assert_eq!(want[0]["spec"]["prompt"], "line one\n\nline two\n");
        let crlf = lf.replace('\n', "\r\n");
        for bytes in [
            [b"\xEF\xBB\xBF".as_slice(), crlf.as_bytes()].concat(),
            crlf.clone().into_bytes(),
            lf.replace('\n', "\r").into_bytes(),
            utf16(&crlf, u16::to_le_bytes),
            utf16(&crlf, u16::to_be_bytes),
            utf16(&lf, u16::to_le_bytes),
        ] {
            assert_eq!(objects(&bytes), want);
        }
    }

    #[test]
    fn a_tab_in_the_third_document_leaves_the_first_two() {
        let lf = three(true);
        for bytes in [
            lf.clone().into_bytes(),
            [b"\xEF\xBB\xBF".as_slice(), lf.replace('\n', "\r\n").as_bytes()].concat(),
            utf16(&lf.replace('\n', "\r\n"), u16::to_le_bytes),
        ] {
            let manifest = read("win.yaml", &bytes);
            assert_eq!(manifest.documents.len(), 2);
            let error = manifest.errors.iter().next().unwrap();
            assert_eq!((error.document(), error.at()), (3, Mark { line: 23, column: 1 }));
            assert!(
                error
                    .to_string()
                    .starts_with("win.yaml:23:1: document 3: tab in the indentation"),
                "{error}"
            );
            assert!(manifest.into_result().is_err());
        }
    }

    #[test]
    fn a_tab_in_the_indentation_is_named_wherever_it_stands() {
        for (text, line) in [
            ("apiVersion: v1\nkind: ConfigMap\ndata:\n\ta: b\n", 4),
            ("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: b\n\tc: d\n", 5),
            ("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: b\n \tc: d\n", 5),
            ("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: some\n\tmore\n", 5),
            ("\tapiVersion: v1\nkind: ConfigMap\n", 1),
        ] {
            let manifest = read("f.yaml", text.as_bytes());
            let error = manifest.errors.iter().next().expect(text);
            assert!(error.what().contains("tab"), "{text:?}: {error}");
            assert_eq!(error.at().line, line, "{text:?}");
        }
        // Inside text a tab is only text.
        let text =
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    \tx\n  b: x\ty\n  c: \"x\n    \ty\"\n";
        assert_eq!(
            objects(text)[0]["data"],
            json!({"a": "\tx\n", "b": "x\ty", "c": "x y"})
        );
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        for (bytes, what) in [
            (b"a: b\nc: \xff\n".to_vec(), "text is not UTF-8"),
            (vec![0xFF, 0xFE, b'a', 0, b'b'], "half a character"),
            (vec![0xFF, 0xFE, 0x00, 0xD8], "lone surrogate"),
            (b"a: b\0\n".to_vec(), "control character U+0000"),
            (b"a: \x1b[31m\n".to_vec(), "control character U+001B"),
            (
                utf16("a: b", u16::to_le_bytes)[2..].to_vec(),
                "control character U+0000",
            ),
        ] {
            let error = only_error(&bytes);
            assert!(error.what().contains(what), "{error}");
        }
        assert_eq!(only_error(b"a: b\nc: \xff\n").at(), Mark { line: 2, column: 4 });
    }
}

mod documents {
    use super::*;

    #[test]
    fn separators_may_carry_comments_and_content() {
        let a = task("a", "p");
        for text in [
            format!("---\n{a}---\n{a}"),
            format!("%YAML 1.2\n---\n{a}...\n# between\n---   # c\n{a}...\n"),
            format!("\n# c\n\n---\n---\n{a}---\n# nothing\n---\nnull\n---\n{a}---"),
            format!("{a}--- {{apiVersion: v1, kind: ConfigMap}}\n"),
            format!("\u{feff}{a}\u{feff}---\n{a}"),
            format!("{}\n{}", objects(&a)[0], objects(&a)[0]),
            format!("---\n{}\n---\n{a}", objects(&a)[0]),
        ] {
            assert_eq!(objects(&text).len(), 2, "{text}");
        }
        for empty in [
            "",
            "\n",
            "# c",
            "---",
            "---\n---\n",
            "--- # c\n...\n",
            "%YAML 1.2\n---\n",
            "\u{feff}",
            "~",
        ] {
            assert!(objects(empty).is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn a_marker_inside_a_block_scalar_ends_the_document_and_an_indented_one_does_not() {
        let text = task("a", "|\n    ---\n    x: y");
        assert_eq!(objects(text)[0]["spec"]["prompt"], "---\nx: y\n");
    }

    #[test]
    fn a_fault_in_one_document_hides_no_other() {
        let text = format!("{}---\na: [\n---\n{}---\nb: 'x\n", task("a", "p"), task("b", "p"));
        let manifest = read("f.yaml", text.as_bytes());
        assert_eq!(manifest.documents.len(), 2);
        let places: Vec<usize> = manifest.errors.iter().map(Error::document).collect();
        assert_eq!(places, [2, 4]);
        assert_eq!(manifest.documents[1].number, 3);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (text, want) in [
            ("just text\n", "must be an object"),
            ("- a\n- b\n", "must be an object"),
            ("[[]]", "must be an object"),
            ("3\n", "must be an object"),
            ("a: b\n", "apiVersion is missing"),
            ("apiVersion: v1\n", "kind is missing"),
            ("apiVersion: v1\nkind: [x]\n", "kind must be text"),
            ("{\"a\": [1 \"b\": 2]}", "expected a comma or a closing bracket"),
            ("? [a]\n: b\n", "a key must be plain text"),
            ("a: b\nc: d: e\n", "invalid YAML"),
            ("a: *nowhere\n", "unknown anchor"),
            ("a: &a [*a]\n", "inside the value"),
        ] {
            let found = errors(text);
            assert!(found.iter().any(|e| e.contains(want)), "{text:?}: {found:?}");
        }
    }

    #[test]
    fn a_body_is_exactly_one_value() {
        assert_eq!(
            read_value("body", b"--- # c\nspec: {prompt: no}\n").unwrap(),
            json!({"spec": {"prompt": "no"}})
        );
        for (body, want) in [
            ("", "there is no document"),
            ("a: 1\n---\nb: 2\n", "only one document is read here"),
            ("{\"a\":1}{\"b\":2}", "only one document is read here"),
            ("a: 1\na: 2\n", "on lines 1 and 2"),
            ("a: [", "invalid YAML"),
            (
                "apiVersion: v1\nkind: ConfigMap\ndata: {v: 1.10}\n",
                "body:3:11: document 1: data.v: 1.10 is a number, the field holds text; put it in quotes: \"1.10\"",
            ),
        ] {
            let errors = read_value("body", body.as_bytes()).unwrap_err();
            assert!(errors.to_string().contains(want), "{body}: {errors}");
        }
    }

    #[test]
    fn a_json_file_is_json_only() {
        let text = b"{\"apiVersion\": \"v1\", \"kind\": ConfigMap}";
        assert!(read("f.yaml", text).errors.is_empty());
        let manifest = read("f.json", text);
        assert!(manifest.documents.is_empty());
        assert_eq!(
            manifest.errors.to_string(),
            "f.json:1:30: document 1: expected a JSON value"
        );
    }

    #[test]
    fn a_field_is_found_again_for_what_the_server_says() {
        let text = format!(
            "# c\n---\n{}  env:\n  - name: A\n    value: a\n  - {{name: B, vlaue: b}}\n",
            task("a", "p")
        );
        let document = &read("f.yaml", text.as_bytes()).documents[0];
        let at = |path: &str| {
            let Mark { line, column } = document.locate(&path.parse().unwrap());
            (line, column)
        };
        assert_eq!(at("spec.env[1].vlaue"), (12, 15));
        assert_eq!(at("spec.prompt"), (8, 3));
        assert_eq!(at("spec.env[0]"), (10, 5));
        assert_eq!(at("spec.workspace.git.path"), (7, 1));
        assert_eq!(at(""), (3, 1));
        let error = document.error(&"spec.env[1].vlaue".parse().unwrap(), "unknown field");
        assert_eq!(
            error.to_string(),
            "f.yaml:12:15: document 1: spec.env[1].vlaue: unknown field"
        );
    }

    #[test]
    fn aliases_stand_for_their_values_within_bounds() {
        let text = "apiVersion: v1\nkind: ConfigMap\ndata: {a: &x text, b: *x}\n";
        assert_eq!(objects(text)[0]["data"], json!({"a": "text", "b": "text"}));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let last = n - 1;
            let refs = vec![format!("*a{last}"); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{refs}]\n"));
        }
        assert!(only_error(bomb).what().contains("aliases expand to more than"));
        let long = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(100_000),
            vec!["*a"; 100].join(", ")
        );
        assert!(only_error(long).what().contains("MiB of text"));
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = |n: usize| format!("apiVersion: v1\nkind: X\na: {}{}\n", "[".repeat(n), "]".repeat(n));
        assert_eq!(objects(deep(MAX_DEPTH - 1)).len(), 1);
        for text in [
            deep(MAX_DEPTH),
            deep(20_000),
            "[".repeat(20_000),
            "{\"a\":".repeat(20_000),
            "- ".repeat(20_000),
            "{a: ".repeat(20_000),
        ] {
            let found = errors(text);
            assert!(
                found[0].contains("deeper") || found[0].contains("recursion limit"),
                "{}",
                found[0]
            );
        }
        let large = format!("a: {}\n", "x".repeat(MAX_DOCUMENT_BYTES));
        assert!(only_error(large).what().contains("larger than 3 MiB"));
        let many = "apiVersion: v1\nkind: X\nx: [".to_owned() + &"1,".repeat(MAX_NODES + 1) + "]";
        assert!(only_error(many).what().contains("more than"));
    }
}

mod list_kinds {
    use super::*;

    #[test]
    fn lists_are_their_items() {
        let item = |name: &str| {
            format!("- apiVersion: panda.dev/v1alpha1\n  kind: Task\n  metadata: {{name: {name}}}\n")
        };
        let list = format!(
            "apiVersion: v1\nkind: List\nmetadata: {{resourceVersion: \"\"}}\nitems:\n{}{}",
            item("a"),
            item("b")
        );
        let names: Vec<Value> = objects(&list)
            .iter()
            .map(|o| o["metadata"]["name"].clone())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let typed = "apiVersion: panda.dev/v1alpha1\nkind: TaskList\nmetadata: {resourceVersion: \"7\"}\nitems:\n- metadata: {name: a}\n";
        let object = &objects(typed)[0];
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("Task"), &json!("panda.dev/v1alpha1"))
        );
        for empty in ["items: null", "items: []", "items:", "other: 1"] {
            assert!(
                objects(format!("apiVersion: v1\nkind: List\n{empty}\n")).is_empty(),
                "{empty}"
            );
        }
        let printed = to_yaml(
            &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects(&list)}),
        );
        assert_eq!(objects(printed), objects(&list));
    }

    #[test]
    fn broken_lists_name_the_item() {
        for (items, want) in [
            ("[[]]", "items[0]: an item must be an object"),
            ("[null]", "items[0]: an item must be an object"),
            ("[{metadata: {name: a}}]", "items[0]: apiVersion is missing"),
            ("[{apiVersion: v1}]", "items[0]: kind is missing"),
            (
                "[{apiVersion: v1, kind: List, items: []}]",
                "items[0]: a list inside a list is not read",
            ),
            ("{a: b}", "items: items must be a list"),
            ("text", "items: items must be a list"),
        ] {
            for kind in ["List", "FooList"] {
                let found = errors(format!("apiVersion: v1\nkind: {kind}\nitems: {items}\n"));
                assert!(found[0].contains(want), "{items}: {found:?}");
            }
        }
        let second = errors("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap}\n- 3\n");
        assert_eq!(
            second,
            ["f.yaml:5:3: document 1: items[1]: an item must be an object with apiVersion and kind"]
        );
    }

    #[test]
    fn what_a_server_printed_can_be_written_back() {
        let mut object = json!({
            "kind": "Task", "status": {"phase": "Running"}, "spec": {"prompt": "p"},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "3", "generation": 1, "labels": {"a": "b"},
                "creationTimestamp": "2026-01-02T03:04:05Z", "managedFields": []},
        });
        without_server_fields(&mut object);
        assert_eq!(
            object,
            json!({"kind": "Task", "spec": {"prompt": "p"}, "metadata": {"name": "a", "labels": {"a": "b"}}})
        );
        let mut nothing = json!([[]]);
        without_server_fields(&mut nothing);
    }
}

mod written {
    use super::*;

    #[test]
    fn reads_the_way_kubectl_prints() {
        let value = json!({
            "apiVersion": "panda.dev/v1alpha1", "kind": "Task",
            "metadata": {"name": "a", "labels": {"country": "no", "n": "1", "date": "2026-01-02", "empty": ""}},
            "spec": {"prompt": "Fix it.\n\n  - indented\nlast: line\n", "agents": [{"name": "a b"}], "outputs": [], "x": {}, "argv": [["a"], "-x"]},
        });
        let text = "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  labels:\n    country: \"no\"\n    date: \"2026-01-02\"\n    empty: \"\"\n    \"n\": \"1\"\n  name: a\nspec:\n  agents:\n  - name: a b\n  argv:\n  - - a\n  - \"-x\"\n  outputs: []\n  prompt: |\n    Fix it.\n\n      - indented\n    last: line\n  x: {}\n";
        assert_eq!(to_yaml(&value), text);
    }

    #[test]
    fn readers_of_yaml_1_1_see_text_where_text_was_written() {
        for word in [
            "yes",
            "No",
            "ON",
            "off",
            "y",
            "N",
            "true",
            "NULL",
            "~",
            "1",
            "0x1",
            "010",
            "1_000",
            "12:30",
            "1e3",
            ".5",
            "-",
            "+1",
            "2026-01-02",
            "2026-01-02T03:04:05Z",
            "=",
            "<<",
            "!x",
            "&a",
            "*a",
            "a: b",
            "a #b",
            "a:",
            " a",
            "a ",
            "{",
            "[",
            "%",
            "@",
            "`",
            "'",
            "\"",
            "|",
            ">",
            "?",
            ":",
            "-x",
            "---",
            "...",
            "é",
            "a\tb",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "\r",
            "a\r\nb",
            "\n",
            "\n\n",
            " \na",
            "\ta\nb",
            "a\n \nb",
            "a\n",
            "a\n\n",
            "a\nb",
            "\na",
            "# a\nb",
        ] {
            let value = json!({"k": word, word: [word, {word: word}]});
            let text = to_yaml(&value);
            let other: Value =
                serde_yaml::from_str(&text).unwrap_or_else(|e| panic!("{word:?}: {e}\n{text}"));
            assert_eq!(other, value, "{text}");
        }
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ -~\n\t]{0,24}",
        proptest::sample::select(vec![
            "no", "~", "1.10", "---", "a\nb\n", "- x", "", "0600", "\n  x", "x\n\n"
        ])
        .prop_map(str::to_owned),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(|f| if f.is_finite() { f.into() } else { json!(0) }),
        any_text().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            proptest::collection::btree_map(any_text(), inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_written_reads_back(inner in any_json()) {
        let value = json!({"apiVersion": "example.com/v1", "kind": "Anything", "spec": inner});
        let text = to_yaml(&value);
        let manifest = read("f", text.as_bytes());
        prop_assert!(manifest.errors.is_empty(), "{}\n{}", manifest.errors, text);
        prop_assert_eq!(&manifest.documents[0].object, &value, "{}", text);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for error in &read("f", &bytes).errors {
            prop_assert!(!error.render(false).is_empty());
        }
    }

    #[test]
    fn any_text_of_yaml_signs_is_read_or_refused(text in "[-a\\[\\]{}:,?&*!|>'\"%@`#~ \n\t\r0<=.]{0,60}") {
        for error in &read("f", text.as_bytes()).errors {
            prop_assert!(!error.render(true).is_empty());
        }
    }

    #[test]
    fn mutated_manifests_are_read_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..4), 1..6),
        which in any::<prop::sample::Index>(),
    ) {
        let corpus = corpus();
        let mut bytes = corpus[which.index(corpus.len())].clone().into_bytes();
        for (at, from, how) in edits {
            let (at, from) = (at.index(bytes.len()), from.index(bytes.len()));
            match how {
                0 => bytes[at] = bytes[from],
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\t\n-:{}[]#&*!|>'\"%\0\xff\xef"[from % 20]),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                bytes.push(b'a');
            }
        }
        for error in &read("f", &bytes).errors {
            prop_assert!(!error.render(false).is_empty());
        }
    }

    #[test]
    fn numbers_and_words_agree_with_serde_yaml(text in "[-+0-9a-zA-Z._~]{1,8}") {
        // In the same place for both: a line of its own could also be a mark of documents, as `---` is.
        let manifest = format!("apiVersion: v1\nkind: X\nx: {text}\n");
        let ours = read("f", manifest.as_bytes());
        let theirs: Result<serde_yaml::Value, _> = serde_yaml::from_str(&manifest);
        if let (Some(document), Ok(theirs)) = (ours.documents.first(), theirs) {
            let ours = &document.object["x"];
            let same_kind = match &theirs["x"] {
                serde_yaml::Value::String(_) => ours.is_string(),
                serde_yaml::Value::Bool(_) => ours.is_boolean(),
                serde_yaml::Value::Null => ours.is_null(),
                // Binary numbers are theirs alone.
                serde_yaml::Value::Number(_) => ours.is_number() || text.contains("0b"),
                _ => false,
            };
            prop_assert!(same_kind, "{text}: {ours} and {theirs:?}");
        }
    }
}

/// Manifests of every style.
fn corpus() -> Vec<String> {
    let task = task("fix-login", "|\n    Fix the login.\n\n    Then test it.")
        + "  agents:\n  - {name: claude-code, model: \"\"}\n  - name: codex\n  device:\n    selector:\n      matchLabels: {a: b}\n  workspace:\n    git: {path: /repos/web, ref: main}\n    writes: [\"src/**\", 'tests/**']\n  verify:\n  - name: tests\n    command: [cargo, test]\n    timeout: 10m\n  retry: {limit: 2, backoff: {base: 1s, factor: 2, cap: 5m, jitter: Full}}\n";
    let agent = "apiVersion: panda.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec:\n  drivers: # tried in order\n  - &d\n    kind: Exec\n    command: [sh, -c, \"echo {{prompt}}\"]\n  env: [{name: A, value: \"1\"}]\n  files:\n  - path: .x/config\n    template: >-\n      folded\n      text\n".to_owned();
    let json = objects(&task)[0].to_string();
    let list = to_yaml(&json!({"apiVersion": "v1", "kind": "List", "items": objects(&task)}));
    vec![
        format!("{task}---\n{agent}"),
        json.clone(),
        format!("{json}\n{json}"),
        list,
        format!("%YAML 1.2\n--- # c\n{agent}...\n"),
    ]
}
