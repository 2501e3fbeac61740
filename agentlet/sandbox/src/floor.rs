//! The helper's side: apply the layers one after the other, report, wait for the word, exec.

mod hide;
mod mounts;

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Resource, Rlimit, Signal, geteuid, setrlimit, setsid, umask};
use rustix::thread::{CapabilitySet, Gid, Uid};

use crate::launch::{Answer, GO, MAX_MESSAGE};
use crate::raw;
use crate::spec::{FloorError, FloorSpec, Layer, Report, Strength};

/// `main` of the helper stage: reads a [`FloorSpec`] from the socket on standard input, makes the floor, becomes the
/// program. Returns only when that failed; the reason has then been sent to the caller.
#[must_use]
pub fn exec_floor() -> ExitCode {
    let Ok((mut control, spec, stdin)) = receive() else {
        // Started by hand: there is nobody to answer on a socket.
        drop(
            io::stderr()
                .write_all(b"this stage is started by the agentlet with a socket on standard input\n"),
        );
        return ExitCode::from(2);
    };
    let failed = match run(&mut control, &spec, stdin) {
        Ok(never) => match never {},
        Err(reason) => reason,
    };
    // A caller that has gone away needs no answer.
    drop(answer(&mut control, &Answer::Failed(failed)));
    ExitCode::from(126)
}

fn receive() -> io::Result<(UnixStream, FloorSpec, OwnedFd)> {
    let control = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let mut size = [0_u8; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        &control,
        &mut [IoSliceMut::new(&mut size)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if got.bytes != size.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut stdin = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            stdin = fds.last();
        }
    }
    let stdin = match stdin {
        Some(fd) => fd,
        None => File::open("/dev/null")?.into(),
    };
    let size = u64::from(u32::from_le_bytes(size));
    if size > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    (&control).take(size).read_to_end(&mut body)?;
    Ok((control, serde_json::from_slice(&body)?, stdin))
}

fn answer(control: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    control.write_all(&line)
}

enum Never {}

fn run(control: &mut UnixStream, spec: &FloorSpec, stdin: OwnedFd) -> Result<Never, FloorError> {
    check(spec)?;
    let mut report = Report::default();
    let layer = |layer| {
        move |e: io::Error| FloorError::Layer {
            layer,
            because: e.to_string(),
        }
    };

    match &spec.cgroup {
        Some(group) => {
            std::fs::write(group.join("cgroup.procs"), "0").map_err(layer(Layer::Cgroup))?;
            report.add(Layer::Cgroup, Strength::Hard, "");
        }
        None => report.add(
            Layer::Cgroup,
            Strength::None,
            "no writable control group (version 2); run the service with Delegate=yes",
        ),
    }

    setsid().map_err(|e| layer(Layer::NoTerminal)(e.into()))?;
    rustix::stdio::dup2_stdin(&stdin).map_err(|e| layer(Layer::NoTerminal)(e.into()))?;
    drop(stdin);
    report.add(Layer::NoTerminal, Strength::Hard, "");

    raw::reset_signals();
    raw::close_on_exec_from(3).map_err(layer(Layer::Environment))?;
    umask(Mode::from_raw_mode(0o022));
    // No core file of an agent with its secrets; that the kernel makes it easier to kill than the supervisor helps
    // when memory runs out. Both are comfort, not walls.
    _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    drop(std::fs::write("/proc/self/oom_score_adj", "500"));
    report.add(Layer::Environment, Strength::Hard, "");

    let hiding = hide::Hiding::new(&spec.hidden, &spec.visible)?;
    let covered = mounts::cover(spec, &hiding, &mut report)?;
    let landlock = hide::Landlock::prepare(spec, &hiding, covered, &mut report)?;

    drop_capabilities().map_err(layer(Layer::NoNewPrivileges))?;
    match spec.user {
        Some(user) => {
            become_user(user.uid, user.gid).map_err(layer(Layer::User))?;
            report.add(Layer::User, Strength::Hard, "");
        }
        None => report.add(
            Layer::User,
            Strength::None,
            "the agentlet is not root: agents run as its own user",
        ),
    }
    rustix::thread::set_no_new_privs(true).map_err(|e| layer(Layer::NoNewPrivileges)(e.into()))?;
    report.add(Layer::NoNewPrivileges, Strength::Hard, "");
    landlock.enforce(&mut report)?;
    hiding.verify()?;

    if spec.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| layer(Layer::Cgroup)(e.into()))?;
    }
    std::env::set_current_dir(&spec.cwd).map_err(|e| FloorError::WorkingDirectory {
        path: spec.cwd.clone(),
        because: e.to_string(),
    })?;
    let program = find(spec)?;

    let broken = |because: String| FloorError::Invalid { because };
    answer(control, &Answer::Ready(report)).map_err(|e| broken(e.to_string()))?;
    let mut word = [0_u8; GO.len()];
    // A caller that dies or drops its end here also ends this: the read fails.
    control
        .read_exact(&mut word)
        .map_err(|_| broken("called off".into()))?;
    if word != GO {
        return Err(broken("called off".into()));
    }
    let error = Command::new(&program)
        .arg0(&spec.argv[0])
        .args(&spec.argv[1..])
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .exec();
    Err(FloorError::Exec {
        program: spec.argv[0].clone(),
        because: error.to_string(),
    })
}

