use futures::stream;

use super::*;

/// Counts up for ever, and cancels the token when it gets there.
fn counting(cancel_at: usize, drain: &Drain) -> impl Stream<Item = Result<usize, Status>> + use<> {
    let drain = drain.clone();
    stream::iter(0..)
        .inspect(move |n| {
            if *n == cancel_at {
                drain.begin();
            }
        })
        .map(Ok)
}

const LAST: usize = 999_999;

#[tokio::test]
async fn a_stream_that_never_waits_ends_soon_after() {
    let drain = Drain::default();
    let seen: Vec<usize> =
        UntilDrain::new(counting(100, &drain), &drain, Ok(LAST)).map(|item| item.expect("well")).collect().await;
    assert_eq!(seen.last(), Some(&LAST));
    assert!((101..=101 + usize::from(IN_A_ROW_MAX)).contains(&(seen.len() - 1)), "{} items", seen.len());
}

#[tokio::test]
async fn a_stream_that_waits_ends_at_once() {
    let drain = Drain::default();
    let mut quiet = UntilDrain::new(stream::pending(), &drain, Ok(LAST));
    let (last, ()) = tokio::join!(quiet.next(), async { drain.begin() });
    assert_eq!(last.expect("a last word").expect("well"), LAST);
    assert!(quiet.next().await.is_none());
}

#[tokio::test]
async fn a_stream_that_ends_itself_has_its_own_last_word() {
    let drain = Drain::default();
    let seen: Vec<_> = UntilDrain::new(stream::iter([Ok(1)]), &drain, Ok(LAST)).collect().await;
    assert!(matches!(seen.as_slice(), [Ok(1)]));
}
