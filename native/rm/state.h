/* What rm keeps of a tenant. Private to native/rm. */
#ifndef NVC_RM_STATE_H
#define NVC_RM_STATE_H

#include "abi.h"
#include "bytes.h"
#include "handlers.h"
#include "nvos.h"

/* Of a GPU that is not known yet; RM_NO_GPU is one that the share does not name. */
#define GPU_UNKNOWN (-2)
/* A guard's tenant has no more records than this: objects, pieces, clients, files and exports. An object's is the largest, some 240 bytes. */
#define RECORDS_MAX (1u << 19)
/* More than any GPU has: such a size is refused before sums could wrap. */
#define BYTES_MAX ((uint64_t) 1 << 60)

struct link {
    struct link *next;
    uint64_t key;
};

struct table {
    struct link **buckets;
    size_t capacity; /* a power of two */
    size_t count;
};

struct chunk {
    struct chunk *next;
    uint64_t kind; /* enum pool_kind */
    size_t size; /* written last: 0 where nothing is yet */
};
#define CHUNK_HEAD ((sizeof (struct chunk) + 15) & ~(size_t) 15)

/* What a cell holds. A cell in use ends with MARK + kind, so that records that remain after their process can be told from
 * free cells whatever that process was doing when it was killed (restore.c). */
enum pool_kind { POOL_OBJECTS = 1, POOL_CLIENTS, POOL_MEMORIES, POOL_FILES, POOL_EXPORTS, POOL_EXTERNALS, POOL_KINDS };
#define MARK 0x6b72616d6d76636eu
/* Other stores are not moved across: a process that is killed was killed between two of them. */
#define IN_ORDER() __asm__ volatile ("" ::: "memory")

struct pool {
    enum pool_kind kind;
    size_t cell; /* with its mark */
    size_t chunk; /* bytes of the next one */
    struct chunk *chunks;
    void *free;
    size_t count; /* cells in use */
};

/* A piece of video memory: lives until its last handle is freed, the last file that it was exported to is closed, and
 * UVM has its last mapping no more. */
struct memory {
    uint64_t bytes;
    int32_t gpu; /* the GPU charged; GPU_UNKNOWN: none yet, bytes wait */
    uint32_t references;
    uint32_t seen; /* by rm_pieces */
    uint64_t reported; /* bytes, as the driver does (GET_PID_INFO); less than what is charged where it hands out more */
    bool is_exported;
    bool is_foreign; /* another tenant's or the host's */
};

/* What a guard's tenant has said of which clients may duplicate an object. Wide: other tenants too; the driver does not get it. */
enum policy { POLICY_INHERITED, POLICY_NARROW, POLICY_WIDE };
/* A space_serial: an address space of its own, or a device or duplicate with one. */
#define SPACE_ITSELF UINT64_MAX

struct object {
    struct link link; /* key: client << 32 | handle */
    struct object *parent, *child, *before, *after;
    struct object *role_before, *role_after; /* in one of its client's lists */
    struct client *client;
    struct object *device; /* itself, or the device that it is below; NULL: none */
    struct memory *memory;
    uint64_t serial;
    uint64_t space_serial; /* of that by which it is in the tenant's own address space, or SPACE_ITSELF; 0: in none (space.c) */
    uint64_t made; /* group, channel: not before this serial; 0: it was found */
    uint64_t asked; /* group: the timeslice that its owner asked for */
    struct object *same_before, *same_after; /* group: other handles of it, in a ring; NULL: none were made */
    uint64_t context_bytes; /* group, channel without one: for its context's buffers, of context_gpu; range: for page tables */
    int32_t context_gpu;
    uint32_t slice; /* group, channel without one: the share's timeslice that was written last; 0: none */
    uint32_t engine; /* group, channel */
    uint32_t instance; /* device */
    uint32_t channels; /* group: compute channels in it */
    int32_t gpu; /* device, subdevice */
    uint8_t kind; /* enum rm_class_kind */
    uint8_t policy; /* enum policy */
    bool is_compute; /* group, channel */
    bool is_stopped; /* channel: by rm_freeze */
    bool has_asked; /* group */
    bool is_found; /* group: it was not seen to be made */
    uint32_t space; /* that one's handle, in the same client: an address space, a context share, a group or a device */
    bool is_foreign; /* a duplicate of an object of the host's (MPS) or another tenant's */
    bool is_counted; /* in its client's maker's `reported` */
    uint8_t context_state; /* group, channel without one: preempt.c */
};

