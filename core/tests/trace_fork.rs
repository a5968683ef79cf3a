//! What a fork does to a trace: the parent's goes on, and nothing of the child's reaches its file. Alone in a file, for a child must
//! not inherit a lock that another test holds.

mod trace_common;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions, ReplayReport};
use smp_core::{AllocationId, DeviceId, PoolId, Status, StreamId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use trace_common::Folder;

/// More lines than fit in any buffer on the way to the file.
const BLOCKS: usize = 3000;

/// One test at a time forks.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `child` in a forked child, and waits for it. Whether it ended without a panic.
fn in_child(child: impl FnOnce()) -> bool {
    // SAFETY: no other thread of this process is inside the library; the C library's own locks survive a fork.
    let process = unsafe { libc::fork() };
    assert!(process >= 0);
    if process == 0 {
        let ended = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the process.
        unsafe { libc::_exit(ended.is_err().into()) };
    }
    let mut status = -1;
    // SAFETY: the child is this process's own, and nobody else waits for it.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    status == 0
}

struct Bench {
    device: DeviceId,
    pool: PoolId,
    stream: StreamId,
}

impl Bench {
    fn recorded(path: &Path) -> Bench {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        trace::start(device, path, 0).unwrap();
        let pool = pool::create(device, &spec::parse("sliced(page_size=2MiB)").unwrap()).unwrap();
        Bench { device, pool, stream: stream::create(device, StreamFlags::default()).unwrap() }
    }

    fn allocate(&self) -> Vec<AllocationId> {
        (0..BLOCKS).map(|_| pool::alloc_async(self.pool, 1000, self.stream).unwrap()).collect()
    }

    fn free(&self, blocks: &[AllocationId]) {
        blocks.iter().for_each(|&block| pool::free_async(block, self.stream).unwrap());
    }

    /// Everything goes, and with the last of it the recording.
    fn close(&self) {
        pool::destroy(self.pool).unwrap();
        stream::release(self.device, self.stream).unwrap();
        device::close(self.device).unwrap();
    }
}

fn counts(path: &Path) -> (u64, u64) {
    let report: ReplayReport = trace::replay(path, ReplayOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.verified);
    (report.allocs, report.frees)
}

/// Whatever a child does in the midst of it, the parent's trace is of the parent's calls.
fn the_parent_s_trace_is_whole(folder: &str, child: impl Fn(&Bench, &[AllocationId])) {
    let _alone = alone();
    let folder = Folder::new(folder);
    for name in ["trace", "trace.gz"] {
        let path = folder.file(name);
        let bench = Bench::recorded(&path);
        let blocks = bench.allocate();
        assert!(in_child(|| child(&bench, &blocks)), "{name}");
        bench.free(&blocks);
        trace::stop(bench.device).unwrap();
        assert_eq!(counts(&path), (BLOCKS as u64, BLOCKS as u64), "{name}");
        bench.close();
    }
}

#[test]
fn a_child_that_goes_on_working_leaves_no_mark_on_its_parent_s_trace() {
    the_parent_s_trace_is_whole("fork-works", |bench, _| bench.free(&bench.allocate()));
}

#[test]
fn a_child_that_gives_back_what_it_inherited_does_not_complete_its_parent_s_trace() {
    the_parent_s_trace_is_whole("fork-closes", |bench, blocks| {
        bench.free(blocks);
        bench.close();
    });
}

#[test]
fn nothing_records_in_a_child_until_it_starts_a_trace_of_its_own_to_another_file() {
    let _alone = alone();
    let folder = Folder::new("fork-own");
    for (name, own) in [("trace", "own"), ("trace.gz", "own.gz")] {
        let (path, own) = (folder.file(name), folder.file(own));
        let bench = Bench::recorded(&path);
        let ended = in_child(|| {
            let refused = trace::stop(bench.device).unwrap_err();
            assert_eq!(refused.status, Status::NotPermitted);
            let refused = trace::start(bench.device, &path, 0).unwrap_err();
            assert_eq!(refused.status, Status::InvalidValue);
            trace::start(bench.device, &own, 0).unwrap();
            let refused = trace::start(bench.device, folder.file("third"), 0).unwrap_err();
            assert_eq!(refused.status, Status::NotPermitted);
            let blocks = bench.allocate();
            bench.free(&blocks[1..]);
            trace::stop(bench.device).unwrap();
            assert_eq!(trace::stop(bench.device).unwrap_err().status, Status::NotPermitted);
        });
        assert!(ended, "{name}");
        bench.free(&bench.allocate()[2..]);
        trace::stop(bench.device).unwrap();
        assert_eq!(counts(&own), (BLOCKS as u64, BLOCKS as u64 - 1), "{name}");
        assert_eq!(counts(&path), (BLOCKS as u64, BLOCKS as u64 - 2), "{name}");
    }
}
