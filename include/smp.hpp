/*
 * smp.hpp: thin C++17 over smp.h. Every class owns one handle (or refers to one, where it says so), moves but does not
 * copy, and gives the handle back in its destructor. What can fail throws smp::error. Opening a device, creating a stream,
 * an event or a pool, allocating from a pool, freeing an allocation, recording an event, and synchronising with a device, a
 * stream or an event have a noexcept try_ form beside it, which returns the smp_status; of the rest that is the C function on
 * get(). Nothing here keeps state of its own, so smp.h's rules on threads and order hold as they are, and C handles can be
 * mixed in freely.
 *
 * A source compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM means another stream by null, so its classes are others: they lie in an
 * inline namespace. What passes them between sources of both kinds does not link; C handles pass.
 */
#ifndef SMP_HPP
#define SMP_HPP

#include "smp.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "smp.hpp needs C++17; smp.h alone works from C++11"
#endif
#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS) && !defined(_CPPUNWIND)
#error "smp.hpp needs exceptions; smp.h alone works without"
#endif

namespace smp {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#endif

/** A failed call: its status, the text of smp_last_error, and the driver's own code. */
class error : public std::runtime_error {
public:
    /** The failure `status` that this thread just got. One that is not its last carries smp_status_description's text. */
    explicit error(smp_status status) : error(status, last()) {}
    /** A failure in words of its own. */
    explicit error(const smp_error &failure) : error(static_cast<smp_status>(failure.status), failure) {}

    /** The status the call returned. */
    smp_status status() const noexcept { return status_; }
    /** The driver's own code, 0 if none. */
    std::int32_t driver_code() const noexcept { return driver_code_; }

private:
    error(smp_status status, const smp_error &last)
        : std::runtime_error(std::string(smp_status_name(static_cast<std::uint32_t>(status))) + ": " +
                             (last.status == status ? last.text
                                                    : smp_status_description(static_cast<std::uint32_t>(status)))),
          status_(status),
          driver_code_(last.status == status ? last.driver_code : 0) {}

    static smp_error last() noexcept {
        smp_error last = SMP_ERROR_INIT;
        smp_last_error(&last);
        return last;
    }

    smp_status status_;
    std::int32_t driver_code_;
};

/** Throws smp::error unless `status` is SMP_SUCCESS. */
inline void check(smp_status status) {
    if (status != SMP_SUCCESS) {
        throw error(status);
    }
}

/** SMP_SUCCESS is true, SMP_NOT_READY and SMP_UNPROVEN are false, everything else throws smp::error. */
inline bool holds(smp_status status) {
    if (status == SMP_NOT_READY || status == SMP_UNPROVEN) {
        return false;
    }
    check(status);
    return true;
}

namespace detail {

/** Owns a handle; `Close` gives it back. */
template <class Handle, smp_status (*Close)(Handle)>
class owner {
public:
    owner() noexcept = default;
    explicit owner(Handle handle) noexcept : handle_(handle) {}
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    owner(owner &&other) noexcept : handle_(other.release()) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            reset(other.release());
        }
        return *this;
    }
    ~owner() { reset(); }

    /** The C handle; null if there is none. */
    Handle get() const noexcept { return handle_; }
    /** Whether there is a handle. */
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /** Hands the C handle over to the caller. */
    Handle release() noexcept { return std::exchange(handle_, nullptr); }
    /** Gives the handle back and owns `handle` instead. */
    void reset(Handle handle = nullptr) noexcept {
        if (handle_ != nullptr) {
            Close(handle_);
        }
        handle_ = handle;
    }

protected:
    Handle handle_ = nullptr;
};

} // namespace detail

/** A device. Pools and blocks outlive it. */
class device : public detail::owner<smp_device, &smp_device_close> {
public:
    /** A device with SMP_DEVICE_AUTO and every default. */
    device() { check(smp_device_open(nullptr, &handle_)); }
    /** The device described. */
    explicit device(const smp_device_desc &desc) { check(smp_device_open(&desc, &handle_)); }
    /** Takes over a C handle. */
    explicit device(smp_device handle) noexcept : owner(handle) {}

