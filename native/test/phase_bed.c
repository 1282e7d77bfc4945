/*
 * phase_bed: tenants on one simulated GPU whose clock is moved by hand, their slices and a phase plan each, by commands on
 * standard input (tests/nvc/guard/test_histories.py decides, this carries out). One line each:
 *
 *     arrive T GROUPS           a tenant with groups that are never out of work; a second time: one more process
 *     leave T                   all of it
 *     slice T MICROSECONDS      of each of its groups
 *     plan PERIOD [T SINCE UNTIL]...      phases of these tenants, and none of the others
 *     run MICROSECONDS          prints "T:BUSY_NS ..." of those that are there, since they arrived
 *     frozen                    prints the tenants that are off
 *     off                       prints "T:NS ..." of all that were off: for how long, as the guard counts it
 *     samples                   prints "WHEN:PART:T ..." of the driver's last 72 samples; T: -1 for none
 *     calls FREEZE THAW SPREAD LATE   microseconds: how long calls last, by how much that differs,
 *                                     how late the thread wakes
 *
 * A stop takes effect at half of its call and a thaw at its end, as measured on an H200. Each tenant's supervisor makes its own calls. The
 * driver makes one at a time: a call that begins during another one's waits, and the supervisor counts that as a part of it.
 */
#include "guard/phase.h"
#include "manager_bed.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <stdio.h>
#include <stdlib.h>

#define TENANTS 512
#define PROCESSES 8
#define GROUPS 8
#define FIRST_PID 1000u
#define SAMPLES 72u
#define EPOCH UINT64_C (18800000000) /* of the scheduler's periods, and of samples */
#define FOREVER UINT64_C (1000000000000)

static struct {
    struct manager_file *files[PROCESSES];
    uint32_t clients[PROCESSES], groups[PROCESSES], processes;
    uint64_t slice, off_ns, off_since, called; /* the last: when its thread came back from its last call */
    bool frozen;
} tenants[TENANTS];
static struct phase_plan plans[TENANTS];
static uint64_t freeze_ns = 600000, thaw_ns = 330000, spread_ns, late_ns, random_state = 88172645463325252u;

static uint64_t below (uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return limit == 0 ? 0 : random_state % limit;
}

static uint64_t now (void) { return manager_clock (bed, SIM_CLOCK_ASK, 0); }

static void advance_to (uint64_t time)
{
    uint64_t at = now ();

    if (time > at)
        manager_clock (bed, SIM_CLOCK_ADVANCE, time - at);
}

static void must (bool is_so, const char *what)
{
    if (!is_so) {
        fprintf (stderr, "phase_bed: %s\n", what);
        exit (1);
    }
}

/* Only scheduling (8): takes effect after 300 us, half of the call that lasts 600. */
static void switch_process (unsigned tenant, uint32_t process, bool frozen)
{
    uint32_t client = tenants[tenant].clients[process], count = tenants[tenant].groups[process];
    static uint8_t params[536];

    memset (params, 0, sizeof (params));
    params[0] = frozen;
    params[8] = frozen;
    memcpy (params + 4, &count, 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t channel = 0x200 + i;

        memcpy (params + 24 + 4 * i, &client, 4);
        memcpy (params + 280 + 4 * i, &channel, 4);
    }
    must (bed_control (tenants[tenant].files[process], client, SUBDEVICE, 0x2080110B, params, sizeof (params)) == 0,
          "a tenant could not be switched");
}

static void set_slice (unsigned tenant, uint64_t microseconds)
{
    tenants[tenant].slice = microseconds;
    for (uint32_t process = 0; process < tenants[tenant].processes; process++)
        for (uint32_t i = 0; i < tenants[tenant].groups[process]; i++)
            bed_control (tenants[tenant].files[process], tenants[tenant].clients[process], 0x100 + i, 0xA06C0103, &microseconds, 8);
}

