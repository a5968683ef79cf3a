// smp.hpp: every class, every form. What it must add to smp.h is ownership (each handle given back exactly once, moves
// included), exceptions that carry status and text, and the shape of a memory resource; nothing else.
#include <smp.hpp>

#include "support.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace {

smp_device_desc lazy_model() {
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_LAZY;
    return desc;
}

smp_device_desc host_backed_model() {
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_HOST_BACKING;
    return desc;
}

// The status an expression throws, SMP_SUCCESS if none.
template <class F>
smp_status thrown_by(F f, const char *word) {
    try {
        f();
    } catch (const smp::error &error) {
        CHECK_HAS(error.what(), word);
        CHECK_HAS(error.what(), smp_status_name(error.status())); // name and text
        CHECK_EQ(error.driver_code(), 0);
        return error.status();
    }
    return SMP_SUCCESS;
}

// ---- error, check, holds -------------------------------------------------------------------------------------------

void an_error_carries_status_and_text_and_is_a_runtime_error() {
    static_assert(std::is_base_of<std::runtime_error, smp::error>::value, "catchable as std::runtime_error");
    CHECK_EQ(thrown_by([] { smp::check(smp_pool_trim_to(nullptr, 0)); }, "null"), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(thrown_by([] { smp::check(SMP_SUCCESS); }, ""), SMP_SUCCESS);
}

void an_error_that_is_not_the_last_failure_has_not_its_text() {
    CHECK(smp_pool_destroy(nullptr) == SMP_ERROR_INVALID_HANDLE); // a failure handled long ago, whose text says "null"
    for (smp_status status : {SMP_NOT_READY, SMP_ERROR_FREED}) {
        try {
            smp::check(status);
            CHECK(false);
        } catch (const smp::error &error) {
            CHECK_EQ(error.status(), status);
            CHECK(std::strstr(error.what(), "null") == nullptr);
            CHECK_HAS(error.what(), smp_status_description(status));
        }
    }
}

void an_event_has_forms_that_do_not_throw() {
    smp::device device(lazy_model());
    smp::stream stream(device);
    smp::event event(nullptr, nullptr);
    CHECK_EQ(event.try_synchronize(), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(smp::event::try_create(device, event), SMP_SUCCESS);
    CHECK_EQ(event.try_record(stream), SMP_SUCCESS);
    CHECK_EQ(event.try_synchronize(), SMP_SUCCESS);
    CHECK(event.query());
}

void an_event_may_become_one_of_another_device() {
    smp::device first(lazy_model());
    smp::device second(lazy_model());
    smp::stream stream(second);
    smp::event event(first);
    smp_event raw = nullptr;
    CHECK_STATUS(smp_event_create(second.get(), 0, &raw), SMP_SUCCESS);
    event.reset(second.get(), raw);
    CHECK_SAME(event.get(), raw);
    CHECK_STATUS(event.try_record(stream), SMP_SUCCESS);
    CHECK_STATUS(event.try_record(nullptr), SMP_SUCCESS); // the default stream of its own device
    event.reset();
    CHECK(!event);
    CHECK_STATUS(smp_event_destroy(raw), SMP_ERROR_DESTROYED);
}

void holds_is_true_false_or_throws() {
    CHECK(smp::holds(SMP_SUCCESS));
    CHECK(!smp::holds(SMP_NOT_READY));
    CHECK(!smp::holds(SMP_UNPROVEN));
    CHECK_EQ(thrown_by([] { (void)smp::holds(smp_is_ready(nullptr)); }, "null"), SMP_ERROR_INVALID_HANDLE);
}

// ---- ownership -----------------------------------------------------------------------------------------------------

void owners_move_and_do_not_copy() {
    static_assert(!std::is_copy_constructible<smp::device>::value && !std::is_copy_assignable<smp::device>::value, "");
    static_assert(!std::is_copy_constructible<smp::pool>::value && !std::is_copy_constructible<smp::stream>::value, "");
    static_assert(!std::is_copy_constructible<smp::event>::value && !std::is_copy_constructible<smp::buffer>::value, "");
    static_assert(!std::is_copy_constructible<smp::allocation>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::device>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::pool>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::stream>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::event>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::allocation>::value, "");
    static_assert(std::is_nothrow_move_assignable<smp::allocation>::value, "");
    static_assert(std::is_nothrow_move_constructible<smp::buffer>::value, "");
    static_assert(std::is_nothrow_move_assignable<smp::buffer>::value, "");
    static_assert(std::is_copy_constructible<smp::memory_resource>::value, "resources are copied freely");
    CHECK(true);
}

void a_device_closes_its_handle_once() {
    smp_device raw = nullptr;
    {
        smp::device device(lazy_model());
        raw = device.get();
        CHECK(static_cast<bool>(device));
        CHECK_EQ(device.info().kind, SMP_DEVICE_MODEL);
        CHECK_EQ(device.info().flags, SMP_DEVICE_LAZY);
        smp::device moved(std::move(device));
        CHECK(!device); // NOLINT: a moved-from owner is empty
        CHECK_SAME(moved.get(), raw);
        smp::device other(lazy_model());
        const smp_device overwritten = other.get();
        other = std::move(moved);
        CHECK_SAME(other.get(), raw);
        smp_device_info info = SMP_DEVICE_INFO_INIT;
        CHECK_STATUS(smp_device_get_info(overwritten, &info), SMP_ERROR_DESTROYED);
        CHECK_STATUS(smp_device_get_info(raw, &info), SMP_SUCCESS);
    }
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    CHECK_STATUS(smp_device_get_info(raw, &info), SMP_ERROR_DESTROYED);
}

void a_device_opens_with_defaults_or_tells_why_not() {
    smp::device automatic;
    CHECK(std::strlen(automatic.info().why) > 0);
    automatic.synchronize();
    CHECK_STATUS(automatic.try_synchronize(), SMP_SUCCESS);
    smp_device_desc bad = lazy_model();
    bad.kind = 99;
    CHECK_EQ(thrown_by([&] { smp::device d(bad); }, "kind"), SMP_ERROR_INVALID_VALUE);
    smp::device out{smp_device(nullptr)};
    CHECK_STATUS(smp::device::try_open(&bad, out), SMP_ERROR_INVALID_VALUE);
    CHECK(!out);
    const smp_device_desc good = lazy_model();
    CHECK_STATUS(smp::device::try_open(&good, out), SMP_SUCCESS);
    CHECK(static_cast<bool>(out));
    CHECK_EQ(thrown_by([] { smp::device empty{smp_device(nullptr)}; (void)empty.info(); }, "null"),
             SMP_ERROR_INVALID_HANDLE);
}

void release_hands_the_handle_over_and_reset_gives_it_back() {
    smp::device device(lazy_model());
    smp::stream stream(device);
    const smp_stream raw = stream.release();
    CHECK(!stream);
    stream.reset(); // nothing to give back
    CHECK_STATUS(smp_stream_synchronize(device.get(), raw), SMP_SUCCESS);
    smp::stream again(raw);
    again.reset();
    CHECK(!again);
    CHECK_STATUS(smp_stream_synchronize(device.get(), raw), SMP_ERROR_DESTROYED);
}

void self_move_keeps_the_handle() {
    smp::device device(lazy_model());
    smp::pool pool(device);
    smp::stream stream(device);
    smp::stream &alias = stream;
    const smp_stream raw = stream.get();
    stream = std::move(alias);
    CHECK_SAME(stream.get(), raw);
    smp::allocation a = pool.allocate(512, stream);
    smp::allocation &same = a;
    a = std::move(same);
    CHECK(static_cast<bool>(a));
    CHECK_EQ(pool.stats().live, 1);
}

// ---- streams and events --------------------------------------------------------------------------------------------

void a_stream_moved_from_is_no_stream_rather_than_the_default_one() {
    smp::device device(lazy_model());
    smp::pool pool(device);
    smp::stream from(device);
    const smp::stream to(std::move(from));
    smp::allocation block;
    CHECK_NULL(from.get()); // NOLINT
    CHECK_STATUS(pool.try_allocate(512, from, 0, block), SMP_ERROR_INVALID_HANDLE);
    CHECK_STATUS(from.try_synchronize(), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(thrown_by([&] { (void)from.query(); }, "not a stream handle"), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(submitted(device.get(), nullptr), 0);
    CHECK_STATUS(pool.try_allocate(512, to, 0, block), SMP_SUCCESS);
}

void streams_and_events_order_work() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s1(device), s2(device, SMP_STREAM_NON_BLOCKING);
    smp::event event(device);
    CHECK(event.query()); // never recorded: complete
    smp::allocation a = pool.allocate(512, s1);
    CHECK(!s1.query());
    CHECK(!a.is_ready());
    CHECK(!a.is_ready_on(s2));
    event.record(s1);
    CHECK_STATUS(event.try_record(s1), SMP_SUCCESS);
    CHECK(!event.query());
    s2.wait(event);
    CHECK(a.is_ready_on(s2));
    event.synchronize();
    CHECK(event.query());
    CHECK(a.is_ready());
    s1.synchronize();
    CHECK(s1.query());
    CHECK_STATUS(s2.try_synchronize(), SMP_SUCCESS);
    smp::stream out{smp_stream(nullptr)};
    CHECK_STATUS(smp::stream::try_create(device, 1u << 20, out), SMP_ERROR_INVALID_VALUE);
    CHECK(!out);
    CHECK_STATUS(smp::stream::try_create(device, 0, out), SMP_SUCCESS);
    CHECK(static_cast<bool>(out));
    CHECK_EQ(thrown_by([&] { smp::stream bad(device, 1u << 20); }, "flags"), SMP_ERROR_INVALID_VALUE);
}

// ---- pools and allocations -----------------------------------------------------------------------------------------

void pools_are_made_of_a_config_a_spec_or_nothing() {
    smp::device device(lazy_model());
    smp::stream stream(device);
    smp::pool by_default(device);
    CHECK_EQ(by_default.stats().entry_count, 1);
    smp::pool by_spec(device, "sliced(page_size=4MiB); direct()");
    CHECK_EQ(by_spec.stats().entry_count, 2);
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    config.preset = SMP_PRESET_CUDA;
    smp::pool by_config(device, config);
    CHECK_EQ(by_config.attribute(SMP_ATTRIBUTE_RELEASE_THRESHOLD), 0);
    by_config.set_attribute(SMP_ATTRIBUTE_RELEASE_THRESHOLD, 4096);
    CHECK_EQ(by_config.attribute(SMP_ATTRIBUTE_RELEASE_THRESHOLD), 4096);
    CHECK_EQ(thrown_by([&] { smp::pool bad(device, "nonsense"); }, "column"), SMP_ERROR_SPEC_SYNTAX);
    CHECK_EQ(thrown_by([&] { by_config.set_attribute(5, 0); }, "read-only"), SMP_ERROR_INVALID_VALUE);
    config.preset = 99;
    smp::pool out{smp_pool(nullptr)};
    CHECK_STATUS(smp::pool::try_create(device, &config, out), SMP_ERROR_INVALID_VALUE);
    CHECK(!out);
    CHECK_STATUS(smp::pool::try_create(device, nullptr, out), SMP_SUCCESS);
    CHECK_EQ(out.stats().entry_count, 1);
    CHECK_EQ(device.info().pools, 4);
}

void a_spec_is_refused_where_it_could_be_read_in_part_only() {
    smp::device device(lazy_model());
    CHECK_EQ(thrown_by([&] { smp::pool bad(device, std::string("direct()\0; nonsense", 19)); }, "column 9"),
             SMP_ERROR_SPEC_SYNTAX);
    // Columns are characters: the one before this NUL has two bytes.
    CHECK_EQ(thrown_by([&] { smp::pool bad(device, std::string("\xC3\xA9\0", 3)); }, "column 2"), SMP_ERROR_SPEC_SYNTAX);
    CHECK_EQ(thrown_by([&] { smp::pool bad(device, nullptr); }, "spec must not be null"), SMP_ERROR_INVALID_VALUE);
    CHECK_EQ(device.info().pools, 0);
    CHECK_EQ(smp::pool(device, std::string("direct()")).stats().entry_count, 1);
}

void an_allocation_frees_itself_once_on_its_stream() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s1(device), s2(device);
    {
        smp::allocation a = pool.allocate(1000, s1);
        CHECK_EQ(a.size(), 1000);
        CHECK_SAME(a.stream(), s1.get());
        CHECK_EQ(a.info().block_size, 1024);
        CHECK_SAME(a.data(), at(BASE));
        smp::allocation b(std::move(a));
        CHECK(!a); // NOLINT
        CHECK_NULL(a.data());
        smp::allocation c;
        CHECK(!c);
        c = std::move(b);
        CHECK_SAME(c.data(), at(BASE));
        CHECK_EQ(pool.stats().live, 1);
    }
    CHECK_EQ(pool.stats().live, 0);
    CHECK_EQ(pool.stats().frees, 1);
    CHECK_EQ(submitted(device.get(), s1), 2); // the allocation and the free
    {
        smp::allocation a = pool.allocate(1000, s1);
        s2.wait([&] { smp::event e(device); e.record(s1); return e; }()); // a destroyed event's wait stays
        a.set_stream(s2);
    }
    CHECK_EQ(pool.stats().frees, 2);
    CHECK_EQ(pool.stats().unordered_frees, 0);
    CHECK_EQ(submitted(device.get(), s2), 2); // the wait and the free
}

void move_assignment_frees_what_was_owned() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    smp::allocation a = pool.allocate(512, s), b = pool.allocate(512, s);
    a = std::move(b);
    CHECK_EQ(pool.stats().frees, 1);
    CHECK_EQ(pool.stats().live, 1);
    CHECK_SAME(a.data(), at(BASE + 512));
}

void free_throws_on_a_bad_stream_and_the_block_is_still_owned() {
    smp::device device(lazy_model()), other(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device), foreign(other);
    smp::allocation a = pool.allocate(512, s);
    CHECK_EQ(thrown_by([&] { a.free(foreign); }, "stream"), SMP_ERROR_WRONG_DEVICE);
    CHECK(static_cast<bool>(a));
    CHECK_STATUS(a.try_free(foreign), SMP_ERROR_WRONG_DEVICE);
    a.free();
    CHECK(!a);
    CHECK_EQ(pool.stats().frees, 1);
    smp::allocation b = pool.allocate(512, s);
    b.free(s);
    CHECK_EQ(pool.stats().live, 0);
}

void an_allocation_whose_stream_is_gone_is_freed_in_host_order() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    {
        smp::allocation a = pool.allocate(512, s);
        s.reset();
    }
    CHECK_EQ(pool.stats().live, 0);
}

