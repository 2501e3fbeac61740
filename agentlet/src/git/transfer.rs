//! Objects from one repository to another.
//!
//! `git fetch` would run the sending half as the user of the receiving half. Here each half runs as the user of its own
//! repository, and a pipe lies between them: the sender packs what the receiver lacks, the receiver checks every object
//! and link before it lets one in. Neither half writes anything else.

use std::io;

use super::{Error, Git, Repo, Sink};

/// Old repositories hold objects with these harmless faults; everything else that fsck knows is refused.
pub(crate) const FSCK: &str = "--strict=zeroPaddedFilemode=ignore,missingSpaceBeforeDate=ignore,missingSpaceBeforeEmail=ignore,\
                    badTimezone=ignore,missingEmail=ignore,missingNameBeforeEmail=ignore";

/// How a git ends that writes to one that is gone.
const BROKEN_PIPE: &str = "signal 13";

/// Brings `want` and everything that it needs from `from` to `to`. `haves` are commits that `to` holds completely.
pub(crate) async fn transfer(
    git: &Git,
    from: &Repo,
    to: &Repo,
    want: &str,
    haves: &[String],
    max_bytes: u64,
) -> Result<(), Error> {
    let known = known(git, from, haves).await?;
    let (reader, writer) = io::pipe().map_err(|source| Error::Io {
        command: "pack-objects".to_owned(),
        source,
    })?;
    let mut revs = format!("{want}\n");
    if !known.is_empty() {
        revs.push_str("--not\n");
        for have in &known {
            revs.push_str(have);
            revs.push('\n');
        }
    }
    let send = from
        .call(git, "pack-objects")
        .args(["--revs", "--stdout", "--thin", "--delta-base-offset", "-q"])
        .input(revs)
        .run_into(Sink::Pipe(writer));
    let receive = to
        .call(git, "index-pack")
        .args(["--stdin", "--fix-thin", FSCK])
        .arg(format!("--max-input-size={max_bytes}"))
        .input_pipe(reader)
        .run();
    let (sent, received) = tokio::join!(send, receive);
    match (sent, received) {
        // A receiver that went away is the cause; else the sender's failure is, when both fail.
        (Err(Error::Failed { status, .. }), Err(cause)) if status == BROKEN_PIPE => return Err(cause),
        (sent, received) => sent.and(received.map(drop))?,
    }
    check_connected(git, to, want, &known).await
}

/// Those of `commits` that `repo` holds.
pub(crate) async fn known(git: &Git, repo: &Repo, commits: &[String]) -> Result<Vec<String>, Error> {
    if commits.is_empty() {
        return Ok(Vec::new());
    }
    let mut input = commits.join("\n");
    input.push('\n');
    let out = repo
        .call(git, "cat-file")
        .arg("--batch-check=%(objectname) %(objecttype)")
        .input(input)
        .run()
        .await?;
    Ok(String::from_utf8_lossy(&out)
        .lines()
        .filter_map(|line| line.strip_suffix(" commit"))
        .map(str::to_owned)
        .collect())
}

/// Proves that nothing reachable from `want`, but not from `complete`, is missing.
async fn check_connected(git: &Git, repo: &Repo, want: &str, complete: &[String]) -> Result<(), Error> {
    let mut input = format!("{want}\n");
    for commit in complete {
        input.push('^');
        input.push_str(commit);
        input.push('\n');
    }
    repo.call(git, "rev-list")
        .args(["--objects", "--quiet", "--stdin"])
        .input(input)
        .run()
        .await
        .map(drop)
}
