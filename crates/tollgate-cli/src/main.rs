//! The binary `tollgate`. Everything is in the library, where the fuzzer reaches it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_cli::main()
}
