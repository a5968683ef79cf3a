//! Modules, libraries and launches: accepted, ordered, counted, and not run.
//!
//! No code is read: every image loads, and every kernel name is found.

use std::collections::HashMap;
use std::ffi::c_char;

use super::Handle;
use crate::code;
use crate::ffi::{Call, In, Out};
use crate::machine::Module;
use crate::order::Action;

fn load(c: &Call, to: Out<Handle>, image: In<c_char>, context: Handle) -> code::Result<()> {
    to.check()?;
    if image.is_null() {
        return Err(code::INVALID_VALUE);
    }
    c.outside_capture()?;
    let mut state = c.lock();
    let handle = state.handle();
    state.modules.insert(handle, Module { context, functions: HashMap::new() });
    to.set(handle)
}

fn load_file(c: &Call, to: Out<Handle>, path: In<c_char>, context: Handle) -> code::Result<()> {
    if !std::path::Path::new(&path.text()?).is_file() {
        return Err(code::FILE_NOT_FOUND);
    }
    load(c, to, path, context)
}

fn unload(c: &Call, handle: Handle) -> code::Result<()> {
    let mut state = c.lock();
    state.modules.remove(&handle).ok_or(code::INVALID_HANDLE)?;
    state.functions.retain(|_, module| *module != handle);
    Ok(())
}

fn function(c: &Call, to: Out<Handle>, module: Handle, name: In<c_char>) -> code::Result<()> {
    to.check()?;
    let name = name.text()?;
    let mut state = c.lock();
    let known = &state.modules.get(&module).ok_or(code::INVALID_HANDLE)?.functions;
    let handle = match known.get(&name) {
        Some(&handle) => handle,
        None => state.handle(),
    };
    state.functions.insert(handle, module);
    if let Some(module) = state.modules.get_mut(&module) {
        module.functions.insert(name, handle);
    }
    to.set(handle)
}

/// Whether a handle is a kernel's.
fn known(c: &Call, function: Handle) -> code::Result<()> {
    c.lock().functions.get(&function).map(drop).ok_or(code::INVALID_HANDLE)
}

fn launch(c: &Call, function: Handle, sizes: [u32; 6], stream: Handle) -> code::Result<()> {
    let id = c.stream(stream)?;
    known(c, function)?;
    let threads = sizes[3..].iter().try_fold(1u32, |all, &size| all.checked_mul(size));
    if sizes.contains(&0) || threads.is_none_or(|threads| threads > 1024) {
        return Err(code::INVALID_VALUE);
    }
    let mut state = c.lock();
    state.enqueue(id, Action::Nothing, true)?;
    state.launches += 1;
    state.stir(c.machine);
    Ok(())
}

/// Attributes of a kernel by number, of one that needs next to nothing.
fn kernel_attribute(which: u32) -> code::Result<i32> {
    match which {
        0 => Ok(1024),
        4 => Ok(16),
        5 | 6 => Ok(80),
        1..=3 | 7..=15 => Ok(0),
        _ => Err(code::INVALID_VALUE),
    }
}

