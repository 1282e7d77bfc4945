/* The structs of a step's calls (sequence.h). */
#include "sequence.h"

#include "device.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <stddef.h>
#include <string.h>

#define ENGINE_GRAPHICS 1u
#define ENGINE_COPY 11u
#define NV_ESC_RM_ALLOC_OBJECT 0x28u
#define DEFAULT_PAGES 0x18000000u
#define SMALL_PAGES 0x18800000u
#define SYSTEM_MEMORY 0x0a000000u
#define OWNER 0x6e76u /* any but 0, which the driver refuses (stdmemValidateParams) */
#define HANDLE_PROVIDED 0x4000u /* NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED */
/* NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED and ENABLE_PAGE_FAULTING: UVM registers no other address space. */
#define SPACE_OF_UVM 0x48u
#define EXPORTS_MAX 16u
#define SHARE_TYPE_CLIENT 3u

uint32_t action_handle (const struct action *action, unsigned word)
{
    uint8_t number = action->words[word];

    return number >= HANDLE_OF_CLIENT ? world.clients[action->words[C] % CLIENTS].handle : FIRST_HANDLE + number;
}

uint32_t action_client (const struct action *action, unsigned word) { return world.clients[action->words[word] % CLIENTS].handle; }

uint32_t action_alloc (const struct action *action, void *to, uint32_t parent, uint32_t handle, uint32_t class, void *params)
{
    *(NVOS64_PARAMETERS *) to = (NVOS64_PARAMETERS) { .hRoot = action_client (action, C),
                                                      .hObjectParent = parent,
                                                      .hObjectNew = handle,
                                                      .hClass = class,
                                                      .pAllocParms = (NvP64) (uintptr_t) params };
    return NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (NVOS64_PARAMETERS));
}

static uint32_t fill_memory (const struct action *action, void *to, void *params)
{
    NV_MEMORY_ALLOCATION_PARAMS *memory = params;
    bool is_video = action->kind == MEMORY;

    memory->owner = OWNER;
    memory->size = action_sizes[action->words[Z] % SIZES];
    memory->attr = !is_video ? SYSTEM_MEMORY : memory->size < 65536 ? SMALL_PAGES : DEFAULT_PAGES;
    return action_alloc (action, to, action_handle (action, O), action_handle (action, H),
                         is_video ? NV01_MEMORY_LOCAL_USER : NV01_MEMORY_SYSTEM, params);
}

