/*
 * Takes memory of one kind until it is refused, gives it back, and says what the driver said on the way.
 *
 * usage: quota KIND fill CEILING           in ever smaller steps; stops at CEILING bytes, which no limit would allow
 *        quota KIND exact                  all that is free in one piece, then one granule more
 *        quota KIND loop COUNT BYTES       take and give back, COUNT times
 * KIND: see kinds below. "fill" says "full" and waits for a line while it holds everything.
 */
#include "check.h"

#define GRANULE (2 * MIB)
#define MAX_PIECES 4096

struct piece {
    CUdeviceptr address;
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle handle;
    CUgraph graph;
    CUgraphExec executable;
    void *host;
};

struct kind {
    const char *name;
    CUresult (*take) (struct piece *piece, size_t bytes);
    void (*give) (struct piece *piece);
    /* What the driver keeps for later goes back too. NULL: nothing. */
    void (*trim) (void);
    /* The smallest step of a fill; a power of two. */
    size_t smallest;
};

static CUdevice device;
static CUmemoryPool pool;
static struct piece pieces[MAX_PIECES];

static CUresult take_malloc (struct piece *piece, size_t bytes) { return cuMemAlloc (&piece->address, bytes); }

static void give_address (struct piece *piece) { MUST (cuMemFree (piece->address)); }

static CUresult take_pitch (struct piece *piece, size_t bytes)
{
    size_t pitch;
    /* Rows that the driver has to round up to a MiB. */
    return cuMemAllocPitch (&piece->address, &pitch, MIB - 100, bytes / MIB, 16);
}

static CUresult take_managed (struct piece *piece, size_t bytes)
{
    CUresult result = cuMemAllocManaged (&piece->address, bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) {
        MUST (cuMemsetD8 (piece->address, 1, bytes));
        MUST (cuCtxSynchronize ());
    }
    return result;
}

static CUresult take_create (struct piece *piece, size_t bytes)
{
    CUmemAllocationProp properties;
    memset (&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return cuMemCreate (&piece->handle, bytes, &properties, 0);
}

static void give_create (struct piece *piece) { MUST (cuMemRelease (piece->handle)); }

static CUresult take_async (struct piece *piece, size_t bytes) { return cuMemAllocAsync (&piece->address, bytes, NULL); }

static void give_async (struct piece *piece) { MUST (cuMemFreeAsync (piece->address, NULL)); }

static void trim_async (void)
{
    CUmemoryPool own;
    MUST (cuStreamSynchronize (NULL));
    MUST (cuDeviceGetDefaultMemPool (&own, device));
    MUST (cuMemPoolTrimTo (own, 0));
}

static CUresult take_pool (struct piece *piece, size_t bytes)
{
    if (pool == NULL) {
        CUmemPoolProps properties;
        memset (&properties, 0, sizeof properties);
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        MUST (cuMemPoolCreate (&pool, &properties));
    }
    return cuMemAllocFromPoolAsync (&piece->address, bytes, pool, NULL);
}

static void trim_pool (void)
{
    MUST (cuStreamSynchronize (NULL));
    MUST (cuMemPoolTrimTo (pool, 0));
}

static CUresult take_array (struct piece *piece, size_t bytes)
{
    /* Four floats an element: 64 KiB a row. */
    CUDA_ARRAY_DESCRIPTOR shape = { 4096, bytes / (64 * KIB), CU_AD_FORMAT_FLOAT, 4 };
    return cuArrayCreate (&piece->array, &shape);
}

static void give_array (struct piece *piece) { MUST (cuArrayDestroy (piece->array)); }

static CUDA_ARRAY3D_DESCRIPTOR solid (size_t width, size_t height, size_t depth)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    memset (&shape, 0, sizeof shape);
    shape.Width = width;
    shape.Height = height;
    shape.Depth = depth;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 4;
    return shape;
}

static CUresult take_array3d (struct piece *piece, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = solid (512, 512, bytes / (4 * MIB));
    return cuArray3DCreate (&piece->array, &shape);
}

static CUresult take_mipmap (struct piece *piece, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = solid (4096, bytes / (64 * KIB), 0);
    return cuMipmappedArrayCreate (&piece->mipmap, &shape, 3);
}

static void give_mipmap (struct piece *piece) { MUST (cuMipmappedArrayDestroy (piece->mipmap)); }

static void give_graph (struct piece *piece)
{
    if (piece->executable != NULL)
        MUST (cuGraphExecDestroy (piece->executable));
    MUST (cuGraphDestroy (piece->graph));
    piece->executable = NULL;
}

static void give_graph_and_memory (struct piece *piece)
{
    MUST (cuMemFreeAsync (piece->address, NULL));
    MUST (cuStreamSynchronize (NULL));
    give_graph (piece);
}

