/* Freeze and thaw times of a cap (cap.h). Pure: called by thread.c in a container, and by the guard for its phases. */
#include "cap.h"

/* Durations measured on an H200 (stop 0.47-0.66 ms, start 0.29-1.0 ms), until the first calls have been measured. */
#define FIRST_FREEZE_NS 500000u
#define FIRST_THAW_NS 300000u
/* A longer call was delayed by something else than the driver and does not change the means. */
#define LONGEST_CALL_NS 20000000u

/* Enough to pay back a balance of CAP_MEMORY_PERIODS at a cap of 1 %. */
#define PERIODS_AHEAD 4000

static int64_t part (const struct cap *cap, uint64_t time)
{
    uint64_t lost = time / cap->period * cap->lost + time % cap->period * cap->lost / cap->period;

    return (int64_t) (time / 1000 * cap->share + time % 1000 * cap->share / 1000) - (int64_t) lost;
}

/* The position of `time` in its period. */
static uint64_t into (const struct cap *cap, uint64_t time)
{
    return (time + cap->period - cap->offset % cap->period) % cap->period;
}

void cap_begin (struct cap *cap, uint64_t period, uint32_t share, uint64_t now)
{
    *cap = (struct cap) {
        .to_freeze = FIRST_FREEZE_NS,
        .to_thaw = FIRST_THAW_NS,
        .free_freeze = FIRST_FREEZE_NS,
        .free_thaw = FIRST_THAW_NS,
    };
    cap_change (cap, period, share, now);
}

void cap_change (struct cap *cap, uint64_t period, uint32_t share, uint64_t now)
{
    cap->period = period ? period : CAP_PERIOD_NS;
    cap->share = share;
    cap->since = now;
    cap->balance = 0;
}

void cap_settle (struct cap *cap, uint64_t now)
{
    uint64_t passed = now > cap->since ? now - cap->since : 0;
    int64_t most = (int64_t) (CAP_MEMORY_PERIODS * cap->period);

    cap->balance += part (cap, passed) - (cap->frozen ? 0 : (int64_t) passed);
    cap->balance = cap->balance > most ? most : cap->balance < -most ? -most : cap->balance;
    cap->since = now > cap->since ? now : cap->since;
}

void cap_join (struct cap *cap)
{
    uint64_t passed = into (cap, cap->since), rest = cap->period - passed;
    int64_t window = part (cap, cap->period), left = window - (int64_t) passed;

    /* A frozen process is not thawed for the small rest of a window, and gets no credit for it (begin_of_on). */
    if (left < 0 || (cap->frozen && left <= window / 2))
        left = 0;
    cap->balance = left - part (cap, rest);
}

/* When the current on-phase must end, so that the balance is 0 at the end of the period. A period too short to freeze
 * and thaw in is left running. */
static uint64_t end_of_on (const struct cap *cap)
{
    uint64_t end = cap->since - into (cap, cap->since) + cap->period;

    for (unsigned i = 0; i < PERIODS_AHEAD; i++, end += cap->period) {
        int64_t left = cap->balance + part (cap, end - cap->since);
        uint64_t off = left > 0 ? cap->since + (uint64_t) left : cap->since;

        if (off + cap->to_thaw <= end)
            return off;
    }
    return end;
}

/* The begin of the next period whose on-phase is at least as long as the call that ends it. The current period only if
 * most of its on-phase is still due: a late freeze had slipped into the period after its own. */
static uint64_t begin_of_on (const struct cap *cap)
{
    uint64_t begin = cap->since - into (cap, cap->since) + cap->period;
    int64_t left = cap->balance + part (cap, begin - cap->since);

    if (left > part (cap, cap->period) / 2 && left > (int64_t) (cap->to_freeze + cap->to_thaw))
        return cap->since;
    for (unsigned i = 0; i < PERIODS_AHEAD; i++, begin += cap->period)
        if (cap->balance + part (cap, begin + cap->period - cap->since) >= (int64_t) cap->to_freeze)
            break;
    return begin;
}

struct cap_step cap_next (const struct cap *cap)
{
    struct cap_step step = { .freeze = !cap->frozen };
    uint64_t effect = cap->frozen ? begin_of_on (cap) : end_of_on (cap);
    uint64_t lasts = cap->frozen ? cap->to_thaw : cap->to_freeze / 2;

    step.at = effect > lasts ? effect - lasts : 0;
    return step;
}

/* Estimates the duration of calls that did not wait for those of other processes: one call in nine is shorter. */
static void follow (uint64_t *estimate, uint64_t lasted)
{
    if (lasted < *estimate)
        *estimate -= *estimate / 16;
    else
        *estimate += *estimate / 128;
}

void cap_done (struct cap *cap, bool frozen, uint64_t began, uint64_t ended)
{
    uint64_t lasted = ended > began ? ended - began : 0, effect = lasted;
    uint64_t *mean = frozen ? &cap->to_freeze : &cap->to_thaw;

    if (lasted < LONGEST_CALL_NS)
        follow (frozen ? &cap->free_freeze : &cap->free_thaw, lasted);
    if (frozen && cap->queued && lasted > cap->free_freeze) {
        /* It waited for the driver's lock first, then took an undelayed call's time. */
        effect = lasted - cap->free_freeze / 2;
        lasted = 2 * effect;
    } else if (frozen) {
        effect = lasted / 2;
    }
    cap_settle (cap, began + effect);
    cap->frozen = frozen;
    if (lasted < LONGEST_CALL_NS)
        *mean = (*mean * 7 + lasted) / 8;
}
