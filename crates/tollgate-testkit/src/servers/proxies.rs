//! nginx and Caddy, with forward authentication, and Envoy, with a rate limit service.

use std::path::Path;

use super::program::installed;
use super::{Fault, Port, Process, Program};

/// Where `cargo xtask` installs Envoy.
const ENVOY: &str = "servers/envoy/envoy/_bin/envoy";

/// Not in every user's `PATH`.
const NGINX: &str = "/usr/sbin/nginx";

/// Keeps the files of nginx out of system folders.
const NGINX_FILES: &str = "http {
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
";

#[derive(Debug)]
pub struct Proxy {
    process: Process,
}

impl Proxy {
    /// Starts nginx with what `configure` makes of the port to listen on.
    pub fn nginx(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        let configure = |port| configure(port).replacen("http {\n", NGINX_FILES, 1);
        let path = if Path::new(NGINX).exists() { NGINX } else { "nginx" };
        Self::start(configure, |file, folder| {
            let program = Program::new(path).args("-e stderr -g").arg("daemon off; pid nginx.pid;");
            program.arg("-p").arg(folder).arg("-c").arg(file)
        })
    }

    /// Starts Caddy with what `configure` makes of the port to listen on.
    pub fn caddy(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        Self::start(configure, |file, folder| {
            let program = Program::new("caddy").args("run --adapter caddyfile --config").arg(file);
            let variables = ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"];
            variables.into_iter().fold(program, |program, name| program.env(name, folder))
        })
    }

    /// Starts Envoy with what `configure` makes of the port to listen on.
    pub fn envoy(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        let path = installed(ENVOY).ok_or_else(|| {
            Fault::new("envoy is not installed; `cargo xtask test` installs what the tests need")
        })?;
        let arguments = "--concurrency 1 --disable-hot-restart -l warn -c";
        Self::start(configure, |file, _| Program::new(path).args(arguments).arg(file))
    }

    fn start(
        configure: impl FnOnce(u16) -> String,
        program: impl FnOnce(&str, &str) -> Program,
    ) -> Result<Self, Fault> {
        let unwritable = |error| Fault::new(format!("could not write for a proxy: {error}"));
        let folder = tempfile::tempdir().map_err(unwritable)?;
        let port = Port::free()?;
        let file = folder.path().join("configuration.yaml");
        std::fs::write(&file, configure(port.number())).map_err(unwritable)?;
        let program = program(&file.to_string_lossy(), &folder.path().to_string_lossy());
        Ok(Self { process: Process::start(program, port, folder)? })
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
