// The workloads and the stopwatch that every allocator under test shares.
//
// An adapter is a class with this shape; a program names its adapters in run_all():
//     static const char *name();                              as in the table
//     using Block = ...;                                      what alloc gives and free takes; default-constructible
//     Adapter(int streams, Progress);                         a fresh allocator that has reserved nothing yet
//     bool alloc(uint64_t bytes, int stream, Block &);        false: refused
//     void free(Block &, uint64_t bytes, int stream);
//     void order(int from, int to);                           work on `to` from now on follows what `from` has so far
//     Figures figures();
//     static constexpr unsigned can                           a sum of Can
// Calls inside a timed batch are only those of the workload: sizes and victims are drawn beforehand.
//
// One run measures one workload on one adapter in a process of its own and prints one JSON object on one line.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <malloc.h>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(HAVE_CALLGRIND)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#endif

namespace bench {

/// Whether submitted work counts as run at once, or never during the run (so that every free stays pending).
enum class Progress { Eager, Lazy };

/// What an adapter can take part in.
enum Can : unsigned {
    Streams = 1,     ///< has streams of its own
    CrossFree = 2,   ///< a block may be freed on another stream than its own
    Threads = 4,     ///< may be called from several threads
    HostMemory = 8,  ///< hands out real memory: not asked for more live bytes than a machine has
};

/// What an allocator says of itself. `reserved` in bytes as asked of the device; NONE where it has no meaning.
constexpr uint64_t NONE = UINT64_MAX;
struct Figures {
    uint64_t reserved_peak = NONE;
    uint64_t device_calls = NONE;  ///< calls that ask the device for memory, move it or give it back
    uint64_t queries = NONE;       ///< times the device was asked how far a stream has run
    uint64_t metadata = NONE;  ///< bytes of records, by its own account
    uint64_t pages = NONE;
    uint64_t held = NONE;      ///< bytes that are live, or free but not everyone's yet, by its own account
};

inline uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

/// xorshift64: the same sequence at every run and on every machine.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 2 + 0x9E3779B97F4A7C15u) {}
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    uint64_t below(uint64_t n) { return (next() >> 11) % n; }
};

/// 256 bytes to 128 KiB, as many in each doubling.
inline uint64_t mixed_size(Random &random) {
    uint64_t low = uint64_t(256) << random.below(9);
    return low + random.below(low);
}

[[noreturn]] inline void die(const std::string &what) {
    std::fprintf(stderr, "bench: %s\n", what.c_str());
    std::exit(1);
}

