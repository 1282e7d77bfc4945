/* The manager's state and the functions shared by the manager_*.c; lines below name the file. All under
 * manager->lock. */
#ifndef NVC_SIM_MANAGER_STATE_H
#define NVC_SIM_MANAGER_STATE_H

#include "manager.h"
#include "manager_engine.h"

#include <pthread.h>

/* Statuses of the resource manager (nvstatuscodes.h). */
enum status {
    STATUS_OK = 0x00,
    STATUS_INSERT_DUPLICATE_NAME = 0x19,
    STATUS_INSUFFICIENT_RESOURCES = 0x1A,
    STATUS_INSUFFICIENT_PERMISSIONS = 0x1B,
    STATUS_INVALID_ADDRESS = 0x1E,
    STATUS_INVALID_ARGUMENT = 0x1F,
    STATUS_INVALID_CHANNEL = 0x21,
    STATUS_INVALID_CLASS = 0x22,
    STATUS_INVALID_CLIENT = 0x23,
    STATUS_INVALID_DEVICE = 0x26,
    STATUS_INVALID_OBJECT = 0x31,
    STATUS_INVALID_OBJECT_HANDLE = 0x33,
    STATUS_INVALID_OFFSET = 0x37,
    STATUS_INVALID_OBJECT_PARENT = 0x36,
    STATUS_INVALID_OWNER = 0x39,
    STATUS_INVALID_PARAM_STRUCT = 0x3A,
    STATUS_INVALID_PARAMETER = 0x3B,
    STATUS_INVALID_STATE = 0x40,
    STATUS_NO_MEMORY = 0x51,
    STATUS_NOT_SUPPORTED = 0x56,
    STATUS_OBJECT_NOT_FOUND = 0x57,
    STATUS_OUT_OF_RANGE = 0x5B,
    STATUS_TIMEOUT = 0x65,
    STATUS_UVM_ADDRESS_IN_USE = 0x68,
    STATUS_GPU_UUID_NOT_FOUND = 0x12,
};

enum kind {
    KIND_CLIENT = 1 << 0,
    KIND_DEVICE = 1 << 1,
    KIND_SUBDEVICE = 1 << 2,
    KIND_MEMORY = 1 << 3,
    KIND_GROUP = 1 << 4,
    KIND_CHANNEL = 1 << 5,
    KIND_OTHER = 1 << 6,
};
#define KIND_ANY 0x7f

/* Memory, however many handles, exports and mappings of UVM hold it. */
struct piece {
    uint64_t bytes;
    uint64_t reported; /* by GET_PID_INFO and the allocation; less where the physical allocator hands out more */
    uint32_t holders; /* DupCount of the real driver */
    uint32_t gpu;     /* of video memory */
    bool video;
};

/* A reference to a piece, in a ring with its other holders. One of them owns it; when that one ends, the next one in
 * the ring becomes the owner (mem.c, memDestructCommon). */
struct holder {
    struct piece *piece; /* NULL: none */
    struct holder *previous, *next;
    bool owner;
};

struct object {
    uint32_t handle, class_number, gpu;
    enum kind kind;
    struct client *client;
    struct object *parent, *child, *previous, *next; /* next: sibling */
    struct object *hashed;                           /* in the client's table */
    struct holder memory;
    struct engine_group *group; /* of a group; of a channel without one it is its own */
    struct engine_channel *channel;
    uint32_t number;       /* of a group or channel: in GET_INFO and in the work submit token */
    uint32_t share_target; /* of SHARE */
    uint32_t composed_target; /* of one with COMPOSE; 0: none */
    uint16_t share_type;
    bool has_policy; /* of its own; others have that of what they are below */
    uint32_t params_size; /* SIM_PARAMETERS */
    uint8_t params_tail[8];
    struct registration *registrations; /* manager_peer.c: with objects for third-party devices */
    struct ring *ring;                  /* manager_trace.c: of memory without a device */
    struct trace *trace;                /* of an event buffer */
};

struct client {
    struct client *next;       /* of the manager */
    struct manager_file *file; /* the file that may use it */
    uint32_t process;          /* the process that allocated it */
    struct object root;
    struct object **table;
    uint32_t table_size, objects, next_handle;
};

struct manager_file {
    struct manager *manager;
    struct manager_file *next;
    enum manager_node node;
    uint32_t gpu;
    struct manager_file *registered; /* the control file whose clients calls on this one use; NULL: this one */
    uint32_t references;             /* 1 while it is open, and the files registered with it */
    struct holder **exports; /* by index; NULL: nothing there */
    uint32_t export_count;   /* as many as its first export asked for */
    uint8_t export_metadata[64];
    bool uvm_initialized;
    uint64_t uvm_flags; /* of INITIALIZE */
    uint32_t uvm_gpus, uvm_spaces;       /* a bit a GPU: registered, and with an address space */
    struct external_range *ranges;       /* manager_external.c */
    uint64_t resident[MANAGER_MAX_GPUS]; /* bytes of managed memory */
};

