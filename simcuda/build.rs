//! Names the shared library as a loader would ask for it. The file itself keeps the name `libsimcuda.so`, so that
//! nothing finds it by accident; a test makes the copy called `libcuda.so.1`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As the real driver: what it answers to look-ups is its own, whatever is preloaded before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // As the real driver: once loaded it stays, since threads may still be inside it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
