/* The file of a client with an address space is held: no other client gets its handles while the ledger has them (guard/held_files.c). */
#include "bare_tenant.h"
#include "guard/held_files.h"
#include "guard/process.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"
#include "rm/state.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CLIENT 0xc1d00001u
#define DEVICE 0x10u
#define SERIAL 7u

static struct guard guard;
static struct tenant *tenant;
static struct object *device;
static bool is_its_file; /* as the driver says */

int __wrap_ioctl (int file, unsigned long request, ...);

/* The driver, which is asked about the client by a control. */
int __wrap_ioctl (int file, unsigned long request, ...)
{
    NVOS54_PARAMETERS *head;
    va_list arguments;

    va_start (arguments, request);
    head = va_arg (arguments, void *);
    va_end (arguments);
    if (file < 0 || request != NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (*head))) {
        errno = ENOTTY;
        return -1;
    }
    head->status = is_its_file ? NV_OK : NV_ERR_INVALID_CLIENT;
    return 0;
}

static void open_bed (bool has_space)
{
    memset (&guard, 0, sizeof (guard));
    is_its_file = true;
    tenant = bare_tenant (&guard);
    if (pipe2 (guard.closing, O_CLOEXEC) != 0)
        abort ();
    tenant->processes[0].serial = SERIAL;
    tenant->current = &tenant->processes[0];
    tenant->copy = open ("/dev/null", O_RDWR | O_CLOEXEC);
    device = tracker_add (tenant->rm, SERIAL, CLIENT, CLIENT, DEVICE, CLASS_DEVICE);
    device->space_serial = has_space ? SPACE_ITSELF : 0;
}

/* The driver made the device. */
static void made (void)
{
    NVOS64_PARAMETERS head = { .hRoot = CLIENT, .hObjectParent = CLIENT, .hObjectNew = DEVICE, .hClass = NV01_DEVICE_0 };
    const struct rm_call call = { .node = RM_NODE_CONTROL, .request = NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)) };

    memcpy (tenant->head, &head, sizeof (head));
    held_files_after_call (tenant, &call);
}

/* The driver made a range of addresses by VID_HEAP_CONTROL, with this handle. */
static void made_by_heap (void)
{
    NVOS32_PARAMETERS head = { .hRoot = CLIENT, .function = NVOS32_FUNCTION_ALLOC_SIZE, .data.AllocSize.hMemory = DEVICE };
    const struct rm_call call = { .node = RM_NODE_CONTROL, .request = NV_REQUEST (NV_ESC_RM_VID_HEAP_CONTROL, sizeof (head)) };

    memcpy (tenant->head, &head, sizeof (head));
    held_files_after_call (tenant, &call);
}

static void close_bed (void)
{
    while (tenant->retained.file_count > 0)
        close (tenant->retained.files[--tenant->retained.file_count].file);
    close (guard.closing[0]);
    close (guard.closing[1]);
    close (tenant->copy);
    bare_end (tenant);
}

static void held (void)
{
    open_bed (true);
    made ();
    tap_ok (held_file_of (tenant, CLIENT) >= 0 && rm_has_space (tenant->rm, CLIENT, DEVICE),
            "the file of a client with an address space is held");
    held_file_release (tenant, CLIENT);
    tap_ok (held_file_of (tenant, CLIENT) < 0 && !rm_has_space (tenant->rm, CLIENT, DEVICE),
            "once it is not, nothing can name the address space");
    close_bed ();
    open_bed (true);
    made ();
    held_files_process_ended (tenant, SERIAL);
    tap_ok (held_file_of (tenant, CLIENT) < 0 && !rm_has_space (tenant->rm, CLIENT, DEVICE), "so after the end of the process");
    close_bed ();
    open_bed (true);
    made_by_heap ();
    tap_ok (held_file_of (tenant, CLIENT) >= 0, "so where VID_HEAP_CONTROL made what is in one");
    close_bed ();
    open_bed (false);
    made ();
    tap_ok (held_file_of (tenant, CLIENT) < 0, "the file of a client without an address space is not held");
    close_bed ();
}