#define MANAGER_MAX_FAULTS 16
struct manager_fault {
    uint32_t escape, number, status, after;
};

/* manager_samples.c */
#define SAMPLES 72
struct samples {
    uint64_t last, next, busy; /* when the last one was taken and the next one is; the engine's busy time at the last */
    uint32_t place;            /* the oldest */
    struct {
        uint64_t when;
        uint32_t part, process; /* of the time since the one before, in 1/10000; SAMPLE_NONE */
    } taken[SAMPLES];
};
#define SAMPLE_NONE UINT32_MAX

/* manager_trace.c. One memory is mapped at a time: all open files of a node are one file for the kernel, with the same pages. */
#define CLASS_EVENT_BUFFER 0x90CDu
#define CLASS_DEVICELESS 0x90CEu
#define CLASS_SPACE 0x90F1u         /* an address space */
#define CLASS_CONTEXT_SHARE 0x9067u
struct ring {
    uint32_t references, size;
    uint8_t bytes[];
};

struct manager {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC: signalled at each change that a call may wait for */
    const struct machine *machine;
    int release; /* of the driver: 580 */
    uint32_t gpus;
    uint64_t used[MANAGER_MAX_GPUS]; /* bytes of video memory */
    uint8_t uuids[MANAGER_MAX_GPUS][16];
    struct manager_file *files;
    struct client *clients;
    struct engine *engines;
    struct samples samples[MANAGER_MAX_GPUS];
    struct trace *traces; /* that are bound */
    struct ring *mapped;
    atomic_bool is_traced; /* what is mapped has changed */
    uint64_t told_at;      /* when manager_has_news said so last */
    uint32_t next_client, next_number;
    struct manager_fault faults[MANAGER_MAX_FAULTS];
    struct sim_questions questions;
    bool counts_overhead; /* SIM_OVERHEAD */
    uint32_t lost; /* status of every call once the GPUs are lost */
    bool manual;   /* the clock */
    uint64_t manual_now;
    int64_t real_offset; /* real mode: now is CLOCK_MONOTONIC plus this */
    bool stopping;
};

/* A call in progress. head: the ioctl's argument; params: the struct that the head points to. */
struct request {
    struct manager *manager;
    struct manager_file *file;
    struct manager_caller *caller;
    uint32_t number, escape, head_size;
    uint8_t *head;
    uint8_t *params;
    uint32_t params_size;
    uint64_t params_address;
    bool params_changed;
    uint8_t *list; /* the data that params point to, of some controls */
    uint32_t list_size;
    uint64_t list_address;
    struct manager_file *named; /* the open file that a descriptor in the call names */
    struct {
        uint64_t address;
        const void *from;
        size_t size;
    } late[3]; /* further writes to the caller's memory, of one control whose status reports their failure */
    int error; /* what the ioctl returns */
};

static inline uint32_t get32 (const uint8_t *from, size_t offset)
{
    uint32_t value;
    __builtin_memcpy (&value, from + offset, sizeof (value));
    return value;
}

static inline uint64_t get64 (const uint8_t *from, size_t offset)
{
    uint64_t value;
    __builtin_memcpy (&value, from + offset, sizeof (value));
    return value;
}

static inline void put16 (uint8_t *to, size_t offset, uint16_t value) { __builtin_memcpy (to + offset, &value, sizeof (value)); }

static inline void put32 (uint8_t *to, size_t offset, uint32_t value) { __builtin_memcpy (to + offset, &value, sizeof (value)); }

static inline void put64 (uint8_t *to, size_t offset, uint64_t value) { __builtin_memcpy (to + offset, &value, sizeof (value)); }

/* manager_object.c */
struct client *client_find (struct manager *manager, uint32_t handle);
/* The client, if this open file may use it (strict rmclientValidate): its own, or one of its registered control
 * file. */
struct client *client_of (struct request *request, uint32_t handle);
/* Why client_of has none: the client is another file's, or there is none (_serverLockClientWithLockInfo, clientValidate). */
enum status client_error (struct request *request, uint32_t handle);
struct client *client_create (struct request *request, uint32_t class_number);
void client_destroy (struct client *client);
struct object *object_find (struct client *client, uint32_t handle);
/* handle 0: one is picked. */
enum status object_create (struct client *client, struct object *parent, uint32_t handle, enum kind kind, struct object **result);
/* With all its descendants. */
void object_destroy (struct object *object);

/* manager_share.c: whether a task of this process may duplicate it for this client (NULL: one of the kernel's). */
bool may_duplicate (const struct object *source, const struct client *client, uint32_t process);

