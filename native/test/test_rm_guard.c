/* The guard's posture: what no row allows is refused, and what must be the caller's own call is let through. */
#include "rm/uvm_ioctl.h"
#include "rm_fake.h"
#include "rm/state.h"
#include "rm_seen.h"
#include "tap.h"

#include <string.h>

#define VERSION "580.159.04"
#define FILE_A 1
#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))

static struct fake *fake;
static uint32_t client, device, subdevice;

static long raw (uint32_t number, uint32_t size)
{
    static uint8_t head[4096];

    memset (head, 0, sizeof (head));
    return fake_call (fake, RM_NODE_CONTROL, FILE_A, REQUEST (number, size), head, NULL, 0, NULL, 0);
}

static bool is_refused (uint32_t number, uint32_t size, enum rm_reason reason)
{
    unsigned before = fake->notes[reason];

    return raw (number, size) == -25 && fake->decision == RM_UNKNOWN && fake->notes[reason] == before + 1;
}

static void escapes (void)
{
    tap_ok (is_refused (NV_ESC_IOCTL_XFER_CMD, 16, RM_FORBIDDEN_ESCAPE) &&
                is_refused (NV_ESC_RM_ACCESS_REGISTRY, 48, RM_FORBIDDEN_ESCAPE),
            "XFER_CMD, which wraps any escape, and the registry are forbidden");
    tap_ok (is_refused (NV_ESC_RM_ALLOC_OBJECT, 20, RM_FORBIDDEN_ESCAPE) &&
                is_refused (NV_ESC_RM_I2C_ACCESS, 32, RM_FORBIDDEN_ESCAPE) &&
                is_refused (NV_ESC_RM_LOCKLESS_DIAGNOSTIC, 4024, RM_FORBIDDEN_ESCAPE) &&
                is_refused (NV_ESC_SET_NUMA_STATUS, 4, RM_FORBIDDEN_ESCAPE),
            "so are ALLOC without params, the board's buses, the log and NUMA states");
    tap_ok (raw (NV_ESC_SYS_PARAMS, 8) == 0 && fake->decision == RM_ANSWERED,
            "a setting of every program's is answered, and not made");
    tap_ok (is_refused (0x38, 32, RM_UNKNOWN_ESCAPE) && is_refused (0xff, 0, RM_UNKNOWN_ESCAPE),
            "an escape without a row is refused");
    tap_ok (is_refused (NV_ESC_RM_ALLOC, 40, RM_BAD_SIZE) && is_refused (NV_ESC_RM_FREE, 12, RM_BAD_SIZE) &&
                is_refused (NV_ESC_RM_CONTROL, 0, RM_BAD_SIZE),
            "a struct of a size that the driver has not is refused");
    raw (NV_ESC_REGISTER_FD, 4);
    tap_ok (fake->decision == RM_CONTINUE, "REGISTER_FD is the caller's own");
    raw (NV_ESC_RM_MAP_MEMORY, 56);
    tap_ok (fake->decision == RM_CONTINUE, "so is MAP_MEMORY");
    raw (NV_ESC_ALLOC_OS_EVENT, 16);
    tap_ok (fake->decision == RM_CONTINUE, "and an event");
    raw (NV_ESC_RM_SHARE, sizeof (NVOS57_PARAMETERS));
    tap_ok (fake->decision == RM_REFUSED, "SHARE of an unknown object is refused");
    {
        NVOS57_PARAMETERS share = { .hClient = client, .hObject = device };

        fake_call (fake, RM_NODE_CONTROL, FILE_A, SHARE_REQUEST, &share, NULL, 0, NULL, 0);
        tap_ok (fake->decision == RM_PASS, "of a known one it is let through");
    }
    {
        uint8_t head[48] = { 0 };
        struct rm_call call = { .node = RM_NODE_CONTROL, .request = ALLOC_REQUEST, .head = head, .head_size = 47 };

        tap_ok (rm_begin (fake->rm, &call) == RM_UNKNOWN && fake->notes[RM_BAD_POINTER] == 1,
                "a struct that is cut off is refused");
        call.head = NULL;
        tap_ok (rm_begin (fake->rm, &call) == RM_UNKNOWN && fake->notes[RM_BAD_POINTER] == 2, "and one that is missing");
    }
}

