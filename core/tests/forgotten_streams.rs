//! What a stream leaves behind goes once it is forgotten: a program that makes streams, uses them and destroys them takes no more
//! memory of the process however many there have been, whatever its pools are made of, and whether or not anything is ever submitted to
//! the legacy default stream.

use smp_core::device::{self, ModelOptions};
use smp_core::pool;
use smp_core::stream::{self, StreamFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, and how many bytes it has given out.
struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's; numbers are added beside.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// One test, since the numbers are the process's.
#[test]
fn what_streams_leave_behind_does_not_grow_with_their_number() {
    const STREAMS: usize = 4000;
    let flags = [StreamFlags::default(), StreamFlags { non_blocking: true, ..Default::default() }];
    for spec in ["preset(mapped)", "preset(sub-slices)", "preset(cuda)", "direct()", "exclusive()"] {
        for flags in flags {
            for synchronised in [true, false] {
                let device = device::open_model(&ModelOptions::default()).unwrap();
                let pool = pool::create(device, &pool::spec::parse(spec).unwrap()).unwrap();
                let one_more = || {
                    let own = stream::create(device, flags).unwrap();
                    let block = pool::alloc_async(pool, 1000, own).unwrap();
                    pool::free_async(block, own).unwrap();
                    if synchronised {
                        stream::synchronize(device, own).unwrap();
                    }
                    stream::destroy(own).unwrap();
                };
                (0..STREAMS).for_each(|_| one_more());
                let before = BYTES.load(Relaxed);
                (0..3 * STREAMS).for_each(|_| one_more());
                let more = BYTES.load(Relaxed).saturating_sub(before);
                assert!(more < STREAMS, "{spec}, {flags:?}, synchronised {synchronised}: {more} bytes more");
                pool::check_invariants(pool).unwrap();
                pool::destroy(pool).unwrap();
                device::close(device).unwrap();
            }
        }
    }
}
