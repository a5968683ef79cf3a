/* A fork while other threads are in calls. Without a CUDA device the child may open devices of its own, which work, wherever in a call
 * another thread of the parent was.
 *
 * The children of each test are made while two threads do nothing but what it names.
 */
#include "support.h"
#include "child.h"

#include <pthread.h>

enum { THREADS = 2, CHILDREN = 150, SECONDS = 10 };

enum kind { STREAMS, EVENTS, POOLS, DEVICES, BLOCKS, NEW_THREADS };

struct scene {
    smp_device device;
    smp_pool pool;
    enum kind kind;
    volatile int stop; /* (only ever written once) */
};

static smp_device opened(void)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    desc.kind = SMP_DEVICE_MODEL;
    return smp_device_open(&desc, &device) == SMP_SUCCESS ? device : NULL;
}

static void *numbered(void *argument)
{
    struct scene *t = (struct scene *)argument;
    smp_allocation a = NULL;
    if (smp_alloc_async(t->pool, 5000, SMP_STREAM_PER_THREAD, &a) == SMP_SUCCESS)
        (void)smp_free_async(a, SMP_STREAM_PER_THREAD);
    return NULL;
}

static void *busy(void *argument)
{
    struct scene *t = (struct scene *)argument;
    while (!t->stop) {
        smp_stream stream = NULL;
        smp_event event = NULL;
        smp_pool pool = NULL;
        smp_allocation a = NULL;
        pthread_t thread;
        smp_status status = SMP_SUCCESS;
        switch (t->kind) {
        case STREAMS:
            if (smp_stream_create(t->device, 0, &stream) == SMP_SUCCESS)
                status = smp_stream_destroy(stream);
            break;
        case EVENTS:
            if (smp_event_create(t->device, 0, &event) == SMP_SUCCESS)
                status = smp_event_destroy(event);
            break;
        case POOLS:
            if (smp_pool_create_from_spec(t->device, "exclusive()", &pool) == SMP_SUCCESS) {
                if (smp_alloc(pool, 5000, &a) == SMP_SUCCESS)
                    status = smp_free(a);
                status = smp_pool_destroy(pool);
            }
            break;
        case DEVICES:
            status = smp_device_close(opened());
            break;
        case BLOCKS:
            if (smp_stream_create(t->device, 0, &stream) == SMP_SUCCESS) {
                if (smp_alloc_async(t->pool, 5000, stream, &a) == SMP_SUCCESS)
                    status = smp_free_async(a, stream);
                status = smp_stream_synchronize(t->device, stream);
                status = smp_stream_destroy(stream);
            }
            break;
        case NEW_THREADS:
            if (pthread_create(&thread, NULL, numbered, t) == 0)
                pthread_join(thread, NULL);
            break;
        }
        (void)status;
    }
    return NULL;
}

/* What a child does: 0, all of it is as it should be. */
static int child(void)
{
    smp_device device = opened();
    smp_pool pool = NULL;
    smp_stream stream = NULL;
    smp_event event = NULL;
    smp_allocation a = NULL;
    int bad = device == NULL, i;
    bad |= smp_pool_create(device, NULL, &pool) != SMP_SUCCESS;
    bad |= smp_stream_create(device, 0, &stream) != SMP_SUCCESS;
    bad |= smp_event_create(device, 0, &event) != SMP_SUCCESS;
    for (i = 0; i < 20; ++i) {
        bad |= smp_alloc_async(pool, 1000 + (uint64_t)i * 5000, stream, &a) != SMP_SUCCESS;
        bad |= smp_event_record(device, event, stream) != SMP_SUCCESS;
        bad |= smp_stream_wait_event(device, NULL, event) != SMP_SUCCESS;
        bad |= smp_free_async(a, LEGACY) != SMP_SUCCESS;
    }
    bad |= smp_alloc_async(pool, 1000, SMP_STREAM_PER_THREAD, &a) != SMP_SUCCESS;
    bad |= smp_free(a) != SMP_SUCCESS;
    bad |= smp_device_synchronize(device) != SMP_SUCCESS;
    bad |= smp_event_destroy(event) != SMP_SUCCESS;
    bad |= smp_stream_destroy(stream) != SMP_SUCCESS;
    bad |= smp_pool_destroy(pool) != SMP_SUCCESS;
    bad |= smp_device_close(device) != SMP_SUCCESS;
    return bad;
}

static void children_while(enum kind kind)
{
    struct scene t;
    pthread_t threads[THREADS];
    int i, ended = 0;
    t.device = eager_device();
    t.pool = pool_of(t.device, "preset(mapped)");
    t.kind = kind;
    t.stop = 0;
    for (i = 0; i < THREADS; ++i)
        CHECK_EQ(pthread_create(&threads[i], NULL, busy, &t), 0);
    fflush(stdout);
    for (i = 0; i < CHILDREN; ++i) {
        int status = -1;
        pid_t made = fork();
        if (made == 0) {
            alarm(SECONDS); /* one that hangs is ended by it */
            _exit(child());
        }
        ended += made > 0 && waitpid(made, &status, 0) == made && status == 0;
        if (ended != i + 1)
            break;
    }
    t.stop = 1;
    for (i = 0; i < THREADS; ++i)
        pthread_join(threads[i], NULL);
    CHECK_EQ(ended, CHILDREN);
}

static void a_child_opens_devices_whatever_other_threads_did_at_the_fork(void)
{
    children_while(STREAMS);
    children_while(EVENTS);
    children_while(POOLS);
    children_while(DEVICES);
    children_while(BLOCKS);
    children_while(NEW_THREADS);
}

/* Handlers of the program's own, which a fork calls in between the library's. */
static smp_device handlers_device;
static int handled;

static void handler(void)
{
    smp_stream stream = NULL;
    if (handlers_device != NULL && smp_stream_create(handlers_device, 0, &stream) == SMP_SUCCESS)
        handled += smp_stream_destroy(stream) == SMP_SUCCESS;
}

static int fork_with_handlers(void)
{
    int status = -1;
    pid_t made;
    alarm(SECONDS);
    /* Before the library's: the first comes after it, the others come before it. */
    if (pthread_atfork(handler, handler, handler) != 0)
        return 1;
    handlers_device = opened();
    made = fork();
    if (made == 0)
        _exit(handled != 2 || child());
    return handled != 2 || made < 0 || waitpid(made, &status, 0) != made || status != 0;
}

static void a_programs_own_handlers_of_a_fork_may_make_calls(void)
{
    CHECK_EQ((uint64_t)run(fork_with_handlers), 0);
}

TEST_MAIN(MODEL_ONLY(a_programs_own_handlers_of_a_fork_may_make_calls,
                     "no child may use a device whose driver its parent opened")
          MODEL_ONLY(a_child_opens_devices_whatever_other_threads_did_at_the_fork,
                     "no child may use a device whose driver its parent opened"))