static void classes (void)
{
    uint8_t params[128] = { 0 };
    uint32_t handle = 0;

    tap_ok (fake_alloc (fake, FILE_A, client, device, &handle, 0x1234, params, 128) == NV_ERR_INVALID_CLASS &&
                fake->decision == RM_REFUSED && fake->notes[RM_UNKNOWN_CLASS] == 1 && fake->last_noted == 0x1234,
            "a class without a row is refused with INVALID_CLASS");
    tap_ok (fake_alloc (fake, FILE_A, client, client, &handle, NV_EVENT_BUFFER, params, 72) == NV_ERR_INVALID_CLASS &&
                fake->decision == RM_REFUSED &&
                fake_alloc (fake, FILE_A, client, client, &handle, NV01_MEMORY_DEVICELESS, params, 128) == NV_ERR_INVALID_CLASS &&
                fake->decision == RM_REFUSED,
            "so is an event buffer, into which the driver would trace all tenants' context switches");
    tap_ok (fake_alloc (fake, FILE_A, client, device, &handle, NV01_MEMORY_LOCAL_PHYSICAL, params, 128) == NV_ERR_INVALID_CLASS &&
                fake->notes[RM_FORBIDDEN_CLASS] == 1,
            "physical memory is forbidden");
    fake_alloc (fake, FILE_A, 0, 0, &handle, NV01_ROOT_CLIENT, NULL, 0);
    tap_ok (fake->decision == RM_CONTINUE, "a client is the caller's own");
    handle = 0;
    fake_alloc (fake, FILE_A, client, device, &handle, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, params, 40);
    tap_ok (fake->decision == RM_REFUSED, "memory by an OS descriptor is not allocated so");
    {
        nv_ioctl_nvos02_parameters_with_fd memory = {
            .params = { .hRoot = client, .hObjectParent = device, .hClass = NV01_MEMORY_SYSTEM_OS_DESCRIPTOR },
        };

        fake_call (fake, RM_NODE_CONTROL, FILE_A, ALLOC_MEMORY_REQUEST, &memory, NULL, 0, NULL, 0);
        tap_ok (fake->decision == RM_CONTINUE, "but by RM_ALLOC_MEMORY, by its own process");
    }
    handle = 0;
    fake_alloc (fake, FILE_A, client, device, &handle, NV01_MEMORY_LOCAL_USER, params, 128);
    tap_ok (fake->decision == RM_PERFORM, "video memory is performed on the guard's copy");
    tap_ok (fake_alloc (fake, FILE_A, client, device, &handle, NV01_MEMORY_LOCAL_USER, params, 127) == NO_ANSWER &&
                fake->decision == RM_UNKNOWN,
            "params shorter than the driver reads are refused");
    tap_ok (fake_alloc (fake, FILE_A, client, device, &handle, NV01_MEMORY_LOCAL_USER, NULL, 0) == NV_ERR_INVALID_CLASS &&
                fake->decision == RM_REFUSED,
            "video memory without params too");
}

/* One of the flags says that the params are serialised, with pointers elsewhere. */
static void flags (void)
{
    uint8_t params[40] = { 0 };
    NVOS54_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = FILE_A,
                            .request = CONTROL_REQUEST,
                            .head = &head,
                            .head_size = 32,
                            .params = params,
                            .params_size = 40 };

    head.hClient = client;
    head.hObject = client;
    head.cmd = NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION;
    head.flags = 4;
    head.paramsSize = 40;
    tap_ok (rm_begin (fake->rm, &call) == RM_REFUSED && head.status == NV_ERR_INSUFFICIENT_PERMISSIONS,
            "flags of a control are refused");
}

