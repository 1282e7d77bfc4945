/*
 * Files of clients that have memory, compute channels or address spaces are held, so that the scheduler reaches them (reach.c), no other
 * client gets their handles (rm/space.c), and for this: memory of a process that ends without freeing it goes with its open file, and UVM
 * may still have it, for UVM's file can live on in another process. So the guard holds a copy of the file until it has duplicates of what
 * the file's clients have. Then the copy is closed; and when the driver says that the clients are gone, another holder of a piece shows
 * as ever (retained.c).
 *
 * Runs in the tenant's thread, under its lock, but for close_all, which is a thread of its own.
 */
#include "dup_probe.h"
#include "edges.h"
#include "fair.h"
#include "guard.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "reach.h"
#include "retained.h"
#include "tenant.h"

#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

struct closing {
    int file;
    uint32_t client; /* freed before it, if another process that has the file could use it; 0: not */
    bool is_counted; /* for the tenant (fair.c) */
};

/* Not under any lock: the last close of a file can take a tenth of a second, in which the driver gives back all that its
 * clients have. */
static void *close_all (void *argument)
{
    struct guard *guard = argument;
    struct closing closing;

    prctl (PR_SET_NAME, "nvc-guard-close");
    for (;;) {
        ssize_t size = read (guard->closing[0], &closing, sizeof (closing));
        uint64_t begun = fair_cpu ();

        if (size < 0 && errno == EINTR)
            continue;
        if (size != sizeof (closing))
            break;
        if (closing.client != 0) {
            NVOS00_PARAMETERS head = { .hRoot = closing.client, .hObjectOld = closing.client };

            (void) ioctl (closing.file, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
        }
        close (closing.file);
        if (closing.is_counted)
            fair_closed (guard, fair_cpu () - begun);
    }
    return NULL;
}

bool closer_start (struct guard *guard)
{
    if (pipe2 (guard->closing, O_CLOEXEC) == 0) {
        if (pthread_create (&guard->closer, NULL, close_all, guard) == 0)
            return true;
        close (guard->closing[0]);
        close (guard->closing[1]);
    }
    guard->closing[0] = guard->closing[1] = -1;
    return false;
}

void closer_stop (struct guard *guard)
{
    if (guard->closing[1] < 0)
        return;
    close (guard->closing[1]);
    pthread_join (guard->closer, NULL);
    close (guard->closing[0]);
}

static void close_later (const struct guard *guard, struct closing closing)
{
    if (write (guard->closing[1], &closing, sizeof (closing)) != sizeof (closing))
        close (closing.file);
}

void closer_add (const struct guard *guard, int file) { close_later (guard, (struct closing) { .file = file }); }

void closer_free_client (const struct guard *guard, int file, uint32_t client)
{
    close_later (guard, (struct closing) { .file = file, .client = client, .is_counted = true });
}

void held_file_close (struct tenant *tenant, int file)
{
    close_later (tenant->guard, (struct closing) { .file = file, .is_counted = true });
}

static void drop (struct tenant *tenant, unsigned place, uint32_t client)
{
    struct retained *retained = &tenant->retained;

    edges_forget (&tenant->edges, retained->files[place].client);
    rm_client_held (tenant->rm, retained->files[place].client, false);
    close_later (tenant->guard, (struct closing) { retained->files[place].file, client, .is_counted = true });
    retained->files[place] = retained->files[--retained->file_count];
}

static bool is_scheduled (const struct tenant *tenant, uint32_t client)
{
    return rm_is_scheduled (tenant->rm, rm_file_of (tenant->rm, client), client);
}

int held_file_of (const struct tenant *tenant, uint32_t client)
{
    const struct retained *retained = &tenant->retained;

    for (unsigned i = 0; i < retained->file_count; i++)
        if (retained->files[i].client == client)
            return retained->files[i].file;
    return -1;
}

/* Duplicates what is in the list if the sampling decision says so, which is one for all, as far as files of its clients are held. */
static void duplicate (struct tenant *tenant, uint64_t serial, const struct rm_piece *pieces, size_t count)
{
    struct retained *retained = &tenant->retained;
    unsigned questions = RM_COMPARED_MAX;

    if (count == 0 || !retained_is_sampled (retained, retained_weight (pieces, count)))
        return;
    (void) guard_dup_probe (tenant->guard);
    pthread_mutex_lock (&tenant->guard->probe_lock);
    for (size_t i = 0; i < count; i++) {
        int file = held_file_of (tenant, pieces[i].client);
        struct retained_piece *entry;

        if (file < 0)
            continue;
        entry = retained_duplicate (tenant, pieces + i, file, QUARANTINE_CLIENT);
        if (entry == NULL)
            continue;
        retained_forget_dormant (tenant, entry, serial, &questions);
        entry->serial = serial;
        entry->next = retained->dormant;
        retained->dormant = entry;
    }
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}

/* Whether the current call makes an object, or a further handle of one. */
static bool is_making (const struct tenant *tenant, const struct rm_call *call)
{
    const NVOS32_PARAMETERS *heap = (const void *) tenant->head;
    const NVOS54_PARAMETERS *control = (const void *) tenant->head;

    switch (rm_request_number (call->request)) {
    case NV_ESC_RM_ALLOC:
    case NV_ESC_RM_DUP_OBJECT:
        return true;
    case NV_ESC_RM_VID_HEAP_CONTROL:
        return heap->function != NVOS32_FUNCTION_FREE;
    case NV_ESC_RM_CONTROL:
        return control->cmd == NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD ||
               control->cmd == NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD;
    default:
        return false;
    }
}

/* Whether the current call may have given its client a handle to memory, a compute channel or an address space. */
static bool is_reason (const struct tenant *tenant, const struct rm_call *call)
{
    const NVOS64_PARAMETERS *alloc = (const void *) tenant->head; /* the short form begins as the long one */
    const NVOS32_PARAMETERS *heap = (const void *) tenant->head;

    /* Of channels that were found, whatever the call is about. */
    if (tenant->are_edges_old && is_scheduled (tenant, get32 (tenant->head, 0)))
        return true;
    switch (rm_request_number (call->request)) {
    case NV_ESC_RM_ALLOC:
        return rm_pieces (tenant->rm, alloc->hRoot, alloc->hObjectNew, NULL, 0) != 0 || is_scheduled (tenant, alloc->hRoot) ||
               rm_has_space (tenant->rm, alloc->hRoot, alloc->hObjectNew);
    case NV_ESC_RM_VID_HEAP_CONTROL:
        return rm_pieces (tenant->rm, heap->hRoot, heap->data.AllocSize.hMemory, NULL, 0) != 0 ||
               rm_has_space (tenant->rm, heap->hRoot, heap->data.AllocSize.hMemory);
    default:
        return is_making (tenant, call);
    }
}

/* The place of the oldest client without channels, which would run on; HELD_FILES: there is none. */
static unsigned oldest_idle (const struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->retained.file_count; i++)
        if (!is_scheduled (tenant, tenant->retained.files[i].client))
            return i;
    return HELD_FILES;
}

