/*
 * What a guard's continued ALLOCs have come to. The kernel reads such a call again, and by then it can be another one: also one that makes a
 * channel below a group that the ledger has, which would compute with the group and not be stopped with it. No question lists a group's
 * channels. So a group is started only if each such call was over before the group was made, or made something else: an object, as it was
 * said to make, that was not there when it began.
 *
 * Which call made an object nothing tells. One of which nothing was found can have made what another one was said to make, if that began before
 * it was over; and the other one, then, the channel. Times are numbers of rm->serial.
 */
#include "nv_params.h"
#include "state.h"

#define NEVER UINT64_MAX

static uint64_t end_of (const struct named *named) { return named->is_pending ? NEVER : named->over; }

/* Whether the call can have made what was found of the other one: that was not there when the other one began. Of a client no question tells since
 * when a file has it. */
static bool reaches (uint64_t begun, uint64_t end, const struct named *other)
{
    return other->found > begun && (other->client == 0 ? end != 0 : other->begun_least <= end);
}

/* Which ones can have made a channel: those of which nothing was found, what they can have made instead, and so on. The serial until which. */
static uint64_t mark (const struct rm *rm, bool can[NAMED_MAX])
{
    uint64_t until = rm->doubt_until;
    bool has_changed = true;

    for (unsigned i = 0; i < NAMED_MAX; i++) {
        const struct named *named = &rm->named[i];

        can[i] = named->is_open || (named->begun != 0 && reaches (0, rm->doubt_until, named));
        if (can[i] && end_of (named) > until)
            until = end_of (named);
    }
    while (until != 0 && has_changed) {
        has_changed = false;
        for (unsigned i = 0; i < NAMED_MAX; i++)
            for (unsigned k = 0; can[i] && k < NAMED_MAX; k++) {
                const struct named *other = &rm->named[k];

                if (can[k] || other->begun == 0 || !reaches (rm->named[i].begun, end_of (&rm->named[i]), other))
                    continue;
                can[k] = has_changed = true;
                if (end_of (other) > until)
                    until = end_of (other);
            }
    }
    return until;
}

uint64_t outcome_doubt (const struct rm *rm)
{
    bool can[NAMED_MAX];

    return mark (rm, can);
}

/* Of the group that it is, or is in. */
static bool is_later (const struct object *object, uint64_t doubt)
{
    const struct object *group = object->kind == CLASS_CHANNEL ? schedule_group_of (object) : NULL;

    return doubt == 0 || (group != NULL ? group->made : object->made) > doubt;
}

bool outcome_allows (const struct rm *rm, const struct object *object) { return is_later (object, outcome_doubt (rm)); }

/* Of clients that make no other call meanwhile: a process that CUDA restored waits until the container's others are, after such a call. Asked again as
 * long as the start waits: the client's file may have to be found first (reach.c). */
static void look_at_others (struct rm *rm, const struct rm_call *call)
{
    for (unsigned i = 0; rm->unconfirmed != 0 && i < NAMED_MAX; i++)
        if (rm->named[i].is_open && !rm->named[i].is_pending && rm->named[i].client != 0)
            evidence_of (rm, call, rm->named[i].client, rm->named[i].handle);
}

enum rm_start rm_start_of (struct rm *rm, const struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;
    const struct object *object;

    if (!is_guard (rm) || rm_request_number (call->request) != NV_ESC_RM_CONTROL || !control_is_start (head->cmd))
        return RM_START_NOW;
    object = tracker_find (rm, head->hClient, head->hObject);
    if (object == NULL || outcome_allows (rm, object))
        return RM_START_NOW;
    outcome_look (rm, call);
    look_at_others (rm, call);
    if (outcome_allows (rm, object))
        return RM_START_NOW;
    return is_later (object, rm->doubt_until) ? RM_START_LATER : RM_START_NEVER;
}

/* What is reached by way of it is reached without it from now on. */
static void bypass (struct rm *rm, const struct named *named)
{
    for (unsigned i = 0; i < NAMED_MAX; i++) {
        struct named *other = &rm->named[i];

        if (other == named || other->begun == 0 || other->is_open || !reaches (named->begun, named->over, other))
            continue;
        other->begun_least = named->begun_least < other->begun_least ? named->begun_least : other->begun_least;
        other->found = named->found > other->found ? named->found : other->found;
    }
}

/* For one more call: in place of one that cannot have made a channel; else of the one that was over first. */
static struct named *place (struct rm *rm)
{
    struct named *first = &rm->named[0];
    uint64_t least_open = NEVER;
    bool can[NAMED_MAX];

