//! Random programs of streams, events, barriers and synchronises, against the order as `docs/placement.md` §1–§3 states
//! it: a graph of operations, in which *precedes* is reachability. The model here keeps every operation and searches the
//! graph for every answer; it shares nothing with the core. A failure prints its seed and the program up to it.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::access::{self, AccessKind};
use smp_core::pool::{self, Order};
use smp_core::stream::{self, StreamFlags};
use smp_core::{AllocationId, DeviceId, EventId, MemoryPoolConfig, PoolConfig, PoolId, StreamId, event};

/// (stream, sequence number)
type Node = (usize, u64);

#[derive(Default)]
struct Line {
    non_blocking: bool,
    lazy: bool,
    released: bool,
    /// What each operation depends on beside the one before it.
    operations: Vec<Vec<Node>>,
    executed: u64,
    observed: u64,
}

impl Line {
    fn submitted(&self) -> u64 {
        self.operations.len() as u64
    }
    fn is_forgotten(&self) -> bool {
        self.released && self.observed == self.submitted()
    }
}

/// Stream 0 is the legacy default stream.
#[derive(Default)]
struct Graph {
    lines: Vec<Line>,
    barrier: u64,
    /// Released streams, in the order in which they are looked at.
    ended: Vec<usize>,
}

impl Graph {
    /// `alloc`: the operation is an allocation, which is no barrier.
    fn submit(&mut self, on: usize, mut after: Vec<Node>, alloc: bool) {
        if on == 0 && !alloc {
            after.extend(self.blocking().map(|line| (line, self.lines[line].submitted())).filter(|node| node.1 > 0));
            self.barrier = self.lines[0].submitted() + 1;
        }
        if on != 0 && !self.lines[on].non_blocking && self.barrier > 0 {
            after.push((0, self.barrier));
        }
        self.lines[on].operations.push(after);
        self.settle();
    }

