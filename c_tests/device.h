/* device.h: the device a C test runs on, chosen by the environment, and what only its stand-in or model can do.
 *
 * SMP_TEST_DEVICE=model (or unset): the model device. SMP_TEST_DEVICE=cuda: the CUDA device over the stand-in driver, a
 * library that SMP_CUDA_LIBRARY names and whose control calls (simcuda.h) are found in it by dlsym.
 *
 * On CUDA a test that says itself what runs when, as RUN() has it, gets that: its lazy device holds every stream behind a
 * closed gate until the test advances or synchronises, its eager device runs all at submission. A test whose rule holds
 * whatever runs when, RUN_ANY_PACE(), is left to the pace that SIMCUDA_MODE and SIMCUDA_SEED set; with
 * SMP_TEST_ANY_PACE_ONLY=1 only such tests run.
 *
 * What the library cannot see on CUDA differs there, and a test says so: REFUTED, BY_DEVICE(). A test that cannot be said
 * on CUDA is a MODEL_ONLY(test, "reason"); its reason is printed, and the program counts it.
 */
#ifndef SMP_C_TESTS_DEVICE_H
#define SMP_C_TESTS_DEVICE_H

#include "test.h"

#include <dlfcn.h>

/* ---- the stand-in ----------------------------------------------------------------------------------------------- */

#define STAND_IN_EAGER 0
#define STAND_IN_LAZY 1

/* The driver and control calls that the tests use. CUstream is smp_stream, CUcontext a pointer. */
struct stand_in {
    int in_use; /* SMP_TEST_DEVICE=cuda */
    int (*fail)(const char *name, uint64_t use, int error, int onwards);
    void (*clear_failures)(void);
    int (*set_mode)(int mode, uint64_t seed);
    int (*submit)(smp_stream stream, uint64_t units);
    int (*run)(smp_stream stream, uint64_t count, uint64_t *ran);
    int (*progress)(smp_stream stream, uint64_t *submitted, uint64_t *executed);
    int (*gate_close)(smp_stream stream);
    int (*gate_open)(smp_stream stream);
    int (*set_free_memory)(int device, uint64_t bytes);
    int (*set_current)(void *context);
    int (*copy_to)(uint64_t to, const void *from, size_t bytes, smp_stream stream);
    int (*copy_from)(void *to, uint64_t from, size_t bytes, smp_stream stream);
    int (*wait)(smp_stream stream);
    void *context;    /* the primary context of device 0 */
    int mode;         /* by SIMCUDA_MODE */
    uint64_t seed;    /* by SIMCUDA_SEED */
    int any_pace;     /* the current test's rule holds whatever runs when */
    int holding;      /* a lazy device is open, and streams stand behind gates */
    smp_stream held[4096];
    size_t held_count;
};

static struct stand_in sim;

static inline void stand_in_find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("SMP_CUDA_LIBRARY has no %s: %s\n", name, dlerror());
        exit(2);
    }
    memcpy(to, &found, sizeof found);
}

