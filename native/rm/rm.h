/*
 * What a tenant's calls of NVIDIA's resource manager mean, and what may be done about them.
 *
 * Every CUDA allocation, context, channel and question about memory ends in an ioctl on /dev/nvidiactl. rm reads such a
 * call, keeps the tenant's objects, admits or refuses memory, rewrites answers, and makes the scheduling calls. It
 * does no I/O, has no globals and takes no locks: what it needs comes through `struct rm_host`, and how a call
 * reached it is the caller's business. The shim gives it the caller's own structs; the guard gives it copies; tests
 * give it plain structs.
 *
 * Layouts, classes and controls are tables (abi.h), one set a driver branch, each inheriting from the one before.
 *
 * A call is handled in two halves, with the driver's own work between them:
 *
 *     switch (rm_begin (rm, &call)) {
 *     case RM_PASS:                       let the driver do it; nothing more
 *     case RM_CONTINUE: case RM_PERFORM:  let the driver do it, then rm_end (rm, &call, result)
 *     case RM_ANSWERED: case RM_REFUSED:  head and params hold the answer; no driver is called, the ioctl returns 0
 *     case RM_UNKNOWN:                    no row for it: the guard refuses, the shim lets it pass
 *     }
 *
 * Other threads may run both halves of other calls in between; the user's lock covers each half alone, never the
 * driver's work. Every rm_begin that answered RM_CONTINUE or RM_PERFORM is followed by exactly one rm_end, or by
 * rm_forget_call when the outcome stays unknown (the guard continued it).
 */
#ifndef NVC_RM_H
#define NVC_RM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GPUs that one share can name (the driver's NV_MAX_DEVICES). */
#define RM_MAX_GPUS 32
/* A GPU that no share names, or that is not known yet. */
#define RM_NO_GPU (-1)
/* FIFO_DISABLE_CHANNELS takes this many channels a call (ctrl2080fifo.h). */
#define RM_FREEZE_MAX 64

struct rm_abi; /* abi.h */
struct rm_class;
struct rm;     /* one tenant's (shim: one process's) objects */

/* Which of the driver's nodes a descriptor is open on. */
enum rm_node { RM_NODE_OTHER = 0, RM_NODE_CONTROL = 1, RM_NODE_GPU = 2, RM_NODE_UVM = 3 };

enum rm_verdict { RM_PASS, RM_CONTINUE, RM_PERFORM, RM_ANSWERED, RM_REFUSED, RM_UNKNOWN };

/* Why something was refused or let pass; goes to host->note, and is what logs and counters are named after. */
enum rm_reason {
    RM_OK = 0,
    RM_OVER_QUOTA,       /* number: class */
    RM_UNKNOWN_ESCAPE,   /* number: escape */
    RM_UNKNOWN_CLASS,    /* number: class */
    RM_UNKNOWN_CONTROL,  /* number: control */
    RM_FORBIDDEN_ESCAPE, /* XFER_CMD, registry, ...: number: escape */
    RM_FORBIDDEN_CLASS,  /* physical memory, ...: number: class */
    RM_FORBIDDEN_CONTROL,
    RM_SCHEDULING_CONTROL, /* the tenant's own timeslice, freeze, ...: answered; a start without one: refused; number: control */
    RM_BAD_SIZE,         /* a struct of a size that the driver has not; number: escape, or the control whose params */
    RM_BAD_POINTER,      /* params that are missing or too short; number: escape */
    RM_TOO_MANY,         /* more records than rm keeps for a tenant; number: escape, or UVM's request */
    RM_UNREACHABLE,      /* a process hid its descriptors, so that nothing can stop its channels; number: client */
    RM_TOCTOU_KILLED,     /* a call its own thread had to make became memory beyond the quota; its process was ended */
    RM_UNRESPONSIVE,      /* what a process keeps from being read kept its tenant's guard waiting; frozen meanwhile */
    RM_FOREIGN_PROCESS,   /* has the filter and is not in the container; its call was refused. number: 0 */
    RM_EDGE_LATE,         /* channels that were to be off could not be stopped for half a second; the container was ended */
    RM_UNKNOWN_OBJECT,    /* on or below an object that the ledger does not have, nor the driver reports; number: escape */
    RM_NO_MEMORY,         /* the guard has no memory for a record of what the driver did; the container was ended. number: 0 */
    RM_UNKNOWN_OUTCOME, /* a group was not started: a continued call may have made a channel in it that no record has; number: control */
    RM_FOREIGN_FILE, /* a file of the driver's that another container opened; the call on it was refused. number: 0 */
    RM_REASONS
};

