//! A shim is started for every allocation: its libc is linked into it, so that no loader looks for libraries, maps them and
//! resolves their symbols each time. Its address stays random (static-pie), since it has root's rights. It asks no name service.

mod static_libc;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=static_libc.rs");
    if static_libc::link("rcrt1.o")? {
        println!("cargo::rustc-link-arg-bins=-static-pie");
    }
    Ok(())
}
