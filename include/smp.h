/*
 * smp.h: a stream-ordered GPU memory pool behind a C interface.
 *
 * Generated from the Rust declarations; do not edit. Regenerate with
 *     SMP_UPDATE_HEADER=1 cargo test --test header
 *
 * Conventions
 * - A function returns smp_status, SMP_SUCCESS being 0, unless it cannot fail. After a failure smp_last_error() tells
 *   this thread what was wrong. SMP_NOT_READY and SMP_UNPROVEN are answers, not failures; they leave no text.
 * - "Errors:" lists what a function answers of its own. On a CUDA device each may also answer SMP_ERROR_DRIVER,
 *   SMP_ERROR_DEVICE_POISONED, and for a capturing stream SMP_ERROR_CAPTURING; any device's calls answer SMP_ERROR_FORKED in the
 *   child of a process that had opened a CUDA device; and a fault inside the library is SMP_ERROR_INTERNAL.
 * - Out-parameters come last and are written on success only. The one exception is CUDA's: an allocation call that
 *   fails sets its out-parameter to null.
 * - When the system gives the process no more memory of its own, what grows with blocks, streams and events is refused with
 *   SMP_ERROR_OUT_OF_MEMORY; making pools, noting accesses, traces and other small lists end the process.
 * - Sizes are bytes. SMP_NONE stands for "none", "never" or "no limit", as each field says.
 * - Handles are values, never dereferenced. Any value at any time (null, stale, of another kind, used on another
 *   thread) gets an error and changes nothing. Raw pointers cannot carry that promise once their memory is reused.
 * - A struct that may grow starts with struct_size; set it with the struct's _INIT macro. It is at least the struct's size in
 *   the first version that had it and at most 4096. Bytes the library does not know and reserved fields must be zero in what
 *   you pass; in what you get they are zeroed.
 * - Every function may be called from any thread at any time. Where a call takes a stream, it takes effect in that
 *   stream's order. The legacy default stream is NULL or SMP_STREAM_LEGACY, the calling thread's default stream
 *   SMP_STREAM_PER_THREAD; which device's is meant follows from the device, pool or allocation beside it.
 * - Callbacks take `void *user` first and must neither throw nor longjmp.
 * - No function is a cancellation point (pthread_cancel, deferred): a cancellation takes effect at the program's own next one.
 *   Callbacks, too, run with cancellation put off.
 */

#ifndef SMP_H
#define SMP_H

#include <stdint.h>

/** The version of this header. smp_version() gives the library's, as SMP_VERSION is made. */
#define SMP_VERSION_MAJOR 0
#define SMP_VERSION_MINOR 1
#define SMP_VERSION_PATCH 0
#define SMP_VERSION (SMP_VERSION_MAJOR * 10000 + SMP_VERSION_MINOR * 100 + SMP_VERSION_PATCH)
#define SMP_VERSION_STRING "0.1.0"

/** None, never, no limit: what each field says. */
#define SMP_NONE UINT64_MAX
/** The value the preset has. */
#define SMP_DEFAULT (UINT64_MAX - 1u)

/** Marks calls whose result must not be dropped. Define it empty before inclusion to turn the warning off. */
#ifndef SMP_NODISCARD
#if defined(__cplusplus) && __cplusplus >= 201703L
#define SMP_NODISCARD [[nodiscard]]
#elif defined(__GNUC__) || defined(__clang__)
#define SMP_NODISCARD __attribute__((warn_unused_result))
#else
#define SMP_NODISCARD
#endif
#endif

/** A source of pages and of stream progress. */
typedef struct smp_device_st *smp_device;
/** Pages, and the policy that carves them. */
typedef struct smp_pool_st *smp_pool;
/** The part of a page that serves one allocation. */
typedef struct smp_allocation_st *smp_allocation;
/** A stream: pass cudaStream_t or CUstream as they are. */
typedef struct CUstream_st *smp_stream;
/** An event: pass cudaEvent_t or CUevent as they are. */
typedef struct CUevent_st *smp_event;

/* What the macros below are made of: casts as either language wants them. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define SMP_CAST_(type, value) static_cast<type>(value)
#define SMP_NULL_(type) nullptr
#define SMP_NAMED_(type, number) reinterpret_cast<type>(static_cast<uintptr_t>(number))
#else
#define SMP_CAST_(type, value) ((type)(value))
#define SMP_NULL_(type) ((type)0)
#define SMP_NAMED_(type, number) ((type)(number))
#endif

/** The legacy default stream, as CU_STREAM_LEGACY. */
#define SMP_STREAM_LEGACY SMP_NAMED_(smp_stream, 0x1)
/** The calling thread's default stream, as CU_STREAM_PER_THREAD; the thread's own until it has ended, its destructors included. */
#define SMP_STREAM_PER_THREAD SMP_NAMED_(smp_stream, 0x2)

/** Initialisers. Each sets struct_size and every default. */
#define SMP_DEVICE_DESC_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_device_desc)), SMP_DEVICE_AUTO, 0u, 0u, 0u, 0u, SMP_NONE, SMP_NULL_(void *), SMP_PAGES_PLAIN, 0u, { 0u, 0u } }
#define SMP_DEVICE_INFO_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_device_info)), 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, { 0 }, { 0 } }
#define SMP_POOL_CONFIG_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_pool_config)), SMP_PRESET_DEFAULT, SMP_POLICY_ALL, 0u, SMP_NULL_(const smp_pool_entry *), 0u, \
      SMP_DEFAULT, SMP_NONE, { 0u, 0u, 0u, 0u } }
#define SMP_POOL_STATS_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_pool_stats)), 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, \
      0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u }
#define SMP_ALLOC_DESC_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_alloc_desc)), 0u, 0u, 0u, SMP_NULL_(smp_stream), SMP_NULL_(const char *), { 0u, 0u, 0u, 0u } }
#define SMP_ALLOCATION_INFO_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_allocation_info)), 0u, 0u, 0u, 0u, SMP_NULL_(void *), 0u, 0u, 0u, 0u, 0u, 0u, SMP_NULL_(smp_stream), \
      SMP_NULL_(smp_pool), SMP_NULL_(smp_device), { 0 } }
#define SMP_STREAM_INFO_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_stream_info)), 0u, 0u, 0u, 0u, 0u }
#define SMP_ACCESS_VERDICT_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_access_verdict)), 0u, 0u, 0u, SMP_NULL_(smp_allocation), 0u, 0u, 0u, 0u, 0u, { 0 } }
#define SMP_REPLAY_OPTIONS_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_replay_options)), 0u, SMP_NULL_(const char *), 0u, SMP_NULL_(smp_replay_progress_fn), SMP_NULL_(void *), 0u, 0u, \
      SMP_NULL_(smp_write_fn), SMP_NULL_(void *), { 0u, 0u, 0u, 0u } }
#define SMP_REPLAY_RESULT_INIT \
    { SMP_CAST_(uint32_t, sizeof(smp_replay_result)), 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, { 0u, 0u } }
#define SMP_ERROR_INIT { SMP_CAST_(uint32_t, sizeof(smp_error)), 0u, 0, 0u, { 0 } }

/** Initialisers of pool entries: the fields that matter to a kind, everything else at its default. */
#define SMP_ENTRY_EXCLUSIVE_INIT(max_alloc_size) \
    { SMP_ENTRY_EXCLUSIVE, 0u, 0u, (max_alloc_size), SMP_NONE, SMP_NONE, SMP_NONE, SMP_NONE, 0u, 0u, { 0u, 0u } }
#define SMP_ENTRY_DIRECT_INIT(reclaim_at) \
    { SMP_ENTRY_DIRECT, 0u, 0u, 0u, SMP_NONE, SMP_NONE, SMP_NONE, (reclaim_at), 0u, 0u, { 0u, 0u } }
#define SMP_ENTRY_SLICED_INIT(page_size, max_slice_size, max_pool_size) \
    { SMP_ENTRY_SLICED, 0u, (page_size), 0u, (max_slice_size), (max_pool_size), SMP_NONE, SMP_NONE, \
      0u, 0u, { 0u, 0u } }
#define SMP_ENTRY_CUDA_INIT(max_pool_size) \
    { SMP_ENTRY_CUDA, 0u, 0u, 0u, SMP_NONE, (max_pool_size), SMP_NONE, SMP_NONE, 0u, 0u, { 0u, 0u } }
#define SMP_ENTRY_MAPPED_INIT(max_pool_size) \
    { SMP_ENTRY_MAPPED, 0u, 0u, 0u, SMP_NONE, (max_pool_size), SMP_NONE, SMP_NONE, SMP_MAPPED_RANGE_SIZE, \
      SMP_MAPPED_CHUNK_SIZE, { 0u, 0u } }
