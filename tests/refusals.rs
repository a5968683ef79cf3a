//! Each refusal of the C interface: its status, what it says, and that nothing changed.

mod common;

use common::*;
use smp::smp_status::*;
use smp::*;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

/// Creates a pool that must be refused, on a device that must have no pool afterwards.
#[track_caller]
fn pool_refused(config: &smp_pool_config, expected: smp_status, parts: &[&str]) {
    let device = open_default();
    let mut pool: smp_pool = ptr::without_provenance_mut(0x77);
    // SAFETY: all pointers are valid.
    refused(unsafe { smp_pool_create(device, config, &mut pool) }, expected, parts);
    assert_eq!(pool.addr(), 0x77, "an out-parameter is written on success only");
    assert_eq!(info(device).pools, 0, "a refused pool is not there");
    ok(smp_device_close(device));
}

#[track_caller]
fn entries_refused(entries: &[smp_pool_entry], expected: smp_status, parts: &[&str]) {
    let config = smp_pool_config { entries: entries.as_ptr(), entry_count: entries.len() as u64, ..pool_config() };
    pool_refused(&config, expected, parts);
}

fn info(device: smp_device) -> smp_device_info {
    let mut info = sized!(smp_device_info);
    // SAFETY: a struct with its size stated.
    ok(unsafe { smp_device_get_info(device, &mut info) });
    info
}

#[track_caller]
fn open_refused(desc: &smp_device_desc, expected: smp_status, parts: &[&str]) {
    let mut device: smp_device = ptr::without_provenance_mut(0x77);
    // SAFETY: all pointers are valid.
    refused(unsafe { smp_device_open(desc, &mut device) }, expected, parts);
    assert_eq!(device.addr(), 0x77, "an out-parameter is written on success only");
}

// ---- pool configurations ---------------------------------------------------------------------------------------------

#[test]
fn an_empty_list_of_entries_is_refused() {
    entries_refused(&[], SMP_ERROR_INVALID_CONFIG, &["entries", "at least one"]);
}

#[test]
fn more_entries_than_a_pool_may_have_are_refused() {
    entries_refused(&[sliced(1 << 20); 33], SMP_ERROR_INVALID_CONFIG, &["entries", "at most 32", "33"]);
}

#[test]
fn a_zero_page_size_is_refused_by_name() {
    entries_refused(&[sliced(0)], SMP_ERROR_INVALID_CONFIG, &["entries[0].page_size", "0"]);
}

#[test]
fn a_zero_max_slice_size_is_refused_by_name() {
    let zero = smp_pool_entry { max_slice_size: 0, ..sliced(1 << 20) };
    entries_refused(&[sliced(1 << 20), zero], SMP_ERROR_INVALID_CONFIG, &["entries[1].max_slice_size", "0"]);
}

