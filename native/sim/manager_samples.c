/*
 * Samples of which process computes (NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, ctrl2080perf.h): a ring of the last 72. A
 * sample says which process was on the engine when it was taken, and for which part of the time since the sample before the engine computed,
 * whatever the process. Runs as manager.c, under manager->lock.
 *
 * Each 200 ms, as an H100's.
 */
#include "manager_state.h"

#include <string.h>

#define COMPUTE 1 /* NV2080_ENGINE_TYPE_GRAPHICS */
#define EACH_NS UINT64_C (200000000)
#define HEAD_SIZE 16
#define ENGINES_AT 8 /* after the time stamp: fb, then gr, which is the compute engine */

static void take (const struct engine *engine, struct samples *samples)
{
    const struct engine_group *group = engine->current != NULL ? engine->current : engine->incoming;
    uint64_t passed = engine->now - samples->last;

    samples->taken[samples->place].when = engine->now;
    samples->taken[samples->place].part = passed != 0 ? (uint32_t) ((engine->busy - samples->busy) * 10000 / passed) : 0;
    samples->taken[samples->place].process = group != NULL ? group->process : SAMPLE_NONE;
    samples->place = (samples->place + 1) % SAMPLES;
    samples->last = engine->now;
    samples->busy = engine->busy;
}

void samples_run (struct manager *manager, struct engine *engine, uint64_t until)
{
    struct samples *samples = &manager->samples[engine->gpu];

    if (engine->type != COMPUTE)
        return;
    if (samples->next == 0 || until > samples->next + SAMPLES * EACH_NS) { /* what the ring would not keep */
        engine_run (engine, until);
        samples->last = until;
        samples->busy = engine->busy;
        samples->next = until + EACH_NS;
    }
    for (; samples->next <= until; samples->next += EACH_NS) {
        engine_run (engine, samples->next);
        take (engine, samples);
    }
}

static void put_engine (uint8_t *to, uint32_t part, uint32_t process)
{
    put32 (to, 0, part);
    put32 (to, 8, process);
}

enum status control_samples (struct request *request, struct object *object)
{
    uint8_t *params = request->params;
    struct samples *samples = &request->manager->samples[object->gpu];
    uint32_t sample_size = (request->params_size - HEAD_SIZE) / SAMPLES;
    uint32_t engines = request->manager->release >= 550 ? 6 : 4, engine_size = (sample_size - ENGINES_AT) / engines;

    if (get32 (params, 4) != request->params_size - HEAD_SIZE)
        return STATUS_INVALID_ARGUMENT;
    clock_run (request->manager);
    memset (params + HEAD_SIZE, 0, request->params_size - HEAD_SIZE);
    put32 (params, 8, SAMPLES);
    put32 (params, 12, samples->place);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint8_t *sample = params + HEAD_SIZE + (size_t) sample_size * i;
        uint32_t process = samples->taken[i].process;

        put64 (sample, 0, samples->taken[i].when);
        if (samples->taken[i].when == 0)
            continue;
        if (process != SAMPLE_NONE)
            process = request->caller->show (request->caller->context, process);
        for (uint32_t engine = 0; engine < engines; engine++)
            put_engine (sample + ENGINES_AT + (size_t) engine_size * engine, engine == 1 ? samples->taken[i].part : 0,
                        engine == 1 ? process : SAMPLE_NONE);
    }
    request->params_changed = true;
    return STATUS_OK;
}