/** Range and chunk size of SMP_ENTRY_MAPPED_INIT: 64 GiB and 2 MiB. */
#define SMP_MAPPED_RANGE_SIZE (SMP_CAST_(uint64_t, 64u) << 30)
#define SMP_MAPPED_CHUNK_SIZE (SMP_CAST_(uint64_t, 2u) << 20)

/* Callers compiled for per-thread default streams mean that stream by NULL, as with cuda.h. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define smp_alloc_async smp_alloc_async_ptsz
#define smp_alloc_async_ex smp_alloc_async_ex_ptsz
#define smp_free_async smp_free_async_ptsz
#define smp_alloc_ptr_async smp_alloc_ptr_async_ptsz
#define smp_free_ptr_async smp_free_ptr_async_ptsz
#define smp_allocation_add_user smp_allocation_add_user_ptsz
#define smp_is_ready_on smp_is_ready_on_ptsz
#define smp_stream_synchronize smp_stream_synchronize_ptsz
#define smp_stream_query smp_stream_query_ptsz
#define smp_stream_release smp_stream_release_ptsz
#define smp_stream_get_info smp_stream_get_info_ptsz
#define smp_stream_wait_event smp_stream_wait_event_ptsz
#define smp_event_record smp_event_record_ptsz
#define smp_note_event_record smp_note_event_record_ptsz
#define smp_note_stream_wait smp_note_stream_wait_ptsz
#define smp_note_stream_synchronized smp_note_stream_synchronized_ptsz
#define smp_note_access smp_note_access_ptsz
#define smp_model_stream_submit smp_model_stream_submit_ptsz
#define smp_model_stream_advance smp_model_stream_advance_ptsz
#endif

/**
 * The access reads.
 */
#define SMP_ACCESS_READ 1

/**
 * The access writes.
 */
#define SMP_ACCESS_WRITE 2

/**
 * The access reads and writes.
 */
#define SMP_ACCESS_READ_WRITE 3

/**
 * The order holds.
 */
#define SMP_ORDER_PROVED 1

/**
 * The order does not hold.
 */
#define SMP_ORDER_REFUTED 2

/**
 * The library cannot see whether it holds.
 */
#define SMP_ORDER_UNPROVEN 3

/**
 * The access is not ordered after the allocation.
 */
#define SMP_FAULT_BEFORE_ALLOCATION 1

/**
 * The block has been freed.
 */
#define SMP_FAULT_AFTER_FREE 2

/**
 * The access races an earlier one: one of the two writes, and neither is ordered after the other.
 */
#define SMP_FAULT_RACE 4

/**
 * The bytes reach past the allocation.
 */
#define SMP_FAULT_OUT_OF_BOUNDS 8

/**
 * No allocation holds the first byte.
 */
#define SMP_FAULT_UNKNOWN_MEMORY 16

/**
 * Served by a block freed on the same stream.
 */
#define SMP_REASON_SAME_STREAM 0

/**
 * Served by a block whose free the host has observed.
 */
#define SMP_REASON_OBSERVED 1

/**
 * Served by a block whose free precedes by dependency (policy 1).
 */
#define SMP_REASON_EVENT 2

/**
 * Served by a block whose free had executed (policy 2).
 */
#define SMP_REASON_OPPORTUNISTIC 3

/**
 * Served by a block whose free the stream was made to wait for (policy 3).
 */
#define SMP_REASON_INTERNAL 4

/**
 * Served by memory never used before.
 */
#define SMP_REASON_FRESH 5

/**
 * The longest name of an allocation, bytes without the NUL.
 */
#define SMP_NAME_MAX 63

/**
 * The default: SMP_PRESET_MAPPED.
 */
#define SMP_PRESET_DEFAULT 0

/**
 * Size buckets of exclusive pages.
 */
#define SMP_PRESET_EXCLUSIVE_PAGES 1

/**
 * Acts as the CUDA driver's own pool: 32 MiB pages, release threshold 0.
 */
#define SMP_PRESET_CUDA 2

/**
 * Every block from the driver's own pool; CUDA device only.
 */
#define SMP_PRESET_DRIVER 3

/**
 * One mapped entry; on a device that cannot map, SMP_PRESET_SUB_SLICES.
 */
#define SMP_PRESET_MAPPED 4

/**
 * A ladder of sliced entries with an exclusive tail.
 */
#define SMP_PRESET_SUB_SLICES 5

/**
 * A page per allocation; a free page may serve a smaller request.
 */
#define SMP_ENTRY_EXCLUSIVE 1

/**
 * A page per allocation, reused by exact (rounded) size.
 */
#define SMP_ENTRY_DIRECT 2

/**
 * Blocks carved from pages, split and merged.
 */
#define SMP_ENTRY_SLICED 3

/**
 * As the CUDA driver's own pool: 32 MiB pages, larger requests get a page of their own.
 */
#define SMP_ENTRY_CUDA 4

/**
 * Blocks carved from one range of addresses, under which chunks of memory are mapped as they are needed, and moved when
 * they are idle. On a device that cannot map, the entry becomes a ladder of sliced ones when the pool is created.
 */
#define SMP_ENTRY_MAPPED 5

/**
 * Policy 1: reuse what precedes by events and other dependencies (attribute 1).
 */
#define SMP_POLICY_EVENT_DEPENDENCIES 1

/**
 * Policy 2: reuse what has executed already (attribute 2).
 */
#define SMP_POLICY_OPPORTUNISTIC 2

/**
 * Policy 3: make the stream wait when nothing else serves, and before a mapped entry holds more than about twice what was
 * ever used (attribute 3).
 */
#define SMP_POLICY_INTERNAL_DEPENDENCIES 4

/**
 * All three policies.
 */
#define SMP_POLICY_ALL 7

/**
 * Synchronise the device before an allocation fails.
 */
#define SMP_POOL_SYNC_ON_OOM 1

/**
 * CUDA: do not ask the driver on every call whether the stream is capturing. A call on a capturing stream is then
 * undefined.
 */
#define SMP_POOL_WAIVE_CAPTURE_CHECK 2

/**
 * The CUDA device if it works, else the model device; smp_device_info says which and why.
 */
#define SMP_DEVICE_AUTO 0

/**
 * The model device: no GPU; streams run when told to.
 */
#define SMP_DEVICE_MODEL 1

/**
 * A CUDA device; without a working driver the open fails. The driver is looked for at run time: the library that the
 * environment variable SMP_CUDA_LIBRARY names, else libcuda.so.1.
 */
#define SMP_DEVICE_CUDA 2

/**
 * Model device: streams run only when advanced or synchronised, not at submission.
 */
#define SMP_DEVICE_LAZY 1

/**
 * Model device: blocks are host memory that can be read and written.
 */
#define SMP_DEVICE_HOST_BACKING 2

/**
 * The device cannot map memory under reserved addresses, so that mapped entries become ladders of sliced ones. The model
 * device can, unless this is asked for.
 */
#define SMP_DEVICE_NO_MAPPING 4

/**
 * CUDA: a stream's identity is verified with the driver on every call, so that one destroyed without smp_stream_release,
 * and its handle given out again, is noticed. The environment variable SMP_CHECKED=1 asks for the same.
 */
#define SMP_DEVICE_CHECKED 8

/**
 * CUDA: pages by cuMemAlloc.
 */
#define SMP_PAGES_PLAIN 0

/**
 * CUDA: pages from a memory pool of the driver's, which gets them faster a second time.
 */
#define SMP_PAGES_DRIVER_POOL 1

/**
 * CUDA: pages by virtual memory management.
 */
#define SMP_PAGES_VIRTUAL_MEMORY 2

/**
 * Nothing is logged.
 */
#define SMP_LOG_OFF 0

/**
 * Faults: a poisoned device, a fault inside the library.
 */
#define SMP_LOG_ERROR 1

/**
 * The caller's likely mistakes (a free not ordered after its allocation, a race) and a page release the device refused.
 */
#define SMP_LOG_WARNING 2

/**
 * What happened: pools made, pages given back.
 */
#define SMP_LOG_INFO 3

/**
 * Int: reuse what precedes by events and other dependencies. Default 1.
 */
#define SMP_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES 1

/**
 * Int: reuse what has executed already. Default 1.
 */
#define SMP_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC 2

/**
 * Int: make the stream wait when nothing else serves. Default 1.
 */
#define SMP_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES 3

/**
 * Bytes reserved above which a synchronise gives pages back; SMP_NONE: never.
 */
#define SMP_ATTRIBUTE_RELEASE_THRESHOLD 4

/**
 * Bytes of pages held. Read-only.
 */