/*
 * A call. The user fills the first part. `head` is the struct that the ioctl's argument points at (or a copy),
 * head_size bytes of it readable and writable. `params`: what head points at, as rm_params_wanted said; `list`
 * likewise for the one control with a second pointer (FB_GET_INFO v1). rm never follows a pointer that it finds
 * inside a struct.
 */
struct rm_call {
    enum rm_node node;
    uint64_t file; /* the open file, by the user's own naming; the same for duplicates of a descriptor */
    uint32_t descriptor; /* a guard's: what the caller knows it by */
    int32_t named; /* a guard's: its own copy of the descriptor that the params name, while the call is handled */
    uint32_t request; /* ioctl number: low byte the escape, bits 16-29 the size, the driver ignores the type byte */
    void *head;
    uint32_t head_size;
    void *params;
    uint32_t params_size;
    void *list;
    uint32_t list_size;

    /* rm's own, from rm_begin to rm_end. */
    struct {
        uint32_t kind; /* of handler (0: none) */
        uint32_t decision; /* enum rm_verdict of rm_begin */
        int32_t gpu;
        uint64_t reserved; /* bytes taken from the quota; timeslices: what the owner asked for */
        uint64_t serial; /* of the object that the call is about: handles are used again */
        uint32_t number; /* class, control or function, as rm_begin read it */
        const struct rm_class *class; /* its row, of an allocation; NULL: none */
        uint64_t outcome; /* of an allocation that is continued by a guard: its number (rm_outcome_over) */
        uint32_t space; /* space.c, of the new object */
        uint64_t space_serial;
        uint64_t looked_at; /* serial of another object: a duplicate's source, the group that draws */
        bool draws; /* it is the first that draws (preempt.c) */
    } own;
};

/* A piece of the tenant's memory that a call needs beside head: address in the tenant, bytes. size 0: none. */
struct rm_wanted {
    uint64_t address;
    uint32_t size;
};

/* What the share says of one GPU, for answers about memory. limit 0: no limit, answers stay the driver's. */
struct rm_numbers {
    uint64_t limit; /* bytes */
    uint64_t used; /* bytes, of the whole tenant; may be above limit */
};

/* What rm needs of its user. Every function may be called from either half of any call, under the user's lock. */
/* What a call gives the tenant of another one, perhaps: the object behind a descriptor, or an object of a client. */
struct rm_source {
    const void *params; /* of the control that imports it; NULL: an object of a client */
    int file; /* the user's own copy of the descriptor */
    uint32_t slot;
    bool is_list; /* IMPORT_OBJECTS_FROM_FD */
    bool is_own; /* the client is the tenant's */
    uint32_t client, handle;
};
/* So many pieces are compared with what one call imports, or with all that one call or one process's end frees: beyond it what is imported is
 * another tenant's, and what is freed is held by another one, and charged. */
#define RM_COMPARED_MAX 4096u

