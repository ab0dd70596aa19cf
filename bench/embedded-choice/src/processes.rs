//! What only other processes can show: one process per decision, a writer
//! killed half-way, two processes on one folder.

use crate::speed::copy_dir;
use crate::stores::{Kind, Res};
use crate::syncs;
use crate::workload::{self, Found};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// This program again, in one of the child roles of `main`.
pub fn child(role: &str, kind: Kind, dir: &Path, extra: &str) -> Res<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([role, kind.name()]).arg(dir).arg(extra);
    Ok(command)
}

/// Child role: open, one read, one durable write, then close or just leave.
pub fn once(kind: Kind, dir: &Path, extra: &str) -> Res<()> {
    if extra != "nothing" {
        let number = u64::from(std::process::id()) % workload::KEYS;
        let mut store = kind.open(dir)?;
        store.get(&workload::key(number))?.ok_or("a key is missing")?;
        store.put(&[workload::entry(number, 1)])?;
        match extra {
            "close" => drop(store),
            _ => std::mem::forget(store),
        }
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?");
    println!("{} {}", syncs::count(), peak.trim());
    Ok(())
}

/// Wall time of one such process, and what it said of itself.
pub fn run_once(kind: Kind, dir: &Path, extra: &str) -> Res<(Duration, String)> {
    let begun = Instant::now();
    let output = child("once", kind, dir, extra)?.output()?;
    let time = begun.elapsed();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok((time, String::from_utf8(output.stdout)?.trim().to_string()))
}

/// Eighty such processes, eight at a time: how many failed, and the wall time.
pub fn crowd(kind: Kind, dir: &Path) -> (usize, Duration) {
    let begun = Instant::now();
    let failures = std::thread::scope(|scope| {
        let ten = || (0..10).filter(|_| run_once(kind, dir, "close").is_err()).count();
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(ten)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(10)).sum()
    });
    (failures, begun.elapsed())
}

/// Child role: commit batches of 8 for ever, telling each one after it is durable.
pub fn write_for_ever(kind: Kind, dir: &Path) -> Res<()> {
    let mut store = kind.open(dir)?;
    for index in 0.. {
        let batch: Vec<_> = workload::crash_batch(index)
            .into_iter()
            .map(|(number, version)| workload::entry(number, version))
            .collect();
        store.put(&batch)?;
        println!("{index}");
    }
    Ok(())
}

#[derive(Default)]
pub struct Crash {
    pub open: Vec<Duration>,
    pub acknowledged: u64,
    pub lost: u64,
    pub torn: u64,
}

/// Kills a writer after a second, opens what it left, and looks for every
/// entry it had acknowledged. The one batch in flight may be there or not, but
/// not in part.
pub fn kill_and_open(kind: Kind, base: &Path, scratch: &Path, total: &mut Crash) -> Res<()> {
    copy_dir(base, scratch)?;
    let mut writer = child("write", kind, scratch, "")?.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(writer.stdout.take().ok_or("no pipe")?).lines();
    let mut done = 0;
    let mut expected: HashMap<u64, u64> = HashMap::new();
    let mut begun = None;
    while let Some(Ok(line)) = lines.next() {
        if line.parse::<u64>()? != done {
            return Err("the writer skipped a batch".into());
        }
        expected.extend(workload::crash_batch(done));
        done += 1;
        if begun.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1) {
            writer.kill()?;
        }
    }
    writer.wait()?;

    let begun = Instant::now();
    let store = kind.open(scratch)?;
    store.get(&workload::key(1))?.ok_or("a key is missing")?;
    total.open.push(begun.elapsed());

    let version_of = |number: u64| -> Res<Option<u64>> {
        Ok(match store.get(&workload::key(number))?.map(|v| workload::judge(number, &v)) {
            Some(Found::Version(version)) => Some(version),
            Some(Found::Wrong) | None => None,
        })
    };
    let in_flight = workload::crash_batch(done);
    let mut arrived = 0;
    for (number, version) in &in_flight {
        arrived += usize::from(version_of(*number)? == Some(*version));
    }
    total.torn += u64::from(arrived != 0 && arrived != in_flight.len());
    for (number, version) in expected {
        let found = version_of(number)?;
        total.lost += u64::from(found != Some(version) && found != Some(done + 1));
    }
    total.acknowledged += done;
    drop(store);
    Ok(fs::remove_dir_all(scratch)?)
}

/// What a second process is told while this one has the folder open.
pub fn second_process(kind: Kind, dir: &Path) -> Res<String> {
    let _open = kind.open(dir)?;
    let begun = Instant::now();
    let output = child("once", kind, dir, "close")?.output()?;
    let took = begun.elapsed().as_millis();
    Ok(if output.status.success() {
        format!("both work ({took} ms)")
    } else {
        format!("{} ({took} ms)", String::from_utf8_lossy(&output.stderr).trim())
    })
}
