/* See prober.h: which processes the driver is asked about, and the usage page. */
#include "pages.h"
#include "prober.h"

#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* As many as the driver lists (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT). */
#define LISTED_MOST 950u
/* Processes of a question: it keeps the driver's locks from other tenants' calls, the longer the more there are. Between two, others have their
 * turn. */
#define AT_A_TIME 24u
#define BETWEEN_MS 1
/* While no tenant has called the driver for a second there are no such calls. */
#define AT_A_TIME_ALONE 96u
#define ALONE_NS UINT64_C (1000000000)

static bool put (const struct prober *self, const void *from, size_t size, size_t at)
{
    return pwrite (self->page, from, size, (off_t) at) == (ssize_t) size;
}

static bool get (int file, void *to, size_t size, size_t at) { return pread (file, to, size, (off_t) at) == (ssize_t) size; }

/* Where the valid counters of a tenant lie; 0: they are none. What is there, a hostile supervisor may have written. */
static size_t counters_at (const struct probed *tenant)
{
    uint32_t head[3]; /* magic, version, index */

    if (!get (tenant->counters, head, sizeof (head), 0) || head[0] != COUNTERS_MAGIC || head[1] != PAGES_VERSION || head[2] > 1)
        return 0;
    return offsetof (struct counters_file, counters) + head[2] * sizeof (struct counters);
}

/* When the tenant called the driver, and numbers of processes that its supervisor has in its counters. */
static void read_counters (struct probed *tenant)
{
    struct guard_process process;
    size_t at = counters_at (tenant);
    uint32_t count, is_gone;

    tenant->pid_count = 0;
    tenant->is_read = tenant->published >= 0;
    if (at == 0 ||
        !get (tenant->counters, &tenant->called_ns, sizeof (tenant->called_ns), at + offsetof (struct counters, status.called_ns)))
        tenant->called_ns = 0;
    if (at == 0 || !get (tenant->counters, &is_gone, sizeof (is_gone), at + offsetof (struct counters, is_gone)) || is_gone ||
        !get (tenant->counters, &count, sizeof (count), at + offsetof (struct counters, process_count)))
        return;
    for (uint32_t i = 0; i < count && i < COUNTERS_PROCESSES && tenant->pid_count < ADDED_MOST; i++)
        if (get (tenant->counters, &process, offsetof (struct guard_process, memory),
                 at + offsetof (struct counters, processes) + i * sizeof (process)))
            tenant->pids[tenant->pid_count++] = process.pid;
}

/* Those that published something since the last time are read again, and no others. */
static void read_published (struct prober *self)
{
    struct epoll_event events[128];
    int count = 128;

    /* Of each tenant once: as many as one call tells of may write all the time. */
    for (unsigned told = 0; count == 128 && told <= self->tenant_count; told += 128) {
        count = epoll_wait (self->epoll, events, 128, 0);
        for (int i = 0; i < count; i++)
            ((struct probed *) events[i].data.ptr)->is_read = false;
    }
    for (unsigned i = 0; i < self->tenant_count; i++)
        if (!self->tenants[i]->is_read)
            read_counters (self->tenants[i]);
}

void prober_publish_calls (struct prober *self)
{
    struct guard_contention page = { .magic = GUARD_CONTENTION_MAGIC };
    uint64_t now = guard_now ();

    read_published (self);
    for (unsigned i = 0; i < self->tenant_count; i++) {
        const struct probed *tenant = self->tenants[i];
        uint64_t called = tenant->called_ns < now ? tenant->called_ns : now;

        if (called >= page.last[0].called_ns) {
            page.last[1] = page.last[0];
            page.last[0].tenant = tenant->tenant.tenant;
            page.last[0].called_ns = called;
        } else if (called >= page.last[1].called_ns) {
            page.last[1].tenant = tenant->tenant.tenant;
            page.last[1].called_ns = called;
        }
    }
    self->called_ns = page.last[0].called_ns;
    page.written_ns = guard_now ();
    (void) put (self, &page, sizeof (page), 0);
}

bool prober_is_over (const struct prober *self)
{
    uint32_t is_gone;

    for (unsigned i = 0; i < self->tenant_count; i++) {
        size_t at = counters_at (self->tenants[i]);

        if (at == 0 || !get (self->tenants[i]->counters, &is_gone, sizeof (is_gone), at + offsetof (struct counters, is_gone)) ||
            !is_gone)
            return false;
    }
    return true;
}

