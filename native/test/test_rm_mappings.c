/* Long histories of memory, handles and mappings by UVM, at random from fixed seeds:
 * what is charged is what is there. */
#include "rm_fake_uvm.h"
#include "tap.h"

#define STEPS 20000

static uint64_t state;

static uint32_t random_below (uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t) ((state >> 33) % bound);
}

static struct fake_object *any (uint32_t class)
{
    uint32_t from = fake->object_count != 0 ? random_below (fake->object_count) : 0;

    for (unsigned i = 0; i < fake->object_count; i++) {
        struct fake_object *at = &fake->objects[(from + i) % fake->object_count];

        if (at->live && at->class == class)
            return at;
    }
    return NULL;
}

static void step (void)
{
    unsigned file = random_below (FILES), first = random_below (PAGES), count = 1 + random_below (PAGES - first);
    uint32_t control = 1 + random_below (2), client, device, handle = 0;
    struct fake_object *object;
    uint64_t bytes = (1 + random_below (64)) * (uint64_t) 4096;

    switch (random_below (26)) {
    case 0:
        if (random_below (20) != 0)
            break;
        fake_close_file (fake, control);
        /* fall through */
    case 1:
        client = fake_client (fake, control);
        device = fake_device (fake, control, client, random_below (2));
        fake_subdevice (fake, control, client, device);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
        if ((object = any (NV01_DEVICE_0)) != NULL)
            fake_memory (fake, object->file, object->client, object->handle, &handle, &bytes);
        break;
    case 7:
    case 8:
    case 9:
    case 10:
        if ((object = any (random_below (30) == 0 ? NV01_DEVICE_0 : NV01_MEMORY_LOCAL_USER)) != NULL)
            fake_free (fake, object->file, object->client, object->handle);
        break;
    case 11:
        if ((object = any (NV01_DEVICE_0)) != NULL) {
            struct fake_object *memory = any (NV01_MEMORY_LOCAL_USER);

            if (memory != NULL)
                fake_dup (fake, object->file, object->client, object->handle, &handle, memory->client, memory->handle);
        }
        break;
    case 12:
    case 13:
        create (file, first, random_below (4) == 0 ? count : 1 + count / 4);
        break;
    case 14:
        release (file, first);
        break;
    case 15:
    case 16:
        unmap (random_below (2) != 0 ? UVM_UNMAP_EXTERNAL : UVM_MAP_EXTERNAL_SPARSE, file, (int) random_below (FAKE_GPUS), first,
               1 + count / 4);
        break;
    case 17:
        if (random_below (30) == 0)
            close_uvm (file);
        else if (random_below (20) == 0)
            unregister (random_below (2) != 0 ? UVM_UNREGISTER_GPU : UVM_UNREGISTER_GPU_VASPACE, file,
                        (int) random_below (FAKE_GPUS));
        break;
    default:
        if ((object = any (NV01_MEMORY_LOCAL_USER)) != NULL)
            map (file, random_below (1 << FAKE_GPUS), first, 1 + count / 4, object->client, object->handle);
    }
}

static uint64_t memories (bool is_orphan)
{
    uint64_t count = 0;

    for (int i = 0; i < FAKE_MEMORIES; i++) {
        bool has_handle = false;

        for (unsigned at = 0; is_orphan && at < fake->object_count; at++)
            has_handle = has_handle || (fake->objects[at].live && fake->objects[at].memory == i);
        count += fake->memories[i].references > 0 && !has_handle;
    }
    return count;
}

static bool history (const char *version, uint64_t seed)
{
    struct rm_totals totals;
    uint64_t orphans = 0;

    begin (fake_open (version, RM_POSTURE_SHIM));
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t instance = 0; instance < 2; instance++) {
        uint32_t client = fake_client (fake, 1);

        fake_subdevice (fake, 1, client, fake_device (fake, 1, client, instance));
    }
    for (int i = 0; i < STEPS; i++) {
        step ();
        rm_totals (fake->rm, &totals);
        if (i % 1000 == 999)
            orphans += memories (true);
        if (fake_charged (fake, 0) == fake_bytes (fake, 0) && fake_charged (fake, 1) == fake_bytes (fake, 1) &&
            totals.memories == memories (false))
            continue;
        printf ("# seed %llu, step %d: %llu and %llu charged, %llu and %llu there\n", (unsigned long long) seed, i,
                (unsigned long long) totals.bytes[0], (unsigned long long) totals.bytes[1],
                (unsigned long long) fake_bytes (fake, 0), (unsigned long long) fake_bytes (fake, 1));
        return false;
    }
    for (uint64_t file = 1; file <= 2; file++)
        fake_close_file (fake, file);
    for (unsigned file = 0; file < FILES; file++)
        close_uvm (file);
    rm_totals (fake->rm, &totals);
    return totals.memories == 0 && totals.bytes[0] == 0 && totals.bytes[1] == 0 && fake->rm->externals == NULL &&
           fake_close (fake) && orphans > 10;
}

static bool starved (uint64_t seed)
{
    bool is_good = true;

    begin (fake_open ("590.48.01", RM_POSTURE_SHIM));
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4000; i++) {
        if (fake->allocate_fail == 0)
            fake->allocate_fail = 1 + (long) random_below (3);
        step ();
        is_good = is_good && fake_charged (fake, 0) != UINT64_MAX && fake_charged (fake, 1) != UINT64_MAX;
    }
    return fake_close (fake) && is_good;
}

int main (void)
{
    bool is_good = true;

    for (uint64_t seed = 1; seed <= 2; seed++)
        is_good = is_good && history ("580.159.04", seed) && history ("590.48.01", seed + 10);
    tap_ok (is_good, "charges equal what driver and UVM hold at every step of random histories");
    for (uint64_t seed = 20; seed <= 24; seed++)
        is_good = is_good && starved (seed);
    tap_ok (is_good, "without memory for records nothing is lost and nothing is given back twice");
    return tap_done ();
}