struct rm_host {
    /* Memory for rm's own tables: zeroed, or NULL. */
    void *(*allocate) (void *context, size_t size);
    void (*release) (void *context, void *memory, size_t size);
    /* An ioctl of rm's own on the tenant's open file, with a request and an argument in this process; 0 or -errno. */
    long (*ioctl) (void *context, uint64_t file, uint32_t request, void *argument);
    /* The share's index of a GPU by its UUID's 16 bytes; RM_NO_GPU when the share does not name it. */
    int (*find_gpu) (void *context, const uint8_t uuid[16]);
    /* Take bytes of a GPU's quota, all or nothing. The sum over the tenant's processes never exceeds the limit. */
    bool (*reserve) (void *context, int gpu, uint64_t bytes);
    void (*refund) (void *context, int gpu, uint64_t bytes);
    /* Take bytes that the driver has handed out already, over the limit if need be. NULL: reserve is tried, and what it
     * refuses is not charged. */
    void (*charge) (void *context, int gpu, uint64_t bytes);
    struct rm_numbers (*numbers) (void *context, int gpu);
    /* The open file behind a descriptor of the tenant, by the user's own naming; 0: unknown. NULL: all unknown. */
    uint64_t (*file_of) (void *context, int descriptor);
    /* The timeslice, in microseconds, that a compute group gets in place of the one its owner asks for; 0: its own. */
    uint32_t (*timeslice) (void *context, int gpu);
    /* What the calling process knows a process by, of which the driver says the pid to the user; 0: it is none of the
     * tenant's, or not in the caller's pid namespace. */
    uint32_t (*shown_pid) (void *context, uint32_t pid);
    /* The reverse, of a pid that the calling process gave; 0: none. NULL: the driver takes the caller's own. */
    uint32_t (*driver_pid) (void *context, uint32_t pid);
    /* A compute channel or group came or went, or a group wrote its first timeslice (the share must be applied
     * again). */
    void (*groups_changed) (void *context, int gpu);
    /* Something worth a counter or a log line. */
    void (*note) (void *context, enum rm_reason reason, uint32_t number);
    /* A guard's duplicate of what a call gives, which is in no client of the tenant's: one at a time, until let_go. bytes: of video memory, 0: it is
     * none. false: the driver makes none. All five NULL: never. */
    bool (*hold) (void *context, int gpu, const struct rm_source *source, uint64_t *bytes);
    void (*let_go) (void *context);
    /* Whether an object of the tenant's is the same memory; and whether memory is of which the tenant's handles are gone and that is charged. */
    bool (*is_held) (void *context, uint32_t client, uint32_t handle);
    bool (*is_retained) (void *context);
    /* Frees what a call has given, and charges it while others hold it. */
    void (*give_back) (void *context, int gpu, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle);
};

enum rm_posture {
    RM_POSTURE_SHIM, /* unknown things pass, the tenant is trusted not to go round the library */
    RM_POSTURE_GUARD /* unknown things are refused, forbidden ones too */
};

/* The tables for a driver version such as "580.159.04"; NULL when no row knows it. */
const struct rm_abi *rm_abi_find (const char *version);

/* abi, host and context must stay valid until rm_destroy. NULL when there is no memory. */
struct rm *rm_create (const struct rm_abi *abi, enum rm_posture posture, const struct rm_host *host, void *context);
/* A guard's tenant may make objects of graphics. Their contexts stop less often: weights and caps are not exact for it (preempt.c). */
void rm_allow_graphics (struct rm *rm);
/* Refunds everything and gives the memory back. */
void rm_destroy (struct rm *rm);

/* Cheap: can this request be one that rm_begin does something about? (escape byte only; also false for nodes that it
 * ignores, and for what no row knows: a user that refuses by default asks rm_begin about everything) */
bool rm_is_interesting (const struct rm_abi *abi, enum rm_node node, uint32_t request);
/*
 * Is this, on whatever node and whatever rm has kept, a call that a user of RM_POSTURE_SHIM lets through: not
 * interesting, or a control that rm_begin passes without a word? Told by the request, and for RM_CONTROL by its
 * command, for which `head` is read once; NULL: it cannot be read, and nothing is said of controls.
 */
bool rm_shim_passes (const struct rm_abi *abi, uint32_t request, const void *head);
/* Bytes of head that the driver reads for this request, 0 when it would refuse the size (or, UVM: no need of head). */
uint32_t rm_head_size (const struct rm_abi *abi, enum rm_node node, uint32_t request);
/* Whether a guard says success to this request, of a size that the driver takes, and does nothing. */
bool rm_is_answered (const struct rm_abi *abi, uint32_t request);
/* What head points at, once head is there; and what params point at, once params are. */
struct rm_wanted rm_params_wanted (const struct rm_abi *abi, enum rm_node node, uint32_t request, const void *head);
struct rm_wanted rm_list_wanted (const struct rm_abi *abi, enum rm_node node, uint32_t request, const void *head,
                                 const void *params);

/* What a control's params lead to beyond themselves, for a user that makes the call with copies of its own. */
#define RM_EMBEDDED_MAX 3
#define RM_EMBEDDED_BYTES 16384u /* of one piece */
#define RM_NO_DESCRIPTOR UINT32_MAX
struct rm_embedded {
    struct {
        uint32_t at; /* where in the params, or in head, the pointer lies */
        struct rm_wanted wanted; /* size may be 0: the pointer is there, and nothing behind it */
    } pieces[RM_EMBEDDED_MAX];
    unsigned count;
    bool is_in_head;
    uint32_t descriptor_at; /* where a descriptor of the caller lies; RM_NO_DESCRIPTOR: nowhere */
};
/*
 * Whether the params that `head` (NVOS54) names have the size that the driver reads. Some controls read a whole struct
 * whatever size the call names (rmapi_deprecated_control.c; RmGetDeviceFd in escape.c): beyond it they would take for
 * pointers and descriptors what was not replaced. A guard follows nothing of params that do not fit, and its rm_begin
 * refuses the call.
 */
