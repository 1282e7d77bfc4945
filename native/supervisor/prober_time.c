/*
 * See prober.h: which processes computed, as the driver samples it. Each 200 ms (an H100 with 580) the GPU's firmware writes down for which part
 * of the time since the sample before its engine computed, and which process was on it at that moment; the driver keeps the last 72.
 * nvidia-smi pmon reads the same, and no right is needed (RMCTRL_FLAGS_NON_PRIVILEGED from 535 to 595); under MIG there are none.
 */
#include "prober.h"

#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <string.h>

/* A sample speaks for the time since the one before, up to this: in between the GPU was off, or samples were lost. */
#define SPEAKS_NS UINT64_C (1000000000)
/* Until a GPU whose driver has no samples is asked again. */
#define NONE_NS UINT64_C (60000000000)
#define STAMP 8u /* NV2080_CTRL_GPUMON_SAMPLE, before the engines */

/* The driver compares the size of the params with its own struct's: the layout that it takes is the right one. */
static const struct layout {
    uint32_t engines, engine;
} layouts[] = { { 6, 128 }, { 6, 116 }, { 4, 116 } }; /* from 570 on; from 550 on; before */
#define LAYOUTS (sizeof (layouts) / sizeof (layouts[0]))
#define SIZE_OF(layout) (STAMP + (layout).engines * (layout).engine)
#define SIZE_MOST (STAMP + 6 * 128)

struct sample {
    uint64_t stamp;
    uint32_t part, pid;
};

/* How many; -1: the driver refuses, in this layout. */
static int ask (struct prober *self, unsigned gpu, unsigned layout, struct sample *samples)
{
    static struct {
        NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS head;
        uint8_t samples[SAMPLES_MOST * SIZE_MOST];
    } params;
    uint32_t size = SIZE_OF (layouts[layout]);
    int count = 0;

    _Static_assert (SAMPLES_MOST == NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL, "");
    memset (&params, 0, sizeof (params));
    params.head.type = NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL;
    params.head.bufSize = SAMPLES_MOST * size;
    if (driver_client_control (&self->client, DRIVER_HANDLE_SUBDEVICE + self->client.gpus[gpu].instance,
                               NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, &params,
                               sizeof (params.head) + params.head.bufSize) != NV_OK)
        return -1;
    for (unsigned i = 0; i < SAMPLES_MOST; i++) {
        const uint8_t *at = params.samples + (size_t) i * size;
        NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE compute;
        struct sample sample;
        int place = count;

        memcpy (&sample.stamp, at, sizeof (sample.stamp));
        memcpy (&compute, at + STAMP + layouts[layout].engine, sizeof (compute)); /* gr, after fb */
        if (sample.stamp == 0)
            continue;
        sample.part = compute.util < 10000 ? compute.util : 10000;
        sample.pid = compute.procId != NV2080_GPUMON_PID_INVALID ? compute.procId : 0;
        for (; place > 0 && samples[place - 1].stamp > sample.stamp; place--) /* a ring: the oldest first */
            samples[place] = samples[place - 1];
        samples[place] = sample;
        count++;
    }
    return count;
}

static void add (struct prober *self, uint32_t pid, uint64_t busy_ns)
{
    unsigned i = 0;

    while (i < self->computed_count && self->computed[i].pid != pid)
        i++;
    if (i == self->computed_count) {
        self->computed[i].pid = pid;
        self->computed[i].busy_ns = 0;
        self->computed_count++;
    }
    self->computed[i].busy_ns += busy_ns;
}

void prober_take_samples (struct prober *self, unsigned gpu)
{
    struct sample samples[SAMPLES_MOST];
    struct sampled *sampled = &self->sampled[gpu];
    unsigned tried = 0;
    int count;

    self->computed_count = 0;
    if (sampled->again_ns > guard_now ())
        return;
    do {
        count = ask (self, gpu, sampled->layout, samples);
        if (count < 0 && sampled->last == 0)
            sampled->layout = (sampled->layout + 1) % LAYOUTS;
    } while (count < 0 && sampled->last == 0 && ++tried < LAYOUTS);
    if (count < 0 && sampled->last == 0)
        sampled->again_ns = guard_now () + NONE_NS;
    if (count <= 0)
        return;
    for (int i = 0; sampled->last != 0 && i < count; i++) {
        uint64_t passed = samples[i].stamp - sampled->last, busy_ns;

        if (samples[i].stamp <= sampled->last)
            continue;
        passed = passed < SPEAKS_NS ? passed : SPEAKS_NS;
        busy_ns = passed * samples[i].part / 10000;
        sampled->sampled_ns += passed;
        sampled->busy_ns += busy_ns;
        if (samples[i].pid != 0)
            add (self, samples[i].pid, busy_ns);
        sampled->last = samples[i].stamp;
    }
    sampled->last = samples[count - 1].stamp;
}
