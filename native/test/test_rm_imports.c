/* A guard's tenant that imports memory by a descriptor: its own is another handle of it, that of another tenant is charged. */
#include "rm/state.h"
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define FILE_A 1
#define FILE_B 2
#define FILE_OTHER 3 /* of another tenant */
#define MOST_CALLS 16u /* of the driver, by one import; and one that never comes */
#define NEVER 1000u
#define EXPORTED 7 /* as a guard sees it: which open file that is is not known */

struct party {
    uint64_t file;
    uint32_t client, device;
};

struct bed {
    struct fake *fake;
    struct party own, second, other;
};

static struct party join (struct fake *fake, uint64_t file)
{
    struct party party = { .file = file, .client = fake_client (fake, file) };

    party.device = fake_device (fake, file, party.client, 0);
    fake_subdevice (fake, file, party.client, party.device);
    return party;
}

/* What another tenant does is in the driver, and in no record. */
static struct party join_unseen (struct fake *fake)
{
    NVOS64_PARAMETERS head = { .hClass = NV01_ROOT_CLIENT };
    NV0080_ALLOC_PARAMETERS device = { 0 };
    struct party party = { .file = FILE_OTHER, .device = 1 };

    fake_driver (fake, FILE_OTHER, ALLOC_REQUEST, &head, NULL, NULL);
    party.client = head.hObjectNew;
    head = (NVOS64_PARAMETERS) { .hRoot = party.client, .hObjectParent = party.client, .hObjectNew = 1, .hClass = NV01_DEVICE_0 };
    fake_driver (fake, FILE_OTHER, ALLOC_REQUEST, &head, &device, NULL);
    return party;
}

static struct bed open_bed (void)
{
    struct bed bed = { .fake = fake_open ("580.159.04", RM_POSTURE_GUARD) };

    bed.fake->limit[0] = 100 * MIB;
    bed.own = join (bed.fake, FILE_A);
    bed.second = join (bed.fake, FILE_B);
    bed.other = join_unseen (bed.fake);
    return bed;
}

static void make_unseen (struct bed *bed, uint32_t handle, uint64_t bytes)
{
    struct fake_memory_params memory = { .common.size = bytes };
    NVOS64_PARAMETERS head = {
        .hRoot = bed->other.client, .hObjectParent = 1, .hObjectNew = handle, .hClass = NV01_MEMORY_LOCAL_USER
    };

    fake_driver (bed->fake, FILE_OTHER, ALLOC_REQUEST, &head, &memory, NULL);
}

static NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS exported_list (uint32_t first, uint32_t second)
{
    return (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS) { .fd = EXPORTED,
                                                               .objects = { first, second },
                                                               .numObjects = (uint16_t) (1 + (second != 0)) };
}

static void export_unseen (struct bed *bed, uint32_t first, uint32_t second)
{
    static NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS list;
    NVOS54_PARAMETERS head = fake_control_head (bed->other.client, bed->other.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
                                                &list, sizeof (list));

    list = exported_list (first, second);
    fake_driver (bed->fake, FILE_OTHER, CONTROL_REQUEST, &head, &list, NULL);
}

static void export_own (struct bed *bed, uint32_t first, uint32_t second)
{
    static NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS list;

    list = exported_list (first, second);
    fake_control (bed->fake, FILE_A, bed->own.client, bed->own.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &list,
                  sizeof (list));
}

/* Its status; handles: what is given for those, and what it made. */
static uint32_t import_as (struct bed *bed, const struct party *by, uint32_t first, uint32_t count, uint32_t *handles)
{
    static NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS list;
    uint32_t status;

    list = (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS) {
        .fd = EXPORTED, .hParent = by->device, .numObjects = (uint16_t) count, .index = (uint16_t) first
    };
    for (uint32_t i = 0; i < count; i++)
        list.objects[i] = handles[i];
    status = fake_control (bed->fake, by->file, by->client, by->client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, &list,
                           sizeof (list));
    for (uint32_t i = 0; i < count; i++)
        handles[i] = list.objects[i];
    return status;
}

static uint32_t import_list (struct bed *bed, const struct party *by, uint32_t first, uint32_t count, uint32_t *handles)
{
    for (uint32_t i = 0; i < count; i++)
        handles[i] = 0;
    return import_as (bed, by, first, count, handles);
}

static uint32_t import_one (struct bed *bed, const struct party *by, uint32_t *handle)
{
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS one = { .fd = EXPORTED };
    uint32_t status;

    one.object.data.rmObject.hDevice = one.object.data.rmObject.hParent = by->device;
    status = fake_control (bed->fake, by->file, by->client, by->client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &one,
                           sizeof (one));
    *handle = one.object.data.rmObject.hObject;
    return status;
}

static unsigned handles_in_driver (const struct fake *fake)
{
    unsigned count = 0;

    /* The guard's own client and device stay. */
    for (unsigned i = 0; i < fake->object_count; i++)
        count += fake->objects[i].live &&
                 (fake->objects[i].client != fake->guard_client ||
                  (fake->objects[i].handle != fake->guard_client && fake->objects[i].handle != fake->guard_device));
    return count;
}

