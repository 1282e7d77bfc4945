/*
 * A ledger that was damaged: whatever its records say, nothing outside of them is read or written, what is entered can be asked about,
 * stopped and dropped, and what was charged is given back exactly.
 */
#include "fuzz.h"
#include "rm/state.h"

#include <stdlib.h>
#include <string.h>

#define ARENA (256u * 1024)
#define HANDLES 40u

struct host {
    uint64_t used[RM_MAX_GPUS];
};

static uint8_t *arena;
static size_t arena_used;

static void *host_allocate (void *context, size_t size)
{
    (void) context;
    return calloc (1, size);
}

static void *host_keep (void *context, size_t size)
{
    void *piece = arena + arena_used;

    (void) context;
    arena_used += (size + 15) & ~(size_t) 15;
    return arena_used <= ARENA ? piece : NULL;
}

static void host_release (void *context, void *memory, size_t size)
{
    (void) context;
    (void) size;
    if ((uint8_t *) memory < arena || (uint8_t *) memory >= arena + ARENA)
        free (memory);
}

static long host_ioctl (void *context, uint64_t file, uint32_t request, void *argument)
{
    (void) context;
    (void) file;
    (void) request;
    (void) argument;
    return 0;
}

static int host_find_gpu (void *context, const uint8_t uuid[16])
{
    (void) context;
    return uuid[15] % RM_MAX_GPUS;
}

static bool host_reserve (void *context, int gpu, uint64_t bytes)
{
    ((struct host *) context)->used[gpu] += bytes;
    return true;
}

static void host_refund (void *context, int gpu, uint64_t bytes)
{
    struct host *host = context;

    if (gpu < 0 || gpu >= RM_MAX_GPUS || bytes > host->used[gpu])
        abort ();
    host->used[gpu] -= bytes;
}

static void host_charge (void *context, int gpu, uint64_t bytes)
{
    struct host *host = context;

    if (gpu < 0 || gpu >= RM_MAX_GPUS || host->used[gpu] + bytes < bytes)
        abort ();
    host->used[gpu] += bytes;
}

static struct rm_numbers host_numbers (void *context, int gpu)
{
    return (struct rm_numbers) { (uint64_t) 1 << 30, ((struct host *) context)->used[gpu] };
}

static uint64_t host_file_of (void *context, int descriptor)
{
    (void) context;
    return (uint64_t) descriptor;
}

static uint32_t host_timeslice (void *context, int gpu)
{
    (void) context;
    return gpu == 0 ? 1000 : 0;
}

static bool host_is_own (void *context, uint32_t pid)
{
    (void) context;
    return pid % 2 == 0;
}

static void host_changed (void *context, int gpu)
{
    (void) context;
    if (gpu >= RM_MAX_GPUS)
        abort ();
}

static void host_note (void *context, enum rm_reason reason, uint32_t number)
{
    (void) context;
    (void) reason;
    (void) number;
}

static struct rm_host fuzz_host = {
    host_allocate, host_release, host_ioctl,     host_find_gpu, host_reserve, host_refund, host_charge,
    host_numbers,  host_file_of, host_timeslice, host_is_own,   host_changed, host_note,   NULL,
};

static struct rm *create (struct host *host)
{
    struct rm *rm = rm_create (rm_abi_find ("580.159.04"), RM_POSTURE_GUARD, &fuzz_host, host);

    if (rm == NULL)
        abort ();
    return rm;
}

/* Two clients of two files, with what a program has. */
static void fill (struct rm *rm)
{
    static const uint8_t kinds[] = { CLASS_DEVICE, CLASS_SUBDEVICE, CLASS_VIDEO_MEMORY, CLASS_GROUP, CLASS_CHANNEL, CLASS_PLAIN };

    for (uint32_t client = 1; client <= 2; client++)
        for (uint32_t i = 0; i < HANDLES; i++) {
            uint8_t kind = kinds[i % sizeof (kinds)];
            uint32_t parent = kind == CLASS_DEVICE ? client << 8 : kind == CLASS_CHANNEL ? 0x1000 + i - 1 : 0x1000 + i / 6 * 6;
            struct object *object = tracker_add (rm, client, client << 8, parent, 0x1000 + i, kind);

            if (object == NULL)
                abort ();
            object->gpu = kind == CLASS_DEVICE ? (int32_t) (i / 6) : GPU_UNKNOWN;
            object->is_compute = kind == CLASS_GROUP || kind == CLASS_CHANNEL;
            if (kind == CLASS_VIDEO_MEMORY) {
                object->memory = memory_create (rm, (int) (i / 6), 4096);
                memory_charge (rm, (int) (i / 6), 4096, &object->memory->bytes);
                tracker_export (rm, client, object->memory, i);
            }
        }
}

static uint64_t take (const uint8_t **data, size_t *size, unsigned bytes)
{
    uint64_t value = 0;

    for (; bytes > 0; bytes--) {
        value = value << 8 | (*size > 0 ? **data : 0u);
        *data += *size > 0;
        *size -= *size > 0;
    }
    return value;
}

/* Words of the ledger become pointers into it, marks, sizes, small numbers, or anything. */
static void damage (uint8_t *bytes, size_t used, const uint8_t *data, size_t size)
{
    while (size > 0) {
        uint8_t how = (uint8_t) take (&data, &size, 1);
        size_t at = (size_t) take (&data, &size, 3) % (used - 8);
        uint64_t value = take (&data, &size, how % 8 < 4 ? 2 : 8);

        at -= how & 0x80 ? 0 : at % 8;
        if (how % 8 == 0)
            value = (uint64_t) (uintptr_t) arena + value * (how & 0x40 ? 1 : 8) % used;
        else if (how % 8 == 1)
            value = MARK + value % POOL_KINDS;
        else if (how % 8 == 2)
            value = 0 - value % 64;
        memcpy (bytes + at, &value, how & 0x20 ? 1 : 8);
    }
}

static void use (struct rm *rm)
{
    struct rm_channel channels[8];
    struct rm_piece pieces[8];
    struct rm_totals totals;

    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++) {
        rm_freeze (rm, gpu, true);
        rm_set_timeslice (rm, gpu, 2000);
        rm_freeze (rm, gpu, false);
        rm_groups (rm, gpu);
    }
    rm_channels (rm, channels, 8);
    rm_pieces (rm, 1u << 8, 1u << 8, pieces, 8);
    rm_file_pieces (rm, 1, pieces, 8);
    rm_totals (rm, &totals);
    rm_drop (rm, 1u << 8, 0x1000);
    rm_close_file (rm, 2);
}

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    struct host before = { { 0 } }, after = { { 0 } };
    struct rm *rm, *other;
    uint8_t *copy;

    arena = calloc (1, ARENA);
    arena_used = 0;
    fuzz_host.keep = host_keep;
    rm = create (&before);
    fill (rm);
    /* Exactly as long as it says, so that the address sanitizer sees a read behind the end. */
    copy = malloc (arena_used);
    memcpy (copy, arena, arena_used);
    damage (copy, arena_used, data, size);
    fuzz_host.keep = NULL;
    other = create (&after);
    if (rm_restore (other, copy, arena_used, (uint64_t) (uintptr_t) arena))
        use (other);
    else if (size == 0)
        abort ();
    free (copy);
    rm_destroy (other);
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++)
        if (after.used[gpu] != 0)
            abort ();
    fuzz_host.keep = host_keep;
    rm_destroy (rm);
    free (arena);
    return 0;
}