#define SMP_ATTRIBUTE_RESERVED_CURRENT 5

/**
 * The most bytes of pages held since it was last set to 0; nothing else may be set.
 */
#define SMP_ATTRIBUTE_RESERVED_HIGH 6

/**
 * Bytes no one else can have because of live blocks. Read-only.
 */
#define SMP_ATTRIBUTE_USED_CURRENT 7

/**
 * The most bytes used since it was last set to 0; nothing else may be set.
 */
#define SMP_ATTRIBUTE_USED_HIGH 8

/**
 * Cap on reserved bytes: the sum of the entries' max_pool_size, SMP_NONE if one of them has none. Read-only.
 */
#define SMP_ATTRIBUTE_MAX_POOL_SIZE 13

/**
 * A table for people.
 */
#define SMP_REPORT_TEXT 0

/**
 * One JSON object.
 */
#define SMP_REPORT_JSON 1

/**
 * Not ordered by the legacy default stream.
 */
#define SMP_STREAM_NON_BLOCKING 1

/**
 * Model device: runs only when advanced or synchronised, whatever the device's default.
 */
#define SMP_STREAM_LAZY 2

/**
 * Model device: runs at submission, whatever the device's default.
 */
#define SMP_STREAM_EAGER 4

/**
 * Recorded lines start with their time, in nanoseconds since recording began.
 */
#define SMP_TRACE_TIME 1

/**
 * Do not compare with what was recorded: the device answers for itself, within the recorded capacity. This is also the
 * way to time a replay, since a compared one serialises its calls.
 */
#define SMP_REPLAY_UNVERIFIED 1

/**
 * How a call ended. The numbers are given once and never reused.
 */
typedef enum smp_status {
    /**
     * Done.
     */
    SMP_SUCCESS = 0,
    /**
     * An argument is out of its range: a null pointer, a bad alignment, an unknown or read-only attribute.
     */
    SMP_ERROR_INVALID_VALUE = 1,
    /**
     * The handle is null, of another kind, or was never given out.
     */
    SMP_ERROR_INVALID_HANDLE = 2,
    /**
     * The handle was good once; its object has been destroyed, closed or released.
     */
    SMP_ERROR_DESTROYED = 3,
    /**
     * The allocation has been freed.
     */
    SMP_ERROR_FREED = 4,
    /**
     * The device refused a page and nothing free could serve; or, in a pool as CUDA's own, the cap was in the way.
     */
    SMP_ERROR_OUT_OF_MEMORY = 5,
    /**
     * Only the caps of the pool's entries were in the way.
     */
    SMP_ERROR_CAPACITY_EXCEEDED = 6,
    /**
     * No entry of the pool accepts this size.
     */
    SMP_ERROR_SIZE_NOT_ACCEPTED = 7,
    /**
     * Not a failure: the work has not executed yet, or the order asked for does not hold.
     */
    SMP_NOT_READY = 8,
    /**
     * Not a failure: the library cannot see whether the order holds.
     */
    SMP_UNPROVEN = 9,
    /**
     * This build, device or driver cannot do it.
     */
    SMP_ERROR_NOT_SUPPORTED = 10,
    /**
     * A pool's configuration is refused; the text names the field.
     */
    SMP_ERROR_INVALID_CONFIG = 11,
    /**
     * A pool specification does not parse; the text names the column.
     */
    SMP_ERROR_SPEC_SYNTAX = 12,
    /**
     * The handle belongs to another device than the call's.
     */
    SMP_ERROR_WRONG_DEVICE = 13,
    /**
     * The stream is capturing.
     */
    SMP_ERROR_CAPTURING = 14,
    /**
     * A sticky device error: nothing is released or reused on the device's word any more.
     */
    SMP_ERROR_DEVICE_POISONED = 15,
    /**
     * This process was forked from one that had opened a CUDA device: no call is served in it, on no device. After a fork
     * without one no call answers this. Devices opened in the child then work, wherever in a call other threads were, but a trace
     * started there may hang if another thread was starting or stopping one; so may a call on a model device of the parent's if another
     * thread was in a call at the fork.
     */
    SMP_ERROR_FORKED = 16,
    /**
     * The call is not allowed here, such as an allocation inside the pool's out-of-memory callback.
     */
    SMP_ERROR_NOT_PERMITTED = 17,
    /**
     * Reading or writing a file failed.
     */
    SMP_ERROR_IO = 18,
    /**
     * A trace is malformed; the text names file and line.
     */
    SMP_ERROR_TRACE_SYNTAX = 19,
    /**
     * A driver call failed; smp_error holds the driver's own code.
     */
    SMP_ERROR_DRIVER = 20,
    /**
     * A fault inside the library.
     */
    SMP_ERROR_INTERNAL = 21,
    /**
     * A replayed trace and the model disagree; the text names the line.
     */
    SMP_ERROR_REPLAY_MISMATCH = 22,
} smp_status;

/**
 * What is found about an access. Start from SMP_ACCESS_VERDICT_INIT.
 */
typedef struct smp_access_verdict {
    /**
     * Set by SMP_ACCESS_VERDICT_INIT.
     */
    uint32_t struct_size;
    /**
     * SMP_ORDER_PROVED: all is well. SMP_ORDER_REFUTED: see faults. SMP_ORDER_UNPROVEN: nothing refuted, but not all
     * proved; never on the model device.
     */
    uint32_t order;
    /**
     * SMP_FAULT_... bits: what is wrong.
     */
    uint32_t faults;
    /**
     * With SMP_FAULT_RACE: SMP_ACCESS_... of the other access; else 0.
     */
    uint32_t other_access;
    /**
     * The allocation that holds the bytes; null if none does.
     */
    smp_allocation allocation;
    /**
     * Bytes from the allocation's start to the access.
     */
    uint64_t offset;
    /**
     * The accessing stream, in order of creation.
     */
    uint64_t stream_id;
    /**
     * The access's place in that stream.
     */
    uint64_t seq;
    /**
     * The stream of the point that should precede and does not (the allocation, or the other access); SMP_NONE if none.
     */
    uint64_t missing_stream_id;
    /**
     * That point's place in its stream.
     */
    uint64_t missing_seq;
    /**
     * The verdict in words, with what is missing; empty if all is well. UTF-8, ends with a NUL, cut if longer.
     */
    char text[256];
} smp_access_verdict;

/**
 * What to allocate. Start from SMP_ALLOC_DESC_INIT.
 */
typedef struct smp_alloc_desc {
    /**
     * Set by SMP_ALLOC_DESC_INIT.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t flags;
    /**
     * Bytes; 0 gives a distinct block of one alignment unit.
     */
    uint64_t size;
    /**
     * A power of two up to the device's page granularity; 0: the device's alignment.
     */
    uint64_t alignment;
    /**
     * The stream; must be null in smp_alloc_ex.
     */
    smp_stream stream;
    /**
     * Null, or at most SMP_NAME_MAX bytes of UTF-8; copied.
     */
    const char *name;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} smp_alloc_desc;

/**
 * What is known of a live allocation. Start from SMP_ALLOCATION_INFO_INIT.
 */
typedef struct smp_allocation_info {
    /**
     * Set by SMP_ALLOCATION_INFO_INIT.
     */
    uint32_t struct_size;
    /**
     * The entry of the pool that served it.
     */
    uint32_t entry;
    /**
     * SMP_REASON_...: why this block could serve.
     */
    uint32_t reason;
    /**
     * 1 if made by smp_alloc, which belongs to no stream; else 0.
     */
    uint32_t host_ordered;
    /**
     * The model address: stable, unique, the same on every device.
     */
    uint64_t address;
    /**
     * What smp_allocation_ptr gives.
     */
    void *pointer;
    /**
     * The CUdeviceptr on the CUDA device, the host address with host backing, else 0.
     */
    uint64_t device_pointer;
    /**
     * Bytes asked for.
     */
    uint64_t requested;
    /**
     * The model address where its block begins; below `address` only if a larger alignment was asked for.
     */
    uint64_t block_address;
    /**
     * Bytes of its block.
     */
    uint64_t block_size;
    /**
     * Which stream of the device, in order of creation; 0 is the legacy default stream.
     */
    uint64_t stream_id;
    /**
     * Its place in that stream; 0 if host-ordered.
     */
    uint64_t ready_seq;
    /**
     * The stream's handle: null for the legacy default stream, if host-ordered, and once the stream has been
     * destroyed. A thread's default stream has a handle of its own on the model device, and is SMP_STREAM_PER_THREAD on CUDA,
     * which means it on that thread only.
     */
    smp_stream stream;
    /**
     * The pool, which may be destroyed already.
     */
    smp_pool pool;
    /**
     * The device, which may be closed already.
     */
    smp_device device;
    /**
     * Its name, empty if it has none.
     */
    char name[64];
} smp_allocation_info;

