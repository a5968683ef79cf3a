// CUB's CachingDeviceAllocator over the stub runtime: as constructed by default (bins of powers of eight up to 2 MiB, at
// most 6 MiB cached, larger blocks not cached), and told to cache everything in bins of powers of two.
#include "harness.hpp"
#include "stub/cudart.hpp"

#include <cub/util_allocator.cuh>

namespace {

class Cub {
public:
    using Block = void *;
    static constexpr unsigned can = bench::Streams | bench::Threads;

    template <class... Arguments>
    explicit Cub(bench::Progress progress, Arguments... arguments) : allocator_(arguments...) {
        stub::lazy = progress == bench::Progress::Lazy;
    }
    bool alloc(uint64_t bytes, int stream, Block &block) {
        return allocator_.DeviceAllocate(&block, bytes, reinterpret_cast<cudaStream_t>(uintptr_t(0x1000 + stream * 16))) ==
               cudaSuccess;
    }
    void free(Block &block, uint64_t, int) { (void)allocator_.DeviceFree(block); }
    void order(int, int) {}
    bench::Figures figures() {
        bench::Figures f;
        f.reserved_peak = stub::device().reserved_peak;
        f.device_calls = stub::device().calls;
        return f;
    }

private:
    cub::CachingDeviceAllocator allocator_;
};

struct AsMade : Cub {
    static const char *name() { return "cub"; }
    AsMade(int, bench::Progress progress) : Cub(progress) {}
};

struct CacheAll : Cub {
    static const char *name() { return "cub-cache-all"; }
    CacheAll(int, bench::Progress progress) : Cub(progress, 2u, 9u, 40u, std::size_t(-1)) {}
};

}  // namespace

int main(int argc, char **argv) { return bench::run_all<AsMade, CacheAll>(argc, argv); }
