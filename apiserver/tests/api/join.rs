//! Join tokens, certificate requests, and the certificates that come of them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use panda_api::Device;
use panda_api::meta::Duration;
use panda_apiserver::pki::{Identity, Subject, peer};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::harness::{Client, Harness, PATIENCE, Reply};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TOKENS: &str = "/apis/panda.dev/v1alpha1/jointokens";
const DEVICES: &str = "/apis/panda.dev/v1alpha1/devices";

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

fn key_of_another() -> KeyPair {
    key()
}

fn request_with(
    key: &KeyPair,
    change: impl FnOnce(&mut CertificateParams),
) -> rcgen::CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    change(&mut params);
    params.serialize_request(key).unwrap()
}

fn request(key: &KeyPair, name: &str) -> rcgen::CertificateSigningRequest {
    request_with(key, |params| {
        params
            .distinguished_name
            .push(DnType::CommonName, format!("panda:device:{name}"));
    })
}

fn object(request: &rcgen::CertificateSigningRequest) -> Value {
    body(STANDARD.encode(request.pem().unwrap()))
}

fn body(request: String) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "device-"},
        "spec": {"signerName": "panda.dev/device", "usages": ["client auth"], "request": request},
    })
}

fn pem_of(der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n").into_bytes()
}

async fn token(server: &Harness, wanted: Value) -> String {
    let made = server.admin.post(TOKENS, &wanted).await.expect(201);
    assert_eq!(made["caCertHash"], server.pki.ca_hash());
    made["token"].as_str().unwrap().to_owned()
}

async fn ask(server: &Harness, token: &str, request: &Value) -> Reply {
    server.anonymous().bearer(token).post(REQUESTS, request).await
}

fn certificate(made: &Value) -> String {
    let pem = STANDARD
        .decode(made["status"]["certificate"].as_str().unwrap())
        .unwrap();
    String::from_utf8(pem).unwrap()
}

fn subject(made: &Value) -> Subject {
    let der = CertificateDer::from_pem_slice(certificate(made).as_bytes()).unwrap();
    peer(&der).unwrap().0
}

fn client(server: &Harness, made: &Value, key: &KeyPair) -> Client {
    let identity = Identity {
        certificate_pem: certificate(made),
        key_pem: key.serialize_pem(),
    };
    Client::new(server.address, server.pki.ca_certificate_pem(), Some(&identity))
}

async fn device(server: &Harness, name: &str) -> Device {
    let found = server.admin.get(&format!("{DEVICES}/{name}")).await.expect(200);
    serde_json::from_value(found).unwrap()
}

