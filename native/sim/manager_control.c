/* Controls: their objects, the sizes of their parameters, their functions. Runs as manager.c, under manager->lock. */
#include "manager_state.h"
#include "versions.h"

struct control_row {
    uint32_t number;
    uint32_t kinds;
    uint32_t size;
    enum version_struct varying; /* the size by release, in place of `size` */
    control_function *function; /* NULL: accepted, the parameters do not change */
};

static const struct control_row rows[] = {
    { 0x00000101, KIND_CLIENT, 40, 0, control_build_version },
    { 0x00000201, KIND_CLIENT, 128, 0, control_ids },
    { 0x00000202, KIND_CLIENT, 40, 0, control_id_info },
    { 0x00000205, KIND_CLIENT, 32, 0, control_id_info },
    { 0x00000214, KIND_CLIENT, 0, VERSION_PROBED, control_ids },
    { 0x00000215, KIND_CLIENT, 132, 0, NULL }, /* attach */
    { 0x00000216, KIND_CLIENT, 128, 0, NULL }, /* detach */
    { 0x0000021b, KIND_CLIENT, 12, 0, control_pci_info },
    { 0x00000d01, KIND_CLIENT, 12, 0, control_address_space },
    { 0x00000d02, KIND_CLIENT, 16, 0, control_handle_info },
    { 0x00000d04, KIND_CLIENT, 12, 0, control_inherited_share },
    { 0x00000d07, KIND_CLIENT, 12, 0, memory_are_duplicates },
    { 0x00003d08, KIND_CLIENT, 0, VERSION_EXPORT_INFO, memory_export_info },
    { 0x00003d0b, KIND_CLIENT, 2128, 0, memory_export },
    { 0x00003d0c, KIND_CLIENT, 652, 0, memory_import },
    { 0x00410110, KIND_MEMORY | KIND_OTHER, 16, 0, control_surface_info },
    { 0x0080170f, KIND_DEVICE, 16, 0, control_channel_property },
    { 0x00801b01, KIND_DEVICE, 16, 0, control_encoder_caps },
    { 0x2080014a, KIND_SUBDEVICE, 268, 0, control_gid },
    { 0x2080018d, KIND_SUBDEVICE, 3812, 0, control_pids },
    { 0x2080018e, KIND_SUBDEVICE, 14408, 0, control_pid_info },
    { 0x20800802, KIND_SUBDEVICE, 16, 0, NULL }, /* of the BIOS */
    { 0x20801238, KIND_SUBDEVICE, 24, 0, control_bind_trace },
    { 0x20801301, KIND_SUBDEVICE, 16, 0, control_fb_info_list },
    { 0x20801303, KIND_SUBDEVICE, 0, VERSION_FB_INFO, control_fb_info },
    { 0x20801802, KIND_SUBDEVICE, 16, 0, NULL }, /* of the bus */
    { 0x20802096, KIND_SUBDEVICE, 0, VERSION_SAMPLES, control_samples },
    { 0x2080110b, KIND_SUBDEVICE, 536, 0, control_disable },
    { 0x20801210, KIND_SUBDEVICE, 32, 0, control_preemption_mode },
    { 0x503c0102, KIND_OTHER, 16, 0, control_register_space },
    { 0x503c0103, KIND_OTHER, 4, 0, control_unregister },
    { 0x503c0104, KIND_OTHER, 32, 0, control_register_memory },
    { 0x503c0105, KIND_OTHER, 4, 0, control_unregister },
    { 0x90cd0101, KIND_OTHER, 8, 0, control_enable_trace },
    { 0xa06c0101, KIND_GROUP, 0, VERSION_SCHEDULE, control_schedule },
    { 0xa06c0102, KIND_GROUP, 4, 0, NULL }, /* bind */
    { 0xa06c0103, KIND_GROUP, 8, 0, control_set_slice },
    { 0xa06c0104, KIND_GROUP, 8, 0, control_get_slice },
    { 0xa06c0105, KIND_GROUP, 8, 0, control_preempt },
    { 0xa06c0106, KIND_GROUP, 4, 0, control_number },
    { 0xa06c0107, KIND_GROUP, 4, 0, NULL }, /* interleave level: of no effect among equals */
    { 0x906f0102, KIND_CHANNEL, 0, VERSION_RESET, control_reset },
    { 0xa06f0103, KIND_CHANNEL, 0, VERSION_SCHEDULE, control_schedule },
    { 0xc36f0108, KIND_CHANNEL, 4, 0, control_token },
};