/* Controls of the whole GPU, and how late compute stops. */
static void whole_gpu (void)
{
    static const uint32_t numbers[] = { 0x00801909, 0x20800407, 0x2080220c, 0x20802210 };
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS mode;
    const NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *given = (const void *) fake->given;
    unsigned made = fake->performed, answered = 0, limited = 0, old = 0;
    unsigned noted = fake->notes[RM_SCHEDULING_CONTROL];
    uint8_t params[8] = { 0 };

    for (size_t i = 0; i < COUNT (numbers); i++)
        answered += fake_control (fake, FILE_A, client, subdevice, numbers[i], params, 8) == 0 && fake->decision == RM_ANSWERED;
    tap_ok (answered == COUNT (numbers) && fake->performed == made && fake->notes[RM_SCHEDULING_CONTROL] == noted,
            "clocks and the watchdog: success is said, nothing is done, and nothing is counted");
    for (uint32_t asked = 0; asked < 4; asked++) {
        mode = (NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS) {
            .flags = 1, .hChannel = 5, .gfxpPreemptMode = 1, .cilpPreemptMode = asked
        };
        fake_control (fake, FILE_A, client, subdevice, 0x20801210, &mode, sizeof (mode));
        limited += given->cilpPreemptMode == NV2080_GR_PREEMPTION_COMPUTE_CILP && given->gfxpPreemptMode == 1 &&
                   mode.cilpPreemptMode == asked;
    }
    tap_ok (limited == 4 && fake->notes[RM_SCHEDULING_CONTROL] == noted + 3,
            "whatever a program asks for, its compute stops at any instruction");
    mode = (NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS) { .flags = 2 };
    fake_control (fake, FILE_A, client, subdevice, 0x20801210, &mode, sizeof (mode));
    tap_ok (given->flags == 0 && mode.flags == 2 && given->cilpPreemptMode == 0 && fake->notes[RM_SCHEDULING_CONTROL] == noted + 4,
            "graphics has no mode of its own where there is none");
    for (uint32_t number = 0x20808000; number < 0x20810000; number++)
        old += rm_abi_control (rm_abi_find (VERSION), number) != NULL;
    for (size_t i = 0; i < COUNT (seen_controls); i++)
        old -= seen_controls[i][0] >= 0x20808000 && seen_controls[i][0] < 0x20810000;
    tap_ok (old == 1, "of the controls of the old kind there are those that were seen, and one that is forbidden");
}

static void debugger (void)
{
    NV83DE_ALLOC_PARAMETERS params = { 0, client ^ 0x10, 1 };
    uint32_t handle = 0;

    tap_ok (fake_alloc (fake, FILE_A, client, subdevice, &handle, 0x83de, &params, sizeof (params)) == NV_ERR_INVALID_CLIENT &&
                fake->notes[RM_FORBIDDEN_CLASS] != 0,
            "a debugger of what another tenant made is refused");
    params.hAppClient = client;
    tap_ok (fake_alloc (fake, FILE_A, client, subdevice, &handle, 0x83de, &params, sizeof (params)) == 0,
            "one of the tenant's own is made");
    params.hAppClient = handle = 0;
    tap_ok (fake_alloc (fake, FILE_A, client, subdevice, &handle, 0x83de, &params, sizeof (params)) == 0,
            "so is one that names no process: the caller's own");
}

static void controls (void)
{
    static uint8_t params[20000];
    bool is_good = true;
    unsigned performed = 0;

    tap_ok (fake_control (fake, FILE_A, client, subdevice, 0x20801234, params, 4) == NV_ERR_NOT_SUPPORTED &&
                fake->decision == RM_REFUSED && fake->notes[RM_UNKNOWN_CONTROL] == 1,
            "a control without a row is refused with NOT_SUPPORTED");
    tap_ok (fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2, params, 24) ==
                    NV_ERR_NOT_SUPPORTED &&
                fake->decision == RM_REFUSED,
            "so is a trace of all tenants' context switches");
    tap_ok (fake_control (fake, FILE_A, client, subdevice, NV0080_CTRL_CMD_FIFO_STOP_RUNLIST, params, 4) ==
                    NV_ERR_INSUFFICIENT_PERMISSIONS &&
                fake->notes[RM_FORBIDDEN_CONTROL] == 1,
            "stopping a runlist is forbidden");
    for (size_t i = 0; i < COUNT (seen_controls); i++) {
        memset (params, 0, sizeof (params));
        if (seen_controls[i][0] == NV906F_CTRL_CMD_RESET_CHANNEL) /* of a channel: test_rm_schedule.c */
            continue;
        if (seen_controls[i][0] == NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD)
            ((NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *) (void *) params)->hParent = device;
        fake_control (fake, FILE_A, client, subdevice, seen_controls[i][0], params, seen_controls[i][1]);
        performed += fake->decision == RM_PERFORM;
        if (seen_controls[i][0] != NVA06C_CTRL_CMD_GPFIFO_SCHEDULE && fake->decision != RM_PERFORM &&
            fake->decision != RM_CONTINUE && fake->decision != RM_ANSWERED) {
            is_good = false;
            printf ("# %08x: %d\n", (unsigned) seen_controls[i][0], (int) fake->decision);
        }
    }
    tap_ok (is_good && performed > 60, "the controls that programs were seen to make are made");
    memset (params, 0, sizeof (params));
    ((NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS *) (void *) params)->object.data.rmObject.hObject = device;
    fake_control (fake, FILE_A, client, client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, params, 24);
    tap_ok (fake->decision == RM_PERFORM, "an export is made with a copy of the descriptor that it names");
    fake_control (fake, FILE_A, client, client, NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, params, 40);
    tap_ok (fake->decision == RM_PERFORM, "a control whose params hold pointers is made with copies");
    fake_control (fake, FILE_A, client, client, 0x3d04, params, 4);
    tap_ok (fake->decision == RM_REFUSED, "no tenant gets a descriptor of the caller's own client");
    flags ();
}