    /** Opens what `desc` describes, the default if it is null, into `out`. */
    [[nodiscard]] static smp_status try_open(const smp_device_desc *desc, device &out) noexcept {
        smp_device handle = nullptr;
        const smp_status status = smp_device_open(desc, &handle);
        if (status == SMP_SUCCESS) {
            out.reset(handle);
        }
        return status;
    }

    /** What it is. */
    smp_device_info info() const {
        smp_device_info info = SMP_DEVICE_INFO_INIT;
        check(smp_device_get_info(handle_, &info));
        return info;
    }
    /** Waits for everything submitted to it. */
    void synchronize() const { check(try_synchronize()); }
    /** As synchronize. */
    smp_status try_synchronize() const noexcept { return smp_device_synchronize(handle_); }
};

/**
 * A created stream. It converts to smp_stream, so that calls take it and a cudaStream_t alike. Moved from, it converts to what is no
 * stream, and calls refuse it: null would be the default stream.
 */
class stream : public detail::owner<smp_stream, &smp_stream_destroy> {
public:
    /** A stream of `device`; `flags` are SMP_STREAM_... bits. */
    explicit stream(const device &device, std::uint32_t flags = 0) {
        check(smp_stream_create(device.get(), flags, &handle_));
    }
    /** Takes over a C handle. */
    explicit stream(smp_stream handle) noexcept : owner(handle) {}

    /** Creates a stream into `out`. */
    [[nodiscard]] static smp_status try_create(const device &device, std::uint32_t flags, stream &out) noexcept {
        smp_stream handle = nullptr;
        const smp_status status = smp_stream_create(device.get(), flags, &handle);
        if (status == SMP_SUCCESS) {
            out.reset(handle);
        }
        return status;
    }

    operator smp_stream() const noexcept {
        return handle_ != nullptr ? handle_ : reinterpret_cast<smp_stream>(~std::uintptr_t{0});
    }

    /** Waits for everything submitted to it. */
    void synchronize() const { check(try_synchronize()); }
    /** As synchronize. */
    smp_status try_synchronize() const noexcept { return smp_stream_synchronize(nullptr, *this); }
    /** Whether everything submitted to it has executed. */
    bool query() const { return holds(smp_stream_query(nullptr, *this)); }
    /** Makes what is submitted from now on wait for the event's point. */
    void wait(smp_event event) const { check(smp_stream_wait_event(nullptr, *this, event)); }
};

/** An event. It converts to smp_event. */
class event : public detail::owner<smp_event, &smp_event_destroy> {
public:
    /** An event of `device`, complete until recorded. */
    explicit event(const device &device) : device_(device.get()) { check(smp_event_create(device_, 0, &handle_)); }

    /** Takes over a C handle, of `device`. */
    event(smp_device device, smp_event handle) noexcept : owner(handle), device_(device) {}

    /** Creates an event into `out`. */
    [[nodiscard]] static smp_status try_create(const device &device, event &out) noexcept {
        smp_event handle = nullptr;
        const smp_status status = smp_event_create(device.get(), 0, &handle);
        if (status == SMP_SUCCESS) {
            out = event(device.get(), handle);
        }
        return status;
    }

    operator smp_event() const noexcept { return handle_; }

    /** Gives the handle back. */
    void reset() noexcept { owner::reset(); }
    /** Gives the handle back and owns `handle`, of `device`, instead. */
    void reset(smp_device device, smp_event handle) noexcept {
        owner::reset(handle);
        device_ = device;
    }

    /** Its point is the position of `stream` now. */
    void record(smp_stream stream) const { check(try_record(stream)); }
    /** As record. */
    smp_status try_record(smp_stream stream) const noexcept { return smp_event_record(device_, handle_, stream); }
    /** Waits for its point. */
    void synchronize() const { check(try_synchronize()); }
    /** As synchronize. */
    smp_status try_synchronize() const noexcept { return smp_event_synchronize(handle_); }
    /** Whether its point has executed. */
    bool query() const { return holds(smp_event_query(handle_)); }

private:
    smp_device device_ = nullptr;
};

