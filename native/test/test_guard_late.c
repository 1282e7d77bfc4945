/* Stops that are late (guard/late.c), with a driver that refuses them, or does not come back from them. */
#include "guard/clock.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"
#include "tap.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
#define NV_ERR_TIMEOUT 0x65u

enum driver { WORKS, REFUSES, KNOWS_NO_CHANNEL, KNOWS_NO_SUBDEVICE, HANGS };
static _Atomic enum driver *driver; /* shared with a child */
static atomic_uint acted;

int ioctl (int file, unsigned long request, ...)
{
    va_list rest;
    NVOS54_PARAMETERS *control;

    (void) file;
    if (request != NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (*control)))
        return 0;
    va_start (rest, request);
    control = va_arg (rest, void *);
    va_end (rest);
    while (*driver == HANGS)
        usleep (1000);
    if (*driver == KNOWS_NO_SUBDEVICE)
        control->status = control->hObject == control->hClient ? NV_ERR_NOT_SUPPORTED : NV_ERR_INVALID_OBJECT_HANDLE;
    else if (control->cmd == NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS)
        control->status = *driver == REFUSES ? NV_ERR_TIMEOUT : *driver == KNOWS_NO_CHANNEL ? NV_ERR_OBJECT_NOT_FOUND : 0;
    return 0;
}

static void act (void *context)
{
    (void) context;
    acted++;
}

static struct guard *guard;
static struct tenant *tenant;

static void begin (void)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04", .gpu_count = 1 };

    *driver = WORKS;
    acted = 0;
    guard = guard_create (-1);
    if (guard == NULL || guard_tenant_add (guard, 1, &limits) != 0)
        exit (1);
    guard_on_failure (guard, act, NULL);
    tenant = guard->tenant;
    tenant->edges.channels = calloc (1, sizeof (struct edge_channel));
    tenant->edges.channels[0] = (struct edge_channel) { .client = 0xc1d00001u, .subdevice = 7, .channel = 1, .file = 0 };
    tenant->edges.count = 1;
}

static void end (void)
{
    *driver = WORKS;
    guard_destroy (guard);
}

/* When it was acted, in milliseconds from now on; 0: not until then. */
static unsigned acted_in (unsigned milliseconds)
{
    uint64_t begun = guard_now (), passed;

    while ((passed = (guard_now () - begun) / 1000000u) < milliseconds) {
        usleep (1000);
        if (acted != 0)
            return (unsigned) passed + 1;
    }
    return 0;
}

static void *plan (void *phases)
{
    struct guard_phase half = { .period = 20000, .until = 10000 };

    guard_phases_set (phases, 0, &half);
    return NULL;
}

static void refused (void)
{
    struct guard_event event;
    unsigned passed;

    begin ();
    *driver = REFUSES;
    tap_ok (guard_tenant_freeze (guard, 0, 1) == -EAGAIN, "a stop that the driver refuses is -EAGAIN");
    passed = acted_in (5000);
    tap_ok (passed > 400 && passed < 5000, "and after half a second the container is to be ended");
    tap_ok (guard_events (guard, &event, 1) == 1 && event.reason == RM_EDGE_LATE && event.tenant == 1, "with an event");
    end ();

    begin ();
    *driver = REFUSES;
    guard_tenant_freeze (guard, 0, 1);
    usleep (250000);
    *driver = WORKS;
    tap_ok (acted_in (800) == 0 && tenant->edges.channels[0].is_stopped,
            "one that succeeds in time is tried again, and is not late");
    end ();
}

/* The phase thread has the edges' lock in the driver. */
static void hangs (void)
{
    struct guard_phases *phases;
    unsigned passed;

    begin ();
    phases = guard_phases_create (guard, false);
    plan (phases);
    usleep (100000);
    tap_ok (tenant->edges.frozen_ns[0] > 0 && acted == 0, "a cap is kept");
    usleep (700000);
    tap_ok (acted == 0, "for as long as stops are made");
    *driver = HANGS;
    passed = acted_in (5000);
    tap_ok (passed > 400 && passed < 5000, "a driver that does not come back from a stop, or a start, ends the container");
    *driver = WORKS;
    guard_phases_destroy (phases);
    end ();
}

static void phases_refused (void)
{
    struct guard_phases *phases;
    unsigned passed;

    begin ();
    phases = guard_phases_create (guard, false);
    *driver = REFUSES;
    plan (phases);
    passed = acted_in (5000);
    tap_ok (passed > 400 && passed < 5000, "phases that are shorter than half a second make no stop that fails less late");
    *driver = WORKS;
    guard_phases_destroy (phases);
    end ();
}

static void gone (void)
{
    begin ();
    *driver = KNOWS_NO_CHANNEL;
    tap_ok (guard_tenant_freeze (guard, 0, 1) >= 0 && acted_in (800) == 0, "a channel that is being freed makes no stop late");
    end ();
    begin ();
    *driver = KNOWS_NO_SUBDEVICE;
    tap_ok (guard_tenant_freeze (guard, 0, 1) == -EAGAIN && acted_in (5000) != 0, "a channel of a freed subdevice makes one late");
    end ();
    begin ();
    tenant->edges.channels[0].subdevice = 0;
    tap_ok (guard_tenant_freeze (guard, 0, 1) == -EAGAIN && acted_in (5000) != 0, "or that never had one");
    end ();
}

/* As a machine that is suspended: the clock goes on, the process does not. */
static void suspended (void)
{
    int status = 0;
    pid_t pid = fork ();

    if (pid == 0) {
        begin ();
        *driver = REFUSES;
        guard_tenant_freeze (guard, 0, 1);
        usleep (250000); /* some ticks have seen it */
        raise (SIGSTOP);
        _exit (acted_in (800) != 0);
    }
    waitpid (pid, &status, WUNTRACED);
    usleep (900000);
    *driver = WORKS;
    kill (pid, SIGCONT);
    waitpid (pid, &status, 0);
    tap_ok (WIFEXITED (status) && WEXITSTATUS (status) == 0, "time in which this process was stopped does not count");
}

int main (void)
{
    driver = mmap (NULL, sizeof (*driver), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    alarm (120);
    refused ();
    hangs ();
    phases_refused ();
    gone ();
    suspended ();
    return tap_done ();
}