inline uint64_t heap_bytes() {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

inline uint64_t status_kib(const char *key) {
    std::ifstream in("/proc/self/status");
    std::string line;
    while (std::getline(in, line))
        if (line.rfind(key, 0) == 0) return std::strtoull(line.c_str() + std::strlen(key) + 1, nullptr, 10);
    return 0;
}

/// Nanoseconds an event over batches of 100 events.
class Times {
public:
    void reserve(size_t n) { batches_.reserve(n); }
    void add(uint64_t ns, uint64_t events) {
        batches_.push_back(double(ns) / double(events));
        total_ns_ += ns;
        events_ += events;
    }
    std::string json() {
        std::sort(batches_.begin(), batches_.end());
        auto at = [&](double q) { return batches_.empty() ? 0.0 : batches_[size_t(q * double(batches_.size() - 1))]; };
        char text[256];
        std::snprintf(text, sizeof text,
                      "\"events\": %" PRIu64 ", \"ns\": %.2f, \"ns_mean\": %.2f, \"ns_p99\": %.2f, \"ns_p999\": %.2f, "
                      "\"ns_max\": %.2f",
                      events_, at(0.5), events_ ? double(total_ns_) / double(events_) : 0.0, at(0.99), at(0.999), at(1.0));
        return text;
    }

private:
    std::vector<double> batches_;
    uint64_t total_ns_ = 0, events_ = 0;
};

/// One JSON object on one line.
class Line {
public:
    Line(const char *peer, const std::string &workload) {
        text_ = "{\"peer\": \"" + std::string(peer) + "\", \"workload\": \"" + workload + "\"";
    }
    Line &raw(const std::string &more) {
        text_ += ", " + more;
        return *this;
    }
    Line &number(const char *key, uint64_t value) {
        if (value != NONE) text_ += ", \"" + std::string(key) + "\": " + std::to_string(value);
        return *this;
    }
    Line &figures(const Figures &f) {
        return number("reserved_peak", f.reserved_peak)
            .number("device_calls", f.device_calls)
            .number("queries", f.queries)
            .number("metadata", f.metadata)
            .number("pages", f.pages);
    }
    void print() { std::printf("%s, \"rss_peak\": %" PRIu64 "}\n", text_.c_str(), status_kib("VmHWM:") * 1024); }

private:
    std::string text_;
};

struct Options {
    uint64_t batches = 2000;  ///< timed batches of 100 events
    bool count = false;       ///< under callgrind: no timing matters, only the timed batches are instrumented
};

/// Slots 0..live in the order in which a burst of ten frees and refills them.
enum class Order { Lifo, Fifo, Random };
inline Order order_of(const std::string &name) {
    if (name == "lifo") return Order::Lifo;
    if (name == "fifo") return Order::Fifo;
    if (name == "random") return Order::Random;
    die("no such order: " + name);
}

constexpr uint64_t BURST = 10;

class Victims {
public:
    Victims(Order order, uint64_t live) : order_(order), live_(live) {
        if (order != Order::Random) return;
        Random random(7);
        table_.reserve(ROWS * BURST);
        for (uint64_t row = 0; row < ROWS; ++row)
            while (table_.size() < (row + 1) * BURST) {
                uint64_t slot = random.below(live);
                if (std::find(table_.begin() + long(row * BURST), table_.end(), slot) == table_.end())
                    table_.push_back(slot);
            }
    }
    /// Slot `i` of burst number `burst`.
    uint64_t slot(uint64_t burst, uint64_t i) const {
        switch (order_) {
            case Order::Lifo: return live_ - 1 - i;
            case Order::Fifo: return (burst * BURST + i) % live_;
            default: return table_[(burst % ROWS) * BURST + i];
        }
    }

private:
    static constexpr uint64_t ROWS = 1 << 14;
    Order order_;
    uint64_t live_;
    std::vector<uint64_t> table_;
};

inline std::vector<uint64_t> draw_sizes(uint64_t n, uint64_t seed) {
    std::vector<uint64_t> sizes(n);
    Random random(seed);
    for (auto &size : sizes) size = mixed_size(random);
    return sizes;
}

template <class A>
struct Item {
    typename A::Block block{};
    uint64_t size = 0;
    int stream = 0;
};

template <class A>
void take(A &a, Item<A> &item, uint64_t size, int stream) {
    item.size = size;
    item.stream = stream;
    if (!a.alloc(size, stream, item.block)) die(std::string(A::name()) + ": an allocation was refused");
}

/// `timed` batches run `step(batch)` of 100 events each, after `warm` untimed ones.
template <class Step>
Times measure(const Options &o, uint64_t warm, uint64_t events, Step step) {
    Times times;
    times.reserve(o.batches);
    uint64_t batch = 0;
    for (; batch < warm; ++batch) step(batch);
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    for (uint64_t i = 0; i < o.batches; ++i, ++batch) {
        uint64_t start = now_ns();
        step(batch);
        times.add(now_ns() - start, events);
    }
    CALLGRIND_STOP_INSTRUMENTATION;
    return times;
}

/// One size, allocated and freed at once, beside `live` blocks of mixed sizes.
template <class A>
void pair(const Options &o, uint64_t live) {
    A a(1, Progress::Eager);
    auto sizes = draw_sizes(live, 1);
    std::vector<Item<A>> items(live);
    for (uint64_t i = 0; i < live; ++i) take(a, items[i], sizes[i], 0);
    Item<A> one;
    Times times = measure(o, 200, 100, [&](uint64_t) {
        for (int i = 0; i < 50; ++i) {
            take(a, one, 4096, 0);
            a.free(one.block, one.size, 0);
        }
    });
    Line(A::name(), "pair").number("live", live).raw(times.json()).figures(a.figures()).print();
}

/// `live` blocks of mixed sizes; bursts of ten frees in an order and ten allocations of other sizes.
template <class A>
void steady(const Options &o, uint64_t live, const std::string &order) {
    uint64_t heap = heap_bytes(), rss = status_kib("VmRSS:");
    auto a = std::make_unique<A>(1, Progress::Eager);
    Victims victims(order_of(order), live);
    auto sizes = draw_sizes(1 << 16, 2);
    std::vector<Item<A>> items(live);
    uint64_t harness = heap_bytes() - heap, cursor = 0, bytes = 0, peak = 0;
    rss = status_kib("VmRSS:");
    heap = heap_bytes();
    for (auto &item : items) {
        uint64_t size = sizes[cursor++ & 0xFFFF];
        take(*a, item, size, 0);
        bytes += size;
    }
    (void)harness;
    peak = bytes;
    uint64_t heap_after = heap_bytes(), rss_after = status_kib("VmRSS:");
    Figures full = a->figures();
    // Until every block has been replaced twice, at most a million times.
    uint64_t warm = std::min<uint64_t>(std::max<uint64_t>(2 * live / 50, 400), 20000);
    Times times = measure(o, warm, 100, [&](uint64_t batch) {
        for (uint64_t burst = batch * 5; burst < batch * 5 + 5; ++burst) {
            for (uint64_t i = 0; i < BURST; ++i) {
                auto &item = items[victims.slot(burst, i)];
                a->free(item.block, item.size, 0);
                bytes -= item.size;
            }
            for (uint64_t i = BURST; i-- > 0;) {
                auto &item = items[victims.slot(burst, i)];
                uint64_t size = sizes[cursor++ & 0xFFFF];
                take(*a, item, size, 0);
                bytes += size;
            }
            peak = std::max(peak, bytes);
        }
    });
    Line line(A::name(), "steady");
    line.number("live", live).raw("\"order\": \"" + order + "\"").raw(times.json()).figures(a->figures());
    line.number("live_peak", peak).number("heap_for_live", heap_after - heap);
    line.number("rss_for_live", (rss_after - rss) * 1024).number("metadata_for_live", full.metadata).print();
}

/// Uniform sizes up to 4 MiB, 73 % allocations while they fit below a limit, else a free of a random block.
template <class A>
void random_mix(const Options &o) {
    constexpr uint64_t LIMIT = uint64_t(4) << 30, MAX = 4 << 20;
    A a(1, Progress::Eager);
    Random random(3);
    struct Event {
        uint64_t size;  // 0: a free
        uint64_t victim;
    };
    std::vector<Event> events;
    std::vector<uint64_t> live;
    uint64_t used = 0, peak = 0, warm = 200, n = (warm + o.batches) * 100;
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t size = 1 + random.below(MAX);
        bool grow = random.below(100) < 73;
        if (live.empty() || (grow && used + size <= LIMIT)) {
            events.push_back({size, 0});
            live.push_back(size);
            used += size;
            peak = std::max(peak, used);
        } else {
            uint64_t victim = random.below(live.size());
            events.push_back({0, victim});
            used -= live[victim];
            live[victim] = live.back();
            live.pop_back();
        }
    }
    std::vector<Item<A>> items(n);
    uint64_t count = 0;
    Times times = measure(o, warm, 100, [&](uint64_t batch) {
        for (uint64_t i = batch * 100; i < batch * 100 + 100; ++i) {
            if (events[i].size != 0) {
                take(a, items[count++], events[i].size, 0);
            } else {
                auto &item = items[events[i].victim];
                a.free(item.block, item.size, 0);
                item = items[--count];
            }
        }
    });
    Line(A::name(), "random").raw(times.json()).figures(a.figures()).number("live_peak", peak).print();
}

