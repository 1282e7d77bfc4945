/*
 * Sequences of what hostile programs can do, on the guard's own code and a simulated manager in one process. After every step the
 * manager's own state is compared with what the guard charges and schedules (sequence_check.c).
 *
 * A step names processes, descriptors, clients and handles by small numbers, so that a sequence remains a sequence when steps are
 * taken out of it. A call that the guard continues may become another one: the step has both, and how many steps later the kernel
 * reads the second.
 */
#ifndef NVC_TEST_SEQUENCE_H
#define NVC_TEST_SEQUENCE_H

#include "sequence_kernel.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define STEP_WORDS 7u
#define STEPS_MAX 200u
#define TENANTS 3u
#define NEIGHBOUR 2u /* a tenant that does nothing but what it may */
#define CLIENTS 10u
#define HANDLES 16u
#define HANDLE_OF_CLIENT 16u /* as a parent: the client itself */
#define RANGES 4u
#define SIZES 6u
#define QUOTA (UINT64_C (1) << 30)
#define FIRST_HANDLE 0x5c000000u
#define HEAD_SIZE 256u
#define ROOM_SIZE 4096u

struct action {
    uint8_t kind; /* enum action_kind */
    uint8_t words[STEP_WORDS];
};

struct step {
    struct action action;
    uint8_t delay; /* not 0: a call that the guard continues becomes `other`, so many steps later; 1: at once */
    struct action other;
};

struct sequence {
    struct step steps[STEPS_MAX];
    unsigned count;
};

/* Letters of arguments: sequence_text.c. */
enum action_kind {
    START,
    OPEN,
    CLOSE,
    PASS,
    FORK,
    EXECUTE,
    EXIT,
    CLIENT,
    DEVICE,
    SUBDEVICE,
    SPACE,
    MEMORY,
    SYSTEM,
    GROUP,
    CHANNEL,
    COMPUTE,
    CONTEXT,
    SCHEDULE,
    SLICE,
    FREE,
    DUPLICATE,
    SHARE,
    EXPORT,
    IMPORT,
    HEAP,
    HEAP_FREE,
    OS_MEMORY,
    OBJECT,
    BATCH,
    UVM,
    UVM_SPACE,
    RANGE,
    MAP,
    UNMAP,
    RANGE_FREE,
    MANAGED,
    UNMANAGED,
    WAIT,
    FREEZE,
    ACTIONS
};
struct action_row {
    const char *name;
    const char *words; /* a letter for each argument */
    uint8_t weight;    /* how often it is chosen */
};
extern const struct action_row action_rows[ACTIONS];
extern const uint64_t action_sizes[SIZES];
extern const uint32_t action_waits[5]; /* ms */

/* What was found: one bit each. */
enum finding {
    FOUND_MEMORY = 1,    /* a tenant holds more than it is charged, by the sizes that the driver tells */
    FOUND_SUM = 2,       /* all tenants together do */
    FOUND_ZOMBIE = 4,    /* by managed memory whose mapping is gone */
    FOUND_UNIT = 8,      /* by what the physical allocator takes for small pieces */
    FOUND_CONTEXT = 16,  /* by channel groups' context buffers */
    FOUND_TABLES = 32,   /* by page tables */
    FOUND_UNLISTED = 64, /* a channel that can compute is not in the scheduler's list */
    FOUND_UNWEIGHED = 128, /* a channel without a group has not the tenant's timeslice */
    FOUND_SLICE = 256,     /* a group has not */
    FOUND_RUNNING = 512,   /* a channel of a frozen tenant can run */
    FOUND_STOPPED = 1024,  /* one of a tenant that is not frozen cannot */
    FOUND_NEIGHBOUR = 2048, /* the tenant that does nothing had to wait, or was refused */
    FOUND_KERNEL = 4096,    /* a kernel runs on to its end, whenever its group is to stop */
};
#define FINDINGS 13u
#define FOUND_ALL 8191u
extern const char *const finding_words[FINDINGS];

/* sequence_text.c */
void step_print (const struct step *step, FILE *to);
/* One line. false: it is no step. */
bool step_parse (const char *line, struct step *step);

/* sequence_world.c */
struct world_client {
    uint32_t handle; /* 0: not made */
    bool is_shared;
};
struct world {
    struct world_client clients[CLIENTS];
    /* Bytes that a continued call took, and that no look has been able to see yet; the last: of all tenants. */
    uint64_t unseen[TENANTS + 1];
    uint32_t last_status;
    bool is_neighbour_delayed; /* or refused */
    unsigned step; /* number of the current one */
};
extern struct world world;
struct tenant;
struct tenant *world_tenant (unsigned number);
void world_begin (uint64_t seed);
void world_end (void);
/* Time passes, and the guards do what is due; processes that were killed end. */
void world_advance (uint64_t nanoseconds);
/* What follows every step: continued calls that are due are made, ends of processes are reported. */
void world_after_step (void);
/* A call of a process, announced if the filter would; 0 or -errno. `other`: the struct that the kernel reads if the guard
 * continues the call, delay steps later; params: behind both of them, as long as the arena's. */
int world_ioctl (struct task *task, unsigned slot, uint32_t request, void *argument, const struct action *other, unsigned delay);
int world_mmap (struct task *task, unsigned slot, uint64_t bytes);
uint64_t world_charged (unsigned tenant);
/* Counters of what was refused, and which processes live. */
void world_print (unsigned tenant);
void world_plan (unsigned tenant);
void world_freeze (unsigned tenant, bool is_on);

/* sequence_act.c */
void step_run (const struct step *step);

/* sequence_call.c. The words of a call in their order: process, descriptor, client, parent or object, object, another thing. */
enum { P, D, C, O, H, Z };
uint32_t action_client (const struct action *action, unsigned word);
uint32_t action_handle (const struct action *action, unsigned word);
/* ALLOC; its request. */
uint32_t action_alloc (const struct action *action, void *to, uint32_t parent, uint32_t handle, uint32_t class, void *params);
/* The struct of an action that is a call; its request, 0: it is none. `room`: for its params. */
uint32_t action_fill (const struct task *task, const struct action *action, void *head, void *room);
/* After the kernel made it. */
void action_made (const struct action *action, const void *head);

/* sequence_check.c: findings after the step; each one's first case is described. */
unsigned sequence_check (char *text, size_t size);
/* Bytes of a piece, by one of its handles; 0: there is none. */
uint64_t check_piece (uint32_t client, uint32_t handle);
/* Bytes of video memory that a tenant's processes, or its guard for it, hold; TENANTS: all pieces, each once. */
uint64_t check_held (unsigned tenant);

/* sequence_choose.c */
struct chooser {
    uint64_t random;
    uint8_t weights[ACTIONS];
    unsigned races; /* one call in so many */
};
/* without: kinds of steps that do not occur, with commas; NULL: none. */
void chooser_begin (struct chooser *chooser, uint64_t seed, const char *without);
/* Whether a word is in a list with commas. */
bool is_listed (const char *list, const char *word);
void step_choose (struct chooser *chooser, unsigned number, struct step *step);

#endif