bool rm_params_fit (const struct rm_abi *abi, const void *head);
/* `number`: the control's. false: params of another size, or a piece too long: the call cannot be made. */
bool rm_embedded (const struct rm_abi *abi, uint32_t number, const void *params, uint32_t size, struct rm_embedded *embedded);
/* The same for requests that have pointers in their struct itself (IDLE_CHANNELS). false: as above. */
bool rm_embedded_in_head (uint32_t request, const void *head, struct rm_embedded *embedded);

enum rm_verdict rm_begin (struct rm *rm, struct rm_call *call);
/* Whether rm_end will answer this call, which rm_begin left to the driver, with host->numbers. */
bool rm_tells_numbers (const struct rm *rm, const struct rm_call *call);
/* result: what the ioctl returned, 0 or -errno. head and params hold what the driver wrote. */
void rm_end (struct rm *rm, struct rm_call *call, long result);
/* The outcome stays unknown: what was reserved stays (RM_CONTINUE) or goes back (RM_PERFORM). */
void rm_forget_call (struct rm *rm, struct rm_call *call);

/* The last descriptor of an open file was closed: every client it made is gone, with all that they had. */
void rm_close_file (struct rm *rm, uint64_t file);

/* Managed memory: shared mappings of the UVM node. Charged to `gpu`, or (RM_NO_GPU) to every GPU that the tenant
 * registered with UVM. false: over a quota, nothing was charged. */
bool rm_map_managed (struct rm *rm, int gpu, uint64_t address, uint64_t length);
/* Something else lies at these addresses now, or nothing: charges of managed memory there end, partly if need be. */
void rm_unmap (struct rm *rm, uint64_t address, uint64_t length);
bool rm_has_managed (const struct rm *rm);

/* Scheduling of what the tenant has on a GPU's compute engine. 0, or the first driver status that was not 0, or
 * -errno. */
/* Frozen twice is frozen once. After a thaw that failed, another one tries again. */
long rm_freeze (struct rm *rm, int gpu, bool frozen);
long rm_set_timeslice (struct rm *rm, int gpu, uint32_t microseconds);
/* Calls of the driver that these two have made, ever. */
uint64_t rm_controls (const struct rm *rm);
bool rm_has_object (const struct rm *rm, uint32_t client, uint32_t handle);
/* Whether it is in the tenant's own address space, or is one (space.c). */
bool rm_has_space (const struct rm *rm, uint32_t client, uint32_t handle);
/* Whether its file is held. Else it can be closed without a word, and another container's client made with its handle: nothing of it names an address
 * space, and no call of another client names it. */
void rm_client_held (struct rm *rm, uint32_t client, bool is_held);
/* Whether it is a client of this file that has compute channels or groups. */
bool rm_is_scheduled (const struct rm *rm, uint64_t file, uint32_t client);
/* The open file that the client was made on; 0: it is not known. */
uint64_t rm_file_of (const struct rm *rm, uint32_t client);
/* The file that the client was entered with, whichever it was moved to since; 0: it is not known. */
uint64_t rm_maker_of (const struct rm *rm, uint32_t client);
/* Clients that are, or were when they were entered, of this file: up to `capacity`; returns how many there are. */
size_t rm_clients_of (const struct rm *rm, uint64_t file, uint32_t *clients, size_t capacity);
/* Whether a continued call of this file's came to what was not found: a client perhaps, whatever the call was to make. */
bool rm_expects_client (const struct rm *rm, uint64_t file);
/* Of the clients that were made on this file the driver has no memory any more; of those that are on it, none. */
void rm_drop_memory (struct rm *rm, uint64_t file);
void rm_drop_clients (struct rm *rm, uint64_t file);
/* It is another file's from now on: that of a process which has it from one that ended. */
void rm_move_client (struct rm *rm, uint32_t client, uint64_t file);
/* Compute groups with at least one channel that is set up. */
unsigned rm_groups (const struct rm *rm, int gpu);

