use std::fs;
use std::os::unix::fs::PermissionsExt;

use jiff::Timestamp;
use panda_api::meta::RandomIds;
use panda_api::meta::SystemClock;

use super::*;

#[derive(Debug)]
struct Fixed(Timestamp);

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

fn open(dir: &Path) -> Pki {
    Pki::open(dir, Arc::new(SystemClock), Arc::new(RandomIds)).unwrap()
}

fn der(identity: &Identity) -> Vec<u8> {
    x509_parser::pem::parse_x509_pem(identity.certificate_pem.as_bytes())
        .unwrap()
        .1
        .contents
}

#[test]
fn opening_twice_gives_the_same_authority_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let server = first
        .server(&["panda.local".to_owned(), "10.0.0.7".to_owned()])
        .unwrap();
    let again = open(dir.path());
    assert_eq!(first.ca_certificate_pem(), again.ca_certificate_pem());
    assert_eq!(first.ca_hash(), again.ca_hash());
    let same = again
        .server(&["10.0.0.7".to_owned(), "panda.local".to_owned()])
        .unwrap();
    assert_eq!(server.certificate_pem, same.certificate_pem);
    let more = again.server(&["other.local".to_owned()]).unwrap();
    assert_ne!(server.certificate_pem, more.certificate_pem);
    for file in ["ca.pem", "server.pem"] {
        let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
}

#[test]
fn certificates_near_their_end_are_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let then = Timestamp::from_second(1_700_000_000).unwrap();
    let old = Pki::open(dir.path(), Arc::new(Fixed(then)), Arc::new(RandomIds))
        .unwrap()
        .server(&[])
        .unwrap();
    let at = |days: i64| {
        let now = Timestamp::from_second(1_700_000_000 + days * 86400).unwrap();
        Pki::open(dir.path(), Arc::new(Fixed(now)), Arc::new(RandomIds))
            .unwrap()
            .server(&[])
            .unwrap()
    };
    assert_eq!(at(300).certificate_pem, old.certificate_pem);
    assert_ne!(at(340).certificate_pem, old.certificate_pem);
}

#[test]
fn subjects_survive_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path());
    for subject in [
        Subject::admin(),
        Subject::controllers(),
        Subject::user("jo", &["staff"]),
        Subject::device("pi", "0a1b"),
    ] {
        let identity = pki.client("someone", &subject).unwrap();
        assert_eq!(peer(&der(&identity)).unwrap().0, subject);
    }
    let many = pki.issue(&Subject::user("jo", &["a", "b"]));
    assert!(matches!(many, Err(Error::Groups { count: 2, .. })));
}

#[test]
fn a_certificate_of_another_authority_is_replaced_and_a_damaged_file_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(one.path()).server(&[]).unwrap();
    let pki = open(two.path());
    fs::copy(one.path().join("server.pem"), two.path().join("server.pem")).unwrap();
    let foreign = fs::read_to_string(one.path().join("server.pem")).unwrap();
    assert!(!foreign.starts_with(&pki.server(&[]).unwrap().certificate_pem));
    files::write_atomic(&two.path().join("server.pem"), b"-----BEGIN", 0o600).unwrap();
    assert!(matches!(pki.server(&[]), Err(Error::Damaged { .. })));
}

#[test]
fn the_kubeconfig_names_server_and_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path());
    let admin = pki.client("admin", &Subject::admin()).unwrap();
    let text = kubeconfig(
        "https://127.0.0.1:7443",
        pki.ca_certificate_pem(),
        "admin",
        &admin,
        "default",
    );
    let value: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(
        value["clusters"][0]["cluster"]["server"],
        "https://127.0.0.1:7443"
    );
    assert_eq!(value["current-context"], "panda");
    assert!(
        value["users"][0]["user"]["client-key-data"]
            .as_str()
            .unwrap()
            .len()
            > 100
    );
}