/// `pending` frees that have not executed, spread over `streams` streams between live blocks, while stream 0 works on.
template <class A>
void pending(const Options &o, uint64_t pending, int streams) {
    A a(streams + 1, Progress::Lazy);
    auto sizes = draw_sizes(1 << 16, 4);
    std::vector<Item<A>> items(2 * pending), work(100);
    uint64_t cursor = 0;
    for (auto &item : work) take(a, item, sizes[cursor++ & 0xFFFF], 0);
    for (uint64_t i = 0; i < items.size(); ++i)
        take(a, items[i], sizes[cursor++ & 0xFFFF], 1 + int((i / 2) % uint64_t(streams)));
    for (uint64_t i = 0; i < items.size(); i += 2) a.free(items[i].block, items[i].size, items[i].stream);
    Victims victims(Order::Random, work.size());
    Times times = measure(o, 200, 100, [&](uint64_t batch) {
        for (uint64_t burst = batch * 5; burst < batch * 5 + 5; ++burst) {
            for (uint64_t i = 0; i < BURST; ++i) {
                auto &item = work[victims.slot(burst, i)];
                a.free(item.block, item.size, 0);
            }
            for (uint64_t i = BURST; i-- > 0;) take(a, work[victims.slot(burst, i)], sizes[cursor++ & 0xFFFF], 0);
        }
    });
    Line(A::name(), "pending").number("pending", pending).number("streams", uint64_t(streams)).raw(times.json())
        .figures(a.figures()).print();
}

