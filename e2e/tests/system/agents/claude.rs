//! Claude Code in JSON lines both ways, where it is installed and its adapter is not.

use super::faults::{R, end_as_measured};
use super::{Cli, claims, mends_the_first_task};

#[tokio::test]
async fn claude_code_mends_the_first_task() -> anyhow::Result<()> {
    mends_the_first_task(Cli::Claude).await
}

#[tokio::test]
async fn claude_code_that_only_claims_success_does_not_succeed() -> anyhow::Result<()> {
    claims(Cli::Claude).await
}

#[tokio::test]
async fn faults_of_the_model_are_named_with_claude_code() -> anyhow::Result<()> {
    end_as_measured(
        Cli::Claude,
        &[
            ("stall", R::Stalled),
            ("auth", R::AuthFailed),
            ("rate", R::RateLimited),
            ("server", R::ProviderError),
            ("context", R::ContextLimit),
            ("loop", R::LoopDetected),
        ],
    )
    .await
}
