/* The simulated manager's UVM: external ranges with the resource manager's memory mapped into them. */
#include "manager_bed.h"
#include "tap.h"

#define BASE UINT64_C (0x700000000000)
#define GET_PID_INFO 0x2080018E

static struct manager_file *control, *uvm;
static uint32_t client;
static uint8_t gpu_uuid[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0 };

/* A call of UVM whose struct begins with a range; returns its status. */
static uint32_t of_range (uint32_t number, uint64_t base, uint64_t length)
{
    struct {
        uint64_t base, length;
        uint8_t uuid[16];
        uint32_t status, pad;
    } call = { .base = base, .length = length };
    uint32_t status;

    memcpy (call.uuid, gpu_uuid, 16);
    if (bed_ioctl (uvm, number, &call) != 0)
        return 0xfffff;
    memcpy (&status, (uint8_t *) &call + (number == 66 ? 32 : 16), 4);
    return status;
}

static uint32_t map (uint64_t base, uint64_t length, uint64_t offset, uint32_t memory)
{
    struct {
        uint64_t base, length, offset;
        struct {
            uint8_t uuid[16];
            uint32_t kinds[5];
        } gpus[256];
        uint64_t count;
        int32_t descriptor;
        uint32_t client, memory, status;
    } call = { .base = base, .length = length, .offset = offset, .count = 1, .descriptor = -1, .client = client, .memory = memory };

    _Static_assert (sizeof (call) == 9264, "the driver's size");
    memcpy (call.gpus[0].uuid, gpu_uuid, 16);
    return bed_ioctl (uvm, 33, &call) == 0 ? call.status : 0xfffff;
}

enum { PRIVATE = 16, OWNED = 24, DUPLICATED = 32 };

/* GET_PID_INFO of a process. */
static uint64_t reported (struct manager_file *file, uint32_t asking, uint32_t process, size_t of)
{
    static uint8_t params[14408];
    uint64_t bytes;

    memset (params, 0, sizeof (params));
    params[0] = 1;
    memcpy (params + 8, &process, 4);
    bed_control (file, asking, SUBDEVICE, GET_PID_INFO, params, sizeof (params));
    memcpy (&bytes, params + 8 + of, 8);
    return bytes;
}

static void ranges (void)
{
    tap_ok (of_range (73, BASE, GIB) == 0, "a range of addresses is made");
    tap_ok (of_range (73, BASE + GIB - 4096, GIB) == 0x68, "not over another (0x68)");
    tap_ok (of_range (73, BASE + 1, GIB) == 0x1E && of_range (73, BASE + GIB, 0) == 0x1E,
            "a range consists of whole pages, at least one");
    tap_ok (of_range (34, BASE, MIB) == 0x1E, "a part of a range is not freed");
    tap_ok (of_range (34, BASE, GIB) == 0 && of_range (34, BASE, GIB) == 0x1E, "a whole one is, once");
}

static void kept (void)
{
    of_range (73, BASE, GIB);
    bed_take (control, client, 1, GIB);
    tap_ok (reported (control, client, 100, PRIVATE) == GIB && reported (control, client, 100, OWNED) == 0,
            "memory with one handle is private");
    tap_ok (map (BASE, GIB, 0, 1) == 0, "memory is mapped");
    tap_ok (bed_used (0) == GIB, "which is no more memory");
    tap_ok (reported (control, client, 100, PRIVATE) == 0 && reported (control, client, 100, OWNED) == GIB,
            "its owner shares it with UVM");
    bed_free (control, client, 1);
    tap_ok (bed_used (0) == GIB, "it stays when its handle is freed");
    tap_ok (reported (control, client, 100, PRIVATE) + reported (control, client, 100, OWNED) +
                    reported (control, client, 100, DUPLICATED) ==
                0,
            "and is reported for no process");
    tap_ok (of_range (34, BASE, GIB) == 0 && bed_used (0) == 0, "until UVM's range is freed");
}

