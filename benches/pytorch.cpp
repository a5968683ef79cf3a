// PyTorch's native caching policy, simulated from its published rules, for its peak of reserved bytes only: sizes in
// multiples of 512 B; up to 1 MiB from segments of 2 MiB; below 10 MiB from segments of 20 MiB; larger ones from segments
// of their own size rounded up to 2 MiB; best fit; a block is split when the rest is at least 512 B (small) or above 1 MiB
// (large); free neighbours merge; a stream's blocks are its own. It is written for clarity, so its time says nothing.
#include "harness.hpp"

#include <set>
#include <tuple>

namespace {

class Native {
    struct Piece {
        uint64_t address, size;
        bool free, small;
        int stream;
        Piece *before = nullptr, *after = nullptr;
    };
    struct Best {
        bool operator()(const Piece *a, const Piece *b) const {
            return std::tie(a->size, a->address) < std::tie(b->size, b->address);
        }
    };
    using Shelf = std::set<Piece *, Best>;

public:
    static const char *name() { return "pytorch"; }
    using Block = Piece *;
    static constexpr unsigned can = bench::Streams;

    Native(int streams, bench::Progress) : shelves_(size_t(streams) * 2) {}

    bool alloc(uint64_t bytes, int stream, Block &out) {
        uint64_t size = std::max<uint64_t>((bytes + 511) / 512 * 512, 512);
        bool small = size <= MIB;
        Shelf &shelf = shelf_of(stream, small);
        Piece key{0, size, true, small, stream};
        auto found = shelf.lower_bound(&key);
        Piece *piece;
        if (found != shelf.end()) {
            piece = *found;
            shelf.erase(found);
        } else {
            uint64_t segment = small ? 2 * MIB : size < 10 * MIB ? 20 * MIB : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
            piece = new Piece{next_, segment, true, small, stream};
            next_ += segment;
            figures_.reserved_peak += segment;
            ++figures_.device_calls;
        }
        uint64_t rest = piece->size - size;
        if (small ? rest >= 512 : rest > MIB) {
            auto *tail = new Piece{piece->address + size, rest, true, small, stream, piece, piece->after};
            if (tail->after) tail->after->before = tail;
            piece->after = tail;
            piece->size = size;
            shelf.insert(tail);
        }
        piece->free = false;
        out = piece;
        return true;
    }

    void free(Block &block, uint64_t, int) {
        Piece *piece = block;
        Shelf &shelf = shelf_of(piece->stream, piece->small);
        piece->free = true;
        if (piece->after && piece->after->free) {
            shelf.erase(piece->after);
            join(piece);
        }
        if (piece->before && piece->before->free) {
            piece = piece->before;
            shelf.erase(piece);
            join(piece);
        }
        shelf.insert(piece);
    }

    void order(int, int) {}
    bench::Figures figures() { return figures_; }

private:
    static constexpr uint64_t MIB = 1 << 20;

    Shelf &shelf_of(int stream, bool small) { return shelves_[size_t(stream) * 2 + (small ? 1 : 0)]; }

    static void join(Piece *piece) {
        Piece *gone = piece->after;
        piece->size += gone->size;
        piece->after = gone->after;
        if (piece->after) piece->after->before = piece;
        delete gone;
    }

    std::vector<Shelf> shelves_;
    uint64_t next_ = 0;
    bench::Figures figures_ = [] {
        bench::Figures f;
        f.reserved_peak = f.device_calls = 0;
        return f;
    }();
};

}  // namespace

int main(int argc, char **argv) { return bench::run_all<Native>(argc, argv); }
