//! The messages and services of gRPC, as the proto files in `proto/` say.
//!
//! They are generated once and kept here, so that a build needs neither protoc nor a generator: `proto/generate` writes
//! them anew, and a test notices when it was forgotten.
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

mod time;

pub use prost_types::Timestamp as Time;
pub use time::{instant, time};

include!("generated/mod.rs");

/// Every message and service in the form that reflection answers with.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    /// Who changes a proto file runs the generator.
    #[test]
    fn the_generated_code_is_that_of_the_proto_files() {
        let mut digest = Sha256::new();
        digest.update(include_bytes!("../../proto/envoy/config/core/v3/base.proto"));
        digest.update(include_bytes!(
            "../../proto/envoy/extensions/common/ratelimit/v3/ratelimit.proto"
        ));
        digest.update(include_bytes!("../../proto/envoy/service/ratelimit/v3/rls.proto"));
        digest.update(include_bytes!("../../proto/envoy/type/v3/ratelimit_unit.proto"));
        digest.update(include_bytes!("../../proto/tollgate/v1/gate.proto"));
        let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            include_str!("generated/digest"),
            "run cargo run --manifest-path crates/tollgate-server/proto/generate/Cargo.toml"
        );
    }
}
