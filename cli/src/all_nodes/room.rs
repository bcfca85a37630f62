//! Memory for the answers of all nodes together.
//!
//! Invariant: the texts that are being read and those of the answers that are kept have at most the bytes of the room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The room, shared by the questions.
#[derive(Clone)]
pub(super) struct AnswerRoom {
    whole: usize,
    left: Arc<AtomicUsize>,
}

/// The part that one answer takes. It is given back when this is dropped, unless the answer is kept.
pub(super) struct TakenRoom<'r> {
    room: &'r AnswerRoom,
    bytes: usize,
}

impl AnswerRoom {
    pub(super) fn new(bytes: usize) -> Self {
        Self { whole: bytes, left: Arc::new(AtomicUsize::new(bytes)) }
    }

    pub(super) fn take_none(&self) -> TakenRoom<'_> {
        TakenRoom { room: self, bytes: 0 }
    }
}

impl TakenRoom<'_> {
    /// Takes more; an error for people if nothing is left.
    pub(super) fn more(&mut self, bytes: usize) -> Result<(), String> {
        let take = |left: usize| left.checked_sub(bytes);
        let taken = self.room.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| {
            let whole = self.room.whole >> 20;
            format!("the answers of all nodes have more than {whole} MiB: ask fewer nodes (--node, --node-selector)")
        })?;
        self.bytes += bytes;
        Ok(())
    }

    /// The answer stays in memory.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for TakenRoom<'_> {
    fn drop(&mut self) {
        self.room.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_are_kept_use_up_the_room() {
        let room = AnswerRoom::new(10);
        for _ in 0..3 {
            let mut failed = room.take_none();
            failed.more(8).expect("there is room");
            assert!(failed.more(3).is_err());
        }
        let mut kept = room.take_none();
        kept.more(8).expect("the failed ones gave it back");
        kept.keep();
        assert!(room.take_none().more(3).is_err());
        assert!(room.take_none().more(2).is_ok());
    }
}