struct client {
    struct client *before, *after; /* of the tenant */
    struct client *file_before, *file_after;
    struct file *file;
    uint64_t maker; /* the name of the file that it was entered with */
    uint64_t doubt; /* any process with continued calls before this serial may have made it; 0: the maker did */
    uint64_t counted; /* objects that are */
    bool is_held; /* rm_client_held */
    struct object *object;
    struct object *subdevices, *groups, *channels;
};

struct export
{
    struct export *next;
    uint64_t file; /* its name */
    struct memory *memory;
    uint32_t slot;
};

struct file {
    struct link link; /* key: the user's name */
    struct client *clients;
    struct export *exports;
    uint32_t gpus; /* UVM: bits of those registered */
    uint64_t reported[RM_MAX_GPUS]; /* of the handles of the clients that were entered with it */
    uint64_t continued; /* serial of its first continued allocation; 0: there was none */
    bool is_ended; /* rm_file_ended */
};

struct range {
    uint64_t start, end;
    uint32_t gpus; /* bits of those charged */
    bool is_for_every; /* every GPU registered with UVM */
};

/* external.c: where UVM has memory mapped; a node of a tree. */
struct external {
    struct external *left, *right;
    uint64_t file, start, end;
    struct memory *memory;
    uint32_t gpu;
    uint32_t weight; /* not below its children's */
};

/* What a continued allocation was said to make: an object, which is asked about at the next calls of its client; or a client, which is
 * known by the first call on it through the same descriptor. */
#define NAMED_MAX 128u
struct named {
    uint64_t file; /* of a client; 0: it is an object */
    uint32_t client, handle; /* of a client: 0, the descriptor */
    uint32_t class; /* of a client: 0 */
    uint32_t tries; /* that are left */
    bool is_open; /* it was not found yet */
    bool is_pending; /* the call is not over */
    uint64_t maker; /* the file of the call */
    uint64_t begun, over, found; /* rm->serial; begun 0: this place is free */
    uint64_t begun_least; /* of those too of which there is no record any more (bypass) */
    uint64_t exchanged; /* another process's call was confirmed then, by a client that this one may have made; 0: none was */
};

struct rm {
    const struct rm_abi *abi;
    const struct rm_host *host;
    void *context;
    enum rm_posture posture;
    struct table objects, files;
    struct pool object_pool, client_pool, memory_pool, file_pool, export_pool, external_pool;
    struct client *clients;
    uint64_t client_count, memory_count, serial;
    uint64_t bytes[RM_MAX_GPUS];
    uint32_t ended; /* files that are */
    uint64_t exported; /* pieces that were exported by a descriptor */
    uint64_t reported_falls; /* how often a file's reported[] may have fallen */
    uint64_t unconfirmed; /* continued allocations of which what they were said to make was not found */
    uint64_t found_contexts; /* not more, and charged: such a call made each, or the driver for a channel without a group */
    struct named named[NAMED_MAX];
    uint64_t doubt_until; /* rm->serial until which calls that are in no record any more may have made channels */
    bool has_lost_named; /* of one that is not confirmed there is no record any more */
    uint32_t changed; /* GPUs with changed groups: reported at the end of the call */
    uint32_t frozen; /* GPUs that rm_freeze stopped */
    bool has_graphics; /* rm_allow_graphics */
    uint64_t controls; /* rm's own, ever made */
    int32_t gpu_of_instance[RM_MAX_GPUS]; /* the driver's device instance -> the share's index */
    struct range *ranges; /* sorted, apart */
    size_t range_count, range_capacity;
    struct external *externals;
    uint64_t external_serial;
    uint8_t uvm_gpus[RM_MAX_GPUS][16]; /* UUIDs that UVM mapped something for */
    uint32_t uvm_gpu_count;
};

