//! `lattice` is started for every launch, and half of its start was the loader's relocations: it is linked to its address, and what
//! it calls of libc is looked up when it is first called. It runs with its user's own rights alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,lazy");
}
