/* The driver's samples of which process computes (supervisor/prober_time.c): layouts of three branches, the ring, gaps. */
#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"
#include "supervisor/prober.h"
#include "tap.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#define SECOND UINT64_C (1000000000)

static uint64_t now = 1000 * SECOND;
uint64_t guard_now (void) { return now; }

/* The driver: how its samples lie, and what is in them. */
static struct {
    uint32_t engines, engine; /* 0: it refuses */
    unsigned place, asked;
    struct {
        uint64_t stamp;
        uint32_t part, pid;
    } ring[72];
} driver;

int ioctl (int file, unsigned long request, ...)
{
    va_list rest;
    NVOS54_PARAMETERS *control;
    uint8_t *samples;
    uint32_t size = 8 + driver.engines * driver.engine;

    (void) file, (void) request;
    va_start (rest, request);
    control = va_arg (rest, void *);
    va_end (rest);
    driver.asked++;
    control->status = 0x1f;
    if (driver.engines == 0 || control->cmd != NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 ||
        control->paramsSize != 16 + 72 * size)
        return 0;
    samples = (uint8_t *) (uintptr_t) control->params + 16;
    control->status = NV_OK;
    for (unsigned i = 0; i < 72; i++) {
        uint32_t compute[3] = { driver.ring[i].part, 100, driver.ring[i].pid }, other[3] = { 9999, 100, 4711 };

        memcpy (samples + (size_t) i * size, &driver.ring[i].stamp, 8);
        for (uint32_t engine = 0; engine < driver.engines; engine++)
            memcpy (samples + (size_t) i * size + 8 + (size_t) engine * driver.engine, engine == 1 ? compute : other,
                    sizeof (compute));
    }
    return 0;
}

static void sample (uint64_t stamp, uint32_t part, uint32_t pid)
{
    driver.ring[driver.place % 72].stamp = stamp;
    driver.ring[driver.place % 72].part = part;
    driver.ring[driver.place++ % 72].pid = pid;
}

static struct prober prober;

static uint64_t computed (uint32_t pid)
{
    uint64_t found = 0;

    for (unsigned i = 0; i < prober.computed_count; i++)
        found += prober.computed[i].pid == pid ? prober.computed[i].busy_ns : 0;
    return found;
}

int main (void)
{
    static const struct {
        uint32_t engines, engine;
        const char *name;
    } branches[] = { { 6, 128, "570 to 595" }, { 6, 116, "550" }, { 4, 116, "535" } };

    for (unsigned i = 0; i < 3; i++) {
        memset (&prober, 0, sizeof (prober));
        memset (&driver, 0, sizeof (driver));
        driver.engines = branches[i].engines;
        driver.engine = branches[i].engine;
        sample (7 * SECOND, 10000, 1);
        prober_take_samples (&prober, 0);
        tap_ok (prober.sampled[0].sampled_ns == 0 && prober.computed_count == 0, branches[i].name);
        driver.asked = 0;
        sample (7 * SECOND + SECOND / 10, 2500, 1);
        prober_take_samples (&prober, 0);
        tap_ok (driver.asked == 1 && prober.sampled[0].sampled_ns == SECOND / 10 && prober.sampled[0].busy_ns == SECOND / 40 &&
                    computed (1) == SECOND / 40 && computed (4711) == 0,
                "the first sample only begins; then the part of the time that the compute engine was busy, by one question");
    }
    prober_take_samples (&prober, 0);
    tap_ok (prober.sampled[0].sampled_ns == SECOND / 10 && prober.computed_count == 0, "nothing counts twice");

    for (unsigned i = 2; i < 90; i++) /* more than a ring, the newest in the middle of it */
        sample (7 * SECOND + i * (SECOND / 10), 10000, i % 2 ? 1 : 2);
    prober_take_samples (&prober, 0);
    tap_ok (computed (1) + computed (2) == 71 * (SECOND / 10) + SECOND &&
                prober.sampled[0].sampled_ns == 71 * (SECOND / 10) + SECOND + SECOND / 10,
            "what the ring has lost counts as a second at most");

    sample (17 * SECOND, 5000, NV2080_GPUMON_PID_INVALID);
    sample (17 * SECOND + SECOND / 10, 20000, 3);
    prober_take_samples (&prober, 0);
    tap_ok (prober.computed_count == 1 && computed (3) == SECOND / 10,
            "a sample without a process is none's, and no part is above the whole");
    tap_ok (prober.sampled[0].busy_ns > computed (3) + computed (1), "its time counts as the GPU's");

    driver.engines = 0;
    driver.asked = 0;
    sample (18 * SECOND, 10000, 3);
    prober_take_samples (&prober, 0);
    driver.engines = 4;
    prober_take_samples (&prober, 0);
    tap_ok (driver.asked == 2 && computed (3) == 9 * (SECOND / 10),
            "a question that failed once is asked again, in the same layout");

    memset (&prober, 0, sizeof (prober));
    memset (&driver, 0, sizeof (driver));
    prober_take_samples (&prober, 0);
    prober_take_samples (&prober, 0);
    tap_ok (driver.asked == 3 && prober.sampled[0].sampled_ns == 0, "a driver without samples is asked once for each layout");
    now += 61 * SECOND;
    prober_take_samples (&prober, 0);
    tap_ok (driver.asked == 6, "and again after a minute");
    now += 61 * SECOND;
    driver.engines = 6;
    driver.engine = 116;
    prober_take_samples (&prober, 0);
    sample (1 * SECOND, 10000, 1);
    prober_take_samples (&prober, 0);
    sample (2 * SECOND, 10000, 1);
    prober_take_samples (&prober, 0);
    tap_ok (driver.asked == 10 && computed (1) == SECOND, "one that has taken none yet is asked at once");
    return tap_done ();
}
