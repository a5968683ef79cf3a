//! Streams, operations and what precedes what (§1–§3): the graph is kept whole and searched whole.

/// An operation: the `seq`-th of a stream, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Position of the stream; 0 is the legacy default stream.
    pub stream: usize,
    /// Sequence number.
    pub seq: u64,
}

/// The legacy default stream.
pub(crate) const LEGACY: usize = 0;

/// What an operation is, as far as the legacy stream's rule cares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// A barrier when on the legacy stream.
    Work,
    /// An allocation, with the wait that policy 3 may put before it, or a free: never a barrier.
    Memory,
}

/// Which "now" is meant on the legacy stream (§2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Now {
    Work,
    Allocation,
}

pub(crate) struct Stream {
    pub(crate) blocking: bool,
    pub(crate) lazy: bool,
    pub(crate) destroyed: bool,
    pub(crate) executed: u64,
    pub(crate) observed: u64,
    /// The dependencies of operation `seq` are at `seq - 1`.
    operations: Vec<Vec<Point>>,
}

impl Stream {
    pub(crate) fn submitted(&self) -> u64 {
        self.operations.len() as u64
    }

    /// §2: no one can submit to it, and all that was is observed.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.destroyed && self.observed == self.submitted()
    }
}

/// All streams of a device.
pub(crate) struct Graph {
    pub(crate) streams: Vec<Stream>,
    last_barrier: Option<Point>,
}

impl Graph {
    pub(crate) fn new(lazy: bool) -> Self {
        let mut graph = Graph { streams: Vec::new(), last_barrier: None };
        graph.create(true, lazy);
        graph
    }

    pub(crate) fn create(&mut self, blocking: bool, lazy: bool) -> usize {
        self.streams.push(Stream {
            blocking,
            lazy,
            destroyed: false,
            executed: 0,
            observed: 0,
            operations: Vec::new(),
        });
        self.streams.len() - 1
    }

    /// The last operation submitted to a stream, if any.
    fn last(&self, stream: usize) -> Option<Point> {
        let seq = self.streams[stream].submitted();
        (seq > 0).then_some(Point { stream, seq })
    }

    /// §1: takes the next sequence number of `stream`.
    pub(crate) fn submit(&mut self, stream: usize, sort: Sort, mut dependencies: Vec<Point>) -> u64 {
        let seq = self.streams[stream].submitted() + 1;
        if stream == LEGACY {
            if sort == Sort::Work {
                for other in 1..self.streams.len() {
                    if self.streams[other].blocking && !self.streams[other].is_forgotten() {
                        dependencies.extend(self.last(other));
                    }
                }
                self.last_barrier = Some(Point { stream, seq });
            }
        } else if self.streams[stream].blocking {
            dependencies.extend(self.last_barrier);
        }
        self.streams[stream].operations.push(dependencies);
        self.settle();
        seq
    }

    pub(crate) fn has_executed(&self, point: Point) -> bool {
        point.seq <= self.streams[point.stream].executed
    }

    /// Runs the stream's next operation if there is one and nothing it depends on is missing.
    fn run_next(&mut self, stream: usize) -> bool {
        let next = self.streams[stream].executed as usize;
        let Some(dependencies) = self.streams[stream].operations.get(next) else { return false };
        if !dependencies.iter().all(|&point| self.has_executed(point)) {
            return false;
        }
        self.streams[stream].executed += 1;
        true
    }

    /// §3: eager streams run as far as they can.
    fn settle(&mut self) {
        let mut progress = true;
        while progress {
            progress = false;
            for stream in 0..self.streams.len() {
                while !self.streams[stream].lazy && self.run_next(stream) {
                    progress = true;
                }
            }
        }
    }

    /// §3: runs up to `count` operations, stopping at an unmet dependency. How many ran.
    pub(crate) fn advance(&mut self, stream: usize, count: u64) -> u64 {
        let mut ran = 0;
        while ran < count && self.run_next(stream) {
            ran += 1;
            self.settle();
        }
        ran
    }

    /// §3: runs up to `point`, and before each operation what it depends on.
    fn run_to(&mut self, point: Point) {
        while self.streams[point.stream].executed < point.seq {
            let next = self.streams[point.stream].executed as usize;
            for dependency in self.streams[point.stream].operations[next].clone() {
                self.run_to(dependency);
            }
            self.streams[point.stream].executed = self.streams[point.stream].executed.max(next as u64 + 1);
        }
    }

    /// For each stream the last operation from which a chain leads to one of `from`, themselves included; 0 if none.
    fn reach(&self, from: &[Point]) -> Vec<u64> {
        let mut reached = vec![0; self.streams.len()];
        let mut todo = from.to_vec();
        while let Some(point) = todo.pop() {
            // What lies up to `reached` has been walked already.
            for seq in reached[point.stream] + 1..=point.seq {
                todo.extend(&self.streams[point.stream].operations[seq as usize - 1]);
            }
            reached[point.stream] = reached[point.stream].max(point.seq);
        }
        reached
    }

    /// §2: for each stream the last operation that precedes "now" on `stream`.
    pub(crate) fn precedes_now(&self, stream: usize, now: Now) -> Vec<u64> {
        let mut from: Vec<Point> = self.last(stream).into_iter().collect();
        if stream == LEGACY {
            if now == Now::Work {
                for other in 1..self.streams.len() {
                    if self.streams[other].blocking && !self.streams[other].is_forgotten() {
                        from.extend(self.last(other));
                    }
                }
            }
        } else if self.streams[stream].blocking {
            from.extend(self.last_barrier);
        }
        let mut reached = self.reach(&from);
        for (stream, seq) in reached.iter_mut().enumerate() {
            *seq = self.streams[stream].observed.max(*seq);
        }
        reached
    }

    /// For each stream the last operation that precedes the last one submitted to `stream`, itself included.
    pub(crate) fn precedes_last(&self, stream: usize) -> Vec<u64> {
        let last: Vec<Point> = self.last(stream).into_iter().collect();
        self.reach(&last)
    }

    /// §3: what a host synchronise with `points` runs and observes.
    pub(crate) fn synchronise(&mut self, points: &[Point]) {
        for &point in points {
            self.run_to(point);
        }
        self.settle();
        for (stream, seq) in self.reach(points).into_iter().enumerate() {
            self.streams[stream].observed = self.streams[stream].observed.max(seq);
        }
    }

    /// The last operation of one stream, or of every stream.
    pub(crate) fn ends(&self, stream: Option<usize>) -> Vec<Point> {
        match stream {
            Some(stream) => self.last(stream).into_iter().collect(),
            None => (0..self.streams.len()).filter_map(|stream| self.last(stream)).collect(),
        }
    }
}
