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

    fn whose(&self) -> Whose {
        whose(self.pid(), |entry| entry == self.1.as_bytes())
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
    program.until(|_| program.whose() == Whose::Ours);
    let looks: Vec<Whose> = (0..20_000).map(|_| program.whose()).collect();
    let missed = looks.iter().filter(|look| !matches!(look, Whose::Ours | Whose::Unclear)).count();
    assert_eq!(missed, 0, "of {} looks", looks.len());
    assert!(looks.contains(&Whose::Ours));
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
    assert_eq!(program.whose(), Whose::Ours);
    assert_eq!(program.kill_all(), Some(1));
    program.until(|pid| identity::stat(pid).is_none_or(|stat| stat.zombie));
}

/// As others do all the time on a busy machine, who can't be told from ours by the time that they're gone.
#[test]
fn strangers_that_come_and_go_do_not_keep_anything_from_being_found_to_be_gone() {
    let hopping = Program::new("DRIFTLESS_RUN=reap-stranger.1", "python3", &["-c", HOPPING]);
    hopping.until(|pid| identity::stat(pid).is_none_or(|stat| stat.zombie));
    let program = Program::new("DRIFTLESS_RUN=reap-beside.1", "sleep", &["600"]);
    assert_eq!(program.kill_all(), Some(1));
    assert!(hopping.kill_all().is_some_and(|killed| killed > 0), "it went on all the time");
}

/// It's there until it has ended, whatever can be read of it.
#[test]
fn what_was_killed_is_looked_for_until_it_has_ended() {
    let program = Program::new("DRIFTLESS_RUN=reap-killed.1", "env", &["-i", "sleep", "600"]);
    program.until(|_| program.whose() == Whose::Nobodys);
    let traces = Traces::marked(|_: &[u8]| false);
    let mut search = Search { traces: &traces, strangers: HashMap::new(), killed: HashSet::new() };
    assert_eq!(search.look_at(program.pid()).1, Look::Others);
    let start = identity::stat(program.pid()).unwrap().start;
    search.killed.insert((program.pid(), start));
    assert_eq!(search.look_at(program.pid()).1, Look::Ours);
}

#[test]
fn what_has_no_environment_is_nobodys() {
    let program = Program::new("DRIFTLESS_RUN=reap-none.1", "env", &["-i", "sleep", "600"]);
    program.until(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n"));
    program.until(|_| program.whose() == Whose::Nobodys);
    assert_eq!(program.kill_all(), Some(0));
    // The kernel's own threads have none, either.
    let kernels = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    assert!(!kernels || whose(2, |entry| entry == program.1.as_bytes()) == Whose::Nobodys);
}

/// Each lives for a moment only, and is gone by the time that it could be looked at.
const HOPPING: &str = "import os, signal, time\n\
                       os.nice(10) # Other tests run beside.\n\
                       signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                       end = time.time() + 60\n\
                       while time.time() < end:\n\
                       \x20   if os.fork(): os._exit(0)\n";

#[test]
fn what_hops_from_process_to_process_does_not_get_away() {
    for _ in 0..5 {
        let program = Program::new("DRIFTLESS_RUN=reap-hopping.1", "python3", &["-c", HOPPING]);
        program.until(|pid| identity::stat(pid).is_none_or(|stat| stat.zombie));
        assert!(program.kill_all().is_some_and(|killed| killed > 0));
        // Seen by chance only, so it's looked for several times.
        for _ in 0..20 {
            let left: Vec<i32> = newest_first()
                .into_iter()
                .filter(|pid| whose(*pid, |entry| entry == program.1.as_bytes()) == Whose::Ours)
                .collect();
            assert_eq!(left, [0; 0]);
        }
    }
}
