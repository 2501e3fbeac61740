use panda_api::AgentSpec;
use serde_json::json;

use super::*;

fn agent(spec: Value) -> AgentSpec {
    serde_json::from_value(spec).unwrap()
}

/// On a device that has everything but adapters.
fn choose(agent: &AgentSpec) -> Result<&DriverSpec, Error> {
    choose_driver(agent, |program| {
        (!program.ends_with("-acp")).then(|| program.into())
    })
    .map(|(driver, _)| driver)
}

fn input<'a>(agent: &'a AgentSpec) -> Input<'a> {
    Input {
        agent,
        driver: choose(agent).unwrap(),
        prompt: "fix {{home}} & \"it\"",
        model: "",
        session: "",
        workspace: Path::new("/w"),
        home: Path::new("/h"),
        run: "run-1",
        task: "task",
        path: "/usr/bin:/bin",
        env: &[],
        limits: &[],
    }
}

fn grok() -> AgentSpec {
    agent(json!({
        "drivers": [
            {"kind": "ACP", "command": ["grok-acp"]},
            {"kind": "Jsonl", "dialect": "grok", "command": ["grok", "-p", "{{prompt}}", "-m", "{{model}}"],
             "resume": {"append": ["--resume", "{{session}}"]}, "env": [{"name": "D", "value": "driver"}]}
        ],
        "env": [{"name": "GROK_HOME", "value": "{{home}}/.grok"}, {"name": "D", "value": "agent"}],
        "files": [{"path": ".grok/config.toml", "format": "Toml", "template": "p = \"{{prompt}}\"\nu = \"{{baseUrl}}\"\n"}],
        "models": {"default": "grok-4", "endpoint": {"baseUrl": "http://127.0.0.1:1", "suffix": "/v1", "baseUrlEnv": "BASE"}},
        "permissions": {
            "ask": {},
            "edits": {"argv": [{"add": ["--edits"]}]},
            "all": {"argv": [{"after": "grok", "add": ["--always-approve"]}], "env": [{"name": "ALL", "value": "1"}]}
        },
        "limits": {"turns": {"argv": ["--max-turns", "{{value}}"]}, "requestTimeout": {"env": "TIMEOUT_MS"}},
        "stop": {"signal": "INT", "to": "Process", "grace": "2s"},
        "exitCodes": {"143": "Cancelled"}
    }))
}

fn env<'a>(rendered: &'a Rendered, name: &str) -> Option<&'a str> {
    rendered
        .env
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, v)| v.as_str())
}

#[test]
fn a_manifest_becomes_a_job() {
    let agent = grok();
    let limits = [
        ("turns", "9".to_owned()),
        ("requestTimeout", "5000".to_owned()),
        ("money", "1.00".to_owned()),
    ];
    let rendered = render(&Input {
        limits: &limits,
        ..input(&agent)
    })
    .unwrap();
    assert_eq!(
        rendered.argv,
        [
            "grok",
            "--always-approve",
            "-p",
            "fix {{home}} & \"it\"",
            "-m",
            "grok-4",
            "--max-turns",
            "9"
        ]
    );
    assert_eq!(rendered.permission, "all");
    assert_eq!(env(&rendered, "GROK_HOME"), Some("/h/.grok"));
    assert_eq!(env(&rendered, "D"), Some("driver"));
    assert_eq!(env(&rendered, "BASE"), Some("http://127.0.0.1:1/v1"));
    assert_eq!(env(&rendered, "ALL"), Some("1"));
    assert_eq!(env(&rendered, "TIMEOUT_MS"), Some("5000"));
    assert_eq!(env(&rendered, "XDG_CONFIG_HOME"), Some("/h/.config"));
    assert_eq!(
        rendered.files,
        [RenderedFile {
            path: ".grok/config.toml".into(),
            mode: 0o600,
            content: "p = \"fix {{home}} & \\\"it\\\"\"\nu = \"http://127.0.0.1:1/v1\"\n".into(),
        }]
    );
    assert_eq!(rendered.stop.signal, 2);
    assert_eq!(
        (rendered.stop.to, rendered.stop.grace),
        (StopTarget::Process, Duration::from_secs(2))
    );
    assert_eq!(
        rendered.driver.exit_codes,
        [(143, FailureReason::Cancelled)].into()
    );
    assert!(rendered.driver.dialect.is_some() && rendered.driver.usage.is_some());
    assert_eq!(rendered.driver.stdin, None);
}

