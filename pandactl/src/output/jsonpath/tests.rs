use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object() -> Value {
    json!({
        "kind": "List",
        "items": [
            {"metadata": {"name": "a", "labels": {"app.io/tier": "web"}}, "status": {"phase": "Running", "attempts": 1}},
            {"metadata": {"name": "b"}, "status": {"phase": "Failed", "attempts": 3}},
        ],
    })
}

fn render(template: &str) -> String {
    Template::parse(template).unwrap().render(&object()).unwrap()
}

#[test]
fn templates_give_what_kubectl_gives() {
    for (template, wanted) in [
        ("{.kind}", "List"),
        ("{$.kind}", "List"),
        ("kind={.kind}!", "kind=List!"),
        ("{.items[*].metadata.name}", "a b"),
        ("{.items[0].metadata.name}", "a"),
        ("{.items[-1].metadata.name}", "b"),
        ("{.items[0:1].metadata.name}", "a"),
        ("{.items[1,0].metadata.name}", "b a"),
        ("{.items[9].metadata.name}", ""),
        ("{.nothing.at.all}", ""),
        ("{.items[0]['metadata']['name']}", "a"),
        (
            "{.items[0].metadata['name','labels']}",
            "a {\"app.io/tier\":\"web\"}",
        ),
        (r"{.items[0].metadata.labels.app\.io/tier}", "web"),
        ("{.items[0].metadata.labels['app.io/tier']}", "web"),
        ("{..name}", "a b"),
        ("{.items[?(@.status.phase==\"Failed\")].metadata.name}", "b"),
        ("{.items[?(@.status.attempts>1)].metadata.name}", "b"),
        ("{.items[?(@.status.attempts<=1)].metadata.name}", "a"),
        ("{.items[?(@.metadata.labels)].metadata.name}", "a"),
        ("{.items[?(@.status.phase!='Failed')].metadata.name}", "a"),
        (
            "{range .items[*]}{.metadata.name}{\"\\t\"}{.status.phase}{\"\\n\"}{end}",
            "a\tRunning\nb\tFailed\n",
        ),
        ("{range .items[*]}{@.metadata.name},{end}", "a,b,"),
        ("{.items[0].status}", "{\"attempts\":1,\"phase\":\"Running\"}"),
        ("{.kind}{' '}{.items[0].status.attempts}", "List 1"),
        ("{.kind .items[0].metadata.name}", "Lista"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(render(template), wanted, "{template}");
    }
}

#[test]
fn what_is_no_template_says_where() {
    for template in [
        "{",
        "{.a",
        "{.a[",
        "{.a[x]}",
        "{end}",
        "{range .a}",
        "{.a[?(@.x=)]}",
        "{\"x}",
        "{.a[1:2:0]}",
        "{..}",
    ] {
        let error = Template::parse(template).unwrap_err();
        assert!(matches!(error, Error::Syntax { .. }), "{template}: {error}");
    }
    assert!(Template::parse(&"{range .a}".repeat(40)).is_err());
    assert!(Template::parse(&"x".repeat(MAX_TEMPLATE + 1)).is_err());
}

#[test]
fn a_path_may_lack_dot_and_braces() {
    for path in ["{.kind}", ".kind", "kind"] {
        assert_eq!(
            Template::path(path).unwrap().values(&object()).unwrap(),
            [&json!("List")]
        );
    }
}

#[test]
fn explosions_are_cut() {
    let template = Template::parse("{range ..*}{range $..*}{range $..*}{.x}{end}{end}{end}").unwrap();
    let wide = json!((0..200).collect::<Vec<_>>());
    assert!(template.render(&wide) == Err(Error::TooMany));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[{}.\\[\\]*?()@$'\"a-z0-9:,<>=! \\\\-]{0,60}") {
        if let Ok(template) = Template::parse(&text) {
            let _: Result<String, Error> = template.render(&object());
        }
    }
}
