/* Simulated time, waits, and the calls of device.h. Runs as manager.c; a wait releases manager->lock. */
#include "manager_state.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C (1000000000)

static uint64_t monotonic (void)
{
    struct timespec now;

    clock_gettime (CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * SECOND + (uint64_t) now.tv_nsec;
}

uint64_t clock_now (struct manager *manager)
{
    return manager->manual ? manager->manual_now : monotonic () + (uint64_t) manager->real_offset;
}

void clock_run (struct manager *manager)
{
    uint64_t now = clock_now (manager);

    for (struct engine *engine = manager->engines; engine != NULL; engine = engine->next) {
        samples_run (manager, engine, now);
        engine_run (engine, now);
    }
}

void clock_set (struct manager *manager, enum sim_clock_mode mode, uint64_t advance)
{
    uint64_t now = clock_now (manager);

    if (mode == SIM_CLOCK_ADVANCE && !manager->manual)
        return;
    if (mode == SIM_CLOCK_MANUAL) {
        manager->manual = true;
        manager->manual_now = now;
    } else if (mode == SIM_CLOCK_REAL) {
        manager->manual = false;
        manager->real_offset = (int64_t) (now - monotonic ());
    } else if (mode == SIM_CLOCK_ADVANCE) {
        manager->manual_now = advance < UINT64_MAX / 2 - now ? now + advance : UINT64_MAX / 2;
    }
    clock_run (manager);
    if (mode != SIM_CLOCK_ASK)
        pthread_cond_broadcast (&manager->changed);
}

bool clock_wait (struct request *request, uint64_t until)
{
    struct manager *manager = request->manager;

    if (atomic_load (&request->caller->interrupted) || manager->stopping)
        return false;
    if (manager->manual || until == ENGINE_NEVER) {
        pthread_cond_wait (&manager->changed, &manager->lock);
    } else {
        uint64_t real = until - (uint64_t) manager->real_offset;
        struct timespec when = { .tv_sec = (time_t) (real / SECOND), .tv_nsec = (long) (real % SECOND) };
        pthread_cond_timedwait (&manager->changed, &manager->lock, &when);
    }
    return true;
}

static struct object *channel_of (struct request *request)
{
    struct client *client = client_of (request, get32 (request->head, 0));
    struct object *object = client != NULL ? object_find (client, get32 (request->head, 4)) : NULL;

    return object != NULL && object->kind == KIND_CHANNEL ? object : NULL;
}

static void submit (struct request *request, struct sim_submit *submit)
{
    struct object *object = channel_of (request);

    if (object == NULL) {
        submit->status = STATUS_INVALID_OBJECT_HANDLE;
        return;
    }
    clock_run (request->manager);
    submit->status = STATUS_OK;
    if (submit->count > 0 && !engine_submit (object->channel, submit->nanoseconds, submit->count))
        submit->status = STATUS_INSUFFICIENT_RESOURCES;
    pthread_cond_broadcast (&request->manager->changed);
}

static void progress (struct request *request, struct sim_progress *progress)
{
    struct manager *manager = request->manager;
    uint64_t end = clock_now (manager);

    end = progress->timeout_ns < ENGINE_NEVER - end ? end + progress->timeout_ns : ENGINE_NEVER;
    for (;;) {
        /* Looked up again each time: the channel may be freed while the lock is released. */
        struct object *object = channel_of (request);
        if (object == NULL) {
            progress->status = STATUS_INVALID_OBJECT_HANDLE;
            return;
        }
        clock_run (manager);
        struct engine_channel *channel = object->channel;
        progress->submitted = channel->submitted;
        progress->finished = channel->finished;
        progress->busy_ns = channel->group->busy;
        progress->status = STATUS_OK;
        if (progress->until == 0 || channel->finished >= progress->until || clock_now (manager) >= end)
            return;
        uint64_t next = engine_earliest (channel, progress->until);
        if (!clock_wait (request, next < end ? next : end)) {
            request->error = -EINTR;
            return;
        }
    }
}

static void resident (struct request *request, struct sim_resident *resident)
{
    struct manager *manager = request->manager;
    int gpu = gpu_by_uuid (manager, resident->uuid);
    uint64_t *have = gpu < 0 ? NULL : &request->file->resident[gpu];

    resident->status = STATUS_OK;
    if (have == NULL || request->file->node != MANAGER_UVM) {
        resident->status = STATUS_GPU_UUID_NOT_FOUND;
    } else if (resident->bytes >= 0) {
        uint64_t bytes = (uint64_t) resident->bytes;
        if (bytes > memory_capacity (manager, (uint32_t) gpu) - manager->used[gpu]) {
            resident->status = STATUS_NO_MEMORY;
            return;
        }
        *have += bytes;
        manager->used[gpu] += bytes;
    } else {
        uint64_t bytes = 0 - (uint64_t) resident->bytes;
        if (bytes > *have)
            bytes = *have;
        *have -= bytes;
        manager->used[gpu] -= bytes;
    }
}

static void fault (struct request *request, const struct sim_fault *fault)
{
    struct manager *manager = request->manager;

    if (fault->escape == 0xff) {
        manager->lost = fault->status;
        return;
    }
    for (uint32_t i = 0; i < MANAGER_MAX_FAULTS; i++) {
        struct manager_fault *each = &manager->faults[i];
        bool same = each->status != 0 && each->escape == fault->escape && each->number == fault->number;
        if (same || (fault->status != 0 && each->status == 0)) {
            *each = (struct manager_fault) { fault->escape, fault->number, fault->status, fault->after };
            return;
        }
    }
    if (fault->status != 0)
        request->error = -ENOSPC;
}

static void parameters (struct request *request, struct sim_parameters *parameters)
{
    struct client *client = client_of (request, parameters->client);
    const struct object *object = client != NULL ? object_find (client, parameters->object) : NULL;

    parameters->status = object != NULL ? STATUS_OK : STATUS_INVALID_OBJECT_HANDLE;
    if (object == NULL)
        return;
    parameters->size = object->params_size;
    memcpy (parameters->tail, object->params_tail, sizeof (parameters->tail));
}

static void busy (struct manager *manager, struct sim_busy *busy)
{
    int gpu = gpu_by_uuid (manager, busy->uuid);

    busy->status = gpu >= 0 ? STATUS_OK : STATUS_GPU_UUID_NOT_FOUND;
    clock_run (manager);
    busy->now_ns = clock_now (manager);
    busy->busy_ns = 0;
    for (const struct engine *engine = manager->engines; engine != NULL; engine = engine->next)
        if ((int) engine->gpu == gpu)
            busy->busy_ns += engine->busy;
}

void totals_fill (struct manager *manager, struct sim_totals *totals)
{
    memset (totals, 0, sizeof (*totals));
    for (struct manager_file *file = manager->files; file != NULL; file = file->next)
        totals->files++;
    for (struct client *client = manager->clients; client != NULL; client = client->next) {
        totals->clients++;
        totals->objects += client->objects;
    }
    for (struct engine *engine = manager->engines; engine != NULL; engine = engine->next) {
        struct engine_group *group = engine->ring;
        if (group == NULL)
            continue;
        do {
            totals->groups++;
            for (struct engine_channel *channel = group->channels; channel != NULL; channel = channel->next)
                totals->channels++;
            group = group->next;
        } while (group != engine->ring);
    }
    for (uint32_t i = 0; i < manager->gpus; i++)
        totals->bytes[i] = manager->used[i];
}

bool simulator_call (struct request *request)
{
    union {
        struct sim_submit submit;
        struct sim_progress progress;
        struct sim_clock clock;
        struct sim_resident resident;
        struct sim_totals totals;
        struct sim_fault fault;
        struct sim_parameters parameters;
        struct sim_questions questions;
        struct sim_overhead overhead;
        struct sim_busy busy;
    } head = { .totals = { 0 } };
    static const struct {
        uint32_t escape;
        size_t size;
    } calls[] = { { 0xe0, sizeof (head.submit) },     { 0xe1, sizeof (head.progress) },  { 0xe2, sizeof (head.clock) },
                  { 0xe3, sizeof (head.resident) },   { 0xe4, sizeof (head.totals) },    { 0xe5, sizeof (head.fault) },
                  { 0xe6, sizeof (head.parameters) }, { 0xe7, sizeof (head.questions) }, { 0xe8, sizeof (head.overhead) },
                  { 0xe9, sizeof (head.busy) } };

    if (request->escape < 0xe0 || request->escape > 0xe9)
        return false;
    if (request->head_size != calls[request->escape - 0xe0].size) {
        request->error = -EINVAL;
        return true;
    }
    memcpy (&head, request->head, request->head_size);
    if (request->escape == 0xe0) {
        submit (request, &head.submit);
    } else if (request->escape == 0xe1) {
        progress (request, &head.progress);
    } else if (request->escape == 0xe2) {
        clock_set (request->manager, (enum sim_clock_mode) head.clock.mode, head.clock.advance_ns);
        head.clock.mode = request->manager->manual ? SIM_CLOCK_MANUAL : SIM_CLOCK_REAL;
        head.clock.now_ns = clock_now (request->manager);
    } else if (request->escape == 0xe3) {
        resident (request, &head.resident);
    } else if (request->escape == 0xe4) {
        totals_fill (request->manager, &head.totals);
    } else if (request->escape == 0xe6) {
        parameters (request, &head.parameters);
    } else if (request->escape == 0xe7) {
        head.questions = request->manager->questions;
    } else if (request->escape == 0xe8) {
        request->manager->counts_overhead = head.overhead.is_counted != 0;
    } else if (request->escape == 0xe9) {
        busy (request->manager, &head.busy);
    } else {
        fault (request, &head.fault);
    }
    memcpy (request->head, &head, request->head_size);
    return true;
}