/* What the environment asks for; 1 for CUDA. The first call loads the stand-in. */
static inline int on_cuda(void)
{
    static int known;
    const char *device, *path, *mode, *seed;
    void *library;
    int (*init)(unsigned) = NULL;
    int (*retain)(void **, int) = NULL;
    if (known)
        return sim.in_use;
    known = 1;
    device = getenv("SMP_TEST_DEVICE");
    if (device == NULL || strcmp(device, "model") == 0)
        return 0;
    if (strcmp(device, "cuda") != 0) {
        printf("SMP_TEST_DEVICE is \"%s\"; it is model or cuda\n", device);
        exit(2);
    }
    path = getenv("SMP_CUDA_LIBRARY");
    library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (library == NULL) {
        printf("SMP_TEST_DEVICE=cuda needs the stand-in driver in SMP_CUDA_LIBRARY: %s\n",
               path ? dlerror() : "it is not set");
        exit(2);
    }
    stand_in_find(library, "simcuda_fail", &sim.fail);
    stand_in_find(library, "simcuda_clear_failures", &sim.clear_failures);
    stand_in_find(library, "simcuda_set_mode", &sim.set_mode);
    stand_in_find(library, "simcuda_submit", &sim.submit);
    stand_in_find(library, "simcuda_run", &sim.run);
    stand_in_find(library, "simcuda_progress", &sim.progress);
    stand_in_find(library, "simcuda_gate_close", &sim.gate_close);
    stand_in_find(library, "simcuda_gate_open", &sim.gate_open);
    stand_in_find(library, "simcuda_set_free_memory", &sim.set_free_memory);
    stand_in_find(library, "cuCtxSetCurrent", &sim.set_current);
    stand_in_find(library, "cuMemcpyHtoDAsync_v2", &sim.copy_to);
    stand_in_find(library, "cuMemcpyDtoHAsync_v2", &sim.copy_from);
    stand_in_find(library, "cuStreamSynchronize", &sim.wait);
    stand_in_find(library, "cuInit", &init);
    stand_in_find(library, "cuDevicePrimaryCtxRetain", &retain);
    /* Retained for good and current, so that default streams mean the same to the tests and to the library. */
    if (init(0) != 0 || retain(&sim.context, 0) != 0 || sim.set_current(sim.context) != 0) {
        printf("the stand-in driver does not start\n");
        exit(2);
    }
    mode = getenv("SIMCUDA_MODE");
    seed = getenv("SIMCUDA_SEED");
    sim.mode = mode == NULL || strcmp(mode, "eager") == 0 ? 0 : strcmp(mode, "lazy") == 0 ? 1 : 2;
    sim.seed = seed ? strtoull(seed, NULL, 10) : 1;
    sim.in_use = 1;
    return 1;
}

static inline void must_drive(int code, const char *what)
{
    if (code == 0)
        return;
    printf("set-up failed: the stand-in's %s gives %d\n", what, code);
    test_abandon();
}

/* The stream's gate is closed now and after each synchronise, if a lazy device is open. */
static inline void hold(smp_stream stream)
{
    if (!sim.holding || sim.held_count == sizeof sim.held / sizeof *sim.held)
        return;
    sim.held[sim.held_count++] = stream;
    must_drive(sim.gate_close(stream), "simcuda_gate_close");
}

static inline void gates_open(void)
{
    size_t i;
    for (i = 0; i < sim.held_count; ++i)
        (void)sim.gate_open(sim.held[i]); /* a destroyed stream has none */
}

static inline void gates_close(void)
{
    size_t i;
    for (i = 0; i < sim.held_count; ++i)
        (void)sim.gate_close(sim.held[i]);
}

/* Lets go of one stream, before it is destroyed: what it still has runs when something needs it. */
static inline void let_go(smp_stream stream)
{
    size_t i;
    for (i = 0; i < sim.held_count; ++i) {
        if (sim.held[i] == stream) {
            (void)sim.gate_open(stream);
            sim.held[i--] = sim.held[--sim.held_count];
        }
    }
}

/* A device is about to be opened: lazy, or running at submission. */
static inline void set_pace(int lazy)
{
    if (!on_cuda() || sim.any_pace)
        return;
    must_drive(sim.set_mode(lazy ? STAND_IN_LAZY : STAND_IN_EAGER, 0), "simcuda_set_mode");
    if (lazy && !sim.holding) {
        sim.holding = 1;
        hold((smp_stream)(uintptr_t)1);
        hold((smp_stream)(uintptr_t)2);
    }
}

/* Before each test: no gate, no planned failure, all memory, the environment's pace. */
static inline void reset_stand_in(int any_pace)
{
    if (!on_cuda())
        return;
    gates_open();
    sim.held_count = 0;
    sim.holding = 0;
    sim.any_pace = any_pace;
    sim.clear_failures();
    (void)sim.set_free_memory(0, UINT64_MAX);
    (void)sim.set_mode(sim.mode, sim.seed);
}

/* Calls during which the streams may run as the pace has it: those that wait for work. */
static inline smp_status open_stream_synchronize(smp_device device, smp_stream stream)
{
    smp_status status;
    gates_open();
    status = smp_stream_synchronize(device, stream);
    gates_close();
    return status;
}

