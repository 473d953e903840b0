//! Ports of this node, one owner each.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, TcpListener},
    ops::RangeInclusive,
    sync::Mutex,
};

use rand::Rng;

use crate::template::Port;

/// Below the range that Linux takes outgoing connections' ports from by default (32768 and up), so that no connection
/// sits on a port while its instance restarts.
pub const RANGE: RangeInclusive<u16> = 20_000..=32_767;
/// Ports that are tried for one.
const TRIES_MAX: u32 = 1000;

/// Who has which port, by uid; kept in the instances' memories, so that a restarted agent knows them all.
pub struct Ports {
    range: RangeInclusive<u16>,
    owners: Mutex<HashMap<u16, String>>,
}

impl Ports {
    pub fn new(range: RangeInclusive<u16>) -> Self {
        Self { range, owners: Mutex::default() }
    }

    pub fn adopt(&self, uid: &str, ports: &BTreeMap<String, u16>) {
        let mut owners = self.owners.lock().expect("no holder panics");
        owners.extend(ports.values().map(|port| (*port, uid.to_owned())));
    }

    pub fn release(&self, uid: &str) {
        self.owners.lock().expect("no holder panics").retain(|_, owner| owner != uid);
    }

    /// Those it had, where they are still free; others for the rest. Fixed ones are the user's business.
    pub fn allocate(
        &self,
        uid: &str,
        wanted: &[Port],
        before: &BTreeMap<String, u16>,
    ) -> Result<BTreeMap<String, u16>, String> {
        let mut owners = self.owners.lock().expect("no holder panics");
        owners.retain(|_, owner| owner != uid);
        let mut ports = BTreeMap::new();
        for port in wanted {
            let kept = before.get(&port.name).copied().filter(|p| !owners.contains_key(p) && is_free(*p));
            let number = match (port.fixed, kept) {
                (Some(fixed), _) => fixed,
                (None, Some(kept)) => kept,
                (None, None) => self.free(&owners).ok_or_else(|| format!("no free port in {:?}", self.range))?,
            };
            owners.insert(number, uid.to_owned());
            ports.insert(port.name.clone(), number);
        }
        Ok(ports)
    }

    fn free(&self, owners: &HashMap<u16, String>) -> Option<u16> {
        let mut random = rand::rng();
        let mut candidates = (0..TRIES_MAX).map(|_| random.random_range(self.range.clone()));
        candidates.find(|port| !owners.contains_key(port) && is_free(*port))
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}
