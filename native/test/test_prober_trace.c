/* The driver's trace of context switches (supervisor/prober_trace.c), from rings made by hand: the usual, and what no driver writes. */
#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "supervisor/prober.h"
#include "tap.h"

#include <string.h>

#define MS UINT64_C (1000000)
#define SECOND UINT64_C (1000000000)
#define GPU_EPOCH (700 * SECOND) /* the GPU's clock is another one */
#define BEGIN NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START
#define END NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_END

static NV_EVENT_BUFFER_FECS_RECORD ring[TRACE_RECORDS];
static struct prober prober;
static uint64_t now;
static uint32_t put;
static uint16_t number;

uint64_t guard_now (void) { return now; }

static void start (uint16_t first)
{
    memset (&prober, 0, sizeof (prober));
    memset (ring, 0, sizeof (ring));
    now = 50 * SECOND;
    put = 0;
    number = first;
    prober.client.gpu_count = 2;
    prober.client.gpus[1].uuid[0] = 7;
    prober.traced_gpus = 1;
    prober.traced[0].records = ring;
    prober.traced[0].uuid[0] = 7;
    prober.traced[0].looked_at = now;
}

/* at: since the beginning. */
static void record (uint8_t tag, uint32_t pid, uint64_t at)
{
    ring[put] = (NV_EVENT_BUFFER_FECS_RECORD) { .type = 1, .tag = tag, .seqno = number++, .pid = pid, .timestamp = GPU_EPOCH + at };
    put = (put + 1) % TRACE_RECORDS;
}

static const struct traced *look (uint64_t at)
{
    now = 50 * SECOND + at;
    return prober_take_trace (&prober, 1);
}

static uint64_t had (uint32_t pid)
{
    uint64_t ns = 0;

    for (unsigned i = 0; i < prober.on_count; i++)
        ns += prober.on[i].pid == pid ? prober.on[i].ns : 0;
    return ns;
}

static void turns (void)
{
    const struct traced *traced;

    start (0);
    traced = look (3 * MS);
    tap_ok (prober.on_count == 0 && traced->traced_ns == 3 * MS && traced->untraced_ns == 3 * MS,
            "nothing is known before the first record");
    tap_ok (prober_take_trace (&prober, 0) == NULL, "a GPU without a ring has no trace");
    record (BEGIN, 11, 4 * MS);
    record (END, 11, 5 * MS);
    traced = look (10 * MS);
    tap_ok (had (11) == MS && traced->traced_ns == 4 * MS && traced->untraced_ns == 0, "where it is a begin, none was on before");
    record (BEGIN, 12, 6 * MS);
    record (END, 12, 9 * MS);
    record (BEGIN, 11, 10 * MS);
    record (END, 11, 15 * MS);
    traced = look (20 * MS);
    tap_ok (had (12) == 3 * MS && had (11) == 5 * MS && traced->traced_ns == 14 * MS && traced->untraced_ns == 0,
            "the time from start to end is the process's; switches are no process's");
    look (20 * MS);
    tap_ok (prober.on_count == 0, "nothing counts twice");
    start (0);
    look (3 * MS);
    record (END, 11, 4 * MS);
    traced = look (10 * MS);
    tap_ok (prober.on_count == 0 && traced->traced_ns == 3 * MS && traced->untraced_ns == 3 * MS, "where it is an end, one was");
}

static void stays (void)
{
    const struct traced *traced;
    uint64_t sum = 0;

    start (65530); /* the number goes around */
    record (BEGIN, 11, 0);
    for (unsigned i = 0; i < 20; i++) {
        traced = look (i * 500 * MS + 20 * MS);
        sum += had (11);
    }
    tap_ok (sum == traced->traced_ns && traced->untraced_ns == 0 && sum > 9390 * MS && sum <= 9420 * MS,
            "one that stays is on, up to what must have been reported");
    record (END, 11, 9600 * MS);
    record (BEGIN, 12, 9700 * MS);
    record (END, 12, 9900 * MS);
    look (9990 * MS);
    sum += had (11);
    tap_ok (sum == 9600 * MS && had (12) == 200 * MS, "and no longer than until its end");
    look (20000 * MS);
    tap_ok (prober.on_count == 0 && prober.traced[0].traced_ns > 19000 * MS, "time in which none was on passes too");
}

/* Records of a second, with two processes in turn, 3 and 1 ms. */
static void second_of (unsigned which)
{
    for (unsigned i = 0; i < 250; i++) {
        record (BEGIN, 11, which * SECOND + i * 4 * MS);
        record (END, 11, which * SECOND + i * 4 * MS + 3 * MS);
        record (BEGIN, 12, which * SECOND + i * 4 * MS + 3 * MS);
        record (END, 12, which * SECOND + i * 4 * MS + 4 * MS);
    }
}

static void wraps (void)
{
    uint64_t first = 0, other = 0;

    start (0);
    for (unsigned i = 0; i < 100; i++) { /* the ring six times, and the number once */
        second_of (i);
        look ((i + 1) * SECOND);
        first += had (11);
        other += had (12);
    }
    tap_ok (first == 100 * 750 * MS && other == 100 * 250 * MS && prober.traced[0].untraced_ns == 0, "the ring goes around");
    for (unsigned i = 100; i < 120; i++) /* 20,000 records */
        second_of (i);
    look (120 * SECOND);
    tap_ok (had (11) == 0 && had (12) == 0 && prober.traced[0].untraced_ns == 20 * SECOND,
            "what was overwritten before it was read is time of which nothing is known");
    for (unsigned i = 120; i < 186; i++) /* 66,000: the number of the next place is that of four rings ago, but for 464 */
        second_of (i);
    look (186 * SECOND);
    tap_ok (had (11) == 0 && prober.traced[0].untraced_ns == 86 * SECOND, "whatever the numbers are then");
    second_of (186);
    look (187 * SECOND);
    tap_ok (had (11) == 750 * MS && had (12) == 250 * MS && prober.traced[0].untraced_ns == 86 * SECOND, "and it goes on");
}

