/* The streams' lock asks the kernel for memory barriers in other threads (membarrier). What a process may do that is not allowed to.
 *
 * Each test is a child process with a system call filter. Where filters may not be set, all are left out.
 */
#include "support.h"
#include "child.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#ifndef SECCOMP_RET_KILL_PROCESS
#define SECCOMP_RET_KILL_PROCESS 0x80000000U
#endif

/* As many pairs as make the stream's lock one thread's. */
enum { PAIRS = 300 };

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream stream;
    int bad;
};

/* From now on membarrier gives this answer. 0: done. */
static int filter(uint32_t answer)
{
    struct sock_filter program[4];
    struct sock_fprog all;
    const struct sock_filter load = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    const struct sock_filter compare = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1);
    const struct sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program[0] = load;
    program[1] = compare;
    program[2] = refuse;
    program[2].k = answer;
    program[3] = allow;
    all.len = 4;
    all.filter = program;
    return prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0;
}

static void *pairs(void *argument)
{
    struct scene *t = (struct scene *)argument;
    int i;
    for (i = 0; i < PAIRS; ++i) {
        smp_allocation a;
        t->bad |= smp_alloc_async(t->pool, 4096, t->stream, &a) != SMP_SUCCESS;
        t->bad |= smp_free_async(a, t->stream) != SMP_SUCCESS;
    }
    return NULL;
}

static void other_thread(struct scene *t)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, pairs, t) != 0 || pthread_join(thread, NULL) != 0)
        t->bad = 1;
}

static struct scene scene(void)
{
    struct scene t;
    t.device = lazy_device();
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    t.stream = new_stream(t.device);
    t.bad = 0;
    return t;
}

/* 0: each call did what it should, whichever thread made it. */
static int scene_end(struct scene *t)
{
    smp_pool_stats stats = pool_stats(t->pool);
    t->bad |= stats.allocs != 3 * PAIRS || stats.frees != 3 * PAIRS || stats.requested != 0;
    t->bad |= smp_pool_destroy(t->pool) != SMP_SUCCESS || smp_device_close(t->device) != SMP_SUCCESS;
    return t->bad;
}

static int in_turns(void)
{
    struct scene t = scene();
    pairs(&t);
    other_thread(&t);
    pairs(&t);
    return scene_end(&t);
}

static int refused_from_the_start(void)
{
    return filter(SECCOMP_RET_ERRNO | EPERM) != 0 ? 77 : in_turns();
}

static int refused_later(void)
{
    struct scene t = scene();
    pairs(&t);
    if (filter(SECCOMP_RET_ERRNO | EPERM) != 0)
        return 77;
    other_thread(&t);
    pairs(&t);
    return scene_end(&t);
}

static int deadly(void)
{
    return filter(SECCOMP_RET_KILL_PROCESS) != 0 ? 77 : in_turns();
}

static int deadly_and_unwanted(void)
{
    return setenv("SMP_NO_MEMBARRIER", "1", 1) != 0 ? 1 : deadly();
}

/* A thread that uses its default stream on a device of its own, while another has locks of streams, whatever their numbers. */
static int of_no_concern(void)
{
    struct scene t = scene(), own;
    pthread_t thread;
    int i;
    for (i = 0; i < 8; ++i) {
        t.stream = new_stream(t.device);
        pairs(&t);
    }
    own = scene();
    own.stream = SMP_STREAM_PER_THREAD;
    if (filter(SECCOMP_RET_KILL_PROCESS) != 0)
        return 77;
    if (pthread_create(&thread, NULL, pairs, &own) != 0 || pthread_join(thread, NULL) != 0)
        own.bad = 1;
    return t.bad | own.bad;
}

static void a_process_that_may_not_ask_for_it_works_as_any_other(void)
{
    CHECK_EQ((uint64_t)run(refused_from_the_start), 0);
}

static void one_that_may_no_longer_ask_for_it_works_on(void)
{
    CHECK_EQ((uint64_t)run(refused_later), 0);
}

static void with_SMP_NO_MEMBARRIER_it_is_never_asked_for(void)
{
    CHECK_EQ((uint64_t)run(deadly_and_unwanted), 0);
    CHECK(run(deadly) != 0); /* (the filter would have told) */
}

static void a_threads_default_stream_needs_no_lock_of_another_devices_streams(void)
{
    CHECK_EQ((uint64_t)run(of_no_concern), 0);
}

static int cannot_filter(void)
{
    return filter(SECCOMP_RET_ALLOW) != 0 ? 77 : 0;
}

int main(int argc, char **argv)
{
    const char *test_word = argc > 1 ? argv[1] : NULL;
    const char *on = getenv("SMP_TEST_DEVICE");
    if (on != NULL && strcmp(on, "cuda") == 0) {
        printf("left out: a child of a process that has opened the driver cannot use it, and the lock is the same\n");
        return 0;
    }
    if (run(cannot_filter) != 0) {
        printf("left out: system call filters cannot be set here\n");
        return 0;
    }
    RUN(a_process_that_may_not_ask_for_it_works_as_any_other)
    RUN(one_that_may_no_longer_ask_for_it_works_on)
    RUN(with_SMP_NO_MEMBARRIER_it_is_never_asked_for)
    RUN(a_threads_default_stream_needs_no_lock_of_another_devices_streams)
    return test_end();
}
