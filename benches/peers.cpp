// The allocators of benches/peers-rs, through their C interface.
#include "harness.hpp"

extern "C" {
#define DECLARE(peer)                                                                                                   \
    void *peer_##peer##_new(bool lazy);                                                                                 \
    bool peer_##peer##_alloc(void *, uint64_t size, uint32_t stream, void *slot);                                       \
    void peer_##peer##_free(void *, void *slot, uint32_t stream);                                                       \
    void peer_##peer##_figures(const void *, uint64_t (*out)[2]);
DECLARE(cubecl_sliced)
DECLARE(cubecl_exclusive)
DECLARE(oxicuda)
DECLARE(offset_allocator)
DECLARE(rlsf)
DECLARE(mimalloc)
#undef DECLARE
}

namespace {

struct alignas(16) Slot {
    unsigned char bytes[64];
};

#define ADAPT(Type, peer, label, abilities)                                                                             \
    class Type {                                                                                                        \
    public:                                                                                                             \
        static const char *name() { return label; }                                                                     \
        using Block = Slot;                                                                                             \
        static constexpr unsigned can = abilities;                                                                      \
        Type(int, bench::Progress progress) : peer_(peer_##peer##_new(progress == bench::Progress::Lazy)) {}            \
        bool alloc(uint64_t bytes, int stream, Block &block) {                                                          \
            return peer_##peer##_alloc(peer_, bytes, uint32_t(stream), &block);                                         \
        }                                                                                                               \
        void free(Block &block, uint64_t, int stream) { peer_##peer##_free(peer_, &block, uint32_t(stream)); }          \
        void order(int, int) {}                                                                                         \
        bench::Figures figures() {                                                                                      \
            uint64_t out[2];                                                                                            \
            peer_##peer##_figures(peer_, &out);                                                                         \
            bench::Figures f;                                                                                           \
            f.reserved_peak = out[0];                                                                                   \
            f.device_calls = out[1];                                                                                    \
            return f;                                                                                                   \
        }                                                                                                               \
                                                                                                                        \
    private:                                                                                                            \
        void *peer_;                                                                                                    \
    };

ADAPT(CubeclSliced, cubecl_sliced, "cubecl-sliced", 0)
ADAPT(CubeclExclusive, cubecl_exclusive, "cubecl-exclusive", 0)
ADAPT(Oxicuda, oxicuda, "oxicuda", bench::Streams | bench::CrossFree)
ADAPT(OffsetAllocator, offset_allocator, "offset-allocator", 0)
ADAPT(Rlsf, rlsf, "rlsf", bench::HostMemory)
ADAPT(Mimalloc, mimalloc, "mimalloc", bench::HostMemory | bench::Threads)

}  // namespace

int main(int argc, char **argv) {
    return bench::run_all<CubeclSliced, CubeclExclusive, Oxicuda, OffsetAllocator, Rlsf, Mimalloc>(argc, argv);
}
