// What the host itself costs: uncontended locks and an exchange (the floor), glibc's malloc, an adapter that does nothing
// (what the harness costs) and a loop that shares nothing (what two cores can give at best).
#include "harness.hpp"

#include <mutex>

namespace {


/// Costs nothing: the harness alone.
struct Null {
    static const char *name() { return "null"; }
    using Block = uint64_t;
    static constexpr unsigned can = bench::Streams | bench::CrossFree;
    Null(int, bench::Progress) {}
    bool alloc(uint64_t bytes, int stream, Block &block) {
        block = bytes + uint64_t(stream);
        asm volatile("" : "+r"(block));
        return true;
    }
    void free(Block &block, uint64_t, int) { asm volatile("" : "+r"(block)); }
    void order(int, int) {}
    bench::Figures figures() { return {}; }
};

/// A chain of dependent multiplications, as long as a fast allocator's call; nothing is shared.
struct Unshared {
    static const char *name() { return "unshared"; }
    using Block = uint64_t;
    static constexpr unsigned can = bench::Streams | bench::CrossFree | bench::Threads;
    Unshared(int, bench::Progress) {}
    static void work(Block &block) {
        uint64_t x = block | 1;
        for (int i = 0; i < 16; ++i) x = x * 0x9E3779B97F4A7C15u + 1;
        asm volatile("" : "+r"(x));
        block = x;
    }
    bool alloc(uint64_t, int, Block &block) {
        work(block);
        return true;
    }
    void free(Block &block, uint64_t, int) { work(block); }
    void order(int, int) {}
    bench::Figures figures() { return {}; }
};

struct Glibc {
    static const char *name() { return "glibc"; }
    using Block = void *;
    static constexpr unsigned can = bench::HostMemory | bench::Threads;
    Glibc(int, bench::Progress) {}
    bool alloc(uint64_t bytes, int, Block &block) { return (block = std::malloc(bytes)) != nullptr; }
    void free(Block &block, uint64_t, int) { std::free(block); }
    void order(int, int) {}
    bench::Figures figures() { return {}; }
};

/// Nanoseconds of one lock and unlock, of one exchange and store, and of one malloc and free of 4 KiB.
void floor_costs(const bench::Options &o) {
    std::mutex mutex;
    std::atomic<int> word{0};
    // glibc elides nothing once a second thread has lived, as in any program with a GPU.
    std::thread([] {}).join();
    auto lock = bench::measure(o, 200, 100, [&](uint64_t) {
        for (int i = 0; i < 100; ++i) {
            mutex.lock();
            asm volatile("" ::: "memory");
            mutex.unlock();
        }
    });
    auto exchange = bench::measure(o, 200, 100, [&](uint64_t) {
        for (int i = 0; i < 100; ++i) {
            word.exchange(1, std::memory_order_acquire);
            word.store(0, std::memory_order_release);
        }
    });
    auto clock = bench::measure(o, 200, 100, [&](uint64_t) {
        for (int i = 0; i < 100; ++i) (void)bench::now_ns();
    });
    bench::Line("mutex", "floor").raw(lock.json()).print();
    bench::Line("exchange", "floor").raw(exchange.json()).print();
    bench::Line("clock", "floor").raw(clock.json()).print();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "floor") == 0) {
        floor_costs(bench::Options{});
        return 0;
    }
    return bench::run_all<Null, Unshared, Glibc>(argc, argv);
}
