/* Threads with small stacks. A program that has the library makes them as any other; how much a call needs is in the README. */
#include "support.h"

#include <pthread.h>

enum { KIBIBYTE = 1024 };

static void *nothing(void *argument)
{
    return argument;
}

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream stream;
    int bad;
};

static void *calls(void *argument)
{
    struct scene *t = (struct scene *)argument;
    smp_allocation a = NULL;
    void *pointer = NULL;
    int i;
    for (i = 0; i < 100; ++i) {
        t->bad |= smp_alloc_async(t->pool, (uint64_t)i * 10000 + 1, t->stream, &a) != SMP_SUCCESS;
        t->bad |= smp_alloc_ptr_async(t->pool, 40 * MIB, t->stream, &pointer) != SMP_SUCCESS;
        t->bad |= smp_free_ptr_async(t->device, pointer, t->stream) != SMP_SUCCESS;
        t->bad |= smp_free_async(a, t->stream) != SMP_SUCCESS;
        t->bad |= smp_stream_synchronize(t->device, t->stream) != SMP_SUCCESS;
    }
    return argument;
}

/* A thread with such a stack runs this to its end. */
static int runs(size_t stack, void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    void *ended = NULL;
    int error = pthread_attr_init(&attributes);
    if (error == 0)
        error = pthread_attr_setstacksize(&attributes, stack);
    if (error == 0)
        error = pthread_create(&thread, &attributes, body, argument);
    if (error == 0)
        error = pthread_join(thread, &ended);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        printf("a thread with %lu bytes of stack: %s\n", (unsigned long)stack, strerror(error));
    return error == 0 && ended == argument;
}

static void a_thread_may_have_the_smallest_stack_there_is(void)
{
    int here = 0;
    CHECK(runs((size_t)16 * KIBIBYTE, nothing, &here));
    CHECK(runs((size_t)20 * KIBIBYTE, nothing, &here));
}

static void allocations_and_frees_need_40_kibibytes_of_stack(void)
{
    struct scene t;
    t.device = eager_device();
    t.pool = pool_of(t.device, "preset(mapped)");
    t.stream = new_stream(t.device);
    t.bad = 0;
    CHECK(runs((size_t)40 * KIBIBYTE, calls, &t));
    CHECK_EQ(t.bad, 0);
    CHECK(runs((size_t)40 * KIBIBYTE, calls, &t));
    CHECK_EQ(t.bad, 0);
}

TEST_MAIN(RUN_ANY_PACE(a_thread_may_have_the_smallest_stack_there_is)
          MODEL_ONLY(allocations_and_frees_need_40_kibibytes_of_stack, "a driver needs more"))
