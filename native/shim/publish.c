/*
 * Publishes the process's usage in its slot of the region and applies the share's limits of time (process.h).
 *
 * Runs in every process of a container that uses a GPU, under the process's lock: after tracked calls on the calling
 * thread, and in each round of the nvc-shim thread. process_is_stale and process_is_current run without the lock.
 */
#include "plain.h"
#include "process.h"
#include "raw.h"
#include "weight.h"

uint64_t process_memory_limit (const struct process *process, int gpu)
{
    uint64_t host = process->limits->gpus[gpu].memory;
    uint64_t own = LOAD_RELAXED (process->region.header->memory[gpu]);

    return own && (!host || own < host) ? own : host;
}

uint32_t process_cap (const struct process *process, int gpu)
{
    uint32_t host = process->limits->gpus[gpu].cap % 1000;
    uint32_t own = LOAD_RELAXED (process->region.header->cap[gpu]);

    own = own < 1000 ? own : 0;
    return own && (!host || own < host) ? own : host;
}

uint32_t process_timeslice (struct process *process, int gpu)
{
    const struct limits_gpu *limits = &process->limits->gpus[gpu];
    uint32_t lowered = LOAD_RELAXED (process->region.header->weight[gpu]);

    return weight_timeslice (limits->weight, lowered, limits->priority, region_groups (&process->region, gpu));
}

uint64_t process_region_digest (const struct process *process)
{
    const struct region_header *header = process->region.header;
    uint64_t own = LOAD (header->grouped);

    for (unsigned gpu = 0; gpu < process->limits->gpu_count && gpu < SHARE_MAX_GPUS; gpu++)
        own = own * 31 + ((uint64_t) LOAD_RELAXED (header->cap[gpu]) << 32 | LOAD_RELAXED (header->weight[gpu]));
    return own;
}

bool process_is_stale (const struct process *process)
{
    /* Once set, it stays mapped, whatever another thread changes meanwhile. */
    const struct limits *shared = LOAD_RELAXED (process->shared);

    if (!shared || !LOAD (process->attached))
        return false;
    return LOAD_RELAXED (shared->generation) != LOAD_RELAXED (process->generation) ||
           process_region_digest (process) != LOAD_RELAXED (process->region_digest);
}

bool process_is_current (const struct process *process)
{
    const struct pages *pages = LOAD_RELAXED (process->pages);

    return pages && LOAD (pages->token.state) == 2 && LOAD (process->current) && !process_is_stale (process);
}

static void publish_channels (struct process *process)
{
    static const struct region_channel none = { 0 };
    struct region_slot *slot = process->region.slot;
    struct rm_channel channels[REGION_CHANNELS];
    unsigned count = rm_channels (process->rm, channels, REGION_CHANNELS);

    if (!count && !slot->channel_count)
        return;
    count = count > REGION_CHANNELS ? REGION_CHANNELS : count;
    __atomic_store_n (&slot->channel_version, slot->channel_version | 1, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < REGION_CHANNELS; i++) {
        slot->channels[i] = none;
        if (i < count)
            slot->channels[i] = (struct region_channel) {
                .client = channels[i].client,
                .subdevice = channels[i].subdevice,
                .group = channels[i].group,
                .channel = channels[i].channel,
                .descriptor = files_descriptor (&process->files, channels[i].file),
                .gpu = channels[i].gpu,
            };
    }
    slot->channel_count = count;
    __atomic_store_n (&slot->channel_version, slot->channel_version + 1, __ATOMIC_SEQ_CST);
}

static bool needs_thread (struct process *process, int gpu)
{
    return (process->limits->flags & LIMITS_PAUSED) || process_cap (process, gpu);
}

static __attribute__ ((noinline)) bool publish_and_apply (struct process *process, uint64_t own)
{
    uint32_t regrouped = process->regrouped;
    bool wanted = false, other = false;

    if (process->attached)
        __atomic_store_n (&process->region_digest, own, __ATOMIC_RELAXED);
    if (!process->rm)
        return false;
    __atomic_store_n (&process->has_managed, rm_has_managed (process->rm), __ATOMIC_RELAXED);
    if (!process->known)
        return false;
    process->regrouped = 0;
    for (int gpu = 0; gpu < (int) process->limits->gpu_count; gpu++)
        if (regrouped & 1u << gpu) {
            uint32_t groups = rm_groups (process->rm, gpu), *place = &process->region.slot->groups[gpu];

            if (groups)
                region_identify (&process->region);
            other |= __atomic_exchange_n (place, groups, __ATOMIC_SEQ_CST) != groups;
        }
    if (regrouped)
        publish_channels (process);
    if (other) { /* changes the timeslices of all processes; this one's are written below */
        region_groups_changed (&process->region);
        __atomic_store_n (&process->region_digest, process_region_digest (process), __ATOMIC_RELAXED);
    }
    for (int gpu = 0; gpu < (int) process->limits->gpu_count; gpu++) {
        uint32_t timeslice;

        if (!process->region.slot->groups[gpu])
            continue;
        timeslice = process_timeslice (process, gpu);
        if (timeslice != process->applied[gpu])
            rm_set_timeslice (process->rm, gpu, timeslice ? timeslice : WEIGHT_DEFAULT * 2048 / 10);
        process->applied[gpu] = timeslice;
        if ((regrouped & process->frozen) & 1u << gpu)
            rm_freeze (process->rm, gpu, true);
        wanted |= needs_thread (process, gpu);
    }
    /* A thread of a vfork child would end with it: the next call of the process itself starts one. */
    if (wanted && process->thread == THREAD_NONE && !process_is_itself (process))
        return false;
    STORE (process->current, true);
    if (!wanted || process->thread != THREAD_NONE)
        return false;
    process->thread = THREAD_WANTED;
    return true;
}

bool process_publish (struct process *process)
{
    uint64_t own = process->attached ? process_region_digest (process) : 0;

    /* Nothing has changed since the last time. */
    if (process->current && !process->regrouped && own == process->region_digest)
        return false;
    return publish_and_apply (process, own);
}
