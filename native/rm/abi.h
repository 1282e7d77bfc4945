/*
 * The driver's interface as tables: escapes, classes of objects, controls, and the few layouts that change.
 *
 * A branch (535, 550, ...) names its parent and the rows that differ from it. Numbers, sizes and offsets are those of
 * the open kernel modules (nv_escape.h, nv-ioctl-numbers.h, nvos.h, class/ and ctrl/ of src/common/sdk/nvidia/inc),
 * looked up tag by tag; docs/internals/adding-a-driver-version.md says how.
 */
#ifndef NVC_RM_ABI_H
#define NVC_RM_ABI_H

#include "nv_numbers.h"
#include "rm.h"

enum rm_escape_kind {
    ESCAPE_UNKNOWN,
    ESCAPE_PLAIN,      /* harmless whatever it holds */
    ESCAPE_DESCRIPTOR, /* names a descriptor or memory of the caller: only the caller can make it */
    ESCAPE_ANSWERED,  /* success is said to a guard's tenant, and nothing is done */
    ESCAPE_FORBIDDEN, /* from here on rm has something to do */
    ESCAPE_ALLOC,
    ESCAPE_FREE,
    ESCAPE_CONTROL,
    ESCAPE_DUP,
    ESCAPE_MEMORY, /* RM_ALLOC_MEMORY */
    ESCAPE_HEAP,   /* RM_VID_HEAP_CONTROL */
    ESCAPE_IDLE,   /* RM_IDLE_CHANNELS */
    ESCAPE_MAPPING /* RM_MAP_MEMORY_DMA, RM_UNMAP_MEMORY_DMA */
};

struct rm_escape {
    uint8_t number;
    uint8_t kind;
    uint16_t size;  /* the struct's, in bytes; 0: any */
    uint16_t other; /* a second size that the driver takes, or 0 */
    uint8_t array;  /* size is that of an element: any number of them */
    uint8_t varies; /* in the first branch's rows: a later branch has another */
};

enum rm_class_kind {
    CLASS_UNKNOWN,
    CLASS_PLAIN,
    CLASS_CLIENT,
    CLASS_DEVICE,
    CLASS_SUBDEVICE,
    CLASS_VIDEO_MEMORY, /* charged: 64-bit size at `size_at` of its params */
    CLASS_SYSTEM_MEMORY,
    CLASS_VIRTUAL_RANGE,
    CLASS_CALLER_BOUND, /* takes the caller's memory or descriptor: the owning process must make it */
    CLASS_GROUP,
    CLASS_CHANNEL,
    CLASS_SPACE, /* an address space */
    CLASS_CONTEXT_SHARE,
    CLASS_USERMODE,
    CLASS_COMPUTE, /* an object on the graphics engine: its channel computes */
    CLASS_ENGINE,  /* on another engine */
    CLASS_DEBUGGER, /* about an object of a client that its params name */
    CLASS_FORBIDDEN
};

struct rm_class {
    uint32_t number;
    uint8_t kind;
    uint16_t size; /* of its params; the driver knows it where a program says 0 */
    uint16_t size_at;
};

enum rm_control_kind {
    CONTROL_UNKNOWN,
    CONTROL_PLAIN,
    CONTROL_POINTER,    /* params hold pointers, or */
    CONTROL_DESCRIPTOR, /* a descriptor: embedded.c says where */
    CONTROL_FORBIDDEN,
    CONTROL_ANSWERED,   /* of the whole GPU; programs need its success, and not what it does */
    CONTROL_SCHEDULING, /* the tenant's own: not for tenants */
    CONTROL_SET_TIMESLICE,
    CONTROL_GET_TIMESLICE,
    CONTROL_SHARE_POLICY, /* CLIENT_SET_INHERITED_SHARE_POLICY: no wider than the tenant */
    CONTROL_PREEMPT, /* PREEMPT: not for long */
    CONTROL_PREEMPTION, /* GR_SET_CTXSW_PREEMPTION_MODE: of the finest kind only */
    CONTROL_FB_INFO,      /* FB_GET_INFO_V2 */
    CONTROL_FB_INFO_LIST, /* FB_GET_INFO: the list is a second pointer */
    CONTROL_PIDS,
    CONTROL_PID_INFO,
    CONTROL_EXPORT_OBJECT,
    CONTROL_EXPORT_OBJECTS,
    CONTROL_IMPORT_OBJECT,
    CONTROL_IMPORT_OBJECTS
};

struct rm_control {
    uint32_t number;
    uint8_t kind;
    uint16_t size; /* of its params where rm reads them, or they lead elsewhere; 0: neither */
};

