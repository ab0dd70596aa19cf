//! gRPC, frame by frame: calls are put together by hand, and of an answer the trailers are looked at, for `grpc-status: 0`.
//!
//! The server is told to keep no table of header fields, so that the status is written out in every answer, in the code of
//! HPACK or as it is.

use super::Talk;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Settings: no table of header fields.
const NO_TABLE: [u8; 6] = [0, 1, 0, 0, 0, 0];

/// The window of a connection, at its largest from the start.
const WINDOW: u32 = (1 << 31) - 1 - 65_535;

/// One connection.
pub(crate) struct Grpc {
    head: Vec<u8>,
    /// The message, with a field for the key in the middle.
    before: Vec<u8>,
    key_field: u8,
    after: Vec<u8>,
    stream: u32,
    taken: u32,
}

impl Grpc {
    /// Calls `path` with a message of `before`, the key in the field `key_field`, and `after`.
    pub(crate) fn new(path: &str, before: &[u8], key_field: u8, after: &[u8]) -> Self {
        // POST, http, then fields that are put into no table.
        let mut head = vec![0x83, 0x86];
        let mut field = |name: &[u8], value: &str| {
            head.extend_from_slice(name);
            head.push(u8::try_from(value.len()).expect("a short value"));
            head.extend_from_slice(value.as_bytes());
        };
        field(&[0x04], path);
        field(&[0x01], "bench");
        field(&[0x0f, 0x10], "application/grpc");
        field(b"\x00\x02te", "trailers");
        let (before, after) = (before.to_vec(), after.to_vec());
        Self { head, before, key_field, after, stream: 1, taken: 0 }
    }
}

impl Talk for Grpc {
    fn begin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        frame(out, SETTINGS, 0, 0, &NO_TABLE);
        frame(out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
    }

    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        let key = format!("key:{key:012}");
        let mut message = vec![0; 5];
        message.extend_from_slice(&self.before);
        message.push(self.key_field << 3 | 2);
        message.push(u8::try_from(key.len()).expect("a short key"));
        message.extend_from_slice(key.as_bytes());
        message.extend_from_slice(&self.after);
        let length = u32::try_from(message.len() - 5).expect("a short message");
        message[1..5].copy_from_slice(&length.to_be_bytes());
        frame(out, HEADERS, END_HEADERS, self.stream, &self.head);
        frame(out, DATA, END_STREAM, self.stream, &message);
        self.stream += 2;
    }

    fn take(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<usize, String> {
        let (mut at, mut answers) = (0, 0);
        while let Some(head) = input.get(at..at + 9) {
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let Some(payload) = input.get(at + 9..at + 9 + length) else { break };
            match kind {
                HEADERS if flags & END_STREAM != 0 => {
                    if !is_ok(payload) {
                        return Err(format!("a status other than 0: {payload:?}"));
                    }
                    answers += 1;
                }
                DATA => self.taken += u32::try_from(length).expect("a short frame"),
                SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(out, PING, ACK, 0, payload),
                RST_STREAM | GOAWAY => return Err(format!("frame {kind} with {payload:?}")),
                _ => {}
            }
            at += 9 + length;
        }
        input.drain(..at);
        if WINDOW / 2 < self.taken {
            frame(out, WINDOW_UPDATE, 0, 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
        Ok(answers)
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a short frame");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Whether the block of header fields has `grpc-status: 0`, in the code of HPACK or as it is.
fn is_ok(block: &[u8]) -> bool {
    const CODED: &[u8] = &[0x88, 0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f, 0x81, 0x07];
    const PLAIN: &[u8] = b"\x0bgrpc-status\x010";
    [CODED, PLAIN].iter().any(|status| block.windows(status.len()).any(|part| part == *status))
}
