//! `lattice-pmix` has an `accept` of its own, which the library that it loads is to find before libc's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if cfg!(feature = "pmix") {
        println!("cargo::rustc-link-arg-bin=lattice-pmix=-Wl,--export-dynamic-symbol=accept");
    }
}
