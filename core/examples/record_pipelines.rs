//! Records the two version-2 traces of `traces/`: programs with copy and compute streams, as a GPU program would be
//! written, on a model device.
//!
//! `cargo run -p smp-core --example record_pipelines -- FOLDER` writes `inference_pipeline.smp.gz` and
//! `training_overlap.smp.gz`. Both programs are deterministic: they write the same lines every time.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::{AllocationId, DeviceId, EventId, PoolId, Result, StreamId, event, trace};
use std::collections::VecDeque;
use std::path::Path;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// SplitMix64: the sizes of requests and how far the device gets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A device being recorded, and its pool.
struct Scene {
    device: DeviceId,
    pool: PoolId,
    random: Random,
}

impl Scene {
    fn begin(path: &Path, options: &ModelOptions, pools: &str, seed: u64) -> Result<Scene> {
        let device = device::open_model(options)?;
        trace::start(device, path, 0)?;
        Ok(Scene { device, pool: pool::create(device, &spec::parse(pools)?)?, random: Random(seed) })
    }

    fn stream(&self, non_blocking: bool) -> Result<StreamId> {
        stream::create(self.device, StreamFlags { non_blocking, lazy: None })
    }

    fn alloc(&self, size: u64, on: StreamId) -> Result<AllocationId> {
        pool::alloc_async(self.pool, size, on)
    }

    /// Kernels or copies.
    fn work(&self, on: StreamId, count: u64) -> Result<()> {
        stream::submit(self.device, on, count).map(drop)
    }

    /// `after` goes on when `before` has come here.
    fn order(&self, event: EventId, before: StreamId, after: StreamId) -> Result<()> {
        event::record(self.device, event, before)?;
        stream::wait_event(self.device, after, event)
    }

