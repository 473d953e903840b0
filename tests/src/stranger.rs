//! A process that has a number which was another's: what an agent must never take for its own.

use std::{ffi::CString, ptr, time::Duration};

use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpgid, waitpid};

use crate::processes::{Process, look_until};

/// Until the number is free.
const FREE_MAX: Duration = Duration::from_secs(20);

pub struct Stranger(Process);

/// Orphans of what this test started become its children, so that their numbers are free once `Stranger::take` has
/// reaped them, whatever process 1 of this machine does.
pub fn adopt_orphans() {
    set_child_subreaper(Some(getpid())).expect("any process may become a subreaper");
}

impl Stranger {
    /// Takes that number as soon as it's free. Only root may.
    #[track_caller]
    pub fn take(pid: i32) -> Self {
        let number = Pid::from_raw(pid).expect("a pid isn't 0");
        look_until("the number is free", FREE_MAX, || {
            // The number is in use as long as anybody is of that group. An error: nobody of it is a child of ours.
            while let Ok(Some(_)) = waitpgid(number, WaitOptions::NOHANG) {}
            sleep_as(pid).then_some(())
        });
        Self(Process::find(pid).expect("it was just born"))
    }

    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
        // Nothing else reaps it.
        let _ = waitpid(Pid::from_raw(self.0.pid), WaitOptions::empty());
    }
}

/// A child of that number that sleeps. False: the number isn't free.
fn sleep_as(pid: i32) -> bool {
    let text = |text: &str| CString::new(text).expect("no zero byte in it");
    let (file, seconds) = (text("/bin/sleep"), text("86400"));
    let arguments = [file.as_ptr(), seconds.as_ptr(), ptr::null()];
    let environment = [ptr::null()];
    let numbers: [libc::pid_t; 1] = [pid];
    // SAFETY: all fields are numbers, and zero is their default. No stack and no memory are shared, so the call returns
    // twice, like fork; the child does nothing but exec with what was made before, or end.
    unsafe {
        let mut wanted: libc::clone_args = std::mem::zeroed();
        wanted.exit_signal = libc::SIGCHLD as u64;
        wanted.set_tid = numbers.as_ptr() as u64;
        wanted.set_tid_size = 1;
        match libc::syscall(libc::SYS_clone3, &wanted, size_of::<libc::clone_args>()) {
            0 => {
                libc::execve(file.as_ptr(), arguments.as_ptr(), environment.as_ptr());
                libc::_exit(127)
            }
            born => born > 0,
        }
    }
}
