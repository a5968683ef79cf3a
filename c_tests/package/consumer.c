/* A C program that uses the installed package: one block through a pool of the model device, and the three versions it
 * can see (the package's, the header's, the library's) must be one. */
#include <smp.h>

#include <stdio.h>
#include <string.h>

#define EXPECT(condition)                                                                                             \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "consumer.c:%d: does not hold: %s\n", __LINE__, #condition);                               \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

int main(void)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    smp_pool pool = NULL;
    smp_stream stream = NULL;
    smp_allocation block = NULL;

    EXPECT(strcmp(PACKAGE_VERSION, SMP_VERSION_STRING) == 0);
    EXPECT(smp_version() == SMP_VERSION);

    desc.kind = SMP_DEVICE_MODEL;
    EXPECT(smp_device_open(&desc, &device) == SMP_SUCCESS);
    EXPECT(smp_pool_create(device, NULL, &pool) == SMP_SUCCESS);
    EXPECT(smp_stream_create(device, 0u, &stream) == SMP_SUCCESS);
    EXPECT(smp_alloc_async(pool, 4096u, stream, &block) == SMP_SUCCESS);
    EXPECT(smp_is_ready(block) == SMP_SUCCESS);
    EXPECT(smp_allocation_ptr(block) != NULL);
    EXPECT(smp_free_async(block, stream) == SMP_SUCCESS);
    EXPECT(smp_pool_destroy(pool) == SMP_SUCCESS);
    EXPECT(smp_stream_destroy(stream) == SMP_SUCCESS);
    EXPECT(smp_device_close(device) == SMP_SUCCESS);
    printf("%s\n", SMP_VERSION_STRING);
    return 0;
}
