//! Values of Secrets go to the device that holds the lease of a live run that names them, and to nobody else.

use panda_api::RunPhase;
use panda_rpc::v1::{Fence, GetRunSecretsRequest, RunSecrets};
use serde_json::json;
use tonic::{Code, Status};

use super::harness::{Cluster, Machine, phase};

async fn ask(machine: &Machine, fence: Option<Fence>) -> Result<RunSecrets, Status> {
    let request = GetRunSecretsRequest { fence };
    let answer = machine.client.clone().get_run_secrets(request).await?;
    Ok(answer.into_inner())
}

/// The refusal, which shows no value.
async fn refused(machine: &Machine, fence: Option<Fence>) -> Code {
    let status = ask(machine, fence).await.unwrap_err();
    assert!(!format!("{status:?}").contains("hunter22"));
    status.code()
}

fn names(secret: &str) -> serde_json::Value {
    json!({"env": [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": secret, "key": "absent"}}},
    ]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_of_a_live_run_gets_what_the_run_names_and_no_more() {
    let cluster = Cluster::start().await;
    cluster.secret("named", "hunter22-named").await;
    cluster.secret("other", "hunter22-other").await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let fence = cluster.bound_with("t-1", &task, &pi, names("named")).await;
    let answer = ask(&pi, Some(fence)).await.unwrap();
    let values: Vec<_> = answer
        .values
        .iter()
        .map(|v| (v.name.as_str(), v.value.as_slice()))
        .collect();
    assert_eq!(values, [("named", &b"hunter22-named"[..])]);
    let missing: Vec<_> = answer.missing.iter().map(|m| m.key.as_str()).collect();
    assert_eq!(missing, ["absent"]);
    assert_eq!(answer.token, "", "the run has no access to the API");
    let other = cluster.task("u").await;
    let fence = cluster
        .bound_with("u-1", &other, &pi, json!({"apiAccess": true}))
        .await;
    let answer = ask(&pi, Some(fence)).await.unwrap();
    assert!(answer.values.is_empty() && !answer.token.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_gets_anything() {
    let cluster = Cluster::start().await;
    cluster.secret("named", "hunter22-named").await;
    let (pi, thief) = (cluster.join("pi").await, cluster.join("thief").await);
    let mut session = pi.session(&cluster).await;
    let task = cluster.task("t").await;
    let fence = cluster.bound_with("t-1", &task, &pi, names("named")).await;
    session.until_told(&fence).await;
    let own = Fence {
        device_uid: thief.uid.clone(),
        ..fence.clone()
    };
    for fence in [fence.clone(), own] {
        let code = refused(&thief, Some(fence)).await;
        assert!(
            matches!(code, Code::PermissionDenied | Code::FailedPrecondition),
            "{code:?}"
        );
    }
    let wrong: [fn(&mut Fence); 5] = [
        |f| f.epoch += 1,
        |f| f.epoch -= 1,
        |f| f.attempt += 1,
        |f| f.run_uid = "unknown".into(),
        |f| f.task_uid = "another".into(),
    ];
    for wrong in wrong {
        let mut fence = fence.clone();
        wrong(&mut fence);
        assert_eq!(
            refused(&pi, Some(fence.clone())).await,
            Code::FailedPrecondition,
            "{fence:?}"
        );
    }
    assert_eq!(refused(&pi, None).await, Code::InvalidArgument);

    // Not yet bound, bound to another device, ended, its lease taken.
    let unbound = Fence {
        run_uid: cluster.run("t-2", &task).await.metadata.uid,
        ..fence.clone()
    };
    assert_eq!(refused(&pi, Some(unbound)).await, Code::FailedPrecondition);
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Preparing)).await, None);
    assert!(ask(&pi, Some(fence.clone())).await.is_ok());
    assert_eq!(session.report(2, &fence, &phase(RunPhase::Cancelled)).await, None);
    assert_eq!(refused(&pi, Some(fence)).await, Code::FailedPrecondition);
    let lost = cluster.bound_with("t-3", &task, &pi, names("named")).await;
    assert!(ask(&pi, Some(lost.clone())).await.is_ok());
    cluster.take(&cluster.lease("t-3").await).await.unwrap();
    assert_eq!(refused(&pi, Some(lost.clone())).await, Code::FailedPrecondition);
    cluster.remove_device("pi").await;
    let code = refused(&pi, Some(lost)).await;
    assert!(
        matches!(code, Code::PermissionDenied | Code::Unauthenticated),
        "{code:?}"
    );
}
