//! `driftless restore`: says of a store that it was set back to a backup. It talks to the store itself: servers that kept
//! running refuse everything until this is said, and those of an embedded store must have ended.

use anyhow::Context;
use store::{Cluster, Embedded};
use store_etcd::EtcdStore;

use super::server::{Backend, Etcd, STORE_HELP};
use crate::{exit::Trouble, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless restore --store embedded:/var/lib/driftless
  driftless restore --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/driftless

Run it after a backup was put in the store's place, and before anything writes there: from then on it counts as another store, \
so whatever was read or promised in the history that is lost is refused. What runs on the nodes runs on; what the backup \
doesn't know stays until 'driftless node confirm'. docs/DEPLOY.md has all of it.")]
pub struct Args {
    #[arg(long, value_name = "STORE", help = STORE_HELP)]
    store: Backend,
    #[command(flatten)]
    etcd: Etcd,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Cluster { incarnation, .. } = match args.store {
        Backend::Memory => return Err(Trouble::Usage("a store in memory is never restored".into()).into()),
        Backend::Embedded(dir) => Embedded::replace_incarnation(dir).context("cannot open the store")?,
        Backend::Etcd(options) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let store = EtcdStore::new(args.etcd.of(options)).context("cannot use etcd")?;
                anyhow::Ok(store.replace_incarnation().await.map_err(Trouble::Store)?)
            })?
        }
    };
    output::print(&format!(
        "this is another store from now on (incarnation {incarnation})\n\
         what runs on the nodes and isn't declared here runs on: see 'driftless get nodes', then vouch for this store with \
         'driftless node confirm NODE'\n"
    ))
}
