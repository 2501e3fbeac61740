use super::*;

#[test]
fn fields_of_an_agent_are_checked_where_they_are() {
    let driver = |more: Value| {
        let mut driver = json!({"kind": "Exec", "command": ["x"]});
        merge(&mut driver, more);
        json!({"drivers": [driver]})
    };
    for (spec, field, reason) in [
        (json!({"drivers": []}), "spec.drivers", Required),
        (
            driver(json!({"command": []})),
            "spec.drivers[0].command",
            Required,
        ),
        (
            driver(json!({"command": [" "]})),
            "spec.drivers[0].command[0]",
            Required,
        ),
        (
            driver(json!({"command": ["x", "--p={{promt}}"]})),
            "spec.drivers[0].command[1]",
            Invalid,
        ),
        (
            driver(json!({"command": ["x", "{{value}}"]})),
            "spec.drivers[0].command[1]",
            Invalid,
        ),
        (
            driver(json!({"kind": "exec"})),
            "spec.drivers[0].kind",
            NotSupported,
        ),
        (driver(json!({"resume": {}})), "spec.drivers[0].resume", Required),
        (
            driver(json!({"resume": {"append": ["a"], "command": ["b"]}})),
            "spec.drivers[0].resume",
            Invalid,
        ),
        (
            driver(json!({"resume": {"append": ["{{sesion}}"]}})),
            "spec.drivers[0].resume.append[0]",
            Invalid,
        ),
        (
            json!({"capabilities": ["Edit Code"]}),
            "spec.capabilities[0]",
            Invalid,
        ),
        (
            json!({"env": [{"name": "A", "value": "{{nope}}"}]}),
            "spec.env[0].value",
            Invalid,
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {}}]}),
            "spec.env[0].valueFrom.secretKeyRef",
            Required,
        ),
        (
            json!({"detect": {"argv": ["x"], "match": "("}}),
            "spec.detect.match",
            Invalid,
        ),
        (
            json!({"detect": {"argv": ["x"], "match": "(a{1000}){1000}"}}),
            "spec.detect.match",
            Invalid,
        ),
        (
            json!({"detect": {"argv": ["x"], "loggedIn": {"files": ["/etc/passwd"]}}}),
            "spec.detect.loggedIn.files[0]",
            Invalid,
        ),
        (
            json!({"files": [{"path": "/etc/x", "template": ""}]}),
            "spec.files[0].path",
            Invalid,
        ),
        (
            json!({"files": [{"path": "../x", "template": ""}]}),
            "spec.files[0].path",
            Invalid,
        ),
        (
            json!({"files": [{"path": "x", "mode": "4755", "template": ""}]}),
            "spec.files[0].mode",
            Invalid,
        ),
        (
            json!({"files": [{"path": "x", "mode": "0888", "template": ""}]}),
            "spec.files[0].mode",
            Invalid,
        ),
        (
            json!({"files": [{"path": "x", "template": "a={{b}}"}]}),
            "spec.files[0].template",
            Invalid,
        ),
        (json!({"preRun": [[]]}), "spec.preRun[0]", Required),
        (
            json!({"permissions": {"everything": {}}}),
            "spec.permissions",
            NotSupported,
        ),
        (
            json!({"permissions": {"ask": {"argv": [{"add": ["{{x}}"]}]}}}),
            "spec.permissions.ask.argv[0].add[0]",
            Invalid,
        ),
        (json!({"limits": {"speed": {}}}), "spec.limits", NotSupported),
        (
            json!({"limits": {"turns": {"argv": ["{{max}}"]}}}),
            "spec.limits.turns.argv[0]",
            Invalid,
        ),
        (
            json!({"stop": {"signal": "SIGTERM"}}),
            "spec.stop.signal",
            NotSupported,
        ),
        (json!({"stop": {"to": "Tree"}}), "spec.stop.to", NotSupported),
        (json!({"stop": {"grace": "1h"}}), "spec.stop.grace", Invalid),
        (json!({"exitCodes": {"x": "Killed"}}), "spec.exitCodes.x", Invalid),
        (
            json!({"exitCodes": {"143": "Gone"}}),
            "spec.exitCodes[\"143\"]",
            NotSupported,
        ),
        (
            json!({"failures": [{"match": {}, "reason": "Crashed"}]}),
            "spec.failures[0].match",
            Required,
        ),
        (
            json!({"failures": [{"match": {"text": "["}, "reason": "Crashed"}]}),
            "spec.failures[0].match.text",
            Invalid,
        ),
        (json!({"concurrency": 0}), "spec.concurrency", Invalid),
        (
            json!({"price": {"inputPerMillion": "3,00", "currency": "USD"}}),
            "spec.price.inputPerMillion",
            Invalid,
        ),
        (
            json!({"price": {"inputPerMillion": "1e3", "currency": "USD"}}),
            "spec.price.inputPerMillion",
            Invalid,
        ),
        (
            json!({"price": {"inputPerMillion": "3.00"}}),
            "spec.price.currency",
            Invalid,
        ),
        (
            json!({"models": {"endpoint": {"baseUrl": "file:///x"}}}),
            "spec.models.endpoint.baseUrl",
            Invalid,
        ),
        (
            json!({"models": {"endpoint": {"credential": {"secretKeyRef": {"name": "s", "key": "a/b"}}}}}),
            "spec.models.endpoint.credential.secretKeyRef.key",
            Invalid,
        ),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            "spec.env[0].valueFrom",
            Invalid,
        ),
        (
            json!({"files": [{"path": "a", "template": "{{credential}}"}]}),
            "spec.models.endpoint.credential",
            Required,
        ),
        (
            json!({"preRun": [["a", "{{credential}}"]]}),
            "spec.preRun[0][1]",
            Invalid,
        ),
    ] {
        refused(agent(spec), field, reason);
    }
    let Err(Error::Invalid(errors)) = create(agent(json!({"preRun": [["a", "{{ prompt }}"]]}))) else {
        panic!("accepted")
    };
    assert!(
        errors[0]
            .message
            .contains("unknown placeholder; known: {{prompt}}, {{model}}"),
        "{}",
        errors[0].message
    );
}

