//! What every entry shares: catching panics, null checks, and structs whose size the caller states.

use crate::status::{remember, smp_status};
use smp_core::{Error, Result, Status, cancel};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an entry's body: no panic passes, no cancellation takes effect in it, and a failure is remembered for this thread.
#[inline(always)]
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> smp_status {
    let _held = cancel::hold();
    frequent(body)
}

/// As [`call`], for what programs call all the time: what writes, sleeps, asks the driver or calls the program back in there puts
/// cancellation off for itself.
#[inline(always)]
pub(crate) fn frequent(body: impl FnOnce() -> Result<()>) -> smp_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => smp_status::SMP_SUCCESS,
        Ok(Err(error)) => failed(error),
        Err(panic) => panicked(panic),
    }
}

/// Runs the part of an entry that serves most calls: what it misses is left to the caller, as is a panic's status. It comes to no
/// cancellation point.
///
/// # Errors
/// What the body missed, or the status of its panic.
#[inline(always)]
pub(crate) fn attempt<T, M>(body: impl FnOnce() -> std::result::Result<T, M>) -> std::result::Result<T, Attempt<M>> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(missed)) => Err(Attempt::Missed(missed)),
        Err(panic) => Err(Attempt::Failed(panicked(panic))),
    }
}

/// Why an [`attempt`] did not serve.
pub(crate) enum Attempt<M> {
    Missed(M),
    Failed(smp_status),
}

/// As [`frequent`], for bodies that answer with a status.
#[inline(always)]
pub(crate) fn answer(body: impl FnOnce() -> Result<Status>) -> smp_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status.into(),
        Ok(Err(error)) => failed(error),
        Err(panic) => panicked(panic),
    }
}

#[cold]
#[inline(never)]
fn failed(error: Error) -> smp_status {
    remember(&error)
}

#[cold]
#[inline(never)]
fn panicked(panic: Box<dyn std::any::Any + Send>) -> smp_status {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    let status = remember(&Error::new(Status::Internal, format_args!("a fault inside the library: {text}")));
    // A payload's own destructor may panic; leaking it is the lesser evil.
    std::mem::forget(panic);
    status
}

/// An argument that is out of its range.
#[cold]
pub(crate) fn invalid(message: impl std::fmt::Display) -> Error {
    Error::new(Status::InvalidValue, message)
}

/// Refuses a null out-parameter.
#[inline(always)]
pub(crate) fn not_null<T>(pointer: *mut T, argument: &'static str) -> Result<()> {
    if pointer.is_null() { Err(null(argument)) } else { Ok(()) }
}

/// The refusal of a null pointer where one is needed.
#[cold]
pub(crate) fn null(argument: &str) -> Error {
    invalid(format_args!("{argument} must not be null"))
}

/// The largest struct_size taken at its word; no struct of this library will come near it.
const LARGEST_STRUCT: usize = 4096;

/// A struct of the header that starts with `struct_size` and may grow.
///
/// # Safety
/// `repr(C)`, its first field is a `u32`, it has no padding, and every bit pattern is valid, zero included.
pub(crate) unsafe trait Growing: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size in the first version of this interface; a caller's may not be smaller.
    const FIRST: usize;
}

/// Declares a struct to be [`Growing`], with its size in the first version.
macro_rules! sized {
    ($name:ident, $text:literal, $first:literal) => {
        // SAFETY: these structs are repr(C) integers, pointers and arrays, laid out by hand without padding.
        unsafe impl crate::boundary::Growing for $name {
            const NAME: &'static str = $text;
            const FIRST: usize = $first;
        }
        const _: () = assert!(std::mem::size_of::<$name>() >= $first, "a struct never shrinks");
    };
}
pub(crate) use sized;

/// The size a caller states for a struct, checked.
///
/// # Safety
/// `pointer` is null or points to at least four readable bytes.
unsafe fn stated_size<T: Growing>(pointer: *const T, argument: &str) -> Result<usize> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    // SAFETY: not null, so the caller's struct begins here with its size.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if size < T::FIRST || size > LARGEST_STRUCT {
        return Err(invalid(format_args!(
            "{argument}->struct_size is {size}; {} has from {} to {LARGEST_STRUCT} bytes (use its _INIT macro)",
            T::NAME,
            T::FIRST,
        )));
    }
    Ok(size)
}