void release_gives_the_block_to_the_caller() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s1(device), s2(device);
    smp_allocation raw;
    {
        smp::allocation a = pool.allocate(512, s1, 4096);
        CHECK_EQ(a.info().address % 4096, 0);
        a.add_user(s2);
        raw = a.release();
        CHECK(!a);
    }
    CHECK_EQ(pool.stats().live, 1);
    { smp::allocation back(raw, s1); }
    CHECK_EQ(pool.stats().live, 0);
    CHECK_EQ(pool.stats().frees, 1);
}

void try_allocate_reports_without_throwing() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    smp::allocation out;
    CHECK_STATUS(pool.try_allocate(4 * MIB, s, 0, out), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK(!out);
    CHECK_STATUS(pool.try_allocate(512, s, 0, out), SMP_SUCCESS);
    CHECK(static_cast<bool>(out));
    CHECK_EQ(thrown_by([&] { (void)pool.allocate(4 * MIB, s); }, "4194304"), SMP_ERROR_SIZE_NOT_ACCEPTED);
}

void a_pool_tells_its_figures_and_trims() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB, max_slice_size=1MiB); direct()");
    smp::stream s(device);
    pool.allocate(512, s).free();
    pool.allocate(2 * MIB, s).free();
    CHECK_EQ(pool.entry_stats(0).reserved, 2 * MIB);
    CHECK_EQ(pool.entry_stats(1).reserved, 2 * MIB);
    CHECK_EQ(thrown_by([&] { (void)pool.entry_stats(2); }, "2"), SMP_ERROR_INVALID_VALUE);
    s.synchronize();
    pool.trim_to(2 * MIB);
    CHECK_EQ(pool.stats().reserved, 2 * MIB);
    const std::string text = pool.report(), json = pool.report(SMP_REPORT_JSON);
    CHECK(!text.empty());
    CHECK_EQ(json.front(), '{');
    CHECK_EQ(thrown_by([&] { (void)pool.report(77); }, "format"), SMP_ERROR_INVALID_VALUE);
}