static void lost (void)
{
    start (3);
    record (BEGIN, 11, 0);
    look (MS);
    record (END, 11, 10 * MS);
    number += 5; /* the driver's buffer was full */
    record (BEGIN, 12, 30 * MS);
    record (END, 12, 40 * MS);
    look (50 * MS);
    tap_ok (had (11) == 10 * MS && had (12) == 0 && prober.traced[0].untraced_ns == 30 * MS,
            "records that the driver lost are seen by their sequence numbers");
    record (BEGIN, 11, 50 * MS);
    record (BEGIN, 12, 60 * MS); /* the end of one that is no more has no process */
    record (END, 13, 70 * MS);
    record (BEGIN, 12, 80 * MS);
    record (END, 12, 90 * MS);
    look (100 * MS);
    tap_ok (had (11) == 0 && had (12) == 10 * MS && had (13) == 0 && prober.traced[0].untraced_ns == 50 * MS,
            "and an end without a begin, or a begin without an end, is time of which nothing is known");
    record (9, 11, 95 * MS);
    record (BEGIN, 11, 100 * MS);
    record (END, 11, 110 * MS);
    look (120 * MS);
    tap_ok (had (11) == 10 * MS, "records of other kinds are left out");
}

static void hostile (void)
{
    static const uint64_t stamps[] = { 1, GPU_EPOCH / 2, UINT64_MAX, UINT64_MAX / 2, GPU_EPOCH + 3600 * SECOND };

    for (unsigned i = 0; i < sizeof (stamps) / sizeof (stamps[0]); i++) {
        const struct traced *traced;

        start (0);
        record (BEGIN, 11, 0);
        look (MS);
        record (END, 11, 10 * MS);
        ring[1].timestamp = stamps[i];
        traced = look (20 * MS);
        tap_ok (traced == NULL && prober.on_count == 0 && look (30 * MS) == NULL, "a time that cannot be ends the trace");
    }
    start (0);
    record (BEGIN, 11, 0);
    look (MS);
    number += 5;
    record (END, 11, 10 * MS);
    ring[1].timestamp = UINT64_MAX;
    tap_ok (look (20 * MS) == NULL && prober.on_count == 0, "nor is it gone on with after a loss");
    start (0);
    memset (ring, 0xff, sizeof (ring));
    look (MS);
    look (500 * MS);
    tap_ok (prober.on_count == 0, "so do ones everywhere, or they say nothing");
    start (0);
    for (uint32_t i = 0; i < 2000; i++) {
        record (BEGIN, i + 1, i * MS);
        record (END, i + 1, i * MS + MS / 2);
    }
    look (2 * SECOND);
    for (uint32_t i = 2000; i < 3000; i++) {
        record (BEGIN, i + 1, i * MS);
        record (END, i + 1, i * MS + MS / 2);
    }
    look (3 * SECOND);
    tap_ok (prober.on_count == TRACED_MOST && prober.traced[0].untraced_ns == (3000 - 2 * TRACED_MOST) * MS / 2,
            "more processes than there is room for are time of which nothing is known");
}

/* GPU clocks that gain, or lose, a part in ten thousand on the host's. */
static void drifts (void)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        uint64_t had_11 = 0, begun = 0;

        start (0);
        for (unsigned i = 0; i < 4000; i++) { /* each second one switch */
            uint64_t at = i * SECOND + (uint64_t) ((int64_t) (i * SECOND) / 10000 * sign);

            record (i % 2 ? END : BEGIN, 11, at);
            begun += i % 2 ? SECOND + (uint64_t) ((int64_t) SECOND / 10000 * sign) : 0;
            look (i * SECOND + 20 * MS);
            had_11 += had (11);
        }
        tap_ok (prober.traced[0].records != NULL && had_11 == begun && prober.traced[0].untraced_ns == 0,
                "clocks may differ by a part in ten thousand");
    }
}

/* Of one that is on for hours without a record, by a GPU whose clock is slower; and records that arrive late. */
static void estimates (void)
{
    uint64_t sum = 0;

    start (0);
    record (BEGIN, 11, 0);
    for (unsigned i = 0; i < 20000; i++) {
        look (i * SECOND / 2 + 20 * MS);
        sum += had (11);
    }
    tap_ok (sum > 9990 * SECOND * 9998 / 10000, "time goes on without records");
    record (END, 11, 9999 * SECOND);
    look (10000 * SECOND + 20 * MS);
    sum += had (11);
    tap_ok (sum == 9999 * SECOND, "and no faster than the GPU's clock may");
    start (0);
    record (BEGIN, 11, 0);
    look (5 * MS);
    record (END, 11, 400 * MS);
    record (BEGIN, 12, 500 * MS);
    look (1000 * MS);
    tap_ok (had (11) == 400 * MS && had (12) > 390 * MS, "the newest record may be an old one");
}

int main (void)
{
    estimates ();
    turns ();
    stays ();
    wraps ();
    lost ();
    hostile ();
    drifts ();
    return tap_done ();
}
