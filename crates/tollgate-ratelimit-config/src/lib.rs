#![doc = include_str!("../README.md")]

pub mod bounds;
mod config;
mod error;
mod fields;
mod file;
mod folder;
pub mod limitador;
mod management_server;
mod pattern;
mod policies;
#[cfg(feature = "protobuf")]
mod protobuf;
mod settings;
mod yaml;

pub use config::{Match, Options, Quantity, RateLimitConfig, Resolved, Rule};
pub use error::ConfigError;
pub use file::{Descriptor, DomainFile, RateLimit, Unit};
pub use folder::files;
pub use management_server::{ManagementServer, ManagementTls, Readiness};
pub use pattern::Pattern;
pub use policies::{Windows, policy_name};
#[cfg(feature = "protobuf")]
pub use protobuf::TYPE_URL;
pub use settings::{ConfigType, RedisSettings, RedisType, ServerTls, Settings, SettingsError};
