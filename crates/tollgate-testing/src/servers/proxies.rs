//! nginx and Caddy: proxies that ask somebody else whether a request may pass.

use std::path::Path;

use super::{Fault, Port, Process, Program};

/// Where Debian puts it, which is not on every user's path.
const NGINX: &str = "/usr/sbin/nginx";

/// Files that nginx would otherwise keep in folders of the system.
const NGINX_FILES: &str = "http {
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
";

/// A proxy.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
}

impl Proxy {
    /// Starts nginx with what `configure` makes of the port to listen on.
    ///
    /// # Errors
    /// If it is not installed, or does not start; with the end of its log.
    pub fn nginx(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        let configure = |port| configure(port).replacen("http {\n", NGINX_FILES, 1);
        let path = if Path::new(NGINX).exists() { NGINX } else { "nginx" };
        Self::start(configure, |file, folder| {
            let program = Program::new(path).args("-e stderr -g").arg("daemon off; pid nginx.pid;");
            program.arg("-p").arg(folder).arg("-c").arg(file)
        })
    }

    /// Starts Caddy with what `configure` makes of the port to listen on.
    ///
    /// # Errors
    /// If it is not installed, or does not start; with the end of its log.
    pub fn caddy(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        Self::start(configure, |file, folder| {
            let program = Program::new("caddy").args("run --adapter caddyfile --config").arg(file);
            let variables = ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"];
            variables.into_iter().fold(program, |program, name| program.env(name, folder))
        })
    }

    fn start(
        configure: impl FnOnce(u16) -> String,
        program: impl FnOnce(&str, &str) -> Program,
    ) -> Result<Self, Fault> {
        let unwritable = |error| Fault::new(format!("could not write for a proxy: {error}"));
        let folder = tempfile::tempdir().map_err(unwritable)?;
        let port = Port::free()?;
        let file = folder.path().join("configuration");
        std::fs::write(&file, configure(port.number())).map_err(unwritable)?;
        let program = program(&file.to_string_lossy(), &folder.path().to_string_lossy());
        Ok(Self { process: Process::start(program, port, folder)? })
    }

    /// The process, to find, stop, pause, kill and restart it.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