static void add_pid (struct prober *self, uint32_t pid)
{
    if (pid == 0 || pid > INT32_MAX || self->pid_count == PIDS_MOST)
        return;
    for (unsigned i = 0; i < self->pid_count; i++)
        if (self->pids[i] == pid)
            return;
    self->pids[self->pid_count++] = pid;
}

static bool has_gpu (const struct probed *tenant, const uint8_t uuid[16])
{
    for (uint32_t i = 0; i < tenant->tenant.gpu_count && i < RM_MAX_GPUS; i++)
        if (memcmp (tenant->tenant.uuids[i], uuid, 16) == 0)
            return true;
    return false;
}

/* gpuGetProcWithObject (gpu_rmapi.c): processes of which a client has a device on the GPU, and a subdevice. */
static bool list_pids (struct prober *self, unsigned gpu)
{
    static NV2080_CTRL_GPU_GET_PIDS_PARAMS listed;
    const uint8_t *uuid = self->client.gpus[gpu].uuid;

    memset (&listed, 0, sizeof (listed));
    listed.idType = 0; /* NV2080_CTRL_GPU_GET_PIDS_ID_TYPE_CLASS */
    listed.id = NV20_SUBDEVICE_0;
    if (driver_client_control (&self->client, DRIVER_HANDLE_SUBDEVICE + self->client.gpus[gpu].instance,
                               NV2080_CTRL_CMD_GPU_GET_PIDS, &listed, sizeof (listed)) != NV_OK)
        return false;
    self->pid_count = 0;
    for (uint32_t i = 0; i < listed.pidTblCount && i < LISTED_MOST; i++)
        add_pid (self, listed.pidTbl[i]);
    for (unsigned i = 0; i < self->computed_count; i++) /* one that has ended meanwhile, too */
        add_pid (self, self->computed[i].pid);
    for (unsigned i = 0; i < self->on_count; i++)
        add_pid (self, self->on[i].pid);
    for (uint32_t i = 0; i < self->before.head.gpu_count; i++) {
        const struct usage_gpu *before = &self->before.head.gpus[i];

        for (uint32_t row = before->first; memcmp (before->uuid, uuid, 16) == 0 && row < before->first + before->count; row++)
            if ((self->before.rows[row].own | self->before.rows[row].duplicated) != 0)
                add_pid (self, self->before.rows[row].pid);
    }
    for (uint32_t i = 0; i < self->named.count; i++)
        add_pid (self, (uint32_t) self->named.pids[i]);
    for (unsigned i = 0; i < self->tenant_count; i++)
        for (unsigned j = 0; has_gpu (self->tenants[i], uuid) && j < self->tenants[i]->pid_count; j++)
            add_pid (self, self->tenants[i]->pids[j]);
    return true;
}

/* The GPU's own number of what is in use. */
static bool ask_heap (struct prober *self, unsigned gpu, struct usage_gpu *row)
{
    NV2080_CTRL_FB_INFO entries[2] = { { .index = NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE },
                                       { .index = NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE } };
    NV2080_CTRL_FB_GET_INFO_PARAMS info = { .fbInfoListSize = 2, .fbInfoList = (NvP64) (uintptr_t) entries };

    if (driver_client_control (&self->client, DRIVER_HANDLE_SUBDEVICE + self->client.gpus[gpu].instance,
                               NV2080_CTRL_CMD_FB_GET_INFO, &info, sizeof (info)) != NV_OK ||
        entries[0].data < entries[1].data)
        return false;
    row->total = (uint64_t) entries[0].data << 10;
    row->used = (uint64_t) (entries[0].data - entries[1].data) << 10;
    return true;
}

/* What the process had as published last, and since. place: where its row was then, or near there. */
static void put_times (const struct prober *self, const struct usage_gpu *gpu, struct usage_row *row, uint32_t place)
{
    for (uint32_t i = 0; i < self->before.head.gpu_count; i++) {
        const struct usage_gpu *before = &self->before.head.gpus[i];

        for (uint32_t at = 0; memcmp (before->uuid, gpu->uuid, sizeof (gpu->uuid)) == 0 && at < before->count; at++) {
            const struct usage_row *one = &self->before.rows[before->first + (place + at) % before->count];

            if (one->pid == row->pid) {
                row->busy_ns = one->busy_ns;
                row->traced_ns = one->traced_ns;
                break;
            }
        }
    }
    for (unsigned i = 0; i < self->computed_count; i++)
        row->busy_ns += self->computed[i].pid == row->pid ? self->computed[i].busy_ns : 0;
    for (unsigned i = 0; i < self->on_count; i++)
        row->traced_ns += self->on[i].pid == row->pid ? self->on[i].ns : 0;
}