/**
 * What to open. Start from SMP_DEVICE_DESC_INIT.
 */
typedef struct smp_device_desc {
    /**
     * Set by SMP_DEVICE_DESC_INIT.
     */
    uint32_t struct_size;
    /**
     * SMP_DEVICE_AUTO, SMP_DEVICE_MODEL or SMP_DEVICE_CUDA.
     */
    uint32_t kind;
    /**
     * SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING (model), SMP_DEVICE_CHECKED (CUDA), SMP_DEVICE_NO_MAPPING.
     */
    uint32_t flags;
    /**
     * The CUDA device's number; must be 0 on the model device.
     */
    uint32_t ordinal;
    /**
     * Alignment of blocks: a power of two from 16 up to page_granularity; 0: 512.
     */
    uint64_t alignment;
    /**
     * What pages are rounded to: a power of two; 0: 2 MiB.
     */
    uint64_t page_granularity;
    /**
     * Bytes of pages the model device can give out, not 0. SMP_NONE: unlimited, or 1 GiB with host backing.
     */
    uint64_t capacity;
    /**
     * CUDA: the CUcontext to work in, of that device; null: its primary context. Null on the model device.
     */
    void *context;
    /**
     * CUDA: SMP_PAGES_..., where pages come from; 0 on the model device.
     */
    uint32_t page_supply;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * Zero.
     */
    uint64_t reserved[2];
} smp_device_desc;

/**
 * What a device is. Start from SMP_DEVICE_INFO_INIT.
 */
typedef struct smp_device_info {
    /**
     * Set by SMP_DEVICE_INFO_INIT.
     */
    uint32_t struct_size;
    /**
     * SMP_DEVICE_MODEL or SMP_DEVICE_CUDA.
     */
    uint32_t kind;
    /**
     * SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING, SMP_DEVICE_NO_MAPPING.
     */
    uint32_t flags;
    /**
     * The CUDA device's number, 0 on the model device.
     */
    uint32_t ordinal;
    /**
     * Alignment of blocks, bytes.
     */
    uint64_t alignment;
    /**
     * What pages are rounded to, bytes.
     */
    uint64_t page_granularity;
    /**
     * Bytes of pages the device can give out in all; SMP_NONE: unlimited.
     */
    uint64_t capacity;
    /**
     * Bytes of pages given out and not taken back.
     */
    uint64_t reserved;
    /**
     * Streams in existence: the legacy default stream, always; those created and not destroyed; threads' default streams once used,
     * those of ended threads until another thread begins one; and those destroyed whose work is neither observed nor found executed
     * yet (smp_stream_destroy).
     */
    uint64_t live_streams;
    /**
     * Pools that are not destroyed, and those destroyed that have not given all their pages back yet, as with live blocks.
     */
    uint64_t pools;
    /**
     * Pages given out so far.
     */
    uint64_t page_allocs;
    /**
     * Pages taken back so far.
     */
    uint64_t page_frees;
    /**
     * The device's name; UTF-8, ends with a NUL.
     */
    char name[64];
    /**
     * Which device was picked, and why.
     */
    char why[256];
} smp_device_info;

/**
 * Receives one line of the log, without a line end; UTF-8, ends with a NUL, lives for the call only. It runs on whatever
 * thread noticed, perhaps with locks held: it may not call any smp function.
 */
typedef void (*smp_log_fn)(void *user, uint32_t level, const char *message);

/**
 * One entry of a pool; entries are tried in order. Start from the SMP_ENTRY_..._INIT macro of its kind. Fields that
 * mean nothing to the kind must be 0 or SMP_NONE. The size of this struct never changes.
 */
typedef struct smp_pool_entry {
    /**
     * SMP_ENTRY_EXCLUSIVE, SMP_ENTRY_DIRECT, SMP_ENTRY_SLICED, SMP_ENTRY_CUDA or SMP_ENTRY_MAPPED.
     */
    uint32_t kind;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * Sliced: size of each page, not 0, bytes.
     */
    uint64_t page_size;
    /**
     * Exclusive: the largest request accepted, bytes; 0: zero-sized requests only; SMP_NONE: any.
     */
    uint64_t max_alloc_size;
    /**
     * Sliced: the largest request accepted, bytes, not 0, at most page_size; SMP_NONE: page_size.
     */
    uint64_t max_slice_size;
    /**
     * Sliced, cuda, mapped: hard cap on this entry's reserved bytes, not 0, for sliced at least page_size, for mapped at
     * least chunk_size; SMP_NONE: no cap.
     */
    uint64_t max_pool_size;
    /**
     * Exclusive, sliced, mapped: a page (mapped: chunk) unused for this many of the pool's allocations goes back;
     * SMP_NONE: never.
     */
    uint64_t dealloc_period;
    /**
     * Direct: reserved bytes of this entry above which free pages go back; SMP_NONE: only a trim gives back.
     */
    uint64_t reclaim_at;
    /**
     * Mapped: bytes of addresses reserved at a time, not 0; rounded up to whole chunks.
     */
    uint64_t range_size;
    /**
     * Mapped: bytes mapped at a time, not 0; rounded up to the device's page granularity.
     */
    uint64_t chunk_size;
    /**
     * Zero.
     */
    uint64_t reserved[2];
} smp_pool_entry;

/**
 * What a pool is made of. Start from SMP_POOL_CONFIG_INIT.
 */
typedef struct smp_pool_config {
    /**
     * Set by SMP_POOL_CONFIG_INIT.
     */
    uint32_t struct_size;
    /**
     * SMP_PRESET_...; must be SMP_PRESET_DEFAULT (0) when entries are given.
     */
    uint32_t preset;
    /**
     * SMP_POLICY_... bits.
     */
    uint32_t policies;
    /**
     * SMP_POOL_SYNC_ON_OOM, SMP_POOL_WAIVE_CAPTURE_CHECK.
     */
    uint32_t flags;
    /**
     * Null: the preset's entries. Else `entry_count` entries, tried in order; read during the call only.
     */
    const smp_pool_entry *entries;
    /**
     * How many entries `entries` points to, 1 to 32; 0 with a null pointer.
     */
    uint64_t entry_count;
    /**
     * Reserved bytes above which a synchronise gives pages back; SMP_NONE: never; SMP_DEFAULT: 0 in SMP_PRESET_CUDA,
     * never elsewhere.
     */
    uint64_t release_threshold;
    /**
     * SMP_PRESET_CUDA only: cap on reserved bytes, rounded up to 32 MiB; SMP_NONE: no cap.
     */
    uint64_t max_pool_size;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} smp_pool_config;

/**
 * Figures of a pool or of one of its entries; always requested <= used <= reserved. Start from SMP_POOL_STATS_INIT.
 * Exact at any quiet moment; reserved is exact always.
 */
