//! Workspace and job of the agent, made before anything is started.

use std::io;
use std::path::Path;

use panda_api::{AgentSpec, FailureReason, NetworkMode, SandboxProfile};

use tokio::time::{Duration, Instant, sleep};

use super::home;
use super::job::chain;
use super::record::{Folder, Record, Stage};
use super::worker::{Halt, Worker, failed};
use crate::detect::which;
use crate::driver;
use crate::driver::render::{self, Rendered};
use crate::supervisor::{
    ApiAccess, DisconnectRule, Handle, JobFence, JobSpec, Limits, Program, RunFolder, SecretUse, folder_for,
};
use crate::workspace::{self, Content, LaunchProof, TreeEmpty, Workspace};

/// How long a former attempt of the task may take to end.
const FORMER: Duration = Duration::from_secs(120);
/// Between looks at it.
const LOOK: Duration = Duration::from_millis(200);

impl Worker {
    /// Makes the workspace and the agent's job.
    pub(super) async fn prepare(&mut self) -> Result<(), Halt> {
        if let Some((reason, why)) = self.unsupported() {
            return Err(Halt::End(failed(reason, why)));
        }
        let content = self.content()?;
        let workspace = self.lend(&content).await?;
        let made = if workspace.resumed() {
            "an earlier attempt's workspace"
        } else {
            "a fresh workspace"
        };
        let base = workspace
            .base_commit()
            .map(|base| format!(" at {base}"))
            .unwrap_or_default();
        self.logs.say(&format!(
            "{made}{base} is ready on {}",
            self.env.config.device_name
        ));
        let job = RunFolder::at(&self.folder.agent());
        if !job.spec_path().exists() {
            let proof = self.env.workspaces.prove(&workspace).await;
            let proof = proof.map_err(|error| Halt::End(failed(error.reason(), chain(&error))))?;
            let spec = self.agent_spec(&proof, workspace.resumed())?;
            self.make_job(&job, &spec)?;
        }
        // Until it has been looked through.
        self.record.tainted = self.has_secrets();
        self.advance(Stage::Working)
    }

    fn unsupported(&self) -> Option<(FailureReason, String)> {
        let spec = &self.record.run.spec;
        let least = self.env.config.owner.min_sandbox;
        if least != SandboxProfile::Off {
            let why =
                format!("the device's owner demands profile {least:?}, and only Off is built on it yet");
            return Some((FailureReason::SandboxUnavailable, why));
        }
        let sandbox = spec.sandbox.as_ref();
        if sandbox
            .and_then(|s| s.profile)
            .is_some_and(|profile| profile != SandboxProfile::Off)
        {
            let why = "only profile Off is built on this device yet; leave sandbox.profile out";
            return Some((FailureReason::SandboxUnavailable, why.into()));
        }
        let network = sandbox.and_then(|s| s.network.as_ref()).and_then(|n| n.mode);
        if network.is_some_and(|mode| mode != NetworkMode::Host) {
            let why = "profile Off cannot limit the network; use network.mode Host, or leave it out";
            return Some((FailureReason::SandboxUnavailable, why.into()));
        }
        None
    }

    fn content(&self) -> Result<Content, Halt> {
        let run = &self.record.run;
        let Some(spec) = run.spec.workspace.as_ref() else {
            return Ok(Content::Empty);
        };
        let Some(git) = &spec.git else {
            return Ok(Content::Empty);
        };
        if !git.url.is_empty() {
            let why = "repositories by URL are not implemented yet; use workspace.git.path";
            return Err(Halt::End(failed(FailureReason::WorkspaceFailed, why)));
        }
        let branch = spec.result.as_ref().map(|result| result.branch.as_str());
        let branch = branch
            .filter(|branch| !branch.is_empty())
            .unwrap_or("panda/{{name}}");
        Ok(Content::Git {
            path: git.path.clone().into(),
            reference: git.ref_.clone(),
            branch: branch.replace("{{name}}", &run.spec.task_ref.name),
        })
    }

    /// Gets the workspace; one that is still lent to a former attempt only once nothing of that is left.
    async fn lend(&mut self, content: &Content) -> Result<Workspace, Halt> {
        let key = super::key(&self.record.run);
        let mut former: Option<TreeEmpty> = None;
        let until = Instant::now() + FORMER;
        loop {
            let made = self
                .env
                .workspaces
                .prepare(&key, self.uid(), content, former.as_ref());
            match self.guarded(made).await? {
                Ok(workspace) => return Ok(workspace),
                Err(workspace::Error::Held { by }) if former.is_none() => {
                    former = self.former_is_empty(&by).await?;
                    if former.is_none() && Instant::now() >= until {
                        let why = format!("run {by} of this task is still at work in its workspace");
                        return Err(Halt::End(failed(FailureReason::WorkspaceFailed, why)));
                    }
                    if former.is_none() {
                        self.guarded(sleep(LOOK)).await?;
                    }
                }
                Err(error) => {
                    let mut ending = failed(error.reason(), chain(&error));
                    ending.failure.refusal = error.refusal();
                    return Err(Halt::End(ending));
                }
            }
        }
    }