static void arrive (unsigned tenant, uint32_t groups)
{
    struct manager_file *file = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t group_params[5] = { 0, 0, 0, 1, 0 }, client, process = tenants[tenant].processes;
    static uint8_t channel_params[368];

    bed_task.process = FIRST_PID + 2 * tenant;
    client = bed_client (file, 0);
    bed_task.process = FIRST_PID - 2;
    must (process < PROCESSES && groups > 0 && groups <= GROUPS, "too many of a tenant");
    for (uint32_t i = 0; i < groups; i++) {
        struct sim_submit work = { .client = client, .channel = 0x200 + i, .nanoseconds = 1000000, .count = FOREVER };

        bed_alloc (file, client, DEVICE, 0x100 + i, 0xA06C, group_params);
        bed_alloc (file, client, 0x100 + i, 0x200 + i, 0xC86F, channel_params);
        must (bed_ioctl (file, SIM_SUBMIT, &work) == 0 && work.status == 0, "no work could be given");
    }
    tenants[tenant].files[process] = file;
    tenants[tenant].clients[process] = client;
    tenants[tenant].groups[process] = groups;
    tenants[tenant].processes++;
    /* libcuda's own, or the tenant's, written when libcuda writes its own; and off if the tenant is. */
    set_slice (tenant, tenants[tenant].slice ? tenants[tenant].slice : 2048);
    if (tenants[tenant].frozen)
        switch_process (tenant, process, true);
}

static void leave (unsigned tenant)
{
    for (uint32_t process = 0; process < tenants[tenant].processes; process++)
        manager_release (tenants[tenant].files[process]);
    memset (&tenants[tenant], 0, sizeof (tenants[tenant]));
}

static uint64_t busy (unsigned tenant)
{
    uint64_t sum = 0;

    for (uint32_t process = 0; process < tenants[tenant].processes; process++)
        for (uint32_t i = 0; i < tenants[tenant].groups[process]; i++) {
            struct sim_progress call = { .client = tenants[tenant].clients[process], .channel = 0x200 + i };

            bed_ioctl (tenants[tenant].files[process], SIM_PROGRESS, &call);
            sum += call.busy_ns;
        }
    return sum;
}

static void make (unsigned tenant, struct phase_step step)
{
    uint64_t called = step.at + below (late_ns), began, lasts = (step.freeze ? freeze_ns : thaw_ns) + below (spread_ns);
    bool exists = tenants[tenant].processes > 0;

    if (called < tenants[tenant].called)
        called = tenants[tenant].called;
    advance_to (called);
    began = now ();
    if (exists) {
        /* The manager starts a channel 300 us after it is told to, the GPU at the end of the call. */
        if (!step.freeze && lasts > 300000)
            advance_to (began + lasts - 300000);
        tenants[tenant].frozen = step.freeze;
        if (step.freeze)
            tenants[tenant].off_since = began + lasts / 2;
        else
            tenants[tenant].off_ns += began + lasts - tenants[tenant].off_since;
        for (uint32_t process = 0; process < tenants[tenant].processes; process++)
            switch_process (tenant, process, step.freeze);
        advance_to (began + lasts);
    }
    tenants[tenant].called = now ();
    phase_done (&plans[tenant], step, called, now (), exists);
}

static void run_until (uint64_t end)
{
    while (now () < end) {
        struct phase_step first = { .at = UINT64_MAX };
        unsigned tenant = 0;

        for (unsigned i = 0; i < TENANTS; i++) {
            struct phase_step step = phase_next (&plans[i]);

            if (step.at < first.at) {
                first = step;
                tenant = i;
            }
        }
        if (first.at >= end) {
            advance_to (end);
            return;
        }
        make (tenant, first);
    }
}

static void set_plan (char *words)
{
    struct guard_phase phases[TENANTS] = { 0 };
    uint32_t period = (uint32_t) strtoul (words, &words, 10);

    for (char *end = words;; words = end) {
        unsigned long tenant = strtoul (words, &end, 10);

        if (end == words)
            break;
        must (tenant < TENANTS, "no such tenant");
        phases[tenant].period = period;
        phases[tenant].since = (uint32_t) strtoul (end, &end, 10);
        phases[tenant].until = (uint32_t) strtoul (end, &end, 10);
    }
    for (unsigned i = 0; i < TENANTS; i++) {
        must (phase_check (&phases[i]) == 0, "a phase that cannot be");
        phase_set (&plans[i], &phases[i], now ());
    }
}

