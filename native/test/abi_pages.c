/* Prints "structure.member offset size" for what nvc/guard/pages.py and nvc/guard/supervisors.py repeat of supervisor/pages.h and
 * supervisor/channel.h, a structure's size as member "*", and every constant as "NAME 0 value". */
#include "supervisor/container_state.h"
#include "supervisor/monitor.h"

#include <stddef.h>
#include <stdio.h>

#define WHOLE(type) printf ("%s.* 0 %zu\n", #type, sizeof (struct type));
#define MEMBER(type, name) \
    printf ("%s.%s %zu %zu\n", #type, #name, offsetof (struct type, name), sizeof (((struct type *) 0)->name));
#define NUMBER(name) printf ("%s 0 %llu\n", #name, (unsigned long long) (name));

static void print_plan (void)
{
    WHOLE (plan_phase)
    MEMBER (plan_phase, period)
    MEMBER (plan_phase, since)
    MEMBER (plan_phase, until)
    MEMBER (plan_phase, spare)
    WHOLE (plan)
    MEMBER (plan, generation)
    MEMBER (plan, limits)
    MEMBER (plan, slice)
    MEMBER (plan, is_frozen)
    MEMBER (plan, phases)
    WHOLE (plan_file)
    MEMBER (plan_file, magic)
    MEMBER (plan_file, version)
    MEMBER (plan_file, index)
    MEMBER (plan_file, spare)
    MEMBER (plan_file, plans)
}

/* Not that of driver-reported usage, which lies between two others and has another name in each language. */
static void print_status (void)
{
    WHOLE (guard_status)
    MEMBER (guard_status, memory)
    MEMBER (guard_status, managed)
    MEMBER (guard_status, groups)
    MEMBER (guard_status, slice)
    MEMBER (guard_status, frozen)
    MEMBER (guard_status, frozen_ns)
    MEMBER (guard_status, notifications)
    MEMBER (guard_status, performed)
    MEMBER (guard_status, continued)
    MEMBER (guard_status, refused)
    MEMBER (guard_status, reasons)
    MEMBER (guard_status, handling_ns)
    MEMBER (guard_status, processes)
    MEMBER (guard_status, listeners)
    MEMBER (guard_status, waits_for)
    MEMBER (guard_status, spare)
    MEMBER (guard_status, waits_ns)
    MEMBER (guard_status, called_ns)
}

static void print_counters (void)
{
    WHOLE (guard_attached)
    MEMBER (guard_attached, frozen_ns)
    MEMBER (guard_attached, processes)
    MEMBER (guard_attached, frozen)
    WHOLE (guard_process)
    MEMBER (guard_process, pid)
    MEMBER (guard_process, clients)
    MEMBER (guard_process, start_time)
    MEMBER (guard_process, memory)
    WHOLE (guard_event)
    MEMBER (guard_event, when_ns)
    MEMBER (guard_event, tenant)
    MEMBER (guard_event, reason)
    MEMBER (guard_event, number)
    MEMBER (guard_event, pid)
    MEMBER (guard_event, repeated)
    WHOLE (counters)
    MEMBER (counters, generation)
    MEMBER (counters, published_ns)
    MEMBER (counters, is_gone)
    MEMBER (counters, sees_driver)
    MEMBER (counters, sees_exec)
    MEMBER (counters, process_count)
    MEMBER (counters, status)
    MEMBER (counters, attached)
    MEMBER (counters, processes)
    WHOLE (counters_file)
    MEMBER (counters_file, magic)
    MEMBER (counters_file, version)
    MEMBER (counters_file, index)
    MEMBER (counters_file, spare)
    MEMBER (counters_file, event_count)
    MEMBER (counters_file, events)
    MEMBER (counters_file, counters)
}

static void print_contention (void)
{
    WHOLE (guard_contention)
    MEMBER (guard_contention, magic)
    MEMBER (guard_contention, written_ns)
    MEMBER (guard_contention, last[0].tenant)
    MEMBER (guard_contention, last[0].called_ns)
    MEMBER (guard_contention, last[1].tenant)
    MEMBER (guard_contention, last[1].called_ns)
}

static void print_packets (void)
{
    WHOLE (channel_head)
    MEMBER (channel_head, operation)
    MEMBER (channel_head, result)
    WHOLE (channel_start)
    MEMBER (channel_start, tenant)
    MEMBER (channel_start, pid)
    MEMBER (channel_start, start_time)
    MEMBER (channel_start, devices)
    MEMBER (channel_start, directory)
    WHOLE (channel_listen)
    MEMBER (channel_listen, first)
    MEMBER (channel_listen, spare)
    WHOLE (channel_admit)
    MEMBER (channel_admit, descriptors)
    MEMBER (channel_admit, spare)
    WHOLE (channel_state)
    MEMBER (channel_state, tenant)
    MEMBER (channel_state, version)
    MEMBER (channel_state, monitor)
    MEMBER (channel_state, supervisor)
    WHOLE (channel_attach)
    MEMBER (channel_attach, count)
    MEMBER (channel_attach, spare)
    MEMBER (channel_attach, device)
    MEMBER (channel_attach, inode)
    MEMBER (channel_attach, channels)
    MEMBER (channel_attach, channels[0])
    MEMBER (channel_attach, channels[0].client)
    MEMBER (channel_attach, channels[0].subdevice)
    MEMBER (channel_attach, channels[0].channel)
    MEMBER (channel_attach, channels[0].place)
}

int main (void)
{
    print_plan ();
    print_status ();
    print_counters ();
    print_contention ();
    print_packets ();
    NUMBER (SHARE_MAX_GPUS)
    NUMBER (LIMITS_SIZE)
    NUMBER (GUARD_REASONS)
    NUMBER (GUARD_ATTACHED)
    NUMBER (GUARD_CONTENTION_MAGIC)
    NUMBER (PLAN_MAGIC)
    NUMBER (COUNTERS_MAGIC)
    NUMBER (PAGES_VERSION)
    NUMBER (COUNTERS_EVENTS)
    NUMBER (COUNTERS_PROCESSES)
    NUMBER (CHANNEL_PATH)
    NUMBER (CHANNEL_DESCRIPTORS)
    NUMBER (CHANNEL_CHANNELS)
    NUMBER (CHANNEL_REPLY)
    NUMBER (CHANNEL_START)
    NUMBER (CHANNEL_OPEN)
    NUMBER (CHANNEL_LISTEN)
    NUMBER (CHANNEL_ATTACH)
    NUMBER (CHANNEL_REMOVE)
    NUMBER (CHANNEL_END)
    NUMBER (CHANNEL_DONE)
    NUMBER (CHANNEL_ADMIT)
    NUMBER (MONITOR_LISTENERS)
    NUMBER (CONTAINER_STATE_MOST)
    return 0;
}