    /// The proof that nothing of another run is left; none while that is being ended.
    async fn former_is_empty(&self, uid: &str) -> Result<Option<TreeEmpty>, Halt> {
        let folder = Folder::new(&self.env.runs(), uid);
        let record = folder.load()?;
        let ended = record
            .as_ref()
            .is_none_or(|record: &Record| record.stage >= Stage::Finished);
        if !ended {
            return Ok(None);
        }
        let job = RunFolder::at(&folder.agent());
        if job.spec_path().exists() {
            // Cleans up behind a supervisor that was killed.
            let adopted = Handle::adopt(&job).await.map_err(io::Error::other)?;
            if matches!(adopted, crate::supervisor::Adopted::Running(_)) {
                return Ok(None);
            }
        }
        Ok(Some(TreeEmpty::proved(uid)))
    }

    /// What all jobs of a run have in common.
    pub(super) fn base_spec(&self) -> JobSpec {
        let on_disconnect = self.on_disconnect();
        JobSpec {
            fence: JobFence {
                task_uid: self.fence.task_uid.clone(),
                run_uid: self.fence.run_uid.clone(),
                attempt: self.fence.attempt,
                epoch: self.fence.epoch,
                device_uid: self.fence.device_uid.clone(),
            },
            boot_id: self.record.boot_id.clone(),
            program: Program::default(),
            pre_run: Vec::new(),
            driver: driver::DriverConfig::default(),
            limits: Limits::default(),
            stop: crate::process::StopPolicy::default(),
            on_disconnect: DisconnectRule {
                policy: on_disconnect.policy,
                after: on_disconnect.after.get(),
            },
            grant_grace: self.env.config.kill_grace * 2 / 3,
            log: crate::supervisor::log::Caps::default(),
            secrets: None,
            reserve: Some(self.env.reserve.path().to_owned()),
            starts: None,
            helper: self.env.helper.clone(),
        }
    }

    /// A job can be made of a proved workspace alone.
    fn agent_spec(&self, proof: &LaunchProof, resumed: bool) -> Result<JobSpec, Halt> {
        let run = &self.record.run;
        let spec = &run.spec;
        let (tree, home) = (proof.tree(), proof.home());
        let rendered = self.render(tree, home, resumed);
        let rendered = rendered.map_err(|error| {
            // Another candidate may do.
            let message = format!("Agent {}: {}", spec.agent.name, chain(&error));
            Halt::End(failed(FailureReason::AgentNotFound, message))
        })?;
        let secrets = self.secret_use(&rendered)?;
        let links = match &secrets.folder {
            Some(folder) => rendered
                .secret_files
                .iter()
                .map(|f| (f.path.as_path(), folder.join(&f.path)))
                .collect(),
            None => Vec::new(),
        };
        home::fill(home, &rendered.folders, &rendered.files, &links, self.env.user)
            .map_err(|e| Halt::End(failed(FailureReason::WorkspaceFailed, chain(&e))))?;
        let attempt = spec.attempt_timeout.as_ref().map(panda_api::meta::Duration::get);
        let mut visible = vec![tree.to_owned(), home.to_owned(), proof.tmp().to_owned()];
        visible.extend_from_slice(proof.read_only());
        Ok(JobSpec {
            program: Program {
                argv: rendered.argv,
                env: rendered.env,
                cwd: tree.to_owned(),
                home: home.to_owned(),
                user: self.env.user,
                user_is_exclusive: false,
                hidden: self.env.config.all_hidden(),
                visible,
            },
            pre_run: rendered.pre_run,
            driver: rendered.driver,
            limits: render::limits(spec.supervision.as_ref(), attempt),
            stop: rendered.stop,
            secrets: self.has_secrets().then_some(secrets),
            starts: Some(self.env.config.data_dir.join("starts.jsonl")),
            ..self.base_spec()
        })
    }

    /// Which values the job uses, and where.
    fn secret_use(&self, rendered: &Rendered) -> Result<SecretUse, Halt> {
        let run = &self.record.run;
        let api = (run.spec.api_access == Some(true)).then(|| ApiAccess {
            servers: self.env.config.servers.clone(),
            ca: self.env.config.ca_pem.clone(),
            namespace: run.metadata.namespace.clone(),
        });
        let folder = if rendered.secret_files.is_empty() && api.is_none() {
            None
        } else {
            let mark = format!("{}-{}", self.fence.run_uid, self.fence.attempt);
            Some(folder_for(&mark).ok_or_else(|| {
                let why = "the run has files with a key or a token, and this device has no tmpfs at /dev/shm to keep them in";
                Halt::End(failed(FailureReason::SandboxUnavailable, why))
            })?)
        };
        Ok(SecretUse {
            env: rendered.secret_env.clone(),
            files: rendered.secret_files.clone(),
            folder,
            api,
        })
    }

    fn render(&self, tree: &Path, home: &Path, resumed: bool) -> Result<Rendered, render::Error> {
        let run = &self.record.run;
        let none = AgentSpec::default();
        let agent = run.spec.agent_spec.as_ref().unwrap_or(&none);
        let path = &self.env.config.path;
        let (driver, _) = render::choose_driver(agent, |program| which(program, path))?;
        render::render(&render::Input {
            agent,
            driver,
            prompt: &run.spec.prompt,
            model: &run.spec.agent.model,
            // A session lives in the HOME of the attempt that made it.
            session: if resumed { &run.spec.resume_session } else { "" },
            workspace: tree,
            home,
            run: &run.metadata.name,
            task: &run.spec.task_ref.name,
            path,
            env: &run.spec.env,
            limits: &[],
        })
    }
}