/// Reads a struct the caller filled in: shorter ones end in zeros, the unknown tail of longer ones must be zero.
///
/// # Safety
/// `pointer` is null or points to a struct of `struct_size` readable bytes.
pub(crate) unsafe fn read<T: Growing>(pointer: *const T, argument: &str) -> Result<T> {
    // SAFETY: as this function's own promise.
    let size = unsafe { stated_size(pointer, argument) }?;
    let known = size_of::<T>().min(size);
    for offset in known..size {
        // SAFETY: below struct_size, so the caller's.
        if unsafe { pointer.cast::<u8>().add(offset).read() } != 0 {
            return Err(invalid(format_args!(
                "{argument}: byte {offset} of {} is not zero, and this library does not know it",
                T::NAME
            )));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are readable there and writable here; every bit pattern is a valid T.
    unsafe {
        pointer.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known);
        Ok(value.assume_init())
    }
}

/// A struct the caller wants filled, checked before the work is done.
pub(crate) struct Out<T: Growing> {
    pointer: *mut T,
    size: usize,
}

impl<T: Growing> Out<T> {
    /// Checks the pointer and the size the caller states.
    ///
    /// # Safety
    /// `pointer` is null or points to a struct of `struct_size` writable bytes, for as long as this value lives.
    pub(crate) unsafe fn new(pointer: *mut T, argument: &str) -> Result<Self> {
        // SAFETY: as this function's own promise.
        Ok(Out { pointer, size: unsafe { stated_size(pointer, argument) }? })
    }

    /// Fills the caller's struct: what it is too short for is left out, what this library does not know is zeroed.
    pub(crate) fn write(self, value: T) {
        let known = size_of::<T>().min(self.size);
        // SAFETY: `new` was promised `size` writable bytes. The caller's own struct_size, the first field, stays.
        unsafe {
            let to = self.pointer.cast::<u8>();
            to.add(4).copy_from_nonoverlapping((&raw const value).cast::<u8>().add(4), known - 4);
            to.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// Refuses reserved fields that are not zero.
pub(crate) fn reserved(words: &[u64], argument: &str) -> Result<()> {
    match words.iter().all(|word| *word == 0) {
        true => Ok(()),
        false => Err(invalid(format_args!("{argument}: a reserved field is not zero"))),
    }
}

/// Refuses bits outside `known`.
pub(crate) fn flags(value: u32, known: u32, argument: &str) -> Result<()> {
    match value & !known {
        0 => Ok(()),
        unknown => Err(invalid(format_args!("{argument}: unknown bits {unknown:#x}"))),
    }
}

/// A caller's text.
///
/// # Safety
/// `pointer` is null or points to a NUL-terminated string that stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, argument: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    // SAFETY: not null, so NUL-terminated.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| invalid(format_args!("{argument} is not UTF-8")))
}

/// Copies `text` into a field: cut between characters if need be, NUL-terminated, the rest zero.
pub(crate) fn copy_text(to: &mut [c_char], text: &str) {
    let mut length = text.len().min(to.len() - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    to.fill(0);
    for (to, from) in to.iter_mut().zip(&text.as_bytes()[..length]) {
        // An inner NUL would end the text early for C anyway.
        *to = *from as c_char;
    }
}

/// `text` as a field of N bytes.
pub(crate) fn text_field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    copy_text(&mut field, text);
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{smp_error, smp_last_error};

    /// A struct that had two fields in the first version and has three now.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        struct_size: u32,
        first: u32,
        later: u64,
    }
    sized!(Grown, "grown", 8);

    fn last() -> (u32, String) {
        let mut error = smp_error { struct_size: 512, status: 0, driver_code: 0, reserved: 0, text: [0; 496] };
        // SAFETY: a struct with its size stated.
        assert_eq!(unsafe { smp_last_error(&mut error) }, smp_status::SMP_SUCCESS);
        let text: Vec<u8> = error.text.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        (error.status, String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_text() {
        let status = call(|| panic!("the {} broke", "frobnicator"));
        assert_eq!(status, smp_status::SMP_ERROR_INTERNAL);
        assert_eq!(last().0, smp_status::SMP_ERROR_INTERNAL as u32);
        assert!(last().1.contains("the frobnicator broke"), "{:?}", last());
        let status = answer(|| std::panic::panic_any(7));
        assert_eq!(status, smp_status::SMP_ERROR_INTERNAL);
    }

    #[test]
    fn an_older_callers_struct_reads_as_if_the_new_fields_were_zero() {
        let given = Grown { struct_size: 8, first: 5, later: 77 };
        // SAFETY: the struct is longer than it says.
        let read = unsafe { read(&given, "given") }.unwrap();
        assert_eq!(read, Grown { struct_size: 8, first: 5, later: 0 });
    }

    #[test]
    fn an_older_callers_struct_is_filled_no_further_than_it_says() {
        let mut given = Grown { struct_size: 8, first: 0, later: 77 };
        // SAFETY: the struct is longer than it says.
        unsafe { Out::new(&mut given, "given") }.unwrap().write(Grown { struct_size: 0, first: 5, later: 6 });
        assert_eq!(given, Grown { struct_size: 8, first: 5, later: 77 });
    }

    #[test]
    fn texts_are_cut_between_characters_and_end_with_a_nul() {
        assert_eq!(text_field::<4>("abc"), [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
        assert_eq!(text_field::<4>("ab\u{e9}"), [b'a' as c_char, b'b' as c_char, 0, 0]);
        assert_eq!(text_field::<4>("abcdef"), [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
    }
}
