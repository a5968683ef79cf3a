/* Uses libsmp as PyTorch's CUDAPluggableAllocator does: opened by name, functions found by name, called with sizes, device
   numbers and streams. torch_allocator LIBRARY; over the stand-in driver. */
#define LINK DLSYM
#include "driver.h"
#include <sys/types.h>

typedef void *(*alloc_fn)(ssize_t, int, CUstream);
typedef void (*free_fn)(void *, ssize_t, int, CUstream);
typedef void (*init_fn)(int);
typedef void (*reset_fn)(void);
typedef void (*fraction_fn)(double, int);
typedef void *(*base_fn)(void *, size_t *);
typedef void (*record_fn)(void *, CUstream);

int main(int argc, char **argv)
{
    alloc_fn alloc;
    free_fn release;
    init_fn init;
    reset_fn reset;
    fraction_fn fraction;
    base_fn base;
    record_fn record;
    CUstream s, t;
    unsigned char data[1000];
    size_t i, size = 0;
    void *library, *found, *p, *q;
    if (argc < 2 || !(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
#define FUNCTION(to, name)                                                                                             \
    CHECK((found = dlsym(library, name)) != 0);                                                                        \
    memcpy(&to, &found, sizeof to);
    FUNCTION(alloc, "smp_torch_alloc")
    FUNCTION(release, "smp_torch_free")
    FUNCTION(init, "smp_torch_init")
    FUNCTION(reset, "smp_torch_reset")
    FUNCTION(fraction, "smp_torch_memory_fraction")
    FUNCTION(base, "smp_torch_base_alloc")
    FUNCTION(record, "smp_torch_record_stream")
    driver_begin();
    MUST(CALL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
    MUST(CALL(cuStreamCreate)(&t, CU_STREAM_NON_BLOCKING));
    init(1);

    /* Memory of the device, in the stream's order; the same block again after a free on the same stream. */
    CHECK((p = alloc(1000, 0, s)) != 0);
    CHECK((CUdeviceptr)p % 512 == 0);
    MUST(CALL(cuMemsetD8Async)((CUdeviceptr)p, 7, 1000, s));
    MUST(CALL(cuMemcpyDtoHAsync)(data, (CUdeviceptr)p, 1000, s));
    MUST(CALL(cuStreamSynchronize)(s));
    for (i = 0; i < 1000; i++) CHECK(data[i] == 7);
    CHECK(base((char *)p + 999, &size) == p && size == 1000);
    CHECK(base(&size, &size) == 0 && size == 1000);
    release(p, 1000, 0, s);
    CHECK(base(p, &size) == 0);
    CHECK((q = alloc(1000, 0, s)) == p);

    /* Used on another stream too: not the same block while that stream has not come so far. */
    MUST(CALL(cuMemsetD8Async)((CUdeviceptr)q, 8, 1000, t));
    record(q, t);
    release(q, 1000, 0, s);
    CHECK((p = alloc(1000, 0, s)) != 0 && p != q);
    release(p, 1000, 0, s);

    /* Nothing for nothing, no such device, more than there is; what is no block's is let be. */
    CHECK(alloc(0, 0, s) == 0);
    CHECK(alloc(-1, 0, s) == 0);
    CHECK(alloc(1000, 99, s) == 0);
    CHECK(alloc((ssize_t)1 << 46, 0, s) == 0);
    release(0, 0, 0, s);
    release(&size, 8, 0, s);
    release((char *)q + 512, 8, 0, s);

    /* A share of the memory: 4 GiB of it by the stand-in's default. */
    fraction(0.001, 0);
    CHECK(alloc(8 << 20, 0, s) == 0);
    CHECK((p = alloc(1 << 20, 0, s)) != 0);
    release(p, 1 << 20, 0, s);
    fraction(1.0, 0);
    CHECK((p = alloc(8 << 20, 0, s)) != 0);
    release(p, 8 << 20, 0, s);
    MUST(CALL(cuCtxSynchronize)());
    reset();
    printf("ok\n");
    return 0;
}
