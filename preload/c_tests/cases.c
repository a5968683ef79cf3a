/* Small programs, one for each thing that libraries like ours have got wrong: cases NAME. They print what they saw. */
#define LINK DLSYM
#include "driver.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Null for one of the two figures, as programs do. */
static int null_info(void)
{
    size_t available = 1, total = 1;
    driver_begin();
    printf("free %d", (int)CALL(cuMemGetInfo)(&available, 0));
    printf(" total %d", (int)CALL(cuMemGetInfo)(0, &total));
    printf(" none %d\n", (int)CALL(cuMemGetInfo)(0, 0));
    printf("%zu %zu\n", available, total);
    return 0;
}

/* How much a limit leaves: allocations of 1 MiB until one is refused, then what the driver says is free. */
static int limit(void)
{
    CUdeviceptr p[64], last;
    size_t available, total;
    int count = 0;
    CUresult code;
    driver_begin();
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("before %zu of %zu\n", available, total);
    while ((code = CALL(cuMemAlloc)(&p[count], 1 << 20)) == CUDA_SUCCESS) count++;
    printf("blocks %d, then %d\n", count, (int)code);
    last = 1;
    code = CALL(cuMemAllocAsync)(&last, 1 << 20, 0);
    printf("async %d, pointer %llu\n", (int)code, (unsigned long long)last);
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("full %zu of %zu\n", available, total);
    MUST(CALL(cuMemFree)(p[--count]));
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("after a free %zu of %zu\n", available, total);
    MUST(CALL(cuMemAlloc)(&p[count++], 1 << 20));
    while (count) MUST(CALL(cuMemFree)(p[--count]));
    return 0;
}

/* A block is freed while another device's context is current. */
static int devices(void)
{
    CUcontext context[2];
    CUdeviceptr p, q;
    int i;
    driver_load();
    MUST(CALL(cuInit)(0));
    for (i = 0; i < 2; i++) MUST(CALL(cuDevicePrimaryCtxRetain)(&context[i], i));
    MUST(CALL(cuCtxSetCurrent)(context[0]));
    MUST(CALL(cuMemAlloc)(&p, 1000));
    MUST(CALL(cuCtxSetCurrent)(context[1]));
    MUST(CALL(cuMemAlloc)(&q, 70));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

/* First calls from 8 threads at the same moment. */
static pthread_barrier_t barrier;
static CUcontext shared;

static void *first_call(void *unused)
{
    CUdeviceptr p;
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(shared));
    pthread_barrier_wait(&barrier);
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

static int at_once(void)
{
    pthread_t thread[8];
    int i;
    shared = driver_begin();
    pthread_barrier_init(&barrier, 0, 8);
    for (i = 0; i < 8; i++) CHECK(!pthread_create(&thread[i], 0, first_call, 0));
    for (i = 0; i < 8; i++) pthread_join(thread[i], 0);
    return 0;
}

/* Blocks that are freed while the process ends: by an exit handler older than ours, and by a destructor. */
static CUdeviceptr late[3];

static void free_in_handler(void)
{
    printf("handler %d\n", (int)CALL(cuMemFree)(late[0]));
    fflush(stdout);
}

__attribute__((destructor)) static void free_in_destructor(void)
{
    if (late[1]) {
        printf("destructor %d\n", (int)CALL(cuMemFree)(late[1]));
        fflush(stdout);
    }
}

static int late_frees(void)
{
    int i;
    CHECK(!atexit(free_in_handler));
    driver_begin();
    for (i = 0; i < 3; i++) MUST(CALL(cuMemAlloc)(&late[i], 1000u * (unsigned)(i + 1)));
    return 0;
}

/* As a destructor that ends the process for good: what is not written by then is lost. */
static int abrupt;

__attribute__((destructor)) static void end_abruptly(void)
{
    if (abrupt) _exit(0);
}

static int abrupt_end(void)
{
    CUdeviceptr p;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 5000));
    abrupt = 1;
    return 0;
}

/* A child made while another thread allocates all the time; the child's calls must come back, whatever they answer. */
static volatile int stop;

static void *hammer(void *unused)
{
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(shared));
    while (!stop) {
        CUdeviceptr p;
        MUST(CALL(cuMemAlloc)(&p, 4096));
        MUST(CALL(cuMemFree)(p));
    }
    return 0;
}

static int forked(void)
{
    pthread_t thread;
    int i, status;
    shared = driver_begin();
    CHECK(!pthread_create(&thread, 0, hammer, 0));
    for (i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            /* Nothing of the driver: that would be its business. The end of the process is ours. */
            exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    stop = 1;
    pthread_join(thread, 0);
    return 0;
}

/* A host function that waits for a lock, while the thread that has the lock allocates. Whoever holds a lock of its own
   across the driver's call never ends. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int waiting;

static void CUDA_CB wait_for_lock(void *unused)
{
    (void)unused;
    waiting = 1;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void *freeing(void *block)
{
    MUST(CALL(cuCtxSetCurrent)(shared));
    MUST(CALL(cuLaunchHostFunc)(0, wait_for_lock, 0));
    MUST(CALL(cuMemFree)(*(CUdeviceptr *)block));
    return 0;
}

static int callback(void)
{
    pthread_t thread;
    CUdeviceptr p, q[256];
    int i;
    shared = driver_begin();
    /* Ends a run that hangs; generous for a busy machine. */
    alarm(200);
    MUST(CALL(cuMemAlloc)(&p, 4096));
    pthread_mutex_lock(&mutex);
    CHECK(!pthread_create(&thread, 0, freeing, &p));
    while (!waiting) usleep(1000);
    usleep(20000);
    /* Enough of them that every lock of ours is asked for. */
    for (i = 0; i < 256; i++) MUST(CALL(cuMemAlloc)(&q[i], 512));
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, 0);
    for (i = 0; i < 256; i++) MUST(CALL(cuMemFree)(q[i]));
    return 0;
}

/* The report on SIGUSR2 comes at the next call, and not before. */
static int signalled(void)
{
    CUdeviceptr p, q;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 777));
    raise(SIGUSR2);
    fprintf(stderr, "raised\n");
    MUST(CALL(cuMemAlloc)(&q, 100));
    fprintf(stderr, "called\n");
    _exit(0);
}

