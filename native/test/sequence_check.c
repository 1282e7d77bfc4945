/* What the guards charge and schedule, against the manager's own objects (sequence.h). */
#include "sequence.h"

#include "guard/edges.h"
#include "guard/schedule.h"
#include "guard/tenant.h"

#include "manager_state.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_GRAPHICS 1u
#define LAST_GRAPHICS 8u
/* Of one group on an H100: 128 of them took 552 MiB (findings, M6). */
#define CONTEXT_BYTES (UINT64_C (4416) << 10)
#define TABLE_BYTES UINT64_C (4096)
#define TABLE_SPAN (UINT64_C (2) << 20)
/* retained.c: pieces from this size on are probed whenever they are freed; of smaller ones that UVM retains so many bytes are
 * found with a probability of 999 in 1000. */
#define CERTAIN_BYTES (UINT64_C (32) << 20)
#define SAMPLED_BYTES (UINT64_C (224) << 20)
#define CLASS_COMPUTE 0xcbc0u
#define GROUPS 256u
#define PIECES 4096u /* a power of two */

const char *const finding_words[FINDINGS] = {
    "memory",    "sum",   "zombie",  "unit",    "context",   "tables", "unlisted",
    "unweighed", "slice", "running", "stopped", "neighbour", "kernel",
};

/* Which tenants hold a piece: by a client's object, by anything. */
struct holding {
    const struct piece *piece;
    uint8_t by_object, by_any;
};

struct held {
    uint64_t plain, zombie, unit, context, tables, sampled;
};

static struct holding holdings[PIECES];
static uint16_t used[PIECES];
static unsigned used_count;
static struct held held[TENANTS];

static struct holding *holding_of (const struct piece *piece)
{
    size_t at = ((uintptr_t) piece >> 4) * 0x9e3779b1u % PIECES;

    while (holdings[at].piece != NULL && holdings[at].piece != piece)
        at = (at + 1) % PIECES;
    if (holdings[at].piece == NULL) {
        holdings[at].piece = piece;
        if (used_count == PIECES - 1)
            abort ();
        used[used_count++] = (uint16_t) at;
    }
    return &holdings[at];
}

/* TENANTS: none's. */
static unsigned tenant_of (uint32_t process)
{
    if (process >= (uint32_t) GUARD_PID (0))
        return (process - (uint32_t) GUARD_PID (0)) / 2;
    for (unsigned i = 0; i < kernel.task_count; i++)
        if ((uint32_t) kernel.tasks[i].pid == process)
            return kernel.tasks[i].tenant;
    return TENANTS;
}

static bool is_guard (const struct client *client) { return client->process >= (uint32_t) GUARD_PID (0); }

static bool is_graphics (const struct engine_group *group)
{
    return group->engine->type >= FIRST_GRAPHICS && group->engine->type <= LAST_GRAPHICS;
}

static bool has_compute (const struct object *channel)
{
    for (const struct object *at = channel->child; at != NULL; at = at->next)
        if (at->class_number == CLASS_COMPUTE)
            return true;
    return false;
}

/* Groups with an object of the compute engine on one of their channels: that object has the context made, for all of them. */
static const struct engine_group *computing[GROUPS];
static unsigned computing_count;

static bool computes (const struct engine_group *group)
{
    for (unsigned i = 0; i < computing_count; i++)
        if (computing[i] == group)
            return true;
    return false;
}

static void add_object (const struct object *object, unsigned tenant)
{
    struct holding *holding;

    if (object->channel != NULL && computing_count < GROUPS && has_compute (object))
        computing[computing_count++] = object->channel->group;
    if (object->group != NULL && object->group->has_context)
        held[tenant].context += CONTEXT_BYTES / object->group->objects;
    if (object->memory.piece == NULL || !object->memory.piece->video)
        return;
    holding = holding_of (object->memory.piece);
    holding->by_object |= (uint8_t) (1u << tenant);
    holding->by_any |= (uint8_t) (1u << tenant);
}

