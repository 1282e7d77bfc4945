/* The simulated manager's memory: sizes, exhaustion, and all that ends an allocation. */
#include "manager_bed.h"
#include "tap.h"

static uint64_t rounded (struct manager_file *file, uint32_t client, uint64_t size)
{
    if (bed_memory (file, client, 0x5c000100, &size) != 0)
        return 0;
    bed_free (file, client, 0x5c000100);
    return size;
}

static void sizes (struct manager_file *file, uint32_t client)
{
    tap_ok (rounded (file, client, 1) == 64 << 10, "a byte takes 64 KiB");
    tap_ok (rounded (file, client, (64 << 10) + 1) == 128 << 10, "below 2 MiB the granule is 64 KiB");
    tap_ok (rounded (file, client, 2 * MIB) == 2 * MIB && rounded (file, client, 2 * MIB + 1) == 4 * MIB,
            "from 2 MiB on the granule is 2 MiB");
    tap_ok (rounded (file, client, 0) == 0, "a size of 0 is refused");
    tap_ok (bed_take (file, client, 1, UINT64_MAX) == 0x51 && bed_used (0) == 0, "so is more than any GPU has");
}

static void exhaustion (struct manager_file *file, uint32_t client)
{
    tap_ok (bed_take (file, client, 1, 15 * GIB) == 0 && bed_used (0) == 15 * GIB, "all but the reserved part is available");
    tap_ok (bed_take (file, client, 2, 1) == 0x51, "and not a byte more (status 0x51)");
    tap_ok (bed_used (0) == 15 * GIB, "a refused allocation is not counted");
    tap_ok (bed_free (file, client, 1) == 0 && bed_used (0) == 0, "a freed object frees its memory");
    tap_ok (bed_free (file, client, 1) == 0, "free of a missing object succeeds");
}

static void endings (void)
{
    struct manager_file *file = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t client = bed_client (file, 1);
    struct sim_totals totals;

    bed_take (file, client, 1, GIB);
    tap_ok (bed_used (1) == GIB && bed_used (0) == 0, "memory belongs to the GPU of its device");
    tap_ok (bed_free (file, client, DEVICE) == 0 && bed_used (1) == 0, "a device frees its descendants");
    client = bed_client (file, 1);
    bed_take (file, client, 1, GIB);
    tap_ok (bed_free (file, client, client) == 0 && bed_used (1) == 0, "so does a client");
    client = bed_client (file, 1);
    bed_take (file, client, 1, GIB);
    manager_release (file);
    manager_totals (bed, &totals);
    tap_ok (totals.bytes[1] == 0 && totals.clients == 1 && totals.files == 1, "and the last close of its open file");
}

struct duplicate_call {
    uint32_t client, parent, object, source_client, source, flags, status;
};
struct share_call {
    uint32_t client, object, target, mask;
    uint16_t type;
    uint8_t action, pad;
    uint32_t status;
};

static uint32_t duplicate (struct manager_file *file, uint32_t client, uint32_t object, uint32_t from, uint32_t source)
{
    struct duplicate_call call = { .client = client, .parent = DEVICE, .object = object, .source_client = from, .source = source };

    return bed_ioctl (file, _IOWR ('F', 0x34, struct duplicate_call), &call) == 0 ? call.status : 0xfffff;
}

static void duplicates (struct manager_file *file, uint32_t client)
{
    struct manager_file *second = manager_open (bed, MANAGER_CONTROL, 0);
    struct share_call share = { .client = client, .object = 1, .type = 1 };

    bed_take (file, client, 1, GIB);
    tap_ok (duplicate (file, client, 2, client, 1) == 0 && bed_used (0) == GIB, "a duplicate is no more memory");
    bed_free (file, client, 1);
    tap_ok (bed_used (0) == GIB, "the memory stays as long as a duplicate");
    bed_free (file, client, 2);
    tap_ok (bed_used (0) == 0, "and ends with the last one");
    bed_take (file, client, 1, GIB);
    bed_task.process = 102;
    uint32_t other = bed_client (second, 0);
    tap_ok (duplicate (second, other, 2, client, 1) == 0x1B, "another process may not duplicate an unshared object");
    tap_ok (bed_ioctl (file, _IOWR ('F', 0x35, struct share_call), &share) == 0 && share.status == 0 &&
                duplicate (second, other, 2, client, 1) == 0,
            "and may once it is shared");
    bed_free (file, client, 1);
    tap_ok (bed_used (0) == GIB, "then its duplicate holds the memory");
    manager_release (second);
    tap_ok (bed_used (0) == 0, "until it ends");
    bed_task.process = 100;
}

