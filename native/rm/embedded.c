/*
 * Params of controls, and the struct of IDLE_CHANNELS, that hold pointers or descriptors: where they are, so that a guard can make the call with its own.
 * Places: src/common/sdk/nvidia/inc/ctrl; counts and elements: rmapi/embedded_param_copy.c, rmapi_deprecated_control.c.
 * The same from 535 to 595, which test_rm_pointers.c compares; the structs' sizes, which are not, are in abi_controls.h.
 */
#include "nv_params.h"
#include "state.h"

#define WHOLE 0xff /* count_at: nothing says how many, `element` is all */

struct lists {
    uint32_t number;
    uint8_t count_at, at, lists; /* pointers lie one behind the other, as many of them as the struct has */
    uint8_t element;             /* bytes */
    bool is_square;              /* count times count of them */
};

static const struct lists lists[] = {
    { NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, 0, 8, 3, 1, false },
    { NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, 128, 160, 2, 4, true },
    { NV0000_CTRL_CMD_GPU_GET_ID_INFO, WHOLE, 16, 1, 128, false }, /* a name */
    { NV0041_CTRL_CMD_GET_SURFACE_INFO, 0, 8, 1, 8, false },
    { NV0080_CTRL_CMD_GPU_GET_CLASSLIST, 0, 8, 1, 4, false },
    { NV0080_CTRL_CMD_GR_GET_CAPS, 0, 8, 1, 1, false },
    { NV0080_CTRL_CMD_GR_GET_INFO, 0, 8, 1, 8, false },
    { NV0080_CTRL_CMD_FB_GET_CAPS, 0, 8, 1, 1, false },
    { NV0080_CTRL_CMD_HOST_GET_CAPS, 0, 8, 1, 1, false },
    { NV0080_CTRL_CMD_FIFO_GET_CAPS, 0, 8, 1, 1, false },
    { NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST, 0, 8, 2, 4, false },
    { NV0080_CTRL_CMD_MSENC_GET_CAPS, 0, 8, 1, 1, false },
    { NV2080_CTRL_CMD_GPU_GET_ENGINES, 0, 8, 1, 4, false },
    { NV2080_CTRL_CMD_GPU_GET_ENGINE_CLASSLIST, 4, 8, 1, 4, false },
    { NV2080_CTRL_CMD_BIOS_GET_INFO, 0, 8, 1, 8, false },
    { NV2080_CTRL_CMD_GR_GET_INFO, 0, 8, 1, 8, false },
    { NV2080_CTRL_CMD_FB_GET_INFO, 0, 8, 1, 8, false },
    { NV2080_CTRL_CMD_BUS_GET_INFO, 0, 8, 1, 8, false },
    { NV2080_CTRL_CMD_CE_GET_CAPS, 4, 8, 1, 1, false },
};

/* Of NVOS30, where its flags do not say that one channel is meant. */
static const struct lists idle_lists = {
    NV_ESC_RM_IDLE_CHANNELS, offsetof (NVOS30_PARAMETERS, numChannels), offsetof (NVOS30_PARAMETERS, phClients), 3, 4, false
};

static const struct {
    uint32_t number, at;
} descriptors[] = {
    { NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, offsetof (NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS, fd) },
    { NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, offsetof (NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS, fd) },
    { NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, 0 },
    { NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD, offsetof (NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS, fd) },
    { NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, offsetof (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS, fd) },
    { NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, offsetof (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, fd) },
    { NV00FD_CTRL_CMD_ATTACH_GPU, 8 }, /* 64 bits wide */
};

static bool gather_lists (const struct lists *row, const void *params, uint32_t size, struct rm_embedded *embedded)
{
    uint64_t bytes = row->element;

    if (row->count_at != WHOLE) {
        bytes *= get32 (params, row->count_at);
        if (row->is_square)
            bytes *= get32 (params, row->count_at);
    }
    for (unsigned i = 0; i < row->lists && row->at + 8u * i + 8 <= size; i++) {
        uint64_t address = get64 (params, row->at + 8u * i);

        if (address == 0)
            continue;
        if (bytes > RM_EMBEDDED_BYTES)
            return false;
        embedded->pieces[embedded->count].at = row->at + 8u * i;
        embedded->pieces[embedded->count].wanted = (struct rm_wanted) { address, (uint32_t) bytes };
        embedded->count++;
    }
    return true;
}

bool rm_params_fit (const struct rm_abi *abi, const void *head)
{
    const NVOS54_PARAMETERS *call = head;
    const struct rm_control *control = rm_abi_control (abi, call->cmd);

    return control == NULL || control->size == 0 || call->paramsSize == control->size;
}

bool rm_embedded (const struct rm_abi *abi, uint32_t number, const void *params, uint32_t size, struct rm_embedded *embedded)
{
    const struct rm_control *control = rm_abi_control (abi, number);

    *embedded = (struct rm_embedded) { .descriptor_at = RM_NO_DESCRIPTOR };
    if (control == NULL || params == NULL || size == 0)
        return true;
    for (size_t i = 0; i < sizeof (lists) / sizeof (lists[0]); i++)
        if (lists[i].number == number)
            return size == control->size && gather_lists (&lists[i], params, size, embedded);
    for (size_t i = 0; i < sizeof (descriptors) / sizeof (descriptors[0]); i++)
        if (descriptors[i].number == number) {
            embedded->descriptor_at = descriptors[i].at;
            return size == control->size;
        }
    /* A row that says there is one, and no place for it: the caller cannot make this call. */
    return control->kind != CONTROL_POINTER && control->kind != CONTROL_DESCRIPTOR;
}

bool rm_embedded_in_head (uint32_t request, const void *head, struct rm_embedded *embedded)
{
    const NVOS30_PARAMETERS *idle = head;
    struct lists row = idle_lists;

    *embedded = (struct rm_embedded) { .is_in_head = true, .descriptor_at = RM_NO_DESCRIPTOR };
    if (rm_request_number (request) != NV_ESC_RM_IDLE_CHANNELS)
        return true;
    if ((idle->flags >> 4 & 0xfu) == NVOS30_FLAGS_CHANNEL_SINGLE)
        row.element = 0;
    return gather_lists (&row, head, sizeof (*idle), embedded);
}