static void add_map (void *context, const struct holder *holder, uint64_t bytes, uint32_t process)
{
    unsigned tenant = tenant_of (process);

    (void) context;
    if (tenant == TENANTS)
        return;
    held[tenant].tables += (bytes / TABLE_SPAN + 1) * TABLE_BYTES;
    if (holder->piece->video)
        holding_of (holder->piece)->by_any |= (uint8_t) (1u << tenant);
}

/* What is mapped of a file of UVM's: its processes' tenants hold that. The sum. */
static uint64_t add_mapped (const struct manager_file *file)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < kernel.task_count; i++) {
        const struct address_space *space = kernel.tasks[i].space;
        bool is_first = space != NULL;

        for (unsigned k = 0; k < i; k++)
            is_first &= kernel.tasks[k].space != space;
        for (unsigned k = 0; is_first && k < TASK_MAPS; k++)
            if (space->maps[k].file != NULL && space->maps[k].file->file == file) {
                held[kernel.tasks[i].tenant].plain += space->maps[k].bytes;
                sum += space->maps[k].bytes;
            }
    }
    return sum;
}

static void add_file (const struct manager_file *file)
{
    unsigned tenant = kernel_tenant_of (file);
    uint64_t resident = file->resident[0], live = resident != 0 ? add_mapped (file) : 0;

    held[tenant].zombie += resident > live ? resident - live : 0;
    external_each (file, add_map, NULL);
    for (uint32_t i = 0; i < file->export_count; i++)
        if (file->exports[i] != NULL && file->exports[i]->piece->video)
            (void) holding_of (file->exports[i]->piece); /* in the sum */
}

static void add_holding (const struct holding *holding)
{
    for (unsigned i = 0; i < TENANTS; i++) {
        if ((holding->by_any >> i & 1) == 0)
            continue;
        held[i].plain += holding->piece->reported;
        held[i].unit += holding->piece->bytes - holding->piece->reported;
        if ((holding->by_object >> i & 1) == 0 && holding->piece->bytes < CERTAIN_BYTES)
            held[i].sampled += holding->piece->bytes;
    }
}

/* The sum of all pieces, each once. */
static uint64_t look (void)
{
    const struct manager *manager = kernel.manager;
    uint64_t sum = 0;

    memset (held, 0, sizeof (held));
    computing_count = 0;
    for (const struct client *client = manager->clients; client != NULL; client = client->next) {
        unsigned tenant = tenant_of (client->process);

        for (uint32_t i = 0; tenant < TENANTS && i < client->table_size; i++)
            for (const struct object *object = client->table[i]; object != NULL; object = object->hashed)
                add_object (object, tenant);
    }
    for (const struct manager_file *file = manager->files; file != NULL; file = file->next)
        add_file (file);
    for (unsigned i = 0; i < used_count; i++) {
        add_holding (&holdings[used[i]]);
        sum += holdings[used[i]].piece->reported;
        holdings[used[i]] = (struct holding) { 0 };
    }
    used_count = 0;
    for (unsigned i = 0; i < TENANTS; i++)
        held[i].sampled = held[i].sampled < SAMPLED_BYTES ? held[i].sampled : SAMPLED_BYTES;
    return sum;
}

uint64_t check_held (unsigned tenant)
{
    uint64_t sum = look ();

    if (tenant == TENANTS)
        return sum;
    return held[tenant].plain + held[tenant].zombie + held[tenant].unit + held[tenant].context;
}

uint64_t check_piece (uint32_t client, uint32_t handle)
{
    struct client *found = client_find (kernel.manager, client);
    const struct object *object = found != NULL ? object_find (found, handle) : NULL;

    return object != NULL && object->memory.piece != NULL ? object->memory.piece->bytes : 4096;
}

struct report {
    unsigned found;
    char *text;
    size_t size, at;
};

static void report (struct report *report_to, enum finding finding, unsigned tenant, uint64_t is, uint64_t should)
{
    unsigned bit = (unsigned) __builtin_ctz ((unsigned) finding);

    if ((report_to->found & finding) == 0 && report_to->at < report_to->size)
        report_to->at += (size_t) snprintf (report_to->text + report_to->at, report_to->size - report_to->at,
                                            "%s: tenant %u: %llu, not %llu\n", finding_words[bit], tenant, (unsigned long long) is,
                                            (unsigned long long) should);
    report_to->found |= finding;
}

