//! The `_ptsz` twins: NULL means the calling thread's default stream, every other stream what it always means.

mod common;

use common::*;
use smp::*;
use std::ptr;

const PER_THREAD: usize = 2;

fn handle(bits: usize) -> smp_stream {
    ptr::without_provenance_mut(bits)
}

fn id_of(allocation: smp_allocation) -> u64 {
    let mut info = sized!(smp_allocation_info);
    // SAFETY: a struct with its size stated.
    ok(unsafe { smp_allocation_get_info(allocation, &mut info) });
    info.stream_id
}

fn where_it_stands(device: smp_device, stream: smp_stream, twin: bool) -> smp_stream_info {
    let mut info = sized!(smp_stream_info);
    // SAFETY: a struct with its size stated.
    ok(unsafe {
        match twin {
            false => smp_stream_get_info(device, stream, &mut info),
            true => smp_stream_get_info_ptsz(device, stream, &mut info),
        }
    });
    info
}

#[test]
fn null_is_the_legacy_stream_in_plain_calls_and_the_threads_own_in_the_twins() {
    let device = open_default();
    let plain = where_it_stands(device, handle(0), false).stream_id;
    let own = where_it_stands(device, handle(PER_THREAD), false).stream_id;
    assert_eq!(plain, 0, "the legacy default stream is number 0");
    assert_ne!(own, 0);
    assert_eq!(where_it_stands(device, handle(0), true).stream_id, own);
    assert_eq!(where_it_stands(device, handle(1), true).stream_id, 0, "SMP_STREAM_LEGACY stays the legacy stream");
    let created = stream_of(device, 0);
    assert_eq!(
        where_it_stands(device, created, true).stream_id,
        where_it_stands(device, created, false).stream_id,
        "a created stream stays itself"
    );
    ok(smp_device_close(device));
}

#[test]
fn every_thread_has_its_own() {
    let device = open_default();
    let here = where_it_stands(device, handle(0), true).stream_id;
    let bits = device.addr();
    let there = std::thread::spawn(move || {
        let device: smp_device = ptr::without_provenance_mut(bits);
        where_it_stands(device, handle(0), true).stream_id
    });
    assert_ne!(there.join().unwrap(), here);
    assert_eq!(where_it_stands(device, handle(0), true).stream_id, here, "and keeps it");
    ok(smp_device_close(device));
}

/// Every twin takes its operation to the thread's own stream: its sequence numbers move, the legacy stream's do not.
#[test]
fn each_twin_acts_on_the_threads_own_stream() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let event = event_of(device);
    let null = handle(0);
    let legacy_before = where_it_stands(device, handle(1), false).submitted;
    let step = |expected: u64, what: &str, call: &mut dyn FnMut() -> smp_status| {
        let before = where_it_stands(device, handle(PER_THREAD), false).submitted;
        ok(call());
        let after = where_it_stands(device, handle(PER_THREAD), false).submitted;
        assert_eq!(after - before, expected, "{what}");
        assert_eq!(where_it_stands(device, handle(1), false).submitted, legacy_before, "{what}");
    };
    let (mut a, mut b, mut p) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let desc = smp_alloc_desc { size: 8, ..sized!(smp_alloc_desc) };
    // SAFETY: the out-parameter is valid.
    step(1, "alloc_async", &mut || unsafe { smp_alloc_async_ptsz(pool, 8, null, &mut a) });
    // SAFETY: as above.
    step(1, "alloc_async_ex", &mut || unsafe { smp_alloc_async_ex_ptsz(pool, &desc, &mut b) });
    // SAFETY: as above.
    step(1, "alloc_ptr_async", &mut || unsafe { smp_alloc_ptr_async_ptsz(pool, 8, null, &mut p) });
    let own = where_it_stands(device, handle(PER_THREAD), false).stream_id;
    assert_eq!((id_of(a), id_of(b)), (own, own));
    step(0, "is_ready_on", &mut || smp_is_ready_on_ptsz(a, null));
    step(0, "add_user", &mut || smp_allocation_add_user_ptsz(b, null));
    step(1, "event_record", &mut || smp_event_record_ptsz(device, event, null));
    step(1, "note_event_record", &mut || smp_note_event_record_ptsz(device, event, null));
    step(1, "stream_wait_event", &mut || smp_stream_wait_event_ptsz(device, null, event));
    step(1, "note_stream_wait", &mut || smp_note_stream_wait_ptsz(device, null, event));
    // SAFETY: as above.
    step(1, "note_access", &mut || unsafe {
        smp_note_access_ptsz(device, smp_allocation_ptr(a), 8, null, SMP_ACCESS_READ, ptr::null_mut())
    });
    // SAFETY: as above.
    step(3, "submit", &mut || unsafe { smp_model_stream_submit_ptsz(device, null, 3, ptr::null_mut()) });
    // SAFETY: as above.
    step(0, "advance", &mut || unsafe { smp_model_stream_advance_ptsz(device, null, 1, ptr::null_mut()) });
    step(0, "query", &mut || smp_stream_query_ptsz(device, null));
    step(1, "free_async", &mut || smp_free_async_ptsz(a, null));
    step(1, "free_async", &mut || smp_free_async_ptsz(b, null));
    step(1, "free_ptr_async", &mut || smp_free_ptr_async_ptsz(device, p, null));
    for (what, synchronize) in [
        ("stream_synchronize", smp_stream_synchronize_ptsz as extern "C" fn(_, _) -> _),
        ("note_stream_synchronized", smp_note_stream_synchronized_ptsz),
    ] {
        // SAFETY: as above.
        ok(unsafe { smp_model_stream_submit_ptsz(device, null, 1, ptr::null_mut()) });
        ok(synchronize(device, null));
        let info = where_it_stands(device, handle(PER_THREAD), false);
        assert_eq!(info.observed, info.submitted, "{what}");
    }
    refused(smp_stream_release_ptsz(device, null), smp_status::SMP_ERROR_INVALID_VALUE, &["default"]);
    ok(smp_event_destroy(event));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}
