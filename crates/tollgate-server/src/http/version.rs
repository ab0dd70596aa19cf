//! Which version of HTTP a client speaks, by its first bytes.
//!
//! hyper-util detects it as well, but hands the bytes that it has read to hyper in a read of their own. hyper then finds a part of a
//! head, and doubles its read buffer to read the rest: 8 KiB more for every connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose first bytes were read to detect the version. They are read again.
#[derive(Debug)]
pub(super) struct Detected<S> {
    stream: S,
    first: [u8; PREFACE.len()],
    /// How many of the first bytes were read again, and how many there are.
    replayed: usize,
    count: usize,
}

impl<S: AsyncRead + Unpin> Detected<S> {
    /// Reads from `stream` until the version is known. Returns whether it is HTTP/2.
    pub(super) async fn read(stream: S) -> io::Result<(bool, Self)> {
        let mut detected = Self { stream, first: [0; PREFACE.len()], replayed: 0, count: 0 };
        let is_http2 = loop {
            let Self { stream, first, count, .. } = &mut detected;
            if *count == PREFACE.len() {
                break true;
            }
            let read = stream.read(&mut first[*count..]).await?;
            *count += read;
            if read == 0 || first[..*count] != PREFACE[..*count] {
                break false;
            }
        };
        Ok((is_http2, detected))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Detected<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, first, replayed, count } = self.get_mut();
        if *replayed == *count {
            return Pin::new(stream).poll_read(context, buffer);
        }
        let more = buffer.remaining().min(*count - *replayed);
        buffer.put_slice(&first[*replayed..*replayed + more]);
        *replayed += more;
        if 0 < buffer.remaining() {
            // What follows belongs to the same read. Its end or error is found by the next one.
            let _ = Pin::new(stream).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Detected<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// Detects the version of what a client sends before it closes, and reads all of it again.
    async fn detect(parts: &[&[u8]]) -> (bool, Vec<u8>) {
        let (mut client, server) = duplex(64);
        let sent = async {
            for part in parts {
                client.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let read = async {
            let (is_http2, mut detected) = Detected::read(server).await.unwrap();
            let mut all = Vec::new();
            detected.read_to_end(&mut all).await.unwrap();
            (is_http2, all)
        };
        tokio::join!(sent, read).1
    }

    #[tokio::test]
    async fn the_version_is_that_of_the_first_bytes_and_none_are_lost() {
        let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore";
        let rows: [(bool, &[&[u8]]); 6] = [
            (true, &[http2]),
            (true, &[&http2[..3], &http2[3..20], &http2[20..]]),
            (false, &[b"POST /v1/acquire HTTP/1.1\r\nhost: a\r\n\r\n"]),
            (false, &[b"P", b"RI ", b"/ HTTP/1.1\r\n\r\n"]),
            (false, &[b"PRI * HTT"]),
            (false, &[]),
        ];
        for (is_http2, parts) in rows {
            assert_eq!(detect(parts).await, (is_http2, parts.concat()));
        }
    }

    #[tokio::test]
    async fn the_first_bytes_and_those_that_follow_are_one_read() {
        let (mut client, server) = duplex(64);
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        let (_, mut detected) = Detected::read(server).await.unwrap();
        let mut room = [0; 64];
        assert_eq!(detected.read(&mut room).await.unwrap(), request.len());
    }
}