/* The owner of a duplicate can detect by it whether UVM has released the memory. */
static void asked (void)
{
    struct {
        uint32_t client, parent, object, source_client, source, flags, status;
    } call = { .parent = DEVICE, .object = 7, .source_client = client, .source = 1 };
    struct {
        uint32_t client, object, target, mask;
        uint16_t type;
        uint8_t action, pad;
        uint32_t status;
    } share = { .client = client, .object = 1, .mask = 1, .type = 3 };
    struct manager_file *other = manager_open (bed, MANAGER_CONTROL, 0);

    bed_task.process = 200;
    call.client = share.target = bed_client (other, 0);
    bed_task.process = 100;
    of_range (73, BASE, GIB);
    bed_take (control, client, 1, GIB);
    map (BASE, GIB, 0, 1);
    bed_ioctl (control, (uint32_t) _IOC (3U, 'F', 0x35, sizeof (share)), &share);
    bed_task.process = 200;
    bed_ioctl (other, (uint32_t) _IOC (3U, 'F', 0x34, sizeof (call)), &call);
    tap_ok (share.status == 0 && call.status == 0, "another client may duplicate what was shared with it");
    tap_ok (reported (other, call.client, 200, DUPLICATED) == GIB, "it has a duplicate");
    bed_free (control, client, 1);
    tap_ok (reported (other, call.client, 200, PRIVATE) == 0 &&
                reported (other, call.client, 200, OWNED) + reported (other, call.client, 200, DUPLICATED) == GIB,
            "which is not private while UVM has one too");
    of_range (34, BASE, GIB);
    tap_ok (reported (other, call.client, 200, PRIVATE) == GIB, "and is once it has not");
    bed_task.process = 100;
    manager_release (other);
}

static void parts (void)
{
    of_range (73, BASE, GIB);
    bed_take (control, client, 1, 4 * MIB);
    bed_take (control, client, 2, 2 * MIB);
    map (BASE, 4 * MIB, 0, 1);
    bed_free (control, client, 1);
    tap_ok (of_range (66, BASE + MIB, MIB) == 0 && bed_used (0) == 6 * MIB, "memory mapped in part is fully counted");
    tap_ok (map (BASE + 2 * MIB, 2 * MIB, 0, 2) == 0 && bed_used (0) == 6 * MIB, "other memory takes the place of a part");
    tap_ok (of_range (66, BASE, MIB) == 0 && bed_used (0) == 2 * MIB, "without its last part it is freed");
    bed_free (control, client, 2);
    tap_ok (of_range (66, BASE, GIB) == 0 && bed_used (0) == 0, "and all of a range can be unmapped");
    of_range (34, BASE, GIB);
}

static void refused (void)
{
    tap_ok (map (BASE, GIB, 0, 1) == 0x1E, "nothing is mapped outside of a range");
    of_range (73, BASE, GIB);
    tap_ok (map (BASE, MIB, 0, 99) == 0x33, "nor a missing object");
    bed_take (control, client, 1, 2 * MIB);
    tap_ok (map (BASE, 2 * MIB, MIB, 1) == 0x37, "nor beyond the end of the memory");
    bed_task.process = 101;
    tap_ok (map (BASE, MIB, 0, 1) == 0x1B, "nor by a process that did not allocate the client");
    bed_task.process = 100;
    gpu_uuid[15] = 1;
    tap_ok (map (BASE, MIB, 0, 1) == 0x26, "nor for a GPU without a registered address space");
    gpu_uuid[15] = 0;
    map (BASE, 2 * MIB, 0, 1);
    bed_free (control, client, 1);
}

static void endings (void)
{
    uint32_t call[10] = { 0 };

    memcpy (call, gpu_uuid, 16);
    tap_ok (bed_used (0) == 2 * MIB && bed_ioctl (uvm, 26, call) == 0 && call[4] == 0 && bed_used (0) == 0,
            "an address space that is unregistered ends its mappings");
    bed_take (control, client, 1, 2 * MIB);
    tap_ok (map (BASE, 2 * MIB, 0, 1) == 0x26, "and has no more");
    call[5] = client;
    call[6] = 0x90;
    bed_ioctl (uvm, 25, call);
    map (BASE, 2 * MIB, 0, 1);
    manager_release (control);
    tap_ok (bed_used (0) == 2 * MIB, "mapped memory exists after the end of its client");
    manager_release (uvm);
    tap_ok (bed_used (0) == 0, "and ends with UVM's file");
}

int main (void)
{
    uint32_t call[14] = { 0 };

    bed_start ();
    control = manager_open (bed, MANAGER_CONTROL, 0);
    uvm = manager_open (bed, MANAGER_UVM, 0);
    client = bed_client (control, 0);
    bed_alloc (control, client, DEVICE, 0x90, 0x90F1, call);
    bed_ioctl (uvm, 0x30000001, call);
    memcpy (call, gpu_uuid, 16);
    bed_ioctl (uvm, 37, call);
    call[5] = client;
    call[6] = 0x90;
    bed_ioctl (uvm, 25, call);
    ranges ();
    kept ();
    asked ();
    parts ();
    refused ();
    endings ();
    bed_stop ();
    return tap_done ();
}
