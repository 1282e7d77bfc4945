/* What a tenant's books are made of in their file. Private to native/guard. */
#ifndef NVC_GUARD_BOOKS_H
#define NVC_GUARD_BOOKS_H

#include "tenant.h"

struct kept_process {
    uint64_t serial; /* 0: nobody */
    uint64_t start_time;
    int32_t pid;
    uint32_t client_count;
    struct known_client clients[PROCESS_CLIENTS];
};

/* How far the call in hand came. RECEIVED: nothing was done. PERFORMING: the driver may have done it, the books may
 * know. PERFORMED: it has, and the head is as it answered it. ANSWERED: both did; its thread has the answer unless the
 * notification still waits. */
enum phase { PHASE_NONE, PHASE_RECEIVED, PHASE_PERFORMING, PHASE_PERFORMED, PHASE_ANSWERED };
/* Bytes of params of what the driver does once (repeat.c): NV503C_CTRL_REGISTER_VIDMEM_PARAMS. */
#define REPEAT_PARAMS 32u
#define BOOKS_AGAIN 4u
struct kept_call {
    uint64_t id;
    uint64_t arguments[3];
    uint64_t serial; /* of its process */
    int32_t thread;
    uint32_t phase, head_size;
    uint32_t was_there; /* the books had the object before */
    uint8_t head[REPLAY_HEAD];
    uint32_t params_size, spare;
    uint8_t params[REPEAT_PARAMS]; /* as its thread wrote them */
};

struct books {
    uint64_t magic, layout;
    uint64_t address; /* where the records lay */
    uint64_t used;    /* bytes of records */
    uint32_t is_incomplete, spare;
    struct kept_call call;
    /* Of guards that were killed, and not made again yet: the oldest first. PHASE_NONE: a free place. */
    struct kept_call again[BOOKS_AGAIN];
    struct kept_process processes[TENANT_PROCESSES];
};

struct resumed {
    struct kept_call call;
    int listener; /* that its thread waits at; -1: it does not wait */
};

int books_open (struct tenant *tenant, int file);
/* Enters what `file` of another guard says, and its call in hand. -errno: nothing that can be believed. */
int books_restore (struct tenant *tenant, int file, struct kept_call *call);

/* The object that an ALLOC, DUP_OBJECT, FREE or VID_HEAP_CONTROL is about. */
void call_names (const struct kept_call *call, uint32_t *client, uint32_t *handle);
/* The call of another guard is in hand again. */
void books_enter (struct tenant *tenant, const struct kept_call *call);
/* resume.c: the call in hand of a guard that is gone is to be finished by the tenant's thread, through one of these listeners. false:
 * there is no memory. */
bool resume_begin (struct tenant *tenant, const struct kept_call *call, const int *listeners, uint32_t count);
/* The FREE in hand is done: its thread is told so. */
bool resume_answer (struct tenant *tenant, const struct kept_call *call, int listener);

/* repeat.c: the params of a call that is about to be made; what an earlier guard had still to hear of; the call in hand
 * of one that is gone, which was not answered. */
void repeat_note (struct kept_call *kept, const struct rm_call *call);
void repeat_restore (struct tenant *tenant, const struct books *before);
void repeat_resume (struct tenant *tenant, const struct kept_call *call);

#endif