/** A block, freed in the order of the stream it was allocated on unless another is set. Moves, does not copy. */
class allocation {
public:
    allocation() noexcept = default;
    /** Takes over a C handle; `stream` is where it will be freed. */
    allocation(smp_allocation handle, smp_stream stream) noexcept : handle_(handle), stream_(stream) {}
    allocation(const allocation &) = delete;
    allocation &operator=(const allocation &) = delete;
    allocation(allocation &&other) noexcept : handle_(other.release()), stream_(other.stream_) {}
    allocation &operator=(allocation &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
            stream_ = other.stream_;
        }
        return *this;
    }
    ~allocation() { reset(); }

    /** The C handle; null if there is none. */
    smp_allocation get() const noexcept { return handle_; }
    /** Whether there is a block. */
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /** Its pointer: smp_allocation_ptr. */
    void *data() const noexcept { return smp_allocation_ptr(handle_); }
    /** All that is known of it. */
    smp_allocation_info info() const {
        smp_allocation_info info = SMP_ALLOCATION_INFO_INIT;
        check(smp_allocation_get_info(handle_, &info));
        return info;
    }
    /** Bytes asked for. */
    std::uint64_t size() const { return info().requested; }
    /** Where it will be freed. */
    smp_stream stream() const noexcept { return stream_; }
    /** Sets where it will be freed; its uses must be ordered before that. */
    void set_stream(smp_stream stream) noexcept { stream_ = stream; }
    /** Tells that `stream` uses it too. */
    void add_user(smp_stream stream) const { check(smp_allocation_add_user(handle_, stream)); }
    /** Whether it has executed on its own stream. */
    bool is_ready() const { return holds(smp_is_ready(handle_)); }
    /** Whether work submitted to `consumer` now is proved to be ordered after it. */
    bool is_ready_on(smp_stream consumer) const { return holds(smp_is_ready_on(handle_, consumer)); }

    /** Frees it in the order of its stream. */
    void free() { check(try_free(stream_)); }
    /** Frees it in the order of `stream`. */
    void free(smp_stream stream) { check(try_free(stream)); }
    /** As free; on failure the block is still owned. */
    smp_status try_free(smp_stream stream) noexcept {
        const smp_status status = smp_free_async(handle_, stream);
        if (status == SMP_SUCCESS) {
            handle_ = nullptr;
        }
        return status;
    }
    /** Hands the C handle over to the caller. */
    smp_allocation release() noexcept { return std::exchange(handle_, nullptr); }
    /** Frees the block, if there is one. If its stream is gone, after everything submitted to the device so far. */
    void reset() noexcept {
        if (handle_ != nullptr && smp_free_async(handle_, stream_) != SMP_SUCCESS) {
            smp_free(handle_);
        }
        handle_ = nullptr;
    }

private:
    smp_allocation handle_ = nullptr;
    smp_stream stream_ = nullptr;
};

/** A pool. Its blocks outlive it. */
class pool : public detail::owner<smp_pool, &smp_pool_destroy> {
public:
    /** A pool of the default preset. */
    explicit pool(const device &device) { check(smp_pool_create(device.get(), nullptr, &handle_)); }
    /** A pool of `config`. */
    pool(const device &device, const smp_pool_config &config) {
        check(smp_pool_create(device.get(), &config, &handle_));
    }
    /** A pool of a specification, such as "preset(cuda)". */
    pool(const device &device, const char *spec) { check(smp_pool_create_from_spec(device.get(), spec, &handle_)); }
    /** As above. */
    pool(const device &device, const std::string &spec) {
        refuse_nul(spec);
        check(smp_pool_create_from_spec(device.get(), spec.c_str(), &handle_));
    }
    /** Takes over a C handle. */
    explicit pool(smp_pool handle) noexcept : owner(handle) {}

    /** Creates a pool of `config`, the default preset if it is null, into `out`. */
    [[nodiscard]] static smp_status try_create(const device &device, const smp_pool_config *config,
                                               pool &out) noexcept {
        smp_pool handle = nullptr;
        const smp_status status = smp_pool_create(device.get(), config, &handle);
        if (status == SMP_SUCCESS) {
            out.reset(handle);
        }
        return status;
    }

