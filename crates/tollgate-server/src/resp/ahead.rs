//! Reading ahead while an answer waits, which is how a connection learns that its client left.
//!
//! Only asks that may wait for room are given up: whatever else is on its way to the store is done, also for a client
//! that sends a release and leaves.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// What `answer` comes to; nothing, if the client leaves first. What the client sends meanwhile is put into `ahead`, at
/// most `room` bytes of it. If it has sent as much, nobody looks any more whether it leaves.
pub(super) async fn unless_left<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    stream: &mut (impl AsyncRead + Unpin),
    ahead: &mut Vec<u8>,
    room: usize,
) -> Option<T> {
    let mut stream = stream.take(u64::try_from(room).unwrap_or(u64::MAX));
    while 0 < stream.limit() {
        tokio::select! {
            biased;
            output = &mut answer => return Some(output),
            read = stream.read_buf(ahead) => match read {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            },
        }
    }
    Some(answer.await)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use tokio::io::AsyncWriteExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_ends_the_wait() {
        let (mut client, mut stream) = tokio::io::duplex(64);
        client.write_all(b"PING\r\n").await.unwrap();
        drop(client);
        let mut ahead = Vec::new();
        let answer = pin!(pending::<()>());
        assert_eq!(unless_left(answer, &mut stream, &mut ahead, 64).await, None);
    }

    /// No more than there is room for is taken, and no byte of it is lost.
    #[tokio::test]
    async fn what_is_read_ahead_is_bounded() {
        let (mut client, mut stream) = tokio::io::duplex(64);
        client.write_all(&[b'x'; 10]).await.unwrap();
        let mut ahead = vec![b'a'];
        let (tell, told) = oneshot::channel();
        let mut told = pin!(told);
        {
            let mut waiting = pin!(unless_left(told.as_mut(), &mut stream, &mut ahead, 7));
            let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            tell.send(3).unwrap();
            assert_eq!(waiting.await, Some(Ok(3)));
        }
        assert_eq!(ahead, b"axxxxxxx");
        let mut left = [0; 3];
        stream.read_exact(&mut left).await.unwrap();
        assert_eq!(&left, b"xxx");
    }
}
