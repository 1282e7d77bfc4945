#include "cap.h"

/* What calls take on an H200 (specs: stop 0.47-0.66 ms, start 0.29-1.0 ms), until there are own measurements. */
#define FIRST_FREEZE_NS 500000u
#define FIRST_THAW_NS 300000u
/* A call that took longer than this was not the driver's doing. */
#define LONGEST_CALL_NS 20000000u

/* Far enough for what CAP_MEMORY_PERIODS can owe at 1 %. */
#define PERIODS_AHEAD 4000

static int64_t part (const struct cap *cap, uint64_t time)
{
    return (int64_t) (time / 1000 * cap->share + time % 1000 * cap->share / 1000);
}

void cap_begin (struct cap *cap, uint64_t period, uint32_t share, uint64_t now)
{
    *cap = (struct cap) { .to_freeze = FIRST_FREEZE_NS, .to_thaw = FIRST_THAW_NS };
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

/* The on-phase that is in progress ends `time` after `since`, when at the period's end nothing is owed any more.
 * Periods in which there would be no time to freeze and thaw are left running. */
static uint64_t end_of_on (const struct cap *cap)
{
    uint64_t end = cap->since - cap->since % cap->period + cap->period;

    for (unsigned i = 0; i < PERIODS_AHEAD; i++, end += cap->period) {
        int64_t left = cap->balance + part (cap, end - cap->since);
        uint64_t off = left > 0 ? cap->since + (uint64_t) left : cap->since;

        if (off + cap->to_thaw <= end)
            return off;
    }
    return end;
}

/* The next period whose on-phase is at least as long as the call that ends it; the one in progress only if most of its
 * on-phase is owed, since a freeze came so late that it lies in the period after its own. */
static uint64_t begin_of_on (const struct cap *cap)
{
    uint64_t begin = cap->since - cap->since % cap->period + cap->period;
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

void cap_done (struct cap *cap, bool frozen, uint64_t began, uint64_t ended)
{
    uint64_t lasted = ended > began ? ended - began : 0;
    uint64_t *mean = frozen ? &cap->to_freeze : &cap->to_thaw;

    cap_settle (cap, frozen ? began + lasted / 2 : ended);
    cap->frozen = frozen;
    if (lasted < LONGEST_CALL_NS)
        *mean = (*mean * 7 + lasted) / 8;
}