/* What is looked up and called before cuInit is answered as without the library. */
static int before_init(void)
{
    CUdeviceptr p;
    size_t available, total;
    CUcontext context;
    driver_load();
    printf("%d", (int)CALL(cuCtxGetCurrent)(&context));
    printf(" %d", (int)CALL(cuMemAlloc)(&p, 16));
    printf(" %d", (int)CALL(cuMemGetInfo)(&available, &total));
    printf(" %d\n", (int)CALL(cuMemFree)(16));
    return 0;
}

/* A context goes, and its memory with it; another one works, and so does a device that was reset. */
static int contexts(void)
{
    CUcontext other, first = driver_begin();
    union {
        void *found;
        CUresult (*call)(CUcontext);
    } detach; /* Deprecated: not by the header's name. */
    CUdeviceptr p, q[3];
    unsigned char byte = 0;
    int i, round;
    MUST(CALL(cuMemAlloc)(&p, 100));
    detach.found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxDetach");
    CHECK(detach.found);
    for (round = 0; round < 3; round++) {
        MUST(CALL(cuCtxCreate)(&other, 0, 0, 0));
        for (i = 0; i < 3; i++) {
            MUST(CALL(cuMemAlloc)(&q[i], 5000));
            MUST(CALL(cuMemsetD8)(q[i], (unsigned char)(i + round), 5000));
        }
        for (i = 0; i < 3; i++) {
            MUST(CALL(cuMemcpyDtoH)(&byte, q[i] + 4999, 1));
            CHECK(byte == i + round);
        }
        MUST(CALL(cuMemFree)(q[1]));
        if (round < 2) {
            MUST(CALL(cuCtxDestroy)(other));
        } else {
            MUST(detach.call(other));
        }
        MUST(CALL(cuCtxSetCurrent)(first));
        printf("stale %d\n", (int)CALL(cuMemFree)(q[0]));
    }
    MUST(CALL(cuDevicePrimaryCtxReset)(0));
    first = 0;
    MUST(CALL(cuDevicePrimaryCtxRetain)(&first, 0));
    MUST(CALL(cuCtxSetCurrent)(first));
    printf("stale %d\n", (int)CALL(cuMemFree)(p));
    MUST(CALL(cuMemAlloc)(&p, 300));
    MUST(CALL(cuMemsetD8)(p, 9, 300));
    MUST(CALL(cuMemcpyDtoH)(&byte, p + 299, 1));
    CHECK(byte == 9);
    return 0;
}

static void *contexts_of_one(void *argument)
{
    int round, i, mark = (int)(size_t)argument;
    for (round = 0; round < 300; round++) {
        CUcontext own;
        CUdeviceptr p[3];
        unsigned char byte = 0;
        MUST(CALL(cuCtxCreate)(&own, 0, 0, 0));
        for (i = 0; i < 3; i++) {
            MUST(CALL(cuMemAlloc)(&p[i], 5000));
            MUST(CALL(cuMemsetD8)(p[i], (unsigned char)(3 * mark + i), 5000));
        }
        for (i = 0; i < 3; i++) {
            MUST(CALL(cuMemcpyDtoH)(&byte, p[i] + 4999, 1));
            CHECK(byte == 3 * mark + i);
        }
        MUST(CALL(cuMemFree)(p[1]));
        if (round % 2) MUST(CALL(cuMemFree)(p[0]));
        MUST(CALL(cuCtxDestroy)(own));
    }
    return 0;
}

/* While the end of a context is noted, another thread makes one, which gets its handle. */
static int contexts_of_threads(void)
{
    pthread_t thread[4];
    int i;
    driver_begin();
    for (i = 0; i < 4; i++) CHECK(!pthread_create(&thread[i], 0, contexts_of_one, (void *)(size_t)i));
    for (i = 0; i < 4; i++) pthread_join(thread[i], 0);
    return 0;
}

/* Rows are padded past the limit: what is left is nothing, and not nearly everything. */
static int padded(void)
{
    CUdeviceptr p;
    size_t pitch, available = 1, total;
    driver_begin();
    MUST(CALL(cuMemAllocPitch)(&p, &pitch, 100, 1000, 4));
    CHECK(pitch > 100);
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("%zu of %zu\n", available, total);
    return 0;
}

/* Everything is freed behind work that has not run, and asked for again. */
static int relief(void)
{
    CUdeviceptr p[10];
    CUstream stream;
    int i, round;
    driver_begin();
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 10; i++) {
            MUST(CALL(cuMemAlloc)(&p[i], 1 << 20));
            MUST(CALL(cuMemsetD8Async)(p[i], 1, 1 << 20, stream));
        }
        for (i = 0; i < 10; i++) MUST(CALL(cuMemFree)(p[i]));
    }
    MUST(CALL(cuMemAlloc)(&p[0], 9 << 20));
    MUST(CALL(cuMemFree)(p[0]));
    return 0;
}

/* 1,000 allocations and frees between two calls that mark the place in the driver's log. */
static int steady(void)
{
    CUdeviceptr p;
    int i, version;
    driver_begin();
    for (i = -100; i < 1000; i++) {
        if (!i) MUST(CALL(cuDriverGetVersion)(&version));
        MUST(CALL(cuMemAlloc)(&p, 4096));
        MUST(CALL(cuMemFree)(p));
    }
    MUST(CALL(cuDriverGetVersion)(&version));
    return 0;
}

/* What an address says of its block. */
static int addresses(void)
{
    enum { COUNT = 6 };
    static const size_t sizes[COUNT] = {100, 100, 4096, 70000, 1 << 20, 5 << 20};
    CUdeviceptr p[COUNT], start;
    CUpointer_attribute asked[2] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *answers[2];
    unsigned long long number[COUNT];
    size_t size;
    int i, j, device;
    driver_begin();
    answers[0] = &start;
    answers[1] = &size;
    for (i = 0; i < COUNT; i++) MUST(CALL(cuMemAlloc)(&p[i], sizes[i]));
    for (i = 0; i < COUNT; i++) {
        CUdeviceptr inside = p[i] + sizes[i] - 1;
        MUST(CALL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside));
        CHECK(start == p[i]);
        MUST(CALL(cuPointerGetAttribute)(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside));
        CHECK(size >= sizes[i]);
        for (j = 0; j < COUNT; j++) CHECK(j == i || p[j] + sizes[j] <= start || p[j] >= start + size);
        MUST(CALL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside));
        CHECK(device == 0);
        {
            CUdeviceptr first = start;
            size_t bytes = size;
            start = 0;
            size = 0;
            MUST(CALL(cuPointerGetAttributes)(2, asked, answers, inside));
            CHECK(start == first && size == bytes);
        }
        MUST(CALL(cuPointerGetAttribute)(&number[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, p[i]));
        for (j = 0; j < i; j++) CHECK(number[j] != number[i]);
    }
    MUST(CALL(cuMemFree)(p[2]));
    printf("freed %d", (int)CALL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p[2] + 8));
    printf(" range %d\n", (int)CALL(cuMemGetAddressRange)(&start, &size, p[2] + 8));
    return 0;
}