/* Rows are sorted by number. A row with kind *_UNKNOWN takes an inherited one away. The first branch has a row for each
 * escape that there can be, for every call on the driver asks for its own; it says which ones differ later. */
#define RM_ESCAPES 256u
struct rm_abi {
    unsigned branch; /* 580: this major version and those up to the next branch */
    const struct rm_abi *parent;
    const struct rm_escape *escapes;
    unsigned escape_count;
    const struct rm_class *classes;
    unsigned class_count;
    const struct rm_control *controls;
    unsigned control_count;
    /* Values of engineType that are the graphics engine's: NV2080_ENGINE_TYPE_GR0 to GR7 (cl2080_notification.h). */
    uint32_t first_graphics, last_graphics;
};

extern const struct rm_abi rm_abi_535; /* the first */
extern const struct rm_abi *const rm_abi_branches[];
extern const unsigned rm_abi_branch_count;

extern const struct rm_escape rm_abi_escapes[RM_ESCAPES]; /* of the first branch */
/* Of one that varies; the same as below. */
const struct rm_escape *rm_abi_varying_escape (const struct rm_abi *abi, uint32_t number);
/* NULL: no row. */
static inline const struct rm_escape *rm_abi_escape (const struct rm_abi *abi, uint32_t number)
{
    const struct rm_escape *row = number < RM_ESCAPES ? &rm_abi_escapes[number] : NULL;

    if (row != NULL && row->varies)
        return rm_abi_varying_escape (abi, number);
    return row != NULL && row->kind != ESCAPE_UNKNOWN ? row : NULL;
}
const struct rm_class *rm_abi_class (const struct rm_abi *abi, uint32_t number);
const struct rm_control *rm_abi_control (const struct rm_abi *abi, uint32_t number);
/* Does the driver take this size for the escape? */
static inline bool rm_abi_takes_size (const struct rm_escape *escape, uint32_t size)
{
    if (escape->size == 0 || size == escape->size)
        return true;
    return escape->array != 0 ? size % escape->size == 0 : escape->other != 0 && size == escape->other;
}
/* The number of the escape in a request, and its size. */
static inline uint32_t rm_request_number (uint32_t request) { return request & 0xff; }
static inline uint32_t rm_request_size (uint32_t request) { return (request >> 16) & 0x3fff; }

/* A call of UVM that rm has a use for, in these branches: two rows a number, where the second begins where the first
 * ends. size 0: none. */
struct rm_uvm {
    uint16_t size, status; /* where the status stands in its struct */
    uint16_t since, before;        /* branches; 0: no bound */
};
#define UVM_LAST UVM_MAP_EXTERNAL_SPARSE
extern const struct rm_uvm rm_abi_uvm_calls[UVM_LAST + 1][2];
/* NULL: it has none for it. */
static inline const struct rm_uvm *rm_abi_uvm (const struct rm_abi *abi, uint32_t request)
{
    const struct rm_uvm *row = request <= UVM_LAST ? rm_abi_uvm_calls[request] : NULL;

    if (row != NULL && row->before != 0 && abi->branch >= row->before)
        row++;
    return row != NULL && row->size != 0 && abi->branch >= row->since ? row : NULL;
}
/* FREE says where a range begins and not how long it is: CREATE_EXTERNAL_RANGE does. */
static inline bool rm_abi_has_ranges (const struct rm_abi *abi) { return abi->branch >= 590; }
bool rm_abi_knows_uvm (const struct rm_abi *abi, uint32_t request);
/* What a guard does with requests of UVM that are announced: nvc/guard/requests.py, which has these numbers too. Below
 * the first nothing is, nor from the second on. */
enum rm_uvm_kind { UVM_KIND_NONE, UVM_KIND_ANSWERED, UVM_KIND_REFUSED };
#define UVM_ANNOUNCED_FIRST 8u
#define UVM_ANNOUNCED_END 512u
enum rm_uvm_kind rm_abi_uvm_kind (const struct rm_abi *abi, uint32_t request);

/* Short names that native/shim, native/guard and their tests still use. */
#define ESCAPE_NUMBER_CONTROL NV_ESC_RM_CONTROL
#define UVM_UNREGISTER_SPACE UVM_UNREGISTER_GPU_VASPACE
#define UVM_MAP_EXTERNAL UVM_MAP_EXTERNAL_ALLOCATION
#define UVM_CREATE_EXTERNAL UVM_CREATE_EXTERNAL_RANGE
#define UVM_MAP_SPARSE UVM_MAP_EXTERNAL_SPARSE
#define STATUS_INVALID_ARGUMENT NV_ERR_INVALID_ARGUMENT
#define STATUS_NOT_SUPPORTED NV_ERR_NOT_SUPPORTED

#endif