/* object.c */
struct link *table_find (const struct table *table, uint64_t key);
bool table_add (struct rm *rm, struct table *table, struct link *link);
void table_remove (struct table *table, struct link *link);
void table_release (struct rm *rm, struct table *table);
void *pool_take (struct rm *rm, struct pool *pool);
void pool_prepare (struct pool *pool, enum pool_kind kind, size_t size);
void pool_give (struct pool *pool, void *cell);
void pool_release (struct rm *rm, struct pool *pool);

/* memory.c: everything that changes a charge */
bool memory_reserve (struct rm *rm, int gpu, uint64_t bytes);
void memory_charge (struct rm *rm, int gpu, uint64_t bytes, uint64_t *charged);
void memory_refund (struct rm *rm, int gpu, uint64_t bytes);
struct memory *memory_create (struct rm *rm, int gpu, uint64_t bytes);
void memory_drop (struct rm *rm, struct memory *memory);
/* What the physical allocator takes for a piece of this size: a guard's tenant is charged for it. */
uint64_t memory_footprint (const struct rm *rm, uint64_t bytes);
/* A handle that the driver counts, for which a reference was taken; and its end, which drops the reference. */
void memory_join (struct rm *rm, struct object *object, struct memory *memory);
void memory_leave (struct rm *rm, struct object *object);
/* The driver granted `bytes` where `reserved` were taken from `gpu`'s quota: makes the charge right. */
void memory_commit (struct rm *rm, struct object *object, int gpu, uint64_t reserved, uint64_t bytes);

/* tracker.c */
struct object *tracker_find (const struct rm *rm, uint32_t client, uint32_t handle);
/* A client that the call names (0: none): false for the call's own, and for one of the tenant's with a held file (rm_client_held). Any other handle can
 * be that of another container's client. */
bool tracker_may_be_foreign (const struct rm *rm, const struct rm_call *call, uint32_t client);
struct file *tracker_file (struct rm *rm, uint64_t file, bool create);
struct client *tracker_client (struct rm *rm, uint64_t file, uint32_t handle);
struct object *tracker_add (struct rm *rm, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle, uint8_t kind);
void tracker_drop (struct rm *rm, struct object *object);
void tracker_drop_client (struct rm *rm, struct client *client);
/* After `at`, of `top` and all below it: parents before children, and without recursion, for a tenant decides how deep its tree is. NULL: none. */
struct object *tracker_next (const struct object *top, struct object *at);
/* The share's GPU of an object, GPU_UNKNOWN or RM_NO_GPU. */
int tracker_gpu (const struct rm *rm, const struct object *object);
int tracker_gpu_of (const struct rm *rm, uint32_t client, uint32_t handle);
void tracker_set_device_gpu (struct rm *rm, struct object *device, int gpu);
void tracker_add_subdevice (struct rm *rm, uint64_t file, struct object *subdevice);
void tracker_add_role (struct object **list, struct object *object);
void tracker_remove_role (struct object **list, struct object *object);
void tracker_export (struct rm *rm, uint64_t file, struct memory *memory, uint32_t slot);
/* Another object takes the slot of an open file. */
void tracker_unexport (struct rm *rm, uint64_t file, uint32_t slot);

struct object *tracker_new (struct rm *rm, uint32_t client, uint32_t handle, uint8_t kind);

/* schedule.c */
long schedule_control (struct rm *rm, uint64_t file, uint32_t client, uint32_t object, uint32_t command, void *params,
                       uint32_t size);
/* What the buffers of a context on the graphics engine take beside the program's own memory: the driver reports it for no
 * process. 128 groups took 552 MiB of an H100 (580.159.04). */
#define SCHEDULE_CONTEXT_BYTES RM_CONTEXT_BYTES
static inline bool schedule_is_graphics (const struct rm *rm, uint32_t engine)
{
    return engine >= rm->abi->first_graphics && engine <= rm->abi->last_graphics;
}
/* Before Ampere a group, or a channel without one, need not say its engine: what is allocated on it does. A guard's tenant may have
 * allocated there what no record has, so it computes from the beginning. */
