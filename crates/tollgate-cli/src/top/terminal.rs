//! The terminal: its other screen, its size, and keys one by one. All of it is put back when this is dropped, and when a
//! signal ends the process.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tollgate::ErrorKind;

use super::screen::Size;
use crate::failure::Failure;

/// How long a picture stands.
const REDRAW: Duration = Duration::from_secs(1);

/// Where a terminal does not say how large it is.
const SIZE_DEFAULT: Size = Size { columns: 80, lines: 24 };

/// A pipe cuts no line, and gets a screen all the same; `--json` has everything.
const SIZE_OF_PIPE: Size = Size { columns: usize::MAX, ..SIZE_DEFAULT };

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What somebody pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Next,
    Up,
    Down,
    Enter,
    Other,
}

/// A terminal that shows pictures.
pub(super) struct Terminal {
    before: Termios,
    keys: Receiver<Vec<u8>>,
}

/// The room on standard output.
pub(super) fn size() -> Size {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if 0 < size.ws_col && 0 < size.ws_row => {
            Size { columns: size.ws_col.into(), lines: size.ws_row.into() }
        }
        Ok(_) => SIZE_DEFAULT,
        Err(_) => SIZE_OF_PIPE,
    }
}

impl Terminal {
    /// Whether somebody sits in front of it.
    pub(super) fn is_there() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    pub(super) fn open() -> Result<Self, Failure> {
        let unable = |error: io::Error| {
            Failure::new(
                ErrorKind::Unavailable,
                format!("could not use the terminal: {error}; try --once"),
            )
        };
        let before = tcgetattr(io::stdin()).map_err(|error| unable(error.into()))?;
        // First, so that no signal comes in between.
        put_back_on_signal(before.clone()).map_err(unable)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(|error| unable(error.into()))?;
        let (pressed, keys) = mpsc::channel();
        // It ends with the process: nothing interrupts a read of the keyboard.
        thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok(read @ 1..) = io::stdin().read(&mut bytes) {
                if pressed.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let terminal = Self { before, keys };
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    /// Draws `text` over what is there.
    pub(super) fn show(&self, text: &str) -> Result<(), Failure> {
        // Each line is written and the rest of it cleared, so that nothing flickers.
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", text.replace('\n', "\x1b[K\r\n")))
    }

    /// The next key; nothing if none was pressed while the picture stood. A keyboard that is gone quits.
    pub(super) fn key(&self) -> Option<Key> {
        match self.keys.recv_timeout(REDRAW) {
            Ok(bytes) => Some(key_of(&bytes)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Key::Quit),
        }
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        crate::output::bytes(text.as_bytes())
    }
}

/// `q`, escape or ctrl-C; tab; the arrows, or `k` and `j`; enter.
fn key_of(bytes: &[u8]) -> Key {
    match bytes {
        [b'q' | b'Q' | 0x03 | 0x1b] => Key::Quit,
        b"\t" | b"\x1b[C" => Key::Next,
        b"k" | b"\x1b[A" | b"\x1bOA" => Key::Up,
        b"j" | b"\x1b[B" | b"\x1bOB" => Key::Down,
        b"\r" | b"\n" => Key::Enter,
        _ => Key::Other,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        put_back(&self.before);
    }
}

/// Whoever cannot be told any more cannot be helped either.
fn put_back(before: &Termios) {
    let _ = io::stdout().write_all(LEAVE.as_bytes());
    let _ = io::stdout().flush();
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

/// Puts the terminal back as it was `before` when a signal comes, and ends the process as a shell expects. It is a thread of
/// its own because the other may wait for a broker that does not answer.
fn put_back_on_signal(before: Termios) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let handlers = {
        let _inside = runtime.enter();
        let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
        kinds.map(|kind| signal(kind).map(|signal| (kind.as_raw_value(), signal)))
    };
    let [terminate, hang_up, interrupt] = handlers;
    let (mut terminate, mut hang_up, mut interrupt) = (terminate?, hang_up?, interrupt?);
    thread::spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = terminate.1.recv() => terminate.0,
                _ = hang_up.1.recv() => hang_up.0,
                _ = interrupt.1.recv() => interrupt.0,
            }
        });
        put_back(&before);
        std::process::exit(128 + number);
    });
    Ok(())
}
