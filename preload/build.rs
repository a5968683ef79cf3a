//! How the loader sees the library: its name, and that it is never unloaded, since the program holds pointers into it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsmp_preload.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