typedef struct smp_pool_stats {
    /**
     * Set by SMP_POOL_STATS_INIT.
     */
    uint32_t struct_size;
    /**
     * How many entries the pool has.
     */
    uint32_t entry_count;
    /**
     * Bytes asked for by live allocations.
     */
    uint64_t requested;
    /**
     * Bytes no one else can have because of live blocks.
     */
    uint64_t used;
    /**
     * The most bytes used.
     */
    uint64_t used_high;
    /**
     * Bytes of pages held; of a mapped entry: of chunks. So for the other figures of pages.
     */
    uint64_t reserved;
    /**
     * The most bytes of pages held.
     */
    uint64_t reserved_high;
    /**
     * used - requested.
     */
    uint64_t padding;
    /**
     * Live allocations.
     */
    uint64_t live;
    /**
     * Free blocks not reusable by everyone yet.
     */
    uint64_t pending;
    /**
     * Bytes of those.
     */
    uint64_t pending_bytes;
    /**
     * Successful allocations so far.
     */
    uint64_t allocs;
    /**
     * Frees so far.
     */
    uint64_t frees;
    /**
     * Allocations that failed; 0 in an entry.
     */
    uint64_t failures;
    /**
     * Pages held.
     */
    uint64_t pages;
    /**
     * The most pages held.
     */
    uint64_t pages_high;
    /**
     * Pages the device gave.
     */
    uint64_t page_allocs;
    /**
     * Pages given back.
     */
    uint64_t page_frees;
    /**
     * Pages the device refused.
     */
    uint64_t page_refusals;
    /**
     * Page releases the device refused; such a page stays reserved.
     */
    uint64_t release_failures;
    /**
     * Calls made to the device: for pages and ranges of addresses, progress queries and host synchronises. Chunks of a mapped
     * entry that are asked for together count once, and so does each that is moved, given back or refused.
     */
    uint64_t device_calls;
    /**
     * Frees on another stream that were not ordered after their allocation.
     */
    uint64_t unordered_frees;
    /**
     * Frees that did not follow an access noted with smp_note_access; 0 in an entry.
     */
    uint64_t racing_frees;
    /**
     * Times the device was asked how far a stream has run; 0 in an entry.
     */
    uint64_t progress_queries;
    /**
     * Waits that policy 3 put into a stream.
     */
    uint64_t internal_waits;
    /**
     * Device synchronises made before failing (SMP_POOL_SYNC_ON_OOM); 0 in an entry.
     */
    uint64_t host_syncs;
    /**
     * Blocks split.
     */
    uint64_t splits;
    /**
     * Blocks merged.
     */
    uint64_t merges;
    /**
     * Allocations served by a block freed on the same stream.
     */
    uint64_t reuse_same_stream;
    /**
     * By a block whose free the host has observed.
     */
    uint64_t reuse_observed;
    /**
     * By policy 1.
     */
    uint64_t reuse_event;
    /**
     * By policy 2.
     */
    uint64_t reuse_opportunistic;
    /**
     * By policy 3.
     */
    uint64_t reuse_internal;
    /**
     * By memory never used before.
     */
    uint64_t reuse_fresh;
    /**
     * The largest free block, bytes.
     */
    uint64_t largest_free;
    /**
     * Host memory that the pool's own records take, bytes.
     */
    uint64_t metadata_bytes;
    /**
     * Chunks of mapped entries that were mapped elsewhere instead of asking the device for more. None of them waits.
     */
    uint64_t chunk_moves;
    /**
     * Ranges of addresses that mapped entries have reserved.
     */
    uint64_t ranges;
} smp_pool_stats;

/**
 * What is known when an allocation is about to fail.
 */
typedef struct smp_out_of_memory {
    /**
     * The size of this struct, set by the library.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * The pool.
     */
    smp_pool pool;
    /**
     * Bytes asked for.
     */
    uint64_t asked;
    /**
     * Bytes used.
     */
    uint64_t used;
    /**
     * Bytes of pages held.
     */
    uint64_t reserved;
    /**
     * Bytes free but not reusable by everyone yet.
     */
    uint64_t pending_bytes;
    /**
     * The largest free block, bytes.
     */
    uint64_t largest_free;
    /**
     * Bytes the device still has; SMP_NONE: unlimited.
     */
    uint64_t device_free;
    /**
     * Bytes the device has in all; SMP_NONE: unlimited.
     */
    uint64_t device_total;
} smp_out_of_memory;

/**
 * Called when an allocation is about to fail: nonzero to try again, 0 to let it fail. It runs on the allocating thread
 * with no lock held; it may free, trim or synchronise, but not allocate from this pool. `info` lives for the call only.
 */
typedef int (*smp_out_of_memory_fn)(void *user, const smp_out_of_memory *info);

/**
 * Receives a piece of text, UTF-8, `length` bytes, not NUL-terminated; lives for the call only. 0 to go on, else the call
 * that writes fails with SMP_ERROR_IO. It runs with no lock held.
 */
typedef int (*smp_write_fn)(void *user, const char *text, uint64_t length);

/**
 * What the last failed call of a thread said.
 */
typedef struct smp_error {
    /**
     * Set by SMP_ERROR_INIT.
     */
    uint32_t struct_size;
    /**
     * The status it returned, an smp_status.
     */
    uint32_t status;
    /**
     * The driver's own code, 0 if none.
     */
    int32_t driver_code;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * What was wrong, with names and numbers; UTF-8, ends with a NUL, cut if longer.
     */
    char text[496];
} smp_error;

/**
 * Where a stream stands. Start from SMP_STREAM_INFO_INIT.
 */
typedef struct smp_stream_info {
    /**
     * Set by SMP_STREAM_INFO_INIT.
     */
    uint32_t struct_size;
    /**
     * SMP_STREAM_NON_BLOCKING; and one of SMP_STREAM_LAZY and SMP_STREAM_EAGER on the model device.
     */
    uint32_t flags;
    /**
     * Which stream of the device, in order of creation; 0 is the legacy default stream.
     */
    uint64_t stream_id;
    /**
     * The last sequence number given out.
     */
    uint64_t submitted;
    /**
     * All operations up to this one have run.
     */
    uint64_t executed;
    /**
     * The host knows that all operations up to this one have run, because it synchronised.
     */
    uint64_t observed;
} smp_stream_info;

/**
 * Told how far a replay is: `done` of `total` bytes of the file. Called now and then, on the replaying thread.
 */
typedef void (*smp_replay_progress_fn)(void *user, uint64_t done, uint64_t total);

/**
 * How to replay. Start from SMP_REPLAY_OPTIONS_INIT.
 */
typedef struct smp_replay_options {
    /**
     * Set by SMP_REPLAY_OPTIONS_INIT.
     */
    uint32_t struct_size;
    /**
     * 0 or SMP_REPLAY_UNVERIFIED.
     */
    uint32_t flags;
    /**
     * Pool specification to use instead of the trace's, as in smp_pool_create_from_spec; null: the trace's own, the
     * default preset for a version-1 trace. With another one the recorded answers are not compared.
     */
    const char *pools;
    /**
     * Nanoseconds that each call to the device is taken to cost, added to elapsed_ns.
     */
    uint64_t device_call_ns;
    /**
     * May be null.
     */
    smp_replay_progress_fn progress;
    /**
     * Handed to `progress`.
     */
    void *progress_user;
    /**
     * SMP_REPORT_TEXT or SMP_REPORT_JSON, for `report`.
     */
    uint32_t report_format;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * If not null, gets the report of every pool as it stands at the end.
     */
    smp_write_fn report;
    /**
     * Handed to `report`.
     */
    void *report_user;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} smp_replay_options;

/**
 * What a replay found. Start from SMP_REPLAY_RESULT_INIT.
 */
typedef struct smp_replay_result {
    /**
     * Set by SMP_REPLAY_RESULT_INIT.
     */
    uint32_t struct_size;
    /**
     * The trace's version, 1 or 2.
     */
    uint32_t version;
    /**
     * Events replayed.
     */
    uint64_t events;
    /**
     * The most bytes asked for by live allocations at one time.
     */
    uint64_t live_peak;
    /**
     * The most bytes asked for by allocations that were live, or whose free had not executed.
     */
    uint64_t live_and_pending_peak;
    /**
     * The most bytes used at one time.
     */
    uint64_t used_peak;
    /**
     * The most bytes of pages held at one time.
     */
    uint64_t reserved_peak;
    /**
     * The most pages held at one time.
     */
    uint64_t pages_peak;
    /**
     * Calls made to the device.
     */
    uint64_t device_calls;
    /**
     * Allocations that failed.
     */
    uint64_t failures;
    /**
     * Nanoseconds spent in the calls, the reading of the file excluded, and device_call_ns for each call to the device.
     */
    uint64_t elapsed_ns;
    /**
     * Allocations.
     */
    uint64_t allocs;
    /**
     * Frees.
     */
    uint64_t frees;
    /**
     * Streams.
     */
    uint64_t streams;
    /**
     * Pools.
     */
    uint64_t pools;
    /**
     * 1 if every recorded answer was compared with the model's, and all agreed; else 0.
     */
    uint64_t verified;
    /**
     * Zero.
     */
    uint64_t reserved[2];
} smp_replay_result;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Notes that the caller's work on `stream` accesses bytes from now on, as the stream's next operation, and tells whether
 * that is in order. A later free that does not follow it is reported too.
 *
 * `ptr`: model address, device pointer or host address of any byte of an allocation. `size`: bytes. `access`:
 * SMP_ACCESS_.... `out`: may be null; struct_size set. A fault found is a verdict, not an error: the call succeeds.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE; SMP_ERROR_INVALID_VALUE for a bad access
 * kind or struct.
 */
smp_status smp_note_access(smp_device device,
                           const void *ptr,
                           uint64_t size,
                           smp_stream stream,
                           uint32_t access,
                           smp_access_verdict *out);

/**
 * smp_note_access as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_note_access_ptsz(smp_device device,
                                const void *ptr,
                                uint64_t size,
                                smp_stream stream,
                                uint32_t access,
                                smp_access_verdict *out);

/**
 * Allocates `size` bytes in the order of `stream`: usable by work submitted to it from now on, and elsewhere only where
 * ordered after this point.
 *
 * `size`: bytes; 0 gives a distinct block. `out`: not null; set to null on failure. The caller owns the allocation and
 * gives it back with smp_free_async or smp_free.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for pool and stream;
 * SMP_ERROR_OUT_OF_MEMORY, SMP_ERROR_CAPACITY_EXCEEDED, SMP_ERROR_SIZE_NOT_ACCEPTED; SMP_ERROR_NOT_PERMITTED inside this
 * pool's out-of-memory callback; SMP_ERROR_INVALID_VALUE if `out` is null.
 */