/* Handles for other processes: of a small block and of a large one. */
static int export(void)
{
    CUdeviceptr small, large;
    CUipcMemHandle handle;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&small, 4096));
    MUST(CALL(cuMemAlloc)(&large, 4 << 20));
    printf("small %d", (int)CALL(cuIpcGetMemHandle)(&handle, small));
    printf(" large %d\n", (int)CALL(cuIpcGetMemHandle)(&handle, large));
    return 0;
}

/* Allocations and frees inside a capture are nodes of the graph; plain ones are refused in a global capture, and work
   again after it. */
static int capture(void)
{
    CUcontext context = driver_begin();
    CUdeviceptr p = 0, before, plain = 0;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    unsigned char byte = 0;
    int i;
    (void)context;
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuMemAlloc)(&before, 4096));
    MUST(CALL(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(CALL(cuMemAllocAsync)(&p, 4096, stream));
    MUST(CALL(cuMemsetD8Async)(before, 5, 4096, stream));
    MUST(CALL(cuMemFreeAsync)(p, stream));
    /* A relaxed capture allows this. */
    MUST(CALL(cuThreadExchangeStreamCaptureMode)(&mode));
    printf("relaxed %d", (int)CALL(cuMemAlloc)(&plain, 4096));
    printf(" %d", plain ? (int)CALL(cuMemFree)(plain) : -1);
    MUST(CALL(cuThreadExchangeStreamCaptureMode)(&mode));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    MUST(CALL(cuGraphInstantiate)(&exec, graph, 0));
    for (i = 0; i < 3; i++) {
        MUST(CALL(cuMemsetD8)(before, 0, 4096));
        MUST(CALL(cuGraphLaunch)(exec, stream));
        MUST(CALL(cuStreamSynchronize)(stream));
        MUST(CALL(cuMemcpyDtoH)(&byte, before + 4095, 1));
        CHECK(byte == 5);
    }
    MUST(CALL(cuGraphExecDestroy)(exec));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    printf(" global %d", (int)CALL(cuMemAlloc)(&plain, 4096));
    graph = 0;
    printf(" end %d\n", (int)CALL(cuStreamEndCapture)(stream, &graph));
    MUST(CALL(cuMemAlloc)(&plain, 4096));
    MUST(CALL(cuMemFree)(plain));
    MUST(CALL(cuMemFree)(before));
    return 0;
}

/* The pool that serves stream-ordered allocations tells what it holds, whoever serves. */
static int pool_figures(void)
{
    CUmemoryPool pool;
    CUdeviceptr p;
    cuuint64_t used, reserved, high, keep = ~(cuuint64_t)0, threshold = 0;
    int on = 7;
    driver_begin();
    MUST(CALL(cuDeviceGetMemPool)(&pool, 0));
    MUST(CALL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CHECK(threshold == keep);
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &on));
    CHECK(on == 1);
    MUST(CALL(cuMemAllocAsync)(&p, 65536, 0));
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    CHECK(used == 65536 && reserved >= used);
    MUST(CALL(cuMemFreeAsync)(p, 0));
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    CHECK(reserved > 0);
    MUST(CALL(cuMemPoolTrimTo)(pool, 0));
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    CHECK(reserved == 0);
    used = 0;
    MUST(CALL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
    CHECK(high == 0);
    return 0;
}

/* Pools of the cases below. */
static CUmemoryPool whole, mine;

static void pools_begin(void)
{
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(CALL(cuDeviceGetDefaultMemPool)(&whole, 0));
    MUST(CALL(cuMemPoolCreate)(&mine, &properties));
}

static const char *pool_of(CUdeviceptr p)
{
    CUmemoryPool one = (CUmemoryPool)&one, listed = one;
    CUpointer_attribute asked[1] = {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    void *answers[1];
    answers[0] = &listed;
    MUST(CALL(cuPointerGetAttribute)(&one, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    MUST(CALL(cuPointerGetAttributes)(1, asked, answers, p));
    CHECK(one == listed);
    return one == whole ? "default" : one == mine ? "mine" : one ? "another" : "none";
}

/* Allocates where no pool is named, and tells from which it came. */
static void serve(const char *when)
{
    CUdeviceptr p;
    MUST(CALL(cuMemAllocAsync)(&p, 1000, 0));
    printf("%s: %s\n", when, pool_of(p));
    MUST(CALL(cuMemFreeAsync)(p, 0));
}

/* A device's current pool, chosen before the first allocation and changed since. */
static int chosen_pool(void)
{
    CUcontext first = driver_begin(), second;
    CUmemLocation here;
    pools_begin();
    here.type = CU_MEM_LOCATION_TYPE_DEVICE;
    here.id = 0;
    MUST(CALL(cuDeviceSetMemPool)(0, mine));
    serve("from the beginning");
    MUST(CALL(cuCtxCreate)(&second, 0, 0, 0));
    serve("in another context");
    MUST(CALL(cuDeviceSetMemPool)(0, whole));
    serve("given back");
    MUST(CALL(cuCtxSetCurrent)(first));
    serve("in the first context");
    /* By the other call, which CUDA 13 brought. */
    MUST(CALL(cuMemSetMemPool)(&here, CU_MEM_ALLOCATION_TYPE_PINNED, mine));
    serve("chosen again");
    MUST(CALL(cuMemSetMemPool)(&here, CU_MEM_ALLOCATION_TYPE_PINNED, whole));
    serve("given back again");
    MUST(CALL(cuDeviceSetMemPool)(0, mine));
    MUST(CALL(cuMemPoolDestroy)(mine));
    serve("destroyed");
    return 0;
}

/* The default pool is opened to another device before the first allocation, and closed again. */
static int opened_pool(void)
{
    CUcontext first = driver_begin(), second, other;
    CUmemAccessDesc access;
    CUdeviceptr p;
    pools_begin();
    MUST(CALL(cuDevicePrimaryCtxRetain)(&other, 1));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = 1;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(CALL(cuMemPoolSetAccess)(whole, &access, 1));
    MUST(CALL(cuMemAllocAsync)(&p, 4096, 0));
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuCtxSetCurrent)(other));
    printf("reached %d\n", (int)CALL(cuMemsetD8)(p, 1, 4096));
    MUST(CALL(cuCtxSetCurrent)(first));
    MUST(CALL(cuMemFreeAsync)(p, 0));
    MUST(CALL(cuMemAllocFromPoolAsync)(&p, 4096, whole, 0));
    MUST(CALL(cuMemFreeAsync)(p, 0));
    MUST(CALL(cuCtxCreate)(&second, 0, 0, 0));
    serve("in another context");
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    MUST(CALL(cuMemPoolSetAccess)(whole, &access, 1));
    serve("closed");
    MUST(CALL(cuCtxSetCurrent)(first));
    serve("in the first context");
    return 0;
}

static void settings(const char *when)
{
    cuuint64_t threshold = 1;
    int opportunistic = 7, follow = 7, internal = 7;
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic));
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow));
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal));
    printf("%s: %llu %d %d %d\n", when, (unsigned long long)threshold, opportunistic, follow, internal);
}

