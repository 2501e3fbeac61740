//! Compiles the service definition with protox: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/agentlet.proto");
    let descriptors = protox::compile(["agentlet.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Written by hand: values are never printed.
        .skip_debug([".panda.agentlet.v1.RunSecrets", ".panda.agentlet.v1.SecretValue"])
        .compile_fds(descriptors)?;
    Ok(())
}