/// Eight streams; every block is freed on the stream after its own, ordered by an event (its record and wait are timed
/// too, and are not counted as events).
template <class A>
void cross(const Options &o) {
    constexpr int STREAMS = 8;
    A a(STREAMS, Progress::Eager);
    auto sizes = draw_sizes(1 << 16, 5);
    std::vector<Item<A>> items(1000);
    uint64_t cursor = 0, bytes = 0, peak = 0;
    for (auto &item : items) {
        take(a, item, sizes[cursor & 0xFFFF], int(cursor % STREAMS));
        bytes += item.size;
        ++cursor;
    }
    Victims victims(Order::Random, items.size());
    Times times = measure(o, 400, 100, [&](uint64_t batch) {
        for (uint64_t burst = batch * 5; burst < batch * 5 + 5; ++burst) {
            for (uint64_t i = 0; i < BURST; ++i) {
                auto &item = items[victims.slot(burst, i)];
                int other = (item.stream + 1) % STREAMS;
                a.order(item.stream, other);
                a.free(item.block, item.size, other);
                bytes -= item.size;
            }
            for (uint64_t i = BURST; i-- > 0;) {
                auto &item = items[victims.slot(burst, i)];
                take(a, item, sizes[cursor & 0xFFFF], int(cursor % STREAMS));
                bytes += item.size;
                ++cursor;
            }
            peak = std::max(peak, bytes);
        }
    });
    Line(A::name(), "cross").raw(times.json()).figures(a.figures()).number("live_peak", peak).print();
}

/// `live` blocks of 2 to 4 MiB, so that an allocator with a page a block has more pages than 16 bits count.
template <class A>
void pages(const Options &o, uint64_t live) {
    A a(1, Progress::Eager);
    Random random(6);
    std::vector<uint64_t> sizes(1 << 16);
    for (auto &size : sizes) size = (2 << 20) + random.below(2 << 20);
    std::vector<Item<A>> items(live);
    Victims victims(Order::Random, live);
    uint64_t cursor = 0, bytes = 0, peak = 0;
    for (auto &item : items) {
        take(a, item, sizes[cursor++ & 0xFFFF], 0);
        bytes += item.size;
    }
    peak = bytes;
    Times times = measure(o, 400, 100, [&](uint64_t batch) {
        for (uint64_t burst = batch * 5; burst < batch * 5 + 5; ++burst) {
            for (uint64_t i = 0; i < BURST; ++i) {
                auto &item = items[victims.slot(burst, i)];
                a.free(item.block, item.size, 0);
                bytes -= item.size;
            }
            for (uint64_t i = BURST; i-- > 0;) {
                auto &item = items[victims.slot(burst, i)];
                take(a, item, sizes[cursor++ & 0xFFFF], 0);
                bytes += item.size;
            }
            peak = std::max(peak, bytes);
        }
    });
    Line(A::name(), "pages").number("live", live).raw(times.json()).figures(a.figures()).number("live_peak", peak).print();
}

/// `threads` threads on one pool for a fixed number of events each: a stream each, or all on one. The throughput is over
/// the time in which all of them ran.
template <class A>
void threads(const Options &o, int count, bool own_stream) {
    A a(own_stream ? count : 1, Progress::Eager);
    const uint64_t bursts = o.batches * 5 * 4;
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> workers;
    for (int t = 0; t < count; ++t)
        workers.emplace_back([&, t] {
            int stream = own_stream ? t : 0;
            auto sizes = draw_sizes(1 << 12, uint64_t(100 + t));
            std::vector<Item<A>> items(100);
            uint64_t cursor = 0;
            for (auto &item : items) take(a, item, sizes[cursor++ & 0xFFF], stream);
            Victims victims(Order::Random, items.size());
            auto burst_of = [&](uint64_t burst) {
                for (uint64_t i = 0; i < BURST; ++i) {
                    auto &item = items[victims.slot(burst, i)];
                    a.free(item.block, item.size, stream);
                }
                for (uint64_t i = BURST; i-- > 0;)
                    take(a, items[victims.slot(burst, i)], sizes[cursor++ & 0xFFF], stream);
            };
            for (uint64_t burst = 0; burst < 2000; ++burst) burst_of(burst);
            ready.fetch_add(1);
            while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
            for (uint64_t burst = 0; burst < bursts; ++burst) burst_of(burst);
            for (auto &item : items) a.free(item.block, item.size, stream);
        });
    while (ready.load() != count) std::this_thread::yield();
    uint64_t start = now_ns();
    go.store(true, std::memory_order_release);
    for (auto &worker : workers) worker.join();
    uint64_t ns = now_ns() - start, events = bursts * BURST * 2 * uint64_t(count);
    char text[128];
    std::snprintf(text, sizeof text, "\"events\": %" PRIu64 ", \"events_per_us\": %.3f", events,
                  double(events) * 1000.0 / double(ns));
    Line(A::name(), own_stream ? "threads" : "threads-one-stream").number("threads", uint64_t(count)).raw(text)
        .figures(a.figures()).print();
}