/// A device that has joined: what came of it, and its key.
async fn joined(server: &Harness, name: &str) -> (Value, KeyPair) {
    let key = key();
    let token = token(server, json!({})).await;
    (
        ask(server, &token, &object(&request(&key, name)))
            .await
            .expect(201),
        key,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_makes_one_device_and_the_same_request_again_gets_the_same_answer() {
    let server = Harness::start().await;
    let token = token(&server, json!({})).await;
    let key = key();
    let wanted = object(&request(&key, "pi"));
    let made = ask(&server, &token, &wanted).await.expect(201);
    let device = device(&server, "pi").await;
    assert_eq!(subject(&made), Subject::device("pi", &device.metadata.uid));
    assert!(device.status.key_fingerprint.starts_with("sha256:"));
    assert!(device.status.certificate_expires.is_some());
    assert_eq!(made["status"]["conditions"][0]["type"], "Approved");
    assert_eq!(made["spec"]["uid"], device.metadata.uid);

    let again = ask(&server, &token, &object(&request(&key, "pi")))
        .await
        .expect(201);
    assert_eq!(again["metadata"]["uid"], made["metadata"]["uid"]);
    let other = object(&request(&key_of_another(), "pi-2"));
    let refused = ask(&server, &token, &other).await.refused(403, "Forbidden");
    assert!(
        refused["message"].as_str().unwrap().contains("used already"),
        "{refused}"
    );
    server
        .admin
        .get(&format!("{DEVICES}/pi-2"))
        .await
        .refused(404, "NotFound");

    // Nothing of the token's secret is in the store.
    let secret = token.split_once('.').unwrap().1;
    let all = server.admin.get(REQUESTS).await.expect(200).to_string();
    assert!(!all.contains(secret));
    let id = token.split_once('.').unwrap().0;
    let kept = server
        .store
        .get(panda_store::Key::new("panda.internal/jointokens", "", id))
        .await
        .unwrap()
        .unwrap();
    assert!(!String::from_utf8_lossy(&kept.value).contains(secret));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_no_good_are_refused_with_the_reason() {
    let server = Harness::start().await;
    let wanted = object(&request(&key(), "pi"));
    let bound = token(&server, json!({"deviceName": "mac"})).await;
    let refused = ask(&server, &bound, &wanted).await.refused(403, "Forbidden");
    assert!(
        refused["message"].as_str().unwrap().contains("\"mac\" only"),
        "{refused}"
    );
    ask(&server, &bound, &object(&request(&key(), "mac")))
        .await
        .expect(201);

    // Good for another name, so that asking does not use it up while it lasts.
    let short = token(&server, json!({"ttlSeconds": 1, "deviceName": "mac"})).await;
    let begun = std::time::Instant::now();
    loop {
        let refused = ask(&server, &short, &wanted).await.refused(403, "Forbidden");
        if refused["message"].as_str().unwrap().contains("ended at") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{refused}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }

    // Whichever part is wrong, the answer is the same.
    let good = token(&server, json!({})).await;
    let (id, secret) = good.split_once('.').unwrap();
    for wrong in [
        format!("{id}.{}", "0".repeat(64)),
        format!("{}.{secret}", "0".repeat(12)),
        format!("{id}."),
        id.to_owned(),
        format!("{id}.{secret}0"),
    ] {
        let refused = ask(&server, &wrong, &wanted).await.refused(401, "Unauthorized");
        assert_eq!(refused["message"], "Unauthorized", "{wrong}");
    }
    for (wanted, field) in [
        (json!({"ttlSeconds": 0}), "ttlSeconds"),
        (json!({"deviceName": "Not A Name"}), "deviceName"),
    ] {
        let refused = server.admin.post(TOKENS, &wanted).await.refused(422, "Invalid");
        assert!(refused["message"].as_str().unwrap().starts_with(field));
    }
    // A joiner may do nothing else.
    let joiner = server.anonymous().bearer(&good);
    for path in [DEVICES, REQUESTS, "/api/v1/namespaces/default/secrets"] {
        joiner.get(path).await.refused(403, "Forbidden");
    }
    joiner.post(TOKENS, &json!({})).await.refused(403, "Forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_listed_without_their_secrets_and_can_be_revoked() {
    let server = Harness::start().await;
    let used = token(&server, json!({})).await;
    ask(&server, &used, &object(&request(&key(), "pi")))
        .await
        .expect(201);
    let open = token(&server, json!({"deviceName": "mac"})).await;
    let listed = server.admin.get(TOKENS).await.expect(200);
    assert_eq!(listed["kind"], "JoinTokenList");
    let text = listed.to_string();
    for token in [&used, &open] {
        assert!(!text.contains(token.split_once('.').unwrap().1), "{text}");
    }
    let of = |token: &str| {
        let id = token.split_once('.').unwrap().0.to_owned();
        let items = listed["items"].as_array().unwrap();
        items
            .iter()
            .find(|item| item["metadata"]["name"] == id.as_str())
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&of(&used)["state"], &of(&used)["joined"]),
        (&json!("Used"), &json!("pi"))
    );
    assert_eq!(
        (&of(&open)["state"], &of(&open)["deviceName"]),
        (&json!("Unused"), &json!("mac"))
    );

    let one = |token: &str| format!("{TOKENS}/{}", token.split_once('.').unwrap().0);
    let revoked = server.admin.delete(&one(&open)).await.expect(200);
    assert_eq!(revoked["state"], "Unused");
    let wanted = object(&request(&key(), "mac"));
    ask(&server, &open, &wanted).await.refused(401, "Unauthorized");
    server.admin.delete(&one(&open)).await.refused(404, "NotFound");
    for id in ["no-token", "..%2f..%2fx", "0123456789ab"] {
        server
            .admin
            .delete(&format!("{TOKENS}/{id}"))
            .await
            .refused(404, "NotFound");
    }
    let tried = format!("{}?dryRun=All", one(&used));
    server.admin.delete(&tried).await.refused(400, "BadRequest");
    // A device stays one whatever becomes of its token.
    server.admin.delete(&one(&used)).await.expect(200);
    assert_eq!(device(&server, "pi").await.metadata.name, "pi");
    // Neither those who join nor those who have no role for it.
    let holder = token(&server, json!({})).await;
    let viewer = server.client(&Subject::user("viewer", &[]));
    for other in [server.anonymous().bearer(&holder), viewer] {
        other.get(TOKENS).await.refused(403, "Forbidden");
        other.delete(&one(&holder)).await.refused(403, "Forbidden");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_more_gets_only_its_own_name() {
    let server = Harness::start().await;
    let token = token(&server, json!({})).await;
    let greedy = request_with(&key(), |params| {
        params
            .distinguished_name
            .push(DnType::CommonName, "panda:device:pi");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        let urn = "urn:panda:device:another".to_owned().try_into().unwrap();
        params.subject_alt_names = vec![SanType::URI(urn)];
    });
    let mut wanted = object(&greedy);
    wanted["spec"]["username"] = "panda:admin".into();
    wanted["spec"]["groups"] = json!(["system:masters"]);
    let made = ask(&server, &token, &wanted).await.expect(201);
    let device = device(&server, "pi").await;
    assert_eq!(subject(&made), Subject::device("pi", &device.metadata.uid));
    assert!(
        made["spec"]["username"]
            .as_str()
            .unwrap()
            .starts_with("panda:join:")
    );
    assert!(!made["spec"]["groups"].to_string().contains("masters"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_belongs_to_its_key_until_the_device_is_removed() {
    let server = Harness::start().await;
    let (first, first_key) = joined(&server, "pi").await;
    let token = token(&server, json!({})).await;
    let second_key = key();
    let wanted = object(&request(&second_key, "pi"));
    let refused = ask(&server, &token, &wanted).await.refused(409, "Conflict");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("pandactl device remove"),
        "{refused}"
    );

    server.admin.delete(&format!("{DEVICES}/pi")).await.expect(200);
    // The token was not used up by the refusal.
    let second = ask(&server, &token, &wanted).await.expect(201);
    assert_ne!(subject(&first).device_uid, subject(&second).device_uid);
    // The removed device's certificate is worth nothing, its key neither.
    let old = client(&server, &first, &first_key);
    old.post(REQUESTS, &object(&request(&first_key, "pi")))
        .await
        .refused(403, "Forbidden");
    let proof = format!("csr.{}", URL_SAFE_NO_PAD.encode(request(&first_key, "pi").der()));
    ask(&server, &proof, &object(&request(&first_key, "pi")))
        .await
        .refused(401, "Unauthorized");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_renews_with_its_own_key_and_no_other() {
    let server = Harness::start().await;
    let (made, own) = joined(&server, "pi").await;
    joined(&server, "mac").await;
    let pi = client(&server, &made, &own);
    let renewed = pi.post(REQUESTS, &object(&request(&own, "pi"))).await.expect(201);
    assert_eq!(subject(&renewed), subject(&made));
    assert_ne!(certificate(&renewed), certificate(&made));
    pi.post(REQUESTS, &object(&request(&key(), "pi")))
        .await
        .refused(403, "Forbidden");
    pi.post(REQUESTS, &object(&request(&own, "mac")))
        .await
        .refused(403, "Forbidden");
    // People ask for none.
    server
        .admin
        .post(REQUESTS, &object(&request(&key(), "x")))
        .await
        .refused(403, "Forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_expiry_the_key_may_ask_and_a_person_decides() {
    let server = Harness::with(|config| config.certificates.device_life = Duration::from_secs(1)).await;
    let (_, own) = joined(&server, "pi").await;
    let wanted = request(&own, "pi");
    let proof = format!("csr.{}", URL_SAFE_NO_PAD.encode(wanted.der()));
    let waiting = ask(&server, &proof, &object(&wanted)).await.expect(201);
    assert_eq!(waiting["metadata"]["name"], "expired-pi");
    assert!(waiting["status"].get("certificate").is_none(), "{waiting}");
    let again = ask(&server, &proof, &object(&wanted)).await.expect(201);
    assert_eq!(
        again["metadata"]["uid"], waiting["metadata"]["uid"],
        "one request a device"
    );
    let now = device(&server, "pi").await;
    let condition = now
        .status
        .conditions
        .iter()
        .find(|c| c.type_ == "CertificateExpiring")
        .unwrap();
    assert_eq!(condition.status, "True");
    assert!(
        condition
            .message
            .contains("pandactl certificate approve expired-pi")
    );
    // Another's key proves nothing, and what the proof opens is this request alone.
    let stranger = format!("csr.{}", URL_SAFE_NO_PAD.encode(request(&key(), "pi").der()));
    ask(&server, &stranger, &object(&wanted))
        .await
        .refused(401, "Unauthorized");
    ask(&server, &proof, &object(&request(&key(), "pi")))
        .await
        .refused(403, "Forbidden");
    server
        .anonymous()
        .bearer(&proof)
        .get(DEVICES)
        .await
        .refused(403, "Forbidden");

    // The status is the signer's; the decision goes through its own door.
    let path = format!("{REQUESTS}/expired-pi");
    let mut forged = server.admin.get(&path).await.expect(200);
    forged["status"]["certificate"] = "Zm9yZ2Vk".into();
    server
        .admin
        .put(&format!("{path}/status"), &forged)
        .await
        .refused(403, "Forbidden");
    let mut decided = server.admin.get(&path).await.expect(200);
    decided["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "Me", "message": "it is mine"}]);
    let approved = server
        .admin
        .put(&format!("{path}/approval"), &decided)
        .await
        .expect(200);
    assert_eq!(
        subject(&approved).device_uid.as_deref(),
        Some(now.metadata.uid.as_str())
    );
    decided["status"]["conditions"] = json!([{"type": "Denied", "status": "True"}]);
    server
        .admin
        .put(&format!("{path}/approval"), &decided)
        .await
        .refused(409, "Conflict");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_for_a_request_is_refused_and_uses_no_token() {
    let server = Harness::start().await;
    let token = token(&server, json!({})).await;
    let good = request(&key(), "pi");
    let pem = good.pem().unwrap();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut bad: Vec<Vec<u8>> = vec![Vec::new(), b"-----BEGIN CERTIFICATE REQUEST-----\n".to_vec()];
    for _ in 0..64 {
        let bytes = any::<Vec<u8>>().new_tree(&mut runner).unwrap().current();
        bad.push(bytes.clone());
        bad.push(pem_of(&bytes));
    }
    // A single flipped bit anywhere breaks the structure, the name, or the proof.
    for at in (0..good.der().len()).step_by(7) {
        let mut der = good.der().to_vec();
        der[at] ^= 0x10;
        bad.push(pem_of(&der));
    }
    let twice = format!("{pem}{pem}");
    bad.push(twice.into_bytes());
    for bytes in bad {
        ask(&server, &token, &body(STANDARD.encode(&bytes)))
            .await
            .refused(422, "Invalid");
        let proof = format!("csr.{}", URL_SAFE_NO_PAD.encode(&bytes));
        ask(&server, &proof, &object(&good))
            .await
            .refused(401, "Unauthorized");
    }
    ask(&server, &token, &body("no base64!".into()))
        .await
        .refused(422, "Invalid");
    for name in [
        "panda:device:",
        "panda:device:UPPER",
        "system:masters",
        "panda:device:a/b",
        "",
    ] {
        let named = request_with(&key(), |params| {
            params.distinguished_name.push(DnType::CommonName, name)
        });
        ask(&server, &token, &object(&named))
            .await
            .refused(422, "Invalid");
    }
    ask(&server, &token, &object(&good)).await.expect(201);
    server.stop().await;
}

/// The name of a certificate request that a device has made.
pub(crate) async fn device_request(server: &Harness) -> String {
    let token = token(server, json!({})).await;
    let made = ask(server, &token, &object(&request(&key(), "pi")))
        .await
        .expect(201);
    made["metadata"]["name"].as_str().unwrap().to_owned()
}