void a_pool_destroyed_before_its_blocks_lets_them_live() {
    smp::device device(host_backed_model());
    smp::stream s(device);
    auto pool = std::make_unique<smp::pool>(device, "sliced(page_size=2MiB)");
    smp::allocation a = pool->allocate(4096, s);
    pool.reset();
    std::memset(a.data(), 7, 4096);
    a.free();
    device.synchronize();
    CHECK_EQ(device.info().reserved, 0);
}

// ---- the memory resource and the buffer ----------------------------------------------------------------------------

void a_resource_allocates_and_deallocates_in_either_order_of_arguments() {
    smp::device device(host_backed_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    smp::memory_resource resource(device, pool);
    void *p = resource.allocate(1000, 4096, s);
    CHECK(p != nullptr);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(p) % 4096, 0);
    std::memset(p, 1, 1000);
    void *q = resource.allocate(s, 1000);
    CHECK(q != p);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(q) % smp::memory_resource::default_alignment, 0);
    CHECK_EQ(pool.stats().live, 2);
    resource.deallocate(p, 1000, 4096, s);
    resource.deallocate(s, q, 1000);
    CHECK_EQ(pool.stats().live, 0);
    void *h = resource.allocate_sync(1000);
    CHECK(h != nullptr);
    resource.deallocate_sync(h, 1000);
    CHECK_EQ(pool.stats().live, 0);
    CHECK_EQ(pool.stats().frees, 3);
    CHECK_SAME(resource.pool(), pool.get());
    CHECK_EQ(thrown_by([&] { (void)resource.allocate(4 * MIB, 256, s); }, "4194304"), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_EQ(thrown_by([&] { (void)resource.allocate(512, 3, s); }, "alignment"), SMP_ERROR_INVALID_VALUE);
}