static inline bool schedule_computes (const struct rm *rm, uint32_t engine)
{
    return schedule_is_graphics (rm, engine) || (rm->posture == RM_POSTURE_GUARD && engine == 0);
}
static inline struct object *schedule_group_of (const struct object *channel)
{
    struct object *parent = channel->parent;

    return parent != NULL && parent->kind == CLASS_GROUP ? parent : NULL;
}
/* A guard's channel that has no group of its own: the driver makes one for it, which no handle names. */
bool schedule_is_lone (const struct rm *rm, const struct object *object);
void schedule_added (struct rm *rm, struct object *object, const void *params, uint32_t params_size);
/* Bytes that the buffers of the context take which this group, or channel without one, would make; 0: it makes none. */
uint64_t schedule_context_bytes (const struct rm *rm, uint8_t kind, const struct object *parent, const void *params,
                                 uint32_t params_size);
/* Another handle of a group. */
void schedule_duplicated (struct rm *rm, struct object *object, struct object *source);
/* A client's subdevice of a GPU. NULL: it has none. */
const struct object *schedule_subdevice (const struct rm *rm, const struct client *client, int gpu);
/* Whether channels that compute could not be stopped any more without this subdevice. */
bool schedule_needs (const struct rm *rm, const struct object *object);
/* Writes the timeslice of a group or of a channel without one. 0, a status or -errno. A shorter one that another tenant wrote stays. */
long schedule_write_slice (struct rm *rm, struct object *object, uint32_t microseconds);
/* Before a group, or a channel, is let through to compute: it has the share's timeslice. false: it could not be written. */
bool schedule_before_run (struct rm *rm, struct object *object);
/* Whether a graphics engine's object may be made on it; whether a call, if it is BIND, leaves the group on the engine that it said. */
bool schedule_may_compute (const struct rm *rm, const struct object *channel);
bool schedule_may_bind (const struct rm *rm, const struct rm_call *call);
/* Whether its GPU is known and its client has a subdevice of it, by which channels are stopped. */
bool schedule_reaches (const struct rm *rm, const struct object *object);
/* One with unknown params, which may compute. false: its kernels could not be preempted in time. */
bool schedule_found (struct rm *rm, struct object *object);
void schedule_removed (struct rm *rm, struct object *object);
void schedule_tell_changed (struct rm *rm);
static inline void schedule_tell (struct rm *rm)
{
    if (rm->changed != 0)
        schedule_tell_changed (rm);
}

/* uvm.c */
void uvm_registered (struct rm *rm, uint64_t file, const uint8_t *uuid, bool on);
void uvm_file_closed (struct rm *rm, struct file *file);
void uvm_release (struct rm *rm);

/* external.c: calls of UVM that map memory, or end that. end drops what begin took. */
void external_begin (struct rm *rm, struct rm_call *call);
void external_end (struct rm *rm, struct rm_call *call, bool is_good);
void external_file_closed (struct rm *rm, uint64_t file);

/* evidence.c: objects of a guard's tenant that the ledger does not have, asked about, and entered as the driver reports them.
 * UNUSABLE: there is one, and no record of it could be made. */
enum evidence { EVIDENCE_NONE, EVIDENCE_OBJECT, EVIDENCE_UNUSABLE };
/* The same of a handle below `parent` that was just made over memory of another tenant's or the host's: charged, if the quota has room. */
enum evidence evidence_import (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t parent, uint32_t handle);
enum evidence evidence_of (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t handle);
/* A client that the driver knows: a call on it through this file succeeded, or the driver was asked. It enters, and the continued ALLOC that
 * made it is confirmed. false: there is no memory for the record. */
bool evidence_client (struct rm *rm, const struct rm_call *call, uint64_t file, uint32_t client);
/* Whether the ledger has it by now; of no concern where the posture is the shim's. */
bool evidence_has (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t handle);

/* outcome.c. A continued allocation: its outcome is not seen. */
void outcome_expect (struct rm *rm, const struct rm_call *call);
/* What was found. file 0: an object; otherwise a client, handle: the descriptor. */
void outcome_found (struct rm *rm, uint64_t file, uint32_t client, uint32_t handle, uint32_t class);
/* The same of a client that has just entered, by its first call, through this file and descriptor. */
void outcome_found_client (struct rm *rm, struct client *client, uint64_t file, uint32_t descriptor);
/* Before a call on this client: what was said to be made on it is asked about. */
void outcome_look (struct rm *rm, const struct rm_call *call);
/* The serial until which a channel may have been made in any group; 0: none was. */
uint64_t outcome_doubt (const struct rm *rm);
/* Whether a group, or a channel's, was made later. */
bool outcome_allows (const struct rm *rm, const struct object *object);