#[test]
fn a_zero_max_pool_size_is_refused_by_name() {
    let zero = smp_pool_entry { max_pool_size: 0, ..sliced(1 << 20) };
    entries_refused(&[zero], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_pool_size", "0"]);
    let zero = smp_pool_entry { max_pool_size: 0, ..entry(SMP_ENTRY_CUDA) };
    entries_refused(&[zero], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_pool_size", "0"]);
    let zero = smp_pool_config { preset: SMP_PRESET_CUDA, max_pool_size: 0, ..pool_config() };
    pool_refused(&zero, SMP_ERROR_INVALID_CONFIG, &["max_pool_size", "0"]);
}

#[test]
fn a_mapped_entry_that_cannot_be_is_refused_by_name() {
    let cases = [
        (smp_pool_entry { range_size: 0, ..mapped() }, "range_size"),
        (smp_pool_entry { chunk_size: 0, ..mapped() }, "chunk_size"),
        (smp_pool_entry { max_pool_size: 0, ..mapped() }, "max_pool_size"),
        (smp_pool_entry { max_pool_size: (2 << 20) - 1, ..mapped() }, "max_pool_size: is smaller than chunk_size"),
        (smp_pool_entry { range_size: (1 << 47) + 1, ..mapped() }, "range_size"),
        (smp_pool_entry { chunk_size: (1 << 47) + 1, ..mapped() }, "chunk_size"),
        (smp_pool_entry { range_size: u64::MAX, ..mapped() }, "range_size: overflows"),
        (smp_pool_entry { chunk_size: u64::MAX, ..mapped() }, "chunk_size: overflows"),
    ];
    for (wrong, named) in cases {
        entries_refused(&[wrong], SMP_ERROR_INVALID_CONFIG, &[&format!("entries[0].{named}")]);
    }
}

#[test]
fn a_slice_larger_than_its_page_is_refused_by_name() {
    let large = smp_pool_entry { max_slice_size: (1 << 20) + 1, ..sliced(1 << 20) };
    entries_refused(&[large], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_slice_size", "page_size"]);
}

#[test]
fn a_cap_below_one_page_is_refused_by_name() {
    let small = smp_pool_entry { max_pool_size: (1 << 20) - 1, ..sliced(1 << 20) };
    entries_refused(&[small], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_pool_size", "page_size"]);
}

#[test]
fn sizes_that_overflow_when_rounded_are_refused_by_name() {
    entries_refused(&[sliced(u64::MAX)], SMP_ERROR_INVALID_CONFIG, &["entries[0].page_size", "overflow"]);
    let slice = smp_pool_entry { max_slice_size: u64::MAX - 1, ..sliced(1 << 20) };
    entries_refused(&[slice], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_slice_size"]);
    let exclusive = smp_pool_entry { max_alloc_size: u64::MAX - 1, ..entry(SMP_ENTRY_EXCLUSIVE) };
    entries_refused(&[exclusive], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_alloc_size", "overflow"]);
    let cuda = smp_pool_entry { max_pool_size: u64::MAX - 1, ..entry(SMP_ENTRY_CUDA) };
    entries_refused(&[cuda], SMP_ERROR_INVALID_CONFIG, &["entries[0].max_pool_size", "overflow"]);
}

#[test]
fn a_field_the_entry_kind_does_not_have_is_refused_by_name() {
    let cases = [
        (smp_pool_entry { page_size: 1, ..entry(SMP_ENTRY_EXCLUSIVE) }, "page_size"),
        (smp_pool_entry { max_slice_size: 1, ..entry(SMP_ENTRY_EXCLUSIVE) }, "max_slice_size"),
        (smp_pool_entry { max_pool_size: 1, ..entry(SMP_ENTRY_EXCLUSIVE) }, "max_pool_size"),
        (smp_pool_entry { reclaim_at: 1, ..entry(SMP_ENTRY_EXCLUSIVE) }, "reclaim_at"),
        (smp_pool_entry { page_size: 1, ..entry(SMP_ENTRY_DIRECT) }, "page_size"),
        (smp_pool_entry { max_alloc_size: 1, ..entry(SMP_ENTRY_DIRECT) }, "max_alloc_size"),
        (smp_pool_entry { max_slice_size: 1, ..entry(SMP_ENTRY_DIRECT) }, "max_slice_size"),
        (smp_pool_entry { max_pool_size: 1, ..entry(SMP_ENTRY_DIRECT) }, "max_pool_size"),
        (smp_pool_entry { dealloc_period: 1, ..entry(SMP_ENTRY_DIRECT) }, "dealloc_period"),
        (smp_pool_entry { max_alloc_size: 1, ..sliced(1 << 20) }, "max_alloc_size"),
        (smp_pool_entry { reclaim_at: 1, ..sliced(1 << 20) }, "reclaim_at"),
        (smp_pool_entry { page_size: 1, ..entry(SMP_ENTRY_CUDA) }, "page_size"),
        (smp_pool_entry { max_alloc_size: 1, ..entry(SMP_ENTRY_CUDA) }, "max_alloc_size"),
        (smp_pool_entry { max_slice_size: 1, ..entry(SMP_ENTRY_CUDA) }, "max_slice_size"),
        (smp_pool_entry { dealloc_period: 1, ..entry(SMP_ENTRY_CUDA) }, "dealloc_period"),
        (smp_pool_entry { reclaim_at: 1, ..entry(SMP_ENTRY_CUDA) }, "reclaim_at"),
        (smp_pool_entry { page_size: 1, ..mapped() }, "page_size"),
        (smp_pool_entry { max_alloc_size: 1, ..mapped() }, "max_alloc_size"),
        (smp_pool_entry { max_slice_size: 1, ..mapped() }, "max_slice_size"),
        (smp_pool_entry { reclaim_at: 1, ..mapped() }, "reclaim_at"),
        (smp_pool_entry { range_size: 1, ..sliced(1 << 20) }, "range_size"),
        (smp_pool_entry { chunk_size: 1, ..entry(SMP_ENTRY_CUDA) }, "chunk_size"),
    ];
    for (wrong, field) in cases {
        let named = format!("entries[0].{field}: is 1");
        entries_refused(&[wrong], SMP_ERROR_INVALID_CONFIG, &[&named]);
    }
}

#[test]
fn entries_beside_a_preset_are_refused() {
    let entries = [sliced(1 << 20)];
    let config =
        smp_pool_config { preset: SMP_PRESET_CUDA, entries: entries.as_ptr(), entry_count: 1, ..pool_config() };
    pool_refused(&config, SMP_ERROR_INVALID_CONFIG, &["preset"]);
}

#[test]
fn a_pool_wide_cap_outside_the_cuda_preset_is_refused() {
    let ladder = smp_pool_config { max_pool_size: 1 << 30, ..pool_config() };
    pool_refused(&ladder, SMP_ERROR_INVALID_CONFIG, &["max_pool_size", "cuda"]);
    let entries = [entry(SMP_ENTRY_CUDA)];
    let own = smp_pool_config { entries: entries.as_ptr(), entry_count: 1, max_pool_size: 1 << 30, ..pool_config() };
    pool_refused(&own, SMP_ERROR_INVALID_CONFIG, &["max_pool_size", "cuda"]);
}

#[test]
fn entries_that_are_null_but_counted_are_refused() {
    let config = smp_pool_config { entry_count: 2, ..pool_config() };
    pool_refused(&config, SMP_ERROR_INVALID_VALUE, &["config->entries", "null"]);
}

#[test]
fn numbers_that_are_no_preset_kind_or_bit_are_refused() {
    pool_refused(&smp_pool_config { preset: 6, ..pool_config() }, SMP_ERROR_INVALID_VALUE, &["config->preset is 6"]);
    pool_refused(&smp_pool_config { policies: 8, ..pool_config() }, SMP_ERROR_INVALID_VALUE, &["policies", "0x8"]);
    pool_refused(&smp_pool_config { flags: 4, ..pool_config() }, SMP_ERROR_INVALID_VALUE, &["config->flags", "0x4"]);
    entries_refused(&[entry(0)], SMP_ERROR_INVALID_VALUE, &["entries[0].kind is 0"]);
    entries_refused(&[sliced(1 << 20), entry(6)], SMP_ERROR_INVALID_VALUE, &["entries[1].kind is 6"]);
}

#[test]
fn the_driver_preset_needs_a_cuda_device() {
    let driver = smp_pool_config { preset: SMP_PRESET_DRIVER, ..pool_config() };
    pool_refused(&driver, SMP_ERROR_NOT_SUPPORTED, &["preset driver", "CUDA"]);
}

#[test]
fn a_reserved_field_that_is_not_zero_is_refused() {
    let config = smp_pool_config { reserved: [0, 0, 0, 1], ..pool_config() };
    pool_refused(&config, SMP_ERROR_INVALID_VALUE, &["config", "reserved"]);
    let tail = smp_pool_entry { reserved: [0, 1], ..sliced(1 << 20) };
    entries_refused(&[tail], SMP_ERROR_INVALID_VALUE, &["entries[0]", "reserved"]);
    let head = smp_pool_entry { reserved0: 1, ..sliced(1 << 20) };
    entries_refused(&[head], SMP_ERROR_INVALID_VALUE, &["entries[0]", "reserved"]);
    let desc = smp_device_desc { reserved: [1, 0], ..device_desc() };
    open_refused(&desc, SMP_ERROR_INVALID_VALUE, &["desc", "reserved"]);
}

#[test]
fn a_specification_that_does_not_parse_is_refused_with_its_column() {
    let device = open_default();
    let create = |spec: &str| {
        let spec = CString::new(spec).unwrap();
        let mut pool = ptr::null_mut();
        // SAFETY: all pointers are valid.
        let status = unsafe { smp_pool_create_from_spec(device, spec.as_ptr(), &mut pool) };
        assert!(pool.is_null());
        status
    };
    refused(create("nonsense()"), SMP_ERROR_SPEC_SYNTAX, &["column 1"]);
    refused(create("sliced(page_size=2MB)"), SMP_ERROR_SPEC_SYNTAX, &["column 18", "MB"]);
    refused(create("sliced(page_size=2MiB, colour=3)"), SMP_ERROR_SPEC_SYNTAX, &["column 24", "colour"]);
    refused(create("sliced(page_size=0)"), SMP_ERROR_INVALID_CONFIG, &["page_size"]);
    let mut pool = ptr::null_mut();
    // SAFETY: the out-parameter is valid; a null text is what is tested.
    refused(
        unsafe { smp_pool_create_from_spec(device, ptr::null(), &mut pool) },
        SMP_ERROR_INVALID_VALUE,
        &["spec must not be null"],
    );
    // SAFETY: NUL-terminated.
    refused(
        unsafe { smp_pool_create_from_spec(device, c"\xff".as_ptr(), &mut pool) },
        SMP_ERROR_INVALID_VALUE,
        &["spec is not UTF-8"],
    );
    assert_eq!(info(device).pools, 0);
    ok(smp_device_close(device));
}

// ---- sized structs ---------------------------------------------------------------------------------------------------

/// A caller's struct with room behind it, as one compiled against a later version would pass.
#[repr(C)]
struct Longer<T> {
    value: T,
    tail: [u8; 64],
}

#[test]
fn a_struct_size_below_the_first_versions_is_refused() {
    for size in [0, 1, 71] {
        let desc = smp_device_desc { struct_size: size, ..device_desc() };
        open_refused(&desc, SMP_ERROR_INVALID_VALUE, &["struct_size", &size.to_string(), "smp_device_desc"]);
    }
    let config = smp_pool_config { struct_size: 79, ..pool_config() };
    pool_refused(&config, SMP_ERROR_INVALID_VALUE, &["config->struct_size is 79", "smp_pool_config"]);
}

#[test]
fn a_struct_size_beyond_reason_is_refused() {
    let desc = smp_device_desc { struct_size: u32::MAX, ..device_desc() };
    open_refused(&desc, SMP_ERROR_INVALID_VALUE, &["struct_size", "4294967295", "from 72 to 4096"]);
}

#[test]
fn an_unknown_tail_must_be_zero() {
    let mut longer = Longer { value: device_desc(), tail: [0; 64] };
    longer.value.struct_size += 64;
    let mut device = ptr::null_mut();
    // SAFETY: the struct is as long as it says.
    ok(unsafe { smp_device_open((&raw const longer).cast(), &mut device) });
    ok(smp_device_close(device));
    longer.tail[63] = 1;
    let mut device: smp_device = ptr::without_provenance_mut(0x77);
    // SAFETY: as above.
    let status = unsafe { smp_device_open((&raw const longer).cast(), &mut device) };
    refused(status, SMP_ERROR_INVALID_VALUE, &["desc", "byte 135", "not zero"]);
    assert_eq!(device.addr(), 0x77);
}

#[test]
fn a_longer_out_struct_keeps_its_size_and_gets_a_zero_tail() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let mut longer = Longer { value: sized!(smp_pool_stats), tail: [0xff; 64] };
    longer.value.struct_size += 64;
    let size = longer.value.struct_size;
    // SAFETY: the struct is as long as it says.
    ok(unsafe { smp_pool_get_stats(pool, (&raw mut longer).cast()) });
    assert_eq!((longer.value.struct_size, longer.tail), (size, [0; 64]));
    assert_eq!(longer.value.entry_count, 4, "the sub-slices preset has three sliced entries and an exclusive tail");
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn every_struct_that_is_filled_refuses_a_wrong_size_and_stays_as_it_was() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let stream = stream_of(device, 0);
    let allocation = alloc(pool, 100, stream);
    macro_rules! check {
        ($name:ident, $call:expr) => {{
            let mut value = sized!($name);
            value.struct_size = 8;
            // SAFETY: the struct is longer than it says.
            let status = unsafe { $call(&raw mut value) };
            refused(status, SMP_ERROR_INVALID_VALUE, &["struct_size is 8", stringify!($name)]);
            let zero = sized!($name);
            let bytes = |value: &$name| {
                // SAFETY: these structs have no padding.
                let all = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<$name>()) };
                all[4..].to_vec()
            };
            assert_eq!(bytes(&value), bytes(&zero), "a refused call writes nothing");
            // SAFETY: a null struct is what is tested.
            let status = unsafe { $call(ptr::null_mut()) };
            refused(status, SMP_ERROR_INVALID_VALUE, &["out must not be null"]);
        }};
    }
    check!(smp_device_info, |out| smp_device_get_info(device, out));
    check!(smp_pool_stats, |out| smp_pool_get_stats(pool, out));
    check!(smp_pool_stats, |out| smp_pool_get_entry_stats(pool, 0, out));
    check!(smp_allocation_info, |out| smp_allocation_get_info(allocation, out));
    check!(smp_stream_info, |out| smp_stream_get_info(device, stream, out));
    ok(smp_free_async(allocation, stream));
    ok(smp_stream_destroy(stream));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

// ---- devices ---------------------------------------------------------------------------------------------------------

#[test]
fn without_a_driver_a_cuda_device_is_not_supported_and_the_text_says_what_is_missing() {
    no_driver();
    let desc = smp_device_desc { kind: SMP_DEVICE_CUDA, ..device_desc() };
    open_refused(&desc, SMP_ERROR_NOT_SUPPORTED, &["no CUDA driver", "/no/such/libcuda.so"]);
    let desc = smp_device_desc { ordinal: 1, ..device_desc() };
    open_refused(&desc, SMP_ERROR_NOT_SUPPORTED, &["no CUDA driver"]);
    let desc = smp_device_desc { flags: SMP_DEVICE_CHECKED, ..device_desc() };
    open_refused(&desc, SMP_ERROR_NOT_SUPPORTED, &["no CUDA driver"]);
}

/// From here on no driver is found, whatever the machine has.
fn no_driver() {
    // SAFETY: every test that looks for a driver sets the same value.
    unsafe { std::env::set_var("SMP_CUDA_LIBRARY", "/no/such/libcuda.so") };
}

#[test]
fn what_a_kind_of_device_does_not_have_is_refused() {
    let (model, cuda) = (SMP_DEVICE_MODEL, SMP_DEVICE_CUDA);
    let refuse = |desc: smp_device_desc, name: &str| open_refused(&desc, SMP_ERROR_INVALID_VALUE, &[name]);
    refuse(smp_device_desc { kind: cuda, flags: SMP_DEVICE_LAZY, ..device_desc() }, "SMP_DEVICE_LAZY");
    refuse(smp_device_desc { kind: cuda, flags: SMP_DEVICE_HOST_BACKING, ..device_desc() }, "HOST_BACKING");
    refuse(smp_device_desc { kind: cuda, capacity: 1 << 30, ..device_desc() }, "capacity");
    refuse(smp_device_desc { kind: model, flags: SMP_DEVICE_CHECKED, ..device_desc() }, "CHECKED");
    refuse(smp_device_desc { kind: model, page_supply: SMP_PAGES_VIRTUAL_MEMORY, ..device_desc() }, "page supply");
    refuse(smp_device_desc { kind: model, context: ptr::without_provenance_mut(8), ..device_desc() }, "context");
    let both = SMP_DEVICE_LAZY | SMP_DEVICE_CHECKED;
    refuse(smp_device_desc { flags: both, ..device_desc() }, "SMP_DEVICE_CHECKED");
    refuse(smp_device_desc { page_supply: 3, ..device_desc() }, "page_supply is 3");
}

#[test]
fn without_a_description_the_device_tells_which_it_is_and_why() {
    no_driver();
    let mut device = ptr::null_mut();
    // SAFETY: a null description means every default; the out-parameter is valid.
    ok(unsafe { smp_device_open(ptr::null(), &mut device) });
    let info = info(device);
    assert_eq!(info.kind, SMP_DEVICE_MODEL);
    assert!(text_of(&info.why).contains("no CUDA driver"), "{:?}", text_of(&info.why));
    ok(smp_device_close(device));
}

#[test]
fn numbers_that_are_no_device_kind_flag_or_ordinal_are_refused() {
    open_refused(&smp_device_desc { kind: 3, ..device_desc() }, SMP_ERROR_INVALID_VALUE, &["desc->kind is 3"]);
    open_refused(&smp_device_desc { flags: 16, ..device_desc() }, SMP_ERROR_INVALID_VALUE, &["desc->flags", "0x10"]);
    let one = smp_device_desc { kind: SMP_DEVICE_MODEL, ordinal: 1, ..device_desc() };
    open_refused(&one, SMP_ERROR_INVALID_VALUE, &["desc->ordinal is 1"]);
    let lazy = smp_device_desc { flags: SMP_DEVICE_LAZY, ordinal: 1, ..device_desc() };
    open_refused(&lazy, SMP_ERROR_INVALID_VALUE, &["desc->ordinal is 1"]);
}

#[test]
fn an_alignment_or_granularity_that_is_none_is_refused() {
    for alignment in [1, 8, 24, 4 << 20] {
        let desc = smp_device_desc { alignment, ..device_desc() };
        open_refused(&desc, SMP_ERROR_INVALID_VALUE, &["alignment", &alignment.to_string()]);
    }
    let desc = smp_device_desc { page_granularity: 3 << 20, ..device_desc() };
    open_refused(&desc, SMP_ERROR_INVALID_VALUE, &["granularity", &(3u64 << 20).to_string()]);
}

#[test]
fn a_null_out_parameter_is_refused() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let stream = stream_of(device, 0);
    let before = stats(pool);
    let desc = smp_alloc_desc { size: 8, ..sized!(smp_alloc_desc) };
    let null = ["out must not be null"];
    // SAFETY: null out-parameters are what is tested; everything else is valid.
    unsafe {
        refused(smp_device_open(ptr::null(), ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_pool_create(device, ptr::null(), ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(
            smp_pool_create_from_spec(device, c"preset(cuda)".as_ptr(), ptr::null_mut()),
            SMP_ERROR_INVALID_VALUE,
            &null,
        );
        refused(smp_stream_create(device, 0, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_event_create(device, 0, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_alloc_async(pool, 8, stream, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_alloc_async_ex(pool, &desc, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_alloc(pool, 8, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_alloc_ex(pool, &desc, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_alloc_ptr_async(pool, 8, stream, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        refused(smp_pool_get_attribute(pool, 4, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &null);
        // smp_last_error itself leaves the last error.
        assert_eq!(smp_last_error(ptr::null_mut()), SMP_ERROR_INVALID_VALUE);
        assert_eq!(last_error().1, "out must not be null");
    }
    assert_eq!(stats(pool), before);
    assert_eq!((info(device).pools, info(device).live_streams), (1, 2), "the legacy default stream and one created");
    ok(smp_stream_destroy(stream));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

// ---- handles ---------------------------------------------------------------------------------------------------------

#[test]
fn null_foreign_and_stale_handles_have_their_own_statuses() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let stream = stream_of(device, 0);
    let event = event_of(device);
    let allocation = alloc(pool, 8, stream);
    let before = stats(pool);

    refused(smp_pool_destroy(ptr::null_mut()), SMP_ERROR_INVALID_HANDLE, &["pool", "null"]);
    refused(smp_pool_destroy(device.cast()), SMP_ERROR_INVALID_HANDLE, &["pool"]);
    refused(smp_free_async(pool.cast(), stream), SMP_ERROR_INVALID_HANDLE, &["allocation"]);
    refused(smp_free_async(ptr::null_mut(), stream), SMP_ERROR_INVALID_HANDLE, &["allocation", "null"]);
    refused(smp_free_async(allocation, event.cast()), SMP_ERROR_INVALID_HANDLE, &["stream"]);
    refused(smp_event_destroy(ptr::null_mut()), SMP_ERROR_INVALID_HANDLE, &["event", "null"]);
    refused(smp_device_close(stream.cast()), SMP_ERROR_INVALID_HANDLE, &["device"]);
    assert_eq!(stats(pool), before, "a refused call changes no figure");

    ok(smp_free_async(allocation, stream));
    let before = stats(pool);
    let mut info = sized!(smp_allocation_info);
    refused(smp_free_async(allocation, stream), SMP_ERROR_FREED, &["freed"]);
    refused(smp_free(allocation), SMP_ERROR_FREED, &["freed"]);
    refused(smp_is_ready(allocation), SMP_ERROR_FREED, &["freed"]);
    refused(smp_is_ready_on(allocation, stream), SMP_ERROR_FREED, &["freed"]);
    refused(smp_allocation_add_user(allocation, stream), SMP_ERROR_FREED, &["freed"]);
    // SAFETY: a struct with its size stated.
    refused(unsafe { smp_allocation_get_info(allocation, &mut info) }, SMP_ERROR_FREED, &["freed"]);
    assert!(smp_allocation_ptr(allocation).is_null());
    assert_eq!(stats(pool), before, "a double free changes no figure");

    ok(smp_event_destroy(event));
    refused(smp_event_query(event), SMP_ERROR_DESTROYED, &["event"]);
    refused(smp_event_destroy(event), SMP_ERROR_DESTROYED, &["event"]);
    ok(smp_stream_destroy(stream));
    let mut out: smp_allocation = ptr::without_provenance_mut(0x77);
    // SAFETY: the out-parameter is valid.
    refused(unsafe { smp_alloc_async(pool, 8, stream, &mut out) }, SMP_ERROR_DESTROYED, &["stream"]);
    assert!(out.is_null(), "an allocation that fails gives null, as CUDA's does");
    ok(smp_pool_destroy(pool));
    refused(smp_pool_destroy(pool), SMP_ERROR_DESTROYED, &["pool"]);
    refused(smp_pool_trim_to(pool, 0), SMP_ERROR_DESTROYED, &["pool"]);
    ok(smp_device_close(device));
    refused(smp_device_synchronize(device), SMP_ERROR_DESTROYED, &["device"]);
    refused(smp_device_close(device), SMP_ERROR_DESTROYED, &["device"]);
}

#[test]
fn texts_name_the_other_kind_with_its_article_and_a_device_is_closed() {
    let device = open_default();
    let event = event_of(device);
    refused(smp_pool_destroy(event.cast()), SMP_ERROR_INVALID_HANDLE, &["expected a pool handle, got an event handle"]);
    refused(
        smp_event_destroy(device.cast()),
        SMP_ERROR_INVALID_HANDLE,
        &["expected an event handle, got a device handle"],
    );
    ok(smp_event_destroy(event));
    ok(smp_device_close(device));
    refused(smp_device_synchronize(device), SMP_ERROR_DESTROYED, &["has been closed"]);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (here, there) = (open_default(), open_default());
    let pool = pool_from(here, "preset(sub-slices)");
    let (own, foreign) = (stream_of(here, 0), stream_of(there, 0));
    let foreign_event = event_of(there);
    let allocation = alloc(pool, 8, own);
    let before = stats(pool);
    let mut out = ptr::null_mut();
    // SAFETY: the out-parameter is valid.
    refused(unsafe { smp_alloc_async(pool, 8, foreign, &mut out) }, SMP_ERROR_WRONG_DEVICE, &["stream"]);
    refused(smp_free_async(allocation, foreign), SMP_ERROR_WRONG_DEVICE, &["stream"]);
    refused(smp_allocation_add_user(allocation, foreign), SMP_ERROR_WRONG_DEVICE, &["stream"]);
    refused(smp_is_ready_on(allocation, foreign), SMP_ERROR_WRONG_DEVICE, &["stream"]);
    refused(smp_stream_synchronize(here, foreign), SMP_ERROR_WRONG_DEVICE, &["stream"]);
    refused(smp_stream_wait_event(here, own, foreign_event), SMP_ERROR_WRONG_DEVICE, &["event"]);
    refused(smp_event_record(there, foreign_event, own), SMP_ERROR_WRONG_DEVICE, &["stream"]);
    assert_eq!(stats(pool), before);
    ok(smp_free_async(allocation, own));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(here));
    ok(smp_device_close(there));
}

// ---- allocations -----------------------------------------------------------------------------------------------------

#[test]
fn allocation_descriptions_are_checked() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let good = smp_alloc_desc { size: 8, ..sized!(smp_alloc_desc) };
    let before = stats(pool);
    let refuse = |desc: smp_alloc_desc, parts: &[&str]| {
        let mut out: smp_allocation = ptr::without_provenance_mut(0x77);
        // SAFETY: all pointers are valid.
        refused(unsafe { smp_alloc_async_ex(pool, &desc, &mut out) }, SMP_ERROR_INVALID_VALUE, parts);
        assert!(out.is_null(), "an allocation that fails gives null");
        let mut out: smp_allocation = ptr::without_provenance_mut(0x77);
        // SAFETY: as above.
        refused(unsafe { smp_alloc_ex(pool, &desc, &mut out) }, SMP_ERROR_INVALID_VALUE, parts);
        assert!(out.is_null(), "an allocation that fails gives null");
    };
    let long = CString::new("n".repeat(SMP_NAME_MAX as usize + 1)).unwrap();
    refuse(smp_alloc_desc { struct_size: 71, ..good }, &["desc->struct_size is 71", "smp_alloc_desc"]);
    refuse(smp_alloc_desc { flags: 1, ..good }, &["desc->flags", "0x1"]);
    refuse(smp_alloc_desc { reserved: [0, 0, 1, 0], ..good }, &["desc", "reserved"]);
    refuse(smp_alloc_desc { name: long.as_ptr(), ..good }, &["desc->name", "64", "at most 63"]);
    refuse(smp_alloc_desc { name: c"\xc3".as_ptr(), ..good }, &["desc->name is not UTF-8"]);
    for alignment in [3, 768, 4 << 20, 1 << 63] {
        refuse(smp_alloc_desc { alignment, ..good }, &["alignment", &alignment.to_string()]);
    }
    let mut out = ptr::null_mut();
    // SAFETY: a null description is what is tested.
    refused(
        unsafe { smp_alloc_async_ex(pool, ptr::null(), &mut out) },
        SMP_ERROR_INVALID_VALUE,
        &["desc must not be null"],
    );
    let streamed = smp_alloc_desc { stream: ptr::without_provenance_mut(1), ..good };
    // SAFETY: all pointers are valid.
    refused(unsafe { smp_alloc_ex(pool, &streamed, &mut out) }, SMP_ERROR_INVALID_VALUE, &["desc->stream"]);
    let after = smp_pool_stats { failures: before.failures, ..stats(pool) };
    assert_eq!(after, before, "a refused allocation changes no figure but the count of failures");
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn the_longest_name_comes_back_whole() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let longest = "n".repeat(SMP_NAME_MAX as usize);
    let name = CString::new(longest.clone()).unwrap();
    let desc = smp_alloc_desc { size: 8, name: name.as_ptr(), ..sized!(smp_alloc_desc) };
    let (mut allocation, mut info) = (ptr::null_mut(), sized!(smp_allocation_info));
    // SAFETY: all pointers are valid.
    unsafe {
        ok(smp_alloc_async_ex(pool, &desc, &mut allocation));
        ok(smp_allocation_get_info(allocation, &mut info));
    }
    assert_eq!(text_of(&info.name), longest);
    ok(smp_free(allocation));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn what_no_entry_accepts_what_a_cap_holds_back_and_what_the_device_refuses_differ() {
    let device = open_default();
    let pool = pool_from(device, "sliced(page_size=2MiB, max_slice_size=1MiB, max_pool_size=2MiB)");
    let stream = stream_of(device, 0);
    let mut out: smp_allocation = ptr::without_provenance_mut(0x77);
    let mut attempt = |size| {
        // SAFETY: the out-parameter is valid.
        let status = unsafe { smp_alloc_async(pool, size, stream, &mut out) };
        assert!(status == SMP_SUCCESS || out.is_null(), "an allocation that fails gives null");
        status
    };
    refused(attempt((1 << 20) + 1), SMP_ERROR_SIZE_NOT_ACCEPTED, &["1048577"]);
    ok(smp_model_refuse_pages(device, 0, u64::MAX));
    refused(attempt(1 << 20), SMP_ERROR_OUT_OF_MEMORY, &["1048576"]);
    ok(smp_model_refuse_pages(device, 0, 0));
    ok(attempt(1 << 20));
    ok(attempt(1 << 20));
    let before = stats(pool);
    refused(attempt(512), SMP_ERROR_CAPACITY_EXCEEDED, &["512"]);
    let after = stats(pool);
    assert_eq!(after.failures, before.failures + 1);
    assert_eq!(smp_pool_stats { failures: before.failures, ..after }, before);
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn an_out_of_memory_text_tells_asked_used_reserved_and_the_device() {
    let device = open_default();
    ok(smp_model_set_capacity(device, 4 << 20));
    let pool = pool_from(device, "sliced(page_size=2MiB)");
    let stream = stream_of(device, 0);
    let (a, b) = (alloc(pool, 2 << 20, stream), alloc(pool, 1 << 20, stream));
    let mut out = ptr::null_mut();
    // SAFETY: the out-parameter is valid.
    let status = unsafe { smp_alloc_async(pool, 2 << 20, stream, &mut out) };
    // asked 2 MiB, used 3 MiB, reserved 4 MiB, the largest free block 1 MiB, device free 0 of 4 MiB
    refused(status, SMP_ERROR_OUT_OF_MEMORY, &["2097152", "3145728", "4194304", "1048576", "free some"]);
    // What is more than all of the device no free will help.
    let larger = pool_from(device, "direct()");
    // SAFETY: as above.
    let status = unsafe { smp_alloc_async(larger, 6 << 20, stream, &mut out) };
    refused(status, SMP_ERROR_OUT_OF_MEMORY, &["6291456", "more than the device has"]);
    ok(smp_pool_destroy(larger));
    for allocation in [a, b] {
        ok(smp_free(allocation));
    }
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn a_pointer_that_starts_no_allocation_is_not_freed() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let stream = stream_of(device, 0);
    let mut pointer = ptr::null_mut();
    // SAFETY: the out-parameter is valid.
    ok(unsafe { smp_alloc_ptr_async(pool, 4096, stream, &mut pointer) });
    let before = stats(pool);
    let inner = pointer.wrapping_byte_add(16);
    refused(smp_free_ptr_async(device, inner, stream), SMP_ERROR_INVALID_VALUE, &["16 bytes inside"]);
    refused(smp_free_ptr(device, inner), SMP_ERROR_INVALID_VALUE, &["16 bytes inside"]);
    let beyond = pointer.wrapping_byte_add(4096);
    refused(smp_free_ptr_async(device, beyond, stream), SMP_ERROR_INVALID_VALUE, &[]);
    let stack = (&raw const before).cast_mut().cast::<c_void>();
    refused(smp_free_ptr_async(device, stack, stream), SMP_ERROR_INVALID_VALUE, &[]);
    refused(smp_free_ptr_async(ptr::null_mut(), ptr::null_mut(), stream), SMP_ERROR_INVALID_HANDLE, &["device"]);
    ok(smp_free_ptr_async(device, ptr::null_mut(), stream));
    assert_eq!(stats(pool), before);
    ok(smp_free_ptr_async(device, pointer, stream));
    let freed = stats(pool);
    refused(smp_free_ptr_async(device, pointer, stream), SMP_ERROR_INVALID_VALUE, &[]);
    assert_eq!(stats(pool), freed);
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

// ---- attributes, streams, reports, logs ------------------------------------------------------------------------------

#[test]
fn attributes_that_are_unknown_or_read_only_are_refused() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let mut value = 0x77;
    // SAFETY: the out-parameter is valid.
    unsafe {
        refused(smp_pool_get_attribute(pool, 0, &mut value), SMP_ERROR_INVALID_VALUE, &["attribute", "0"]);
        refused(smp_pool_get_attribute(pool, 99, &mut value), SMP_ERROR_INVALID_VALUE, &["attribute", "99"]);
    }
    assert_eq!(value, 0x77);
    for read_only in [5, 7, 13] {
        refused(smp_pool_set_attribute(pool, read_only, 0), SMP_ERROR_INVALID_VALUE, &[&read_only.to_string()]);
    }
    for mark in [6, 8] {
        refused(smp_pool_set_attribute(pool, mark, 1), SMP_ERROR_INVALID_VALUE, &[&mark.to_string(), "0"]);
    }
    refused(smp_pool_set_attribute(pool, 0, 0), SMP_ERROR_INVALID_VALUE, &["attribute", "0"]);
    refused(smp_pool_set_attribute(pool, 99, 0), SMP_ERROR_INVALID_VALUE, &["attribute", "99"]);
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn an_entry_index_out_of_range_is_refused() {
    let device = open_default();
    let pool = pool_from(device, "direct(); direct()");
    let mut figures = sized!(smp_pool_stats);
    // SAFETY: a struct with its size stated.
    unsafe {
        ok(smp_pool_get_entry_stats(pool, 1, &mut figures));
        let status = smp_pool_get_entry_stats(pool, 2, &mut figures);
        refused(status, SMP_ERROR_INVALID_VALUE, &["index is 2", "2 entries"]);
    }
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn stream_and_event_flags_are_checked() {
    let device = open_default();
    let mut stream = ptr::null_mut();
    let mut event = ptr::null_mut();
    // SAFETY: the out-parameters are valid.
    unsafe {
        refused(smp_stream_create(device, 8, &mut stream), SMP_ERROR_INVALID_VALUE, &["flags", "0x8"]);
        let both = SMP_STREAM_LAZY | SMP_STREAM_EAGER;
        refused(smp_stream_create(device, both, &mut stream), SMP_ERROR_INVALID_VALUE, &["lazy or eager"]);
        refused(smp_event_create(device, 1, &mut event), SMP_ERROR_INVALID_VALUE, &["flags", "0x1"]);
    }
    assert!(stream.is_null() && event.is_null());
    assert_eq!(info(device).live_streams, 1, "the legacy default stream");
    ok(smp_device_close(device));
}

#[test]
fn default_streams_cannot_be_destroyed() {
    for default in [0usize, 1, 2] {
        let status = smp_stream_destroy(ptr::without_provenance_mut(default));
        refused(status, SMP_ERROR_INVALID_VALUE, &["default"]);
    }
}

#[test]
fn a_default_stream_needs_a_device_to_say_whose() {
    refused(smp_stream_synchronize(ptr::null_mut(), ptr::null_mut()), SMP_ERROR_INVALID_HANDLE, &["device"]);
}

unsafe extern "C" fn refuse_to_write(_: *mut c_void, _: *const c_char, _: u64) -> c_int {
    5
}

unsafe extern "C" fn ignore_log(_: *mut c_void, _: u32, _: *const c_char) {}

#[test]
fn reports_check_their_format_and_tell_a_refusing_writer() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    // SAFETY: the functions fit their types.
    unsafe {
        refused(
            smp_pool_report(pool, 2, Some(refuse_to_write), ptr::null_mut()),
            SMP_ERROR_INVALID_VALUE,
            &["format is 2"],
        );
        refused(smp_pool_report(pool, 0, None, ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &["write must not be null"]);
        refused(smp_pool_report(pool, 0, Some(refuse_to_write), ptr::null_mut()), SMP_ERROR_IO, &["refused with 5"]);
    }
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn an_unknown_log_level_is_refused() {
    // SAFETY: the function fits its type.
    unsafe {
        refused(smp_set_log_callback(4, Some(ignore_log), ptr::null_mut()), SMP_ERROR_INVALID_VALUE, &["level is 4"]);
    }
}

#[test]
fn an_access_kind_that_is_none_is_refused() {
    let device = open_default();
    for access in [0, 4] {
        // SAFETY: the pointer is only compared; the verdict may be null.
        let status = unsafe { smp_note_access(device, ptr::null(), 1, ptr::null_mut(), access, ptr::null_mut()) };
        refused(status, SMP_ERROR_INVALID_VALUE, &["access", &access.to_string()]);
    }
    ok(smp_device_close(device));
}

#[test]
fn traces_name_the_file_they_cannot_have() {
    let device = open_default();
    let path = c"/nonexistent-folder/trace";
    let mut result = sized!(smp_replay_result);
    // SAFETY: all pointers are valid, or null where that is tested.
    unsafe {
        refused(smp_trace_start(device, path.as_ptr(), 0), SMP_ERROR_IO, &["/nonexistent-folder/trace"]);
        refused(smp_trace_start(device, ptr::null(), 0), SMP_ERROR_INVALID_VALUE, &["path must not be null"]);
        refused(smp_trace_start(device, path.as_ptr(), 2), SMP_ERROR_INVALID_VALUE, &["flags", "0x2"]);
        refused(smp_trace_stop(device), SMP_ERROR_NOT_PERMITTED, &["record"]);
        let status = smp_trace_replay(path.as_ptr(), ptr::null(), &mut result);
        refused(status, SMP_ERROR_IO, &["/nonexistent-folder/trace"]);
        let status = smp_trace_replay(ptr::null(), ptr::null(), &mut result);
        refused(status, SMP_ERROR_INVALID_VALUE, &["path must not be null"]);
    }
    ok(smp_device_close(device));
}

// ---- the last error --------------------------------------------------------------------------------------------------

#[test]
fn the_last_error_is_the_threads_own_and_outlives_successes_and_answers() {
    refused(smp_pool_destroy(ptr::null_mut()), SMP_ERROR_INVALID_HANDLE, &["pool"]);
    let (_, text) = last_error();
    std::thread::spawn(|| assert_eq!(last_error(), (0, String::new()))).join().unwrap();
    let device = open(&smp_device_desc { flags: SMP_DEVICE_LAZY, ..device_desc() });
    let stream = stream_of(device, 0);
    // SAFETY: `last_seq` may be null.
    ok(unsafe { smp_model_stream_submit(device, stream, 1, ptr::null_mut()) });
    assert_eq!(smp_stream_query(device, stream), SMP_NOT_READY);
    assert_eq!(last_error(), (SMP_ERROR_INVALID_HANDLE as u32, text), "successes and answers leave the last error");
    ok(smp_device_close(device));
}

#[test]
fn every_status_has_its_own_name_and_description() {
    let text = |pointer: *const c_char| {
        // SAFETY: static and NUL-terminated.
        unsafe { std::ffi::CStr::from_ptr(pointer) }.to_str().unwrap().to_string()
    };
    let mut seen = std::collections::BTreeSet::new();
    for status in STATUSES {
        assert_eq!(text(smp_status_name(status as u32)), format!("{status:?}"));
        assert!(seen.insert(text(smp_status_description(status as u32))), "{status:?} shares its description");
    }
    assert_eq!(STATUSES.map(|status| status as u32), std::array::from_fn(|number| number as u32));
    assert_eq!(text(smp_status_name(STATUSES.len() as u32)), "SMP_UNKNOWN_STATUS");
    assert_eq!(text(smp_status_name(u32::MAX)), "SMP_UNKNOWN_STATUS");
}
