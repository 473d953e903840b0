//! What waits for the writer.

use model::Revision;
use tokio::sync::oneshot;

use crate::{Error, Result, state::Draft};

pub(super) enum Job {
    Call(Box<dyn Apply>),
    /// Forgets at most so many of the oldest history entries.
    Trim {
        up_to: Revision,
        limit: usize,
        reply: oneshot::Sender<Result<usize>>,
    },
}

/// An operation that is applied first, and answered once its group is on the disk.
pub(super) trait Apply: Send {
    /// About how much it adds to a group.
    fn bytes(&self) -> usize;

    fn apply(&mut self, draft: &mut Draft<'_>);

    /// `failure`: nobody's operation happened, or may have.
    fn answer(self: Box<Self>, failure: Option<&Error>);
}

pub(super) struct Call<T, F> {
    bytes: usize,
    operation: Option<F>,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Call<T, F> {
    pub fn new(bytes: usize, operation: F) -> (Self, oneshot::Receiver<Result<T>>) {
        let (reply, answer) = oneshot::channel();
        (Self { bytes, operation: Some(operation), outcome: None, reply }, answer)
    }
}

impl<T, F> Apply for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Draft<'_>) -> Result<T> + Send,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn apply(&mut self, draft: &mut Draft<'_>) {
        self.outcome = self.operation.take().map(|operation| operation(draft));
    }

    fn answer(self: Box<Self>, failure: Option<&Error>) {
        // A refusal is withheld too: what it was refused for may never have happened.
        let outcome = match failure {
            Some(error) => Some(Err(error.clone())),
            None => self.outcome,
        };
        if let Some(outcome) = outcome {
            // Whoever asked may have gone.
            let _ = self.reply.send(outcome);
        }
    }
}