bool held_files_have_room (const struct tenant *tenant, const struct rm_call *call)
{
    return call->node != RM_NODE_CONTROL || tenant->retained.file_count < HELD_FILES || !is_making (tenant, call) ||
           held_file_of (tenant, get32 (tenant->head, 0)) >= 0 || oldest_idle (tenant) != HELD_FILES;
}

/* More clients than any program has: as if the process of this one had ended. */
static void make_room (struct tenant *tenant, unsigned place)
{
    struct retained *retained = &tenant->retained;
    struct rm_piece *pieces;
    size_t count;

    count = rm_pieces (tenant->rm, retained->files[place].client, retained->files[place].client, NULL, 0);
    pieces = tenant_allocate (tenant, count + 1, sizeof (*pieces));
    duplicate (tenant, retained->files[place].serial, pieces,
               rm_pieces (tenant->rm, retained->files[place].client, retained->files[place].client, pieces, count));
    free (pieces);
    edges_forget (&tenant->edges, retained->files[place].client);
    rm_client_held (tenant->rm, retained->files[place].client, false);
    held_file_close (tenant, retained->files[place].file);
    retained->file_count--;
    memmove (retained->files + place, retained->files + place + 1, (retained->file_count - place) * sizeof (retained->files[0]));
}

void held_file_add (struct tenant *tenant, uint32_t client, int file, uint64_t serial)
{
    struct retained *retained = &tenant->retained;
    const struct process *owner;
    unsigned place = retained->file_count == HELD_FILES ? oldest_idle (tenant) : 0;

    if (held_file_of (tenant, client) >= 0 || place == HELD_FILES) {
        close (file);
        return;
    }
    if (retained->file_count == HELD_FILES)
        make_room (tenant, place);
    owner = process_by_serial (tenant, rm_file_of (tenant->rm, client));
    retained->files[retained->file_count++] = (struct held_file) { client, file,
                                                                   owner != NULL && !owner->dead ? owner->serial : serial };
    rm_client_held (tenant->rm, client, true);
}

