/* Admission of memory with more than one handle: duplicates, fabric memory over it, exports and imports. */
#include "rm_bench.h"
#include "rm/state.h"
#include "tap.h"

#include <string.h>

static void duplicates (void)
{
    struct bench b = bench (10 * MIB);
    uint32_t other = fake_client (b.fake, FILE_B), device = fake_device (b.fake, FILE_B, other, 0), handle, copy = 0, third = 0;

    take (&b, 8 * MIB, &handle);
    tap_ok (fake_dup (b.fake, FILE_B, other, device, &copy, b.client, handle) == 0 && copy != 0 &&
                fake_charged (b.fake, 0) == 8 * MIB,
            "a duplicate is a reference, not memory");
    fake_free (b.fake, FILE_A, b.client, handle);
    tap_ok (fake_charged (b.fake, 0) == 8 * MIB && even (&b), "memory lives until its last handle is gone, across clients");
    tap_ok (fake_dup (b.fake, FILE_B, other, device, &third, other, copy) == 0, "a duplicate can be duplicated");
    b.fake->next_status = NV_ERR_INSUFFICIENT_RESOURCES;
    tap_ok (fake_dup (b.fake, FILE_B, other, device, &(uint32_t) { 0 }, other, copy) == NV_ERR_INSUFFICIENT_RESOURCES && even (&b),
            "a duplicate that the driver refuses holds nothing");
    fake_free (b.fake, FILE_B, other, copy);
    tap_ok (fake_charged (b.fake, 0) == 8 * MIB, "and the third handle holds it");
    fake_close_file (b.fake, FILE_B);
    tap_ok (fake_charged (b.fake, 0) == 0 && even (&b), "until its file is closed");
    tap_ok (fake_dup (b.fake, FILE_A, b.client, b.device, &(uint32_t) { 0 }, 0xdead, 0xbeef) != 0 && even (&b),
            "a duplicate of an unknown object charges nothing");
    tap_ok (fake_close (b.fake), "nothing is left");
}

static void fabric (void)
{
    struct bench b = bench (10 * MIB);
    uint32_t handle, fabric = 0, flexible = 0;
    NV00F8_ALLOCATION_PARAMETERS params = { 0 };

    take (&b, 6 * MIB, &handle);
    params.allocSize = 6 * MIB;
    params.map.hVidMem = handle;
    tap_ok (fake_alloc (b.fake, FILE_A, b.client, b.device, &fabric, NV_MEMORY_FABRIC, &params, sizeof (params)) == 0 &&
                fake_charged (b.fake, 0) == 6 * MIB,
            "fabric memory over a piece of memory is a reference");
    fake_free (b.fake, FILE_A, b.client, handle);
    tap_ok (fake_charged (b.fake, 0) == 6 * MIB && even (&b), "that holds the memory");
    params.map.hVidMem = 0;
    params.allocSize = 512 * MIB;
    tap_ok (fake_alloc (b.fake, FILE_A, b.client, b.device, &flexible, NV_MEMORY_FABRIC, &params, sizeof (params)) == 0 &&
                fake_charged (b.fake, 0) == 6 * MIB,
            "fabric memory without one is addresses, however many");
    fake_free (b.fake, FILE_A, b.client, fabric);
    tap_ok (fake_charged (b.fake, 0) == 0 && even (&b), "and what it held is given back");
    fake_free (b.fake, FILE_A, b.client, flexible);
    tap_ok (fake_charged (b.fake, 0) == 0 && even (&b), "that held nothing");
    tap_ok (fake_close (b.fake), "nothing is left");
}

