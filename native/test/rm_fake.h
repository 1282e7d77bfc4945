/* A driver that behaves as the resource manager does, as far as rm can tell, and the host that rm asks. Arrays and
 * linear search: simple enough to be believed. */
#ifndef NVC_TEST_RM_FAKE_H
#define NVC_TEST_RM_FAKE_H

#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_params.h"
#include "rm/rm.h"

#define FAKE_OBJECTS 4096
#define FAKE_MEMORIES 4096
#define FAKE_EXPORTS 256
#define FAKE_GPUS 3 /* instances; the share names 0 and 1 as its GPUs 0 and 1, not 2 */
#define MIB ((uint64_t) 1 << 20)
/* What the calls in short return where the ioctl itself failed. */
#define NO_ANSWER UINT32_MAX
/* Params of the longest branch. */
#define FAKE_CHANNEL_PARAMS 368
struct fake_memory_params {
    NV_MEMORY_ALLOCATION_PARAMS common;
    uint32_t numaNode, pad124;
};
_Static_assert (sizeof (struct fake_memory_params) == 128, "params of memory from 545 on");

/* Each call's request, with the struct that it has. */
#define REQUEST NV_REQUEST
#define ALLOC_REQUEST NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (NVOS64_PARAMETERS))
#define SHORT_ALLOC_REQUEST NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (NVOS21_PARAMETERS))
#define ALLOC_MEMORY_REQUEST NV_REQUEST (NV_ESC_RM_ALLOC_MEMORY, sizeof (nv_ioctl_nvos02_parameters_with_fd))
#define FREE_REQUEST NV_REQUEST (NV_ESC_RM_FREE, sizeof (NVOS00_PARAMETERS))
#define CONTROL_REQUEST NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (NVOS54_PARAMETERS))
#define DUP_REQUEST NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (NVOS55_PARAMETERS))
#define SHARE_REQUEST NV_REQUEST (NV_ESC_RM_SHARE, sizeof (NVOS57_PARAMETERS))
#define HEAP_REQUEST NV_REQUEST (NV_ESC_RM_VID_HEAP_CONTROL, sizeof (NVOS32_PARAMETERS))

struct fake_object {
    bool live;
    unsigned frozen; /* how often more it was stopped than started */
    uint64_t file;
    uint32_t client, handle, parent, class, instance, engine;
    uint32_t names; /* the address space, with which the driver frees it */
    uint64_t slice,
        in_force; /* of a group that computes: in force from its start on, later ones only if it was started by its own call */
    bool is_started;
    int memory; /* index, -1: none */
};

struct fake_memory {
    uint64_t bytes;
    uint32_t references, instance;
};

struct fake_export {
    uint64_t file;
    int memory;
    uint32_t slot;
};

struct fake {
    struct rm *rm;
    /* the driver */
    struct fake_object objects[FAKE_OBJECTS];
    unsigned object_count;
    struct fake_memory memories[FAKE_MEMORIES];
    struct fake_export exports[FAKE_EXPORTS];
    unsigned export_count;
    uint32_t next_client, next_handle;
    uint64_t granule;     /* sizes are rounded up to it */
    /* What another process does before a call of the driver: this one's own calls, and those that the host makes for rm. */
    void (*meanwhile) (struct fake *fake);
    bool is_meanwhile;
    unsigned calls;       /* so far */
    uint64_t grant;       /* not 0: what the driver grants, whatever was asked for */
    uint32_t next_status; /* the next call of the tenant fails with it */
    bool no_gid, no_mode;
    uint32_t mode; /* where compute stops, and whether something draws: of the one context of a test */
    bool draws;
    unsigned handle_calls; /* GET_HANDLE_INFO */
    unsigned performed, own_calls, gid_calls, disable_calls, slice_calls, mode_calls;
    unsigned largest_batch;
    /* the host */
    uint64_t limit[2], used[2];
    uint32_t slice[2];
    unsigned changed[2], notes[RM_REASONS];
    uint32_t last_noted;
    bool no_charge;
    uint32_t guard_client, guard_device, held; /* the guard's own; the object that it holds */
    uint64_t retained; /* bytes of what was given back and others hold */
    uint32_t pids; /* what the driver's pids are above the tenant's */
    uint32_t given[512]; /* params of the latest control, as the driver got them */
    unsigned shares; /* calls of RM_SHARE that the driver got, and the last */
    NVOS57_PARAMETERS last_share;
    unsigned mappings; /* calls of MAP_MEMORY_DMA and UNMAP_MEMORY_DMA that the driver got */
    uint64_t pool; /* bytes of page tables that lengths made the driver reserve, whatever became of the call */
    uint32_t idle_us; /* of the latest IDLE_CHANNELS, as the driver got it */
    long blocks;        /* of memory that rm holds */
    long allocate_fail; /* the n-th allocation from now fails; 0: none does */
    enum rm_verdict decision; /* of the latest call */
};

