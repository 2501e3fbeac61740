//! Workspace and job of the agent, made before anything is started.

use std::io;
use std::path::Path;

use panda_api::{AgentSpec, FailureReason, NetworkMode, SandboxProfile};

use super::home;
use super::job::chain;
use super::record::{Folder, Record, Stage};
use super::worker::{Halt, Worker, failed};
use crate::driver;
use crate::driver::render::{self, Rendered};
use crate::supervisor::{DisconnectRule, Handle, JobFence, JobSpec, Limits, Program, RunFolder};
use crate::workspace::{self, Content, LaunchProof, TreeEmpty, Workspace};

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
        loop {
            let made = self
                .env
                .workspaces
                .prepare(&key, self.uid(), content, former.as_ref());
            match self.guarded(made).await? {
                Ok(workspace) => return Ok(workspace),
                Err(workspace::Error::Held { by }) if former.is_none() => {
                    former = Some(self.former_is_empty(&by).await?);
                }
                Err(error) => return Err(Halt::End(failed(error.reason(), chain(&error)))),
            }
        }
    }

    /// The proof that nothing of another run is left, ending what is.
    async fn former_is_empty(&self, uid: &str) -> Result<TreeEmpty, Halt> {
        let folder = Folder::new(&self.env.runs(), uid);
        let record = folder.load()?;
        let ended = record
            .as_ref()
            .is_none_or(|record: &Record| record.stage >= Stage::Finished);
        if !ended {
            let why = format!("run {uid} of this task is still at work in its workspace");
            return Err(Halt::End(failed(FailureReason::WorkspaceFailed, why)));
        }
        let job = RunFolder::at(&folder.agent());
        if job.spec_path().exists() {
            // Cleans up behind a supervisor that was killed.
            Handle::adopt(&job).await.map_err(io::Error::other)?;
        }
        Ok(TreeEmpty::proved(uid))
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
            log: crate::supervisor::log::Caps::default(),
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
        home::fill(home, &rendered.folders, &rendered.files, self.env.user)
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
            starts: Some(self.env.config.data_dir.join("starts.jsonl")),
            ..self.base_spec()
        })
    }

    fn render(&self, tree: &Path, home: &Path, resumed: bool) -> Result<Rendered, render::Error> {
        let run = &self.record.run;
        let none = AgentSpec::default();
        let agent = run.spec.agent_spec.as_ref().unwrap_or(&none);
        render::render(&render::Input {
            agent,
            driver: render::choose_driver(agent)?,
            prompt: &run.spec.prompt,
            model: &run.spec.agent.model,
            // A session lives in the HOME of the attempt that made it.
            session: if resumed { &run.spec.resume_session } else { "" },
            workspace: tree,
            home,
            run: &run.metadata.name,
            task: &run.spec.task_ref.name,
            path: &self.env.config.path,
            env: &run.spec.env,
            limits: &[],
        })
    }
}