/* A compute channel, for a scheduler outside of the process (handles in the driver's sense). */
struct rm_channel {
    uint64_t file;
    uint32_t client, subdevice, group, channel;
    int32_t gpu;
};
/* Up to `capacity` of the tenant's compute channels; returns how many there are. */
unsigned rm_channels (const struct rm *rm, struct rm_channel *channels, unsigned capacity);

/* The least that the physical allocator hands out, in bytes; the driver reports pages of 4 KiB (seen on an H100, 580.159.04: 16384
 * pieces of 4 KiB took 1 GiB, and were reported as 64 MiB). */
#define RM_GRANULE ((uint64_t) 64 << 10)
#define RM_PAGE ((uint64_t) 4 << 10)

/* A piece of video memory, by one of its handles. */
struct rm_piece {
    uint64_t bytes;
    uint32_t client, handle;
    int32_t gpu;
    bool is_below_subdevice; /* otherwise below a device */
    bool is_exported; /* by a descriptor, which may be open */
    bool is_foreign; /* made by another tenant or the host, which may have it */
};
/* Pieces that are given back when this object is freed: those with no handle elsewhere, nor an export to a known file. Up to
 * `capacity`; returns how many there are. */
size_t rm_pieces (const struct rm *rm, uint32_t client, uint32_t handle, struct rm_piece *pieces, size_t capacity);
/* Whether all that a call did is to allocate or free one piece of video memory, and of how many bytes. After the call, before rm_end. */
enum rm_piece_call { RM_NO_PIECE, RM_ALLOCATES_PIECE, RM_FREES_PIECE };
enum rm_piece_call rm_piece_call_of (const struct rm *rm, const struct rm_call *call, uint64_t *bytes);
/* The process of this file has ended, and what it had is about to go: its handles and exports are none elsewhere any more. */
void rm_file_ended (struct rm *rm, uint64_t file);
/* The same of all clients of a file. */
size_t rm_file_pieces (const struct rm *rm, uint64_t file, struct rm_piece *pieces, size_t capacity);

/* Bytes of a GPU that the driver should report for the clients that were entered with this file (GET_PID_INFO: private, owned and duplicated), if the
 * ledger has all that they hold. */
uint64_t rm_reported (const struct rm *rm, uint64_t file, int gpu);
/* Those of them of which that is more than nothing: up to `capacity`; returns how many there are. */
size_t rm_reported_clients (const struct rm *rm, uint64_t file, uint32_t *clients, size_t capacity);
/* The driver does not have the client any more: it reports nothing of it. What was charged for it stays charged. */
void rm_client_gone (struct rm *rm, uint32_t client);
/* Continued allocations of which no object was found. Each may have become a channel group; the driver reports the buffers of its
 * context (so many bytes of one GPU) for no process. */
uint64_t rm_unconfirmed (const struct rm *rm);
void rm_forget_unconfirmed (struct rm *rm);
/* Such an allocation, by call->own.outcome after rm_forget_call: its thread came back from it, or the kernel did not make it. Until then it can have
 * made anything at any time. */
void rm_outcome_over (struct rm *rm, uint64_t outcome);
void rm_outcome_none (struct rm *rm, uint64_t outcome);
/* The GPU of the channel that the call, of which nothing is done yet, resets; -1: it resets none. What the driver does with a channel that is stopped it
 * does not say: not while one has to stay off. */
int rm_reset_of (const struct rm *rm, const struct rm_call *call);
/* Whether rm_begin would refuse this call because it starts a group in which such an allocation may have made a channel. LATER: it may not, once
 * those that are not over, or of which nothing was found yet, have shown what they made. */
enum rm_start { RM_START_NOW, RM_START_LATER, RM_START_NEVER } rm_start_of (struct rm *rm, const struct rm_call *call);
#define RM_CONTEXT_BYTES ((uint64_t) 9 << 19)
/* How often that fell, of whichever GPU: what the driver said before is more than it says now. */
uint64_t rm_reported_falls (const struct rm *rm);

/* Totals for tests and status. */
struct rm_totals {
    uint64_t clients, objects, memories; /* memories: distinct pieces, however many handles */
    uint64_t bytes[RM_MAX_GPUS]; /* charged, managed memory included */
};
void rm_totals (const struct rm *rm, struct rm_totals *totals);

/* Words for logs: "over-quota", "unknown-class", ... */
const char *rm_reason_word (enum rm_reason reason);

#endif