/// One event of a trace, as benches/run.py writes them: slots are numbered anew so that a table of live blocks is small.
/// What is neither an allocation nor a free is done by those adapters that have it, and is no event of the figures.
enum Op : uint16_t { Free, Alloc, Record, Wait, Sync, SyncDevice, SyncEvent, Submit, Advance, User };
struct TraceEvent {
    uint64_t size;    // bytes; of Submit and Advance: operations
    uint32_t slot;    // of Record, Wait, SyncEvent: the event
    uint16_t stream;
    uint16_t op;
};
static_assert(sizeof(TraceEvent) == 16, "as benches/run.py packs it");

inline std::vector<TraceEvent> read_trace(const std::string &path) {
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    if (!in) die("cannot read " + path);
    std::vector<TraceEvent> events(size_t(in.tellg()) / sizeof(TraceEvent));
    in.seekg(0);
    in.read(reinterpret_cast<char *>(events.data()), std::streamsize(events.size() * sizeof(TraceEvent)));
    return events;
}

template <class A, class = void>
struct HasOperations : std::false_type {};
template <class A>
struct HasOperations<A, std::void_t<decltype(std::declval<A &>().operation(std::declval<const TraceEvent &>(), nullptr))>>
    : std::true_type {};

/// Plays one event.
template <class A>
void play(A &a, const TraceEvent &e, std::vector<Item<A>> &items) {
    if (e.op == Alloc) {
        take(a, items[e.slot], e.size, e.stream);
    } else if (e.op == Free) {
        auto &item = items[e.slot];
        a.free(item.block, item.size, A::can & CrossFree ? e.stream : item.stream);
    } else if constexpr (HasOperations<A>::value) {
        a.operation(e, e.op == User ? &items[e.slot].block : nullptr);
    }
}

/// The peak of live plus pending bytes over as many rounds as reserved bytes are taken over, for an allocator that tells
/// it; beside the clock. `alive`: what is left at the end of a round.
template <class A>
uint64_t held_peak(const std::vector<TraceEvent> &events, const std::vector<uint8_t> &alive, int rounds, int streams,
                   Progress progress) {
    A a(streams, progress);
    if (a.figures().held == NONE) return NONE;
    std::vector<Item<A>> items(alive.size());
    uint64_t peak = 0;
    for (int round = 0; round < rounds; ++round) {
        for (const TraceEvent &e : events) {
            play(a, e, items);
            peak = std::max(peak, a.figures().held);
        }
        for (size_t s = 0; s < alive.size(); ++s)
            if (alive[s]) a.free(items[s].block, items[s].size, items[s].stream);
    }
    return peak;
}

