//! `lattice-pmix` has an `accept` and a `writev` of its own, which the library that it loads is to find before libc's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if cfg!(feature = "pmix") {
        for ours in ["accept", "writev"] {
            println!("cargo::rustc-link-arg-bin=lattice-pmix=-Wl,--export-dynamic-symbol={ours}");
        }
    }
}
