//! The gRPC messages and services of the files in `proto/`.
//!
//! The generated code is checked in, so that a build needs neither protoc nor a generator. After changing a proto file, run
//! `proto/generate`; a test fails otherwise.
#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::cast_lossless,
    clippy::needless_pass_by_value,
    clippy::wildcard_imports,
    missing_docs,
    unreachable_pub,
    rustdoc::all,
    reason = "generated"
)]

mod convert;
mod structs;
mod time;

pub use convert::standings;
pub use prost_types::{Any, Duration, Struct, Timestamp as Time};
pub use structs::json_struct;
pub use time::{instant, time};

include!("../../proto/generated/mod.rs");

/// The descriptors of the services that a broker answers, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("../../proto/generated/descriptors.bin");

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    #[test]
    fn the_generated_code_is_that_of_the_proto_files() {
        let mut digest = Sha256::new();
        digest.update(include_bytes!("../../proto/envoy/config/core/v3/base.proto"));
        digest.update(include_bytes!(
            "../../proto/envoy/extensions/common/ratelimit/v3/ratelimit.proto"
        ));
        digest.update(include_bytes!("../../proto/envoy/service/ratelimit/v3/rls.proto"));
        digest.update(include_bytes!("../../proto/envoy/type/v3/ratelimit_unit.proto"));
        digest.update(include_bytes!("../../proto/ratelimit/config/ratelimit/v3/rls_conf.proto"));
        digest.update(include_bytes!("../../proto/tollgate/v1/gate.proto"));
        digest.update(include_bytes!("../../proto/envoy/service/discovery/v3/ads.proto"));
        digest.update(include_bytes!("../../proto/envoy/service/discovery/v3/discovery.proto"));
        digest.update(include_bytes!("../../proto/google/rpc/status.proto"));
        let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            include_str!("../../proto/generated/digest"),
            "run cargo run --manifest-path crates/tollgate-protocol/proto/generate/Cargo.toml"
        );
    }
}