    /// All blocking streams but the legacy one and those that are forgotten.
    fn blocking(&self) -> impl Iterator<Item = usize> + '_ {
        (1..self.lines.len()).filter(|&line| !self.lines[line].non_blocking && !self.lines[line].is_forgotten())
    }

    /// A stream has been created: of the released ones that are not forgotten four are looked at.
    fn look_at_ended(&mut self) {
        self.ended.retain(|&line| !self.lines[line].is_forgotten());
        for line in self.ended.drain(..self.ended.len().min(4)).collect::<Vec<usize>>() {
            let it = &mut self.lines[line];
            if it.executed == it.submitted() {
                it.observed = it.executed;
            } else {
                self.ended.push(line);
            }
        }
    }

    fn can_run(&self, line: usize) -> bool {
        let line = &self.lines[line];
        let next = line.operations.get(line.executed as usize);
        next.is_some_and(|after| after.iter().all(|&(on, seq)| self.lines[on].executed >= seq))
    }

    /// Eager streams run on until none can.
    fn settle(&mut self) {
        while let Some(line) = (0..self.lines.len()).find(|&line| !self.lines[line].lazy && self.can_run(line)) {
            self.lines[line].executed += 1;
        }
    }

    fn advance(&mut self, line: usize, count: u64) -> u64 {
        let mut ran = 0;
        while ran < count && self.can_run(line) {
            self.lines[line].executed += 1;
            ran += 1;
            self.settle();
        }
        ran
    }

    fn run_to(&mut self, (line, seq): Node) {
        while self.lines[line].executed < seq {
            for node in self.lines[line].operations[self.lines[line].executed as usize].clone() {
                self.run_to(node);
            }
            self.lines[line].executed += 1;
        }
    }

    /// For each stream the last operation from which a chain leads to one of `to`, or 0.
    fn reach(&self, to: Vec<Node>) -> Vec<u64> {
        let mut last = vec![0; self.lines.len()];
        let mut work = to;
        while let Some((line, seq)) = work.pop() {
            for k in last[line]..seq {
                work.extend(&self.lines[line].operations[k as usize]);
            }
            last[line] = last[line].max(seq);
        }
        last
    }

    fn synchronise(&mut self, node: Node) {
        self.run_to(node);
        self.settle();
        for (line, seq) in self.reach(vec![node]).into_iter().enumerate() {
            self.lines[line].observed = self.lines[line].observed.max(seq);
        }
    }

    /// For each stream the last operation that precedes work submitted to `on` now.
    fn before_now(&self, on: usize) -> Vec<u64> {
        let end = |line: usize| (line, self.lines[line].submitted());
        let mut to = vec![end(on)];
        if on == 0 {
            to.extend(self.blocking().map(end));
        } else if !self.lines[on].non_blocking {
            to.push((0, self.barrier));
        }
        let reach = self.reach(to);
        reach.into_iter().zip(&self.lines).map(|(seq, line)| seq.max(line.observed)).collect()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Both sides of one program.
struct Pair {
    graph: Graph,
    device: DeviceId,
    pool: PoolId,
    streams: Vec<StreamId>,
    events: Vec<(EventId, Option<Node>)>,
    marks: Vec<(AllocationId, Node)>,
    log: Vec<String>,
}

impl Pair {
    fn new(random: &mut Random) -> Pair {
        let lazy = random.below(2) == 0;
        let device = device::open_model(&ModelOptions { lazy, ..Default::default() }).unwrap();
        let config = PoolConfig::with_entries(vec![MemoryPoolConfig::Sliced {
            page_size: 2 << 20,
            max_slice_size: None,
            max_pool_size: None,
            dealloc_period: None,
        }]);
        let pool = pool::create(device, &config).unwrap();
        let graph = Graph { lines: vec![Line { lazy, ..Line::default() }], ..Graph::default() };
        let log = vec![format!("device lazy {lazy}")];
        Pair { graph, device, pool, streams: vec![StreamId(0)], events: Vec::new(), marks: Vec::new(), log }
    }

    fn create(&mut self, random: &mut Random) {
        let (non_blocking, lazy) = (random.below(4) == 0, random.below(2) == 0);
        self.log.push(format!("create {}: non-blocking {non_blocking}, lazy {lazy}", self.streams.len()));
        self.streams.push(stream::create(self.device, StreamFlags { non_blocking, lazy: Some(lazy) }).unwrap());
        self.graph.lines.push(Line { non_blocking, lazy, ..Line::default() });
        self.graph.look_at_ended();
    }

    fn step(&mut self, random: &mut Random) {
        let open: Vec<usize> = (0..self.streams.len()).filter(|&line| !self.graph.lines[line].released).collect();
        // The legacy stream is one among many; it comes up often enough to matter, seldom enough not to order everything.
        let mut on = open[random.below(open.len())];
        if on == 0 && random.below(2) == 0 {
            on = open[random.below(open.len())];
        }
        let (device, handle) = (self.device, self.streams[on]);
        let end = |graph: &Graph| (on, graph.lines[on].submitted());
        match random.below(100) {
            0..=4 if self.streams.len() < 16 => self.create(random),
            5..=6 if on != 0 => {
                self.log.push(format!("release {on}"));
                stream::destroy(handle).unwrap();
                self.graph.lines[on].released = true;
                self.graph.ended.push(on);
            }
            7..=9 if self.events.len() < 12 => self.events.push((event::create(device).unwrap(), None)),
            10..=24 => {
                self.log.push(format!("mark {on}"));
                let mark = pool::alloc_async(self.pool, 512, handle).unwrap();
                self.graph.submit(on, Vec::new(), true);
                self.marks.push((mark, end(&self.graph)));
                if self.marks.len() > 24 {
                    self.marks.swap_remove(random.below(24));
                }
            }
            25..=44 if !self.events.is_empty() => {
                let k = random.below(self.events.len());
                self.log.push(format!("record event {k} on {on}"));
                let point = event::record(device, self.events[k].0, handle).unwrap();
                self.graph.submit(on, Vec::new(), false);
                self.events[k].1 = Some(end(&self.graph));
                assert_eq!((point.stream.0 as usize, point.seq), end(&self.graph));
            }
            45..=69 if !self.events.is_empty() => {
                let k = random.below(self.events.len());
                self.log.push(format!("{on} waits for event {k}"));
                stream::wait_event(device, handle, self.events[k].0).unwrap();
                self.graph.submit(on, self.events[k].1.into_iter().collect(), false);
            }
            70..=79 => {
                let count = 1 + random.below(3) as u64;
                self.log.push(format!("submit {count} to {on}"));
                stream::submit(device, handle, count).unwrap();
                (0..count).for_each(|_| self.graph.submit(on, Vec::new(), false));
            }
            80..=82 => {
                self.log.push(format!("access on {on}"));
                access::note(device, 0, 1, handle, AccessKind::Read).unwrap();
                self.graph.submit(on, Vec::new(), false);
            }
            83..=92 => {
                let count = 1 + random.below(6) as u64;
                self.log.push(format!("advance {on} by {count}"));
                let ran = stream::advance(device, handle, count).unwrap();
                assert_eq!(ran, self.graph.advance(on, count), "how many ran");
            }
            93..=94 => {
                self.log.push(format!("synchronise {on}"));
                stream::synchronize(device, handle).unwrap();
                self.graph.synchronise(end(&self.graph));
            }
            95..=96 if !self.events.is_empty() => {
                let k = random.below(self.events.len());
                self.log.push(format!("synchronise event {k}"));
                event::synchronize(self.events[k].0).unwrap();
                if let Some(node) = self.events[k].1 {
                    self.graph.synchronise(node);
                }
            }
            97 if random.below(3) == 0 => {
                self.log.push("synchronise the device".into());
                device::synchronize(device).unwrap();
                for line in 0..self.graph.lines.len() {
                    self.graph.synchronise((line, self.graph.lines[line].submitted()));
                }
            }
            98 if !self.events.is_empty() => {
                let (event, _) = self.events.swap_remove(random.below(self.events.len()));
                self.log.push("destroy an event".into());
                event::destroy(event).unwrap();
            }
            _ => {}
        }
    }

    /// Every number of every stream, and every mark against every stream.
    fn compare(&self, marks_too: bool) {
        for (number, (line, &handle)) in self.graph.lines.iter().zip(&self.streams).enumerate() {
            if line.released {
                continue;
            }
            let info = stream::info(self.device, handle).unwrap();
            assert_eq!(
                (info.submitted, info.executed, info.observed),
                (line.submitted(), line.executed, line.observed),
                "stream {number}: submitted, executed, observed"
            );
            if !marks_too {
                continue;
            }
            let before = self.graph.before_now(number);
            for &(mark, (home, seq)) in &self.marks {
                let expected = if before[home] >= seq { Order::Proved } else { Order::Refuted };
                assert_eq!(pool::is_ready_on(mark, handle).unwrap(), expected, "({home}, {seq}) before {number}");
                assert_eq!(pool::is_ready(mark).unwrap(), self.graph.lines[home].executed >= seq);
            }
        }
        let alive = self.graph.lines.iter().filter(|line| !line.is_forgotten()).count();
        assert_eq!(device::info(self.device).unwrap().live_streams, alive as u64, "streams not forgotten");
    }
}

/// Prints the program of a failing seed.
struct Tell<'a>(u64, &'a Pair);

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}:\n{}", self.0, self.1.log.join("\n"));
        }
    }
}

fn run(seed: u64, steps: usize) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    for _ in 0..2 + random.below(4) {
        pair.create(&mut random);
    }
    for step in 0..steps {
        let before = pair.log.len();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.step(&mut random)));
        let _tell = Tell(seed, &pair);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        if pair.log.len() > before {
            pair.compare(step % 4 == 0);
        }
    }
}

#[test]
fn order_is_reachability_in_the_graph_of_operations() {
    let seeds: u64 = std::env::var("SMP_TEST_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        run(seed, 300);
    }
    println!("seeds 0..{seeds}, 300 steps each");
}