/* Settings of the default pool, made before there is a context, and whatever happens then. */
static int kept_settings(void)
{
    CUcontext first, second;
    CUdeviceptr p;
    cuuint64_t threshold = 4096, reserved = 1, wrong = 1;
    int off = 0;
    driver_load();
    MUST(CALL(cuInit)(0));
    pools_begin();
    MUST(CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off));
    settings("without a context");
    MUST(CALL(cuCtxCreate)(&first, 0, 0, 0));
    settings("before an allocation");
    serve("first");
    settings("after it");
    /* What is set is in force: less than a page may stay. */
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    printf("kept %llu\n", (unsigned long long)reserved);
    MUST(CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &off));
    MUST(CALL(cuCtxCreate)(&second, 0, 0, 0));
    serve("second context");
    threshold = 8192;
    MUST(CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    settings("set there");
    MUST(CALL(cuDeviceSetMemPool)(0, mine));
    settings("while another pool serves");
    serve("another pool");
    MUST(CALL(cuDeviceSetMemPool)(0, whole));
    settings("when it serves again");
    serve("default pool again");
    printf("refused %d", (int)CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &wrong));
    printf(" %d", (int)CALL(cuMemPoolSetAttribute)(whole, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &wrong));
    printf(" %d\n", (int)CALL(cuMemPoolSetAttribute)(whole, (CUmemPool_attribute)99, &wrong));
    MUST(CALL(cuCtxDestroy)(first));
    MUST(CALL(cuCtxSetCurrent)(second));
    settings("with the first context gone");
    MUST(CALL(cuMemAllocAsync)(&p, 1000, 0));
    MUST(CALL(cuMemFreeAsync)(p, 0));
    return 0;
}

static void used(const char *when)
{
    cuuint64_t now;
    MUST(CALL(cuMemPoolGetAttribute)(whole, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now));
    printf("%s: used %llu\n", when, (unsigned long long)now);
}

/* Memory from the default pool by both calls, from another pool, and plain. */
static int default_pool(void)
{
    CUdeviceptr p, q, r, plain, bad = 1;
    CUstream stream;
    CUgraph graph;
    driver_begin();
    pools_begin();
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuMemAllocFromPoolAsync)(&p, 1 << 20, whole, stream));
    used("by name");
    MUST(CALL(cuMemAllocAsync)(&q, 4096, 0));
    used("without a name");
    MUST(CALL(cuMemAllocFromPoolAsync)(&r, 4096, mine, stream));
    MUST(CALL(cuMemAlloc)(&plain, 4096));
    used("from elsewhere");
    printf("%s %s %s %s\n", pool_of(p), pool_of(q + 4095), pool_of(r), pool_of(plain));
    MUST(CALL(cuMemsetD8Async)(p, 1, 1 << 20, stream));
    MUST(CALL(cuMemFreeAsync)(p, stream));
    printf("again %d\n", (int)CALL(cuMemFreeAsync)(p, stream));
    MUST(CALL(cuStreamSynchronize)(stream));
    used("freed");
    /* The other free takes it as well. */
    MUST(CALL(cuMemAllocFromPoolAsync)(&p, 8192, whole, 0));
    MUST(CALL(cuMemFree)(q));
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuCtxSynchronize)());
    used("all freed");
    /* As the call without a name: of no bytes is a block. */
    MUST(CALL(cuMemAllocFromPoolAsync)(&p, 0, whole, 0));
    MUST(CALL(cuMemFreeAsync)(p, 0));
    printf("no pool %d\n", CALL(cuMemAllocFromPoolAsync)(&bad, 4096, 0, 0) != CUDA_SUCCESS);
    /* In a capture it is a node. */
    MUST(CALL(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(CALL(cuMemAllocFromPoolAsync)(&p, 4096, whole, stream));
    MUST(CALL(cuMemFreeAsync)(p, stream));
    MUST(CALL(cuStreamEndCapture)(stream, &graph));
    MUST(CALL(cuGraphDestroy)(graph));
    MUST(CALL(cuMemFreeAsync)(r, stream));
    MUST(CALL(cuMemFree)(plain));
    return 0;
}

/* A set on a second stream: first ordered after the allocation by an event, then not. */
static int accesses(void)
{
    CUstream s, t;
    CUevent event;
    CUdeviceptr p, q;
    driver_begin();
    MUST(CALL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&t, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    MUST(CALL(cuMemAllocAsync)(&p, 4096, s));
    MUST(CALL(cuMemsetD8Async)(p, 1, 4096, s));
    MUST(CALL(cuEventRecord)(event, s));
    MUST(CALL(cuStreamWaitEvent)(t, event, 0));
    MUST(CALL(cuMemsetD8Async)(p, 2, 4096, t));
    MUST(CALL(cuMemFreeAsync)(p, t));
    if (getenv("UNORDERED")) {
        MUST(CALL(cuMemAllocAsync)(&q, 4096, s));
        MUST(CALL(cuMemsetD8Async)(q, 3, 4096, t));
        MUST(CALL(cuMemFreeAsync)(q, s));
    }
    MUST(CALL(cuCtxSynchronize)());
    return 0;
}

/* Work on blocking streams and on the legacy one, ordered by nothing else; and what a copy to the host has waited for. */
static int legacy_order(void)
{
    CUdeviceptr p;
    CUstream blocking, other;
    char bytes[4096];
    driver_begin();
    MUST(CALL(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    MUST(CALL(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuMemAllocAsync)(&p, 4096, blocking));
    MUST(CALL(cuMemsetD8Async)(p, 1, 4096, 0));
    MUST(CALL(cuMemsetD8Async)(p, 2, 4096, blocking));
    MUST(CALL(cuMemsetD8)(p, 3, 4096));
    MUST(CALL(cuMemsetD8Async)(p, 4, 4096, (CUstream)2));
    MUST(CALL(cuMemcpyDtoH)(bytes, p, 4096));
    CHECK(bytes[0] == 4);
    MUST(CALL(cuMemsetD8Async)(p, 5, 4096, other));
    /* This one is ordered by nothing. */
    if (getenv("UNORDERED")) MUST(CALL(cuMemsetD8Async)(p, 6, 4096, 0));
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuMemFreeAsync)(p, blocking));
    return 0;
}

/* Memory that a pool holds and does not use is there for every other kind. */
static int others(void)
{
    CUdeviceptr p, q, r;
    size_t pitch;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 40 << 20));
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuMemAllocAsync)(&q, 40 << 20, 0));
    MUST(CALL(cuMemFreeAsync)(q, 0));
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuMemAlloc)(&p, 50 << 20));
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuMemAllocPitch)(&r, &pitch, 1 << 20, 40, 4));
    MUST(CALL(cuMemFree)(r));
    return 0;
}