/* false: the driver did not answer. */
static bool ask_gpu (struct prober *self, unsigned gpu, struct usage_gpu *row)
{
    static NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
    struct process_usage found[DRIVER_USAGE_PIDS];
    struct usage_head *head = &self->now.head;
    const struct traced *traced;
    uint64_t reported = 0;

    prober_take_samples (self, gpu);
    row->sampled_ns = self->sampled[gpu].sampled_ns;
    row->busy_ns = self->sampled[gpu].busy_ns;
    traced = prober_take_trace (self, gpu);
    row->traced_ns = traced != NULL ? traced->traced_ns : 0;
    row->untraced_ns = traced != NULL ? traced->untraced_ns : 0;
    if (!list_pids (self, gpu) || !ask_heap (self, gpu, row))
        return false;
    for (unsigned done = 0, count; done < self->pid_count; done += count) {
        unsigned most = guard_now () - self->called_ns > ALONE_NS ? AT_A_TIME_ALONE : AT_A_TIME;

        count = self->pid_count - done < most ? self->pid_count - done : most;
        if (done != 0)
            poll (NULL, 0, BETWEEN_MS);
        head->questions++;
        if (driver_usage_ask (&self->client, (int) gpu, &answer, self->pids + done, count, found) != 0)
            return false;
        for (unsigned i = 0; i < count && head->row_count < USAGE_ROWS; i++, row->count++) {
            struct usage_row *one = &self->now.rows[head->row_count++];

            *one = (struct usage_row) { .pid = self->pids[done + i], .own = found[i].own, .duplicated = found[i].duplicated };
            put_times (self, row, one, row->count);
            reported += found[i].own;
        }
    }
    if (!self->has_idle[gpu])
        self->idle[gpu] = row->used > reported ? row->used - reported : 0;
    self->has_idle[gpu] = true;
    row->idle = self->idle[gpu];
    return true;
}

/* Whether a process that a tenant's counters name holds memory. */
static bool is_used (const struct prober *self)
{
    for (unsigned i = 0; i < self->tenant_count; i++)
        for (unsigned j = 0; j < self->tenants[i]->pid_count; j++)
            for (uint32_t row = 0; row < self->now.head.row_count; row++)
                if (self->now.rows[row].pid == self->tenants[i]->pids[j] && self->now.rows[row].own != 0)
                    return true;
    return false;
}

/* The driver did not answer: what it said last is asked about again, and not believed meanwhile (asked_ns 0). */
static void keep_rows (struct prober *self, struct usage_gpu *row)
{
    struct usage_head *head = &self->now.head;

    head->row_count = row->first;
    row->count = 0;
    for (uint32_t i = 0; i < self->before.head.gpu_count; i++) {
        const struct usage_gpu *before = &self->before.head.gpus[i];

        for (uint32_t at = 0;
             memcmp (before->uuid, row->uuid, sizeof (row->uuid)) == 0 && at < before->count && head->row_count < USAGE_ROWS;
             at++) {
            struct usage_row *kept = &self->now.rows[head->row_count++];

            *kept = self->before.rows[before->first + at];
            put_times (self, row, kept, row->count++);
        }
    }
}

void prober_publish_usage (struct prober *self)
{
    struct usage_head *head = &self->now.head;
    uint32_t index = !self->index;
    size_t at = offsetof (struct usage_page, copies) + index * sizeof (struct usage);

    self->before.head = *head;
    memcpy (self->before.rows, self->now.rows, head->row_count * sizeof (self->now.rows[0]));
    head->sequence++;
    head->gpu_count = self->client.gpu_count;
    head->row_count = 0;
    read_published (self);
    for (unsigned gpu = 0; gpu < self->client.gpu_count; gpu++) {
        struct usage_gpu *row = &head->gpus[gpu];
        uint64_t asked_ns = guard_now ();

        *row = (struct usage_gpu) { .first = head->row_count };
        memcpy (row->uuid, self->client.gpus[gpu].uuid, sizeof (row->uuid));
        if (ask_gpu (self, gpu, row))
            row->asked_ns = asked_ns;
        else
            keep_rows (self, row);
    }
    /* A page that cannot be written whole, in a full /run, stays as it was, and grows old. */
    if (put (self, head, sizeof (*head), at) &&
        put (self, self->now.rows, head->row_count * sizeof (self->now.rows[0]), at + offsetof (struct usage, rows)) &&
        put (self, &index, sizeof (index), offsetof (struct usage_page, index)))
        self->index = index;
    if (self->connection >= 0 || is_used (self))
        self->used_at = guard_now ();
}