/* The first level that is not covered by the charge says what is missing. */
static void check_tenant (struct report *to, unsigned tenant)
{
    const struct held *of = &held[tenant];
    uint64_t charged = world_charged (tenant) + of->sampled + world.unseen[tenant], sum = 0;
    const struct {
        uint64_t bytes;
        enum finding finding;
    } levels[] = { { of->plain, FOUND_MEMORY },
                   { of->zombie, FOUND_ZOMBIE },
                   { of->unit, FOUND_UNIT },
                   { of->context, FOUND_CONTEXT },
                   { of->tables, FOUND_TABLES } };

    for (unsigned i = 0; i < sizeof (levels) / sizeof (levels[0]); i++) {
        sum += levels[i].bytes;
        if (charged >= sum || levels[i].bytes == 0)
            continue;
        report (to, levels[i].finding, tenant, charged, sum);
        return;
    }
}

static const struct edge_channel *listed (const struct tenant *tenant, const struct object *channel)
{
    for (uint32_t i = 0; i < tenant->edges.count; i++) {
        const struct edge_channel *edge = &tenant->edges.channels[i];

        if (edge->client == channel->client->root.handle && edge->channel == channel->handle && edge->gpu == 0 && edge->file >= 0)
            return edge;
    }
    return NULL;
}

static bool can_be_stopped (const struct tenant *tenant)
{
    for (uint32_t i = 0; i < tenant->edges.count; i++)
        if (tenant->edges.channels[i].file >= 0 && tenant->edges.channels[i].subdevice != 0)
            return true;
    return false;
}

static void check_channel (struct report *to, const struct object *object, unsigned number)
{
    const struct tenant *tenant = world_tenant (number);
    const struct engine_channel *channel = object->channel;
    uint64_t slice;

    if (!channel->scheduled || !is_graphics (channel->group) || !computes (channel->group))
        return;
    if (listed (tenant, object) == NULL || !can_be_stopped (tenant)) {
        report (to, FOUND_UNLISTED, number, object->handle, 0);
        return;
    }
    slice = (uint64_t) tenant->slice[0] * 1000;
    /* Less than was decided for each is what groups that came since have. */
    if (slice != 0 && channel->group->slice > slice)
        report (to, object->group != NULL ? FOUND_UNWEIGHED : FOUND_SLICE, number, channel->group->slice, slice);
    if (!channel->group->is_preemptible)
        report (to, FOUND_KERNEL, number, object->handle, 0);
    if (schedule_is_off (tenant, 0) != (channel->stops != 0))
        report (to, channel->stops != 0 ? FOUND_STOPPED : FOUND_RUNNING, number, channel->stops, channel->stops == 0);
}

unsigned sequence_check (char *text, size_t size)
{
    struct report to = { .text = text, .size = size };
    uint64_t sum = look (), charged = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < TENANTS; i++) {
        check_tenant (&to, i);
        charged += world_charged (i) + held[i].sampled;
        sum += held[i].zombie;
    }
    charged += world.unseen[TENANTS];
    if (charged < sum && (to.found & (FOUND_MEMORY | FOUND_ZOMBIE)) == 0)
        report (&to, FOUND_SUM, TENANTS, charged, sum);
    for (const struct client *client = kernel.manager->clients; client != NULL; client = client->next) {
        unsigned tenant = tenant_of (client->process);

        for (uint32_t i = 0; tenant < TENANTS && !is_guard (client) && i < client->table_size; i++)
            for (const struct object *object = client->table[i]; object != NULL; object = object->hashed)
                if (object->channel != NULL)
                    check_channel (&to, object, tenant);
    }
    if (world.is_neighbour_delayed)
        report (&to, FOUND_NEIGHBOUR, NEIGHBOUR, 1, 0);
    return to.found;
}