static void print_samples (void)
{
    static struct {
        NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS head;
        struct {
            uint64_t stamp;
            NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE engines[6 * 128 / sizeof (NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE)];
        } samples[SAMPLES];
    } params;
    struct manager_file *file = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t client = bed_client (file, 0);

    params.head.type = NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL;
    params.head.bufSize = sizeof (params.samples);
    must (bed_control (file, client, SUBDEVICE, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, &params,
                       sizeof (params)) == 0,
          "there are no samples");
    manager_release (file);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        const NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE *compute = &params.samples[i]
                                                                         .engines[128 / sizeof (*compute)]; /* gr, after fb */
        bool is_named = compute->procId != NV2080_GPUMON_PID_INVALID;

        if (params.samples[i].stamp != 0)
            printf ("%llu:%u:%d ", (unsigned long long) params.samples[i].stamp, compute->util,
                    is_named ? (int) (compute->procId - FIRST_PID) / 2 : -1);
    }
    printf ("\n");
}

static void command (char *line)
{
    char *words = strchr (line, ' ');
    unsigned long tenant;

    words = words != NULL ? words : strchr (line, '\0');
    if (strncmp (line, "run", 3) == 0) {
        run_until (now () + strtoull (words, NULL, 10) * 1000);
        for (unsigned i = 0; i < TENANTS; i++)
            if (tenants[i].processes > 0)
                printf ("%u:%llu ", i, (unsigned long long) busy (i));
        printf ("\n");
        return;
    }
    if (strncmp (line, "frozen", 6) == 0) {
        for (unsigned i = 0; i < TENANTS; i++)
            if (tenants[i].frozen)
                printf ("%u ", i);
        printf ("\n");
        return;
    }
    if (strncmp (line, "off", 3) == 0) {
        for (unsigned i = 0; i < TENANTS; i++)
            if (tenants[i].off_since != 0)
                printf ("%u:%llu ", i,
                        (unsigned long long) (tenants[i].off_ns + (tenants[i].frozen ? now () - tenants[i].off_since : 0)));
        printf ("\n");
        return;
    }
    if (strncmp (line, "samples", 7) == 0) {
        print_samples ();
        return;
    }
    if (strncmp (line, "plan", 4) == 0) {
        set_plan (words);
        return;
    }
    tenant = strtoul (words, &words, 10);
    if (strncmp (line, "calls", 5) == 0) {
        freeze_ns = tenant * 1000;
        thaw_ns = strtoull (words, &words, 10) * 1000;
        spread_ns = strtoull (words, &words, 10) * 1000;
        late_ns = strtoull (words, &words, 10) * 1000;
        return;
    }
    must (tenant < TENANTS, "no such tenant");
    if (strncmp (line, "arrive", 6) == 0)
        arrive ((unsigned) tenant, (uint32_t) strtoul (words, NULL, 10));
    else if (strncmp (line, "leave", 5) == 0)
        leave ((unsigned) tenant);
    else if (strncmp (line, "slice", 5) == 0)
        set_slice ((unsigned) tenant, strtoull (words, NULL, 10));
    else
        must (false, "no such command");
}

int main (void)
{
    static char line[65536];

    bed_start ();
    bed_task.process = FIRST_PID - 2;
    /* The clock begins where the computer's is: somewhere in a period. Not so here, so that every run is the same. */
    advance_to (now () / EPOCH * EPOCH + EPOCH + 12345678);
    while (fgets (line, sizeof (line), stdin) != NULL) {
        command (line);
        if (strncmp (line, "run", 3) == 0 || strncmp (line, "frozen", 6) == 0 || strncmp (line, "off", 3) == 0 ||
            strncmp (line, "samples", 7) == 0)
            fflush (stdout);
    }
    for (unsigned i = 0; i < TENANTS; i++)
        leave (i);
    bed_stop ();
    return 0;
}