static void owner (struct manager_file *file, uint32_t client)
{
    uint8_t params[128] = { [27] = 0x18, [66] = 1 };

    tap_ok (bed_alloc (file, client, DEVICE, 1, 0x40, params) == 0x39, "memory without an owner is refused");
}

static void exports (struct manager_file *file, uint32_t client)
{
    struct manager_file *carrier = manager_open (bed, MANAGER_CONTROL, 0);
    static uint32_t out[532], in[163];

    bed_task.descriptors[3] = carrier;
    bed_take (file, client, 1, GIB);
    out[0] = 3;
    out[1] = DEVICE;
    out[2] = 2;     /* slots */
    out[19] = 1;    /* the handle */
    out[531] = 1;   /* one object, at index 0 */
    tap_ok (bed_control (file, client, client, 0x3d0b, out, 2128) == 0, "memory can be exported into an open file");
    bed_free (file, client, 1);
    tap_ok (bed_used (0) == GIB, "where it stays when its handle is freed");
    in[0] = 3;
    in[1] = DEVICE;
    in[2] = 7;
    in[162] = 1;
    tap_ok (bed_control (file, client, client, 0x3d0c, in, 652) == 0 && bed_used (0) == GIB, "an import is another handle on it");
    in[2] = 8;
    in[162] = 1u << 16 | 1;
    tap_ok (bed_control (file, client, client, 0x3d0c, in, 652) == 0 && in[2] == 8 && (in[130] & 0xff) == 0,
            "of an empty slot nothing is imported: its handle stays as it was given");
    in[162] = 2u << 16 | 1;
    tap_ok (bed_control (file, client, client, 0x3d0c, in, 652) == 0x5B, "a slot that there is not is refused");
    in[2] = 7;
    bed_take (file, client, 9, GIB);
    out[19] = 9;
    tap_ok (bed_control (file, client, client, 0x3d0b, out, 2128) == 0 && bed_used (0) == 2 * GIB, "another piece takes the slot");
    bed_free (file, client, 9);
    tap_ok (bed_used (0) == 2 * GIB, "and is held there");
    manager_release (carrier);
    bed_task.descriptors[3] = NULL;
    tap_ok (bed_used (0) == GIB, "which holds it when the file is closed");
    bed_free (file, client, 7);
    tap_ok (bed_used (0) == 0, "and then it is freed");
    in[0] = 5;
    tap_ok (bed_control (file, client, client, 0x3d0c, in, 652) == 0x3B, "a descriptor of something else is refused");
}

static void managed (void)
{
    struct manager_file *file = manager_open (bed, MANAGER_UVM, 0);
    struct sim_resident call = { .uuid = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0 }, .bytes = 3 << 20 };

    tap_ok (bed_ioctl (file, SIM_RESIDENT, &call) == 0 && call.status == 0 && bed_used (0) == 3 * MIB,
            "managed memory that lies on a GPU is used there");
    call.bytes = (int64_t) (15 * GIB);
    tap_ok (bed_ioctl (file, SIM_RESIDENT, &call) == 0 && call.status == 0x51 && bed_used (0) == 3 * MIB, "a full GPU refuses it");
    manager_release (file);
    tap_ok (bed_used (0) == 0, "it ends with the open file");
}

static void reports (struct manager_file *file, uint32_t client)
{
    static struct {
        uint32_t count, entries[256];
    } info;
    struct {
        uint32_t count, pad;
        uint64_t list;
    } old = { .count = 1 };
    uint32_t entry[2] = { 0x16, 0 };

    bed_take (file, client, 1, GIB);
    info.count = 3;
    info.entries[0] = 0x16;
    info.entries[2] = 0x08;
    info.entries[4] = 0x09;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20801303, &info, 1028) == 0 && info.entries[1] == 14 << 20 &&
                info.entries[3] == 16 << 20 && info.entries[5] == 15 << 20,
            "free, total and heap are reported in KiB by index");
    old.list = (uint64_t) (uintptr_t) entry;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20801301, &old, 16) == 0 && entry[1] == 14 << 20,
            "the first version reports the same through its list");
    old.list = 16;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20801301, &old, 16) == 0x1E, "and refuses an unreadable list");
    bed_free (file, client, 1);
}

int main (void)
{
    bed_start ();
    struct manager_file *file = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t client = bed_client (file, 0);

    sizes (file, client);
    exhaustion (file, client);
    endings ();
    duplicates (file, client);
    owner (file, client);
    exports (file, client);
    managed ();
    reports (file, client);
    bed_stop ();
    return tap_done ();
}
