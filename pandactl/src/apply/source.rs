//! Where objects come from: the flags, and what they name.

use super::input::{self, Sources};
use super::kustomize;
use crate::error::Result;
use crate::session::Session;

/// Flags that name manifests.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// A file, a folder, or - for standard input; may be repeated
    #[arg(
        short = 'f',
        long = "filename",
        value_name = "FILE",
        required_unless_present = "kustomize"
    )]
    pub filename: Vec<String>,
    /// A folder with a kustomization, built by `kustomize` or `kubectl`
    #[arg(short = 'k', long, value_name = "FOLDER", conflicts_with_all = ["filename", "recursive"])]
    pub kustomize: Option<String>,
    /// Look into the folders below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

impl SourceArgs {
    /// Reads everything that is named.
    ///
    /// # Errors
    /// When something is not there or cannot be read at all. What is wrong inside is in the answer.
    pub async fn read(&self, session: &mut Session<'_>) -> Result<Sources> {
        let Some(folder) = &self.kustomize else {
            return input::read(session.io, &self.filename, self.recursive);
        };
        let built = kustomize::build(&session.io.env, folder).await?;
        let mut sources = Sources::default();
        sources.add(&format!("kustomization of {folder}"), &built);
        Ok(sources)
    }
}
