//! Links libc statically, because a shim is started for every allocation: no loader searches libraries, maps them and
//! resolves their symbols each time. The address stays random (static-pie), because the shim has root's rights. It uses
//! no name service.

mod static_libc;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=static_libc.rs");
    if static_libc::link("rcrt1.o")? {
        println!("cargo::rustc-link-arg-bins=-static-pie");
    }
    Ok(())
}
