/*
 * Params of controls that hold pointers or descriptors: where they are, so that a guard can make the call with its own.
 * Places: src/common/sdk/nvidia/inc/ctrl; counts and elements: rmapi/embedded_param_copy.c, rmapi_deprecated_control.c.
 * The same from 535 to 595, which test_rm_pointers.c compares; the structs' sizes, which are not, are in abi_controls.h.
 */
#include "state.h"

/* NVOS54 */
#define CONTROL_COMMAND 8u
#define CONTROL_PARAMS_SIZE 24u

#define WHOLE 0xff /* count_at: nothing says how many, `element` is all */

struct lists {
    uint32_t number;
    uint8_t count_at, at, lists; /* pointers lie one behind the other, as many of them as the struct has */
    uint8_t element;             /* bytes */
    bool is_square;              /* count times count of them */
};

static const struct lists lists[] = {
    {0x00000101, 0, 8, 3, 1, false},       /* SYSTEM_GET_BUILD_VERSION */
    {0x00000127, 128, 160, 2, 4, true},    /* SYSTEM_GET_P2P_CAPS */
    {0x00000202, WHOLE, 16, 1, 128, false}, /* GPU_GET_ID_INFO: a name */
    {0x00410110, 0, 8, 1, 8, false},       /* GET_SURFACE_INFO */
    {0x00800201, 0, 8, 1, 4, false},       /* GPU_GET_CLASSLIST */
    {0x00801102, 0, 8, 1, 1, false},       /* GR_GET_CAPS */
    {0x00801104, 0, 8, 1, 8, false},       /* GR_GET_INFO */
    {0x00801301, 0, 8, 1, 1, false},       /* FB_GET_CAPS */
    {0x00801401, 0, 8, 1, 1, false},       /* HOST_GET_CAPS */
    {0x00801701, 0, 8, 1, 1, false},       /* FIFO_GET_CAPS */
    {0x0080170d, 0, 8, 2, 4, false},       /* FIFO_GET_CHANNELLIST */
    {0x00801b01, 0, 8, 1, 1, false},       /* MSENC_GET_CAPS */
    {0x20800123, 0, 8, 1, 4, false},       /* GPU_GET_ENGINES */
    {0x20800124, 4, 8, 1, 4, false},       /* GPU_GET_ENGINE_CLASSLIST */
    {0x20800802, 0, 8, 1, 8, false},       /* BIOS_GET_INFO */
    {0x20801201, 0, 8, 1, 8, false},       /* GR_GET_INFO */
    {0x20801301, 0, 8, 1, 8, false},       /* FB_GET_INFO */
    {0x20801802, 0, 8, 1, 8, false},       /* BUS_GET_INFO */
    {0x20802a01, 4, 8, 1, 1, false},       /* CE_GET_CAPS */
};

static const struct {
    uint32_t number, at;
} descriptors[] = {
    {0x00003d05, 16}, /* OS_UNIX_EXPORT_OBJECT_TO_FD */
    {0x00003d06, 0},  /* OS_UNIX_IMPORT_OBJECT_FROM_FD */
    {0x00003d08, 0},  /* OS_UNIX_GET_EXPORT_OBJECT_INFO */
    {0x00003d0a, 72}, /* OS_UNIX_CREATE_EXPORT_OBJECT_FD */
    {0x00003d0b, 0},  /* OS_UNIX_EXPORT_OBJECTS_TO_FD */
    {0x00003d0c, 0},  /* OS_UNIX_IMPORT_OBJECTS_FROM_FD */
    {0x00fd0104, 8},  /* NV00FD ATTACH_GPU, 64 bits wide */
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
        embedded->pieces[embedded->count].wanted = (struct rm_wanted) {address, (uint32_t) bytes};
        embedded->count++;
    }
    return true;
}

bool rm_params_fit (const struct rm_abi *abi, const void *head)
{
    const struct rm_control *control = rm_abi_control (abi, get32 (head, CONTROL_COMMAND));

    return control == NULL || control->size == 0 || get32 (head, CONTROL_PARAMS_SIZE) == control->size;
}

bool rm_embedded (const struct rm_abi *abi, uint32_t number, const void *params, uint32_t size,
                  struct rm_embedded *embedded)
{
    const struct rm_control *control = rm_abi_control (abi, number);

    *embedded = (struct rm_embedded) {.descriptor_at = RM_NO_DESCRIPTOR};
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
