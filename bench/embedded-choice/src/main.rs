//! Measures redb, fjall and SQLite for the durable store of one machine and
//! prints the figures as one table, so that the choice can be made again when
//! the versions or the disk change.

// The clock and the environment are what this program is about.
#![allow(clippy::disallowed_methods)]

mod damage;
mod processes;
mod speed;
mod stores;
mod syncs;
mod workload;

use processes::{Crash, crowd, kill_and_open, run_once, second_process};
use speed::{Commits, commit_turn, copy_dir, median, ms, raw_turn, spread};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use stores::{Kind, Res};

/// One row per figure, one cell per store.
fn row(name: &str, cell: impl FnMut(Kind) -> Res<String>) -> Res<()> {
    let cells: Vec<String> = Kind::ALL.into_iter().map(cell).collect::<Res<_>>()?;
    println!("| {name} | {} |", cells.join(" | "));
    Ok(())
}

/// Takes `rounds` rounds in which every store has a turn; gives the turns of each.
fn rounds<T>(rounds: u32, mut turn: impl FnMut(Kind) -> Res<T>) -> Res<[Vec<T>; 5]> {
    let mut all: [Vec<T>; 5] = Default::default();
    for _ in 0..rounds {
        for kind in Kind::ALL {
            all[kind as usize].push(turn(kind)?);
        }
    }
    Ok(all)
}

/// Group commit, batch size by batch size, with the bare disk in every round.
fn group_commit(data: &Path) -> Res<()> {
    let size = |kind: Kind, dir: &str| -> Res<String> {
        let bytes = speed::disk_use(&data.join(kind.name()).join(dir))?;
        Ok(format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)))
    };
    row("size of 100k keys", |kind| size(kind, "base"))?;
    let mut stores = Vec::new();
    for kind in Kind::ALL {
        copy_dir(&data.join(kind.name()).join("base"), &data.join(kind.name()).join("work"))?;
        stores.push(kind.open(&data.join(kind.name()).join("work"))?);
    }
    let (mut appends, mut overwrites) = (Vec::new(), Vec::new());
    for batch in [1, 8, 32, 64] {
        let mut runs: [Commits; 5] = Default::default();
        for _ in 0..30 {
            raw_turn(data, true, &mut appends)?;
            raw_turn(data, false, &mut overwrites)?;
            for (store, run) in stores.iter_mut().zip(&mut runs) {
                commit_turn(store.as_mut(), batch, run)?;
            }
        }
        row(&format!("batch {batch}: commits/s (entries/s)"), |kind| {
            let run = &runs[kind as usize];
            let rate = run.times.len() as f64 / run.spent.as_secs_f64();
            Ok(format!("{rate:.0} ({:.0})", rate * batch as f64))
        })?;
        row(&format!("batch {batch}: ms; syncs per commit"), |kind| {
            let run = &mut runs[kind as usize];
            let each = run.syncs as f64 / run.times.len() as f64;
            Ok(format!("{}; {each:.2}", spread(&mut run.times)))
        })?;
    }
    for (name, times) in [("append", &mut appends), ("overwrite", &mut overwrites)] {
        let rate = times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64();
        println!(
            "| disk alone in the same rounds: 4 KiB {name} + fdatasync | {rate:.0}/s, {} ms |||||",
            spread(times)
        );
    }
    row("warm read: median, p99", |kind| {
        let (middle, p99) = speed::reads(stores[kind as usize].as_ref())?;
        Ok(format!("{:.1} µs, {:.1} µs", middle.as_secs_f64() * 1e6, p99.as_secs_f64() * 1e6))
    })?;
    drop(stores);
    row("size after the writes", |kind| size(kind, "work"))?;
    for kind in Kind::ALL {
        fs::remove_dir_all(data.join(kind.name()).join("work"))?;
    }
    Ok(())
}