    /// The device gets on with its work, each stream at its own pace.
    fn run(&mut self, streams: &[StreamId], most: u64) -> Result<()> {
        for &stream in streams {
            let count = self.random.below(most);
            stream::advance(self.device, stream, count)?;
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        device::synchronize(self.device)?;
        trace::stop(self.device)?;
        pool::destroy(self.pool)?;
        device::close(self.device)
    }
}

/// Serves requests: one stream copies inputs in, two compute, one copies results out; three requests are in flight.
///
/// The input is freed by the stream that consumed it, the result by the stream that copied it out: frees on other streams
/// than the allocation's, each ordered by an event. The pool acts as the driver's own, so what a synchronise finds free
/// above the threshold goes back.
fn inference_pipeline(path: &Path) -> Result<()> {
    let options = ModelOptions { lazy: true, capacity: 4096 * MIB, ..Default::default() };
    let mut scene = Scene::begin(path, &options, "preset(cuda); release_threshold(512MiB)", 1)?;
    let (copy_in, copy_out) = (scene.stream(true)?, scene.stream(true)?);
    let compute = [scene.stream(false)?, scene.stream(false)?];
    let streams = [copy_in, compute[0], compute[1], copy_out];
    let weights: Vec<_> = (0..12).map(|layer| scene.alloc((4 + layer % 3) * MIB, compute[0])).collect::<Result<_>>()?;
    stream::synchronize(scene.device, compute[0])?;
    let mut in_flight: VecDeque<EventId> = VecDeque::new();
    for request in 0..400u64 {
        let on = compute[request as usize % 2];
        let batch = 1 + scene.random.below(8);
        let length = 32 * (1 + scene.random.below(16));
        let hidden = batch * length * KIB;
        let (arrived, computed, copied) =
            (event::create(scene.device)?, event::create(scene.device)?, event::create(scene.device)?);

        let input = scene.alloc(batch * length * 8, copy_in)?;
        scene.work(copy_in, 1)?;
        scene.order(arrived, copy_in, on)?;

        let mut state = scene.alloc(hidden, on)?;
        scene.work(on, 1)?;
        pool::free_async(input, on)?;
        for _ in 0..3 {
            let attention = scene.alloc(hidden * 3, on)?;
            scene.work(on, 2)?;
            let wide = scene.alloc(hidden * 4, on)?;
            scene.work(on, 2)?;
            pool::free_async(attention, on)?;
            let next = scene.alloc(hidden, on)?;
            scene.work(on, 1)?;
            pool::free_async(wide, on)?;
            pool::free_async(state, on)?;
            state = next;
        }
        let result = scene.alloc(batch * 200 * KIB, on)?;
        scene.work(on, 1)?;
        pool::free_async(state, on)?;

        scene.order(computed, on, copy_out)?;
        scene.work(copy_out, 1)?;
        pool::free_async(result, copy_out)?;
        event::record(scene.device, copied, copy_out)?;
        in_flight.push_back(copied);
        event::destroy(arrived)?;
        event::destroy(computed)?;

        scene.run(&streams, 20)?;
        if in_flight.len() > 3
            && let Some(oldest) = in_flight.pop_front()
        {
            event::synchronize(oldest)?;
            event::destroy(oldest)?;
        }
        if request % 100 == 99 {
            pool::trim_to(scene.pool, 128 * MIB)?;
        }
    }
    for event in in_flight {
        event::synchronize(event)?;
        event::destroy(event)?;
    }
    for block in weights {
        pool::free_async(block, compute[1])?;
    }
    scene.end()
}

/// Trains: a stream prefetches batches, one computes, one exchanges gradients while the backward pass goes on.
///
/// Gradient buckets are allocated by the computing stream, used by both and freed by the exchanging one; activations that
/// the exchange reads have it as an added user. Memory is tight: the device's capacity makes allocations wait for frees.
fn training_overlap(path: &Path) -> Result<()> {
    let options = ModelOptions { lazy: true, capacity: 144 * MIB, ..Default::default() };
    let pools = "sliced(page_size=16MiB, max_slice_size=4MiB); sliced(page_size=64MiB, max_slice_size=32MiB); direct()";
    let mut scene = Scene::begin(path, &options, pools, 2)?;
    let (prefetch, compute, exchange) = (scene.stream(true)?, scene.stream(false)?, scene.stream(true)?);
    let streams = [prefetch, compute, exchange];
    let layers = 8u64;
    let width = |layer: u64| (2 + layer % 4) * MIB;
    let parameters: Vec<_> = (0..layers).map(|layer| scene.alloc(width(layer), compute)).collect::<Result<_>>()?;
    let events: Vec<EventId> = (0..layers + 3).map(|_| event::create(scene.device)).collect::<Result<_>>()?;
    let (fetched, forward, exchanged) = (events[0], events[1], events[2]);
    let mut batch = scene.alloc(3 * MIB, prefetch)?;
    scene.work(prefetch, 2)?;
    for step in 0..250u64 {
        scene.order(fetched, prefetch, compute)?;
        // The next batch comes while this one is worked on.
        let shorter = scene.random.below(64) * KIB;
        let coming = scene.alloc(3 * MIB - shorter, prefetch)?;
        scene.work(prefetch, 2)?;

        let mut activations = Vec::new();
        for layer in 0..layers {
            let (extra, more) = (scene.random.below(512) * KIB, scene.random.below(8) * 64 * KIB);
            let scratch = scene.alloc(MIB + extra, compute)?;
            let activation = scene.alloc(width(layer) + more, compute)?;
            scene.work(compute, 2)?;
            pool::free_async(scratch, compute)?;
            activations.push(activation);
        }
        pool::free_async(batch, compute)?;
        batch = coming;
        event::record(scene.device, forward, compute)?;

        for layer in (0..layers).rev() {
            let gradient = scene.alloc(width(layer), compute)?;
            scene.work(compute, 2)?;
            if let Some(activation) = activations.pop() {
                if layer % 4 == 0 {
                    pool::add_user(activation, exchange)?;
                }
                pool::free_async(activation, compute)?;
            }
            scene.order(events[3 + layer as usize], compute, exchange)?;
            scene.work(exchange, 1)?;
            pool::free_async(gradient, exchange)?;
        }
        scene.order(exchanged, exchange, compute)?;
        scene.work(compute, layers)?;

        scene.run(&streams, 40)?;
        if step % 10 == 9 {
            event::synchronize(forward)?;
        }
        if step % 50 == 49 {
            stream::synchronize(scene.device, compute)?;
        }
    }
    pool::free_async(batch, prefetch)?;
    for block in parameters {
        pool::free_async(block, compute)?;
    }
    scene.end()
}

/// Writes both traces into `folder`.
pub fn record(folder: &Path) -> Result<()> {
    inference_pipeline(&folder.join("inference_pipeline.smp.gz"))?;
    training_overlap(&folder.join("training_overlap.smp.gz"))
}

#[allow(dead_code, reason = "a test includes this file as a module")]
fn main() {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: record_pipelines FOLDER");
        std::process::exit(2);
    };
    if let Err(error) = record(Path::new(&folder)) {
        eprintln!("record_pipelines: {error}");
        std::process::exit(1);
    }
}