void held_files_after_call (struct tenant *tenant, const struct rm_call *call)
{
    uint32_t client = get32 (tenant->head, 0); /* the first field of every such struct */
    int file = -1;

    if (call->node != RM_NODE_CONTROL || held_file_of (tenant, client) >= 0 || !is_reason (tenant, call))
        return;
    /* A call on another open file of the node names the client too, and is refused by the driver. */
    if (reach_is_file_of (tenant->copy, client))
        file = fcntl (tenant->copy, F_DUPFD_CLOEXEC, 0);
    if (file >= 0)
        held_file_add (tenant, client, file, tenant->current->serial);
    if (held_file_of (tenant, client) < 0)
        rm_client_held (tenant->rm, client, false);
}

void held_file_release (struct tenant *tenant, uint32_t client)
{
    for (unsigned i = tenant->retained.file_count; i-- > 0;)
        if (tenant->retained.files[i].client == client)
            drop (tenant, i, 0);
}

void held_files_process_ended (struct tenant *tenant, uint64_t serial)
{
    struct retained *retained = &tenant->retained;
    size_t count;
    struct rm_piece *pieces;

    if (retained->file_count == 0)
        return;
    count = rm_file_pieces (tenant->rm, serial, NULL, 0);
    pieces = tenant_allocate (tenant, count + 1, sizeof (*pieces));
    if (count > 0)
        duplicate (tenant, serial, pieces, rm_file_pieces (tenant->rm, serial, pieces, count));
    free (pieces);
    /* Its channels would go on, and nothing could stop them, as long as a child of its has the file. */
    for (unsigned i = retained->file_count; i-- > 0;)
        if (retained->files[i].serial == serial)
            drop (tenant, i, is_scheduled (tenant, retained->files[i].client) ? retained->files[i].client : 0);
}

/* Channels on its clients, that another process has made since it ended: rm forgets them with it. */
static void end_channels (struct tenant *tenant, uint64_t serial)
{
    for (unsigned i = tenant->retained.file_count; i-- > 0;) {
        uint32_t client = tenant->retained.files[i].client;

        if (rm_file_of (tenant->rm, client) == serial && is_scheduled (tenant, client))
            drop (tenant, i, client);
    }
}

void held_files_process_released (struct tenant *tenant, uint64_t serial)
{
    struct retained_piece *mine = NULL;

    end_channels (tenant, serial);
    for (struct retained_piece **at = &tenant->retained.dormant; *at != NULL;) {
        struct retained_piece *entry = *at;

        if (entry->serial != serial) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        entry->next = mine;
        mine = entry;
    }
    if (mine == NULL)
        return;
    pthread_mutex_lock (&tenant->guard->probe_lock);
    retained_examine_all (tenant, mine);
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}
