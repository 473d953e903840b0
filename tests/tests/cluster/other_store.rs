//! etcd is another store than before while servers, controllers and agents run on: set back to a backup, which is refused
//! until somebody says so; then emptied.

use std::{fs, path::Path, process::Command, time::Duration};

use driftless_tests::command::{self, Done, driftless};
use futures::StreamExt;
use store::Store;
use store_etcd::testing::Setup;
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

use crate::{
    state::settled,
    world::{Shape, World},
};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

fn manifest(name: &str, replicas: u32) -> String {
    format!(
        "kind: Service\nmetadata: {{ name: {name} }}\nspec: {{ replicas: {replicas}, template: {{ command: [run] }} }}\n"
    )
}

impl World {
    fn verb(&self, arguments: &[&str], input: &str) -> Done {
        let addresses: Vec<&str> = self.servers.iter().map(|server| server.address.as_str()).collect();
        let mut command = driftless(&addresses.join(","));
        command.args(arguments);
        block_in_place(|| command::run(command, input.as_bytes()))
    }

    fn apply(&self, name: &str, replicas: u32) {
        let arguments = ["apply", "-f", "-", "--wait", "--hold", "0s", "--timeout", "60s"];
        self.verb(&arguments, &manifest(name, replicas)).ok();
    }

    async fn incarnation(&self) -> Option<String> {
        self.client().cluster().await.ok().map(|cluster| cluster.incarnation)
    }

    /// Every claim is a living controller's, in a store that none of these incarnations names.
    async fn until_all_go_on(&self, but: &[&str]) -> String {
        let gone_on = async {
            loop {
                if let Some(incarnation) = self.incarnation().await.filter(|now| !but.contains(&now.as_str()))
                    && let Ok(mut states) = self.client().coordination().await
                    && let Some(Ok(state)) = states.next().await
                    && settled(&state, 2).is_some()
                {
                    return incarnation;
                }
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, gone_on).await.expect("every claim is taken")
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp is there").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_and_an_empty_etcd_are_other_stores_to_all_who_run_on() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (data, backup) = (dir.path().join("data"), dir.path().join("backup"));
    let setup = Setup { data_dir: Some(data.clone()), fsync: true, ..Setup::default() };
    let mut world = World::start_with(Shape { controllers: 2, ..Shape::default() }, setup).await;
    let first = world.until_all_go_on(&[]).await;
    world.apply("kept", 2);
    world.etcd.members[0].kill();
    copy(&data, &backup);
    world.etcd.restart(0).await;
    world.until_all_go_on(&[]).await;
    world.apply("later", 2);

    world.etcd.members[0].kill();
    fs::remove_dir_all(&data).expect("nobody uses it");
    copy(&backup, &data);
    world.etcd.restart(0).await;
    // The servers have seen more of this store than it has.
    let refused = async {
        loop {
            let said = world.verb(&["get", "services"], "");
            if said.code == 6 && said.stderr.contains("STORE_ROLLED_BACK") {
                return said.stderr;
            }
            sleep(POLL).await;
        }
    };
    let said = timeout(PATIENCE, refused).await.expect("it's found out");
    assert!(said.contains("driftless restore"), "{said}");
    let url = world.etcd.url();
    let said = world.verb(&["restore", "--store", &url], "").ok().stdout;
    let second = world.until_all_go_on(&[&first]).await;
    assert!(said.contains(&second), "{said}");
    let services = world.verb(&["get", "services", "-o", "name"], "").ok().stdout;
    assert!(services.contains("kept") && !services.contains("later"), "{services}");
    world.apply("kept", 3);

    world.etcd.members[0].kill();
    fs::remove_dir_all(&data).expect("nobody uses it");
    world.etcd.restart(0).await;
    world.until_all_go_on(&[&first, &second]).await;
    world.apply("fresh", 2);
}
