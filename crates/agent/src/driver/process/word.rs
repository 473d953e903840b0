//! A moment, told to a supervisor: until when its run may go on without another word.
//!
//! It goes along with the signal, so that it means the same however late either side gets to run, and needs no disk.

use std::os::fd::OwnedFd;

use rustix::fd::AsRawFd;

/// `siginfo_t` as `rt_sigqueueinfo(2)` takes it on 64 bits: number, errno, code, pad, pid and uid, value.
#[repr(C)]
struct Told {
    signal: i32,
    error: i32,
    code: i32,
    pad: i32,
    sender: [u32; 2],
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Told>() == size_of::<libc::siginfo_t>());

/// SIGUSR1 with that value. One that is gone needs no word any more.
pub fn tell(supervisor: &OwnedFd, value: u64) {
    let (signal, code) = (libc::SIGUSR1, libc::SI_QUEUE);
    let told = Told { signal, error: 0, code, pad: 0, sender: [0; 2], value, rest: [0; 12] };
    // SAFETY: the descriptor is open as long as the borrow, and `told` is as long as the siginfo that is read.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, supervisor.as_raw_fd(), signal, &raw const told, 0) };
}
