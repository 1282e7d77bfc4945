/*
 * See prober.h: which context was on the compute engine for how long, as the driver traces its switches (class/cl90cdfecs.h). A context stays
 * on the engine when its work is done, until another one comes: the trace divides busy time, and does not say how much it is.
 *
 * The driver appends to a ring that is mapped for reading, each 33 ms, and overwrites what was not read. Where the next record goes is not read
 * from it: a record is the next one by its number. What does not fit ends the trace, or leaves time of which nothing is known.
 */
#include "prober.h"

#include "guard/clock.h"
#include "rm/nv_numbers.h"

#include <string.h>

/* Records of so long ago have come. */
#define TOLD_NS UINT64_C (100000000)
/* No clock gains more on the other than a part in 2^DRIFT. */
#define DRIFT 13
/* Between two records as many seconds pass as between the looks at which they were new, and no more than these beyond that. */
#define JUMP_NS UINT64_C (10000000000)

static NV_EVENT_BUFFER_FECS_RECORD record_at (const struct traced *traced, uint32_t place)
{
    NV_EVENT_BUFFER_FECS_RECORD record;

    __atomic_signal_fence (__ATOMIC_ACQUIRE); /* the driver writes it */
    memcpy (&record, &traced->records[place], sizeof (record));
    return record;
}

static bool add (struct prober *self, uint32_t pid, uint64_t ns)
{
    unsigned i = 0;

    while (i < self->on_count && self->on[i].pid != pid)
        i++;
    if (i == TRACED_MOST)
        return false;
    if (i == self->on_count) {
        self->on[i].pid = pid;
        self->on[i].ns = 0;
        self->on_count++;
    }
    self->on[i].ns += ns;
    return true;
}

/* Up to then it was as the state says, if that is known. */
static void count (struct prober *self, struct traced *traced, uint64_t to, bool is_known)
{
    uint64_t passed = to > traced->until ? to - traced->until : 0;

    if (passed == 0)
        return;
    traced->traced_ns += passed;
    traced->until = to;
    if (!is_known || (traced->state == TRACE_ON && !add (self, traced->pid, passed)))
        traced->untraced_ns += passed;
}

static void take (struct prober *self, struct traced *traced, const NV_EVENT_BUFFER_FECS_RECORD *record)
{
    bool begins = record->tag == NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START;

    traced->number = (uint16_t) (record->seqno + 1);
    traced->last = record->timestamp;
    if (!begins && record->tag != NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_END)
        return;
    count (self, traced, record->timestamp,
           begins ? traced->state == TRACE_IDLE : traced->state == TRACE_ON && traced->pid == record->pid);
    traced->state = begins ? TRACE_ON : TRACE_IDLE;
    traced->pid = record->pid;
}

static bool is_plausible (const struct traced *traced, const NV_EVENT_BUFFER_FECS_RECORD *record, uint64_t now)
{
    return record->timestamp >= traced->last && record->timestamp - traced->last <= now - traced->ahead_at + JUMP_NS;
}

/* Where a context comes first, none was on before. */
static void begin (struct traced *traced)
{
    NV_EVENT_BUFFER_FECS_RECORD first = record_at (traced, 0);

    traced->is_followed = true;
    traced->number = first.seqno;
    traced->last = traced->until = first.timestamp;
    if (first.tag == NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START) {
        traced->state = TRACE_IDLE;
        traced->untraced_ns = 0;
    }
}

/* Goes on with the newest record, after some were overwritten, or lost by the driver. false: it cannot be. */
static bool follow (struct prober *self, struct traced *traced, uint64_t now)
{
    NV_EVENT_BUFFER_FECS_RECORD newest = record_at (traced, 0);
    uint32_t place = 0;

    for (uint32_t i = 1; i < TRACE_RECORDS; i++) {
        NV_EVENT_BUFFER_FECS_RECORD record = record_at (traced, i);

        if (record.timestamp >= newest.timestamp) {
            newest = record;
            place = i;
        }
    }
    if (!is_plausible (traced, &newest, now))
        return false;
    traced->state = TRACE_UNKNOWN;
    take (self, traced, &newest);
    traced->at = (place + 1) % TRACE_RECORDS;
    return true;
}

/* false: a clock has jumped, or these are no records. */
static bool take_records (struct prober *self, struct traced *traced, uint64_t now)
{
    uint64_t before = traced->last;
    int64_t ahead, least;

    /* The one that was taken last is overwritten. */
    if (traced->is_followed && record_at (traced, (traced->at + TRACE_RECORDS - 1) % TRACE_RECORDS).timestamp != traced->last &&
        !follow (self, traced, now))
        return false;
    if (!traced->is_followed)
        begin (traced);
    for (uint32_t i = 0; i < TRACE_RECORDS; i++) {
        NV_EVENT_BUFFER_FECS_RECORD record = record_at (traced, traced->at);

        if (record.timestamp == 0 || (record.seqno != traced->number && record.timestamp <= traced->last))
            break; /* an old one */
        if (record.seqno != traced->number) {
            if (!follow (self, traced, now))
                return false;
            break;
        }
        if (!is_plausible (traced, &record, now))
            return false;
        take (self, traced, &record);
        traced->at = (traced->at + 1) % TRACE_RECORDS;
    }
    if (traced->last == before && traced->ahead_at != 0)
        return true;
    ahead = (int64_t) (traced->last - now);
    least = traced->ahead - (int64_t) ((now - traced->ahead_at) >> DRIFT);
    traced->ahead = traced->ahead_at == 0 || ahead > least ? ahead : least;
    traced->ahead_at = now;
    return true;
}

const struct traced *prober_take_trace (struct prober *self, unsigned gpu)
{
    struct traced *traced = self->traced;
    uint64_t now = guard_now (), told;

    self->on_count = 0;
    while (traced < self->traced + self->traced_gpus &&
           memcmp (traced->uuid, self->client.gpus[gpu].uuid, sizeof (traced->uuid)) != 0)
        traced++;
    if (traced == self->traced + self->traced_gpus || traced->records == NULL)
        return NULL;
    if (!traced->is_followed && record_at (traced, 0).timestamp == 0) { /* there was no record yet */
        traced->traced_ns += now - traced->looked_at;
        traced->untraced_ns += now - traced->looked_at;
        traced->looked_at = now;
        return traced;
    }
    if (!take_records (self, traced, now)) {
        self->on_count = 0;
        traced->records = NULL;
        return NULL;
    }
    told = now + (uint64_t) traced->ahead - ((now - traced->ahead_at) >> DRIFT) - TOLD_NS;
    if ((int64_t) (told - traced->until) > 0)
        count (self, traced, told, traced->state != TRACE_UNKNOWN);
    return traced;
}