static uint32_t fill_engine (const struct action *action, void *to, void *params)
{
    uint32_t engine = action->words[Z] % 4 != 3 ? ENGINE_GRAPHICS : ENGINE_COPY;

    if (action->kind == GROUP) {
        ((NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->engineType = engine;
        ((NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->hVASpace = FIRST_HANDLE + 2; /* where a process begins with one */
    } else
        ((NV_CHANNEL_ALLOC_PARAMS *) params)->engineType = action->words[Z] % 4 == 2 ? 0 : engine;
    return action_alloc (action, to, action_handle (action, O), action_handle (action, H),
                         action->kind == GROUP ? KEPLER_CHANNEL_GROUP_A : HOPPER_CHANNEL_GPFIFO_A, params);
}

static uint32_t fill_control (const struct action *action, void *to, uint32_t object, uint32_t number, void *params, uint32_t size)
{
    *(NVOS54_PARAMETERS *) to = (NVOS54_PARAMETERS) { .hClient = action_client (action, C),
                                                      .hObject = object,
                                                      .cmd = number,
                                                      .params = (NvP64) (uintptr_t) params,
                                                      .paramsSize = size };
    return NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (NVOS54_PARAMETERS));
}

static uint32_t fill_heap (const struct action *action, void *to)
{
    NVOS32_PARAMETERS *heap = to;

    *heap = (NVOS32_PARAMETERS) { .hRoot = action_client (action, C), .hObjectParent = action_handle (action, O) };
    heap->function = action->kind == HEAP ? NVOS32_FUNCTION_ALLOC_SIZE : NVOS32_FUNCTION_FREE;
    if (action->kind == HEAP) {
        heap->data.AllocSize.owner = OWNER;
        heap->data.AllocSize.flags = HANDLE_PROVIDED;
        heap->data.AllocSize.hMemory = action_handle (action, H);
        heap->data.AllocSize.size = action_sizes[action->words[Z] % SIZES];
        heap->data.AllocSize.attr = DEFAULT_PAGES;
    } else {
        heap->data.Free.owner = OWNER;
        heap->data.Free.hMemory = action_handle (action, H);
        heap->data.Free.flags = 1;
    }
    return NV_REQUEST (NV_ESC_RM_VID_HEAP_CONTROL, sizeof (*heap));
}

static uint32_t fill_export (const struct action *action, void *to, void *params)
{
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS *export = params;

    export->fd = action->words[4];
    export->hDevice = FIRST_HANDLE;
    export->maxObjects = EXPORTS_MAX;
    export->objects[0] = action_handle (action, O);
    export->numObjects = 1;
    return fill_control (action, to, action_client (action, C), NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, params,
                         sizeof (*export));
}

static uint32_t fill_import (const struct action *action, void *to, void *params)
{
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *import = params;

    import->fd = action->words[5];
    import->hParent = action_handle (action, O);
    import->objects[0] = action_handle (action, H);
    import->numObjects = 1;
    return fill_control (action, to, action_client (action, C), NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, params,
                         sizeof (*import));
}

/* Types of policies by their numbers; 7: for UVM's client; 8 more: what the client's objects inherit. */
static uint32_t fill_share (const struct action *action, void *to, void *params)
{
    RS_SHARE_POLICY policy = { .target = action_client (action, 5), .accessMask = 1, .type = action->words[H] % 8 };
    NVOS57_PARAMETERS *share = to;

    if (policy.type == 7) {
        policy.type = SHARE_TYPE_CLIENT;
        policy.target = UVM_CLIENT;
    }
    if (action->words[H] % 16 >= 8) {
        memcpy (params, &policy, sizeof (policy));
        return fill_control (action, to, action_client (action, C), NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY, params,
                             sizeof (policy));
    }
    *share = (NVOS57_PARAMETERS) { action_client (action, C), action_handle (action, O), policy, 0 };
    return NV_REQUEST (NV_ESC_RM_SHARE, sizeof (*share));
}

static uint32_t fill_os_memory (const struct action *action, void *to)
{
    nv_ioctl_nvos02_parameters_with_fd *memory = to;

    *memory = (nv_ioctl_nvos02_parameters_with_fd) { .fd = -1 };
    memory->params.hRoot = action_client (action, C);
    memory->params.hObjectParent = action_handle (action, O);
    memory->params.hObjectNew = action_handle (action, H);
    memory->params.hClass = action->words[Z] % 2 != 0 ? NV01_MEMORY_SYSTEM : NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
    memory->params.limit = 65535;
    return NV_REQUEST (NV_ESC_RM_ALLOC_MEMORY, sizeof (*memory));
}

/* NVOS05. */
static uint32_t fill_object (const struct action *action, void *to)
{
    static const uint32_t classes[] = { NV01_DEVICE_0, NV20_SUBDEVICE_0, KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_LOCAL_USER };
    uint32_t words[5] = { action_client (action, C), action_handle (action, O), action_handle (action, H),
                          classes[action->words[Z] % 4], 0 };

    memcpy (to, words, sizeof (words));
    return NV_REQUEST (NV_ESC_RM_ALLOC_OBJECT, sizeof (words));
}

uint32_t action_fill (const struct task *task, const struct action *action, void *to, void *params)
{
    const uint8_t *words = action->words;

    (void) task;
    switch (action->kind) {
    case CLIENT:
        *(NVOS64_PARAMETERS *) to = (NVOS64_PARAMETERS) { .hClass = NV01_ROOT_CLIENT };
        return NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (NVOS64_PARAMETERS));
    case DEVICE:
        ((NV0080_ALLOC_PARAMETERS *) params)->deviceId = kernel_instance ();
        return action_alloc (action, to, action_client (action, C), action_handle (action, O), NV01_DEVICE_0, params);
    case SUBDEVICE:
        return action_alloc (action, to, action_handle (action, O), action_handle (action, H), NV20_SUBDEVICE_0, params);
    case SPACE:
        ((uint32_t *) params)[1] = SPACE_OF_UVM; /* NV_VASPACE_ALLOCATION_PARAMETERS: index, flags */
        return action_alloc (action, to, action_handle (action, O), action_handle (action, H), FERMI_VASPACE_A, params);
    case MEMORY:
    case SYSTEM:
        return fill_memory (action, to, params);
    case GROUP:
    case CHANNEL:
        return fill_engine (action, to, params);
    case COMPUTE:
        return action_alloc (action, to, action_handle (action, O), action_handle (action, H), HOPPER_COMPUTE_A, params);
    case SCHEDULE:
        ((uint8_t *) params)[0] = 1;
        return fill_control (action, to, action_handle (action, O),
                             words[H] % 2 != 0 ? NVA06F_CTRL_CMD_GPFIFO_SCHEDULE : NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params, 3);
    case SLICE:
        *(uint64_t *) params = 30000;
        return fill_control (action, to, action_handle (action, O), NVA06C_CTRL_CMD_SET_TIMESLICE, params, 8);
    case FREE:
        *(NVOS00_PARAMETERS *) to = (NVOS00_PARAMETERS) { .hRoot = action_client (action, C),
                                                          .hObjectOld = action_handle (action, O) };
        return NV_REQUEST (NV_ESC_RM_FREE, sizeof (NVOS00_PARAMETERS));
    case DUPLICATE:
        *(NVOS55_PARAMETERS *) to = (NVOS55_PARAMETERS) { .hClient = action_client (action, C),
                                                          .hParent = action_handle (action, O),
                                                          .hObject = action_handle (action, H),
                                                          .hClientSrc = action_client (action, 5),
                                                          .hObjectSrc = FIRST_HANDLE + words[6] };
        return NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (NVOS55_PARAMETERS));
    case SHARE:
        return fill_share (action, to, params);
    case EXPORT:
        return fill_export (action, to, params);
    case IMPORT:
        return fill_import (action, to, params);
    case HEAP:
    case HEAP_FREE:
        return fill_heap (action, to);
    case OS_MEMORY:
        return fill_os_memory (action, to);
    case OBJECT:
        return fill_object (action, to);
    default:
        return 0;
    }
}

void action_made (const struct action *action, const void *made)
{
    const NVOS64_PARAMETERS *alloc = made;

    if (action->kind == CLIENT && alloc->status == 0 && alloc->hObjectNew != 0)
        world.clients[action->words[C] % CLIENTS].handle = alloc->hObjectNew;
}