    /** Allocates in the order of `stream`; `alignment` 0 is the device's. */
    [[nodiscard]] allocation allocate(std::uint64_t size, smp_stream stream, std::uint64_t alignment = 0) const {
        allocation out;
        check(try_allocate(size, stream, alignment, out));
        return out;
    }
    /** As allocate, into `out`. */
    [[nodiscard]] smp_status try_allocate(std::uint64_t size, smp_stream stream, std::uint64_t alignment,
                                          allocation &out) const noexcept {
        smp_allocation handle = nullptr;
        smp_status status = SMP_SUCCESS;
        if (alignment == 0) {
            status = smp_alloc_async(handle_, size, stream, &handle);
        } else {
            smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
            desc.size = size;
            desc.alignment = alignment;
            desc.stream = stream;
            status = smp_alloc_async_ex(handle_, &desc, &handle);
        }
        if (status == SMP_SUCCESS) {
            out = allocation(handle, stream);
        }
        return status;
    }

    /** Its figures. */
    smp_pool_stats stats() const {
        smp_pool_stats stats = SMP_POOL_STATS_INIT;
        check(smp_pool_get_stats(handle_, &stats));
        return stats;
    }
    /** The figures of its entry `index`. */
    smp_pool_stats entry_stats(std::uint32_t index) const {
        smp_pool_stats stats = SMP_POOL_STATS_INIT;
        check(smp_pool_get_entry_stats(handle_, index, &stats));
        return stats;
    }
    /** An attribute, SMP_ATTRIBUTE_.... */
    std::uint64_t attribute(std::uint32_t attribute) const {
        std::uint64_t value = 0;
        check(smp_pool_get_attribute(handle_, attribute, &value));
        return value;
    }
    /** Sets an attribute. */
    void set_attribute(std::uint32_t attribute, std::uint64_t value) const {
        check(smp_pool_set_attribute(handle_, attribute, value));
    }
    /** Gives free pages back while at least `keep` bytes stay reserved. */
    void trim_to(std::uint64_t keep) const { check(smp_pool_trim_to(handle_, keep)); }
    /** Its report, SMP_REPORT_TEXT or SMP_REPORT_JSON. */
    std::string report(std::uint32_t format = SMP_REPORT_TEXT) const {
        struct text_sink {
            std::string text;
            bool full = false;
        } sink;
        const smp_write_fn write = [](void *user, const char *text, std::uint64_t length) noexcept -> int {
            auto *out = static_cast<text_sink *>(user);
            try {
                out->text.append(text, text + length);
            } catch (...) { // no exception may pass through C
                out->full = true;
            }
            return out->full ? 1 : 0;
        };
        check(smp_pool_report(handle_, format, write, &sink));
        return std::move(sink.text);
    }

private:
    /** What follows a NUL would not be read. */
    static void refuse_nul(const std::string &spec) {
        const std::size_t at = spec.find('\0');
        if (at == std::string::npos) {
            return;
        }
        std::size_t column = 1;
        for (std::size_t i = 0; i < at; ++i) {
            column += (static_cast<unsigned char>(spec[i]) & 0xC0u) != 0x80u ? 1u : 0u; // not inside a character
        }
        smp_error failure = SMP_ERROR_INIT;
        failure.status = SMP_ERROR_SPEC_SYNTAX;
        std::snprintf(failure.text, sizeof failure.text, "pool specification, column %zu: there is a NUL", column);
        throw error(failure);
    }
};

/**
 * A pool in the shape of CCCL's and RMM's memory resources: allocate and deallocate in stream order, and the _sync pair in
 * host order. It refers to a device and a pool and owns neither: both must outlive every block. Copies are equal.
 */
class memory_resource {
public:
    /** CUDA's documented alignment, what a caller that names none gets. */
    static constexpr std::size_t default_alignment = 256;

    memory_resource(smp_device device, smp_pool pool) noexcept : device_(device), pool_(pool) {}
    memory_resource(const smp::device &device, const smp::pool &pool) noexcept
        : memory_resource(device.get(), pool.get()) {}