/* M3, by a descriptor. */
static void foreign (void)
{
    struct bed bed = open_bed ();
    uint32_t handles[2] = { 0 }, more[2] = { 0 }, one;
    struct rm_piece piece;
    unsigned before;

    make_unseen (&bed, 2, 60 * MIB);
    make_unseen (&bed, 3, 50 * MIB);
    export_unseen (&bed, 2, 3);
    tap_ok (import_list (&bed, &bed.own, 0, 1, handles) == 0 && fake_charged (bed.fake, 0) == 60 * MIB,
            "an import of another tenant's memory is charged to the tenant that imports it");
    tap_ok (rm_pieces (bed.fake->rm, bed.own.client, handles[0], &piece, 1) == 1 && piece.bytes == 60 * MIB,
            "and its FREE is examined");
    before = handles_in_driver (bed.fake);
    tap_ok (import_list (&bed, &bed.second, 1, 1, more) == NV_ERR_NO_MEMORY && fake_charged (bed.fake, 0) == 60 * MIB &&
                handles_in_driver (bed.fake) == before && bed.fake->notes[RM_OVER_QUOTA] == 1,
            "beyond the quota it is refused, and given back");
    fake_free (bed.fake, FILE_A, bed.own.client, handles[0]);
    tap_ok (fake_charged (bed.fake, 0) == 0, "the charge ends with the handle");
    before = handles_in_driver (bed.fake);
    tap_ok (import_list (&bed, &bed.own, 0, 2, more) == NV_ERR_NO_MEMORY && fake_charged (bed.fake, 0) == 0 &&
                handles_in_driver (bed.fake) == before,
            "of a list nothing stays where one piece is beyond the quota");
    tap_ok (import_one (&bed, &bed.own, &one) == 0 && fake_charged (bed.fake, 0) == 60 * MIB,
            "the form for one object is charged too");
    fake_free (bed.fake, FILE_A, bed.own.client, one);
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void own (void)
{
    struct bed bed = open_bed ();
    uint32_t first = 0, second = 0, handles[2] = { 0 }, again[2] = { 0 }, one;
    uint64_t bytes = 30 * MIB;
    struct rm_piece piece;
    unsigned before;

    fake_memory (bed.fake, FILE_A, bed.own.client, bed.own.device, &first, &bytes);
    fake_memory (bed.fake, FILE_A, bed.own.client, bed.own.device, &second, &bytes);
    export_own (&bed, first, second);
    before = handles_in_driver (bed.fake);
    tap_ok (import_list (&bed, &bed.second, 0, 2, handles) == 0 && fake_charged (bed.fake, 0) == 60 * MIB &&
                handles_in_driver (bed.fake) == before + 2,
            "an import of the tenant's own memory by another process is another handle of it");
    fake_free (bed.fake, FILE_A, bed.own.client, first);
    tap_ok (fake_charged (bed.fake, 0) == 60 * MIB && rm_pieces (bed.fake->rm, bed.second.client, handles[0], &piece, 1) == 1 &&
                piece.is_exported && rm_pieces (bed.fake->rm, bed.second.client, handles[1], &piece, 1) == 0,
            "each of the right piece: the one that is left holds it");
    fake_free (bed.fake, FILE_B, bed.second.client, handles[0]);
    tap_ok (fake_charged (bed.fake, 0) == 30 * MIB, "the charge ends with the last handle");
    tap_ok (import_list (&bed, &bed.own, 1, 1, again) == 0 && fake_charged (bed.fake, 0) == 30 * MIB,
            "so it is in the client that exported it");
    fake_free (bed.fake, FILE_B, bed.second.client, handles[1]);
    fake_free (bed.fake, FILE_A, bed.own.client, second);
    fake_free (bed.fake, FILE_A, bed.own.client, again[0]);
    tap_ok (fake_charged (bed.fake, 0) == 0, "and with the last of these");
    tap_ok (import_one (&bed, &bed.second, &one) == 0 && fake_charged (bed.fake, 0) == 30 * MIB,
            "a piece that only the descriptor has is charged by the import");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* The driver leaves the handle that is given for an empty slot as it is. */
static void empty (void)
{
    struct bed bed = open_bed ();
    uint32_t shared = 0, kept = 0, none[2] = { 0x1234, 0 }, given[2];
    uint64_t bytes = 30 * MIB;
    unsigned before;

    fake_memory (bed.fake, FILE_A, bed.own.client, bed.own.device, &shared, &bytes);
    fake_memory (bed.fake, FILE_A, bed.own.client, bed.own.device, &kept, &bytes);
    export_own (&bed, shared, 0);
    before = handles_in_driver (bed.fake);
    given[0] = shared;
    tap_ok (import_as (&bed, &bed.own, 7, 1, given) != 0 && fake_charged (bed.fake, 0) == 60 * MIB &&
                rm_has_object (bed.fake->rm, bed.own.client, shared),
            "a handle that is taken is not given for an import: exported memory stays what it is");
    given[0] = 0x1234, given[1] = kept;
    tap_ok (import_as (&bed, &bed.own, 7, 2, given) != 0 && fake_charged (bed.fake, 0) == 60 * MIB &&
                handles_in_driver (bed.fake) == before && rm_has_object (bed.fake->rm, bed.own.client, kept),
            "memory is not freed by an import that fails");
    tap_ok (import_as (&bed, &bed.own, 7, 1, none) == 0 && fake_charged (bed.fake, 0) == 60 * MIB &&
                handles_in_driver (bed.fake) == before,
            "of an empty slot nothing is imported");
    fake_free (bed.fake, FILE_A, bed.own.client, shared);
    fake_free (bed.fake, FILE_A, bed.own.client, kept);
    tap_ok (fake_charged (bed.fake, 0) == 0, "nothing is charged in the end");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* What another process and UVM do before the n-th call of the driver after the import began. */
static struct {
    struct bed *bed;
    unsigned swap, back; /* the exporter puts the tenant's own piece into the slot, and the other one there again */
    unsigned map;        /* UVM maps what has the handle by then */
    uint32_t given;
    uint64_t mapped;     /* bytes */
} plan;

static void meanwhile (struct fake *fake)
{
    struct bed *bed = plan.bed;
    const struct fake_object *object = fake_find (fake, bed->second.client, plan.given);

    if (fake->calls == plan.swap)
        export_unseen (bed, 9, 0);
    if (fake->calls == plan.back)
        export_unseen (bed, 2, 0);
    if (fake->calls == plan.map && object != NULL && object->memory >= 0) {
        fake->memories[object->memory].references++;
        plan.mapped = fake->memories[object->memory].bytes;
    }
}

/* Bytes that the tenant's clients, or UVM for it, have; each piece once. */
static uint64_t bytes_of (const struct bed *bed)
{
    const struct fake *fake = bed->fake;
    uint64_t sum = plan.mapped;
    bool is_counted[FAKE_MEMORIES] = { false };

    for (unsigned i = 0; i < fake->object_count; i++) {
        const struct fake_object *object = &fake->objects[i];

        if (object->live && (object->client == bed->own.client || object->client == bed->second.client) && object->memory >= 0 &&
            !is_counted[object->memory]) {
            is_counted[object->memory] = true;
            sum += fake->memories[object->memory].bytes;
        }
    }
    return sum;
}

/* An import of another tenant's 60 MiB by a process of one that has 30 MiB elsewhere, which the other one has a duplicate of. Returns whether all is charged that it has. */
static bool attempt (uint64_t limit, unsigned swap, unsigned back, unsigned map)
{
    struct bed bed = open_bed ();
    uint32_t shared = 0, handles[1] = { 0x77 };
    uint64_t bytes = 30 * MIB;
    NVOS55_PARAMETERS duplicate = { .hClient = bed.other.client, .hParent = 1, .hObject = 9, .hClientSrc = bed.own.client };
    bool is_charged;

    bed.fake->limit[0] = limit;
    fake_memory (bed.fake, FILE_A, bed.own.client, bed.own.device, &shared, &bytes);
    duplicate.hObjectSrc = shared;
    fake_driver (bed.fake, FILE_OTHER, DUP_REQUEST, &duplicate, NULL, NULL);
    make_unseen (&bed, 2, 60 * MIB);
    export_own (&bed, shared, 0);
    export_unseen (&bed, 2, 0);
    plan.bed = &bed, plan.swap = swap, plan.back = back, plan.map = map, plan.given = handles[0], plan.mapped = 0;
    bed.fake->calls = 0;
    bed.fake->meanwhile = meanwhile;
    import_as (&bed, &bed.second, 0, 1, handles);
    bed.fake->meanwhile = NULL;
    is_charged = fake_charged (bed.fake, 0) + bed.fake->retained >= bytes_of (&bed);
    /* One that others do nothing to is refused at once, and nothing is retained. */
    if (limit != 0 && swap > MOST_CALLS && map > MOST_CALLS)
        is_charged &= bed.fake->retained == 0 && fake_find (bed.fake, bed.second.client, 0x77) == NULL;
    plan.mapped = 0;
    fake_close (bed.fake);
    return is_charged;
}

static void swapped (void)
{
    unsigned held = 0, tried = 0;

    for (unsigned swap = 0; swap <= MOST_CALLS + 1; swap++)
        for (unsigned back = swap + 1; back <= MOST_CALLS + 2; back++, tried++)
            held += attempt (0, swap, back, NEVER);
    tap_ok (held == tried && tried > 100, "whatever the exporter puts into the slot meanwhile, what the tenant has is charged");
}

static void mapped (void)
{
    unsigned held = 0, tried = 0;

    for (unsigned swap = 0; swap <= MOST_CALLS + 1; swap++)
        for (unsigned map = 0; map <= MOST_CALLS + 1; map++, tried++)
            held += attempt (80 * MIB, swap, swap + 1, map);
    tap_ok (held == tried && tried > 100, "an import that is refused is charged where UVM has it by then");
}

int main (void)
{
    foreign ();
    own ();
    empty ();
    swapped ();
    mapped ();
    return tap_done ();
}