/// Opening, short processes, and crashes.
fn open_and_crash(data: &Path) -> Res<()> {
    let base = |kind: Kind| data.join(kind.name()).join("base");
    let work = |kind: Kind| data.join(kind.name()).join("work");
    for kind in Kind::ALL {
        copy_dir(&base(kind), &work(kind))?;
    }
    let turns = rounds(15, |kind| speed::open_and_close(kind, &work(kind)))?;
    row("open after a clean close; close (ms)", |kind| {
        let (mut opens, mut closes): (Vec<_>, Vec<_>) =
            turns[kind as usize].iter().copied().unzip();
        Ok(format!("{}; {}", spread(&mut opens), spread(&mut closes)))
    })?;
    for (extra, name) in [
        ("nothing", "process that does nothing (ms; syncs; peak memory)"),
        ("close", "process per decision"),
        ("leave", "same, left without a close"),
    ] {
        let turns = rounds(30, |kind| run_once(kind, &work(kind), extra))?;
        row(name, |kind| {
            let mut times: Vec<Duration> = turns[kind as usize].iter().map(|turn| turn.0).collect();
            let said = turns[kind as usize].last().map_or("?", |turn| turn.1.as_str());
            Ok(format!("{}; {}", spread(&mut times), said.replacen(' ', "; ", 1)))
        })?;
    }
    row("80 processes, 8 at a time: failed; all", |kind| {
        let (failed, time) = crowd(kind, &work(kind));
        Ok(format!("{failed}; {}", ms(time)))
    })?;
    row("second process meanwhile", |kind| second_process(kind, &work(kind)))?;
    for kind in Kind::ALL {
        fs::remove_dir_all(work(kind))?;
    }
    let mut crashes: [Crash; 5] = Default::default();
    rounds(5, |kind| kill_and_open(kind, &base(kind), &work(kind), &mut crashes[kind as usize]))?;
    row("open after kill -9 (median of 5)", |kind| {
        Ok(ms(median(&mut crashes[kind as usize].open)))
    })?;
    row("batches acknowledged; entries lost; batches torn", |kind| {
        let crash = &crashes[kind as usize];
        Ok(format!("{}; {}; {}", crash.acknowledged, crash.lost, crash.torn))
    })
}

/// One row per damage and store: the answers are too long for cells side by side.
fn damages(data: &Path) -> Res<()> {
    println!("\n| damage | store | what happened |\n|---|---|---|");
    for (case, name) in damage::CASES.iter().enumerate() {
        for kind in Kind::ALL {
            let dir = data.join(kind.name());
            let (base, work, image) = (dir.join("base"), dir.join("work"), dir.join("image"));
            if !image.exists() {
                damage::live_image(kind, &base, &work, &image)?;
            }
            let from = if case == 3 { &image } else { &base };
            println!("| {name} | {} | {} |", kind.name(), damage::run(kind, case, from, &work)?);
        }
    }
    Ok(())
}

/// Seconds to build the database's crate and what it needs, from nothing.
fn build_seconds(package: &str, data: &Path) -> Res<f64> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let begun = Instant::now();
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--locked", "-p", package, "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(data.join("build"))
        .status()?;
    let seconds = begun.elapsed().as_secs_f64();
    fs::remove_dir_all(data.join("build"))?;
    if status.success() { Ok(seconds) } else { Err("the build failed".into()) }
}

fn compare() -> Res<()> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("target-data");
    let _ = fs::remove_dir_all(&data);
    for kind in Kind::ALL {
        let base = data.join(kind.name()).join("base");
        fs::create_dir_all(&base)?;
        speed::fill(kind, &base)?;
    }
    let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    println!(
        "ms: 10th percentile / median / 99th percentile\n\n| | {} |\n|---|{}",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    group_commit(&data)?;
    open_and_crash(&data)?;
    row("cold release build of the crate", |kind| {
        Ok(match kind {
            Kind::Redb => format!("{:.0} s", build_seconds("redb", &data)?),
            Kind::Fjall => format!("{:.0} s", build_seconds("fjall", &data)?),
            Kind::Sqlite => format!("{:.0} s", build_seconds("rusqlite", &data)?),
            Kind::RedbQuick | Kind::FjallSmall => "same".into(),
        })
    })?;
    damages(&data)?;
    Ok(fs::remove_dir_all(&data)?)
}

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [role, kind, dir, extra] = args[..] else {
        return compare();
    };
    let (kind, dir) = (Kind::parse(kind).ok_or("no such store")?, Path::new(dir));
    match role {
        "once" => processes::once(kind, dir, extra),
        "write" => processes::write_for_ever(kind, dir),
        "inspect" => {
            damage::inspect(kind, dir, extra.parse()?);
            Ok(())
        }
        _ => Err("no such role".into()),
    }
}