/* Whether the driver's pool keeps its memory over a synchronise. */
static int keeps(void)
{
    CUmemoryPool pool;
    CUdeviceptr p;
    cuuint64_t reserved;
    driver_begin();
    MUST(CALL(cuDeviceGetMemPool)(&pool, 0));
    MUST(CALL(cuMemAllocAsync)(&p, 65536, 0));
    MUST(CALL(cuMemFreeAsync)(p, 0));
    MUST(CALL(cuCtxSynchronize)());
    MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    printf("%d\n", reserved > 0);
    return 0;
}

/* A capture of the thread's own default stream begins and ends: then the pool serves again. */
static int capture_per_thread(void)
{
    CUdeviceptr p;
    CUgraph graph;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuStreamBeginCapture)(0, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(CALL(cuStreamEndCapture)(0, &graph));
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

/* An end of a capture on a stream that it did not begin on is refused, and the capture goes on: until it is ended where it
   began, and in every later one, what a capture forbids is forbidden. */
static int capture_ended_elsewhere(void)
{
    CUstream s, t;
    CUevent event;
    CUgraph graph;
    CUdeviceptr p;
    int round;
    driver_begin();
    MUST(CALL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&t, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    for (round = 0; round < 2; round++) {
        MUST(CALL(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        if (!round) {
            MUST(CALL(cuEventRecord)(event, s));
            MUST(CALL(cuStreamWaitEvent)(t, event, 0));
            printf("end elsewhere %d\n", (int)CALL(cuStreamEndCapture)(t, &graph));
        }
        printf("alloc %d\n", (int)CALL(cuMemAlloc)(&p, 4096));
        printf("end %d\n", (int)CALL(cuStreamEndCapture)(s, &graph));
    }
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

/* A stream is destroyed while it is captured: one that joined the capture, which goes on, and one that it began on, which ends
   it. Then the pool serves again, and memory that is freed is there again, more often than there is room for. */
static int capture_of_a_destroyed_stream(void)
{
    CUstream s, t;
    CUevent event;
    CUgraph graph;
    CUdeviceptr p;
    int round;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&t, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    MUST(CALL(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CALL(cuEventRecord)(event, s));
    MUST(CALL(cuStreamWaitEvent)(t, event, 0));
    MUST(CALL(cuStreamDestroy)(t));
    printf("alloc %d", (int)CALL(cuMemAlloc)(&p, 4096));
    printf(" end %d\n", (int)CALL(cuStreamEndCapture)(s, &graph));
    MUST(CALL(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CALL(cuStreamDestroy)(s));
    for (round = 0; round < 32; round++) {
        MUST(CALL(cuMemAlloc)(&p, 8 << 20));
        MUST(CALL(cuMemFree)(p));
    }
    return 0;
}

/* Contexts one after the other, each with as many allocations as its number. */
static int contexts_in_turn(void)
{
    CUcontext context;
    CUdeviceptr p;
    int turn, i;
    driver_load();
    MUST(CALL(cuInit)(0));
    for (turn = 1; turn <= 3; turn++) {
        MUST(CALL(cuCtxCreate)(&context, 0, 0, 0));
        for (i = 0; i < turn; i++) {
            MUST(CALL(cuMemAlloc)(&p, 4096));
            MUST(CALL(cuMemFree)(p));
        }
        MUST(CALL(cuCtxDestroy)(context));
    }
    return 0;
}

/* Contexts one after the other that take their memory along, plain and stream-ordered: what there is is there for each. */
static int contexts_with_memory(void)
{
    CUcontext context;
    CUdeviceptr p[4];
    size_t available, total;
    int turn, i;
    driver_load();
    MUST(CALL(cuInit)(0));
    for (turn = 0; turn < 8; turn++) {
        MUST(CALL(cuCtxCreate)(&context, 0, 0, 0));
        for (i = 0; i < 4; i++) MUST(CALL(cuMemAlloc)(&p[i], 1 << 20));
        MUST(CALL(cuMemsetD8)(p[3], (unsigned char)turn, 1 << 20));
        MUST(CALL(cuMemFree)(p[2]));
        MUST(CALL(cuMemGetInfo)(&available, &total));
        printf("%zu of %zu\n", available, total);
        MUST(CALL(cuCtxDestroy)(context));
    }
    return 0;
}

static int contexts_over;

/* Contexts that end with memory in use, whose addresses the driver gives to others at once. */
static void *contexts_come_and_go(void *unused)
{
    CUcontext context;
    CUdeviceptr p;
    int turn, i;
    for (turn = 0; turn < 1500; turn++) {
        MUST(CALL(cuCtxCreate)(&context, 0, 0, 0));
        for (i = 0; i < 16; i++) MUST(CALL(cuMemAlloc)(&p, 8 << 10));
        MUST(CALL(cuCtxDestroy)(context));
    }
    __atomic_store_n(&contexts_over, 1, __ATOMIC_RELEASE);
    return unused;
}

/* Memory that comes where that of another thread's context was: its addresses are its own from the first moment. */
static int addresses_of_ended_contexts(void)
{
    pthread_t thread;
    CUdeviceptr p, start;
    size_t pitch, bytes, offset, wrong = 0;
    driver_begin();
    CHECK(!pthread_create(&thread, 0, contexts_come_and_go, 0));
    while (!__atomic_load_n(&contexts_over, __ATOMIC_ACQUIRE)) {
        MUST(CALL(cuMemAllocPitch)(&p, &pitch, 1024, 64, 4));
        for (offset = 0; offset < 64 << 10; offset += 6000) {
            start = 0;
            wrong += CALL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + offset) || start != p;
            start = 0;
            wrong += CALL(cuMemGetAddressRange)(&start, &bytes, p + offset) || start != p;
        }
        MUST(CALL(cuMemFree)(p));
    }
    pthread_join(thread, 0);
    printf("%zu wrong\n", wrong);
    return 0;
}

/* Frees in order that must be refused: on a stream that has ended, without a context, on a stream that is being captured. */
static void refused_in_order(CUdeviceptr p, CUcontext context, CUstream gone, CUstream captured)
{
    CUgraph graph;
    printf(" ended stream %d", CALL(cuMemFreeAsync)(p, gone) != CUDA_SUCCESS);
    MUST(CALL(cuCtxSetCurrent)(0));
    printf(" no context %d", (int)CALL(cuMemFreeAsync)(p, 0));
    MUST(CALL(cuCtxSetCurrent)(context));
    MUST(CALL(cuStreamBeginCapture)(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf(" captured %d", CALL(cuMemFreeAsync)(p, captured) != CUDA_SUCCESS);
    (void)CALL(cuStreamEndCapture)(captured, &graph);
}

/* Every kind of memory is first freed by calls that must refuse it, then by its own: which finds it. More in all than there
   is, so that what a refusal forgets is missed. */
static int refused_frees(void)
{
    enum { MIB = 1 << 20, ROUNDS = 100 };
    CUcontext context = driver_begin();
    CUdeviceptr p;
    CUstream stream, captured, gone;
    CUgraph graph;
    void *host;
    size_t available, total;
    int round;
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&captured, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&gone, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamDestroy)(gone));
    for (round = 0; round < ROUNDS; round++) {
        /* Of plain memory. */
        MUST(CALL(cuMemAlloc)(&p, 8 * MIB));
        printf("plain: host %d", (int)CALL(cuMemFreeHost)((void *)p));
        printf(" inside %d", (int)CALL(cuMemFree)(p + 256));
        printf(" async inside %d", (int)CALL(cuMemFreeAsync)(p + 256, stream));
        refused_in_order(p, context, gone, captured);
        MUST(CALL(cuStreamBeginCapture)(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        printf(" while capturing %d", CALL(cuMemFree)(p) != CUDA_SUCCESS);
        (void)CALL(cuStreamEndCapture)(captured, &graph);
        printf(" own %d", (int)(round % 2 ? CALL(cuMemFree)(p) : CALL(cuMemFreeAsync)(p, stream)));
        printf(" again %d\n", (int)CALL(cuMemFree)(p));
        /* Of stream-ordered memory. */
        MUST(CALL(cuMemAllocAsync)(&p, 8 * MIB, stream));
        printf("ordered: host %d", (int)CALL(cuMemFreeHost)((void *)p));
        printf(" inside %d", (int)CALL(cuMemFreeAsync)(p + 256, stream));
        refused_in_order(p, context, gone, captured);
        printf(" own %d", (int)(round % 2 ? CALL(cuMemFree)(p) : CALL(cuMemFreeAsync)(p, stream)));
        printf(" again %d\n", (int)CALL(cuMemFreeAsync)(p, stream));
        MUST(CALL(cuCtxSynchronize)());
        /* Of the host's. */
        MUST(CALL(cuMemAllocHost)(&host, MIB));
        printf("host: plain %d", (int)CALL(cuMemFree)((CUdeviceptr)host));
        printf(" async %d", (int)CALL(cuMemFreeAsync)((CUdeviceptr)host, stream));
        printf(" own %d", (int)CALL(cuMemFreeHost)(host));
        printf(" again %d\n", (int)CALL(cuMemFreeHost)(host));
    }
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("all there %d\n", available == total);
    return 0;
}

/* What a block answers for itself, and whether it is its own only. */
static void answers(const char *what, CUdeviceptr p, CUdeviceptr other)
{
    CUcontext context = (CUcontext)1, current;
    unsigned long long block = 0, others = 0;
    CUpointer_attribute mapping = CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    void *to = &block;
    size_t size = 0;
    MUST(CALL(cuCtxGetCurrent)(&current));
    printf("%s: context %d", what, (int)CALL(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    printf(" %s", context == current ? "this" : context ? "other" : "none");
    printf(" memory %d", (int)CALL(cuPointerGetAttribute)(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, p));
    MUST(CALL(cuPointerGetAttribute)(&others, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, other));
    printf(" its own %d", block != others);
    block = 1;
    printf(" mapping %d %d", (int)CALL(cuPointerGetAttribute)(&block, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p),
           (int)CALL(cuPointerGetAttribute)(&block, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p));
    MUST(CALL(cuPointerGetAttributes)(1, &mapping, &to, p));
    printf(" %llu", block);
    /* What is on a mapping of the program's own. */
    printf(" retain %d", (int)CALL(cuMemRetainAllocationHandle)(&handle, (void *)p));
    printf(" access %d", (int)CALL(cuMemGetAccess)(&others, &access.location, p));
    printf(" give %d", (int)CALL(cuMemSetAccess)(p & ~(CUdeviceptr)0x1fffff, 2 << 20, &access, 1));
    printf(" unmap %d", (int)CALL(cuMemUnmap)(p & ~(CUdeviceptr)0x1fffff, 2 << 20));
    printf(" range %d", (int)CALL(cuMemGetAddressRange)(0, &size, p));
    printf(" of bytes %d\n", size > 0);
}

/* Calls that have more wrong with them than an address, and what they do to a capture besides being refused. */
static void refused_calls(const char *what, CUcontext context, CUstream captured)
{
    CUdeviceptr p, gone;
    CUgraph graph;
    int ordered = what[0] == 'o', way, unused;
    if (ordered) MUST(CALL(cuMemAllocAsync)(&p, 4096, 0));
    else MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemAlloc)(&gone, 4096));
    MUST(CALL(cuMemFree)(gone));
    printf("%s: freed is %d %d\n", what, (int)CALL(cuMemGetAddressRange)(0, 0, gone),
           (int)CALL(cuPointerGetAttribute)(&unused, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, gone));
    MUST(CALL(cuCtxSetCurrent)(0));
    printf("no context: %d", (int)CALL(cuMemFree)(p));
    printf(" inside %d", (int)CALL(cuMemFree)(p + 256));
    printf(" host %d", (int)CALL(cuMemFreeHost)((void *)p));
    printf(" range %d\n", (int)CALL(cuMemGetAddressRange)(0, 0, p));
    MUST(CALL(cuCtxSetCurrent)(context));
    for (way = 0; way < 5; way++) {
        CUdeviceptr q = 0;
        MUST(CALL(cuStreamBeginCapture)(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        if (way == 0) printf("captured: %d", (int)CALL(cuMemFree)(p));
        if (way == 1) printf("inside: %d", (int)CALL(cuMemFree)(p + 256));
        if (way == 2) printf("on its stream: %d", (int)CALL(cuMemFreeAsync)(p, captured));
        if (way == 3) printf("on the legacy stream: %d", (int)CALL(cuMemFreeAsync)(p, 0));
        if (way == 4) printf("from the legacy stream: %d", (int)CALL(cuMemAllocAsync)(&q, 512, 0));
        if (way != 2) printf(" then %d", (int)CALL(cuMemFreeAsync)(p, captured));
        printf(" end %d\n", (int)CALL(cuStreamEndCapture)(captured, &graph));
    }
    MUST(CALL(cuMemFree)(p));
    MUST(CALL(cuCtxSynchronize)());
}

static int refusals(void)
{
    CUcontext context = driver_begin(), other;
    CUdeviceptr p, q;
    CUstream captured;
    CUgraph graph;
    /* Blocking, so that the legacy stream would have to wait for it. */
    MUST(CALL(cuStreamCreate)(&captured, CU_STREAM_DEFAULT));
    refused_calls("plain", context, captured);
    refused_calls("ordered", context, captured);
    MUST(CALL(cuMemAlloc)(&p, 1000));
    MUST(CALL(cuMemAlloc)(&q, 1000));
    answers("plain", p, q);
    MUST(CALL(cuMemFree)(q));
    MUST(CALL(cuMemAllocAsync)(&q, 0, 0));
    answers("ordered, of no bytes", q, p);
    MUST(CALL(cuMemFree)(q));
    MUST(CALL(cuMemFree)(p));
    /* More than can be counted, and a bad flag: which of the two is told first is the driver's business. */
    MUST(CALL(cuMemAlloc)(&p, 1000));
    printf("too much: %d\n", (int)CALL(cuMemAllocManaged)(&q, (size_t)-1, 7));
    MUST(CALL(cuMemFree)(p));
    /* The thread's own streams of two contexts are captured; one capture ends, and its context. */
    MUST(CALL(cuStreamBeginCapture)(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CALL(cuCtxCreate)(&other, 0, 0, 0));
    MUST(CALL(cuStreamBeginCapture)(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CALL(cuStreamEndCapture)(CU_STREAM_PER_THREAD, &graph));
    MUST(CALL(cuCtxDestroy)(other));
    MUST(CALL(cuCtxSetCurrent)(context));
    printf("still captured: %d", (int)CALL(cuMemAlloc)(&p, 1000));
    printf(" end %d\n", (int)CALL(cuStreamEndCapture)(CU_STREAM_PER_THREAD, &graph));
    return 0;
}

/* Memory that another context's stream uses last and frees: by name, and as that context's default stream. Whoever gets it
   next must not disturb what that stream still reads. More rounds than there is memory for. */
static int other_contexts_streams(void)
{
    enum { BYTES = 1 << 20, ROUNDS = 100 };
    unsigned char *copy;
    CUcontext first = driver_begin(), second;
    CUstream mine, others[2] = {0, 0};
    CUdeviceptr p, q, r;
    int round, i;
    MUST(CALL(cuStreamCreate)(&mine, CU_STREAM_NON_BLOCKING));
    /* A copy to memory that is not pinned would be waited for. */
    MUST(CALL(cuMemAllocHost)((void **)&copy, BYTES));
    MUST(CALL(cuCtxCreate)(&second, 0, 0, 0));
    MUST(CALL(cuStreamCreate)(&others[1], CU_STREAM_NON_BLOCKING));
    /* A pool of its own serves it too. */
    MUST(CALL(cuMemAlloc)(&p, BYTES));
    MUST(CALL(cuMemFree)(p));
    for (round = 0; round < ROUNDS; round++) {
        CUstream theirs = others[round % 2];
        int plain = round % 4 / 2;
        CUresult code;
        MUST(CALL(cuCtxSetCurrent)(first));
        if (plain) {
            MUST(CALL(cuMemAlloc)(&p, BYTES));
        } else {
            MUST(CALL(cuMemAllocAsync)(&p, BYTES, mine));
        }
        MUST(CALL(cuStreamSynchronize)(mine));
        /* A stream's name says whose it is, whatever is current; the default stream's does not. */
        if (!theirs || round % 8 == 1) MUST(CALL(cuCtxSetCurrent)(second));
        MUST(CALL(cuMemsetD8Async)(p, (unsigned char)round, BYTES, theirs));
        MUST(CALL(cuMemcpyDtoHAsync)(copy, p, BYTES, theirs));
        code = CALL(cuMemFreeAsync)(p, theirs);
        printf("free %d", (int)code);
        /* Plain memory that is freed so is gone only when the stream has come this far. */
        printf(" again %d\n", plain ? -1 : (int)CALL(cuMemFreeAsync)(p, theirs));
        MUST(CALL(cuCtxSetCurrent)(first));
        MUST(CALL(cuMemAllocAsync)(&q, BYTES, mine));
        MUST(CALL(cuMemAlloc)(&r, BYTES));
        MUST(CALL(cuMemsetD8Async)(q, 0xee, BYTES, mine));
        MUST(CALL(cuMemsetD8Async)(r, 0xee, BYTES, mine));
        MUST(CALL(cuStreamSynchronize)(mine));
        MUST(CALL(cuCtxSetCurrent)(second));
        MUST(CALL(cuStreamSynchronize)(theirs));
        for (i = 0; i < BYTES; i++) CHECK(copy[i] == (unsigned char)round);
        MUST(CALL(cuCtxSetCurrent)(first));
        MUST(CALL(cuMemFreeAsync)(q, mine));
        MUST(CALL(cuMemFree)(r));
    }
    MUST(CALL(cuMemFreeHost)(copy));
    return 0;
}

/* Memory comes on the stream of a context that is not current: it is that context's, whichever goes first. */
static int another_context_current(void)
{
    enum { BYTES = 1 << 20 };
    CUcontext first = driver_begin(), second;
    CUstream stream;
    CUdeviceptr p[4], mine;
    size_t available, total;
    int turn, i;
    MUST(CALL(cuMemAlloc)(&mine, 1000));
    for (turn = 0; turn < 16; turn++) {
        MUST(CALL(cuCtxCreate)(&second, 0, 0, 0));
        MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
        MUST(CALL(cuCtxSetCurrent)(first));
        for (i = 0; i < 4; i++) MUST(CALL(cuMemAllocAsync)(&p[i], BYTES, stream));
        for (i = 0; i < 4; i++) MUST(CALL(cuMemsetD8Async)(p[i], (unsigned char)i, BYTES, stream));
        for (i = 0; i < 4; i++) MUST(CALL(cuMemFreeAsync)(p[i], stream));
        MUST(CALL(cuStreamSynchronize)(stream));
        MUST(CALL(cuMemGetInfo)(&available, &total));
        MUST(CALL(cuCtxDestroy)(second));
        MUST(CALL(cuMemGetInfo)(&available, &total));
        printf("%zu of %zu\n", available, total);
    }
    MUST(CALL(cuMemFree)(mine));
    return 0;
}

/* A thread whose cancellation is pending: it is not cancelled inside a call, nor is what it has asked for forgotten. */
static void *cancelled(void *unused)
{
    CUdeviceptr p, q;
    size_t available, total;
    void *host;
    int state, i;
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(shared));
    pthread_cancel(pthread_self());
    for (i = 0; i < 2; i++) {
        MUST(CALL(cuMemAlloc)(&p, 1000));
        if (getenv("SMP_REPORT_SIGNAL")) raise(SIGUSR2);
        MUST(CALL(cuMemAllocAsync)(&q, 1000, 0));
        MUST(CALL(cuMemGetInfo)(&available, &total));
        MUST(CALL(cuMemFreeAsync)(q, 0));
        MUST(CALL(cuMemFree)(p));
        MUST(CALL(cuMemAllocHost)(&host, 1000));
        MUST(CALL(cuMemFreeHost)(host));
        /* Found as it was left, whichever way. */
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        CHECK(state == PTHREAD_CANCEL_ENABLE);
        MUST(CALL(cuMemAlloc)(&p, 1000));
        MUST(CALL(cuMemFree)(p));
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
        CHECK(state == PTHREAD_CANCEL_DISABLE);
    }
    waiting = 1;
    pthread_testcancel();
    fprintf(stderr, "not cancelled\n");
    exit(1);
}

static int cancellation(void)
{
    pthread_t thread;
    CUdeviceptr p;
    void *end = 0;
    int i;
    shared = driver_begin();
    for (i = 0; i < 3; i++) {
        waiting = 0;
        CHECK(!pthread_create(&thread, 0, cancelled, 0));
        CHECK(!pthread_join(thread, &end));
        CHECK(waiting && end == PTHREAD_CANCELED);
    }
    MUST(CALL(cuMemAlloc)(&p, 1000));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

/* The process is ended by such a thread. */
static void *ending(void *unused)
{
    (void)unused;
    pthread_cancel(pthread_self());
    exit(7);
}

static int cancelled_exit(void)
{
    pthread_t thread;
    CUdeviceptr p;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 1000));
    CHECK(!pthread_create(&thread, 0, ending, 0));
    pthread_join(thread, 0);
    return 1;
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                                     \
    if (argc > 1 && !strcmp(argv[1], #name)) return name();
    CASE(null_info)
    CASE(limit)
    CASE(devices)
    CASE(at_once)
    CASE(late_frees)
    CASE(abrupt_end)
    CASE(forked)
    CASE(callback)
    CASE(signalled)
    CASE(before_init)
    CASE(contexts)
    CASE(contexts_of_threads)
    CASE(padded)
    CASE(relief)
    CASE(steady)
    CASE(addresses)
    CASE(export)
    CASE(capture)
    CASE(pool_figures)
    CASE(chosen_pool)
    CASE(opened_pool)
    CASE(kept_settings)
    CASE(default_pool)
    CASE(accesses)
    CASE(legacy_order)
    CASE(others)
    CASE(keeps)
    CASE(capture_per_thread)
    CASE(capture_ended_elsewhere)
    CASE(capture_of_a_destroyed_stream)
    CASE(contexts_in_turn)
    CASE(contexts_with_memory)
    CASE(addresses_of_ended_contexts)
    CASE(refused_frees)
    CASE(refusals)
    CASE(other_contexts_streams)
    CASE(another_context_current)
    CASE(cancellation)
    CASE(cancelled_exit)
    return 2;
}
