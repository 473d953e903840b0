//! Real etcd processes for tests: on loopback ports of their own, in a temporary directory, killed by pid when dropped (and
//! by the kernel, should the test's process die before).
//!
//! A missing etcd fails the test and names the package; nothing is skipped.

pub mod grpc_proxy;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, TlsOptions};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;
use tokio::{
    net::TcpSocket,
    time::{Instant, sleep, timeout},
};

use crate::Options;

/// Debian's etcd-server; `DRIFTLESS_TEST_ETCD` names another.
const ETCD: &str = "/usr/bin/etcd";
/// A loaded machine may take long to start one.
const START_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// How the members of a cluster are started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// More arguments for etcd.
    pub args: Vec<String>,
    /// Where the members keep their data; none: in a temporary directory.
    pub data_dir: Option<PathBuf>,
    /// Certificate files for TLS with client certificates.
    pub tls: Option<TlsFiles>,
    /// The address that the members listen on; none: loopback. They don't prove who they are to each other.
    pub host: Option<Ipv4Addr>,
    /// Losing data with the power is fine for most tests, and much quicker.
    pub fsync: bool,
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub ca: PathBuf,
    pub server: (PathBuf, PathBuf),
    pub client: (PathBuf, PathBuf),
}

/// One etcd process and what it takes to start it again.
pub struct Member {
    command: Vec<String>,
    log: PathBuf,
    address: SocketAddr,
    process: Option<Child>,
}

/// Members that form one etcd.
pub struct Etcd {
    pub members: Vec<Member>,
    setup: Setup,
    /// The members' ports are nobody else's, whether they run or not.
    _ports: Vec<TcpSocket>,
    _dir: TempDir,
}

impl Etcd {
    /// One member.
    pub async fn start() -> Self {
        Self::start_with(1, Setup::default()).await
    }

    /// So many members, healthy when this returns.
    pub async fn start_with(members: usize, setup: Setup) -> Self {
        let mut etcd = Self::prepare(members, setup);
        etcd.members.iter_mut().for_each(Member::spawn);
        for index in 0..members {
            etcd.wait_answers(index).await;
        }
        etcd
    }

    fn prepare(members: usize, setup: Setup) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = setup.data_dir.clone().unwrap_or_else(|| dir.path().into());
        let host = setup.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let ports: Vec<TcpSocket> = (0..2 * members).map(|_| reserve(host)).collect();
        let address = |port: &TcpSocket| port.local_addr().expect("a bound socket has an address");
        let addresses: Vec<(SocketAddr, SocketAddr)> =
            ports.chunks(2).map(|p| (address(&p[0]), address(&p[1]))).collect();
        let peers: Vec<String> = addresses.iter().enumerate().map(|(i, (_, p))| format!("m{i}=http://{p}")).collect();
        let members = addresses.iter().enumerate().map(|(i, (client, peer))| {
            let command = arguments(&format!("m{i}"), *client, *peer, &peers.join(","), &data, &setup);
            Member { command, log: dir.path().join(format!("m{i}.log")), address: *client, process: None }
        });
        Self { members: members.collect(), setup, _ports: ports, _dir: dir }
    }

    /// Whether that member answers a linearizable read.
    pub async fn answers(&self, index: usize) -> bool {
        let Ok(mut client) = self.client(index).await else { return false };
        matches!(timeout(Duration::from_secs(1), client.get("health", None)).await, Ok(Ok(_)))
    }

    /// A plain client of one member.
    pub async fn client(&self, index: usize) -> Result<Client, etcd_client::Error> {
        let mut options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(1));
        let read = |path: &Path| std::fs::read(path).expect("the certificates were written");
        if let Some(tls) = &self.setup.tls {
            let identity = etcd_client::Identity::from_pem(read(&tls.client.0), read(&tls.client.1));
            let ca = etcd_client::Certificate::from_pem(read(&tls.ca));
            options = options.with_tls(TlsOptions::new().ca_certificate(ca).identity(identity));
        }
        Client::connect([self.members[index].address.to_string()], Some(options)).await
    }

    /// `HOST:PORT` of each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|m| m.address.to_string()).collect()
    }

    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoints().join(","))
    }

    /// Under a prefix of its own, so that tests can share one etcd.
    pub fn options(&self) -> Options {
        let mut options = Options::new(self.endpoints());
        options.prefix = format!("test-{:032x}", rand::random::<u128>());
        options.tls = self.setup.tls.as_ref().map(|tls| crate::Tls {
            ca: tls.ca.clone(),
            identity: Some(tls.client.clone()),
            domain: None,
        });
        options
    }

    /// Which member leads, once one does.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + START_MAX;
        loop {
            for index in 0..self.members.len() {
                if self.leads(index).await {
                    return index;
                }
            }
            assert!(Instant::now() < deadline, "no member leads after {START_MAX:?}");
            sleep(POLL).await;
        }
    }

    /// The leader gives the lead to another member.
    pub async fn hand_over(&self, leader: usize, to: usize) {
        let status = self.client(to).await.expect("a member answers").status().await.expect("it tells its status");
        let id = status.header().expect("answers have a header").member_id();
        self.client(leader).await.expect("the leader answers").move_leader(id).await.expect("it hands over");
    }

    async fn leads(&self, index: usize) -> bool {
        if self.members[index].process.is_none() {
            return false;
        }
        let Ok(mut client) = self.client(index).await else { return false };
        let status = timeout(Duration::from_secs(1), client.status()).await;
        matches!(status, Ok(Ok(status)) if status.header().map(|h| h.member_id()) == Some(status.leader()))
    }

    /// The ports that clients are answered on.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|m| m.address.port()).collect()
    }

    /// Starts that member again, with its data.
    pub async fn restart(&mut self, index: usize) {
        self.restart_all(&[index]).await;
    }

    /// Starts these members again, with their data, and returns when all of them answer.
    pub async fn restart_all(&mut self, members: &[usize]) {
        for index in members {
            self.members[*index].kill();
            self.members[*index].spawn();
        }
        for index in members {
            self.wait_answers(*index).await;
        }
    }

    async fn wait_answers(&mut self, index: usize) {
        let deadline = Instant::now() + START_MAX;
        while !self.answers(index).await {
            let log = self.members[index].log_tail();
            assert!(!self.members[index].has_exited(), "etcd exited:\n{log}");
            assert!(Instant::now() < deadline, "etcd isn't healthy after {START_MAX:?}:\n{log}");
            sleep(POLL).await;
        }
    }
}

