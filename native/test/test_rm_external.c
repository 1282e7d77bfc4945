/* Memory that UVM keeps by its mappings: rules, and calls without memory for records. */
#include "rm_bench.h"
#include "rm_fake_uvm.h"
#include "tap.h"

static bool charged (uint64_t mebibytes)
{
    return fake_charged (fake, 0) == mebibytes * MIB && fake_bytes (fake, 0) == mebibytes * MIB;
}

static void rules (const char *version)
{
    struct bench b = { .fake = fake_open (version, RM_POSTURE_SHIM) };
    uint32_t first, second, third;
    struct made made;
    struct rm_piece piece;

    begin (b.fake);
    b.fake->limit[0] = 10 * MIB;
    b.client = fake_client (b.fake, FILE_A);
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    b.subdevice = fake_subdevice (b.fake, FILE_A, b.client, b.device);
    printf ("# %s\n", version);
    take (&b, 8 * MIB, &first);
    tap_ok (create (0, 0, 16) && map (0, 1, 0, 16, b.client, first) && charged (8), "a mapping is no memory of its own");
    tap_ok (rm_pieces (fake->rm, b.client, first, &piece, 1) == 0, "the piece does not go with its handle");
    fake_free (fake, FILE_A, b.client, first);
    tap_ok (charged (8) && take (&b, 3 * MIB, &second) == NV_ERR_NO_MEMORY, "what is mapped stays charged without its handle");
    release (0, 0);
    tap_ok (charged (0), "until its range is freed");

    take (&b, 4 * MIB, &first);
    create (0, 0, 32);
    map (0, 1, 0, 32, b.client, first);
    fake_free (fake, FILE_A, b.client, first);
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 8, 8);
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 0, 4);
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 24, 8);
    tap_ok (charged (4), "a piece of which any page is mapped is kept");
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 2, 8);
    unmap (UVM_UNMAP_EXTERNAL, 0, 1, 0, 32);
    tap_ok (charged (4), "another GPU's addresses are others");
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 14, 18);
    tap_ok (charged (0), "the last page that goes ends it");
    take (&b, 4 * MIB, &first);
    take (&b, 5 * MIB, &second);
    map (0, 1, 0, 32, b.client, first);
    fake_free (fake, FILE_A, b.client, first);
    map (0, 1, 0, 16, b.client, second);
    tap_ok (charged (9), "what is mapped over a part leaves the rest");
    unmap (UVM_MAP_EXTERNAL_SPARSE, 0, 0, 16, 16);
    tap_ok (charged (5), "nothing mapped (sparse) takes the place of what was there");
    map (0, 1, 16, 16, b.client, second);
    fake_free (fake, FILE_A, b.client, second);
    release (0, 0);
    tap_ok (charged (0), "two mappings of a piece are two references");

    create (0, 0, 32);
    create (0, 32, 32);
    take (&b, 6 * MIB, &first);
    map (0, 3, 0, 32, b.client, first);
    fake_free (fake, FILE_A, b.client, first);
    unregister (UVM_UNREGISTER_GPU_VASPACE, 0, 0);
    tap_ok (charged (6), "each GPU of a call has a duplicate");
    unregister (UVM_UNREGISTER_GPU, 0, 1);
    tap_ok (charged (0), "which goes when the GPU does");
    take (&b, 2 * MIB, &first);
    take (&b, 3 * MIB, &second);
    take (&b, 4 * MIB, &third);
    map (0, 1, 0, 32, b.client, first);
    map (0, 1, 32, 32, b.client, second);
    create (1, 0, 64);
    map (1, 1, 0, 64, b.client, third);
    fake_free (fake, FILE_A, b.client, b.client);
    tap_ok (charged (9), "what goes with a client is kept too");
    release (0, 0);
    tap_ok (charged (7), "a range's FREE leaves the next range");
    close_uvm (0);
    tap_ok (charged (4), "a file's end ends its own mappings");
    close_uvm (1);
    tap_ok (charged (0), "and the other's its own");

    b.client = fake_client (b.fake, FILE_A);
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    take (&b, 8 * MIB, &first);
    create (0, 0, 16);
    prepare_map (&made, 0, 1, 0, 16, b.client, first);
    rm_begin (fake->rm, &made.call);
    set_pages (0, 0, 0, 16, fake_find (fake, b.client, first)->memory);
    fake_free (fake, FILE_A, b.client, first);
    rm_end (fake->rm, &made.call, 0);
    tap_ok (charged (8), "a handle that is freed between a mapping and its answer");
    release (0, 0);
    tap_ok (charged (0), "makes no difference");
    create (0, 0, 16);
    take (&b, 8 * MIB, &first);
    prepare_map (&made, 0, 1, 0, 16, b.client, first);
    finish (&made, false);
    prepare_map (&made, 0, 1, 0, 16, b.client, first);
    rm_begin (fake->rm, &made.call);
    rm_end (fake->rm, &made.call, -14);
    fake_free (fake, FILE_A, b.client, first);
    tap_ok (charged (0), "a mapping that fails keeps nothing");
    tap_ok (fake_close (fake), "nothing is left");
}

