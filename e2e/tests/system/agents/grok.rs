//! Grok Build, one JSON event a line.

use super::{Cli, claims, mends_the_first_task};

#[tokio::test]
async fn grok_mends_the_first_task() -> anyhow::Result<()> {
    mends_the_first_task(Cli::Grok).await
}

#[tokio::test]
async fn grok_that_only_claims_success_does_not_succeed() -> anyhow::Result<()> {
    claims(Cli::Grok).await
}
