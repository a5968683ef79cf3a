/* The calls that take and give pointers: allocate, free, find with inner pointers, and what they refuse.
 *
 * On a model device without host backing the pointers are model addresses, counted from BASE. They lie where no user
 * space can map, and are never dereferenced here.
 */
#include "support.h"

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2;
};

static struct scene scene(void)
{
    struct scene t;
    t.device = lazy_device();
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    t.s1 = new_stream(t.device);
    t.s2 = new_stream(t.device);
    return t;
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

/* On CUDA it is the driver's pointer, as far from the first block's as the model addresses are. */
static void a_pointer_is_the_model_address_and_frees_the_block(void)
{
    struct scene t = scene();
    void *p = NULL, *q = NULL;
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 1000, t.s1, &p), SMP_SUCCESS);
    CHECK_SAME(p, on_cuda() ? p : at(BASE));
    CHECK(p != NULL);
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 1000, t.s1, &q), SMP_SUCCESS);
    CHECK_SAME(q, (char *)p + 1024);
    CHECK_EQ(pool_stats(t.pool).live, 2);
    CHECK_STATUS(smp_free_ptr_async(t.device, p, t.s1), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).live, 1);
    CHECK_EQ(pool_stats(t.pool).used, 1024);
    CHECK_STATUS(smp_free_ptr_async(t.device, q, t.s1), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).used, 0);
    scene_end(&t);
}

static void the_host_ordered_pair_by_pointer_and_description(void)
{
    struct scene t = scene();
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = NULL;
    alloc_on(t.pool, 512, t.s1);
    desc.size = 512;
    desc.alignment = 4096;
    desc.name = "weights";
    CHECK_STATUS(smp_alloc_ex(t.pool, &desc, &a), SMP_SUCCESS);
    CHECK_EQ(address(a), BASE + 4096);
    CHECK_EQ(allocation_info(a).host_ordered, 1);
    CHECK_EQ(allocation_info(a).ready_seq, 0);
    CHECK_STR(allocation_info(a).name, "weights");
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_free_ptr(t.device, at(BASE + 4096)), SMP_SUCCESS);
    CHECK_STATUS(smp_free(a), SMP_ERROR_FREED);
    CHECK_STATUS(smp_free_ptr(t.device, at(BASE + 4096)), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr(t.device, NULL), SMP_SUCCESS); /* as free(NULL) */
    CHECK_EQ(pool_stats(t.pool).frees, 1);
    desc.stream = t.s1;
    CHECK_REFUSED(smp_alloc_ex(t.pool, &desc, &a), SMP_ERROR_INVALID_VALUE, "stream");
    CHECK_NULL(a);
    scene_end(&t);
}

static void both_calls_see_the_same_blocks(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), found = NULL;
    uint64_t offset = 9;
    void *p = NULL;
    CHECK_SAME(smp_allocation_ptr(a), at(BY_DEVICE(BASE, allocation_info(a).device_pointer)));
    CHECK_STATUS(smp_free_ptr_async(t.device, smp_allocation_ptr(a), t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_free_async(a, t.s1), SMP_ERROR_FREED);
    must(smp_alloc_ptr_async(t.pool, 512, t.s1, &p));
    must(smp_allocation_find(t.device, p, &found, &offset));
    CHECK_EQ(offset, 0);
    CHECK(found != a); /* the same address, another allocation */
    CHECK_STATUS(smp_free_async(found, t.s1), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).live, 0);
    scene_end(&t);
}

static void an_inner_pointer_is_found_up_to_the_last_byte_asked_for(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 1024, t.s1), b = alloc_on(t.pool, 512, t.s1), found = NULL;
    uint64_t offset = 0;
    must(smp_allocation_find(t.device, at(BASE), &found, &offset));
    CHECK_SAME(found, a);
    CHECK_EQ(offset, 0);
    must(smp_allocation_find(t.device, at(BASE + 1023), &found, &offset));
    CHECK_SAME(found, a);
    CHECK_EQ(offset, 1023);
    must(smp_allocation_find(t.device, at(BASE + 1024), &found, &offset));
    CHECK_SAME(found, b);
    CHECK_EQ(offset, 0);
    a = alloc_on(t.pool, 1000, t.s1);
    must(smp_allocation_find(t.device, at(address(a) + 999), &found, &offset));
    CHECK_SAME(found, a);
    CHECK_EQ(offset, 999);
    CHECK_STATUS(smp_allocation_find(t.device, at(address(a) + 1000), &found, &offset), SMP_ERROR_INVALID_VALUE);
    a = alloc_on(t.pool, 0, t.s1);
    must(smp_allocation_find(t.device, at(address(a)), &found, &offset));
    CHECK_SAME(found, a);
    CHECK_STATUS(smp_allocation_find(t.device, at(address(a) + 1), &found, &offset), SMP_ERROR_INVALID_VALUE);
    scene_end(&t);
}

