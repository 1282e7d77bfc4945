/*
 * Internals of the simulated libcuda, shared by the libcuda_*.c; the lines "---" name the file that implements a
 * section. One lock for everything; a call that waits for work releases it meanwhile.
 *
 * Handles from callers are looked up before they are dereferenced (cuda_find), so an invalid one is an error.
 */
#ifndef NVC_SIM_LIBCUDA_H
#define NVC_SIM_LIBCUDA_H

#include "libcuda_rm.h"
#include "libcuda_types.h"
#include "nvml_state.h"

#define CUDA_API __attribute__ ((visibility ("default")))
/* The flavours of a function whose only difference is the default stream, or a name: the same code. */
#define CUDA_ALIAS(alias_name, name) CUDA_API extern __typeof__ (name) alias_name __attribute__ ((alias (#name), copy (name)))

#define MEBIBYTE ((size_t) 1 << 20)
#define CUDA_BLOCK (2 * MEBIBYTE) /* granularity of the driver's allocations */
#define CUDA_STACK 32
#define CUDA_MAXIMUM_OBJECTS 96 /* of one context, without its memory */

enum cuda_kind {
    KIND_CONTEXT = 1,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_POOL,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_PHYSICAL,
    /* Address ranges. */
    KIND_MEMORY,
    KIND_SMALL,
    KIND_MANAGED,
    KIND_HOST,
    KIND_REGISTERED,
    KIND_MAPPED,
    KIND_POOLED,
    KIND_IMPORTED,
    KIND_RESERVED
};

/* The head of every struct that is found by its handle or by an address inside it. */
struct cuda_entry {
    uint64_t start, size;
    enum cuda_kind kind;
    struct CUctx_st *context; /* the owner; NULL: none */
};

/* A piece of video memory, or of host memory that the driver pins: an object of the resource manager. */
struct cuda_memory {
    uint32_t object;
    uint32_t client; /* 0: the library's own; otherwise the client it was duplicated from */
    uint64_t size;
    uint64_t address, length; /* of its mapping by UVM; 0: none, or not by cuda_memory_place */
};

struct cuda_device {
    const struct machine_gpu *gpu;
    int ordinal;
    uint8_t uuid[16];
    bool attached;
    int node; /* registered with the control node: calls on it use the library's client */
    uint32_t device, subdevice, vaspace, third_party;
    struct CUctx_st *primary;
    unsigned int primary_references, primary_flags;
    struct CUmemPoolHandle_st *default_pool, *current_pool, *graph_pool;
};

struct CUstream_st {
    struct cuda_entry entry;
    unsigned int flags;
    int priority;
    uint64_t last; /* piece of work of the context after which the stream is idle */
    struct CUgraph_st *capture;
};

struct cuda_sampled {
    uint64_t at_ns;
    bool known;
};

struct CUevent_st {
    struct cuda_entry entry;
    unsigned int flags;
    bool recorded;
    struct CUctx_st *where;
    uint64_t point; /* piece of work after which it is complete */
    struct cuda_sampled time;
};

struct cuda_block; /* libcuda_small.c */

struct CUctx_st {
    struct cuda_entry entry;
    struct cuda_device *device;
    unsigned int flags;
    bool primary;
    uint32_t group, channel; /* compute: group and first channel */
    /* Created by cuda_context_build, freed in reverse order. */
    struct {
        uint32_t parent, object;
    } objects[CUDA_MAXIMUM_OBJECTS];
    unsigned int object_count;
    int events; /* an open node for the driver's event notifications; -1 */
    struct cuda_block *blocks;
    struct CUstream_st null_stream;
    uint64_t submitted, finished; /* pieces of work; finished: as far as known */
    uint64_t before;              /* of these, on the channels that a checkpoint took away */
    size_t limits[8];
};

struct cuda {
    enum { CUDA_NEW, CUDA_READY, CUDA_FORKED } life;
    bool manager;
    struct rm_client rm;
    int uvm, uvm_second;
    uint32_t next_handle;
    uint32_t *spare_handles;
    size_t spare_count, spare_room;
    int device_count;
    struct cuda_device devices[MACHINE_MAX_GPUS];
    struct nvml_state nvml;
};
extern struct cuda cuda;

