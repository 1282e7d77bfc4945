/*
 * nvc-supervisor with a hole: what the agent's node balance is to find. Linked with this in place of some functions of the guard; NVC_TEST_HOLE
 * says which. Nothing of it is in the programs that are installed.
 *
 * retained: memory that lives on in UVM after its FREE is not charged. raced: what the driver reports beyond the ledger is not seen.
 * threads: no further thread, process and watch of epoll can be had.
 * granularity: a piece is charged as much as it is said to have. context: a group's context is not charged.
 */
#include "guard/driver_usage.h"
#include "guard/dup_probe.h"
#include "guard/guard.h"
#include "guard/host.h"
#include "guard/retained.h"
#include "guard/usage_page.h"
#include "rm/rm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define UNIT (UINT64_C (64) << 10)
#define SAID (UINT64_C (4) << 10)
#define CONTEXT (UINT64_C (9) << 19)

void __real_retained_before_call (struct tenant *tenant, const struct rm_call *call);
void __wrap_retained_before_call (struct tenant *tenant, const struct rm_call *call);
long __real_driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid,
                                     struct process_usage *found);
long __wrap_driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid,
                                     struct process_usage *found);
bool __real_usage_page_take (struct tenant *tenant, struct process *process, uint64_t now);
bool __wrap_usage_page_take (struct tenant *tenant, struct process *process, uint64_t now);
struct rm *__real_rm_create (const struct rm_abi *abi, enum rm_posture posture, const struct rm_host *host, void *context);
struct rm *__wrap_rm_create (const struct rm_abi *abi, enum rm_posture posture, const struct rm_host *host, void *context);

struct dup_probe *__real_probe_open (struct privsep *privsep);
struct dup_probe *__wrap_probe_open (struct privsep *privsep);
int __real_epoll_ctl (int epoll, int operation, int file, struct epoll_event *event);
int __wrap_epoll_ctl (int epoll, int operation, int file, struct epoll_event *event);
int __real_guard_phases_set (struct guard_phases *phases, uint32_t gpu, const struct guard_phase *phase);
int __wrap_guard_phases_set (struct guard_phases *phases, uint32_t gpu, const struct guard_phase *phase);

/* Before it is confined. */
static const char *hole;

__attribute__ ((constructor)) static void read_hole (void) { hole = getenv ("NVC_TEST_HOLE"); }

static bool is_open (const char *name) { return hole != NULL && strcmp (hole, name) == 0; }

void __wrap_retained_before_call (struct tenant *tenant, const struct rm_call *call)
{
    if (!is_open ("retained"))
        __real_retained_before_call (tenant, call);
}

long __wrap_driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid,
                                     struct process_usage *found)
{
    long result = __real_driver_usage_of_process (driver_usage, uuid, pid, found);

    if (is_open ("raced"))
        *found = (struct process_usage) { 0 };
    return result;
}

bool __wrap_usage_page_take (struct tenant *tenant, struct process *process, uint64_t now)
{
    return !is_open ("raced") && __real_usage_page_take (tenant, process, now);
}

struct dup_probe *__wrap_probe_open (struct privsep *privsep) { return is_open ("threads") ? NULL : __real_probe_open (privsep); }

int __wrap_epoll_ctl (int epoll, int operation, int file, struct epoll_event *event)
{
    if (!is_open ("threads") || operation != EPOLL_CTL_ADD)
        return __real_epoll_ctl (epoll, operation, file, event);
    errno = ENOSPC;
    return -1;
}

int __wrap_guard_phases_set (struct guard_phases *phases, uint32_t gpu, const struct guard_phase *phase)
{
    return is_open ("threads") && phase->period != 0 ? -EAGAIN : __real_guard_phases_set (phases, gpu, phase);
}

static uint64_t charged (uint64_t bytes)
{
    if (is_open ("granularity") && bytes == UNIT)
        return SAID;
    return is_open ("context") && bytes == CONTEXT ? 0 : bytes;
}

static bool reserve (void *context, int gpu, uint64_t bytes) { return guard_host.reserve (context, gpu, charged (bytes)); }

static void refund (void *context, int gpu, uint64_t bytes) { guard_host.refund (context, gpu, charged (bytes)); }

static void charge (void *context, int gpu, uint64_t bytes) { guard_host.charge (context, gpu, charged (bytes)); }

struct rm *__wrap_rm_create (const struct rm_abi *abi, enum rm_posture posture, const struct rm_host *host, void *context)
{
    static struct rm_host leaky;

    leaky = *host;
    leaky.reserve = reserve;
    leaky.refund = refund;
    leaky.charge = charge;
    return __real_rm_create (abi, posture, &leaky, context);
}
