/*
 * Pools: what is charged against what the pool itself says that it has (its RESERVED_MEM_CURRENT).
 *
 * usage: pools threshold     kept by its release threshold, used again, trimmed, let go
 *        pools destroyed     the pool goes while memory of it is in use
 *        pools exported      another process imports the pool and memory of it
 */
#include "peers.h"

#define PIECE (64 * MIB)
#define PIECES 8
#define BYTES (PIECES * PIECE)

struct share {
    CUmemPoolPtrExportData pointer;
};

static CUdevice device;

static CUmemoryPool make_pool (CUmemAllocationHandleType shared_by)
{
    CUmemPoolProps properties;
    CUmemoryPool pool;
    memset (&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = shared_by;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    MUST (cuMemPoolCreate (&pool, &properties));
    return pool;
}

static void set_threshold (CUmemoryPool pool, cuuint64_t bytes)
{
    MUST (cuMemPoolSetAttribute (pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

/* "free_WHERE" and "reserved_WHERE", with nothing pending. */
static void point (CUmemoryPool pool, const char *where)
{
    char name[64];
    cuuint64_t reserved = 0;
    MUST (cuStreamSynchronize (NULL));
    if (pool != NULL)
        MUST (cuMemPoolGetAttribute (pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    snprintf (name, sizeof name, "free_%s", where);
    say (name, memory_free ());
    snprintf (name, sizeof name, "reserved_%s", where);
    say (name, reserved);
}

static void take_all (CUmemoryPool pool, CUdeviceptr pieces[PIECES])
{
    for (unsigned i = 0; i < PIECES; i++) {
        MUST (cuMemAllocFromPoolAsync (&pieces[i], PIECE, pool, NULL));
        MUST (cuMemsetD8Async (pieces[i], 3, PIECE, NULL));
    }
    MUST (cuStreamSynchronize (NULL));
}

static void give_all (CUdeviceptr pieces[PIECES])
{
    for (unsigned i = 0; i < PIECES; i++)
        MUST (cuMemFreeAsync (pieces[i], NULL));
    MUST (cuStreamSynchronize (NULL));
}

/* CUDA begins; and what the driver allocates once. */
static void prepare (void)
{
    CUdeviceptr pieces[PIECES];
    device = begin_cuda ();
    CUmemoryPool pool = make_pool (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    take_all (pool, pieces);
    give_all (pieces);
    MUST (cuMemPoolDestroy (pool));
    MUST (cuCtxSynchronize ());
}

static void threshold (void)
{
    CUdeviceptr pieces[PIECES];
    CUmemoryPool pool = make_pool (CU_MEM_HANDLE_TYPE_NONE);
    set_threshold (pool, UINT64_MAX);
    take_all (pool, pieces);
    point (pool, "taken");
    give_all (pieces);
    point (pool, "kept");
    take_all (pool, pieces);
    point (pool, "reused");
    give_all (pieces);
    MUST (cuMemPoolTrimTo (pool, BYTES / 2));
    point (pool, "trimmed");
    set_threshold (pool, 0);
    take_all (pool, pieces);
    give_all (pieces);
    point (pool, "let_go");
    MUST (cuMemPoolDestroy (pool));
}

static void destroyed (void)
{
    CUdeviceptr pieces[PIECES];
    CUmemoryPool pool = make_pool (CU_MEM_HANDLE_TYPE_NONE);
    take_all (pool, pieces);
    point (pool, "taken");
    MUST (cuMemPoolDestroy (pool));
    point (NULL, "destroyed");
    give_all (pieces);
    point (NULL, "given");
}

static void owner (void)
{
    CUmemoryPool pool = make_pool (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    struct share share;
    CUdeviceptr pieces[PIECES];
    int descriptor = -1;
    take_all (pool, pieces);
    MUST (cuMemPoolExportToShareableHandle (&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST (cuMemPoolExportPointer (&share.pointer, pieces[0]));
    meet ();
    point (pool, "taken");
    send_message (&share, sizeof share, descriptor);
    close (descriptor);
    meet (); /* imported there */
    point (pool, "imported");
    meet (); /* given back there */
    point (pool, "returned");
    give_all (pieces);
    MUST (cuMemPoolTrimTo (pool, 0));
    point (pool, "given");
    MUST (cuMemPoolDestroy (pool));
    meet ();
}

static void user (void)
{
    CUmemoryPool pool;
    CUdeviceptr address, other;
    struct share share;
    unsigned char byte = 0;
    meet ();
    int descriptor = receive_message (&share, sizeof share);
    MUST (cuMemPoolImportFromShareableHandle (&pool, (void *) (intptr_t) descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close (descriptor);
    MUST (cuMemPoolImportPointer (&address, pool, &share.pointer));
    MUST (cuMemcpyDtoH (&byte, address, 1));
    say ("byte", byte);
    /* The driver's own answer; an imported pool gives no memory. */
    say ("status_alloc", (unsigned long long) cuMemAllocFromPoolAsync (&other, PIECE, pool, NULL));
    meet ();
    MUST (cuMemFreeAsync (address, NULL));
    MUST (cuStreamSynchronize (NULL));
    MUST (cuMemPoolDestroy (pool));
    meet ();
    meet ();
}

int main (int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    if (strcmp (scene, "threshold") == 0)
        return alone (prepare, threshold);
    if (strcmp (scene, "destroyed") == 0)
        return alone (prepare, destroyed);
    if (strcmp (scene, "exported") == 0)
        return together (prepare, owner, user);
    return 2;
}