entries! {
    "cuModuleLoad" 2000 cuModuleLoad => (c, to: Out<Handle>, path: In<c_char>) {
        let context = c.context()?;
        load_file(c, to, path, context)
    }
    "cuModuleLoadData" 2000 cuModuleLoadData => (c, to: Out<Handle>, image: In<c_char>) {
        let context = c.context()?;
        load(c, to, image, context)
    }
    "cuModuleLoadDataEx" 2010 cuModuleLoadDataEx => (
        c, to: Out<Handle>, image: In<c_char>, count: u32, options: In<u32>, values: In<u64>) {
        let _ = (count, options, values);
        let context = c.context()?;
        load(c, to, image, context)
    }
    "cuModuleLoadFatBinary" 2000 cuModuleLoadFatBinary => (c, to: Out<Handle>, image: In<c_char>) {
        let context = c.context()?;
        load(c, to, image, context)
    }
    "cuModuleUnload" 2000 cuModuleUnload => (c, module: Handle) {
        c.context()?;
        unload(c, module)
    }
    "cuModuleGetLoadingMode" 11070 cuModuleGetLoadingMode => (c, to: Out<u32>) {
        let _ = c;
        // Eager.
        to.set(1)
    }
    "cuModuleGetFunction" 2000 cuModuleGetFunction => (c, to: Out<Handle>, module: Handle, name: In<c_char>) {
        c.context()?;
        function(c, to, module, name)
    }
    "cuModuleGetGlobal" 3020 cuModuleGetGlobal_v2 => (
        c, to: Out<u64>, bytes: Out<usize>, module: Handle, name: In<c_char>) {
        let _ = (to, bytes);
        name.text()?;
        c.lock().modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        // Images are not read, so that no variable is known.
        Err(code::NOT_FOUND)
    }
    "cuLibraryLoadData" 12000 cuLibraryLoadData => (
        c, to: Out<Handle>, image: In<c_char>, jit: In<u32>, jit_values: In<u64>, jit_count: u32, options: In<u32>,
        values: In<u64>, count: u32) {
        let _ = (jit, jit_values, jit_count, options, values, count);
        load(c, to, image, 0)
    }
    "cuLibraryLoadFromFile" 12000 cuLibraryLoadFromFile => (
        c, to: Out<Handle>, path: In<c_char>, jit: In<u32>, jit_values: In<u64>, jit_count: u32, options: In<u32>,
        values: In<u64>, count: u32) {
        let _ = (jit, jit_values, jit_count, options, values, count);
        load_file(c, to, path, 0)
    }
    "cuLibraryUnload" 12000 cuLibraryUnload => (c, library: Handle) { unload(c, library) }
    "cuLibraryGetKernel" 12000 cuLibraryGetKernel => (c, to: Out<Handle>, library: Handle, name: In<c_char>) {
        function(c, to, library, name)
    }
    "cuLibraryGetModule" 12000 cuLibraryGetModule => (c, to: Out<Handle>, library: Handle) {
        to.check()?;
        c.context()?;
        c.lock().modules.get(&library).ok_or(code::INVALID_HANDLE)?;
        to.set(library)
    }
    "cuLibraryGetGlobal" 12000 cuLibraryGetGlobal => (
        c, to: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>) {
        let _ = (to, bytes);
        name.text()?;
        c.lock().modules.get(&library).ok_or(code::INVALID_HANDLE)?;
        Err(code::NOT_FOUND)
    }
    "cuKernelGetFunction" 12000 cuKernelGetFunction => (c, to: Out<Handle>, kernel: Handle) {
        to.check()?;
        c.context()?;
        known(c, kernel)?;
        to.set(kernel)
    }
    "cuKernelGetLibrary" 12050 cuKernelGetLibrary => (c, to: Out<Handle>, kernel: Handle) {
        to.check()?;
        let library = c.lock().functions.get(&kernel).copied().ok_or(code::INVALID_HANDLE)?;
        to.set(library)
    }
    "cuFuncGetModule" 11000 cuFuncGetModule => (c, to: Out<Handle>, function: Handle) {
        to.check()?;
        let module = c.lock().functions.get(&function).copied().ok_or(code::INVALID_HANDLE)?;
        to.set(module)
    }
    "cuFuncGetAttribute" 2020 cuFuncGetAttribute => (c, to: Out<i32>, which: u32, function: Handle) {
        to.check()?;
        known(c, function)?;
        to.set(kernel_attribute(which)?)
    }
    "cuFuncSetAttribute" 9000 cuFuncSetAttribute => (c, function: Handle, which: u32, value: i32) {
        let _ = value;
        known(c, function)?;
        kernel_attribute(which).map(drop)
    }
    "cuKernelGetAttribute" 12000 cuKernelGetAttribute => (c, to: Out<i32>, which: u32, kernel: Handle, dev: i32) {
        to.check()?;
        super::device_of(c, dev)?;
        known(c, kernel)?;
        to.set(kernel_attribute(which)?)
    }
    "cuKernelSetAttribute" 12000 cuKernelSetAttribute => (c, which: u32, value: i32, kernel: Handle, dev: i32) {
        let _ = value;
        super::device_of(c, dev)?;
        known(c, kernel)?;
        kernel_attribute(which).map(drop)
    }
    "cuFuncSetCacheConfig" 3000 cuFuncSetCacheConfig => (c, function: Handle, config: u32) {
        known(c, function)?;
        if config > 3 { Err(code::INVALID_VALUE) } else { Ok(()) }
    }
    "cuKernelSetCacheConfig" 12000 cuKernelSetCacheConfig => (c, kernel: Handle, config: u32, dev: i32) {
        super::device_of(c, dev)?;
        known(c, kernel)?;
        if config > 3 { Err(code::INVALID_VALUE) } else { Ok(()) }
    }
    "cuProfilerStart" 4000 cuProfilerStart => (c) {
        // No profiler is ever attached, as on a real driver without one.
        c.context().map(drop)
    }
    "cuProfilerStop" 4000 cuProfilerStop => (c) { c.context().map(drop) }
    "cuLaunchKernel" 4000 cuLaunchKernel | cuLaunchKernel_ptsz => (
        c, function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Handle, params: In<u64>, extra: In<u64>) {
        let _ = (shared, params, extra);
        launch(c, function, [grid_x, grid_y, grid_z, block_x, block_y, block_z], stream)
    }
    "cuLaunchKernelEx" 11060 cuLaunchKernelEx | cuLaunchKernelEx_ptsz => (
        c, config: In<[u32; 10]>, function: Handle, params: In<u64>, extra: In<u64>) {
        let _ = (params, extra);
        // Grid, block, shared memory, a gap, the stream.
        let words = config.get()?;
        let stream = u64::from(words[8]) | u64::from(words[9]) << 32;
        let [x, y, z, bx, by, bz, ..] = words;
        launch(c, function, [x, y, z, bx, by, bz], stream)
    }
    "cuLaunchCooperativeKernel" 9000 cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz => (
        c, function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Handle, params: In<u64>) {
        let _ = (shared, params);
        launch(c, function, [grid_x, grid_y, grid_z, block_x, block_y, block_z], stream)
    }
}