static void exports (void)
{
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS params = { 0 };
    NVOS54_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = FILE_A,
                            .request = CONTROL_REQUEST,
                            .head = &head,
                            .head_size = 32,
                            .params = &params,
                            .params_size = 24 };
    uint32_t handle = 0;
    uint64_t bytes = 3 * MIB, before = fake_charged (fake, 0);

    fake_memory (fake, FILE_A, client, device, &handle, &bytes);
    params.object.data.rmObject.hObject = handle;
    params.fd = 1005;
    head.hClient = client;
    head.hObject = client;
    head.cmd = NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
    head.paramsSize = 24;
    tap_ok (rm_begin (fake->rm, &call) == RM_PERFORM, "an export is performed");
    rm_end (fake->rm, &call, 0);
    fake_free (fake, FILE_A, client, handle);
    tap_ok (fake_charged (fake, 0) == before + 3 * MIB, "exported memory stays charged");
    rm_close_file (fake->rm, 1005);
    tap_ok (fake_charged (fake, 0) == before, "until the descriptor's file is closed");
}

static void export_again (uint64_t file, uint32_t handle)
{
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS params = { 0 };
    NVOS54_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = file,
                            .request = CONTROL_REQUEST,
                            .head = &head,
                            .head_size = 32,
                            .params = &params,
                            .params_size = 24 };

    params.object.data.rmObject.hObject = handle;
    params.fd = 5; /* of an unknown file */
    head.hClient = client;
    head.hObject = client;
    head.cmd = NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
    head.paramsSize = 24;
    if (rm_begin (fake->rm, &call) == RM_PERFORM)
        rm_end (fake->rm, &call, 0);
}

static void endless_exports (void)
{
    uint64_t bytes = 3 * MIB, before = fake_charged (fake, 0);
    uint32_t handle = 0;
    long blocks;

    fake_memory (fake, FILE_A, client, device, &handle, &bytes);
    export_again (77, handle);
    blocks = fake->blocks;
    for (unsigned i = 0; i < 100000; i++)
        export_again (77, handle);
    tap_ok (fake->blocks == blocks, "exports to files that are not known take none of the guard's memory");
    fake_free (fake, FILE_A, client, handle);
    tap_ok (fake_charged (fake, 0) == before,
            "nor keep they a charge: the driver is asked which process has it (guard/retained.c)");
}

