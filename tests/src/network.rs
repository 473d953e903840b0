//! Networks of a test's own, so that a cable can be pulled: nothing in them reaches the machine's network, or the other
//! way round. They are gone once the test's processes are.
//!
//! Only root may make them.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::thread::UnshareFlags;

use crate::{processes::look_until, skip::skipped};

/// Until the kernel has made a namespace.
const MADE_MAX: Duration = Duration::from_secs(10);

/// The network that the test itself, and whatever it starts from now on, is in.
pub struct Hub {
    /// One cable each.
    far: u8,
}

/// A network at the other end of a cable.
pub struct Far {
    /// Keeps the namespace.
    holder: Child,
    /// The hub's end of the cable.
    cable: String,
    /// The hub's address, as it's reached from there.
    pub hub: Ipv4Addr,
    /// Its own.
    pub address: Ipv4Addr,
}

impl Hub {
    /// Moves the calling thread, and so all that it starts later, into a network of its own. None, and said aloud, where
    /// this user can't.
    pub fn enter() -> Option<Self> {
        // SAFETY: this gives up no shared file descriptors, which is what the function warns of.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
            skipped(&format!("a network namespace can't be made: {error}"));
            return None;
        }
        ip(&["link", "set", "lo", "up"]);
        Some(Self { far: 0 })
    }

    /// Another network, and a cable to it.
    pub fn connect(&mut self) -> Far {
        self.far += 1;
        let (n, cable) = (self.far, format!("hub{}", self.far));
        // It ends with the test, however that ends.
        let mut holder = Command::new("setpriv");
        holder.args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "86400"]).stdin(Stdio::null());
        let holder = holder.spawn().expect("util-linux is installed");
        let own = namespace("thread-self");
        look_until("the other network is there", MADE_MAX, || {
            (namespace(&holder.id().to_string()) != own).then_some(())
        });
        let pid = holder.id().to_string();
        let (here, there) = (Ipv4Addr::new(10, 77, n, 1), Ipv4Addr::new(10, 77, n, 2));
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "far", "netns", &pid]);
        ip(&["address", "add", &format!("{here}/24"), "dev", &cable]);
        ip(&["link", "set", &cable, "up"]);
        let far = Far { holder, cable, hub: here, address: there };
        far.ip(&["link", "set", "lo", "up"]);
        far.ip(&["address", "add", &format!("{there}/24"), "dev", "far"]);
        far.ip(&["link", "set", "far", "up"]);
        far
    }
}

/// Which network that process is in.
fn namespace(process: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/{process}/ns/net")).expect("it runs")
}

impl Far {
    /// To be followed by a program and its arguments: it becomes that, in this network.
    pub fn entering(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command
    }

    /// From now on nothing gets through, in either direction, and nobody is told: not even that a connection is gone.
    pub fn cut(&self) {
        ip(&["link", "set", &self.cable, "down"]);
    }

    pub fn heal(&self) {
        ip(&["link", "set", &self.cable, "up"]);
    }

    /// From now on nothing that is sent from there gets to these ports of TCP; answers from them still come in. What waits
    /// to be sent is sent again once it's let through.
    pub fn hold_back(&self, ports: &[u16]) {
        for port in ports {
            let port = port.to_string();
            self.iptables(&["-A", "OUTPUT", "-p", "tcp", "--dport", &port, "-j", "DROP"]);
        }
    }

    pub fn let_through(&self) {
        self.iptables(&["-F", "OUTPUT"]);
    }

    fn iptables(&self, arguments: &[&str]) {
        let mut command = self.entering();
        run(command.args(["iptables", "-w"]).args(arguments));
    }

    fn ip(&self, arguments: &[&str]) {
        let mut command = self.entering();
        run(command.arg("ip").args(arguments));
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

#[track_caller]
fn run(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().expect("iproute2 is installed (make setup-test)");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}