#[test]
fn a_session_is_resumed_by_more_arguments_or_by_another_command() {
    let mut agent = grok();
    let rendered = render(&Input {
        session: "s1",
        ..input(&agent)
    })
    .unwrap();
    assert!(rendered.argv.ends_with(&["--resume".to_owned(), "s1".to_owned()]));
    agent.permissions.clear();
    agent.drivers[1].resume.as_mut().unwrap().command = ["grok", "again", "{{session}}", "{{prompt}}"]
        .map(str::to_owned)
        .into();
    agent.drivers[1].resume.as_mut().unwrap().append.clear();
    let rendered = render(&Input {
        session: "s1",
        prompt: "go on",
        ..input(&agent)
    })
    .unwrap();
    assert_eq!(rendered.argv, ["grok", "again", "s1", "go on"]);
    assert_eq!(rendered.permission, "");
}

#[test]
fn the_weaker_level_is_used_when_there_is_no_stronger_and_nothing_that_asks() {
    let mut agent = grok();
    agent.permissions.remove("all");
    assert_eq!(render(&input(&agent)).unwrap().permission, "edits");
    agent.permissions.remove("edits");
    assert_eq!(
        render(&input(&agent)),
        Err(Error::NoPermission(vec!["ask".into()]))
    );
}

#[test]
fn a_prompt_goes_to_standard_input_when_the_agent_reads_it_there() {
    let mut agent = grok();
    agent.stdin = Some(StdinMode::Prompt);
    assert_eq!(
        render(&input(&agent)).unwrap().driver.stdin.as_deref(),
        Some("fix {{home}} & \"it\"")
    );
}

#[test]
fn what_the_run_sets_wins_and_secrets_stay_references() {
    let agent = grok();
    let plain = [EnvVar {
        name: "D".into(),
        value: Some("{{run}}".into()),
        value_from: None,
    }];
    let rendered = render(&Input {
        env: &plain,
        ..input(&agent)
    })
    .unwrap();
    assert_eq!(
        env(&rendered, "D"),
        Some("{{run}}"),
        "the Run's values are no templates"
    );
    let secret: EnvVar = serde_json::from_value(
        json!({"name": "T", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "t"}}}),
    )
    .unwrap();
    let mut keyed = grok();
    let credential = json!({"secretKeyRef": {"name": "model", "key": "k"}, "env": "D"});
    let endpoint = keyed.models.as_mut().unwrap().endpoint.as_mut().unwrap();
    endpoint.credential = serde_json::from_value(credential).unwrap();
    keyed.files[0].template = "k = {{credential}}\np = {{prompt}}".into();
    let rendered = render(&Input {
        env: &[secret],
        ..input(&keyed)
    })
    .unwrap();
    let id = |name: &str, key: &str| SecretId {
        name: name.into(),
        key: key.into(),
    };
    // `D` is set by the driver as well, which comes later.
    assert_eq!(rendered.secret_env, [("T".to_owned(), id("gh", "t"))]);
    assert_eq!((env(&rendered, "T"), env(&rendered, "D")), (None, Some("driver")));
    assert!(rendered.files.is_empty());
    let [file] = &rendered.secret_files[..] else {
        panic!("{rendered:?}")
    };
    assert_eq!(file.path, Path::new(".grok/config.toml"));
    assert_eq!(file.parts[1], Part::Secret(id("model", "k"), FileFormat::Toml));
    assert!(matches!(&file.parts[2], Part::Text(text) if text.starts_with("\np = fix")));
    keyed.models = None;
    assert!(matches!(render(&input(&keyed)), Err(Error::NoValue { .. })));
}

#[test]
fn mistakes_are_told_with_their_place() {
    let told = |change: fn(&mut AgentSpec)| {
        let mut agent = grok();
        change(&mut agent);
        render(&input(&agent)).unwrap_err().to_string()
    };
    type Change = fn(&mut AgentSpec);
    let cases: [(Change, &str); 9] = [
        (
            |a| a.drivers[1].command.push("{{nonsense}}".into()),
            "drivers[].command[6]: unknown placeholder {{nonsense}}",
        ),
        (|a| a.models = None, "{{model}} has no value here"),
        (
            |a| a.drivers[1].dialect = "klingon".into(),
            "drivers[].dialect: unknown dialect \"klingon\"",
        ),
        (|a| a.drivers[1].command.clear(), "drivers[].command is empty"),
        (
            |a| a.files[0].path = "../x".into(),
            "files[0].path: must lie under HOME",
        ),
        (
            |a| a.files[0].path = "/etc/x".into(),
            "files[0].path: must lie under HOME",
        ),
        (
            |a| a.files[0].mode = "0999".into(),
            "files[0].mode: must be an octal number",
        ),
        (
            |a| a.exit_codes.extend([("x".to_owned(), FailureReason::Killed)]),
            "exitCodes.x: the key must be a number",
        ),
        (
            |a| a.stop.as_mut().unwrap().signal = "NUKE".into(),
            "stop.signal: must be TERM",
        ),
    ];
    for (change, want) in cases {
        let got = told(change);
        assert!(got.contains(want), "{got:?} should say {want:?}");
    }
    let mut agent = grok();
    agent.permissions.get_mut("all").unwrap().argv[0].after = "absent".into();
    assert!(matches!(
        render(&input(&agent)),
        Err(Error::NoSuchArgument { .. })
    ));
}

