/* Charges: taken before the driver is asked, made right after it, given back with the last reference. */
#include "state.h"

bool memory_reserve (struct rm *rm, int gpu, uint64_t bytes)
{
    /* Whose memory it is is told by a subdevice, which libcuda makes with every device. A tenant that makes none would
     * never be charged. */
    if (gpu == GPU_UNKNOWN && is_guard (rm))
        return false;
    if (gpu < 0 || bytes == 0)
        return true;
    if (bytes > BYTES_MAX || !rm->host->reserve (rm->context, gpu, bytes))
        return false;
    rm->bytes[gpu] += bytes;
    return true;
}

uint64_t memory_footprint (const struct rm *rm, uint64_t bytes)
{
    return is_guard (rm) && bytes <= BYTES_MAX ? (bytes + RM_GRANULE - 1) & ~(RM_GRANULE - 1) : bytes;
}

/* Bytes that exist whatever we say: they are charged over the limit too, so that the next request is refused. */
void memory_charge (struct rm *rm, int gpu, uint64_t bytes, uint64_t *charged)
{
    *charged = 0;
    if (gpu < 0 || bytes == 0 || bytes > BYTES_MAX)
        return;
    if (rm->host->charge != NULL)
        rm->host->charge (rm->context, gpu, bytes);
    else if (!rm->host->reserve (rm->context, gpu, bytes)) {
        note (rm, RM_OVER_QUOTA, 0);
        return;
    }
    rm->bytes[gpu] += bytes;
    *charged = bytes;
}

void memory_refund (struct rm *rm, int gpu, uint64_t bytes)
{
    if (gpu < 0 || bytes == 0)
        return;
    rm->bytes[gpu] -= bytes;
    rm->host->refund (rm->context, gpu, bytes);
}

struct memory *memory_create (struct rm *rm, int gpu, uint64_t bytes)
{
    struct memory *memory = pool_take (rm, &rm->memory_pool);

    if (memory == NULL)
        return NULL;
    memory->gpu = gpu;
    memory->bytes = bytes;
    memory->references = 1;
    rm->memory_count++;
    return memory;
}

void memory_drop (struct rm *rm, struct memory *memory)
{
    if (memory == NULL || --memory->references > 0)
        return;
    memory_refund (rm, memory->gpu, memory->bytes);
    rm->exported -= memory->is_exported;
    rm->memory_count--;
    pool_give (&rm->memory_pool, memory);
}

/* The driver counts a handle for the process that made its client, and for the GPU of the device that it is below
 * (gpuFindClientInfoWithPidIterator): as private, owned or duplicated, by what others have, and as one of them whatever they do. */
static void count (struct rm *rm, struct object *object, bool is_on)
{
    const struct memory *memory = object->memory;
    struct client *client = object->client;
    struct file *maker;

    if (!is_guard (rm) || object->is_counted == is_on || memory->gpu < 0 || (is_on && tracker_gpu (rm, object) != memory->gpu))
        return;
    object->is_counted = is_on;
    client->counted += is_on ? 1 : UINT64_MAX;
    maker = tracker_file (rm, client->maker, false);
    if (maker != NULL)
        maker->reported[memory->gpu] += is_on ? memory->reported : -memory->reported;
}

void memory_join (struct rm *rm, struct object *object, struct memory *memory)
{
    object->memory = memory;
    count (rm, object, true);
}

void memory_leave (struct rm *rm, struct object *object)
{
    if (object->memory == NULL)
        return;
    count (rm, object, false);
    rm->reported_falls++;
    memory_drop (rm, object->memory);
}

void rm_client_gone (struct rm *rm, uint32_t handle)
{
    struct object *top = tracker_find (rm, handle, handle);

    for (struct object *object = top; object != NULL; object = tracker_next (top, object))
        if (object->memory != NULL)
            count (rm, object, false);
    rm->reported_falls++;
}

void memory_commit (struct rm *rm, struct object *object, int gpu, uint64_t reserved, uint64_t bytes)
{
    /* The driver rounds up to pages, so it may have granted more than was taken: the rest is charged even over the
     * limit, for the memory is there. */
    uint64_t charged = reserved, more = 0, granted;
    struct memory *memory;

    if (bytes > BYTES_MAX)
        bytes = reserved;
    granted = bytes;
    bytes = memory_footprint (rm, bytes);
    if (gpu < 0) {
        /* The GPU may have become known since the call began; otherwise the bytes wait for it
         * (tracker_set_device_gpu). */
        gpu = object != NULL ? tracker_gpu (rm, object) : GPU_UNKNOWN;
        charged = 0;
    }
    if (gpu >= 0) {
        if (bytes > charged) {
            memory_charge (rm, gpu, bytes - charged, &more);
            charged += more;
        } else {
            memory_refund (rm, gpu, charged - bytes);
            charged = bytes;
        }
        bytes = charged;
    }
    /* Without memory for the record the charge stays until the tenant is gone: too much rather than too little. */
    memory = object != NULL ? memory_create (rm, gpu, bytes) : NULL;
    if (memory == NULL)
        return;
    memory->reported = granted;
    memory_join (rm, object, memory);
}
