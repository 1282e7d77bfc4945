/* Long histories of calls, made at random from fixed seeds: what rm charges is what the driver holds, at every step. */
#include "rm_fake.h"
#include "rm/state.h"
#include "tap.h"

#define STEPS 10000
#define FILES 4

static uint64_t state;

static uint32_t random_below (uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t) ((state >> 33) % bound);
}

/* A live object of a class (0: of any but clients), or NULL. */
static struct fake_object *any (struct fake *fake, uint32_t class)
{
    uint32_t start = fake->object_count != 0 ? random_below (fake->object_count) : 0;

    for (unsigned i = 0; i < fake->object_count; i++) {
        struct fake_object *at = &fake->objects[(start + i) % fake->object_count];

        if (at->live && (class == 0 ? at->handle != at->client : at->class == class))
            return at;
    }
    return NULL;
}

static void allocate (struct fake *fake)
{
    struct fake_object *device = any (fake, random_below (4) == 0 ? NV20_SUBDEVICE_0 : NV01_DEVICE_0);
    uint32_t handle = random_below (8) == 0 ? 0x900 + random_below (40) : 0;
    bool is_huge = random_below (50) == 0;
    uint64_t bytes = is_huge ? UINT64_MAX - random_below (9) : random_below (64) * 4096 + random_below (3);

    if (device != NULL)
        fake_memory (fake, device->file, device->client, device->handle, &handle, &bytes);
}

static void duplicate (struct fake *fake)
{
    struct fake_object *memory = any (fake, NV01_MEMORY_LOCAL_USER), *parent = any (fake, NV01_DEVICE_0);
    uint32_t handle = random_below (3) == 0 ? 0x900 + random_below (40) : 0;

    if (memory != NULL && parent != NULL)
        fake_dup (fake, parent->file, parent->client, parent->handle, &handle, memory->client, memory->handle);
}

static void export (struct fake *fake)
{
    struct fake_object *memory = any (fake, NV01_MEMORY_LOCAL_USER);
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS params = { 0 };

    if (memory == NULL || fake->export_count + 1 >= FAKE_EXPORTS)
        return;
    params.object.data.rmObject.hObject = memory->handle;
    params.fd = (int32_t) (1000 + random_below (20));
    fake_control (fake, memory->file, memory->client, memory->client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &params,
                  sizeof (params));
}

static void step (struct fake *fake)
{
    struct fake_object *object;

    if (random_below (20) == 0)
        fake->next_status = NV_ERR_INSUFFICIENT_RESOURCES;
    switch (random_below (24)) {
    case 0:
        fake_client (fake, 1 + random_below (FILES));
        break;
    case 1:
    case 2:
        object = any (fake, NV01_ROOT_CLIENT);
        if (object != NULL)
            fake_device (fake, object->file, object->handle, random_below (FAKE_GPUS));
        break;
    case 3:
    case 4:
        object = any (fake, NV01_DEVICE_0);
        if (object != NULL)
            fake_subdevice (fake, object->file, object->client, object->handle);
        break;
    case 5:
        object = any (fake, NV01_DEVICE_0);
        if (object != NULL)
            fake_channel (fake, object->file, object->client,
                          fake_group (fake, object->file, object->client, object->handle, 1 + random_below (2) * 10));
        break;
    case 6:
    case 7:
    case 8:
        object = any (fake, random_below (3) == 0 ? 0 : NV01_MEMORY_LOCAL_USER);
        if (object != NULL)
            fake_free (fake, object->file, object->client, object->handle);
        break;
    case 9:
        if (random_below (8) == 0)
            fake_close_file (fake, random_below (2) == 0 ? 1 + random_below (FILES) : 1000 + random_below (20));
        break;
    case 10:
        if (random_below (4) == 0 && (object = any (fake, NV01_ROOT_CLIENT)) != NULL)
            fake_free (fake, object->file, object->handle, object->handle);
        break;
    case 11:
    case 12:
    case 13:
        duplicate (fake);
        break;
    case 14:
        export (fake);
        break;
    default:
        allocate (fake);
    }
    fake->next_status = 0;
}

static uint64_t live (const struct fake *fake)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < fake->object_count; i++)
        count += fake->objects[i].live;
    return count;
}

static uint64_t memories (const struct fake *fake)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < FAKE_MEMORIES; i++)
        count += fake->memories[i].references > 0;
    return count;
}

/* Until an instance's first subdevice tells its GPU nothing of it is charged. */
static bool agrees (const struct fake *fake, uint32_t instance)
{
    bool is_known = fake->rm->gpu_of_instance[instance] != GPU_UNKNOWN;

    return fake_charged (fake, (int) instance) == (is_known ? fake_bytes (fake, instance) : 0);
}

