use super::*;

fn no_files(path: &str) -> io::Result<Vec<u8>> {
    Err(io::Error::new(io::ErrorKind::NotFound, path.to_owned()))
}

const SAMPLE: &str = "
apiVersion: v1
kind: Config
current-context: dev
preferences: {colors: true}
clusters:
- name: local
  cluster: {server: 'https://127.0.0.1:7443', certificate-authority-data: Q0E=}
users:
- name: me
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}
- name: bot
  user: {tokenFile: /run/token}
contexts:
- name: dev
  context: {cluster: local, user: me, namespace: web}
- name: ci
  context: {cluster: local, user: bot}
";

#[test]
fn resolves_the_current_context() {
    let config = Kubeconfig::parse(SAMPLE)
        .unwrap()
        .resolve(None, &no_files)
        .unwrap();
    assert_eq!(config.server, "https://127.0.0.1:7443");
    assert_eq!(config.ca, b"CA");
    assert_eq!(config.namespace, "web");
    assert_eq!(
        config.identity,
        Identity::ClientCert {
            cert: b"CERT".to_vec(),
            key: b"KEY".to_vec()
        }
    );
}

#[test]
fn reads_files_only_through_the_function_given() {
    let file = |path: &str| {
        assert_eq!(path, "/run/token");
        Ok(b"s3cret\n".to_vec())
    };
    let config = Kubeconfig::parse(SAMPLE)
        .unwrap()
        .resolve(Some("ci"), &file)
        .unwrap();
    assert_eq!(config.identity, Identity::Bearer("s3cret".into()));
    assert_eq!(config.namespace, "default");
    assert!(!format!("{config:?}").contains("s3cret"));

    let error = Kubeconfig::parse(SAMPLE)
        .unwrap()
        .resolve(Some("ci"), &no_files)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "users[1].user.tokenFile: cannot read /run/token"
    );
}

#[test]
fn errors_name_the_field() {
    let cases = [
        (
            "https://127.0.0.1:7443",
            "http://x",
            "clusters[0].cluster.server: \"http://x\": want https://host:port",
        ),
        ("https://127.0.0.1:7443", "'", "clusters"),
        (
            "Q0E=",
            "no~base64",
            "clusters[0].cluster.certificate-authority-data: not base64",
        ),
        (
            "certificate-authority-data: Q0E=",
            "insecure-skip-tls-verify: true",
            "clusters[0].cluster.insecure-skip-tls-verify: not supported",
        ),
        (
            ", certificate-authority-data: Q0E=",
            "",
            "clusters[0].cluster.certificate-authority-data: missing",
        ),
        (
            ", client-key-data: S0VZ",
            "",
            "users[0].user.client-key-data: missing beside the certificate",
        ),
        (
            "client-certificate-data: Q0VSVA==",
            "exec: {command: x}",
            "users[0].user.exec: not supported",
        ),
        (
            "cluster: local, user: me",
            "cluster: far, user: me",
            "clusters: no entry named \"far\" (found: local)",
        ),
        (
            "user: me,",
            "user: you,",
            "users: no entry named \"you\" (found: me, bot)",
        ),
        (
            "current-context: dev",
            "current-context: prod",
            "contexts: no entry named \"prod\" (found: dev, ci)",
        ),
        ("current-context: dev", "", "current-context: not set"),
        (
            "namespace: web",
            "namespace: [web]",
            "contexts[0].context.namespace: want text",
        ),
        ("kind: Config", "kind: Pod", "kind: want Config"),
    ];
    for (from, to, want) in cases {
        assert!(SAMPLE.contains(from), "{from}");
        let text = SAMPLE.replace(from, to);
        let error = Kubeconfig::parse(&text)
            .and_then(|k| k.resolve(None, &no_files))
            .expect_err(want)
            .to_string();
        if want != "clusters" {
            assert!(error.starts_with(want), "{error}\nwant {want}");
        }
    }
}

#[test]
fn what_is_written_reads_back_and_unknown_fields_stay() {
    let mut file = Kubeconfig::parse(SAMPLE).unwrap();
    let config = Config {
        server: Uri::from_static("https://panda.local:7443"),
        ca: b"NEW CA".to_vec(),
        tls_server_name: None,
        identity: Identity::Bearer("t".into()),
        namespace: "default".into(),
    };
    file.set_all("panda", &config);
    let again = Kubeconfig::parse(&file.to_yaml().unwrap()).unwrap();
    assert_eq!(again, file);
    assert_eq!(again.current_context(), Some("panda"));
    assert_eq!(again.contexts().unwrap().len(), 3);
    let resolved = again.resolve(None, &no_files).unwrap();
    assert_eq!(resolved.ca, config.ca);
    assert_eq!(resolved.identity, config.identity);
    assert_eq!(resolved.server.authority(), config.server.authority());
    assert!(again.to_yaml().unwrap().contains("colors: true"));

    file.set_all("panda", &config);
    assert_eq!(
        file.contexts().unwrap().len(),
        3,
        "the same name is replaced, not added"
    );
}

#[test]
fn an_empty_file_is_an_empty_kubeconfig() {
    assert_eq!(Kubeconfig::parse("").unwrap(), Kubeconfig::default());
    assert!(Kubeconfig::parse("- a\n- b").is_err());
    assert!(Kubeconfig::parse("a: {").is_err());
}

#[test]
fn another_context_can_be_chosen_only_if_it_exists() {
    let mut file = Kubeconfig::parse(SAMPLE).unwrap();
    file.set_current_context("ci").unwrap();
    assert_eq!(file.current_context(), Some("ci"));
    assert!(file.set_current_context("nope").is_err());
}
