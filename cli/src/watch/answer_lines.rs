//! The lines of an answer that arrives in pieces.
//!
//! Problem: the connection has a task of its own, on the same thread. It keeps one piece of the answer ready and reads
//! no more until that is taken. So after each piece it seems that nothing more has arrived, although it has.
//! Strategy: [`AnswerLines::next_if_there`] gives the connection's task a turn after each piece.
//! Invariant: a call that is dropped loses no bytes. They are kept until their line is complete.

use std::io::{Error, ErrorKind, Result};
use std::mem;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _, FutureExt as _};

/// Reads an answer line by line.
pub(super) struct AnswerLines<R> {
    answer: R,
    /// The beginning of the next line.
    line: Vec<u8>,
}

impl<R: AsyncBufRead + Unpin> AnswerLines<R> {
    pub(super) fn new(answer: R) -> Self {
        Self { answer, line: Vec::new() }
    }

    /// Waits for the next line; `None` at the end of the answer.
    pub(super) async fn next(&mut self) -> Result<Option<String>> {
        self.answer.read_until(b'\n', &mut self.line).await?;
        self.take_line()
    }

    /// The next line, if all of it has arrived.
    pub(super) async fn next_if_there(&mut self) -> Option<Result<Option<String>>> {
        let mut had_turn = false;
        loop {
            let before = self.line.len();
            if let Some(read) = self.answer.read_until(b'\n', &mut self.line).now_or_never() {
                return Some(read.and_then(|_| self.take_line()));
            }
            if self.line.len() == before && mem::replace(&mut had_turn, true) {
                return None;
            }
            // All tasks that are ready run, and those for which the kernel has data.
            tokio::task::yield_now().await;
        }
    }

    fn take_line(&mut self) -> Result<Option<String>> {
        let mut line = mem::take(&mut self.line);
        match line.pop() {
            Some(b'\n') => {}
            Some(_) => return Err(Error::new(ErrorKind::UnexpectedEof, "the answer ended within a line")),
            None => return Ok(None),
        }
        let text = String::from_utf8(line);
        text.map(Some).map_err(|error| Error::new(ErrorKind::InvalidData, error.utf8_error()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use futures_util::stream::{BoxStream, StreamExt as _, unfold};
    use tokio::sync::mpsc::{Receiver, channel};

    use super::*;

    type Pieces = futures_util::stream::IntoAsyncRead<BoxStream<'static, Result<Vec<u8>>>>;

    /// An answer whose pieces are sent by another task, one after the other is taken.
    fn lines(pieces: Vec<Vec<u8>>) -> AnswerLines<Pieces> {
        let (sender, receiver) = channel::<Vec<u8>>(1);
        tokio::spawn(async move {
            for piece in pieces {
                sender.send(piece).await.expect("the reader waits");
            }
            std::future::pending::<()>().await;
        });
        let next = async |mut receiver: Receiver<Vec<u8>>| Some((Ok(receiver.recv().await?), receiver));
        AnswerLines::new(unfold(receiver, next).boxed().into_async_read())
    }

    #[tokio::test]
    async fn all_lines_that_have_arrived_are_there() {
        let long = "x".repeat(100);
        let text = format!("one\ntwo\n\n{long}\nrest");
        for size in [1, 3, 50, 1_000] {
            let mut lines = lines(text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect());
            for expected in ["one", "two", "", &long] {
                let line = lines.next_if_there().await.expect("it has arrived").expect("no fault");
                assert_eq!(line.as_deref(), Some(expected), "{size}");
            }
            assert!(lines.next_if_there().await.is_none(), "{size}: the line is not complete");
            assert_eq!(lines.line, b"rest", "{size}");
        }
    }

    #[tokio::test]
    async fn waits_for_a_line_and_finds_the_end() {
        let ended = |bytes: &'static [u8]| AnswerLines::new(futures_util::io::Cursor::new(bytes));
        let mut lines = ended(b"one\ntwo");
        assert_eq!(lines.next().await.expect("no fault").as_deref(), Some("one"));
        assert!(lines.next().await.is_err(), "the second line is not complete");
        assert_eq!(lines.next_if_there().await.expect("there is an end").expect("no fault"), None);
        assert!(ended(b"\xff\n").next().await.is_err());
    }
}