/* manager_memory.c */
uint64_t memory_capacity (const struct manager *manager, uint32_t gpu);
/* What the physical allocator takes: 64 KiB at least. */
uint64_t memory_rounded (uint64_t bytes);
/* bytes: rounded up already. `holder` owns the new piece. */
enum status piece_create (struct manager *manager, uint32_t gpu, bool video, uint64_t bytes, struct holder *holder);
/* Adds `holder` to the holders of `source`'s piece. */
void piece_hold (struct holder *holder, struct holder *source);
void piece_drop (struct manager *manager, struct holder *holder);
/* NV_MEMORY_ALLOCATION_PARAMS in `params`; size, offset and limit are written back. */
enum status memory_allocate (struct request *request, struct object *object, uint8_t *params);
enum status memory_vid_heap (struct request *request);
enum status memory_share (struct request *request);
enum status memory_duplicate (struct request *request);
enum status memory_export (struct request *request, struct object *object);
enum status memory_are_duplicates (struct request *request, struct object *object);
enum status memory_import (struct request *request, struct object *object);
enum status memory_export_info (struct request *request, struct object *object);

/* manager_class.c */
/* Size of the class's parameters; 0: they are ignored. */
uint32_t class_params_size (const struct manager *manager, uint32_t class_number);
enum status class_allocate (struct request *request);
enum status class_allocate_memory (struct request *request);
enum status class_allocate_object (struct request *request);
enum status class_free (struct request *request);

/* manager_control.c */
enum status control (struct request *request);
/* manager_list.c: bytes of params that the driver reads of a control, whatever size the call gives; and the list that
 * they point to. False: it is not readable. */
uint32_t control_params_size (const struct request *request);
bool control_take_list (struct request *request);
/* manager_information.c, manager_process.c, manager_samples.c, manager_schedule.c, manager_peer.c: the functions of the table in
 * manager_control.c. */
typedef enum status control_function (struct request *request, struct object *object);
control_function control_build_version, control_ids, control_id_info, control_pci_info, control_address_space,
    control_inherited_share, control_handle_info, control_surface_info, control_channel_property, control_gid, control_fb_info,
    control_fb_info_list, control_pids, control_pid_info, control_samples, control_schedule, control_reset, control_set_slice,
    control_get_slice, control_preempt, control_preemption_mode, control_number, control_token, control_disable,
    control_register_space, control_register_memory, control_unregister, control_encoder_caps, control_bind_trace,
    control_enable_trace;
/* Creates the engine's part of a group or channel. */
enum status group_allocate (struct request *request, struct object *object, uint32_t engine_type);
enum status channel_allocate (struct request *request, struct object *object, uint32_t engine_type);
/* A graphics or compute object is made on it. */
enum status channel_compute (struct request *request, struct object *object);
/* A duplicate of a group is the same group (kchangrpapiCopyConstruct). */
void group_duplicate (struct object *object, const struct object *source);
void schedule_destroy (struct object *object);

/* manager_trace.c: an object of one of its two classes, and its end; the mapping of such memory; for each engine, whether its switches are
 * traced. */
enum status trace_allocate (struct object *object, const uint8_t *params);
void trace_destroy (struct object *object);
enum status trace_map (struct manager *manager, const struct object *object);
void trace_engines (struct manager *manager);

/* manager_peer.c: before an object's end: removes the registrations with it, and its own with others. */
#define CLASS_THIRD_PARTY 0x503Cu
void peer_forget (struct object *object);

/* manager_escape.c: all escapes but allocation and control. Writes the status where the escape has one. */
bool escape_other (struct request *request);
/* manager_uvm.c */
uint32_t uvm_size (const struct manager *manager, uint32_t number);
void uvm_call (struct request *request);
int gpu_by_uuid (const struct manager *manager, const uint8_t *uuid);
void uvm_forget (struct manager_file *file);
/* manager_external.c: external ranges of UVM. */
enum status external_create (struct request *request);
enum status external_map (struct request *request);
enum status external_unmap (struct request *request);
enum status external_free (struct request *request, uint64_t length);
/* gpu -1: every range of the file; otherwise the mappings for one GPU. */
void external_forget (struct manager_file *file, int gpu);
/* For tests: every mapping of the file's ranges, with the memory that it holds and the process that made it. */
void external_each (const struct manager_file *file,
                    void (*each) (void *context, const struct holder *holder, uint64_t bytes, uint32_t process), void *context);

/* manager_clock.c */
uint64_t clock_now (struct manager *manager);
/* manager_samples.c: those that are due until then, for which the engine is advanced. */
void samples_run (struct manager *manager, struct engine *engine, uint64_t until);
/* Advances every engine to now. */
void clock_run (struct manager *manager);
void clock_set (struct manager *manager, enum sim_clock_mode mode, uint64_t advance);
/* Waits, without the lock, for `changed` or until the simulated time is `until`. False: interrupted. */
bool clock_wait (struct request *request, uint64_t until);
/* The calls of device.h. */
bool simulator_call (struct request *request);
void totals_fill (struct manager *manager, struct sim_totals *totals);

#endif
