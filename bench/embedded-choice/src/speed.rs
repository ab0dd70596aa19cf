//! Speed and size: the disk itself, group commits, reads, opening.
//!
//! The machine is shared, and its speed changes from one second to the next.
//! So nothing here runs one store to the end and then the next: callers take
//! short turns, all stores and the bare disk in each round, so that a busy
//! second is shared by all. The 10th percentile is the cost on a quiet machine,
//! the median and the 99th percentile are what the neighbours leave of it.

use crate::stores::{Kind, Res, Store};
use crate::syncs;
use crate::workload::{self, KEYS, Rng};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

pub fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    let index = (times.len() as f64 * part) as usize;
    times[index.min(times.len() - 1)]
}

pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 0.5)
}

/// The quiet, the middle and the bad case, in milliseconds.
pub fn spread(times: &mut [Duration]) -> String {
    let [quiet, middle, bad] =
        [0.1, 0.5, 0.99].map(|part| percentile(times, part).as_secs_f64() * 1e3);
    format!("{quiet:.2} / {middle:.2} / {bad:.2}")
}

pub fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// How long one turn of writing lasts.
const TURN: Duration = Duration::from_millis(100);

/// What the disk can do at best: 4 KiB written and synced again and again for
/// one turn, at the end of a growing file or in place.
pub fn raw_turn(dir: &Path, append: bool, times: &mut Vec<Duration>) -> Res<()> {
    let path = dir.join("raw");
    let mut file = File::create(&path)?;
    file.write_all(&[0x5A; 4096])?;
    file.sync_all()?;
    let start = Instant::now();
    while start.elapsed() < TURN {
        let begun = Instant::now();
        if append {
            file.write_all(&[0x5A; 4096])?;
        } else {
            file.write_all_at(&[0x5A; 4096], 0)?;
        }
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    Ok(fs::remove_file(path)?)
}

/// Puts every key in at version 0, in batches of 1000, and closes.
pub fn fill(kind: Kind, dir: &Path) -> Res<()> {
    let mut store = kind.open(dir)?;
    for first in (0..KEYS).step_by(1000) {
        let batch: Vec<_> = (first..first + 1000).map(|n| workload::entry(n, 0)).collect();
        store.put(&batch)?;
    }
    Ok(())
}

/// The turns of one store at one batch size.
#[derive(Default)]
pub struct Commits {
    pub times: Vec<Duration>,
    pub spent: Duration,
    pub syncs: u64,
}

/// Commits batches of `size` random entries for one turn.
pub fn commit_turn(store: &mut dyn Store, size: usize, run: &mut Commits) -> Res<()> {
    let mut rng = Rng::new((size * 1_000_000 + run.times.len()) as u64);
    let (start, syncs_before) = (Instant::now(), syncs::count());
    while start.elapsed() < TURN {
        let version = run.times.len() as u64 + 1;
        let batch: Vec<_> = (0..size).map(|_| workload::entry(rng.key_number(), version)).collect();
        let begun = Instant::now();
        store.put(&batch)?;
        run.times.push(begun.elapsed());
    }
    run.spent += start.elapsed();
    run.syncs += syncs::count() - syncs_before;
    Ok(())
}

/// Median and 99th percentile of one read, after every key was read once.
pub fn reads(store: &dyn Store) -> Res<(Duration, Duration)> {
    for number in 0..KEYS {
        store.get(&workload::key(number))?.ok_or("a key is missing")?;
    }
    let mut rng = Rng::new(7);
    let mut times = Vec::with_capacity(KEYS as usize);
    for _ in 0..KEYS {
        let key = workload::key(rng.key_number());
        let begun = Instant::now();
        std::hint::black_box(store.get(&key)?);
        times.push(begun.elapsed());
    }
    Ok((median(&mut times), percentile(&mut times, 0.99)))
}

/// One open with one read, and one close. The page cache is warm.
pub fn open_and_close(kind: Kind, dir: &Path) -> Res<(Duration, Duration)> {
    let begun = Instant::now();
    let store = kind.open(dir)?;
    store.get(&workload::key(1))?.ok_or("a key is missing")?;
    let opened = begun.elapsed();
    let begun = Instant::now();
    drop(store);
    Ok((opened, begun.elapsed()))
}

/// Bytes really taken on the disk (a file that was only reserved takes none).
pub fn disk_use(dir: &Path) -> Res<u64> {
    let mut total = 0;
    for item in fs::read_dir(dir)? {
        let item = item?;
        let meta = item.metadata()?;
        total += if meta.is_dir() { disk_use(&item.path())? } else { meta.blocks() * 512 };
    }
    Ok(total)
}

pub fn copy_dir(from: &Path, to: &Path) -> Res<()> {
    fs::create_dir_all(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.metadata()?.is_dir() {
            copy_dir(&item.path(), &target)?;
        } else {
            fs::copy(item.path(), target)?;
        }
    }
    Ok(())
}