static inline smp_status open_event_synchronize(smp_event event)
{
    smp_status status;
    gates_open();
    status = smp_event_synchronize(event);
    gates_close();
    return status;
}

static inline smp_status open_device_synchronize(smp_device device)
{
    smp_status status;
    gates_open();
    status = smp_device_synchronize(device);
    gates_close();
    return status;
}

static inline smp_status open_device_close(smp_device device)
{
    smp_status status;
    gates_open();
    status = smp_device_close(device);
    gates_close();
    return status;
}

static inline smp_status open_pool_destroy(smp_pool pool)
{
    smp_status status;
    gates_open();
    status = smp_pool_destroy(pool);
    gates_close();
    return status;
}

static inline smp_status open_stream_destroy(smp_stream stream)
{
    let_go(stream);
    return smp_stream_destroy(stream);
}

static inline smp_status open_stream_release(smp_device device, smp_stream stream)
{
    let_go(stream);
    return smp_stream_release(device, stream);
}

#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define smp_stream_synchronize(device, stream) open_stream_synchronize((device), (stream))
#define smp_stream_release(device, stream) open_stream_release((device), (stream))
#endif
#define smp_event_synchronize(event) open_event_synchronize(event)
#define smp_device_synchronize(device) open_device_synchronize(device)
#define smp_device_close(device) open_device_close(device)
#define smp_pool_destroy(pool) open_pool_destroy(pool)
#define smp_stream_destroy(stream) open_stream_destroy(stream)

/* ---- bytes of a block ------------------------------------------------------------------------------------------- */

/* Writes to a device pointer: on CUDA a copy in the stream's order, on a host-backed model device at once. */
static inline void write_bytes(void *to, const void *from, size_t bytes, smp_stream stream)
{
    if (on_cuda())
        must_drive(sim.copy_to((uint64_t)(uintptr_t)to, from, bytes, stream), "cuMemcpyHtoDAsync");
    else
        memcpy(to, from, bytes);
}

/* Reads after all that the stream was given so far. */
static inline void read_bytes(void *to, const void *from, size_t bytes, smp_stream stream)
{
    if (on_cuda()) {
        must_drive(sim.copy_from(to, (uint64_t)(uintptr_t)from, bytes, stream), "cuMemcpyDtoHAsync");
        gates_open();
        must_drive(sim.wait(stream), "cuStreamSynchronize");
        gates_close();
    } else {
        memcpy(to, from, bytes);
    }
}

/* ---- what differs ----------------------------------------------------------------------------------------------- */

/* The first on the model device, the second on CUDA. */
#define BY_DEVICE(model, cuda) (on_cuda() ? (cuda) : (model))
/* An order that does not hold: on CUDA the library cannot rule out that the caller made it. */
#define REFUTED BY_DEVICE(SMP_NOT_READY, SMP_UNPROVEN)
/* The same of an access. */
#define NOT_ORDERED BY_DEVICE(SMP_ORDER_REFUTED, SMP_ORDER_UNPROVEN)

/* ---- running tests ---------------------------------------------------------------------------------------------- */

static inline void test_on_device(void (*test)(void), const char *name, const char *word, int any_pace)
{
    const char *only = getenv("SMP_TEST_ANY_PACE_ONLY");
    if (!any_pace && only != NULL && strcmp(only, "1") == 0) {
        ++test_left_out_count;
        return;
    }
    reset_stand_in(any_pace);
    test_one(test, name, word);
}

static inline void test_model_only(void (*test)(void), const char *name, const char *word, const char *reason)
{
    if (word != NULL && strstr(name, word) == NULL)
        return;
    if (!on_cuda()) {
        test_one(test, name, word);
        return;
    }
    printf("not on CUDA: %s: %s\n", name, reason);
    ++test_left_out_count;
}

#undef RUN
/* A test that says what runs when. */
#define RUN(test) test_on_device(test, #test, test_word, 0);
/* A test whose rule holds whatever runs when. */
#define RUN_ANY_PACE(test) test_on_device(test, #test, test_word, 1);
/* A test of what only the model device has. */
#define MODEL_ONLY(test, reason) test_model_only(test, #test, test_word, reason);

#endif
