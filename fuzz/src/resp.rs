//! An in-memory client of the Redis protocol: sends its input in pieces, and collects the replies.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Sends `input` in pieces of `piece` bytes and then ends.
pub struct Client {
    input: Vec<u8>,
    piece: usize,
    answers: Arc<Mutex<Vec<u8>>>,
}

impl Client {
    /// Returns the client, and the buffer that collects its replies.
    pub fn new(input: Vec<u8>, piece: usize) -> (Self, Arc<Mutex<Vec<u8>>>) {
        let answers = Arc::default();
        (Self { input, piece, answers: Arc::clone(&answers) }, answers)
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(room.remaining()).min(self.input.len());
        room.put_slice(&self.input[..length]);
        self.input.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answers.lock().expect("not poisoned").extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// How many answers `bytes` are, if they are whole answers of the protocol and nothing else.
pub fn count(mut bytes: &[u8]) -> Option<usize> {
    let mut answers = 0;
    while !bytes.is_empty() {
        bytes = rest_of(bytes)?;
        answers += 1;
    }
    Some(answers)
}

/// What follows the first value of `bytes`.
fn rest_of(bytes: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = bytes.split_first()?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut rest) = (std::str::from_utf8(&rest[..end]), &rest[end + 2..]);
    let number = || line.ok()?.parse::<i64>().ok();
    match kind {
        b'+' | b'-' => Some(rest),
        b':' => number().map(|_| rest),
        b'#' => matches!(line, Ok("t" | "f")).then_some(rest),
        b'_' => matches!(line, Ok("")).then_some(rest),
        b'$' if number()? == -1 => Some(rest),
        b'$' => {
            let end = usize::try_from(number()?).ok()?;
            (rest.get(end..end + 2)? == b"\r\n").then(|| &rest[end + 2..])
        }
        b'*' | b'%' => {
            let each = if *kind == b'%' { 2 } else { 1 };
            for _ in 0..usize::try_from(number()?).ok()? * each {
                rest = rest_of(rest)?;
            }
            Some(rest)
        }
        _ => None,
    }
}
