//! `lattice` is started for every launch, and half of its start was the loader's: it is linked to its address, with its libc in it.
//! It runs with its user's own rights alone. The one name service that it asks is for the host of an `http://` endpoint, and files and
//! DNS are in such a libc too.

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
