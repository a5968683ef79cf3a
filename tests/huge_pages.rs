//! A page is as large as the model's address space allows; what the library spends on it follows what is used of it.

mod common;

use common::*;
use smp::*;

#[test]
fn a_page_of_128_tebibytes_costs_records_for_its_blocks_only() {
    let device = open(&smp_device_desc { alignment: 16, ..device_desc() });
    let pool = pool_from(device, "sliced(page_size=128TiB)");
    let stream = stream_of(device, 0);
    let allocations: Vec<_> = (0..1000).map(|i| alloc(pool, i * 1000, stream)).collect();
    let figures = stats(pool);
    assert_eq!((figures.reserved, figures.pages, figures.live), (1 << 47, 1, 1000));
    assert!(figures.metadata_bytes < 16 << 20, "{} bytes of records for 1000 blocks", figures.metadata_bytes);
    for allocation in allocations {
        ok(smp_free_async(allocation, stream));
    }
    ok(smp_pool_destroy(pool));
    ok(smp_device_synchronize(device));
    ok(smp_device_close(device));
}
