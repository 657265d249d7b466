//! `lattice` is started for every launch, and half of its start-up time was the loader's. So it is linked to a fixed
//! address, with its libc in it. It runs only with its user's own rights. It uses a name service only for the host of
//! an `http://` endpoint, and such a libc supports files and DNS.

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
