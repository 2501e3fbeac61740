//! The system calls that have no safe wrapper. All of them are called in the helper, which has one thread.
#![expect(unsafe_code, reason = "the one module of the one crate that may")]

use std::io;

/// Marks every descriptor from `first` on to be closed by exec.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: close_range with CLOEXEC only sets flags; it closes nothing that somebody owns.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    // Before 5.11: one by one.
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        if u32::try_from(fd).is_ok_and(|fd| fd >= first) {
            // SAFETY: F_SETFD on a number; a descriptor that has gone meanwhile answers EBADF.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Default handling for every signal: ignored ones (`nohup`, background jobs of a shell) would be inherited.
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        if signal == libc::SIGKILL || signal == libc::SIGSTOP {
            continue;
        }
        // SAFETY: SIG_DFL installs no handler; numbers that the C library keeps for itself answer an error.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by sigemptyset before it is read.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Leaves the namespaces in `flags` (`CLONE_NEW*`) for new ones.
pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: the flags in use (mount and user namespaces) leave memory and descriptors as they are.
    if unsafe { libc::unshare(flags) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