static void exports (void)
{
    struct bench b = bench (20 * MIB);
    static NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS many;
    static NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS import;
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS back = { 0 };
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS one = { 0 };
    uint32_t first, second;

    take (&b, 5 * MIB, &first);
    take (&b, 3 * MIB, &second);
    one.object.data.rmObject.hObject = first;
    one.fd = 1001;
    tap_ok (fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &one, sizeof (one)) ==
                    0 &&
                fake_free (b.fake, FILE_A, b.client, first) == 0 && fake_charged (b.fake, 0) == 8 * MIB && even (&b),
            "exported memory stays charged after FREE");
    back.fd = 1001;
    back.object.data.rmObject.hParent = b.device;
    tap_ok (fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &back,
                          sizeof (back)) == 0 &&
                back.object.data.rmObject.hObject != 0 && fake_charged (b.fake, 0) == 8 * MIB,
            "an import charges nothing");
    fake_close_file (b.fake, 1001);
    tap_ok (fake_charged (b.fake, 0) == 8 * MIB && even (&b), "but of this tenant's own memory it is a reference");
    fake_free (b.fake, FILE_A, b.client, back.object.data.rmObject.hObject);
    tap_ok (fake_charged (b.fake, 0) == 3 * MIB && even (&b), "the charge ends with the export's file and the last handle");
    many.fd = 1002;
    many.objects[0] = second;
    many.numObjects = 1;
    tap_ok (fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &many, sizeof (many)) ==
                0,
            "the list form exports too");
    fake_free (b.fake, FILE_A, b.client, second);
    import.fd = 1002;
    import.hParent = b.device;
    import.numObjects = 1;
    tap_ok (fake_charged (b.fake, 0) == 3 * MIB &&
                fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, &import,
                              sizeof (import)) == 0 &&
                fake_charged (b.fake, 0) == 3 * MIB && even (&b),
            "and the list form imports");
    take (&b, 7 * MIB, &second);
    many.objects[0] = second;
    tap_ok (fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &many, sizeof (many)) ==
                    0 &&
                fake_free (b.fake, FILE_A, b.client, import.objects[0]) == 0 && fake_charged (b.fake, 0) == 7 * MIB && even (&b),
            "another piece takes the slot: the one that was there goes with its last handle");
    many.objects[0] = 0;
    tap_ok (fake_free (b.fake, FILE_A, b.client, second) == 0 && fake_charged (b.fake, 0) == 7 * MIB &&
                fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &many,
                              sizeof (many)) == 0 &&
                fake_charged (b.fake, 0) == 0 && even (&b),
            "and nothing, too");
    take (&b, 3 * MIB, &second);
    many.objects[0] = second;
    fake_control (b.fake, FILE_A, b.client, b.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &many, sizeof (many));
    fake_close_file (b.fake, FILE_A);
    tap_ok (fake_charged (b.fake, 0) == 3 * MIB && even (&b), "an export outlives the file of the client that made it");
    fake_close_file (b.fake, 1002);
    tap_ok (fake_charged (b.fake, 0) == 0 && even (&b), "and ends with its own");
    tap_ok (fake_close (b.fake), "nothing is left");
}

/* A library believes what the driver answers, and looks at it again when the file is closed. */
static void clients (void)
{
    struct fake *fake = fake_open ("580.159.04", RM_POSTURE_SHIM);
    uint32_t client = fake_client (fake, FILE_A);
    nv_ioctl_nvos02_parameters_with_fd head = { 0 };
    struct rm_totals totals;

    head.params.hRoot = client;
    head.params.hObjectParent = client;
    head.params.hObjectNew = 0x900;
    head.params.hClass = NV01_ROOT_CLIENT;
    fake_call (fake, RM_NODE_GPU, FILE_A, ALLOC_MEMORY_REQUEST, &head, NULL, 0, NULL, 0);
    fake_call (fake, RM_NODE_CONTROL, FILE_A, ALLOC_MEMORY_REQUEST, &head, NULL, 0, NULL, 0);
    rm_totals (fake->rm, &totals);
    tap_ok (totals.clients == 1 && totals.objects == 1, "a client is not made below another one");
    fake_close_file (fake, FILE_A);
    tap_ok (fake_close (fake), "and its file can be closed");
}

static struct {
    uint32_t client, device, group;
} swapped;

/* Another thread, between the look and the driver's call. */
static void swap_group (struct fake *at)
{
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS params = { .engineType = 1 };
    uint32_t handle = swapped.group;

    at->meanwhile = NULL;
    fake_free (at, FILE_A, swapped.client, handle);
    fake_alloc (at, FILE_A, swapped.client, swapped.device, &handle, KEPLER_CHANNEL_GROUP_A, &params, sizeof (params));
}

static void duplicate_of_another (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t copy = 0;

    fake->limit[0] = 1000 * MIB;
    swapped.client = fake_client (fake, FILE_A);
    swapped.device = fake_device (fake, FILE_A, swapped.client, 0);
    (void) fake_subdevice (fake, FILE_A, swapped.client, swapped.device);
    swapped.group = fake_group (fake, FILE_A, swapped.client, swapped.device, 1);
    fake->meanwhile = swap_group;
    tap_ok (fake_dup (fake, FILE_A, swapped.client, swapped.device, &copy, swapped.client, swapped.group) == NV_ERR_INVALID_STATE &&
                !rm_has_object (fake->rm, swapped.client, copy) && rm_has_object (fake->rm, swapped.client, swapped.group),
            "a duplicate of a group that was made again meanwhile is taken back");
    fake->meanwhile = NULL;
    tap_ok (fake_dup (fake, FILE_A, swapped.client, swapped.device, &copy, swapped.client, swapped.group) == 0 &&
                rm_has_object (fake->rm, swapped.client, copy),
            "one of the group as it is stays");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    duplicate_of_another ();
    clients ();
    duplicates ();
    fabric ();
    exports ();
    return tap_done ();
}