#[test]
fn the_first_driver_that_the_device_can_run_is_used() {
    let mut agent = grok();
    let everything = |program: &str| Some(PathBuf::from(program));
    assert_eq!(choose_driver(&agent, everything).unwrap().0.kind, DriverKind::Acp);
    assert_eq!(choose(&agent).unwrap().kind, DriverKind::Jsonl);
    agent.drivers.truncate(1);
    assert_eq!(choose(&agent), Err(Error::NoProgram("grok-acp".into())));
    agent.drivers[0].kind = DriverKind::Pty;
    assert_eq!(
        choose_driver(&agent, everything),
        Err(Error::NoDriver(vec![DriverKind::Pty]))
    );
}

#[test]
fn a_conversation_gets_its_mode_and_the_usage_that_speaks_of_it() {
    let mut agent = grok();
    agent.drivers[0].authenticate = "key".into();
    // Its arguments stand after one that only the other driver has.
    agent.permissions.get_mut("all").unwrap().acp_mode = "yolo".into();
    let paths = |event: &str| UsagePaths {
        event: event.into(),
        input: "in".into(),
        ..UsagePaths::default()
    };
    agent.usage = Some(paths("session/prompt"));
    let over_acp = |agent: &AgentSpec| {
        render(&Input {
            driver: &agent.drivers[0],
            session: "s1",
            ..input(agent)
        })
    };
    let rendered = over_acp(&agent).unwrap();
    assert_eq!(
        rendered.argv,
        ["grok-acp"],
        "neither prompt nor session are arguments"
    );
    assert_eq!(
        rendered.driver.acp,
        Some(AcpConfig {
            prompt: "fix {{home}} & \"it\"".into(),
            cwd: "/w".into(),
            session: "s1".into(),
            authenticate: "key".into(),
            mode: "yolo".into(),
            consent: Consent::All,
        })
    );
    assert_eq!(rendered.driver.usage, agent.usage);
    let built_in = dialect("grok").unwrap().usage;
    assert_eq!(render(&input(&agent)).unwrap().driver.usage, Some(built_in));
    agent.usage = Some(paths("end"));
    assert_eq!(over_acp(&agent).unwrap().driver.usage, None);
    agent.drivers[0].client_capabilities = Some(json!({"fs": {"readTextFile": true}}));
    let error = over_acp(&agent).unwrap_err().to_string();
    assert!(error.contains("clientCapabilities"), "{error}");
}

#[test]
fn braces_that_are_no_placeholder_stay() {
    let values = Values::new([("home", "/h".to_owned())]);
    for (template, want) in [
        ("{\"a\":{\"b\":\"{{home}}\"}}", "{\"a\":{\"b\":\"/h\"}}"),
        ("{{{home}}}", "{/h}"),
        ("{{ home }} {{", "{{ home }} {{"),
        ("", ""),
    ] {
        assert_eq!(values.fill(template, "f", FileFormat::Json).unwrap(), want);
    }
}

#[test]
fn watchdog_limits_have_defaults() {
    let spec = SupervisionSpec {
        silence: Some(panda_api::meta::Duration::from_secs(7)),
        ..SupervisionSpec::default()
    };
    let got = limits(Some(&spec), Some(Duration::from_secs(9)));
    assert_eq!(
        (
            got.first_output.as_secs(),
            got.silence.as_secs(),
            got.attempt.as_secs()
        ),
        (120, 7, 9)
    );
    assert_eq!(limits(None, None), Limits::default());
}

#[test]
fn a_conversation_in_json_lines_takes_the_prompt_by_standard_input() {
    let driver = |dialect: &str| {
        agent(json!({
            "drivers": [{"kind": "StreamJson", "dialect": dialect, "command": ["claude", "-p"], "resume": {"append": ["--resume", "{{session}}"]}}],
            "permissions": {"edits": {"argv": [{"add": ["--edits"]}]}},
        }))
    };
    let claude = driver("claude");
    let rendered = render(&Input {
        session: "s1",
        ..input(&claude)
    })
    .unwrap();
    assert_eq!(rendered.argv, ["claude", "-p", "--edits", "--resume", "s1"]);
    assert_eq!(
        rendered.driver.stream_json,
        Some(StreamJsonConfig {
            prompt: "fix {{home}} & \"it\"".into(),
            consent: Consent::Edits,
        })
    );
    let other = driver("grok");
    let error = render(&input(&other)).unwrap_err();
    assert!(error.to_string().contains("`claude` only"), "{error}");
}