impl Member {
    /// Starts the process, without waiting for it.
    pub fn spawn(&mut self) {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(&self.log).expect("the log can be written");
        let program = std::env::var("DRIFTLESS_TEST_ETCD").unwrap_or_else(|_| ETCD.into());
        let mut command = Command::new(&program);
        command.args(&self.command).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log));
        // SAFETY: between fork and exec it makes one system call, and touches no memory of ours.
        unsafe {
            command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from));
        }
        let process = command.spawn();
        let process = process.unwrap_or_else(|error| {
            panic!("{program} can't be started ({error}); install Debian's package etcd-server")
        });
        self.process = Some(process);
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// SIGKILL, and waits until it's gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().ok(); // It may have exited by itself.
            process.wait().expect("a child can be waited for");
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("the member runs");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    pub fn has_exited(&mut self) -> bool {
        match self.process.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => false,
            Some(Ok(Some(status))) => status.code().is_some() || status.signal().is_some(),
            Some(Err(_)) | None => true,
        }
    }

    /// The end of what it logged.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn arguments(name: &str, client: SocketAddr, peer: SocketAddr, peers: &str, data: &Path, setup: &Setup) -> Vec<String> {
    let scheme = if setup.tls.is_some() { "https" } else { "http" };
    let mut arguments: Vec<String> = [
        ("--name", name.to_owned()),
        ("--data-dir", data.join(name).display().to_string()),
        ("--listen-client-urls", format!("{scheme}://{client}")),
        ("--advertise-client-urls", format!("{scheme}://{client}")),
        ("--listen-peer-urls", format!("http://{peer}")),
        ("--initial-advertise-peer-urls", format!("http://{peer}")),
        ("--initial-cluster", peers.to_owned()),
        ("--log-level", "warn".to_owned()),
    ]
    .into_iter()
    .map(|(flag, value)| format!("{flag}={value}"))
    .collect();
    if !setup.fsync {
        arguments.push("--unsafe-no-fsync=true".into());
    }
    if let Some(tls) = &setup.tls {
        arguments.extend([
            "--client-cert-auth=true".into(),
            format!("--trusted-ca-file={}", tls.ca.display()),
            format!("--cert-file={}", tls.server.0.display()),
            format!("--key-file={}", tls.server.1.display()),
        ]);
    }
    arguments.extend(setup.args.iter().cloned());
    arguments
}

/// A port that the kernel gives to nobody else as long as this lives. Nothing listens, so whoever asks for this very port,
/// and to use it again, as etcd does, may listen on it, also when it's started once more.
fn reserve(host: Ipv4Addr) -> TcpSocket {
    let port = TcpSocket::new_v4().expect("a socket can be made");
    port.set_reuseaddr(true).expect("a socket can be told so");
    port.bind(SocketAddr::from((host, 0))).expect("a port is free");
    port
}
