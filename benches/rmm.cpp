// RMM's pool and arena over the stub runtime.
#include "harness.hpp"
#include "stub/cudart.hpp"

#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

namespace {

template <class Resource>
class Rmm {
public:
    using Block = void *;
    static constexpr unsigned can = bench::Streams | bench::CrossFree | bench::Threads;

    template <class... Arguments>
    Rmm(bench::Progress progress, Arguments... arguments) : resource_(&cuda_, arguments...) {
        stub::lazy = progress == bench::Progress::Lazy;
        created_ = stub::device().calls;
    }
    bool alloc(uint64_t bytes, int stream, Block &block) {
        try {
            block = resource_.allocate(bytes, view(stream));
        } catch (const std::exception &e) {
            std::fprintf(stderr, "%s\n", e.what());
            return false;
        }
        return true;
    }
    void free(Block &block, uint64_t bytes, int stream) { resource_.deallocate(block, bytes, view(stream)); }
    // RMM asks its caller to order a free on another stream; the events for that cost nothing here.
    void order(int, int) {}
    bench::Figures figures() {
        bench::Figures f;
        f.reserved_peak = stub::device().reserved_peak;
        f.device_calls = stub::device().calls;
        return f;
    }

protected:
    static rmm::cuda_stream_view view(int stream) {
        return rmm::cuda_stream_view{reinterpret_cast<cudaStream_t>(uintptr_t(0x1000 + stream * 16))};
    }
    rmm::mr::cuda_memory_resource cuda_;
    Resource resource_;
    uint64_t created_ = 0;
};

/// Starts empty and grows as it likes: no initial size is given.
struct Pool : Rmm<rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>> {
    static const char *name() { return "rmm-pool"; }
    Pool(int, bench::Progress progress) : Rmm(progress, std::size_t(0)) {}
};

/// Takes what it is told at its creation and never more, so its peak of reserved bytes is a setting, not a result.
struct Arena : Rmm<rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>> {
    static const char *name() { return "rmm-arena"; }
    Arena(int, bench::Progress progress) : Rmm(progress, std::optional<std::size_t>(std::size_t(512) << 30)) {}
    bench::Figures figures() {
        bench::Figures f = Rmm::figures();
        f.reserved_peak = bench::NONE;
        return f;
    }
};

}  // namespace

int main(int argc, char **argv) { return bench::run_all<Pool, Arena>(argc, argv); }
