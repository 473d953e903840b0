use std::{
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::*;

/// Ends with the test.
struct Program(Child, &'static str);

impl Program {
    fn new(mark: &'static str, program: &str, arguments: &[&str]) -> Self {
        let (key, value) = mark.split_once('=').expect("it's a variable");
        let mut command = Command::new(program);
        let child = command.args(arguments).env(key, value).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self(child, mark)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn until(&self, holds: impl Fn(i32) -> bool) {
        let begun = Instant::now();
        while !holds(self.pid()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "it isn't so");
            thread::yield_now();
        }
    }

    fn is_marked(&self) -> Option<bool> {
        marked(self.pid(), |entry| entry == self.1.as_bytes())
    }

    fn kill_all(&self) -> Option<usize> {
        kill_all(&Traces::marked(|entry: &[u8]| entry == self.1.as_bytes()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_loading_a_program_is_not_taken_for_a_stranger() {
    let mark = "DRIFTLESS_RUN=reap-loading.1";
    let program = Program::new(mark, "sh", &["-c", "exec sh -c \"$0\" \"$0\"", "exec sh -c \"$0\" \"$0\""]);
    program.until(|_| program.is_marked() == Some(true));
    let looks: Vec<Option<bool>> = (0..20_000).map(|_| program.is_marked()).collect();
    assert!(
        !looks.contains(&Some(false)),
        "{} of {} looks",
        looks.iter().filter(|l| **l == Some(false)).count(),
        looks.len()
    );
    assert!(looks.contains(&Some(true)));
    assert_eq!(program.kill_all(), Some(1));
    program.until(|pid| identity::stat(pid).is_none_or(|stat| stat.zombie));
}

#[test]
fn what_goes_on_without_its_first_thread_is_found() {
    let mark = "DRIFTLESS_RUN=reap-threads.1";
    let text = "import ctypes, threading, time\n\
                threading.Thread(target=time.sleep, args=(600,)).start()\n\
                ctypes.CDLL(None).pthread_exit(None)";
    let program = Program::new(mark, "python3", &["-c", text]);
    let first = format!("/proc/{}/stat", program.pid());
    program.until(|_| fs::read_to_string(&first).is_ok_and(|text| text.contains(") Z ")));
    assert_eq!(program.is_marked(), Some(true));
    assert_eq!(program.kill_all(), Some(1));
    program.until(|pid| identity::stat(pid).is_none_or(|stat| stat.zombie));
}

#[test]
fn what_has_no_environment_is_nobodys() {
    let program = Program::new("DRIFTLESS_RUN=reap-none.1", "env", &["-i", "sleep", "600"]);
    program.until(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n"));
    program.until(|_| program.is_marked() == Some(false));
    assert_eq!(program.kill_all(), Some(0));
    // The kernel's own threads have none, either.
    let kernels = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    assert!(!kernels || marked(2, |entry| entry == program.1.as_bytes()) == Some(false));
}
