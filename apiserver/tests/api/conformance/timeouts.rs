//! The parameter `timeout`.

use crate::harness::{Harness, TASKS};

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_read_bounded_and_refused_when_it_is_none() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for good in ["", "32s", "0s", "0", "1m30s", "500ms", "100h"] {
        admin.get(&format!("{TASKS}?timeout={good}")).await.expect(200);
    }
    for bad in ["soon", "-1s", "5", "1x"] {
        let status = admin
            .get(&format!("{TASKS}?timeout={bad}"))
            .await
            .refused(400, "BadRequest");
        let message = status["message"].as_str().unwrap();
        assert!(
            message.contains("invalid timeout specified in the request URL"),
            "{message}"
        );
    }
    // Discovery and OpenAPI are asked so by every client.
    for path in ["/apis", "/openapi/v3", "/openapi/v2"] {
        admin.get(&format!("{path}?timeout=32s")).await.expect(200);
    }
    server.stop().await;
}