static void too_many (void)
{
    NVOS64_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = FILE_A, .request = ALLOC_REQUEST, .head = &head };

    for (uint32_t i = 0; i < RECORDS_MAX + 10; i++) {
        memset (&head, 0, sizeof (head));
        head.hRoot = client;
        head.hObjectParent = device;
        head.hObjectNew = 0x60000000 + i;
        head.hClass = GF100_SUBDEVICE_MASTER;
        call.head_size = 48;
        if (rm_begin (fake->rm, &call) != RM_PERFORM)
            break;
        rm_end (fake->rm, &call, 0);
    }
    tap_ok (fake->notes[RM_TOO_MANY] == 1 && head.status == NV_ERR_INSUFFICIENT_RESOURCES && record_count (fake->rm) == RECORDS_MAX,
            "a tenant has so many records and no more");
    {
        uint8_t params[652] = { 0 };

        tap_ok (fake_control (fake, FILE_A, client, client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, params, 20) ==
                        NV_ERR_INSUFFICIENT_RESOURCES &&
                    fake->decision == RM_REFUSED &&
                    fake_control (fake, FILE_A, client, client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, params,
                                  sizeof (params)) == NV_ERR_INSUFFICIENT_RESOURCES,
                "nor are any imported");
        tap_ok (fake_control (fake, FILE_A, client, client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, params, 24) ==
                        NV_ERR_INSUFFICIENT_RESOURCES &&
                    fake->decision == RM_REFUSED,
                "or exported");
    }
    {
        UVM_REGISTER_GPU_PARAMS gpu = { .rmCtrlFd = -1 };

        fake_call (fake, RM_NODE_UVM, FILE_A + 1, UVM_REGISTER_GPU, &gpu, NULL, 0, NULL, 0);
        tap_ok (fake->decision == RM_REFUSED && gpu.rmStatus == NV_ERR_INSUFFICIENT_RESOURCES,
                "and no GPU is registered with another of UVM's files");
    }
}

static void nameless (void)
{
    struct fake_memory_params params = { 0 };
    NVOS32_PARAMETERS heap;
    uint32_t bare = fake_device (fake, FILE_A, client, 1), handle = 0;

    params.common.size = MIB;
    tap_ok (fake_alloc (fake, FILE_A, client, bare, &handle, NV01_MEMORY_LOCAL_USER, &params, 128) == NV_ERR_NO_MEMORY &&
                fake->decision == RM_REFUSED,
            "memory of a device without a subdevice, whose GPU is unknown, is refused");
    heap = (NVOS32_PARAMETERS) {
        .hRoot = client,
        .hObjectParent = bare,
        .function = NVOS32_FUNCTION_ALLOC_SIZE,
        .data.AllocSize.size = MIB,
    };
    fake_call (fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &heap, NULL, 0, NULL, 0);
    tap_ok (fake->decision == RM_REFUSED && heap.status == NV_ERR_NO_MEMORY && fake_bytes (fake, 1) == 0,
            "on the old way to memory too");
    fake_subdevice (fake, FILE_A, client, bare);
    handle = 0;
    tap_ok (fake_alloc (fake, FILE_A, client, bare, &handle, NV01_MEMORY_LOCAL_USER, &params, 128) == 0 &&
                fake_charged (fake, 1) >= MIB,
            "with a subdevice it is granted and charged");
}

static void shim (void)
{
    struct fake *other = fake_open (VERSION, RM_POSTURE_SHIM);
    uint32_t mine = fake_client (other, FILE_A), handle = 0;
    uint8_t params[16] = { 0 }, head[48] = { 0 };

    tap_ok (fake_alloc (other, FILE_A, mine, mine, &handle, 0x1234, params, 16) == 0 && other->decision == RM_CONTINUE &&
                other->notes[RM_UNKNOWN_CLASS] == 1 && other->rm->objects.count == 2,
            "the shim lets an unknown class pass, counts it and keeps the object");
    tap_ok (fake_control (other, FILE_A, mine, mine, 0x20801234, params, 4) == NO_ANSWER && other->decision == RM_UNKNOWN &&
                other->notes[RM_UNKNOWN_CONTROL] == 1,
            "an unknown control is unknown there too: it is the shim that lets it pass");
    fake_call (other, RM_NODE_OTHER, FILE_A, ALLOC_REQUEST, head, NULL, 0, NULL, 0);
    tap_ok (other->decision == RM_PASS, "other nodes are not rm's");
    tap_ok (fake_close (other), "nothing is left");
}

int main (void)
{
    fake = fake_open (VERSION, RM_POSTURE_GUARD);
    client = fake_client (fake, FILE_A);
    device = fake_device (fake, FILE_A, client, 0);
    subdevice = fake_subdevice (fake, FILE_A, client, device);
    escapes ();
    classes ();
    controls ();
    whole_gpu ();
    debugger ();
    exports ();
    endless_exports ();
    nameless ();
    too_many ();
    tap_ok (fake_close (fake), "nothing is left");
    shim ();
    return tap_done ();
}