/// A recorded trace, `rounds` times on one pool; what is alive at the end of a round is freed before the next, untimed.
template <class A>
void trace(const Options &o, const std::string &path, int rounds) {
    auto events = read_trace(path);
    uint32_t slots = 0;
    int streams = 1;
    Progress progress = Progress::Eager;
    for (auto &e : events) {
        if (e.op == Alloc) slots = std::max(slots, e.slot + 1);
        streams = std::max(streams, int(e.stream) + 1);
        // Such a trace says when work runs. For an allocator that cannot be told, it runs at once: its best case.
        if (e.op >= Record && HasOperations<A>::value) progress = Progress::Lazy;
    }
    if (streams > 1 && !(A::can & Streams)) {
        Line(A::name(), "trace").raw("\"skipped\": \"has no streams\"").print();
        return;
    }
    A a(streams, progress);
    std::vector<Item<A>> items(slots);
    std::vector<uint8_t> alive(slots);
    std::string text = "\"rounds\": [";
    uint64_t live = 0, peak = 0, calls_before = 0, queries_before = 0;
    for (int round = 0; round < rounds; ++round) {
        Times times;
        times.reserve(events.size() / 100 + 1);
        if (o.count && round == rounds - 1) {
            CALLGRIND_START_INSTRUMENTATION;
            CALLGRIND_ZERO_STATS;
        }
        for (size_t at = 0; at < events.size();) {
            size_t end = at, n = 0;
            for (; n < 100 && end < events.size(); ++end) n += events[end].op <= Alloc;
            uint64_t start = now_ns();
            for (; at < end; ++at) play(a, events[at], items);
            if (n != 0) times.add(now_ns() - start, n);
        }
        if (o.count && round == rounds - 1) {
            CALLGRIND_STOP_INSTRUMENTATION;
        }
        // Beside the clock: what was live, and what is left over.
        std::fill(alive.begin(), alive.end(), 0);
        live = 0;
        for (auto &e : events) {
            if (e.op > Alloc) continue;
            alive[e.slot] = uint8_t(e.op == Alloc);
            if (e.op == Alloc) {
                live += e.size;
                peak = std::max(peak, live);
            } else {
                live -= e.size;
            }
        }
        for (uint32_t s = 0; s < slots; ++s)
            if (alive[s]) a.free(items[s].block, items[s].size, items[s].stream);
        Figures f = a.figures();
        text += std::string(round ? ", " : "") + "{" + times.json();
        if (f.device_calls != NONE) text += ", \"device_calls\": " + std::to_string(f.device_calls - calls_before);
        if (f.queries != NONE) text += ", \"queries\": " + std::to_string(f.queries - queries_before);
        if (f.reserved_peak != NONE) text += ", \"reserved_peak\": " + std::to_string(f.reserved_peak);
        text += "}";
        calls_before = f.device_calls;
        queries_before = f.queries;
    }
    Line(A::name(), "trace").raw(text + "]").number("streams", uint64_t(streams)).figures(a.figures())
        .number("live_peak", peak).number("held_peak", streams > 1 ? held_peak<A>(events, alive, rounds, streams, progress) : NONE).print();
}

template <class A>
bool run_one(int argc, char **argv) {
    if (argc < 3 || std::strcmp(argv[1], A::name()) != 0) return false;
    Options o;
    std::vector<std::string> args;
    for (int i = 3; i < argc; ++i) {
        if (std::strcmp(argv[i], "--batches") == 0 && i + 1 < argc) {
            o.batches = std::strtoull(argv[++i], nullptr, 10);
        } else if (std::strcmp(argv[i], "--count") == 0) {
            o.count = true;
        } else {
            args.push_back(argv[i]);
        }
    }
    std::string w = argv[2];
    auto number = [&](size_t i) { return i < args.size() ? std::strtoull(args[i].c_str(), nullptr, 10) : 0; };
    auto word = [&](size_t i) { return i < args.size() ? args[i] : std::string(); };
    auto skip = [&](const char *why) { Line(A::name(), w).raw(std::string("\"skipped\": \"") + why + "\"").print(); };
    if (w == "pair" || w == "steady" || w == "pages") {
        uint64_t most = w == "pages" ? 0 : 100000;
        if ((A::can & HostMemory) && number(0) > most) {
            skip("hands out real memory");
        } else if (w == "pair") {
            pair<A>(o, number(0));
        } else if (w == "pages") {
            pages<A>(o, number(0));
        } else {
            steady<A>(o, number(0), word(1));
        }
    } else if (w == "random") {
        random_mix<A>(o);
    } else if (w == "pending") {
        A::can & Streams ? pending<A>(o, number(0), int(number(1))) : skip("has no streams");
    } else if (w == "cross") {
        (A::can & Streams) && (A::can & CrossFree) ? cross<A>(o) : skip("no free on another stream");
    } else if (w == "threads" || w == "threads-one-stream") {
        A::can & Threads ? threads<A>(o, int(number(0)), w == "threads") : skip("not shared between threads");
    } else if (w == "trace") {
        trace<A>(o, word(0), int(std::max<uint64_t>(number(1), 1)));
    } else {
        die("no such workload: " + w);
    }
    return true;
}

/// Runs the workload on the adapter named on the command line: PEER WORKLOAD [ARGUMENTS] [--batches N] [--count].
template <class... A>
int run_all(int argc, char **argv) {
    if ((run_one<A>(argc, argv) || ...)) return 0;
    std::fprintf(stderr, "usage: %s PEER WORKLOAD [ARGUMENT]... [--batches N] [--count]\npeers:", argv[0]);
    (std::fprintf(stderr, " %s", A::name()), ...);
    std::fprintf(stderr, "\n");
    return 2;
}

}  // namespace bench
