//! For build scripts: links a program statically with its libc.
//!
//! rustc links `-lc` and its companions as shared libraries. A directory of linker scripts with those names, searched
//! before the system's directories, gives the archives instead. Where the archives are not installed (glibc-static),
//! the program is linked as usual.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, io};

/// The library names that rustc uses, and their archives.
const ARCHIVES: [(&str, &str); 7] = [
    ("gcc_s", "GROUP(-l:libgcc_eh.a -l:libc.a)"),
    ("c", "GROUP(-l:libgcc_eh.a -l:libc.a)"),
    ("m", "INPUT(-l:libm.a)"),
    ("dl", "INPUT(-l:libdl.a)"),
    ("rt", "INPUT(-l:librt.a)"),
    ("util", "INPUT(-l:libutil.a)"),
    ("pthread", "INPUT(-l:libpthread.a)"),
];

/// Links the archives, if they and `first`, the start object of such a program, are installed. `false`: they are not.
pub fn link(first: &str) -> io::Result<bool> {
    if !["libc.a", "libgcc_eh.a", first].into_iter().all(is_installed) {
        println!("cargo::warning=no static libc is installed (libc6-dev, glibc-static): this program starts slower and takes more memory");
        return Ok(false);
    }
    let scripts = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?).join("static");
    fs::create_dir_all(&scripts)?;
    for (name, script) in ARCHIVES {
        fs::write(scripts.join(format!("lib{name}.so")), script)?;
    }
    println!("cargo::rustc-link-arg-bins=-L{}", scripts.display());
    Ok(true)
}

/// Whether the linker's driver finds this file; for a missing one it returns the bare name.
fn is_installed(file: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={file}")).output();
    asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() != file)
}