    (void) mark (rm, can);
    for (unsigned i = 0; i < NAMED_MAX; i++) {
        struct named *named = &rm->named[i];

        if (!can[i])
            return named;
        if (end_of (named) < end_of (first))
            first = named;
        if (named->is_open && end_of (named) < least_open)
            least_open = end_of (named);
    }
    if (!first->is_open && !first->is_pending && rm->doubt_until == 0 && first->over <= least_open)
        bypass (rm, first);
    else if (end_of (first) > rm->doubt_until)
        rm->doubt_until = end_of (first);
    rm->has_lost_named |= first->is_open;
    return first;
}

/* The thread may not have come as far yet at the first. */
#define TRIES 2u

void outcome_expect (struct rm *rm, const struct rm_call *call)
{
    const NVOS21_PARAMETERS *head = call->head;
    bool is_client = call->own.class != NULL && call->own.class->kind == CLASS_CLIENT;
    struct file *file = tracker_file (rm, call->file, true);

    if (file != NULL && file->continued == 0)
        file->continued = call->own.outcome;
    rm->unconfirmed++;
    *place (rm) = (struct named) {
        .file = is_client ? call->file : 0,
        .client = is_client ? 0 : head->hRoot,
        .handle = is_client ? call->descriptor : head->hObjectNew,
        .class = is_client ? 0 : head->hClass,
        .tries = is_client ? 0 : TRIES,
        .is_open = true,
        .is_pending = true,
        .maker = call->file,
        .begun = call->own.outcome,
        .begun_least = call->own.outcome,
    };
}

static void confirm (struct rm *rm)
{
    rm->unconfirmed -= rm->unconfirmed != 0;
    if (rm->found_contexts > rm->unconfirmed)
        rm->found_contexts = rm->unconfirmed;
}

void outcome_found (struct rm *rm, uint64_t file, uint32_t client, uint32_t handle, uint32_t class)
{
    for (unsigned i = 0; i < NAMED_MAX; i++) {
        struct named *named = &rm->named[i];

        if (!named->is_open || named->file != file || named->client != client || named->handle != handle || named->class != class)
            continue;
        named->is_open = false;
        named->found = ++rm->serial;
        confirm (rm);
        return;
    }
}

/* The first process that calls by a client need not have made it: others may have its file. Of two processes with such calls at the same time nothing tells which
 * one made which client. */
void outcome_found_client (struct rm *rm, struct client *client, uint64_t file, uint32_t descriptor)
{
    uint64_t now = ++rm->serial;

    for (unsigned i = 0; i < NAMED_MAX; i++) {
        struct named *named = &rm->named[i];

        if (!named->is_open)
            continue;
        if (named->maker != file)
            named->exchanged = client->doubt = now;
        else if (named->exchanged != 0)
            client->doubt = now;
    }
    outcome_found (rm, file, 0, descriptor, 0);
}

void outcome_look (struct rm *rm, const struct rm_call *call)
{
    uint32_t client = get32 (call->head, 0); /* hRoot or hClient of every such struct */

    for (unsigned i = 0; rm->unconfirmed != 0 && i < NAMED_MAX; i++) {
        struct named *named = &rm->named[i];

        if (!named->is_open || named->tries == 0 || named->client != client)
            continue;
        named->tries--;
        evidence_of (rm, call, client, named->handle);
    }
}

static struct named *find (struct rm *rm, uint64_t outcome)
{
    for (unsigned i = 0; outcome != 0 && i < NAMED_MAX; i++)
        if (rm->named[i].begun == outcome)
            return &rm->named[i];
    return NULL;
}

void rm_outcome_over (struct rm *rm, uint64_t outcome)
{
    struct named *named = find (rm, outcome);

    if (named == NULL || !named->is_pending)
        return;
    named->is_pending = false;
    named->over = ++rm->serial;
}

void rm_outcome_none (struct rm *rm, uint64_t outcome)
{
    struct named *named = find (rm, outcome);

    if (named == NULL || !named->is_open)
        return;
    confirm (rm);
    *named = (struct named) { 0 };
}

bool rm_expects_client (const struct rm *rm, uint64_t name)
{
    const struct file *file = (const struct file *) table_find (&rm->files, name);
    uint64_t continued = file != NULL && file->continued != 0 ? file->continued : NEVER;
    bool expects = rm->has_lost_named;

    for (unsigned i = 0; i < NAMED_MAX; i++)
        expects |= rm->named[i].is_open && (rm->named[i].maker == name || rm->named[i].exchanged > continued);
    expects &= rm->unconfirmed != 0;
    for (const struct client *client = rm->clients; client != NULL; client = client->after)
        expects |= client->doubt > continued;
    return expects;
}

uint64_t rm_unconfirmed (const struct rm *rm) { return rm->unconfirmed - rm->found_contexts; }

void rm_forget_unconfirmed (struct rm *rm)
{
    rm->unconfirmed = rm->found_contexts = rm->doubt_until = 0;
    __builtin_memset (rm->named, 0, sizeof (rm->named));
}