/* --- global state (libcuda_state.c) --- */
/* Takes the lock. Every exported function that needs cuInit starts with CUDA_ENTER and ends with CUDA_LEAVE. */
CUresult cuda_enter (void);
CUresult cuda_enter_context (CUcontext *context);
void cuda_lock (void);
void cuda_unlock (void);
void cuda_end_call (void);
static inline CUresult cuda_leave (CUresult result)
{
    cuda_end_call ();
    return result;
}
/* Calls that are being made. With `hold`, calls wait at their beginning until it is called with false. Under the lock. */
unsigned int cuda_calls (void);
void cuda_hold_calls (bool hold);
#define CUDA_ENTER()                                                                                                               \
    do {                                                                                                                           \
        CUresult entered_ = cuda_enter ();                                                                                         \
        if (entered_ != CUDA_SUCCESS)                                                                                              \
            return entered_;                                                                                                       \
    } while (0)
#define CUDA_ENTER_CONTEXT(context)                                                                                                \
    do {                                                                                                                           \
        CUresult entered_ = cuda_enter_context (&(context));                                                                       \
        if (entered_ != CUDA_SUCCESS)                                                                                              \
            return entered_;                                                                                                       \
    } while (0)
#define CUDA_LEAVE(result) cuda_leave (result)

/* --- registers (libcuda_registry.c): handles by value, memory by any address inside --- */
bool cuda_add (struct cuda_entry *entry, enum cuda_kind kind, CUcontext context, uint64_t start, uint64_t size);
bool cuda_add_handle (struct cuda_entry *entry, enum cuda_kind kind, CUcontext context);
void cuda_remove (struct cuda_entry *entry);
void *cuda_find (const void *handle, enum cuda_kind kind);
struct cuda_entry *cuda_find_address (uint64_t address);
/* Any entry that overlaps the range; the reservation that contains all of it. */
struct cuda_entry *cuda_find_overlap (uint64_t address, uint64_t size);
struct cuda_entry *cuda_find_reserved (uint64_t address, uint64_t size);
/* Any entry of a context (for its destruction), NULL: none is left. */
struct cuda_entry *cuda_find_of_context (CUcontext context);
/* The context after another one, NULL: the first one; NULL: none is left. */
CUcontext cuda_next_context (CUcontext context);
/* Calls a function with every piece of cuMemAlloc's memory until one fails. */
CUresult cuda_each_memory (CUresult (*act) (struct cuda_entry *entry));
/* Whether everything that is registered can be taken off the GPU by a checkpoint. */
bool cuda_all_can_go (void);

/* --- devices (libcuda_devices.c) --- */
CUresult cuda_choose_devices (void);
struct cuda_device *cuda_device (CUdevice device);
CUresult cuda_attach_device (struct cuda_device *device);

/* --- objects and memory (libcuda_objects.c) --- */
CUresult cuda_status (uint32_t status);
uint32_t cuda_new_handle (void);
void cuda_give_handle (uint32_t handle);
CUresult cuda_memory_allocate (struct cuda_device *device, uint64_t size, uint32_t attributes, struct cuda_memory *memory);
CUresult cuda_memory_describe (struct cuda_device *device, void *address, uint64_t size, struct cuda_memory *memory);
/* The memory is freed whatever the result, also in callers. */
CUresult cuda_memory_free (struct cuda_device *device, struct cuda_memory *memory);
/* Maps memory at an address until it is freed (libcuda_external.c). cuda_external_map: without a record of
 * the address. */
