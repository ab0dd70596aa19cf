//! How each store speaks of a damaged file: error, panic, or silence.
//!
//! The damaged copy is read in a child process, so that a panic or a signal is
//! a result like any other.

use crate::processes::child;
use crate::speed::copy_dir;
use crate::stores::{Kind, Res};
use crate::workload::{self, Found, KEYS};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Entries at version 1 in the live image, all written just before the copy.
const RECENT: u64 = 500;

pub const CASES: [&str; 4] = [
    "data: 32 spots of 16 bytes",
    "data: cut to half",
    "data: first 64 bytes",
    "log of a crash: 1 spot of 16 bytes",
];

/// A copy taken while the store is open, as a crash would leave it.
pub fn live_image(kind: Kind, base: &Path, scratch: &Path, image: &Path) -> Res<()> {
    copy_dir(base, scratch)?;
    let mut store = kind.open(scratch)?;
    for first in (0..RECENT).step_by(20) {
        let batch: Vec<_> = (first..first + 20).map(|n| workload::entry(n, 1)).collect();
        store.put(&batch)?;
    }
    copy_dir(scratch, image)?;
    drop(store);
    Ok(fs::remove_dir_all(scratch)?)
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> Res<()> {
    for item in fs::read_dir(dir)? {
        let path = item?.path();
        if path.is_dir() { files(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

/// Length without the zeros reserved at the end.
fn used(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last as u64 + 1)
}

/// The newest log if asked for; else the file with most of the data, which is
/// a log only where the log holds everything.
fn victim(dir: &Path, log: bool) -> Res<PathBuf> {
    let mut all = Vec::new();
    files(dir, &mut all)?;
    all.sort_by_key(|path| used(path));
    let is_log = |path: &PathBuf| {
        path.to_string_lossy().ends_with("-wal") || path.extension().is_some_and(|e| e == "jnl")
    };
    let (logs, data): (Vec<_>, Vec<_>) = all.into_iter().partition(is_log);
    let newest = logs.into_iter().filter(|path| used(path) > 0).max();
    let largest = data.into_iter().next_back();
    let found = match (newest, largest) {
        (Some(newest), _) if log => Some(newest),
        (Some(newest), Some(largest)) if used(&largest) < 1 << 20 => Some(newest),
        (_, largest) => largest,
    };
    found.ok_or_else(|| "no file".into())
}

fn hurt(case: usize, dir: &Path) -> Res<String> {
    let path = victim(dir, case == 3)?;
    let length = used(&path);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let overwrite = |at: u64, count: usize| -> Res<()> {
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, at)?;
        bytes.iter_mut().for_each(|b| *b ^= 0xA5);
        Ok(file.write_all_at(&bytes, at)?)
    };
    match case {
        0 => (0..32u64).try_for_each(|i| overwrite(length / 4 + i * length / 64, 16))?,
        1 => file.set_len(length / 2)?,
        2 => overwrite(0, 64)?,
        _ => overwrite(length / 2, 16)?,
    }
    Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Child role: read everything, then run the store's own check.
pub fn inspect(kind: Kind, dir: &Path, recent: u64) {
    std::panic::set_hook(Box::new(|_| {}));
    let quiet = |work: &mut dyn FnMut() -> Res<String>| -> Result<String, String> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(said)) => Ok(said),
            Ok(Err(error)) => Err(format!("error {error:?}")),
            Err(panic) => Err(format!(
                "PANIC {:?}",
                panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or(panic.downcast_ref::<&str>().copied())
            )),
        }
    };
    let mut store = None;
    if let Err(said) = quiet(&mut || {
        store = Some(kind.open(dir)?);
        Ok(String::new())
    }) {
        println!("open: {said}");
        return;
    }
    let Some(mut store) = store else { return };
    let (mut right, mut old, mut wrong, mut missing, mut failed) = (0, 0, 0, 0, 0);
    let mut first_failure = String::new();
    for number in 0..KEYS {
        let expected = u64::from(number < recent);
        let read = quiet(&mut || {
            match store.get(&workload::key(number))?.map(|v| workload::judge(number, &v)) {
                Some(Found::Version(v)) if v == expected => right += 1,
                Some(Found::Version(_)) => old += 1,
                Some(Found::Wrong) => wrong += 1,
                None => missing += 1,
            }
            Ok(String::new())
        });
        if let Err(said) = read {
            failed += 1;
            if first_failure.is_empty() {
                first_failure = format!(" (first: {said})");
            }
        }
    }
    let check = quiet(&mut || store.check()).unwrap_or_else(|said| said);
    println!(
        "open: ok; reads: {right} right, {old} old, {wrong} wrong, {missing} missing, \
         {failed} failed{first_failure}; own check: {check}"
    );
    // Closing a damaged store may fail too; that is not what is asked here.
    std::process::exit(0);
}

/// Damages a copy of `image` and says what reading it was like.
pub fn run(kind: Kind, case: usize, image: &Path, scratch: &Path) -> Res<String> {
    copy_dir(image, scratch)?;
    let name = hurt(case, scratch)?;
    let recent = if case == 3 { RECENT } else { 0 };
    let output = child("inspect", kind, scratch, &recent.to_string())?.output()?;
    fs::remove_dir_all(scratch)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    Ok(match output.status.code() {
        Some(0) => format!("{name} → {said}"),
        _ => format!("{name} → died: {} {said}", output.status),
    })
}
