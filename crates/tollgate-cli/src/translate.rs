//! Mounts the application `tollgate translate`: the endpoint of its metrics, and the runtime of its function.

use std::path::Path;
use std::process::ExitCode;

use async_trait::async_trait;
use serde_json::Value;
use tollgate::internal::edge::environment;
use tollgate_config::{BrokerConfig, Secret};
use tollgate_server::{ServerOptions, Tls};
use tollgate_terminal::{Failure, OutputFormat};
use tollgate_translate::command::{
    self, Environment, LambdaRuntime, MetricsEndpoint, TranslateArgs,
};

use crate::KEY_VARIABLE;
use crate::config::ServeConfig;
use crate::incidents;
use crate::lambda::Runtime;
use crate::remote::Server;
use crate::serve;

/// Runs `tollgate translate`.
pub(crate) async fn run(
    args: TranslateArgs,
    server: Option<Server>,
    config_file: Option<&Path>,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let mut config = ServeConfig::load(config_file)?;
    let metrics = match args.metrics_address() {
        Some(address) => Some(bind(address, &config).await?),
        None => None,
    };
    let mut lambda: Option<Box<dyn LambdaRuntime>> = None;
    if args.is_lambda() {
        // The package of a function is read-only.
        let telemetry = &mut config.gates.telemetry;
        telemetry.incident_file = incidents::writable(&telemetry.incident_file);
        lambda = Some(Box::new(Runtime::from_environment()?));
    }
    let (config, broker) = (config.gates, server.map(broker));
    command::run(args, Environment { config, config_file, broker, format, metrics, lambda }).await
}

/// Binds the metrics endpoint. Like a broker, it needs keys if other machines can reach it.
async fn bind(address: &str, config: &ServeConfig) -> Result<MetricsEndpoint, Failure> {
    let address = serve::parse_address("--metrics", address, "127.0.0.1:9464")?;
    let (server, keys) = (&config.server, serve::read_keys(config)?);
    let is_loopback = address.ip().is_loopback();
    let is_allowed = server.anonymous || server.has_client_authority();
    if !is_loopback && keys.is_none() && !is_allowed {
        return Err(serve::refuse_exposed(address, "anonymous = true in [server]"));
    }
    let tls = server.tls.clone().map(Tls::open).transpose()?;
    let options = ServerOptions { is_loopback, ..server.settings.clone() };
    let (listener, address) = serve::bind("--metrics", address).await?;
    Ok(MetricsEndpoint { listener, address, keys, tls, options })
}

/// The broker at `server` as the store.
fn broker(server: Server) -> BrokerConfig {
    let key = environment(KEY_VARIABLE).map(|_| Secret::Environment(KEY_VARIABLE.to_owned()));
    BrokerConfig {
        url: Some(server.url.as_str().to_owned()),
        grpc: None,
        resp: None,
        key,
        authority: server.credentials.authority,
        identity: None,
    }
}

#[async_trait]
impl LambdaRuntime for Runtime {
    async fn next(&self) -> Result<(String, Vec<u8>), Failure> {
        let event = Self::next(self).await?;
        Ok((event.request, event.body))
    }

    async fn respond(
        &self,
        request: String,
        answer: Result<Value, Failure>,
    ) -> Result<(), Failure> {
        self.post_result(request, answer).await
    }
}