/* A graph of one node that allocates; the memory stays until it is freed. */
static CUresult take_graph (struct piece *piece, size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS node;
    CUgraphNode made;
    memset (&node, 0, sizeof node);
    node.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    node.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    node.poolProps.location.id = device;
    node.bytesize = bytes;
    MUST (cuGraphCreate (&piece->graph, 0));
    CUresult result = cuGraphAddMemAllocNode (&made, piece->graph, NULL, 0, &node);
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiate (&piece->executable, piece->graph, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphLaunch (piece->executable, NULL);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize (NULL);
    piece->address = node.dptr;
    if (result != CUDA_SUCCESS)
        give_graph (piece);
    return result;
}

static void trim_graph (void)
{
    MUST (cuStreamSynchronize (NULL));
    MUST (cuDeviceGraphMemTrim (device));
}

static CUresult take_host (struct piece *piece, size_t bytes) { return cuMemAllocHost (&piece->host, bytes); }

static void give_host (struct piece *piece) { MUST (cuMemFreeHost (piece->host)); }

static CUresult take_registered (struct piece *piece, size_t bytes)
{
    piece->host = aligned_alloc (4096, bytes);
    if (piece->host == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuMemHostRegister (piece->host, bytes, 0);
    if (result != CUDA_SUCCESS)
        free (piece->host);
    return result;
}

static void give_registered (struct piece *piece)
{
    MUST (cuMemHostUnregister (piece->host));
    free (piece->host);
}

/* Pools and graphs take memory from the driver in chunks of 32 MiB. */
static const struct kind kinds[] = {
    { "malloc", take_malloc, give_address, NULL, GRANULE },
    { "create", take_create, give_create, NULL, GRANULE },
    { "async", take_async, give_async, trim_async, 32 * MIB },
    { "pool", take_pool, give_async, trim_pool, 32 * MIB },
    { "array", take_array, give_array, NULL, GRANULE },
    { "mipmap", take_mipmap, give_mipmap, NULL, GRANULE },
    { "array3d", take_array3d, give_array, NULL, 2 * GRANULE },
    { "pitch", take_pitch, give_address, NULL, GRANULE },
    { "graph", take_graph, give_graph_and_memory, trim_graph, 32 * MIB },
    { "managed", take_managed, give_address, NULL, GRANULE },
    { "host", take_host, give_host, NULL, 64 * MIB },
    { "registered", take_registered, give_registered, NULL, 64 * MIB },
};

static void trim (const struct kind *kind)
{
    if (kind->trim != NULL)
        kind->trim ();
}

/* What the driver allocates once for a kind is allocated after this, and cannot be mistaken for a leak. */
static void warm_up (const struct kind *kind)
{
    CUresult result = kind->take (&pieces[0], kind->smallest);
    if (result != CUDA_SUCCESS) {
        fprintf (stderr, "quota: %s: the first %zu bytes: %s\n", kind->name, kind->smallest, result_name (result));
        exit (1);
    }
    kind->give (&pieces[0]);
    trim (kind);
}

static void fill (const struct kind *kind, size_t ceiling)
{
    size_t taken = 0, last = 0;
    unsigned count = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t step = GIB; step >= kind->smallest && taken < ceiling; step /= 2)
        while (taken < ceiling && count < MAX_PIECES) {
            result = kind->take (&pieces[count], step);
            if (result != CUDA_SUCCESS)
                break;
            taken += step;
            last = step;
            count++;
        }
    say ("taken", taken);
    say ("status", (unsigned long long) result);
    say ("free_full", memory_free ());
    wait_for_line ("full");
    if (count > 0) {
        kind->give (&pieces[count - 1]);
        trim (kind);
        result = kind->take (&pieces[count - 1], last);
        say ("status_again", (unsigned long long) result);
        count -= result != CUDA_SUCCESS;
    }
    for (unsigned i = 0; i < count; i++)
        kind->give (&pieces[i]);
    trim (kind);
}

static void exact (const struct kind *kind)
{
    size_t all = memory_free () & ~(GRANULE - 1);
    say ("asked", all);
    CUresult result = kind->take (&pieces[0], all);
    say ("status_all", (unsigned long long) result);
    if (result != CUDA_SUCCESS)
        return;
    say ("free_full", memory_free ());
    result = kind->take (&pieces[1], GRANULE);
    say ("status_more", (unsigned long long) result);
    if (result == CUDA_SUCCESS)
        kind->give (&pieces[1]);
    kind->give (&pieces[0]);
    trim (kind);
    CUresult again = kind->take (&pieces[0], all);
    say ("status_again", (unsigned long long) again);
    if (again == CUDA_SUCCESS)
        kind->give (&pieces[0]);
    trim (kind);
}

static void loop (const struct kind *kind, unsigned long count, size_t bytes)
{
    uint64_t start = now_ns ();
    for (unsigned long i = 0; i < count; i++) {
        CUresult result = kind->take (&pieces[0], bytes);
        if (result != CUDA_SUCCESS) {
            fprintf (stderr, "quota: %s: loop %lu: %s\n", kind->name, i, result_name (result));
            exit (1);
        }
        kind->give (&pieces[0]);
    }
    trim (kind);
    say ("nanoseconds", (now_ns () - start) / count);
}

int main (int argc, char **argv)
{
    const struct kind *kind = NULL;
    for (size_t i = 0; argc > 2 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp (kinds[i].name, argv[1]) == 0)
            kind = &kinds[i];
    if (kind == NULL) {
        fprintf (stderr, "usage: quota KIND fill CEILING | exact | loop COUNT BYTES\n");
        return 2;
    }
    device = begin_cuda ();
    warm_up (kind);
    say ("total", memory_total ());
    say ("free_start", memory_free ());
    if (strcmp (argv[2], "fill") == 0 && argc == 4)
        fill (kind, strtoull (argv[3], NULL, 10));
    else if (strcmp (argv[2], "exact") == 0)
        exact (kind);
    else if (strcmp (argv[2], "loop") == 0 && argc == 5)
        loop (kind, strtoul (argv[3], NULL, 10), strtoull (argv[4], NULL, 10));
    else
        return 2;
    say ("free_end", memory_free ());
    wait_for_line ("done");
    return 0;
}
