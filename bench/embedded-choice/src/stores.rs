//! The databases behind one small trait, each set to answer only after the
//! batch is on the disk.

use crate::workload::Entry;
use std::error::Error;
use std::path::Path;

pub type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Same page cache for all, far below redb's default of 1 GiB.
const CACHE: usize = 32 << 20;

pub trait Store {
    /// One transaction; durable when it returns.
    fn put(&mut self, batch: &[Entry]) -> Res<()>;
    fn get(&self, key: &[u8]) -> Res<Option<Vec<u8>>>;
    /// The database's own full check, if it has one.
    fn check(&mut self) -> Res<String>;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redb,
    RedbQuick,
    Fjall,
    FjallSmall,
    Sqlite,
}

impl Kind {
    pub const ALL: [Kind; 5] =
        [Kind::Redb, Kind::RedbQuick, Kind::Fjall, Kind::FjallSmall, Kind::Sqlite];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Redb => "redb",
            Kind::RedbQuick => "redb quick-repair",
            Kind::Fjall => "fjall",
            Kind::FjallSmall => "fjall 4 MiB memtable",
            Kind::Sqlite => "SQLite",
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Opens or creates the database in `dir`.
    pub fn open(self, dir: &Path) -> Res<Box<dyn Store>> {
        Ok(match self {
            Kind::Redb => Box::new(Redb::open(dir, false)?),
            Kind::RedbQuick => Box::new(Redb::open(dir, true)?),
            Kind::Fjall => Box::new(Fjall::open(dir, 64 << 20)?),
            Kind::FjallSmall => Box::new(Fjall::open(dir, 4 << 20)?),
            Kind::Sqlite => Box::new(Sqlite::open(dir)?),
        })
    }
}

const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("entries");

struct Redb {
    db: redb::Database,
    quick_repair: bool,
}

impl Redb {
    fn open(dir: &Path, quick_repair: bool) -> Res<Self> {
        let db = redb::Builder::new().set_cache_size(CACHE).create(dir.join("store.redb"))?;
        Ok(Self { db, quick_repair })
    }
}

impl Store for Redb {
    fn put(&mut self, batch: &[Entry]) -> Res<()> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(redb::Durability::Immediate)?;
        txn.set_quick_repair(self.quick_repair);
        {
            let mut table = txn.open_table(TABLE)?;
            for (key, value) in batch {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8]) -> Res<Option<Vec<u8>>> {
        use redb::{ReadableDatabase, ReadableTable};
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let found = ReadableTable::get(&table, key)?;
        Ok(found.map(|value| value.value().to_vec()))
    }

    fn check(&mut self) -> Res<String> {
        Ok(match self.db.check_integrity()? {
            true => "passed".into(),
            false => "failed and repaired".into(),
        })
    }
}

struct Fjall {
    db: fjall::Database,
    entries: fjall::Keyspace,
}

impl Fjall {
    fn open(dir: &Path, memtable: u64) -> Res<Self> {
        let db = fjall::Database::builder(dir.join("fjall")).cache_size(CACHE as u64).open()?;
        let entries = db.keyspace("entries", || {
            fjall::KeyspaceCreateOptions::default().max_memtable_size(memtable)
        })?;
        Ok(Self { db, entries })
    }
}

impl Store for Fjall {
    fn put(&mut self, batch: &[Entry]) -> Res<()> {
        let mut txn = self.db.batch().durability(Some(fjall::PersistMode::SyncAll));
        for (key, value) in batch {
            txn.insert(&self.entries, key.as_slice(), value.as_slice());
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8]) -> Res<Option<Vec<u8>>> {
        Ok(self.entries.get(key)?.map(|value| value.to_vec()))
    }

    fn check(&mut self) -> Res<String> {
        Ok("has none".into())
    }
}

struct Sqlite(rusqlite::Connection);

impl Sqlite {
    fn open(dir: &Path) -> Res<Self> {
        let db = rusqlite::Connection::open(dir.join("store.sqlite"))?;
        db.busy_timeout(std::time::Duration::from_secs(2))?;
        db.execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-{};
             CREATE TABLE IF NOT EXISTS entries(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID",
            CACHE / 1024
        ))?;
        Ok(Self(db))
    }
}

impl Store for Sqlite {
    fn put(&mut self, batch: &[Entry]) -> Res<()> {
        let txn = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut put = txn.prepare_cached("REPLACE INTO entries(k, v) VALUES (?1, ?2)")?;
            for (key, value) in batch {
                put.execute((key, value))?;
            }
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8]) -> Res<Option<Vec<u8>>> {
        use rusqlite::OptionalExtension;
        let mut get = self.0.prepare_cached("SELECT v FROM entries WHERE k = ?1")?;
        Ok(get.query_row([key], |row| row.get(0)).optional()?)
    }

    fn check(&mut self) -> Res<String> {
        let said: String = self.0.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        Ok(if said == "ok" { "passed".into() } else { said.replace('\n', " ") })
    }
}