/* Without memory for records a call goes on, and the charge ends with the handle, or with the range. */
static void without_records (void)
{
    struct bench b = bench (0);
    uint32_t first, second;

    begin (b.fake);
    take (&b, 8 * MIB, &first);
    create (0, 0, 16);
    b.fake->allocate_fail = 1;
    tap_ok (map (0, 1, 0, 16, b.client, first) && b.fake->allocate_fail == 0, "a mapping is made without a record");
    fake_free (b.fake, FILE_A, b.client, first);
    tap_ok (fake_charged (b.fake, 0) == 0, "its charge ends with the handle");
    release (0, 0);
    tap_ok (charged (0), "and only once");
    take (&b, 8 * MIB, &first);
    create (0, 0, 64);
    map (0, 1, 0, 64, b.client, first);
    take (&b, MIB, &second);
    while (b.fake->rm->external_pool.free != NULL)
        pool_take (b.fake->rm, &b.fake->rm->external_pool);
    fake_free (b.fake, FILE_A, b.client, first);
    b.fake->allocate_fail = 1;
    unmap (UVM_UNMAP_EXTERNAL, 0, 0, 16, 16);
    tap_ok (b.fake->allocate_fail == 0 && charged (9), "a hole without a record for the rest leaves all of it charged");
    b.fake->allocate_fail = 1;
    map (0, 1, 16, 16, b.client, second);
    release (0, 0);
    tap_ok (charged (1), "until the range goes");
    tap_ok (fake_close (b.fake), "nothing is left");
}

static unsigned depth (const struct external *external)
{
    unsigned left = external != NULL ? depth (external->left) : 0, right = external != NULL ? depth (external->right) : 0;

    return external == NULL ? 0 : 1 + (left > right ? left : right);
}

/* As many as a program with very many allocations: mapped in order, freed in order. */
static void many (void)
{
    struct bench b = bench (0);
    const unsigned count = 100000;
    struct made made;
    uint32_t first;

    begin (b.fake);
    take (&b, MIB, &first);
    for (unsigned i = 0; i < count; i++) {
        prepare_map (&made, 0, 1, i, 1, b.client, first);
        finish (&made, true);
    }
    printf ("# %u mappings, depth %u\n", count, depth (fake->rm->externals));
    tap_ok (depth (fake->rm->externals) < 64, "no mapping is far away");
    fake_free (fake, FILE_A, b.client, first);
    for (unsigned i = 0; i < count; i++) {
        if (i == count - 1)
            tap_ok (fake_charged (fake, 0) == MIB, "the last one of many keeps the piece");
        start (&made, UVM_FREE, 0, i, 1);
        finish (&made, true);
    }
    tap_ok (fake_charged (fake, 0) == 0 && fake->rm->externals == NULL, "and lets it go");
    fake->memories[0].references = 0;
    tap_ok (fake_close (fake), "nothing is left");
}

static void guards (void)
{
    struct made made;

    begin (fake_open ("580.159.04", RM_POSTURE_GUARD));
    prepare_map (&made, 0, 1, 0, 1, 1, 2);
    tap_ok (rm_begin (fake->rm, &made.call) == RM_PASS, "a guard does not follow mappings");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    rules ("535.183.01");
    rules ("580.159.04");
    rules ("590.48.01");
    without_records ();
    many ();
    guards ();
    return tap_done ();
}