    /** Allocates in the order of `stream`. Throws smp::error. */
    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment, smp_stream stream) {
        return allocate_on(&smp_alloc_async_ex, bytes, alignment, stream);
    }
    /** As above, in CCCL's order of arguments. */
    [[nodiscard]] void *allocate(smp_stream stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        return allocate(bytes, alignment, stream);
    }
    /** Allocates in host order: usable at once from any stream. Throws smp::error. */
    [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return allocate_on(&smp_alloc_ex, bytes, alignment, nullptr);
    }

    /** Frees in the order of `stream`; if that fails (the stream is gone, say), in host order. */
    void deallocate(void *ptr, std::size_t, std::size_t, smp_stream stream) noexcept {
        if (smp_free_ptr_async(device_, ptr, stream) != SMP_SUCCESS) {
            smp_free_ptr(device_, ptr);
        }
    }
    /** As above, in CCCL's order of arguments. */
    void deallocate(smp_stream stream, void *ptr, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        deallocate(ptr, bytes, alignment, stream);
    }
    /** Frees in host order. */
    void deallocate_sync(void *ptr, std::size_t, std::size_t = default_alignment) noexcept {
        smp_free_ptr(device_, ptr);
    }

    /** The pool it allocates from. */
    smp_pool pool() const noexcept { return pool_; }
    /** Whether what one allocates the other may free. */
    friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept {
        return a.device_ == b.device_ && a.pool_ == b.pool_;
    }
    friend bool operator!=(const memory_resource &a, const memory_resource &b) noexcept { return !(a == b); }

private:
    using allocate_fn = smp_status (*)(smp_pool, const smp_alloc_desc *, smp_allocation *);

    void *allocate_on(allocate_fn function, std::size_t bytes, std::size_t alignment, smp_stream stream) {
        smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
        desc.size = bytes;
        desc.alignment = alignment;
        desc.stream = stream;
        smp_allocation handle = nullptr;
        check(function(pool_, &desc, &handle));
        return smp_allocation_ptr(handle);
    }

    smp_device device_;
    smp_pool pool_;
};

/** Bytes from a memory_resource, freed in the order of a stream. Moves, does not copy. */
class buffer {
public:
    /** Allocates `bytes` in the order of `stream`. Throws smp::error. */
    buffer(memory_resource resource, std::size_t bytes, smp_stream stream,
           std::size_t alignment = memory_resource::default_alignment)
        : resource_(resource),
          data_(resource_.allocate(bytes, alignment, stream)),
          size_(bytes),
          alignment_(alignment),
          stream_(stream) {}
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    buffer(buffer &&other) noexcept
        : resource_(other.resource_),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          alignment_(other.alignment_),
          stream_(other.stream_) {}
    buffer &operator=(buffer &&other) noexcept {
        if (this != &other) {
            reset();
            resource_ = other.resource_;
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
            alignment_ = other.alignment_;
            stream_ = other.stream_;
        }
        return *this;
    }
    ~buffer() { reset(); }

    /** Its bytes; null after a move or a reset. */
    void *data() const noexcept { return data_; }
    /** How many. */
    std::size_t size() const noexcept { return size_; }
    /** Whether there are none. */
    bool empty() const noexcept { return size_ == 0; }
    /** Where it will be freed. */
    smp_stream stream() const noexcept { return stream_; }
    /** Sets where it will be freed; its uses must be ordered before that. */
    void set_stream(smp_stream stream) noexcept { stream_ = stream; }
    /** Frees it now, in the order of its stream. */
    void reset() noexcept {
        if (data_ != nullptr) {
            resource_.deallocate(data_, size_, alignment_, stream_);
        }
        data_ = nullptr;
        size_ = 0;
    }

private:
    memory_resource resource_;
    void *data_;
    std::size_t size_;
    std::size_t alignment_;
    smp_stream stream_;
};

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
} // namespace per_thread_default_stream
#endif
} // namespace smp

#endif /* SMP_HPP */
