//! Links the module so that Node provides its symbols.

fn main() {
    napi_build::setup();
}