SMP_NODISCARD
smp_status smp_alloc_async(smp_pool pool,
                           uint64_t size,
                           smp_stream stream,
                           smp_allocation *out);

/**
 * smp_alloc_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
SMP_NODISCARD
smp_status smp_alloc_async_ptsz(smp_pool pool,
                                uint64_t size,
                                smp_stream stream,
                                smp_allocation *out);

/**
 * As smp_alloc_async, with an alignment and a name.
 *
 * `desc`: not null; read during the call only. `out`: not null; set to null on failure.
 * Errors: as smp_alloc_async; SMP_ERROR_INVALID_VALUE also for a bad struct_size, flag, alignment or name.
 */
SMP_NODISCARD smp_status smp_alloc_async_ex(smp_pool pool, const smp_alloc_desc *desc, smp_allocation *out);

/**
 * smp_alloc_async_ex as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
SMP_NODISCARD
smp_status smp_alloc_async_ex_ptsz(smp_pool pool,
                                   const smp_alloc_desc *desc,
                                   smp_allocation *out);

/**
 * Allocates in host order: usable at once from any stream, so it reuses only what the host has observed to be free.
 *
 * `size`: bytes; 0 gives a distinct block, but is SMP_ERROR_INVALID_VALUE in the cuda preset, `like(cuda)` and a pool of cuda entries
 * alone, as the driver's is.
 * `out`: not null; set to null on failure. Errors: as smp_alloc_async.
 */
SMP_NODISCARD
smp_status smp_alloc(smp_pool pool,
                     uint64_t size,
                     smp_allocation *out);

/**
 * As smp_alloc, with an alignment and a name.
 *
 * `desc`: not null; its stream must be null; read during the call only. `out`: not null; set to null on failure.
 * Errors: as smp_alloc; SMP_ERROR_INVALID_VALUE also for a bad struct_size, flag, alignment, name or a stream.
 */
SMP_NODISCARD smp_status smp_alloc_ex(smp_pool pool, const smp_alloc_desc *desc, smp_allocation *out);

/**
 * Frees an allocation in the order of `stream`, which may be another than it was allocated on: all its uses must be
 * ordered before this point. Its bytes may serve work ordered after this point and after every added user.
 *
 * On another stream that is not ordered after the allocation the free succeeds, is counted (unordered_frees) and logged.
 * Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_FREED if it was freed before; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE
 * for the stream.
 */
smp_status smp_free_async(smp_allocation allocation,
                          smp_stream stream);

/**
 * smp_free_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_free_async_ptsz(smp_allocation allocation, smp_stream stream);

/**
 * Frees an allocation in host order: after everything submitted to the device so far, on whatever stream.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_FREED if it was freed before.
 */
smp_status smp_free(smp_allocation allocation);

/**
 * As smp_alloc_async, giving the pointer. Raw pointers cannot carry the handles' promise once their memory is reused.
 *
 * `out`: not null; set to null on failure: the device pointer on the CUDA device, the host address with host backing,
 * else the model address, which must not be accessed. Freed with smp_free_ptr_async. Errors: as smp_alloc_async.
 */
SMP_NODISCARD smp_status smp_alloc_ptr_async(smp_pool pool, uint64_t size, smp_stream stream, void **out);

/**
 * smp_alloc_ptr_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
SMP_NODISCARD smp_status smp_alloc_ptr_async_ptsz(smp_pool pool, uint64_t size, smp_stream stream, void **out);

/**
 * As smp_free_async, by pointer: the model address, or what smp_alloc_ptr_async gave. Null is freed by doing nothing.
 *
 * Errors: SMP_ERROR_INVALID_VALUE if `ptr` is not the start of a live allocation of this device; else as
 * smp_free_async.
 */
smp_status smp_free_ptr_async(smp_device device, void *ptr, smp_stream stream);

/**
 * smp_free_ptr_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_free_ptr_async_ptsz(smp_device device, void *ptr, smp_stream stream);

/**
 * As smp_free, by pointer: the model address, or what an allocation's pointer is. Null is freed by doing nothing.
 *
 * Errors: SMP_ERROR_INVALID_VALUE if `ptr` is not the start of a live allocation of this device; else as smp_free.
 */
smp_status smp_free_ptr(smp_device device, void *ptr);

/**
 * The pointer of a live allocation: the device pointer on the CUDA device, the host address with host backing, else the
 * model address, which must not be accessed. Null if the handle is invalid or freed. Cannot fail otherwise.
 */
void *smp_allocation_ptr(smp_allocation allocation);

/**
 * Tells about a live allocation.
 *
 * `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED, SMP_ERROR_INVALID_VALUE.
 */
smp_status smp_allocation_get_info(smp_allocation allocation, smp_allocation_info *out);

/**
 * Finds the live allocation that holds an address: of any byte that was asked for, by model address, device pointer or host
 * address. What its block is larger by is nobody's; of a zero-sized allocation its own address is found.
 *
 * `out`, `offset`: each may be null; `offset` is how many bytes `ptr` lies past the allocation's start.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE if no live allocation of
 * the device holds the address.
 */
smp_status smp_allocation_find(smp_device device,
                               const void *ptr,
                               smp_allocation *out,
                               uint64_t *offset);

/**
 * Tells that `stream` uses the allocation too: after its free it is reusable only past the point that stream has reached
 * at the free.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for the stream.
 */
smp_status smp_allocation_add_user(smp_allocation allocation,
                                   smp_stream stream);

/**
 * smp_allocation_add_user as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_allocation_add_user_ptsz(smp_allocation allocation, smp_stream stream);

/**
 * Has the allocation executed on its own stream?
 *
 * SMP_SUCCESS: yes, as always in host order. SMP_NOT_READY: not yet. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED.
 */
SMP_NODISCARD smp_status smp_is_ready(smp_allocation allocation);

/**
 * Is work submitted to `consumer` now ordered after the allocation?
 *
 * SMP_SUCCESS: proved. SMP_NOT_READY: refuted. SMP_UNPROVEN: not visible to the library; never on the model device.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for the stream.
 */
SMP_NODISCARD smp_status smp_is_ready_on(smp_allocation allocation, smp_stream consumer);

/**
 * smp_is_ready_on as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
SMP_NODISCARD smp_status smp_is_ready_on_ptsz(smp_allocation allocation, smp_stream consumer);

/**
 * Opens a device.
 *
 * `desc`: null means SMP_DEVICE_AUTO with every default. SMP_DEVICE_AUTO picks CUDA if it works and nothing is asked for
 * that only the model device has (lazy streams, host backing, a capacity); smp_device_info says which it was and why.
 * `out`: not null; the caller owns the handle and gives it back with smp_device_close.
 * The first device of a process registers it with the kernel for membarrier(2), by which a stream passes from the thread that mostly
 * uses it to another; in a process with threads that may take some milliseconds. The environment variable
 * SMP_NO_MEMBARRIER=1 keeps libsmp from it (for a process that may not make this system call, on pain of death): calls then
 * take a little longer. A refusal does no harm.
 * Errors: SMP_ERROR_INVALID_VALUE for a bad pointer, struct_size, kind, flag, alignment, granularity, capacity or ordinal, and for
 * what the kind does not have; SMP_ERROR_NOT_SUPPORTED if a CUDA device is asked for and cannot be had, with what is
 * missing; SMP_ERROR_DRIVER if the driver failed; SMP_ERROR_OUT_OF_MEMORY if host backing cannot be reserved, or the
 * driver has no memory for a context.
 */
SMP_NODISCARD
smp_status smp_device_open(const smp_device_desc *desc,
                           smp_device *out);

/**
 * Tells about a device.
 *
 * `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE.
 */
smp_status smp_device_get_info(smp_device device, smp_device_info *out);

/**
 * Waits until everything submitted to the device has executed; the host has then observed it all, and pools over
 * their release threshold give pages back.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_device_synchronize(smp_device device);

/**
 * Closes a device handle. Its pools and blocks outlive it and stay usable, and with them its streams; its memory goes with
 * the last of them. Its events can only be destroyed from then on.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED (closed already).
 */
smp_status smp_device_close(smp_device device);

/**
 * Creates an event; until recorded it counts as complete.
 *
 * `create_flags`: 0. `out`: not null; the caller owns the event and gives it back with smp_event_destroy.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE.
 */