CUresult cuda_memory_place (const struct cuda_device *device, struct cuda_memory *memory, uint64_t address, uint64_t length);
CUresult cuda_external_map (const struct cuda_device *device, uint64_t address, uint64_t length, uint32_t object);
void cuda_external_unmap (uint64_t address, uint64_t length);
/* Registers mapped memory for third-party devices, and reverts that. */
CUresult cuda_register_memory (const struct cuda_device *device, const struct cuda_memory *memory, uint64_t address);
CUresult cuda_unregister_memory (const struct cuda_device *device, const struct cuda_memory *memory);
/* Registers the device's address space with UVM. */
void cuda_register_space (const struct cuda_device *device);
/* UVM calls for a managed allocation. */
void cuda_managed_mapped (uint64_t address, uint64_t length);
#define ATTRIBUTES_BLOCK 0x18000000u   /* video memory, pages of 2 MiB */
#define ATTRIBUTES_VIRTUAL 0x38000000u /* the same for cuMemCreate and the pools */
#define ATTRIBUTES_ARRAY 0x18020006u
/* Address space without memory, aligned to 2 MiB. 0: none left. */
uint64_t cuda_reserve (uint64_t size, uint64_t alignment);
void cuda_unreserve (uint64_t address, uint64_t size);
uint64_t cuda_round (uint64_t size, uint64_t unit);

/* --- contexts --- */
CUresult cuda_context_create (struct cuda_device *device, unsigned int flags, CUcontext *context);
void cuda_context_destroy (CUcontext context);
CUresult cuda_context_build (CUcontext context);  /* libcuda_build.c */
void cuda_context_unbuild (CUcontext context);
CUcontext cuda_current (void); /* the calling thread's */
CUresult cuda_push (CUcontext context);

/* --- device memory (libcuda_memory.c, libcuda_small.c) --- */
CUresult cuda_allocate (CUcontext context, CUdeviceptr *pointer, size_t size);
CUresult cuda_memory_release (struct cuda_entry *entry);
CUresult cuda_small_allocate (CUcontext context, CUdeviceptr *pointer, size_t size);
CUresult cuda_small_free (struct cuda_entry *entry);
void cuda_small_forget (CUcontext context);
/* The object of cuMemAlloc's memory, and the allocation's offset in it. false: it is no such memory. */
bool cuda_memory_behind (struct cuda_entry *entry, struct cuda_memory *memory, uint64_t *offset);
bool cuda_small_behind (struct cuda_entry *entry, struct cuda_memory *memory, uint64_t *offset);
void cuda_managed_release (struct cuda_entry *entry);
void cuda_managed_move (struct cuda_entry *entry, uint64_t address, uint64_t size, bool host);
void cuda_pinned_release (struct cuda_entry *entry);
void cuda_array_release (struct cuda_entry *entry);
void cuda_imported_release (struct cuda_entry *entry);
/* Pools free their reserve above their threshold. */
void cuda_trim_pools (struct cuda_device *device);

/* Video memory goes and comes back at its address; without it, nothing happens, and success is returned. */
CUresult cuda_memory_evict (struct cuda_entry *entry);
CUresult cuda_memory_return (struct cuda_entry *entry);
void cuda_small_evict (CUcontext context);
CUresult cuda_small_return (CUcontext context);
/* The thread that checkpoints the process on request (libcuda_checkpoint.c). */
void cuda_checkpoint_begin (void);

/* Releases an entry of any kind, with its resources (libcuda_release.c). */
CUresult cuda_release (struct cuda_entry *entry);

/* --- modules, graphs --- */
void cuda_module_release (struct cuda_entry *entry);
uint64_t cuda_function_nanoseconds (CUfunction function);
CUresult cuda_capture_kernel (CUstream stream, uint64_t nanoseconds);
CUresult cuda_capture_allocation (CUstream stream, size_t size, CUdeviceptr *pointer);
CUresult cuda_capture_free (CUstream stream, CUdeviceptr pointer);
/* Ends an abandoned capture. */
void cuda_capture_drop (CUstream stream);

/* --- work (libcuda_work.c) --- */
/* The stream of a handle; NULL: no such stream. */
CUstream cuda_stream (CUcontext context, CUstream stream);
CUresult cuda_submit (CUcontext context, CUstream stream, uint64_t nanoseconds, uint64_t count);
/* Updates `finished`; with `wait`, waits (without the lock) until piece `until` is finished. */
CUresult cuda_wait (CUcontext context, uint64_t until, bool wait);
CUresult cuda_clock (uint64_t *now_ns);

#endif