fn check(spec: &FloorSpec) -> Result<(), FloorError> {
    let invalid = |because: &str| {
        Err(FloorError::Invalid {
            because: because.into(),
        })
    };
    if spec.argv.first().is_none_or(String::is_empty) {
        return invalid("argv is empty");
    }
    if spec.argv.iter().any(|a| a.contains('\0')) {
        return invalid("an argument has a NUL byte");
    }
    if spec
        .env
        .iter()
        .any(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0'))
    {
        return invalid("an environment variable has an empty name, or '=' in its name, or a NUL byte");
    }
    if !spec.cwd.is_absolute() {
        return invalid("the working directory is not absolute");
    }
    let paths = spec.hidden.iter().chain(&spec.visible).chain(&spec.cgroup);
    if paths.into_iter().any(|p| !p.is_absolute()) {
        return invalid("a hidden, visible or control group path is not absolute");
    }
    match (geteuid().is_root(), spec.user) {
        (true, None) => Err(FloorError::RootWithoutUser),
        (_, Some(user)) if user.uid == 0 || user.gid == 0 => invalid("the agent's user must not be root"),
        (false, Some(_)) => invalid("only root can give an agent another user"),
        _ => Ok(()),
    }
}

/// Takes every capability out of the bounding and ambient sets. Without the right to do so there is none to be had.
fn drop_capabilities() -> io::Result<()> {
    // Kernels before 4.3 have no ambient set.
    _ = rustix::thread::clear_ambient_capability_set();
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last one that the kernel knows.
            Err(Errno::INVAL) => break,
            Err(Errno::PERM) if !geteuid().is_root() => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// The file to execute, as the user that the helper has become sees it.
fn find(spec: &FloorSpec) -> Result<PathBuf, FloorError> {
    let name = &spec.argv[0];
    let usable = |path: &Path| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    let path = spec
        .env
        .iter()
        .find(|(k, _)| k == "PATH")
        .map_or("", |(_, v)| v.as_str());
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|p| usable(p))
    } else {
        path.split(':')
            .filter(|dir| dir.starts_with('/'))
            .map(|dir| Path::new(dir).join(name))
            .find(|p| usable(p))
    };
    found.ok_or_else(|| FloorError::ProgramNotFound {
        program: name.clone(),
        path: path.into(),
    })
}

/// Device and inode of what can be opened for reading at `path`.
pub(crate) fn readable_identity(path: &Path) -> Option<(u64, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