void resources_are_equal_if_one_may_free_what_the_other_allocates() {
    smp::device device(lazy_model());
    smp::pool a(device), b(device);
    smp::memory_resource of_a(device, a), also_a(device.get(), a.get()), of_b(device, b);
    CHECK(of_a == also_a);
    CHECK(!(of_a != also_a));
    CHECK(of_a != of_b);
    smp::memory_resource copy = of_a;
    CHECK(copy == of_a);
}

void a_resource_deallocates_in_host_order_if_the_stream_is_gone() {
    smp::device device(host_backed_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    smp::memory_resource resource(device, pool);
    void *p = resource.allocate(1000, 256, s);
    const smp_stream gone = s.get();
    s.reset();
    resource.deallocate(p, 1000, 256, gone);
    CHECK_EQ(pool.stats().live, 0);
}

void a_buffer_owns_its_bytes() {
    smp::device device(host_backed_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s1(device), s2(device);
    smp::memory_resource resource(device, pool);
    {
        smp::buffer a(resource, 1000, s1);
        CHECK_EQ(a.size(), 1000);
        CHECK(!a.empty());
        CHECK_SAME(a.stream(), s1.get());
        std::memset(a.data(), 9, a.size());
        smp::buffer b(std::move(a));
        CHECK(a.empty()); // NOLINT
        CHECK_NULL(a.data());
        CHECK_EQ(static_cast<unsigned char *>(b.data())[999], 9);
        smp::buffer c(resource, 2000, s1);
        c = std::move(b);
        CHECK_EQ(pool.stats().live, 1);
        CHECK_EQ(c.size(), 1000);
        c.set_stream(s2);
        CHECK_SAME(c.stream(), s2.get());
        const std::uint64_t before = submitted(device.get(), s2);
        c.reset();
        CHECK_EQ(submitted(device.get(), s2), before + 1); // freed there
        CHECK(c.empty());
        c.reset();
        CHECK_EQ(pool.stats().frees, 2);
    }
    CHECK_EQ(pool.stats().frees, 2);
    CHECK_EQ(pool.stats().live, 0);
    CHECK_EQ(thrown_by([&] { smp::buffer bad(resource, 4 * MIB, s1); }, "4194304"), SMP_ERROR_SIZE_NOT_ACCEPTED);
}

void many_owners_in_a_container_free_everything() {
    smp::device device(lazy_model());
    smp::pool pool(device, "sliced(page_size=2MiB)");
    smp::stream s(device);
    {
        std::vector<smp::allocation> blocks;
        std::set<void *> pointers;
        for (int i = 0; i < 1000; ++i) {
            blocks.push_back(pool.allocate(512, s)); // moves as the vector grows
            pointers.insert(blocks.back().data());
        }
        CHECK_EQ(pointers.size(), 1000);
        CHECK_EQ(pool.stats().live, 1000);
        blocks.erase(blocks.begin() + 100, blocks.begin() + 200);
        CHECK_EQ(pool.stats().live, 900);
    }
    CHECK_EQ(pool.stats().live, 0);
    CHECK_EQ(pool.stats().frees, 1000);
}

} // namespace

TEST_MAIN(RUN(an_error_carries_status_and_text_and_is_a_runtime_error)
          RUN(an_error_that_is_not_the_last_failure_has_not_its_text)
          RUN(an_event_has_forms_that_do_not_throw)
          RUN(an_event_may_become_one_of_another_device)
          RUN(holds_is_true_false_or_throws)
          RUN(owners_move_and_do_not_copy)
          RUN(a_device_closes_its_handle_once)
          RUN(a_device_opens_with_defaults_or_tells_why_not)
          RUN(release_hands_the_handle_over_and_reset_gives_it_back)
          RUN(self_move_keeps_the_handle)
          RUN(a_stream_moved_from_is_no_stream_rather_than_the_default_one)
          RUN(streams_and_events_order_work)
          RUN(pools_are_made_of_a_config_a_spec_or_nothing)
          RUN(a_spec_is_refused_where_it_could_be_read_in_part_only)
          RUN(an_allocation_frees_itself_once_on_its_stream)
          RUN(move_assignment_frees_what_was_owned)
          RUN(free_throws_on_a_bad_stream_and_the_block_is_still_owned)
          RUN(an_allocation_whose_stream_is_gone_is_freed_in_host_order)
          RUN(release_gives_the_block_to_the_caller)
          RUN(try_allocate_reports_without_throwing)
          RUN(a_pool_tells_its_figures_and_trims)
          RUN(a_pool_destroyed_before_its_blocks_lets_them_live)
          RUN(a_resource_allocates_and_deallocates_in_either_order_of_arguments)
          RUN(resources_are_equal_if_one_may_free_what_the_other_allocates)
          RUN(a_resource_deallocates_in_host_order_if_the_stream_is_gone)
          RUN(a_buffer_owns_its_bytes)
          RUN(many_owners_in_a_container_free_everything))
