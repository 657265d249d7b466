//! Links `lattice` statically to a fixed address: the dynamic loader took half of its start-up time, and every launch
//! starts it. A fixed address is acceptable, because `lattice` runs only with its user's own rights. Such a libc
//! looks names up in files and DNS, which is enough: `lattice` looks up only hosts of agents on the network, and of
//! identity providers.

#[path = "../shim/static_libc.rs"]
mod static_libc;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../shim/static_libc.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if static_libc::link("crt1.o")? {
        println!("cargo::rustc-link-arg-bins=-static");
    } else {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,lazy");
    }
    Ok(())
}
