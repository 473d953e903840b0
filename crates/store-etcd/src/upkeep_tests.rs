use store::Store;

use super::*;
use crate::Options;

#[tokio::test]
async fn a_store_whose_upkeep_panicked_says_that_it_is_broken() {
    let nobody = Options::new(vec!["127.0.0.1:1".into()]);
    let store = EtcdStore::new(nobody).expect("the options are right");
    // No clock holds as much, and it doesn't expect that.
    store.keep(Upkeep { every: Duration::MAX, ..Upkeep::default() });
    let broken = tokio::time::timeout(Duration::from_secs(60), store.broken()).await;
    assert_eq!(broken.as_deref(), Ok("upkeep"));
}
