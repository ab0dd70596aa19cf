//! Writes the messages and services of the proto files as Rust, with no protoc.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

/// The services that a broker answers, and their messages, which reflection describes.
const SERVED: [&str; 6] = [
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/type/v3/ratelimit_unit.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "tollgate/v1/gate.proto",
];

/// The services that a broker calls.
const CALLED: [&str; 3] = [
    "envoy/service/discovery/v3/ads.proto",
    "envoy/service/discovery/v3/discovery.proto",
    "google/rpc/status.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the proto folder")?;
    let out = proto.join("generated");
    fs::create_dir_all(&out)?;
    let descriptors = protox::compile(SERVED, [proto])?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let descriptors = protox::compile(SERVED.iter().chain(&CALLED), [proto])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .build_transport(false)
        .include_file("mod.rs")
        .out_dir(&out)
        .compile_fds(descriptors)?;
    let mut digest = Sha256::new();
    for file in SERVED.iter().chain(&CALLED) {
        digest.update(fs::read(proto.join(file))?);
    }
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(out.join("digest"), hex)?;
    Ok(())
}