/* 1024 other clients' files are held after it. */
static void oldest (void)
{
    open_bed (true);
    made ();
    for (uint32_t i = 1; i <= HELD_FILES; i++)
        held_file_add (tenant, CLIENT + i, dup (tenant->copy), SERIAL);
    tap_ok (held_file_of (tenant, CLIENT) < 0 && !rm_has_space (tenant->rm, CLIENT, DEVICE),
            "1,024 files of other clients take its place: nothing can name the address space");
    close_bed ();
}

static void no_copy (void)
{
    struct rlimit limit;

    open_bed (true);
    getrlimit (RLIMIT_NOFILE, &limit);
    setrlimit (RLIMIT_NOFILE, &(struct rlimit) { 3, limit.rlim_max });
    made ();
    setrlimit (RLIMIT_NOFILE, &limit);
    tap_ok (held_file_of (tenant, CLIENT) < 0 && !rm_has_space (tenant->rm, CLIENT, DEVICE),
            "so where no copy of the file can be made");
    close_bed ();
}

/* Attack: a call by which a client's file is held is made on another one; the driver refuses it. */
static void other_file (void)
{
    open_bed (true);
    is_its_file = false;
    made ();
    tap_ok (held_file_of (tenant, CLIENT) < 0 && !rm_has_space (tenant->rm, CLIENT, DEVICE),
            "a file that is not the client's is not held");
    is_its_file = true;
    device->space_serial = SPACE_ITSELF;
    made ();
    tap_ok (held_file_of (tenant, CLIENT) >= 0 && tracker_find (tenant->rm, CLIENT, CLIENT)->client->is_held,
            "and its own is, as soon as it is used");
    close_bed ();
}

static bool have_room (uint32_t client, uint32_t number, uint32_t function)
{
    NVOS32_PARAMETERS head = { .hRoot = client, .function = function };
    const struct rm_call call = { .node = RM_NODE_CONTROL, .request = NV_REQUEST (number, sizeof (head)) };

    memcpy (tenant->head, &head, sizeof (head));
    return held_files_have_room (tenant, &call);
}

/* Attack: as many clients with channels as files are held, and one more. */
static void full (void)
{
    open_bed (false);
    for (uint32_t i = 1; i <= HELD_FILES; i++) {
        struct object *channel = tracker_add (tenant->rm, SERIAL, CLIENT + i, CLIENT + i, DEVICE, CLASS_CHANNEL);

        tracker_add_role (&channel->client->channels, channel);
        held_file_add (tenant, CLIENT + i, dup (tenant->copy), SERIAL);
    }
    tap_ok (!have_room (CLIENT, NV_ESC_RM_ALLOC, 0) && !have_room (CLIENT, NV_ESC_RM_DUP_OBJECT, 0) &&
                !have_room (CLIENT, NV_ESC_RM_VID_HEAP_CONTROL, NVOS32_FUNCTION_ALLOC_SIZE),
            "nothing is made by one client more where each may have a channel that runs");
    tap_ok (have_room (CLIENT, NV_ESC_RM_VID_HEAP_CONTROL, NVOS32_FUNCTION_FREE) && have_room (CLIENT, NV_ESC_RM_FREE, 0) &&
                have_room (CLIENT + 1, NV_ESC_RM_ALLOC, 0),
            "but what it has is freed, and the others go on");
    held_file_add (tenant, CLIENT, dup (tenant->copy), SERIAL);
    tap_ok (held_file_of (tenant, CLIENT) < 0 && held_file_of (tenant, CLIENT + 1) >= 0, "and no file takes the place of another");
    held_file_release (tenant, CLIENT + 1);
    tap_ok (have_room (CLIENT, NV_ESC_RM_ALLOC, 0), "until one of them is gone");
    close_bed ();
}

int main (void)
{
    setrlimit (RLIMIT_NOFILE, &(struct rlimit) { 2 * HELD_FILES, 2 * HELD_FILES });
    held ();
    oldest ();
    other_file ();
    full ();
    no_copy ();
    return tap_done ();
}