/* Further controls of libcuda 580 and nvidia-smi 580 at their start, whose results have no effect on a program:
 * accepted, without a change of the parameters. */
static const uint32_t taken[] = {
    0x13a,      0x1f0,      0x279,      0x27b,      0x288,      0x289,      0xa04,      0x800280,   0x800288,   0x800289,
    0x800292,   0x801307,   0x801402,   0x80170d,   0x801909,   0x83de0309, 0x906f0101, 0x90e60102, 0xcb330101, 0xde0001,
    0x20800102, 0x20800110, 0x20800111, 0x20800119, 0x2080012f, 0x20800131, 0x20800133, 0x20800145, 0x20800146, 0x2080014b,
    0x20800157, 0x20800170, 0x20800195, 0x208001a3, 0x20800406, 0x20801201, 0x20801208, 0x20801218, 0x2080121b, 0x20801227,
    0x2080122a, 0x2080122b, 0x20801230, 0x20801701, 0x20801801, 0x20801803, 0x20801823, 0x2080182a, 0x2080182b, 0x2080200a,
    0x2080220c, 0x20802210, 0x20802a0a, 0x20803002, 0x20803601, 0x20803801, 0x20810108, 0x20810110, 0x208f1105,
};

/* Controls that need CAP_SYS_ADMIN, among those that are not served otherwise. */
static const uint32_t privileged[] = { 0x20800194, 0x20801110, 0x801711, 0x801712 };

static bool among (const uint32_t *numbers, size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return true;
    }
    return false;
}

#define AMONG(numbers, number) among (numbers, sizeof (numbers) / sizeof (numbers[0]), number)

static uint32_t row_size (const struct manager *manager, const struct control_row *row)
{
    return row->varying != VERSION_NONE ? version_size (row->varying, manager->release) : row->size;
}

static enum status perform (struct request *request, struct object *object, const struct control_row *row)
{
    if (!(object->kind & row->kinds))
        return STATUS_NOT_SUPPORTED;
    if (request->params == NULL)
        return STATUS_INVALID_ADDRESS;
    return row->function == NULL ? STATUS_OK : row->function (request, object);
}

/* NV_ESC_RM_CONTROL: NVOS54 (32 bytes). The caller writes the returned status. */
enum status control (struct request *request)
{
    uint32_t number = get32 (request->head, 8);
    struct client *client = client_of (request, get32 (request->head, 0));
    const struct control_row *row = NULL;
    struct object *object;

    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]) && row == NULL; i++)
        row = rows[i].number == number ? &rows[i] : NULL;
    if (client_find (request->manager, get32 (request->head, 0)) == NULL)
        return STATUS_INVALID_CLIENT;
    /* Before the client's file and the object are looked at (_rmapiRmControl). */
    if (row != NULL && request->params_size != row_size (request->manager, row))
        return STATUS_INVALID_ARGUMENT;
    if (client == NULL)
        return STATUS_INVALID_CLIENT;
    object = object_find (client, get32 (request->head, 4));
    if (object == NULL)
        return STATUS_OBJECT_NOT_FOUND; /* seen on an H100, 580.159.04 */
    if (row != NULL)
        return perform (request, object, row);
    if (AMONG (privileged, number) && !request->caller->privileged (request->caller->context))
        return STATUS_INSUFFICIENT_PERMISSIONS;
    /* Of the old kind: the kernel module hands them to the GPU's firmware unseen, but for those with bit 14, which need
     * CAP_SYS_ADMIN (RM_GSS_LEGACY_MASK, RM_GSS_LEGACY_MASK_PRIVILEGED). */
    if ((object->kind & KIND_SUBDEVICE) && (number & 0xffff8000) == 0x20808000)
        return !(number & 0x4000) || request->caller->privileged (request->caller->context) ? STATUS_OK
                                                                                            : STATUS_INSUFFICIENT_PERMISSIONS;
    return AMONG (taken, number) ? STATUS_OK : STATUS_NOT_SUPPORTED;
}
