use futures::stream;

use super::*;

/// Counts up for ever, and cancels the token when it gets there.
fn counting(cancel_at: usize, token: &CancellationToken) -> impl Stream<Item = Result<usize, Status>> + use<> {
    let token = token.clone();
    stream::iter(0..)
        .inspect(move |n| {
            if *n == cancel_at {
                token.cancel();
            }
        })
        .map(Ok)
}

const LAST: usize = 999_999;

#[tokio::test]
async fn a_stream_that_never_waits_ends_soon_after() {
    let token = CancellationToken::new();
    let seen: Vec<usize> =
        UntilDrain::new(counting(100, &token), &token, Ok(LAST)).map(|item| item.expect("well")).collect().await;
    assert_eq!(seen.last(), Some(&LAST));
    assert!((101..=101 + usize::from(IN_A_ROW_MAX)).contains(&(seen.len() - 1)), "{} items", seen.len());
}

#[tokio::test]
async fn a_stream_that_waits_ends_at_once() {
    let token = CancellationToken::new();
    let mut quiet = UntilDrain::new(stream::pending(), &token, Ok(LAST));
    let (last, ()) = tokio::join!(quiet.next(), async { token.cancel() });
    assert_eq!(last.expect("a last word").expect("well"), LAST);
    assert!(quiet.next().await.is_none());
}

#[tokio::test]
async fn a_stream_that_ends_itself_has_its_own_last_word() {
    let token = CancellationToken::new();
    let seen: Vec<_> = UntilDrain::new(stream::iter([Ok(1)]), &token, Ok(LAST)).collect().await;
    assert!(matches!(seen.as_slice(), [Ok(1)]));
}