SMP_NODISCARD smp_status smp_event_create(smp_device device, uint32_t create_flags, smp_event *out);

/**
 * Records the event: its point is the stream's position now. Recording again replaces the point; waits made before keep
 * theirs.
 *
 * `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_event_record(smp_device device, smp_event event, smp_stream stream);

/**
 * smp_event_record as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_event_record_ptsz(smp_device device, smp_event event, smp_stream stream);

/**
 * Has the event's point executed? Changes nothing.
 *
 * SMP_SUCCESS: yes, or never recorded. SMP_NOT_READY: no. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
SMP_NODISCARD smp_status smp_event_query(smp_event event);

/**
 * Waits until the event's point has executed, with all it depends on; the host has then observed it, and pools over
 * their release threshold give pages back.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_event_synchronize(smp_event event);

/**
 * Destroys an event. Waits made for it keep their point.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_event_destroy(smp_event event);

/**
 * Sets what receives the log of the whole process; replaces the one before. Without one nothing is logged.
 *
 * `level`: SMP_LOG_...; the most detailed one wanted. `callback`: null turns logging off. `user`: handed to it as it is.
 * When this returns, the callback set before runs no more. Errors: SMP_ERROR_INVALID_VALUE for an unknown level.
 */
smp_status smp_set_log_callback(uint32_t level,
                                smp_log_fn callback,
                                void *user);

/**
 * Submits `count` operations to a stream, as kernels would be.
 *
 * `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream. `last_seq`: may be null; the
 * stream's last sequence number after it. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE,
 * SMP_ERROR_NOT_SUPPORTED; SMP_ERROR_INVALID_VALUE if `count` is 0 or above 2^32, or the stream has had 2^61 operations.
 */
smp_status smp_model_stream_submit(smp_device device,
                                   smp_stream stream,
                                   uint64_t count,
                                   uint64_t *last_seq);

/**
 * smp_model_stream_submit as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_model_stream_submit_ptsz(smp_device device, smp_stream stream, uint64_t count, uint64_t *last_seq);

/**
 * Runs up to `count` further operations of a stream; stops at the first whose dependencies have not executed.
 *
 * `device`: as above. `ran`: may be null; how many ran. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED,
 * SMP_ERROR_WRONG_DEVICE, SMP_ERROR_NOT_SUPPORTED.
 */
smp_status smp_model_stream_advance(smp_device device, smp_stream stream, uint64_t count, uint64_t *ran);

/**
 * smp_model_stream_advance as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_model_stream_advance_ptsz(smp_device device, smp_stream stream, uint64_t count, uint64_t *ran);

/**
 * Sets how many bytes of pages the device can give out; pages given out already stay.
 *
 * `bytes`: SMP_NONE: unlimited; with host backing it is the host that may then refuse a page.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
 */
smp_status smp_model_set_capacity(smp_device device, uint64_t bytes);

/**
 * Makes the device refuse `count` page requests after granting `skip` more; replaces what was set before.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
 */
smp_status smp_model_refuse_pages(smp_device device, uint64_t skip, uint64_t count);

/**
 * Makes the device refuse to take back the next `count` pages.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
 */
smp_status smp_model_refuse_releases(smp_device device, uint64_t count);

/**
 * Notes that the caller has recorded the event on the stream. On the model device: smp_event_record.
 *
 * `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_note_event_record(smp_device device, smp_event event, smp_stream stream);

/**
 * smp_note_event_record as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_note_event_record_ptsz(smp_device device, smp_event event, smp_stream stream);

/**
 * Notes that the caller has made the stream wait for the event. On the model device: smp_stream_wait_event.
 *
 * `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_note_stream_wait(smp_device device, smp_stream stream, smp_event event);

/**
 * smp_note_stream_wait as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_note_stream_wait_ptsz(smp_device device, smp_stream stream, smp_event event);

/**
 * Notes that the caller has synchronised with the event. On the model device: smp_event_synchronize.
 *
 * `device`: the event's; of two CUDA devices in one context, either.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_note_event_synchronized(smp_device device, smp_event event);

/**
 * Notes that the caller has synchronised with the stream. On the model device: smp_stream_synchronize.
 *
 * `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_note_stream_synchronized(smp_device device, smp_stream stream);

/**
 * smp_note_stream_synchronized as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_note_stream_synchronized_ptsz(smp_device device, smp_stream stream);

/**
 * Notes that the caller has synchronised the device or its context. On the model device: smp_device_synchronize.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_note_device_synchronized(smp_device device);

/**
 * Notes that the caller has destroyed the event. On the model device: smp_event_destroy.
 *
 * On CUDA an event that the library has not seen has nothing to forget.
 *
 * `device`: the event's; of two CUDA devices in one context, either.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_note_event_destroyed(smp_device device, smp_event event);

/**
 * Creates a pool on a device.
 *
 * `config`: null means the default preset; read during the call only. `out`: not null; the caller owns the handle and
 * gives it back with smp_pool_destroy.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE for bad pointers,
 * struct_size, numbers of enumerations, reserved bytes; SMP_ERROR_INVALID_CONFIG for what cannot be a pool, naming the
 * field; SMP_ERROR_NOT_SUPPORTED for SMP_PRESET_DRIVER without a CUDA device.
 */
SMP_NODISCARD smp_status smp_pool_create(smp_device device, const smp_pool_config *config, smp_pool *out);

/**
 * Creates a pool from a specification such as "sliced(page_size=64MiB, max_slice_size=8MiB); direct()" or
 * "preset(cuda)".
 *
 * `spec`: not null, UTF-8, read during the call only. `out`: as in smp_pool_create.
 * Errors: SMP_ERROR_SPEC_SYNTAX, naming the column; SMP_ERROR_INVALID_VALUE if `spec` is null or not UTF-8; else as smp_pool_create.
 */
SMP_NODISCARD
smp_status smp_pool_create_from_spec(smp_device device,
                                     const char *spec,
                                     smp_pool *out);

/**
 * Destroys a pool. Live blocks stay usable, their later free succeeds, and the memory goes with the last.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_pool_destroy(smp_pool pool);

/**
 * Gives free pages back to the device while at least `keep` bytes stay reserved. Pages with live blocks stay, and so
 * do those whose frees have not executed (in cuda entries: that the host has not observed).
 *
 * `keep`: bytes. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_pool_trim_to(smp_pool pool, uint64_t keep);

/**
 * Reads an attribute.
 *
 * `attribute`: SMP_ATTRIBUTE_...; the numbers are those of CUmemPool_attribute. `out`: not null.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for an unknown attribute.
 */
smp_status smp_pool_get_attribute(smp_pool pool, uint32_t attribute, uint64_t *out);

/**
 * Reads an attribute of the driver's own pool beneath a pool of SMP_PRESET_DRIVER; smp_pool_get_attribute answers what it
 * comes to by the documented rules, and the difference is the driver's own.
 *
 * `attribute`: 1 to 8. `out`: not null. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for
 * another attribute, or a pool of another preset; SMP_ERROR_DRIVER.
 */
smp_status smp_pool_get_driver_attribute(smp_pool pool,
                                         uint32_t attribute,
                                         uint64_t *out);

/**
 * Sets an attribute: 1 to 3 to 0 or 1, 4 to a number of bytes, 6 and 8 to 0 only, which sets them to the current value
 * (these are the pool's own marks, as in CUDA: those of its entries, in smp_pool_get_entry_stats, stay).
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for an unknown or read-only attribute
 * or a value it cannot have.
 */
smp_status smp_pool_set_attribute(smp_pool pool, uint32_t attribute, uint64_t value);

/**
 * The figures of a pool.
 *
 * `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE.
 */
smp_status smp_pool_get_stats(smp_pool pool, smp_pool_stats *out);

/**
 * The figures of one entry of a pool.
 *
 * Amounts and counts of the entries add up to the pool's, but for these: `failures`, `racing_frees`, `progress_queries` and `host_syncs`
 * are the pool's alone, 0 in an entry, and its `device_calls` count the latter two besides the entries' own; `largest_free` is the largest of
 * theirs; high-water marks are each entry's own, reached in its own time; in `metadata_bytes` the pool's noted accesses are no entry's.
 *
 * `index`: below smp_pool_stats.entry_count. `out`: not null; struct_size set.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE, also for an index out of range.
 */
smp_status smp_pool_get_entry_stats(smp_pool pool,
                                    uint32_t index,
                                    smp_pool_stats *out);

/**
 * Sets what is called when an allocation of this pool is about to fail; replaces the one before.
 *
 * `callback`: null removes it. `user`: handed to it as it is; must stay valid until the callback is replaced or the pool
 * is destroyed, and no allocation of the pool is running. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
 */