#[test]
fn agents_of_every_driver_are_accepted_as_documented() {
    let spec = json!({
        "displayName": "Claude Code", "capabilities": ["code.edit", "shell"],
        "install": {"npm": {"package": "x", "version": "1"}}, "detect": {"argv": ["claude", "--version"], "match": r"(\d+\.\d+\.\d+)", "loggedIn": {"env": ["KEY"], "files": []}},
        "drivers": [
            {"kind": "ACP", "command": ["acp"], "clientCapabilities": {}, "authenticate": "", "env": []},
            {"kind": "StreamJson", "dialect": "claude", "command": ["claude", "-p", "{{prompt}}"], "resume": {"append": ["--resume", "{{session}}"]}},
            {"kind": "AppServer", "command": ["x"]}, {"kind": "Jsonl", "command": ["x"]}, {"kind": "Pty", "command": ["x"]},
        ],
        "files": [{"path": ".x/config.json", "mode": "0600", "format": "Json", "template": "{\"a\":{\"b\":{{model}}}}"}],
        "stdin": "Null", "models": {"default": "", "endpoint": {"apis": ["anthropic"], "baseUrlEnv": "ANTHROPIC_BASE_URL", "credential": {"secretKeyRef": {"name": "", "key": ""}, "env": "KEY"}}},
        "login": {"files": [".x"], "mount": "Shared"}, "permissions": {"ask": {"acpMode": "default", "argv": [{"after": "-p", "add": []}]}},
        "limits": {"turns": {"argv": ["--max-turns", "{{value}}"]}, "money": {}, "requestTimeout": {"env": "T"}},
        "mcp": {"via": "Session"}, "skills": {"path": ".claude/skills"}, "context": {"file": "CLAUDE.md"},
        "stop": {"signal": "TERM", "to": "Group", "grace": "5s"}, "exitCodes": {"143": "Cancelled"},
        "failures": [{"match": {"text": "usage limit"}, "reason": "QuotaExceeded", "resetAt": ""}],
        "concurrency": 2, "price": {"inputPerMillion": "3.00", "outputPerMillion": "15.00", "currency": "USD"}, "resources": {"memory": "1Gi"}, "quirks": {},
    });
    created(agent(spec));
}
