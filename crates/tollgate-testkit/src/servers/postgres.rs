//! PostgreSQL: one cluster in a temporary folder, a database for each test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use super::process::nap;
use super::shared::{shared, unique_name};
use super::{Fault, Port, Process, Program, run};

/// Where Debian installs the programs, by version.
const LIBRARY: &str = "/usr/lib/postgresql";
const READY_LOOKS_MAX: u32 = 6_000;
/// Restarts of a crashed server while its children hold its shared memory.
const RESTARTS_MAX: u32 = 100;

/// A PostgreSQL server. It needs no password, counts statements (`pg_stat_statements`) and does not sync.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    address: PostgresAddress,
}

/// The address of a PostgreSQL server.
#[derive(Clone, Debug)]
pub struct PostgresAddress {
    port: u16,
    programs: PathBuf,
}

impl Deref for Postgres {
    type Target = PostgresAddress;

    fn deref(&self) -> &PostgresAddress {
        &self.address
    }
}

impl Postgres {
    /// Makes a cluster and starts it.
    pub fn start() -> Result<Self, Fault> {
        Self::start_with("")
    }

    /// Starts a server that all tests of this run share.
    pub fn shared() -> Result<PostgresAddress, Fault> {
        let start = || Self::start().map(|it| (it.port.to_string(), vec![it.process]));
        let port = shared("postgres", start)?;
        let port = port.parse().map_err(|_| Fault::new(format!("{port:?} is no port")))?;
        Ok(PostgresAddress { port, programs: programs()? })
    }

    /// Makes a cluster and starts it with further arguments, such as `-c max_connections=20`.
    pub fn start_with(arguments: &str) -> Result<Self, Fault> {
        let (port, folder, programs) = (Port::free()?, folder()?, programs()?);
        let path = folder.path().to_string_lossy().into_owned();
        run(&as_owner(Program::new(programs.join("initdb")), folder.path())?.args(&format!(
            "-D {path}/data -U postgres -A trust --no-sync -E UTF8 --locale=C.UTF-8"
        )))?;
        let number = port.number();
        let mut program = as_owner(Program::new(programs.join("postgres")), folder.path())?
            .args(&format!("-D {path}/data -p {number} -k {path} -h 127.0.0.1 -c fsync=off"))
            .args("-c shared_preload_libraries=pg_stat_statements -c max_connections=200")
            // A quiet server: nothing but the test writes to its log.
            .args("-c autovacuum=off")
            .stop_with(Signal::INT);
        if !arguments.is_empty() {
            program = program.args(arguments);
        }
        let process = Process::start(program, port, folder)?;
        let server = Self { process, address: PostgresAddress { port: number, programs } };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// The process, to stop, pause and kill it; to start it again use [`restart`](Self::restart).
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again where it was, after stopping it if it runs, and waits until it answers.
    pub fn restart(&mut self) -> Result<(), Fault> {
        for _ in 0..RESTARTS_MAX {
            // After a crash the children need a moment to notice, and hold the memory until then.
            if self.process.restart().is_ok() {
                return self.wait_until_ready();
            }
            nap();
        }
        self.process.restart()?;
        self.wait_until_ready()
    }
}

impl PostgresAddress {
    /// Returns the URL of `database` for the superuser.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// Returns the URL of `database` for `role`.
    pub fn url_as(&self, role: &str, database: &str) -> String {
        format!("postgresql://{role}@{}/{database}", self.address())
    }

    /// Makes a database that no other test has, and returns its name.
    pub fn database(&self) -> Result<String, Fault> {
        let name = unique_name();
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs `sql` through `psql` as the superuser, and returns its output without headers.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, Fault> {
        self.psql_as("postgres", database, sql)
    }

    /// Runs `sql` as [`psql`](Self::psql) does, but as `role`.
    pub fn psql_as(&self, role: &str, database: &str, sql: &str) -> Result<String, Fault> {
        let psql = self.psql_program(role, database).arg("-c").arg(sql);
        run(&psql).map(|text| text.trim_end().to_owned())
    }

    /// Runs the statements of `file` one after another as `role`, and returns what `psql` prints.
    pub fn psql_file(&self, role: &str, database: &str, file: &Path) -> Result<String, Fault> {
        let psql = self.psql_program(role, database).arg("-f").arg(file.to_string_lossy());
        run(&psql).map(|text| text.trim_end().to_owned())
    }

    fn psql_program(&self, role: &str, database: &str) -> Program {
        Program::new(self.programs.join("psql"))
            .args("-X -q -A -t -v ON_ERROR_STOP=1 -v VERBOSITY=verbose")
            .arg(self.url_as(role, database))
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn wait_until_ready(&self) -> Result<(), Fault> {
        let ask = Program::new(self.programs.join("pg_isready"))
            .args(&format!("-q -h 127.0.0.1 -p {}", self.port));
        for _ in 0..READY_LOOKS_MAX {
            if run(&ask).is_ok() {
                return Ok(());
            }
            nap();
        }
        run(&ask).map(drop)
    }
}

/// Returns the folder of the newest installed version, or of the programs in `PATH`.
fn programs() -> Result<PathBuf, Fault> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(LIBRARY)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, path)| path.join("bin/initdb").exists())
        .collect();
    versions.sort();
    match versions.pop() {
        Some((_, path)) => Ok(path.join("bin")),
        None => run(&Program::new("pg_config").arg("--bindir"))
            .map(|path| PathBuf::from(path.trim()))
            .map_err(|_| {
                Fault::new("PostgreSQL is not installed; `cargo xtask test` installs what the tests need, or install it by hand")
            }),
    }
}

fn folder() -> Result<TempDir, Fault> {
    let unusable = |error| Fault::new(format!("could not make a folder for PostgreSQL: {error}"));
    let folder = TempDir::with_prefix("tollgate-postgres-").map_err(unusable)?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(unusable)?;
    if let Some((user, group)) = owner()? {
        chown(folder.path(), Some(user), Some(group)).map_err(unusable)?;
    }
    Ok(folder)
}

/// PostgreSQL refuses to run as root, so root runs it as the user of the package.
fn as_owner(program: Program, home: &Path) -> Result<Program, Fault> {
    let program = program.env("HOME", home.to_string_lossy());
    Ok(match owner()? {
        Some((user, group)) => program.run_as(user, group),
        None => program,
    })
}

fn owner() -> Result<Option<(u32, u32)>, Fault> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")
        .map_err(|error| Fault::new(format!("could not read the list of users: {error}")))?;
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_postgres = fields.next() == Some("postgres");
        let (user, group) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_postgres.then_some((user, group))
    });
    found.map(Some).ok_or_else(|| {
        Fault::new("PostgreSQL refuses to run as root, and there is no user postgres to run it as")
    })
}
