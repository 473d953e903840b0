use super::*;

/// Which of them was asked for the log.
async fn asked(hub: &Arc<Hub>, streams: &mut [&mut mpsc::Receiver<v1::LogStart>]) -> Vec<usize> {
    let opening = hub.open("n1", v1::LogStart::default());
    let answering = async {
        let mut asked = Vec::new();
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Ok(start) = stream.try_recv() {
                drop(hub.answer(start.id).expect("somebody waits"));
                asked.push(index);
            }
        }
        asked
    };
    // The first of them sends before it waits.
    let (opened, asked) = tokio::join!(biased; opening, answering);
    assert!(opened.is_none_or(|opened| opened.is_ok()));
    asked
}

#[tokio::test]
async fn the_stream_that_is_left_is_asked_whichever_ended() {
    let hub = Arc::new(Hub::default());
    let (first, mut from_first) = hub.attach("n1");
    let (second, mut from_second) = hub.attach("n1");
    assert_eq!(asked(&hub, &mut [&mut from_first, &mut from_second]).await, [1], "the one that came last");
    drop(second);
    assert_eq!(asked(&hub, &mut [&mut from_first, &mut from_second]).await, [0], "its agent is still here");
    let (_third, mut from_third) = hub.attach("n1");
    drop(first);
    assert_eq!(asked(&hub, &mut [&mut from_first, &mut from_third]).await, [1]);
}

#[tokio::test]
async fn nobody_is_here_once_all_have_ended() {
    let hub = Arc::new(Hub::default());
    drop([hub.attach("n1"), hub.attach("n1")]);
    assert!(hub.open("n1", v1::LogStart::default()).await.is_none());
    assert!(hub.state().nodes.is_empty());
}
