//! redis-cell as a reference: what `CL.THROTTLE` and `DEL` answer, and a comparison of any server with it.
//!
//! The model follows redis-cell 0.4 with one simplification: a key expires exactly at its TAT. In Redis it expires up to
//! a millisecond around it.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use fastrand::Rng;
use tollgate::clock::ManualClock;
use tollgate::{Clock, Span};

/// One `CL.THROTTLE` without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `max_burst`.
    pub max_burst: i64,
    /// `count`.
    pub count: i64,
    /// `period`, in seconds.
    pub period: i64,
    /// `quantity`.
    pub quantity: i64,
}

impl Command {
    /// Numbers as services have them, and some as few have them. Few enough that keys meet the same ones again.
    pub fn random(random: &mut Rng) -> Self {
        let one_of = |random: &mut Rng, of: &[i64]| of[random.usize(..of.len())];
        let max_burst = match random.u8(..4) {
            0 => one_of(random, &[0, 1, 4, 15, 99]),
            1 => random.i64(0..1_000),
            _ => random.i64(0..20),
        };
        let count = match random.u8(..4) {
            0 => random.i64(1..20),
            1 => random.i64(1..200_000),
            _ => one_of(random, &[1, 2, 3, 7, 10, 30, 60, 100, 999]),
        };
        let period = match random.u8(..8) {
            0 => random.i64(1..100_000),
            1 => one_of(random, &[86_400, 604_800, 2_592_000]),
            _ => one_of(random, &[1, 2, 3, 7, 10, 60, 61]),
        };
        let quantity = match random.u8(..8) {
            0 | 1 => 0,
            2 => random.i64(0..max_burst + 3),
            3 => random.i64(2..5),
            _ => 1,
        };
        let command = Self { max_burst, count, period, quantity };
        // Beyond 52 days not every nanosecond is exact.
        let tolerance = command.interval() * i128::from(max_burst + 1);
        if tolerance < 52 * 86_400 * 1_000_000_000 {
            command
        } else {
            Self { max_burst: 0, count: count + 30, ..command }
        }
    }

    /// The emission interval in nanoseconds.
    #[expect(clippy::cast_possible_truncation, reason = "redis-cell truncates")]
    fn interval(&self) -> i128 {
        (self.period as f64 * 1e9 / self.count as f64) as i128
    }
}

/// The keys of a Redis with redis-cell.
#[derive(Debug, Default)]
pub struct RedisCell {
    /// The theoretical arrival time of each key, in nanoseconds.
    arrivals: HashMap<String, i128>,
}

impl RedisCell {
    /// Answers `command` on `key` at `micros` since the epoch.
    #[expect(clippy::cast_possible_truncation, reason = "redis-cell truncates")]
    pub fn throttle(&mut self, key: &str, micros: u64, command: Command) -> [i64; 5] {
        let now = i128::from(micros) * 1_000;
        let (interval, limit) = (command.interval(), command.max_burst + 1);
        assert!(1_000 <= interval, "redis-cell divides by zero");
        let (tolerance, increment) =
            (interval * i128::from(limit), interval * i128::from(command.quantity));
        let arrival = self.arrivals.get(key).copied().filter(|arrival| now < *arrival);
        let arrival = arrival.unwrap_or(now);
        let next_arrival = arrival + increment;
        let early = next_arrival - tolerance - now;
        let is_limited = 0 < early;
        if !is_limited {
            self.arrivals.insert(key.to_owned(), next_arrival);
        }
        let reset_after = if is_limited { arrival } else { next_arrival } - now;
        let room = tolerance - reset_after;
        let remaining = if -interval < room {
            ((room / 1_000) as f64 / (interval / 1_000) as f64) as i64
        } else {
            0
        };
        let retry_after = if is_limited && increment <= tolerance { seconds(early) } else { -1 };
        [i64::from(is_limited), limit, remaining, retry_after, seconds(reset_after)]
    }

    /// Deletes `key`. Returns whether there was one.
    pub fn delete(&mut self, key: &str, micros: u64) -> bool {
        self.arrivals.remove(key).is_some_and(|arrival| i128::from(micros) * 1_000 < arrival)
    }
}

/// Whole seconds, and one more if there are whole milliseconds more.
fn seconds(nanos: i128) -> i64 {
    let milliseconds = nanos % 1_000_000_000 / 1_000_000;
    let seconds = nanos / 1_000_000_000 + i128::from(0 < milliseconds);
    i64::try_from(seconds).expect("a wait of a command that random() makes")
}

