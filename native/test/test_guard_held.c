/* The file of a client with an address space is held: no other client gets its handles while the ledger has them (guard/held_files.c). */
#include "bare_tenant.h"
#include "guard/held_files.h"
#include "guard/process.h"
#include "rm/nvos.h"
#include "rm/state.h"
#include "tap.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CLIENT 0xc1d00001u
#define DEVICE 0x10u
#define SERIAL 7u

static struct guard guard;
static struct tenant *tenant;
static struct object *device;

static void open_bed (bool has_space)
{
    memset (&guard, 0, sizeof (guard));
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

int main (void)
{
    setrlimit (RLIMIT_NOFILE, &(struct rlimit) { 2 * HELD_FILES, 2 * HELD_FILES });
    held ();
    oldest ();
    no_copy ();
    return tap_done ();
}
