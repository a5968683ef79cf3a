// libsmp under test, through its C interface as shipped: the default preset, and the preset of exclusive pages where a
// page a block is wanted.
#include "harness.hpp"

#include <smp.h>

namespace {

void must(smp_status status, const char *what) {
    if (status == SMP_SUCCESS) return;
    smp_error error = SMP_ERROR_INIT;
    (void)smp_last_error(&error);
    bench::die(std::string(what) + ": " + error.text);
}

class Smp {
public:
    using Block = smp_allocation;
    static constexpr unsigned can = bench::Streams | bench::CrossFree | bench::Threads;

    Smp(int streams, bench::Progress progress, uint32_t preset) {
        smp_device_desc desc = SMP_DEVICE_DESC_INIT;
        desc.kind = SMP_DEVICE_MODEL;
        desc.flags = progress == bench::Progress::Lazy ? uint32_t(SMP_DEVICE_LAZY) : 0u;
        must(smp_device_open(&desc, &device_), "smp_device_open");
        smp_pool_config config = SMP_POOL_CONFIG_INIT;
        config.preset = preset;
        must(smp_pool_create(device_, &config, &pool_), "smp_pool_create");
        streams_.resize(size_t(streams));
        events_.resize(size_t(streams));
        for (auto &stream : streams_) must(smp_stream_create(device_, 0, &stream), "smp_stream_create");
        for (auto &event : events_) must(smp_event_create(device_, 0, &event), "smp_event_create");
    }

    bool alloc(uint64_t bytes, int stream, Block &out) {
        return smp_alloc_async(pool_, bytes, streams_[size_t(stream)], &out) == SMP_SUCCESS;
    }
    void free(Block &block, uint64_t, int stream) {
        if (smp_free_async(block, streams_[size_t(stream)]) != SMP_SUCCESS) must(SMP_ERROR_INVALID_VALUE, "smp_free_async");
    }
    void order(int from, int to) {
        must(smp_event_record(device_, events_[size_t(from)], streams_[size_t(from)]), "smp_event_record");
        must(smp_stream_wait_event(device_, streams_[size_t(to)], events_[size_t(from)]), "smp_stream_wait_event");
    }
    void operation(const bench::TraceEvent &e, Block *block) {
        smp_stream stream = streams_[e.stream];
        if (e.op == bench::Record || e.op == bench::Wait || e.op == bench::SyncEvent)
            while (events_.size() <= e.slot) {
                events_.push_back(nullptr);
                must(smp_event_create(device_, 0, &events_.back()), "smp_event_create");
            }
        switch (e.op) {
            case bench::Record: must(smp_event_record(device_, events_[e.slot], stream), "smp_event_record"); break;
            case bench::Wait: must(smp_stream_wait_event(device_, stream, events_[e.slot]), "smp_stream_wait_event"); break;
            case bench::Sync: must(smp_stream_synchronize(device_, stream), "smp_stream_synchronize"); break;
            case bench::SyncDevice: must(smp_device_synchronize(device_), "smp_device_synchronize"); break;
            case bench::SyncEvent: must(smp_event_synchronize(events_[e.slot]), "smp_event_synchronize"); break;
            case bench::Submit: must(smp_model_stream_submit(device_, stream, e.size, nullptr), "smp_model_stream_submit"); break;
            case bench::Advance: must(smp_model_stream_advance(device_, stream, e.size, nullptr), "smp_model_stream_advance"); break;
            case bench::User: must(smp_allocation_add_user(*block, stream), "smp_allocation_add_user"); break;
            default: break;
        }
    }
    bench::Figures figures() {
        smp_pool_stats stats = SMP_POOL_STATS_INIT;
        must(smp_pool_get_stats(pool_, &stats), "smp_pool_get_stats");
        bench::Figures f;
        f.reserved_peak = stats.reserved_high;
        // The others' event queries are not counted as device calls either.
        f.device_calls = stats.device_calls - stats.progress_queries;
        f.queries = stats.progress_queries;
        f.metadata = stats.metadata_bytes;
        f.pages = stats.pages;
        f.held = stats.requested + stats.pending_bytes;
        return f;
    }

private:
    smp_device device_ = nullptr;
    smp_pool pool_ = nullptr;
    std::vector<smp_stream> streams_;
    std::vector<smp_event> events_;
};

struct Default : Smp {
    static const char *name() { return "libsmp"; }
    Default(int streams, bench::Progress progress) : Smp(streams, progress, SMP_PRESET_DEFAULT) {}
};

struct Exclusive : Smp {
    static const char *name() { return "libsmp-exclusive"; }
    Exclusive(int streams, bench::Progress progress) : Smp(streams, progress, SMP_PRESET_EXCLUSIVE_PAGES) {}
};

}  // namespace

int main(int argc, char **argv) { return bench::run_all<Default, Exclusive>(argc, argv); }
