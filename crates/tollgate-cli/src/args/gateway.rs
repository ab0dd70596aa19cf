//! The arguments of `gateway`.

use clap::{Args, Subcommand};

use super::examples;
use super::stores::NoServer;

#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// Call each upstream once, and show what it says about its limits
    ///
    /// Lists the models of each upstream, which costs nothing. Says whether it is reachable, speaks its dialect and accepts its
    /// key, and what its headers say about its limits, beside the policies that charge it. Exits with 0 if every upstream is
    /// well, 1 if one is not, 2 on an error.
    #[command(after_help = examples::GATEWAY_CHECK)]
    Check(GatewayCheck),
}

#[derive(Debug, Args)]
pub(crate) struct GatewayCheck {
    /// The upstreams to check; by default all
    #[arg(value_name = "UPSTREAM")]
    pub(crate) upstreams: Vec<String>,
    /// Also make a call with one token of output, which costs money: most providers send their limits with such calls only
    #[arg(long)]
    pub(crate) call: bool,
    #[command(flatten)]
    pub(crate) no_server: NoServer,
}