smp_status smp_pool_set_out_of_memory_callback(smp_pool pool,
                                               smp_out_of_memory_fn callback,
                                               void *user);

/**
 * Reports a pool's configuration and figures.
 *
 * `format`: SMP_REPORT_TEXT or SMP_REPORT_JSON. `write`: not null; called on this thread before the call returns.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE; SMP_ERROR_IO if `write` refuses.
 */
smp_status smp_pool_report(smp_pool pool, uint32_t format, smp_write_fn write, void *user);

/**
 * What the last failed call of this thread said. Calls that succeed, or answer SMP_NOT_READY or SMP_UNPROVEN, leave it.
 *
 * `out`: not null; struct_size set. Before the first failure status is SMP_SUCCESS and the text empty.
 * Errors: SMP_ERROR_INVALID_VALUE if `out` is null or its struct_size is none this library knows; the last error stays.
 */
smp_status smp_last_error(smp_error *out);

/**
 * The name of a status as in this header, such as "SMP_ERROR_FREED"; "SMP_UNKNOWN_STATUS" for a number not known.
 *
 * `status`: an smp_status. The text is static; never null. Cannot fail.
 */
const char *smp_status_name(uint32_t status);

/**
 * One sentence about a status, for people.
 *
 * `status`: an smp_status. The text is static; never null. Cannot fail.
 */
const char *smp_status_description(uint32_t status);

/**
 * Creates a stream.
 *
 * `create_flags`: 0, or SMP_STREAM_NON_BLOCKING and at most one of SMP_STREAM_LAZY and SMP_STREAM_EAGER.
 * `out`: not null; the caller owns the stream and gives it back with smp_stream_destroy.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE.
 */
SMP_NODISCARD smp_status smp_stream_create(smp_device device, uint32_t create_flags, smp_stream *out);

/**
 * Destroys a created stream. It returns at once; what was submitted still runs, and allocations made on it stay.
 *
 * What was freed on it is anybody's once the host has observed it, or once the stream is found executed to its end: by an
 * allocation that asks (policy 2), or when a later stream is created.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for a default stream.
 */
smp_status smp_stream_destroy(smp_stream stream);

/**
 * Tells that the caller is about to destroy a stream of its own, before it does; without it a recycled handle value could
 * inherit an order it does not have. On the model device, whose streams are all the library's, it destroys the stream.
 *
 * `device`: the stream's; may be null beside a stream that the library has seen.
 * Errors: as smp_stream_destroy; SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_stream_release(smp_device device,
                              smp_stream stream);

/**
 * smp_stream_release as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_stream_release_ptsz(smp_device device, smp_stream stream);

/**
 * Waits until everything submitted to the stream has executed, with all it depends on; the host has then observed it,
 * and pools over their release threshold give pages back.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_stream_synchronize(smp_device device, smp_stream stream);

/**
 * smp_stream_synchronize as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_stream_synchronize_ptsz(smp_device device, smp_stream stream);

/**
 * Has everything submitted to the stream executed? Changes nothing; in particular nothing becomes observed.
 *
 * SMP_SUCCESS: yes. SMP_NOT_READY: no. Errors: as smp_stream_synchronize; SMP_ERROR_CAPTURING for a stream that is being
 * captured, which CUDA does not answer about (and whose capture it ends).
 */
SMP_NODISCARD
smp_status smp_stream_query(smp_device device,
                            smp_stream stream);

/**
 * smp_stream_query as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
SMP_NODISCARD smp_status smp_stream_query_ptsz(smp_device device, smp_stream stream);

/**
 * Tells where a stream stands.
 *
 * `out`: not null; struct_size set. Errors: as smp_stream_synchronize; SMP_ERROR_INVALID_VALUE.
 */
smp_status smp_stream_get_info(smp_device device, smp_stream stream, smp_stream_info *out);

/**
 * smp_stream_get_info as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_stream_get_info_ptsz(smp_device device, smp_stream stream, smp_stream_info *out);

/**
 * Makes what is submitted to the stream from now on wait for the event's point. A never-recorded event is complete; one
 * recorded again later keeps this wait where it was.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
 */
smp_status smp_stream_wait_event(smp_device device, smp_stream stream, smp_event event);

/**
 * smp_stream_wait_event as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
smp_status smp_stream_wait_event_ptsz(smp_device device, smp_stream stream, smp_event event);

/**
 * Allocates for PyTorch: stream-ordered, on `stream` of device number `device`.
 *
 * `size`: bytes; 0 gives null. Returns null if there is no memory, or no CUDA device of that number; PyTorch reports it.
 * The first call for a device opens its primary context and a pool of SMP_POOLS (else the sub-slices preset); live blocks
 * stay within SMP_LIMIT. If one of the two cannot be read there is no memory, and standard error says why. Any thread may
 * call it.
 */
void *smp_torch_alloc(int64_t size,
                 int device,
                 smp_stream stream);

/**
 * Frees what smp_torch_alloc gave, in the order of `stream`.
 *
 * `ptr`: null is allowed. `size` is not read. A pointer that smp_torch_alloc did not give is ignored.
 */
void smp_torch_free(void *ptr, int64_t size, int device, smp_stream stream);

/**
 * Tells how many devices there are (set_init_fn): nothing needs to be done before the first allocation.
 */
void smp_torch_init(int _device_count);

/**
 * Gives back what is free on every device (set_reset_fn, which PyTorch calls to empty its cache).
 */
void smp_torch_reset(void);

/**
 * Sets the share of a device's memory that may be used (set_memory_fraction_fn): from 0 to 1.
 */
void smp_torch_memory_fraction(double fraction, int device);

/**
 * The start and size of the block that holds `ptr` (set_base_alloc_fn).
 *
 * `size`: null, or takes the bytes asked for. Returns null, and leaves `size` alone, for a pointer that is in no live block.
 */
void *smp_torch_base_alloc(void *ptr,
                      uint64_t *size);

/**
 * The block is used on another stream too (set_record_stream_fn): it is not reused before that stream's work so far.
 */
void smp_torch_record_stream(void *ptr, smp_stream stream);

/**
 * Starts recording a device to a file: every call that changes state, and every outside answer that mattered, in their
 * true order, as a version-2 trace. While it records, the device's calls run one at a time.
 *
 * The device must hold no page and have no work the host has not observed; its streams and pools are noted at the start.
 * Pools begin anew there, as they do in the replay: address ranges that they have reserved go back to the device, and what
 * they have learnt is forgotten, but how much has been used. No other thread may be in a call on the device.
 * A trace is of the process that started it. In a child after a fork nothing records the device, and nothing is written to the
 * file, whatever the child does and however it ends; it may start a trace of its own.
 * `path`: not null; created or replaced; compressed if it ends in ".gz". `trace_flags`: 0 or SMP_TRACE_TIME.
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_IO; SMP_ERROR_INVALID_VALUE, also, naming the file, if a
 * trace of another device is being written to it, by this name or another (a link), in this process, at the fork in the
 * process it was forked from, or in another process (where the file system has locks); only what is no regular file, such as
 * /dev/null, serves several;
 * SMP_ERROR_NOT_PERMITTED if the device is recorded already, is not at rest, or is in a call.
 */
smp_status smp_trace_start(smp_device device,
                           const char *path,
                           uint32_t trace_flags);

/**
 * Stops recording and completes the file.
 *
 * Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_NOT_PERMITTED if nothing records, as in a child after a
 * fork that has started no trace of its own;
 * SMP_ERROR_IO if writing failed, now or since the start.
 */
smp_status smp_trace_stop(smp_device device);

/**
 * Replays a trace of either version on a model device of its own.
 *
 * `path`: not null; gzip is recognised. `options`: null means every default. `out`: not null; struct_size set.
 * Errors: SMP_ERROR_INVALID_VALUE, SMP_ERROR_SPEC_SYNTAX, SMP_ERROR_INVALID_CONFIG, SMP_ERROR_IO;
 * SMP_ERROR_NOT_SUPPORTED if the pools asked for need a CUDA device; SMP_ERROR_TRACE_SYNTAX, naming file and line;
 * SMP_ERROR_REPLAY_MISMATCH if a version-2 trace's answers differ from the model's.
 */
smp_status smp_trace_replay(const char *path,
                            const smp_replay_options *options,
                            smp_replay_result *out);

/**
 * The version of the library in use: major * 10000 + minor * 100 + patch, as the header's SMP_VERSION is made.
 *
 * Versions 0.x with different minor numbers are not binary compatible. Cannot fail; any thread.
 */
uint32_t smp_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SMP_H */
