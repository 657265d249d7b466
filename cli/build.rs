//! `lattice` is started for every launch, and half of its start was the loader's relocations: it is linked to its address.
//! It runs with its user's own rights alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