/* Bytes that the driver counts for the process of a file: of each handle, below a device of the piece's GPU. */
static uint64_t handles (const struct fake *fake, uint64_t file, uint32_t instance)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < fake->object_count; i++) {
        const struct fake_object *object = &fake->objects[i];

        if (object->live && object->file == file && object->instance == instance && object->memory >= 0 &&
            fake->memories[object->memory].instance == instance)
            sum += fake->memories[object->memory].bytes;
    }
    return sum;
}

/* Otherwise what the ledger has too much of one process would hide what it does not have. */
static bool reports_agree (const struct fake *fake)
{
    for (uint64_t file = 1; file <= FILES; file++)
        for (uint32_t gpu = 0; gpu < 2; gpu++)
            if (rm_reported (fake->rm, file, (int) gpu) != handles (fake, file, gpu))
                return false;
    return true;
}

/* A guard's tenant is charged at least what the driver holds: it may be more (rounded up; contexts). Clients that nothing was done
 * with are in no record. */
static bool guard_agrees (struct fake *fake, const struct rm_totals *totals)
{
    uint64_t unknown = 0;

    for (unsigned i = 0; i < fake->object_count; i++)
        unknown += fake->objects[i].live && !rm_has_object (fake->rm, fake->objects[i].client, fake->objects[i].handle);
    for (int gpu = 0; gpu < 2; gpu++)
        if (fake_charged (fake, gpu) == UINT64_MAX || fake_charged (fake, gpu) < fake_bytes (fake, (uint32_t) gpu))
            return false;
    for (unsigned i = 0; i < fake->object_count && unknown > 0; i++)
        unknown -= fake->objects[i].live && fake->objects[i].client == fake->objects[i].handle &&
                   !rm_has_object (fake->rm, fake->objects[i].client, fake->objects[i].client);
    return unknown == 0 && totals->memories == memories (fake) && reports_agree (fake);
}

static bool all_agrees (struct fake *fake, const struct rm_totals *totals)
{
    if (is_guard (fake->rm))
        return guard_agrees (fake, totals);
    return agrees (fake, 0) && agrees (fake, 1) && totals->objects == live (fake) && totals->memories == memories (fake);
}

static bool history (uint64_t seed, uint64_t limit, enum rm_posture posture)
{
    struct fake *fake = fake_open ("580.159.04", posture);
    struct rm_totals totals;
    uint64_t peak = 0;

    state = seed * 0x9e3779b97f4a7c15u + 1;
    fake->limit[0] = limit;
    fake->granule = 4096;
    for (int i = 0; i < STEPS; i++) {
        step (fake);
        rm_totals (fake->rm, &totals);
        peak = totals.objects > peak ? totals.objects : peak;
        if (!all_agrees (fake, &totals)) {
            printf ("# seed %llu, step %d: %llu and %llu charged, the driver has %llu and %llu; %llu objects of %llu, "
                    "%llu pieces of %llu\n",
                    (unsigned long long) seed, i, (unsigned long long) totals.bytes[0], (unsigned long long) totals.bytes[1],
                    (unsigned long long) fake_bytes (fake, 0), (unsigned long long) fake_bytes (fake, 1),
                    (unsigned long long) totals.objects, (unsigned long long) live (fake), (unsigned long long) totals.memories,
                    (unsigned long long) memories (fake));
            return false;
        }
    }
    for (uint64_t file = 1; file <= FILES; file++)
        fake_close_file (fake, file);
    for (uint64_t file = 1000; file < 1020; file++)
        fake_close_file (fake, file);
    rm_totals (fake->rm, &totals);
    return fake_close (fake) && totals.objects == 0 && totals.memories == 0 && totals.bytes[0] == 0 && totals.bytes[1] == 0 &&
           peak > 50;
}

/* The host's memory fails now and then: nothing is lost or given back twice. */
static bool starved (uint64_t seed)
{
    struct fake *fake = fake_open ("580.159.04", RM_POSTURE_SHIM);
    bool is_good = true;

    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 2000; i++) {
        if (fake->allocate_fail == 0)
            fake->allocate_fail = 1 + (long) random_below (5);
        step (fake);
        /* What rm has no record for stays charged: never less than what the driver holds and rm has a record of. */
        is_good = is_good && fake_charged (fake, 0) != UINT64_MAX && fake_charged (fake, 1) != UINT64_MAX;
    }
    return fake_close (fake) && is_good;
}

int main (void)
{
    bool is_good = true;

    for (uint64_t seed = 1; seed <= 3; seed++)
        is_good = is_good && history (seed, 0, RM_POSTURE_SHIM);
    tap_ok (is_good, "charges equal what the driver holds at every step of random histories");
    tap_ok (history (4, 3 * MIB, RM_POSTURE_SHIM), "under a limit too");
    tap_ok (history (5, 30 * MIB, RM_POSTURE_GUARD), "and in the guard's posture");
    is_good = true;
    for (uint64_t seed = 6; seed <= 12; seed++)
        is_good = is_good && starved (seed);
    tap_ok (is_good, "without memory for records nothing is lost and nothing is given back twice");
    return tap_done ();
}
