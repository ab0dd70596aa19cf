//! HTTP/1.1 with connections that are kept: one request of JSON, one answer with a length or in chunks.

use super::Talk;

/// One connection.
pub(crate) struct Http {
    path: &'static str,
    /// The body, with the key in the middle.
    body: [&'static str; 2],
    /// What the body of a right answer contains.
    right: &'static str,
    /// Further lines of the head.
    headers: &'static str,
}

impl Http {
    pub(crate) const fn new(
        path: &'static str,
        body: [&'static str; 2],
        right: &'static str,
    ) -> Self {
        Self { path, body, right, headers: "" }
    }

    /// Adds `headers`, each of which ends its line, to every request.
    pub(crate) const fn headers(self, headers: &'static str) -> Self {
        Self { headers, ..self }
    }
}

impl Talk for Http {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        let [before, after] = self.body;
        let body = format!("{before}key:{key:012}{after}");
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}\r\n",
            self.path,
            body.len(),
            self.headers
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body.as_bytes());
    }

    fn take(&mut self, input: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<usize, String> {
        let mut answers = 0;
        while let Some((head, body)) = split(input)? {
            let text = String::from_utf8_lossy(&input[..body]);
            if !text.starts_with("HTTP/1.1 200") || !text[head..].contains(self.right) {
                return Err(text.into_owned());
            }
            input.drain(..body);
            answers += 1;
        }
        Ok(answers)
    }
}

/// Where the head of the first answer ends, and where its body does, if it is whole.
fn split(input: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let position = |text: &[u8], from: usize| {
        let found = input[from..].windows(text.len()).position(|window| window == text)?;
        Some(from + found + text.len())
    };
    let Some(begin) = position(b"\r\n\r\n", 0) else { return Ok(None) };
    let head = String::from_utf8_lossy(&input[..begin]).to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return Ok(position(b"\r\n0\r\n\r\n", begin).map(|end| (begin, end)));
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    let end = begin + length.ok_or_else(|| format!("no length in {head}"))?;
    Ok((end <= input.len()).then_some((begin, end)))
}
