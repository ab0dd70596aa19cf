//! The terminal in raw mode on its alternate screen. It is restored on drop, and when a signal ends the process.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tollgate::ErrorKind;

use super::screen::Size;
use tollgate_terminal::{Failure, output};

/// The redraw interval.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// The size of a terminal that does not report one.
const SIZE_DEFAULT: Size = Size { columns: 80, lines: 24 };

/// The size of a pipe, where lines are not cut; `--json` has all rows.
const SIZE_OF_PIPE: Size = Size { columns: usize::MAX, ..SIZE_DEFAULT };

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Next,
    Up,
    Down,
    Enter,
    Other,
}

/// The terminal in raw mode.
pub(super) struct Terminal {
    before: Termios,
    keys: Receiver<Vec<u8>>,
}

/// Returns the size of the terminal on standard output.
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
    /// Returns whether standard input and output are terminals.
    pub(super) fn is_interactive() -> bool {
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
        // First, so that a signal in between restores the terminal too.
        restore_on_signal(before.clone()).map_err(unable)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(|error| unable(error.into()))?;
        let (pressed, keys) = mpsc::channel();
        // It ends with the process: a read of the keyboard cannot be interrupted.
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

    /// Draws `text` over the last one.
    pub(super) fn draw(&self, text: &str) -> Result<(), Failure> {
        // Clearing the rest of each line, instead of the screen, avoids flicker.
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", text.replace('\n', "\x1b[K\r\n")))
    }

    /// Waits for a key; `None` after the redraw interval. A closed keyboard quits.
    pub(super) fn key(&self) -> Option<Key> {
        match self.keys.recv_timeout(REDRAW_INTERVAL) {
            Ok(bytes) => Some(parse_key(&bytes)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Key::Quit),
        }
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        output::print_bytes(text.as_bytes())
    }
}

/// `q`, escape or ctrl-C; tab; the arrows, or `k` and `j`; enter.
fn parse_key(bytes: &[u8]) -> Key {
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
        restore(&self.before);
    }
}

/// Restores the terminal. Best effort.
fn restore(before: &Termios) {
    let _ = io::stdout().write_all(LEAVE.as_bytes());
    let _ = io::stdout().flush();
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

/// Restores the terminal and exits on a signal. It is a thread of its own, because the main thread may wait for a broker that
/// does not respond.
fn restore_on_signal(before: Termios) -> io::Result<()> {
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
        restore(&before);
        std::process::exit(128 + number);
    });
    Ok(())
}