/* start.c */
/* Whether it starts a group's channels, or one. */
bool control_is_start (uint32_t number);
/* With the share's timeslice, and with no channel that could not be stopped. */
bool start_may (struct rm *rm, const NVOS54_PARAMETERS *head);
/* Whether the call, if it is RESET_CHANNEL, is of a channel that computes, with its own engine. */
bool start_may_reset (const struct rm *rm, const struct rm_call *call);
/* The group's call in place of that for a channel of it. */
enum rm_verdict start_begin (struct rm *rm, struct rm_call *call);
void start_end (const struct rm_call *call);

/* preempt.c. Whether it is an object of graphics, and may be made in the channel: its context then has another mode, which is the one that a call
 * of the program's own gets. */
bool preempt_is_graphics (uint32_t class);
bool preempt_may_draw (struct rm *rm, struct rm_call *call, struct object *channel);
/* Whether it was made. */
void preempt_drew (struct rm *rm, const struct rm_call *call, bool is_made);
uint32_t preempt_mode (const struct rm *rm, const struct rm_call *call);
/* Before a group, or a channel, is let through to compute: its kernels stop when its turn is over. false: they would not. */
bool preempt_before_run (struct rm *rm, struct object *object);
/* The same of one that runs, when an object of this class (0: not known) was made on it. */
bool preempt_object (struct rm *rm, struct object *object, uint32_t class);
/* The caller set the mode itself. */
void preempt_asked (const struct rm *rm, const struct rm_call *call);

/* policy.c */
enum rm_verdict share_begin (struct rm *rm, struct rm_call *call);
/* CLIENT_SET_INHERITED_SHARE_POLICY: whether the driver gets it. */
bool policy_inherited (struct rm *rm, const struct rm_call *call);
/* Before it is duplicated for this client of the tenant's. */
void policy_give (struct rm *rm, const struct object *source, uint32_t client);

/* answer.c */
void answer_control (struct rm *rm, const struct rm_control *control, struct rm_call *call);
/* Pids of GET_PID_INFO, before the driver is asked in another pid namespace than the caller's, and afterwards. */
void answer_ask_driver_pids (struct rm *rm, void *params, uint32_t size);
void answer_show_pids (struct rm *rm, void *params, uint32_t size);
void answer_heap (struct rm *rm, int gpu, NVOS32_PARAMETERS *head, bool is_info);
/* Whether the ledger has all that an export or an import names. */
bool share_is_known (struct rm *rm, const struct rm_control *control, const struct rm_call *call);
void share_export (struct rm *rm, const struct rm_control *control, struct rm_call *call);
void share_import (struct rm *rm, const struct rm_control *control, struct rm_call *call);
/* Before a guard's call is made: whether the quota has room for what it would give, as far as that can be seen. */
bool share_may_take (struct rm *rm, const struct object *parent, const struct rm_source *sources, uint32_t count);
bool share_may_import (struct rm *rm, const struct rm_control *control, const struct rm_call *call);
/* As if it had never been made; charged while others hold it. */
void share_give_back (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t parent, uint32_t handle);

static inline bool is_guard (const struct rm *rm) { return rm->posture == RM_POSTURE_GUARD; }
static inline size_t record_count (const struct rm *rm)
{
    return rm->object_pool.count + rm->memory_pool.count + rm->client_pool.count + rm->file_pool.count + rm->export_pool.count +
           rm->external_pool.count;
}
static inline bool is_full (const struct rm *rm) { return is_guard (rm) && record_count (rm) >= RECORDS_MAX; }
static inline void note (const struct rm *rm, enum rm_reason reason, uint32_t number)
{
    rm->host->note (rm->context, reason, number);
}
static inline uint64_t object_key (uint32_t client, uint32_t handle) { return (uint64_t) client << 32 | handle; }

#endif
