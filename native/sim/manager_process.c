/* The processes that use a GPU, and their memory on it: by allocating process, with pids of the caller's pid namespace.
 * Runs as manager.c, under manager->lock. */
#include "manager_state.h"

#include <stdlib.h>
#include <string.h>

#define PIDS_MAX 950
#define INFO_MAX 200
#define INFO_SIZE 72

/* Whether any object of the client matches, except its root. */
static bool any_object (const struct client *client, bool (*matches) (const struct object *object, const void *context),
                        const void *context)
{
    for (uint32_t i = 0; i < client->table_size; i++) {
        for (const struct object *object = client->table[i]; object != NULL; object = object->hashed) {
            if (matches (object, context))
                return true;
        }
    }
    return false;
}

struct wanted {
    uint32_t class_number, gpu;
};

static bool is_wanted (const struct object *object, const void *context)
{
    const struct wanted *wanted = context;

    return object->class_number == wanted->class_number && object->gpu == wanted->gpu;
}

/* Processes that have an object of a class on this GPU. */
enum status control_pids (struct request *request, struct object *object)
{
    uint8_t *params = request->params;
    struct wanted wanted = { .class_number = get32 (params, 4), .gpu = object->gpu };
    uint32_t count = 0;

    request->manager->questions.pids++;
    if (get32 (params, 0) > 1)
        return STATUS_INVALID_ARGUMENT;
    for (struct client *client = request->manager->clients; client != NULL && count < PIDS_MAX; client = client->next) {
        bool known = get32 (params, 0) == 1; /* virtual machines: none */
        uint32_t process;

        if (known || !any_object (client, is_wanted, &wanted))
            continue;
        process = request->caller->show (request->caller->context, client->process);
        for (uint32_t i = 0; i < count && !known; i++)
            known = get32 (params, 12 + 4 * (size_t) i) == process;
        if (process == 0 || known)
            continue;
        put32 (params, 12 + 4 * (size_t) count, process);
        count++;
    }
    put32 (params, 8, count);
    request->params_changed = true;
    return STATUS_OK;
}

/* memPrivate, memSharedOwned, memSharedDuped (gpu_rmapi.c, _gpuCollectMemInfo): a piece with one holder is private; of
 * a piece with more the owner's is owned, and all others are duplicates. */
struct usage {
    uint64_t private, owned, duplicated;
};

static void count (const struct client *client, uint32_t gpu, struct usage *usage)
{
    for (uint32_t i = 0; i < client->table_size; i++) {
        for (const struct object *object = client->table[i]; object != NULL; object = object->hashed) {
            const struct piece *piece = object->memory.piece;
            if (piece == NULL || !piece->video || piece->gpu != gpu)
                continue;
            if (piece->holders == 1)
                usage->private += piece->reported;
            else if (object->memory.owner)
                usage->owned += piece->reported;
            else
                usage->duplicated += piece->reported;
        }
    }
}

/* The clients' processes as the caller sees them, in the clients' order: once for all entries, since each takes a look at /proc. */
static uint32_t *shown (struct request *request)
{
    size_t count = 0;
    uint32_t *pids;

    for (struct client *client = request->manager->clients; client != NULL; client = client->next)
        count++;
    pids = malloc ((count + 1) * sizeof (*pids));
    count = 0;
    for (struct client *client = request->manager->clients; pids != NULL && client != NULL; client = client->next)
        pids[count++] = request->caller->show (request->caller->context, client->process);
    return pids;
}

enum status control_pid_info (struct request *request, struct object *object)
{
    uint8_t *params = request->params;
    uint32_t entries = get32 (params, 0), *pids;

    request->manager->questions.pid_info++;
    if (entries == 0 || entries > INFO_MAX)
        return STATUS_INVALID_ARGUMENT;
    pids = shown (request);
    if (pids == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    for (uint32_t i = 0; i < entries; i++) {
        uint8_t *entry = params + 8 + INFO_SIZE * (size_t) i;
        struct usage usage = { 0 };
        bool found = false;
        size_t place = 0;

        memset (entry + 16, 0, 48);
        memset (entry + 64, 0xff, 8); /* no MIG instance */
        if (get32 (entry, 4) != 0) {
            put32 (entry, 8, STATUS_INVALID_ARGUMENT);
            continue;
        }
        for (struct client *client = request->manager->clients; client != NULL; client = client->next) {
            uint32_t process = pids[place++];

            if (process == 0 || process != get32 (entry, 0))
                continue;
            found = true;
            count (client, object->gpu, &usage);
        }
        put32 (entry, 8, found ? STATUS_OK : STATUS_OBJECT_NOT_FOUND);
        put64 (entry, 16, usage.private);
        put64 (entry, 24, usage.owned);
        put64 (entry, 32, usage.duplicated);
    }
    free (pids);
    request->params_changed = true;
    return STATUS_OK;
}