/// A connection that sends commands and reads integers.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to the server at `address`.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends `command` and reads the answer, an integer or an array of them.
    pub fn ask(&mut self, command: &str) -> io::Result<Vec<i64>> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let head = self.line()?;
        match head.strip_prefix('*') {
            Some(length) => (0..parse(length)?).map(|_| integer(&self.line()?)).collect(),
            None => Ok(vec![integer(&head)?]),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map(|_| line)
    }
}

fn integer(line: &str) -> io::Result<i64> {
    parse(line.strip_prefix(':').ok_or_else(|| io::Error::other(line))?)
}

fn parse(text: &str) -> io::Result<i64> {
    text.trim_end().parse().map_err(|_| io::Error::other(text))
}

/// Sends `commands` random commands to the server at `address`, whose store decides by `clock`, and moves the clock.
/// Each has other numbers than the one before.
pub fn compare(
    address: SocketAddr,
    clock: &ManualClock,
    seed: u64,
    commands: usize,
) -> io::Result<()> {
    let (mut random, mut cell) = (Rng::with_seed(seed), RedisCell::default());
    let mut server = Connection::open(address)?;
    let mut story = Vec::new();
    for _ in 0..commands {
        let key = format!("seed-{seed}-key-{}", random.u8(..3));
        let step = step(&mut random);
        clock.advance(step);
        if Span::from_secs(1) < step {
            // By this clock the connection may have been idle for too long.
            server = Connection::open(address)?;
        }
        let now = clock.now().as_micros();
        let (line, expected) = if random.u8(..50) == 0 {
            (format!("DEL {key}"), vec![i64::from(cell.delete(&key, now))])
        } else {
            let command = Command::random(&mut random);
            let Command { max_burst, count, period, quantity } = command;
            let line = format!("CL.THROTTLE {key} {max_burst} {count} {period} {quantity}");
            (line, cell.throttle(&key, now, command).to_vec())
        };
        story.push(format!("{now} {line}"));
        assert_eq!(server.ask(&line)?, expected, "seed {seed}:\n{}", story.join("\n"));
    }
    Ok(())
}

/// The time until the next command: none, microseconds, whole milliseconds, or long enough to forget.
fn step(random: &mut Rng) -> Span {
    match random.u8(..16) {
        0..=5 => Span::ZERO,
        6..=8 => Span::from_micros(random.u64(..2_000)),
        9..=12 => Span::from_millis(random.u64(..1_000)),
        13 => Span::from_millis(random.u64(..10_000)),
        14 => Span::from_micros(random.u64(..60_000_000)),
        _ => Span::from_hours(random.u64(..48)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of redis-cell's own tests: five at once, one per second.
    #[test]
    fn the_table_of_redis_cell() {
        let mut cell = RedisCell::default();
        for (milliseconds, quantity, answer) in [
            (0, 6, [1, 5, 5, -1, 0]),
            (0, 1, [0, 5, 4, -1, 1]),
            (0, 1, [0, 5, 3, -1, 2]),
            (0, 1, [0, 5, 2, -1, 3]),
            (0, 1, [0, 5, 1, -1, 4]),
            (0, 1, [0, 5, 0, -1, 5]),
            (0, 1, [1, 5, 0, 1, 5]),
            (3_000, 1, [0, 5, 2, -1, 3]),
            (3_100, 1, [0, 5, 1, -1, 4]),
            (4_000, 1, [0, 5, 1, -1, 4]),
            (8_000, 1, [0, 5, 4, -1, 1]),
            (9_500, 1, [0, 5, 4, -1, 1]),
            (9_500, 0, [0, 5, 4, -1, 1]),
            (9_500, 2, [0, 5, 2, -1, 3]),
            (9_500, 5, [1, 5, 2, 3, 3]),
        ] {
            let command = Command { max_burst: 4, count: 1, period: 1, quantity };
            assert_eq!(cell.throttle("foo", milliseconds * 1_000, command), answer);
        }
    }
    /// Random commands meet every kind of answer often.
    #[test]
    fn random_commands_are_answered_in_every_way() {
        let (mut random, mut cell, mut now) = (Rng::with_seed(7), RedisCell::default(), 0);
        let (mut admitted, mut refused, mut never, mut looked) = (0, 0, 0, 0);
        for _ in 0..1_000 {
            now += step(&mut random).as_micros();
            let command = Command::random(&mut random);
            match (cell.throttle("key", now, command), command.quantity) {
                ([1, ..], 0) => looked += 1,
                ([1, _, _, -1, _], _) => never += 1,
                ([1, ..], _) => refused += 1,
                _ => admitted += 1,
            }
        }
        let all = [admitted, refused, never, looked];
        assert!(all.iter().all(|times| 25 < *times), "{all:?}");
    }
}