extern const struct rm_host fake_host;
#define FAKE_GUARD 99 /* the guard's open file */
extern const uint8_t fake_uuid[FAKE_GPUS][16];

/* version: of the driver. NULL when rm cannot be made. */
struct fake *fake_open (const char *version, enum rm_posture posture);
/* true: nothing was left charged, and every block of memory came back. */
bool fake_close (struct fake *fake);
/* Both halves of a call and the driver's work between them. The ioctl's result, or -25 (ENOTTY) where the guard
 * refuses. */
long fake_call (struct fake *fake, enum rm_node node, uint64_t file, uint32_t request, void *head, void *params,
                uint32_t params_size, void *list, uint32_t list_size);
/* The driver alone. */
long fake_driver (struct fake *fake, uint64_t file, uint32_t request, void *head, void *params, void *list);
void fake_close_file (struct fake *fake, uint64_t file);
/* Bytes that the driver holds of a GPU for this tenant. */
uint64_t fake_bytes (const struct fake *fake, uint32_t instance);
uint64_t fake_charged (const struct fake *fake, int gpu);
struct fake_object *fake_find (struct fake *fake, uint32_t client, uint32_t handle);

/* Parts of the driver (rm_fake_driver.c, rm_fake_control.c). An object that is there, or else the fake driver itself is broken. */
struct fake_object *fake_sure (struct fake *fake, uint32_t client, uint32_t handle);
/* handle: what the caller wants, 0 for any; what it got. params: of a device, a group; bytes: of a piece of memory. */
uint32_t fake_make (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class,
                    const void *params, uint64_t *bytes);
void fake_refer (struct fake *fake, struct fake_object *object, int memory);
/* Of the host (rm_fake_guard.c). */
bool fake_hold (void *context, int gpu, const struct rm_source *source, uint64_t *bytes);
void fake_let_go (void *context);
bool fake_is_held (void *context, uint32_t client, uint32_t handle);
bool fake_is_retained (void *context);
void fake_give_back (void *context, int gpu, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle);
uint32_t fake_import (struct fake *fake, uint64_t by, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle,
                      uint32_t slot);
uint32_t fake_answer (struct fake *fake, uint64_t file, const NVOS54_PARAMETERS *head, void *params, void *list);

static inline NVOS54_PARAMETERS fake_control_head (uint32_t client, uint32_t object, uint32_t number, const void *params,
                                                   uint32_t size)
{
    return (NVOS54_PARAMETERS) {
        .hClient = client,
        .hObject = object,
        .cmd = number,
        .params = (NvP64) (uintptr_t) params,
        .paramsSize = size,
    };
}

/* A call that the guard continues, and that the kernel reads as another one then: `seen` is what rm has of it. */
void fake_race (struct fake *fake, uint64_t file, NVOS64_PARAMETERS *seen, void *seen_params, uint32_t params_size,
                NVOS64_PARAMETERS *made, void *made_params);

/* Calls in short. They return the status of the resource manager, and write handles back. */
uint32_t fake_alloc (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class,
                     void *params, uint32_t params_size);
uint32_t fake_client (struct fake *fake, uint64_t file);
/* client, device (client + 1 as a handle is too clever: handles are 0xd0.. + instance), subdevice */
uint32_t fake_device (struct fake *fake, uint64_t file, uint32_t client, uint32_t instance);
uint32_t fake_subdevice (struct fake *fake, uint64_t file, uint32_t client, uint32_t device);
/* Allocates `bytes` and writes back what was granted. */
uint32_t fake_memory (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t *handle, uint64_t *bytes);
uint32_t fake_free (struct fake *fake, uint64_t file, uint32_t client, uint32_t handle);
uint32_t fake_dup (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t from_client,
                   uint32_t from);
uint32_t fake_control (struct fake *fake, uint64_t file, uint32_t client, uint32_t object, uint32_t number, void *params,
                       uint32_t size);
uint32_t fake_group (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t engine);
uint32_t fake_channel (struct fake *fake, uint64_t file, uint32_t client, uint32_t group);
/* In a context share (0: none), as CUDA's; a context share in a new address space. */
uint32_t fake_channel_in (struct fake *fake, uint64_t file, uint32_t client, uint32_t group, uint32_t share);
uint32_t fake_share (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t group);
uint32_t fake_space (struct fake *fake, uint64_t file, uint32_t client, uint32_t device);

#endif