/* With an alignment above the device's, a block may begin before its allocation: that address is not the allocation's. */
static void the_padding_before_an_aligned_allocation_is_not_its_start(void)
{
    struct scene t = scene();
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation_info info = SMP_ALLOCATION_INFO_INIT;
    smp_allocation a = NULL, found = NULL;
    uint64_t offset = 0;
    alloc_on(t.pool, 512, t.s1);
    desc.size = 512;
    desc.alignment = 4096;
    desc.stream = t.s1;
    must(smp_alloc_async_ex(t.pool, &desc, &a));
    must(smp_allocation_get_info(a, &info));
    CHECK(info.block_address < info.address);
    CHECK_STATUS(smp_allocation_find(t.device, at(info.block_address), &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(info.block_address), t.s1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr(t.device, at(info.block_address)), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(info.address), t.s1), SMP_SUCCESS);
    scene_end(&t);
}

static void a_pointer_to_no_block_is_refused_and_writes_nothing(void)
{
    struct scene t = scene();
    smp_allocation found = (smp_allocation)at(0x77);
    uint64_t offset = 77;
    alloc_on(t.pool, 512, t.s1);
    CHECK_STATUS(smp_allocation_find(t.device, at(BASE + 512), &found, &offset), SMP_ERROR_INVALID_VALUE); /* free */
    CHECK_STATUS(smp_allocation_find(t.device, at(BASE + 2 * MIB), &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_allocation_find(t.device, at(BASE - 1), &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_allocation_find(t.device, NULL, &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_allocation_find(t.device, &t, &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_allocation_find(t.device, at(UINT64_MAX), &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_SAME(found, at(0x77));
    CHECK_EQ(offset, 77);
    CHECK_STATUS(smp_allocation_find(t.device, at(BASE + 7), NULL, &offset), SMP_SUCCESS); /* either may be left out */
    CHECK_EQ(offset, 7);
    CHECK_STATUS(smp_allocation_find(t.device, at(BASE + 7), &found, NULL), SMP_SUCCESS);
    CHECK_EQ(address(found), BASE);
    scene_end(&t);
}

static void freeing_an_inner_or_foreign_pointer_is_refused_and_changes_nothing(void)
{
    struct scene t = scene();
    smp_pool_stats before, after;
    uint64_t s1_before;
    alloc_on(t.pool, 1024, t.s1);
    before = pool_stats(t.pool);
    s1_before = submitted(t.device, t.s1);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(BASE + 512), t.s1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(BASE + 1), t.s1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(t.device, &t, t.s1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(BASE + 1024), t.s1), SMP_ERROR_INVALID_VALUE);
    after = pool_stats(t.pool);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_EQ(submitted(t.device, t.s1), s1_before);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(BASE), t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_free_ptr_async(t.device, at(BASE), t.s1), SMP_ERROR_INVALID_VALUE); /* twice, the block not yet given out again */
    CHECK_EQ(pool_stats(t.pool).frees, 1);
    scene_end(&t);
}

static void a_zero_sized_block_has_a_pointer_of_its_own(void)
{
    struct scene t = scene();
    void *p = NULL, *q = NULL;
    must(smp_alloc_ptr_async(t.pool, 0, t.s1, &p));
    must(smp_alloc_ptr_async(t.pool, 0, t.s1, &q));
    CHECK(p != NULL);
    CHECK(q != NULL);
    CHECK(p != q);
    CHECK_STATUS(smp_free_ptr_async(t.device, p, t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_free_ptr_async(t.device, q, t.s1), SMP_SUCCESS);
    scene_end(&t);
}

static void a_null_pointer_hides_no_wrong_handle(void)
{
    struct scene t = scene();
    CHECK_STATUS(smp_free_ptr_async(t.device, NULL, t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_free_ptr_async(NULL, NULL, t.s1), SMP_ERROR_INVALID_HANDLE);
    CHECK_STATUS(smp_free_ptr_async(t.device, NULL, (smp_stream)(void *)t.pool), SMP_ERROR_INVALID_HANDLE);
    CHECK_STATUS(smp_free_ptr(t.device, NULL), SMP_SUCCESS);
    CHECK_STATUS(smp_free_ptr(NULL, NULL), SMP_ERROR_INVALID_HANDLE);
    scene_end(&t);
}

static void the_pointer_call_takes_no_null_and_sets_null_on_failure(void)
{
    struct scene t = scene();
    void *p = &t;
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 512, t.s1, NULL), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_alloc_ptr_async(NULL, 512, t.s1, &p), SMP_ERROR_INVALID_HANDLE);
    CHECK_NULL(p);
    p = &t;
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 2 * MIB + 1, t.s1, &p), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_NULL(p);
    CHECK_EQ(pool_stats(t.pool).live, 0);
    scene_end(&t);
}

static void a_pointer_of_another_device_is_not_found_here(void)
{
    struct scene t = scene(), other = scene();
    smp_allocation found = NULL;
    uint64_t offset = 0;
    void *p = NULL;
    must(smp_alloc_ptr_async(t.pool, 512, t.s1, &p));
    CHECK_STATUS(smp_allocation_find(other.device, p, &found, &offset), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_free_ptr_async(other.device, p, other.s1), SMP_ERROR_INVALID_VALUE);
    CHECK_EQ(pool_stats(t.pool).live, 1);
    scene_end(&other);
    scene_end(&t);
}

static void an_invalid_allocation_has_no_pointer(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    CHECK_NULL(smp_allocation_ptr(NULL));
    CHECK_NULL(smp_allocation_ptr((smp_allocation)at(0x1234567)));
    CHECK_NULL(smp_allocation_ptr((smp_allocation)(void *)t.pool));
    free_on(a, t.s1);
    CHECK_NULL(smp_allocation_ptr(a));
    scene_end(&t);
}

static void the_info_of_an_allocation_tells_all_of_it(void)
{
    struct scene t = scene();
    smp_allocation_info info = SMP_ALLOCATION_INFO_INIT;
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = NULL;
    kernel(t.device, t.s2, 6);
    desc.size = 700;
    desc.stream = t.s2;
    desc.name = "activations";
    must(smp_alloc_async_ex(t.pool, &desc, &a));
    CHECK_STATUS(smp_allocation_get_info(a, &info), SMP_SUCCESS);
    CHECK_EQ(info.address, BASE);
    CHECK_EQ(info.requested, 700);
    CHECK_EQ(info.block_size, 1024);
    CHECK_SAME(info.stream, t.s2);
    CHECK_EQ(info.stream_id, 2); /* the second stream made on this device */
    CHECK_EQ(info.ready_seq, 7);
    CHECK_SAME(info.pool, t.pool);
    CHECK_SAME(info.device, t.device);
    CHECK_STR(info.name, "activations");
    free_on(a, t.s2);
    CHECK_STATUS(smp_allocation_get_info(a, &info), SMP_ERROR_FREED);
    CHECK_EQ(info.requested, 700); /* written on success only */
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(a_pointer_is_the_model_address_and_frees_the_block)
          RUN_ANY_PACE(the_host_ordered_pair_by_pointer_and_description)
          RUN_ANY_PACE(both_calls_see_the_same_blocks)
          RUN_ANY_PACE(an_inner_pointer_is_found_up_to_the_last_byte_asked_for)
          RUN_ANY_PACE(a_pointer_to_no_block_is_refused_and_writes_nothing)
          RUN_ANY_PACE(freeing_an_inner_or_foreign_pointer_is_refused_and_changes_nothing)
          RUN_ANY_PACE(a_zero_sized_block_has_a_pointer_of_its_own)
          RUN_ANY_PACE(the_padding_before_an_aligned_allocation_is_not_its_start)
          RUN_ANY_PACE(a_null_pointer_hides_no_wrong_handle)
          RUN_ANY_PACE(the_pointer_call_takes_no_null_and_sets_null_on_failure)
          RUN_ANY_PACE(a_pointer_of_another_device_is_not_found_here)
          RUN_ANY_PACE(an_invalid_allocation_has_no_pointer)
          RUN_ANY_PACE(the_info_of_an_allocation_tells_all_of_it))
